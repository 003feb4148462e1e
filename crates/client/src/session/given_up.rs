//! Changes that were not answered in time: their slot is told when its server answers again. What it has not met by then is not done
//! any more, and of what is done later its session counts as knowing nothing. Until then whatever the slot says may be outdated without
//! a word ([`crate::hearers::Doubt`]). What one of them has opened is asked with that: nobody could close it, and a file that is
//! unlinked would keep its bytes until the session ends.

use std::sync::atomic::{AtomicUsize, Ordering};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_sync::{Mutex, MutexGuard};

use crate::session::sequences::{Kept, Ticket};

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    /// What some of them had opened.
    opened: Vec<InodeId>,
}

/// What a session has given up.
#[derive(Default)]
pub(crate) struct GivenUps {
    /// As many as are kept: nearly always none.
    count: AtomicUsize,
    state: Mutex<State>,
    /// Held while slots hear of them.
    pub(crate) telling: Mutex<()>,
}

impl GivenUps {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn note(&self, ticket: Ticket<'_>) {
        let mut state = self.lock();
        // What goes beyond the limit stays open, and in doubt, until the session ends.
        if state.kept.len() < limits::REPLIES_PER_SESSION_MAX {
            state.kept.push(ticket.keep());
            self.count.store(state.kept.len(), Ordering::Release);
        }
    }

    pub(crate) fn first_of(&self, slot: Slot) -> Option<Kept> {
        self.lock().kept.iter().copied().find(|kept| kept.slot == slot)
    }

    pub(crate) fn is_told(&self, told: Kept, opened: Option<InodeId>) {
        let mut state = self.lock();
        state.kept.retain(|kept| *kept != told);
        state.opened.extend(opened);
        self.count.store(state.kept.len(), Ordering::Release);
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.lock().kept.iter().map(|kept| kept.slot).collect()
    }

    /// Takes what was opened, and nobody has closed.
    pub(crate) fn take_opened(&self) -> Vec<InodeId> {
        std::mem::take(&mut self.lock().opened)
    }
}

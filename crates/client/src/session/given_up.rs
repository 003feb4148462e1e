//! Changes that were not answered in time: their slot is told when its server answers again. What it has not met by then is not done
//! any more, and of what is done later its session counts as knowing nothing. Until then whatever the slot says may be outdated without
//! a word ([`crate::hearers::Doubt`]). What one of them has opened is asked with that: nobody could close it, and a file that is
//! unlinked would keep its bytes until the session ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, InodeId, Result, Slot, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

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
    /// Slots that threads are telling at this moment: each slot by one, and none waits for another slot.
    telling: Mutex<HashMap<Slot, Arc<Telling>>>,
}

/// A slot hears of what was given up there.
#[derive(Default)]
pub(crate) struct Telling {
    /// `None` inside: it is for others to try themselves.
    outcome: Mutex<Option<Option<Result<()>>>>,
    over: Condvar,
}

/// Who tells a slot.
pub(crate) enum Teller<'a> {
    /// The caller, who says what came of it.
    Me(Told<'a>),
    /// Another thread.
    Another(Arc<Telling>),
}

/// Says what came of it when it goes.
pub(crate) struct Told<'a> {
    given_ups: &'a GivenUps,
    slot: Slot,
    telling: Arc<Telling>,
    outcome: Option<Result<()>>,
}

impl Told<'_> {
    /// Those who wait hear this, too.
    pub(crate) fn share(&mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.given_ups.telling.lock().remove(&self.slot);
        *self.telling.outcome.lock() = Some(self.outcome.take());
        self.telling.over.notify_all();
    }
}

impl Telling {
    /// What came of it; `None`: whoever asks is to try it himself.
    pub(crate) fn wait(&self, slot: Slot, deadline: Instant) -> Option<Result<()>> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("{slot} was not told in time of what was given up there");
                return Some(Err(Error::new(ErrorKind::TimedOut, text)));
            }
            outcome = self.over.wait_timeout(outcome, left);
        }
    }
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

    /// Who tells the slot.
    pub(crate) fn teller(&self, slot: Slot) -> Teller<'_> {
        let mut telling = self.telling.lock();
        if let Some(another) = telling.get(&slot) {
            return Teller::Another(another.clone());
        }
        let mine = Arc::new(Telling::default());
        telling.insert(slot, mine.clone());
        Teller::Me(Told { given_ups: self, slot, telling: mine, outcome: None })
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    // SEMANTICS 138.4
    #[test]
    fn one_thread_tells_a_slot_and_nobody_waits_for_another_slot() {
        let given_ups = GivenUps::default();
        let Teller::Me(mut telling) = given_ups.teller(Slot(1)) else { panic!("nobody tells it") };
        assert!(matches!(given_ups.teller(Slot(2)), Teller::Me(_)));
        let Teller::Another(waits) = given_ups.teller(Slot(1)) else { panic!("it is told already") };
        let late = waits.wait(Slot(1), Instant::now()).unwrap().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        telling.share(Err(Error::new(ErrorKind::HostDown, "it says nothing")));
        drop(telling);
        let soon = Instant::now() + Duration::from_secs(10);
        assert_eq!(waits.wait(Slot(1), soon).unwrap().unwrap_err().kind(), ErrorKind::HostDown);
        let Teller::Me(telling) = given_ups.teller(Slot(1)) else { panic!("that is over") };
        let Teller::Another(waits) = given_ups.teller(Slot(1)) else { panic!("it is told already") };
        drop(telling);
        assert!(waits.wait(Slot(1), soon).is_none(), "each may have more time than that one had");
    }
}

//! A server's leases on names and attributes, and the tasks that wait for them: see [`crate::leases`].

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, SessionId, Slot};
use ramlace_namespace::Effect;
use ramlace_namespace::leases::{HOLD_MILLIS, Leases};
use ramlace_wire::leases::Leased;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::clock;

/// All leases of a server, and the tasks that wait for them.
pub struct LeaseDesk {
    pub leases: RefCell<Leases>,
    began: Instant,
    /// When the leases of the last incarnation are over.
    quiet_from: Cell<Option<Instant>>,
    /// Notified when a recall begins or ends.
    pub changed: Notify,
}

impl LeaseDesk {
    /// At the start of a server; its last incarnation may have given leases.
    pub fn new(had_given: bool, now: Instant) -> LeaseDesk {
        let over = now + Duration::from_millis(HOLD_MILLIS);
        LeaseDesk {
            leases: RefCell::default(),
            began: now,
            quiet_from: Cell::new(had_given.then_some(over)),
            changed: Notify::new(),
        }
    }

    pub fn now(&self) -> u64 {
        clock::instant().saturating_duration_since(self.began).as_millis() as u64
    }

    pub fn moment(&self, millis: u64) -> Instant {
        // The clock is read in whole milliseconds: one more is certainly later.
        self.began + Duration::from_millis(millis + 1)
    }

    /// Handles an effect, if it is a change; returns whether it is.
    pub fn note(&self, effect: &Effect) -> bool {
        let Effect::Changed { inode, names, knows } = *effect else { return false };
        let mut leases = self.leases.borrow_mut();
        if leases.is_idle() {
            return true;
        }
        let now = self.now();
        let mut recalled = leases.changed(inode, Leased::Attributes, knows, now);
        recalled |= names && leases.changed(inode, Leased::Names, knows, now);
        if recalled {
            self.changed.notify_waiters();
        }
        true
    }

    /// Recalls the leases on an inode's attributes, though they have not changed, from all but one session.
    pub fn recall_attributes(&self, inode: InodeId, but: SessionId) {
        let now = self.now();
        if self.leases.borrow_mut().changed(inode, Leased::Attributes, Some(but), now) {
            self.changed.notify_waiters();
        }
    }

    /// A session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.leases.borrow_mut().end_session(session);
        self.changed.notify_waiters();
    }

    /// What answers from these slots that are made now have to wait for. Bytes of lanes are not covered by
    /// leases of the last incarnation.
    pub fn recalled(&self, slots: impl Iterator<Item = Slot>, bytes_alone: bool) -> Recalled {
        let mut recalled = Recalled::default();
        let leases = self.leases.borrow();
        let mut slots = slots.peekable();
        if slots.peek().is_some() && !bytes_alone {
            recalled.quiet_until = self.quiet_until();
        }
        recalled.recalls.extend(slots.filter_map(|slot| Some((slot, leases.newest_pending(slot)?))));
        recalled
    }

    /// Until when leases of the last incarnation may still be in use.
    pub fn quiet_until(&self) -> Option<Instant> {
        self.quiet_from.set(self.quiet_from.get().filter(|over| *over > clock::instant()));
        self.quiet_from.get()
    }

    /// Waits until no client relies any more on what was there before the change.
    pub async fn pass(&self, recalled: &Recalled) {
        if let Some(over) = recalled.quiet_until {
            sleep_until(over.into()).await;
        }
        for (slot, newest) in recalled.recalls.iter().copied() {
            self.pass_slot(slot, newest).await;
        }
    }

    async fn pass_slot(&self, slot: Slot, newest: u64) {
        loop {
            let until = self.leases.borrow().pending_until(slot, newest);
            let Some(until) = until else { return };
            // Nothing else runs between the check and this: the server has one thread.
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(self.moment(until).into()) => {
                    self.leases.borrow_mut().pass(self.now());
                    self.changed.notify_waiters();
                }
            }
        }
    }
}

/// Recalls that an answer waits for.
#[derive(Debug, Default)]
pub struct Recalled {
    quiet_until: Option<Instant>,
    /// By slot: all up to the newest one that there was.
    recalls: Vec<(Slot, u64)>,
    /// Recalls of leases on bytes.
    pub data: Vec<u64>,
}

impl Recalled {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.quiet_until.is_none() && self.recalls.is_empty() && self.data.is_empty()
    }
}

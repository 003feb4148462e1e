//! Sessions that wait for delegated slots, and the room that is withheld for all delegated slots: see
//! [`crate::delegations`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ramlace_base::{SessionId, Slot, limits};
use ramlace_namespace::Delegation;
use ramlace_wire::leases::DelegationRecall;
use tokio::sync::Notify;

/// A delegation that its holder has to give back.
struct Wanted {
    held: Delegation,
    /// After this the wait for the holder ends.
    until: Instant,
    /// When the holder was last notified.
    notified: Option<Instant>,
}

/// The delegations of a server, besides what its slots know of them.
#[derive(Default)]
pub struct DelegationDesk {
    /// Notified when a delegation is wanted, or has ended.
    pub changed: Notify,
    wanted: RefCell<BTreeMap<Slot, Wanted>>,
    /// Not delegated to any session before this time.
    resting: RefCell<BTreeMap<Slot, Instant>>,
    count: Cell<u64>,
}

impl DelegationDesk {
    /// The number of delegations.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Sets the number to that of the slots.
    pub fn set_count(&self, count: u64) {
        self.count.set(count);
    }

    /// Another session waits for the slot; returns until when at the latest.
    pub fn want(&self, slot: Slot, held: Delegation, now: Instant) -> Instant {
        let mut wanted = self.wanted.borrow_mut();
        if let Some(known) = wanted.get(&slot)
            && known.held == held
        {
            return known.until;
        }
        let until = now + Duration::from_millis(limits::DELEGATION_RECALL_MILLIS_MAX);
        wanted.insert(slot, Wanted { held, until, notified: None });
        let mut resting = self.resting.borrow_mut();
        if resting.len() >= limits::DELEGATIONS_PER_SERVER_MAX {
            resting.retain(|_, until| *until > now);
        }
        resting.insert(slot, now + Duration::from_millis(limits::DELEGATION_REST_MILLIS));
        drop(wanted);
        self.changed.notify_waiters();
        until
    }

    /// Whether another session wanted the slot recently.
    pub fn rests(&self, slot: Slot, now: Instant) -> bool {
        self.resting.borrow().get(&slot).is_some_and(|until| *until > now)
    }

    /// The slots that a session has to give back, except those of which it was notified recently. They now count
    /// as notified.
    pub fn tell(&self, session: SessionId, now: Instant) -> Vec<DelegationRecall> {
        let again = Duration::from_millis(limits::DELEGATION_NOTIFIED_AGAIN_MILLIS);
        let mut wanted = self.wanted.borrow_mut();
        let of_session = wanted.iter_mut().filter(|(_, wanted)| wanted.held.session == session);
        let to_tell =
            of_session.filter(|(_, wanted)| wanted.notified.is_none_or(|notified| notified + again <= now));
        let notified = to_tell.take(limits::EVENTS_PER_ANSWER_MAX).map(|(slot, wanted)| {
            wanted.notified = Some(now);
            DelegationRecall { slot: *slot, number: wanted.held.number }
        });
        notified.collect()
    }

    /// When a session is to be notified of a slot again.
    pub fn tells_again_at(&self, session: SessionId) -> Option<Instant> {
        let again = Duration::from_millis(limits::DELEGATION_NOTIFIED_AGAIN_MILLIS);
        let wanted = self.wanted.borrow();
        let of_session = wanted.values().filter(|wanted| wanted.held.session == session);
        of_session.filter_map(|wanted| Some(wanted.notified? + again)).min()
    }

    /// A delegation has ended.
    pub fn is_over(&self, slot: Slot, held: Delegation) {
        let mut wanted = self.wanted.borrow_mut();
        if wanted.get(&slot).is_some_and(|wanted| wanted.held == held) {
            wanted.remove(&slot);
        }
        drop(wanted);
        self.changed.notify_waiters();
    }

    /// A session has ended, and its delegations with it.
    pub fn end_session(&self, session: SessionId) {
        self.wanted.borrow_mut().retain(|_, wanted| wanted.held.session != session);
        self.changed.notify_waiters();
    }
}

//! Delegations that somebody else waits for, and how much a server withholds for all that there are: see [`crate::delegations`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ramlace_base::{SessionId, Slot, limits};
use ramlace_namespace::Delegation;
use ramlace_wire::leases::DelegationRecall;
use tokio::sync::Notify;

/// A delegation that its holder is to give back.
struct Wanted {
    held: Delegation,
    /// Nobody waits for the holder any longer.
    until: Instant,
    /// When the holder was told last.
    told: Option<Instant>,
}

/// Delegations of a server, beside what its slots know of them.
#[derive(Default)]
pub struct DelegationDesk {
    /// One is wanted, or is over.
    pub changed: Notify,
    wanted: RefCell<BTreeMap<Slot, Wanted>>,
    /// Delegated to nobody before this moment.
    resting: RefCell<BTreeMap<Slot, Instant>>,
    count: Cell<u64>,
}

impl DelegationDesk {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// As many as the slots know of.
    pub fn set_count(&self, count: u64) {
        self.count.set(count);
    }

    /// Somebody waits for it; until when, at the latest.
    pub fn want(&self, slot: Slot, held: Delegation, now: Instant) -> Instant {
        let mut wanted = self.wanted.borrow_mut();
        if let Some(known) = wanted.get(&slot)
            && known.held == held
        {
            return known.until;
        }
        let until = now + Duration::from_millis(limits::DELEGATION_RECALL_MILLIS_MAX);
        wanted.insert(slot, Wanted { held, until, told: None });
        let mut resting = self.resting.borrow_mut();
        if resting.len() >= limits::DELEGATIONS_PER_SERVER_MAX {
            resting.retain(|_, until| *until > now);
        }
        resting.insert(slot, now + Duration::from_millis(limits::DELEGATION_REST_MILLIS));
        drop(wanted);
        self.changed.notify_waiters();
        until
    }

    /// Whether somebody else wanted the slot a moment ago.
    pub fn rests(&self, slot: Slot, now: Instant) -> bool {
        self.resting.borrow().get(&slot).is_some_and(|until| *until > now)
    }

    /// What a session is to give back and was not told of just now; it is told.
    pub fn tell(&self, session: SessionId, now: Instant) -> Vec<DelegationRecall> {
        let again = Duration::from_millis(limits::DELEGATION_TOLD_AGAIN_MILLIS);
        let mut wanted = self.wanted.borrow_mut();
        let of_session = wanted.iter_mut().filter(|(_, wanted)| wanted.held.session == session);
        let to_tell = of_session.filter(|(_, wanted)| wanted.told.is_none_or(|told| told + again <= now));
        let told = to_tell.take(limits::EVENTS_PER_ANSWER_MAX).map(|(slot, wanted)| {
            wanted.told = Some(now);
            DelegationRecall { slot: *slot, number: wanted.held.number }
        });
        told.collect()
    }

    /// When something is to be told to a session again.
    pub fn tells_again_at(&self, session: SessionId) -> Option<Instant> {
        let again = Duration::from_millis(limits::DELEGATION_TOLD_AGAIN_MILLIS);
        let wanted = self.wanted.borrow();
        let of_session = wanted.values().filter(|wanted| wanted.held.session == session);
        of_session.filter_map(|wanted| Some(wanted.told? + again)).min()
    }

    /// A delegation is over.
    pub fn is_over(&self, slot: Slot, held: Delegation) {
        let mut wanted = self.wanted.borrow_mut();
        if wanted.get(&slot).is_some_and(|wanted| wanted.held == held) {
            wanted.remove(&slot);
        }
        drop(wanted);
        self.changed.notify_waiters();
    }

    /// A session has ended, and with it what was delegated to it.
    pub fn end_session(&self, session: SessionId) {
        self.wanted.borrow_mut().retain(|_, wanted| wanted.held.session != session);
        self.changed.notify_waiters();
    }
}

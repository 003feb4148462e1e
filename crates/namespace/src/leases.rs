//! Leases on attributes and names: who may believe what until when, and who has yet to hear that he may not any more.
//!
//! What a server has promised, and nothing that must outlive it: its next life waits until all of this is over.
//! Time is milliseconds of one clock that never goes back. A holder counts his lease from before his request left, so
//! that it is over for him before it is over here.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{InodeId, SessionId, Slot, limits};
use ramlace_wire::leases::{Leased, Recall};

/// How long a holder who says nothing is waited for.
pub const HOLD_MILLIS: u64 = limits::LEASE_MILLIS + limits::LEASE_MARGIN_MILLIS;

/// What a lease is on.
type Subject = (InodeId, Leased);

/// Sessions and until when they are waited for.
type Holders = Vec<(SessionId, u64)>;

/// All leases of one server.
#[derive(Debug, Default)]
pub struct Leases {
    holders: BTreeMap<Subject, Holders>,
    /// Leases in `holders`, those that are over among them.
    given: usize,
    /// No new lease before this moment.
    resting: BTreeMap<Subject, u64>,
    recalls: BTreeMap<u64, Pending>,
    /// The same by slot, and by what is recalled.
    in_slots: BTreeSet<(Slot, u64)>,
    subjects: BTreeMap<Subject, u64>,
    /// Sessions that ask for recalls, and what they have not acknowledged.
    listeners: BTreeMap<SessionId, Listener>,
    last_number: u64,
}

#[derive(Debug)]
struct Pending {
    subject: Subject,
    waiting: Holders,
}

#[derive(Debug, Default)]
struct Listener {
    unheard: BTreeSet<u64>,
    /// It let a recall run out: it gets no leases before it asks again.
    deaf: bool,
}

impl Leases {
    /// Whether nobody holds anything, and nobody is waited for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.recalls.is_empty()
    }

    /// Whether a session can be given leases: it hears of recalls.
    #[must_use]
    pub fn listens(&self, session: SessionId) -> bool {
        self.listeners.get(&session).is_some_and(|listener| !listener.deaf)
    }

    /// Gives a lease, or extends it; false when there is none to be had now, and the session must ask each time.
    pub fn give(&mut self, session: SessionId, inode: InodeId, what: Leased, now: u64) -> bool {
        let subject = (inode, what);
        if self.listeners.get(&session).is_none_or(|listener| listener.deaf)
            || self.subjects.contains_key(&subject)
            || self.resting.get(&subject).is_some_and(|until| *until > now)
        {
            return false;
        }
        let until = now + HOLD_MILLIS;
        if let Some(held) = self.holders.get_mut(&subject).and_then(|holders| find(holders, session)) {
            *held = until;
            return true;
        }
        if self.given >= limits::LEASES_PER_SERVER_MAX && !self.make_room(now) {
            return false;
        }
        self.holders.entry(subject).or_default().push((session, until));
        self.given += 1;
        true
    }

    /// Drops what is over; whether there is room now. A full table is looked through once for each part of it.
    fn make_room(&mut self, now: u64) -> bool {
        self.holders.retain(|_, holders| {
            holders.retain(|(_, until)| *until > now);
            !holders.is_empty()
        });
        self.given = self.holders.values().map(Vec::len).sum();
        self.resting.retain(|_, until| *until > now);
        self.given < limits::LEASES_PER_SERVER_MAX
    }

    /// Something has changed: its leases are recalled, but for that of who `knows`. Whether somebody has to be told.
    pub fn changed(&mut self, inode: InodeId, what: Leased, knows: Option<SessionId>, now: u64) -> bool {
        let subject = (inode, what);
        let Some(holders) = self.holders.remove(&subject) else { return false };
        self.given -= holders.len();
        let held = holders.into_iter().filter(|(_, until)| *until > now);
        let (knowing, waiting): (Holders, Holders) = held.partition(|(session, _)| Some(*session) == knows);
        if !knowing.is_empty() {
            self.given += knowing.len();
            self.holders.insert(subject, knowing);
        }
        if waiting.is_empty() {
            return false;
        }
        self.last_number += 1;
        let number = self.last_number;
        for (session, _) in &waiting {
            self.listeners.entry(*session).or_default().unheard.insert(number);
        }
        self.in_slots.insert((inode.slot(), number));
        *self.subjects.entry(subject).or_default() += 1;
        if self.resting.len() >= limits::LEASES_PER_SERVER_MAX {
            self.resting.retain(|_, until| *until > now);
        }
        self.resting.insert(subject, now + limits::LEASE_REST_MILLIS);
        self.recalls.insert(number, Pending { subject, waiting });
        true
    }

    /// A session asks for recalls, and has done all up to `heard`.
    pub fn heard(&mut self, session: SessionId, heard: u64) {
        let listener = self.listeners.entry(session).or_default();
        listener.deaf = false;
        let rest = listener.unheard.split_off(&heard.saturating_add(1));
        let done = std::mem::replace(&mut listener.unheard, rest);
        for number in done {
            self.no_longer_waits(number, session);
        }
    }

    /// What a session has yet to acknowledge, as much as one answer tells.
    #[must_use]
    pub fn unheard(&self, session: SessionId) -> Vec<Recall> {
        let numbers = self.listeners.get(&session).into_iter().flat_map(|listener| &listener.unheard);
        let recall = |number: &u64| {
            let (inode, what) = self.recalls.get(number)?.subject;
            Some(Recall { number: *number, inode, what })
        };
        numbers.take(limits::EVENTS_PER_ANSWER_MAX).filter_map(recall).collect()
    }

    /// Nobody waits any longer for those whose time is over.
    pub fn pass(&mut self, now: u64) {
        let over: Vec<(u64, SessionId)> = self
            .recalls
            .iter()
            .flat_map(|(number, pending)| pending.waiting.iter().map(|holder| (*number, *holder)))
            .filter(|(_, (_, until))| *until <= now)
            .map(|(number, (session, _))| (number, session))
            .collect();
        for (number, session) in over {
            if let Some(listener) = self.listeners.get_mut(&session) {
                listener.unheard.remove(&number);
                listener.deaf = true;
            }
            self.no_longer_waits(number, session);
        }
    }

    /// The newest recall of a slot for which somebody is waited.
    #[must_use]
    pub fn newest_pending(&self, slot: Slot) -> Option<u64> {
        self.in_slots.range((slot, 0)..=(slot, u64::MAX)).next_back().map(|(_, number)| *number)
    }

    /// Whether a recall of the slot, up to this number is not over; then the moment when one is, at the latest.
    #[must_use]
    pub fn pending_until(&self, slot: Slot, number: u64) -> Option<u64> {
        let first = |pending: &Pending| pending.waiting.iter().map(|(_, until)| *until).min();
        let numbers = self.in_slots.range((slot, 0)..=(slot, number));
        numbers.filter_map(|(_, number)| first(&self.recalls[number])).min()
    }

    /// A session has ended: it believes nothing any more.
    pub fn end_session(&mut self, session: SessionId) {
        for number in self.listeners.remove(&session).map(|listener| listener.unheard).unwrap_or_default() {
            self.no_longer_waits(number, session);
        }
        self.holders.retain(|_, holders| {
            holders.retain(|(holder, _)| *holder != session);
            !holders.is_empty()
        });
        self.given = self.holders.values().map(Vec::len).sum();
    }

    fn no_longer_waits(&mut self, number: u64, session: SessionId) {
        let Some(pending) = self.recalls.get_mut(&number) else { return };
        pending.waiting.retain(|(holder, _)| *holder != session);
        if !pending.waiting.is_empty() {
            return;
        }
        let subject = pending.subject;
        self.recalls.remove(&number);
        self.in_slots.remove(&(subject.0.slot(), number));
        if let Some(count) = self.subjects.get_mut(&subject) {
            *count -= 1;
            if *count == 0 {
                self.subjects.remove(&subject);
            }
        }
    }
}

fn find(holders: &mut Holders, session: SessionId) -> Option<&mut u64> {
    holders.iter_mut().find(|(holder, _)| *holder == session).map(|(_, until)| until)
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;

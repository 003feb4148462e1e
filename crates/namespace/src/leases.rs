//! Leases on attributes and names: which session may rely on which answers until when, and which still has to
//! be notified that it may not any more.
//!
//! Leases are not kept over a restart: a restarted server waits until all of them have expired. Time is
//! milliseconds of one clock that never goes back. A holder counts its lease from before its request left, so
//! that it expires for the holder before it expires here.
//!
//! A session renews all its leases by one request. Once a lease has expired, no caller waits for its holder.
//! Changes are still sent to it, and it renews only the leases for which it has received no change.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{InodeId, SessionId, Slot, limits};
use ramlace_wire::leases::{Leased, Recall};

/// How long callers wait for a holder that does not answer.
pub const HOLD_MILLIS: u64 = limits::LEASE_MILLIS + limits::LEASE_MARGIN_MILLIS;

/// What a lease is on.
type Subject = (InodeId, Leased);

/// Sessions, each with a point in time.
type Moments = Vec<(SessionId, u64)>;

/// All leases of one server.
#[derive(Debug)]
pub struct Leases {
    /// Leases that there may be.
    room: usize,
    /// The holders, and when their leases were given last.
    holders: BTreeMap<Subject, Moments>,
    /// Leases in `holders`, expired ones among them.
    given: usize,
    /// None of the leases that filled it expires before this moment.
    full_until: u64,
    /// No new lease before this moment.
    resting: BTreeMap<Subject, u64>,
    recalls: BTreeMap<u64, Pending>,
    /// The same by slot, and by subject.
    in_slots: BTreeSet<(Slot, u64)>,
    subjects: BTreeMap<Subject, u64>,
    /// Sessions that ask for recalls.
    sessions: BTreeMap<SessionId, Listener>,
    last_number: u64,
}

#[derive(Debug)]
struct Pending {
    subject: Subject,
    /// Until when each is waited for.
    waiting: Moments,
}

#[derive(Debug, Default)]
struct Listener {
    /// None of its leases expires before.
    renewed_until: u64,
    /// The recalls that it has not acknowledged.
    unacknowledged: BTreeMap<u64, Subject>,
    /// The newest recall whose time it let pass; 0: none. It gets no leases and renews none before it has done
    /// that recall, so that a session that acknowledges nothing does not delay others for long.
    ran_out: u64,
    /// It renews none before others have got room: it has leases that were given long ago.
    crowds: bool,
    /// How often expired leases were taken from it without notice.
    taken: u64,
}

impl Listener {
    /// Whether one more of its leases may be recalled.
    fn gets_all(&self) -> bool {
        self.unacknowledged.len() < limits::RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX
    }
}

/// All leases of a session last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// How often leases were taken from it without notice: if the holder knows another number, it does not know
    /// which leases it has.
    pub taken: u64,
    /// The newest recall that it has not acknowledged: if it has not received that one, the renewal has no
    /// effect.
    pub newest: u64,
}

impl Default for Leases {
    fn default() -> Leases {
        Leases::with_room_for(limits::LEASES_PER_SERVER_MAX)
    }
}

impl Leases {
    fn with_room_for(room: usize) -> Leases {
        Leases {
            room,
            holders: BTreeMap::new(),
            given: 0,
            full_until: 0,
            resting: BTreeMap::new(),
            recalls: BTreeMap::new(),
            in_slots: BTreeSet::new(),
            subjects: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// Whether there is no holder, and no recall is waited for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.recalls.is_empty()
    }

    /// Whether a session can be given leases: it receives recalls.
    #[must_use]
    pub fn listens(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|listener| listener.ran_out == 0 && listener.gets_all())
    }

    /// Whether another session may rely on a lease in a slot.
    #[must_use]
    pub fn others_hold(&self, slot: Slot, session: SessionId, now: u64) -> bool {
        let first = (InodeId::new(slot, 0), Leased::Attributes);
        let of_slot = self.holders.range(first..).take_while(|((inode, _), _)| inode.slot() == slot);
        let believes = |(holder, given): &(SessionId, u64)| {
            let renewed = self.sessions.get(holder).map_or(0, |listener| listener.renewed_until);
            *holder != session && renewed.max(given + HOLD_MILLIS) > now
        };
        of_slot.flat_map(|(_, holders)| holders).any(believes)
    }

    /// Gives a lease, or extends it; false when there is none to be had now, and the session must ask each time.
    pub fn give(&mut self, session: SessionId, inode: InodeId, what: Leased, now: u64) -> bool {
        let subject = (inode, what);
        if !self.listens(session)
            || self.subjects.contains_key(&subject)
            || self.resting.get(&subject).is_some_and(|until| *until > now)
        {
            return false;
        }
        if let Some(held) = self.holders.get_mut(&subject).and_then(|holders| find(holders, session)) {
            *held = now;
        } else {
            if self.given >= self.room && !self.make_room(now) {
                return false;
            }
            self.holders.entry(subject).or_default().push((session, now));
            self.given += 1;
        }
        true
    }

    /// Makes all leases of a session last from now on; `None` where it must first receive pending recalls.
    pub fn renew(&mut self, session: SessionId, now: u64) -> Option<Renewal> {
        if !self.listens(session) {
            return None;
        }
        let is_full = self.given >= self.room;
        let listener = self.sessions.get_mut(&session)?;
        listener.crowds &= is_full;
        if listener.crowds {
            return None;
        }
        listener.renewed_until = now + HOLD_MILLIS;
        let newest = listener.unacknowledged.last_key_value().map_or(0, |(number, _)| *number);
        Some(Renewal { taken: listener.taken, newest })
    }

    /// Drops leases that have expired; returns whether there is room now. Sessions with leases that last by
    /// renewals alone renew none until these have expired. A full table is searched when one of its leases may
    /// have expired, and not at each request.
    fn make_room(&mut self, now: u64) -> bool {
        if now < self.full_until {
            return false;
        }
        let (mut taken_from, mut crowding) = (BTreeSet::new(), BTreeSet::new());
        let sessions = &self.sessions;
        let mut full_until = u64::MAX;
        self.holders.retain(|_, holders| {
            holders.retain(|(session, given)| {
                let until = given + HOLD_MILLIS;
                if until > now {
                    full_until = full_until.min(until);
                    return true;
                }
                let renewed = sessions.get(session).map_or(0, |listener| listener.renewed_until);
                let lasts = renewed > now;
                if lasts {
                    full_until = full_until.min(renewed);
                    crowding.insert(*session);
                } else {
                    taken_from.insert(*session);
                }
                lasts
            });
            !holders.is_empty()
        });
        for (session, listener) in &mut self.sessions {
            listener.crowds |= crowding.contains(session);
            if taken_from.contains(session) {
                listener.taken += 1;
                listener.crowds = false;
            }
        }
        self.given = self.holders.values().map(Vec::len).sum();
        self.resting.retain(|_, until| *until > now);
        let has_room = self.given < self.room;
        self.full_until = if has_room { 0 } else { full_until };
        has_room
    }

    /// An inode has changed: its leases are recalled, but for that of the session that `knows`. Returns whether
    /// a session has to be notified.
    pub fn changed(&mut self, inode: InodeId, what: Leased, knows: Option<SessionId>, now: u64) -> bool {
        let subject = (inode, what);
        let Some(holders) = self.holders.remove(&subject) else { return false };
        self.given -= holders.len();
        let (knowing, telling): (Moments, Moments) =
            holders.into_iter().partition(|(session, _)| Some(*session) == knows);
        if !knowing.is_empty() {
            self.given += knowing.len();
            self.holders.insert(subject, knowing);
        }
        if telling.is_empty() {
            return false;
        }
        self.last_number += 1;
        let number = self.last_number;
        let mut waiting = Moments::new();
        for (session, given) in telling {
            let listener = self.sessions.entry(session).or_default();
            let until = listener.renewed_until.max(given + HOLD_MILLIS);
            if until > now {
                waiting.push((session, until));
                listener.unacknowledged.insert(number, subject);
            } else if listener.gets_all() {
                listener.unacknowledged.insert(number, subject);
            } else {
                listener.taken += 1;
            }
        }
        if !waiting.is_empty() {
            self.await_holders(number, subject, waiting, now);
        }
        true
    }

    fn await_holders(&mut self, number: u64, subject: Subject, waiting: Moments, now: u64) {
        self.in_slots.insert((subject.0.slot(), number));
        *self.subjects.entry(subject).or_default() += 1;
        if self.resting.len() >= limits::LEASES_PER_SERVER_MAX {
            self.resting.retain(|_, until| *until > now);
        }
        self.resting.insert(subject, now + limits::LEASE_REST_MILLIS);
        self.recalls.insert(number, Pending { subject, waiting });
    }

    /// A session asks for recalls, and has done all up to this number. Returns whether another request may have
    /// waited for one of these.
    pub fn acknowledge(&mut self, session: SessionId, up_to: u64) -> bool {
        let listener = self.sessions.entry(session).or_default();
        if listener.ran_out <= up_to {
            listener.ran_out = 0;
        }
        let rest = listener.unacknowledged.split_off(&up_to.saturating_add(1));
        let done = std::mem::replace(&mut listener.unacknowledged, rest);
        let is_any = !done.is_empty();
        for number in done.into_keys() {
            self.no_longer_waits(number, session);
        }
        is_any
    }

    /// The recalls that a session still has to acknowledge, as many as one answer holds.
    #[must_use]
    pub fn unacknowledged(&self, session: SessionId) -> Vec<Recall> {
        let unacknowledged =
            self.sessions.get(&session).into_iter().flat_map(|listener| &listener.unacknowledged);
        let recall = |(number, subject): (&u64, &Subject)| Recall {
            number: *number,
            inode: subject.0,
            what: subject.1,
        };
        unacknowledged.take(limits::EVENTS_PER_ANSWER_MAX).map(recall).collect()
    }

    /// Stops the waits for sessions whose time has passed. They learn of it when they ask again.
    pub fn pass(&mut self, now: u64) {
        let over: Vec<(u64, SessionId)> = self
            .recalls
            .iter()
            .flat_map(|(number, pending)| pending.waiting.iter().map(|holder| (*number, *holder)))
            .filter(|(_, (_, until))| *until <= now)
            .map(|(number, (session, _))| (number, session))
            .collect();
        for (number, session) in over {
            if let Some(listener) = self.sessions.get_mut(&session) {
                // It may have done it, and its acknowledgement may be under way: so it relies on the leases
                // that it has renewed meanwhile.
                listener.ran_out = listener.ran_out.max(number);
            }
            self.no_longer_waits(number, session);
        }
    }

    /// The newest recall of a slot that is waited for.
    #[must_use]
    pub fn newest_pending(&self, slot: Slot) -> Option<u64> {
        self.in_slots.range((slot, 0)..=(slot, u64::MAX)).next_back().map(|(_, number)| *number)
    }

    /// Whether a recall of the slot, up to this number, is pending; then the latest moment at which one ends.
    #[must_use]
    pub fn pending_until(&self, slot: Slot, number: u64) -> Option<u64> {
        let first = |pending: &Pending| pending.waiting.iter().map(|(_, until)| *until).min();
        let numbers = self.in_slots.range((slot, 0)..=(slot, number));
        numbers.filter_map(|(_, number)| first(&self.recalls[number])).min()
    }

    /// A session has ended: it has no leases any more.
    pub fn end_session(&mut self, session: SessionId) {
        let unacknowledged =
            self.sessions.remove(&session).map(|listener| listener.unacknowledged).unwrap_or_default();
        for number in unacknowledged.into_keys() {
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

fn find(holders: &mut Moments, session: SessionId) -> Option<&mut u64> {
    holders.iter_mut().find(|(holder, _)| *holder == session).map(|(_, given)| given)
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;

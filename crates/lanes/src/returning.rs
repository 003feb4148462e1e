//! Sessions whose kernels may have pages from before the server's restart.
//!
//! It is known which sessions had leases then, but not on what. So such a session counts as one that has a
//! lease on every place, until it has reported that its earlier pages are gone: the first session to change
//! bytes of a place has all of it recalled from that session; and, where that session is a strict mount, the
//! first session to read them does. The holder writes back what its programs have stored, and this is merged
//! as usual, because its pages are based on what the place has until it is changed.
//!
//! A holder that misses the time of such a recall and has sent nothing since, or misses it for the last time that
//! is allowed, counts as fenced for all others of this kind, each where somebody changes something: that this
//! life does not know what it had must not cost others a wait for each file.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{SessionId, Slot, limits};

use super::DataLeases;
use crate::outdated::News;
use crate::pages::WHOLE;
use crate::ranges::RangeSet;
use crate::watches::Place;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Returning {
    pub(super) of: BTreeMap<SessionId, Had>,
    /// The inode counter of each slot at the restart: no session has earlier pages of inodes that were made
    /// since.
    made_before: BTreeMap<Slot, u64>,
}

/// The state of one of them.
#[derive(Debug, Default)]
pub(super) struct Had {
    /// Its programs may have stored what others are to see at once.
    strict: bool,
    /// Where it was asked already, and by which recall.
    pub(super) asked: BTreeMap<Place, u64>,
    /// The newest recall when it last acknowledged one.
    acknowledged: u64,
    /// At how many places its time has passed.
    late: usize,
    /// Its earlier pages are not waited for, wherever it is asked for them, until it sends something.
    is_mute: bool,
    /// It has left too many recalls unanswered: its pages at places where it was not asked are worthless.
    is_worthless: bool,
}

impl Had {
    fn is_always_late(&self) -> bool {
        self.late >= limits::DATA_RECALLS_OF_BEFORE_LATE_MAX
    }
}

impl Returning {
    /// Whether another session may have pages of a place, and was not asked for them.
    pub(super) fn others_may_have(&self, place: Place, session: SessionId) -> bool {
        self.of.keys().any(|holder| *holder != session && self.may_have(place, *holder))
    }

    fn may_have(&self, place: Place, session: SessionId) -> bool {
        let may = |had: &Had| !had.is_worthless && !had.asked.contains_key(&place);
        self.of.get(&session).is_some_and(may) && !self.is_new(place)
    }

    fn is_new(&self, (inode, _): Place) -> bool {
        self.made_before.get(&inode.slot()).is_some_and(|before| inode.counter() >= *before)
    }

    /// Whether the pages of a place that a session has from before are worthless.
    pub(super) fn is_worthless(&self, place: Place, session: SessionId) -> bool {
        let is = |had: &Had| had.is_worthless && !had.asked.contains_key(&place);
        self.of.get(&session).is_some_and(is) && !self.is_new(place)
    }

    /// The other sessions that may have pages of a place, or pages of a strict mount alone.
    fn others(&self, place: Place, by: SessionId, strict_alone: bool) -> Vec<SessionId> {
        let is_meant = |(holder, had): &(&SessionId, &Had)| {
            **holder != by && (had.strict || !strict_alone) && self.may_have(place, **holder)
        };
        self.of.iter().filter(is_meant).map(|(holder, _)| *holder).collect()
    }

    /// A session has acknowledged something, when this was the newest recall.
    pub(super) fn note_acknowledged(&mut self, session: SessionId, newest: u64) {
        if let Some(had) = self.of.get_mut(&session) {
            had.acknowledged = newest;
            had.is_mute = had.is_always_late();
        }
    }

    /// A session's time for a recall is over, and it has or has not written something back. Returns whether its
    /// other recalls of pages from before end with it.
    fn note_late(&mut self, place: Place, session: SessionId, number: u64, wrote: bool) -> bool {
        let is_of_before = |had: &&mut Had| had.asked.get(&place) == Some(&number);
        let Some(had) = self.of.get_mut(&session).filter(is_of_before) else {
            return false;
        };
        had.late += 1;
        had.is_mute |= (had.acknowledged < number && !wrote) || had.is_always_late();
        had.is_mute
    }

    /// It was worthless before the restart already.
    pub(super) fn note_worthless(&mut self, session: SessionId) {
        if let Some(had) = self.of.get_mut(&session) {
            had.is_worthless = true;
        }
    }

    pub(super) fn end(&mut self, session: SessionId) -> bool {
        self.of.remove(&session).is_some()
    }

    /// A place is gone for ever.
    pub(super) fn forget(&mut self, place: Place) {
        self.of.values_mut().for_each(|had| _ = had.asked.remove(&place));
    }
}

impl DataLeases {
    /// A restarted server; these sessions had leases before, on strict mounts or on others.
    #[must_use]
    pub fn after(holders: impl IntoIterator<Item = (SessionId, bool)>) -> DataLeases {
        let had = |strict| Had { strict, ..Had::default() };
        let of = holders.into_iter().map(|(session, strict)| (session, had(strict))).collect();
        let returning = Returning { of, ..Returning::default() };
        DataLeases { returning, ..DataLeases::default() }
    }

    /// The present inode counter of each slot of this server: inodes with higher numbers are made in this
    /// incarnation.
    #[must_use]
    pub fn made_before(mut self, counted: impl IntoIterator<Item = (Slot, u64)>) -> DataLeases {
        self.returning.made_before = counted.into_iter().collect();
        self
    }

    /// A session's kernel has no pages any more from before the restart. Returns whether that was not known.
    pub fn has_returned(&mut self, session: SessionId) -> bool {
        let was_away = self.returning.end(session);
        if was_away {
            // Where it was waited for no longer that is seen to when it has dropped all.
            for place in self.unknown.places_of(session) {
                if !self.is_fenced(place, session) {
                    self.unknown.forget(place, session);
                }
            }
            self.note_all_drops(session);
            self.tell(News::Returned { session });
        }
        was_away
    }

    /// A session is about to change bytes of a place; or (`strict_alone`) to see them as all programs of strict
    /// mounts have left them.
    pub(super) fn recall_from_returning(
        &mut self,
        place: Place,
        by: SessionId,
        strict_alone: bool,
        now: u64,
    ) {
        for holder in self.returning.others(place, by, strict_alone) {
            self.recall_of_before(place, holder, now);
        }
    }

    /// The pages of a place that a session may have from before the restart are to go. Returns whether there
    /// may be any.
    pub(super) fn recall_of_before(&mut self, place: Place, holder: SessionId, now: u64) -> bool {
        if !self.returning.may_have(place, holder) {
            return false;
        }
        self.limit_asked(holder);
        let had = self.returning.of.get_mut(&holder).expect("it may have something");
        if had.asked.len() >= limits::DATA_RECALLS_PER_SESSION_MAX {
            had.is_worthless = true;
            self.tell(News::Worthless { session: holder });
            return false;
        }
        let number = self.add(place, holder, WHOLE, now);
        self.recalls.get_mut(&number).expect("it was made just now").of_before = true;
        let had = self.returning.of.get_mut(&holder).expect("it may have something");
        had.asked.insert(place, number);
        // What it got since the restart is recalled as from any session, and waited for.
        let (strict, mut is_mute) = (had.strict, had.is_mute);
        if let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&holder)) {
            holes.insert(WHOLE);
            is_mute = false;
        }
        if strict {
            // It owned all of it. Worthless parts are not written back, but its programs can still read them.
            let mut owned = RangeSet::default();
            owned.insert(WHOLE);
            self.recalls.get_mut(&number).expect("it was made just now").owned = owned;
        }
        match is_mute {
            true => self.fence_holder(number, now),
            false => self.limit_recalls(holder, number, now),
        }
        true
    }

    /// Places that a session has dropped need not be remembered: there it is asked again, and has nothing.
    fn limit_asked(&mut self, holder: SessionId) {
        let Some(had) = self.returning.of.get_mut(&holder) else { return };
        if had.asked.len() < limits::DATA_RECALLS_PER_SESSION_MAX {
            return;
        }
        let of = self.of.get(&holder).into_iter().flatten();
        let pending = of.filter_map(|number| self.recalls.get(number)).map(|pending| pending.place);
        let pending: BTreeSet<Place> = pending.collect();
        had.asked.retain(|place, _| pending.contains(place));
    }

    /// A session's time for a recall is over. If it has sent nothing at all since it was asked, or was late
    /// too often, no other place waits for it: that was the one wait for everything that it may have from
    /// before the restart.
    pub(super) fn note_late(&mut self, number: u64, now: u64) {
        let Some(pending) = self.recalls.get(&number) else { return };
        let (place, holder) = (pending.place, pending.holder);
        let wrote = pending.progress > pending.began;
        if !self.returning.note_late(place, holder, number, wrote) {
            return;
        }
        let asked = self.returning.of.get(&holder).into_iter().flat_map(|had| had.asked.values());
        let is_over = |number: &&u64| {
            self.recalls.get(number).is_some_and(|pending| !pending.fenced && !self.is_excused(pending))
        };
        let all: Vec<u64> = asked.filter(is_over).copied().collect();
        all.into_iter().for_each(|number| self.fence_holder(number, now));
    }
}

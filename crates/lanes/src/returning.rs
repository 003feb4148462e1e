//! Sessions whose kernels may have pages from the server's last life.
//!
//! Who had leases then is known, and on what is not. So such a session counts as one that has a lease on every place, until it has said that
//! its pages of before are gone: whoever is the first to change bytes of a place has all of it recalled from that session; and, where it
//! is a strict mount, whoever is the first to look at them. It writes back what its programs have stored, and this is merged as ever, for
//! what its pages are based on is what the place has until somebody changes it.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{ByteRange, SessionId, limits};

use super::{DataLeases, WHOLE};
use crate::ranges::RangeSet;
use crate::watches::Place;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Returning {
    of: BTreeMap<SessionId, Had>,
}

/// What one of them had.
#[derive(Debug, Default)]
struct Had {
    /// Its programs may have stored what others are to see at once.
    strict: bool,
    /// Where it was asked already.
    asked: BTreeSet<Place>,
    /// It has been asked at so many places, and has not come: what it has of others is worth nothing.
    is_late: bool,
}

impl Returning {
    /// Whether somebody else may have pages of a place, and was not asked for them.
    pub(super) fn others_may_have(&self, place: Place, session: SessionId) -> bool {
        self.of.iter().any(|(holder, had)| *holder != session && had.may_have(place))
    }

    /// Whether what a session has of a place from before is worth nothing.
    pub(super) fn is_late(&self, place: Place, session: SessionId) -> bool {
        self.of.get(&session).is_some_and(|had| had.is_late && !had.asked.contains(&place))
    }

    /// Who else may have pages of a place, or nothing but pages of a strict mount; they are asked now.
    fn ask(&mut self, place: Place, by: SessionId, strict_alone: bool) -> Vec<(SessionId, bool)> {
        let mut asked = Vec::new();
        for (holder, had) in self.of.iter_mut().filter(|(holder, _)| **holder != by) {
            if !had.may_have(place) || (strict_alone && !had.strict) {
                continue;
            }
            if had.asked.len() >= limits::DATA_RECALLS_PER_SESSION_MAX {
                had.is_late = true;
                continue;
            }
            had.asked.insert(place);
            asked.push((*holder, had.strict));
        }
        asked
    }

    pub(super) fn end(&mut self, session: SessionId) -> bool {
        self.of.remove(&session).is_some()
    }

    /// A place is gone for ever.
    pub(super) fn forget(&mut self, place: Place) {
        self.of.values_mut().for_each(|had| _ = had.asked.remove(&place));
    }
}

impl Had {
    fn may_have(&self, place: Place) -> bool {
        !self.is_late && !self.asked.contains(&place)
    }
}

impl DataLeases {
    /// A life that follows one in which these sessions had leases, on strict mounts or on others.
    #[must_use]
    pub fn after(holders: impl IntoIterator<Item = (SessionId, bool)>) -> DataLeases {
        let had = |strict| Had { strict, ..Had::default() };
        let of = holders.into_iter().map(|(session, strict)| (session, had(strict))).collect();
        DataLeases { returning: Returning { of }, ..DataLeases::default() }
    }

    /// A session's kernel has none of the pages any more that it had from the last life. Whether that was not known.
    pub fn has_returned(&mut self, session: SessionId) -> bool {
        let was_away = self.returning.end(session);
        if was_away {
            // Where it has yet to drop something that is seen to when it has.
            for place in self.unknown.places_of(session) {
                if !self.has_yet_to_drop(place, session, WHOLE) {
                    self.unknown.forget(place, session);
                }
            }
        }
        was_away
    }

    /// Somebody is about to change bytes of a place; or (`strict_alone`) to see them as all programs of strict mounts have left them.
    pub(super) fn recall_from_returning(
        &mut self,
        place: Place,
        by: SessionId,
        strict_alone: bool,
        now: u64,
    ) {
        for (holder, strict) in self.returning.ask(place, by, strict_alone) {
            if let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&holder)) {
                holes.insert(WHOLE);
            }
            let number = self.add(place, holder, WHOLE, now);
            if strict {
                // It had all of it alone, but for what is worth nothing.
                let mut owned = RangeSet::default();
                owned.insert(WHOLE);
                self.unknown.of(place, holder).for_each(|pages: ByteRange| owned.remove(pages));
                self.recalls.get_mut(&number).expect("it was made just now").owned = owned;
            }
            self.limit_recalls(place, holder, number, now);
        }
    }
}

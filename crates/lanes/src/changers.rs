//! Who has changed which pages in a life of a server that follows one that had given leases: what somebody's kernel has from
//! before, and writes back now, was based on other bytes where somebody else has changed them since.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, SessionId, limits};

use crate::ranges::RangeSet;
use crate::watches::Place;

/// Changed pages, of each place and session. They may seem to be more than there are: then stores are refused that could have
/// been kept, and never kept where they must not be.
#[derive(Debug, Default)]
pub(super) struct Changers {
    of: BTreeMap<Place, BTreeMap<SessionId, RangeSet>>,
    count: usize,
    /// There were too many: of those that are not here, anything may have changed.
    is_partial: bool,
}

impl Changers {
    /// A session changes these pages.
    pub(super) fn note(&mut self, place: Place, by: SessionId, pages: ByteRange) {
        let is_there = self.of.get(&place).is_some_and(|of| of.contains_key(&by));
        if !is_there && self.count >= limits::DATA_LEASES_PER_SERVER_MAX {
            self.is_partial = true;
            return;
        }
        self.count += usize::from(!is_there);
        let changed = self.of.entry(place).or_default().entry(by).or_default();
        changed.insert(pages);
        changed.limit_runs(limits::DATA_LEASE_HOLES_MAX);
    }

    /// A place is gone for ever.
    pub(super) fn forget(&mut self, place: Place) {
        self.count -= self.of.remove(&place).map_or(0, |of| of.len());
    }

    /// Whether somebody else may have changed some of these pages.
    pub(super) fn others_have_changed(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        self.of_others(place, session).any(|changed| !changed.intersection(pages).is_empty())
    }

    /// What others may have changed.
    pub(super) fn of_others(&self, place: Place, session: SessionId) -> impl Iterator<Item = ByteRange> {
        let of = self.of.get(&place).into_iter().flatten();
        let others = of.filter(move |(by, _)| **by != session).flat_map(|(_, changed)| changed.iter());
        let all = ByteRange { start: 0, end: u64::MAX };
        others.chain(self.is_partial.then_some(all))
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::InodeId;

    use super::*;

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn pages(start: u64, count: u64) -> ByteRange {
        ByteRange { start: start * 4096, end: (start + count) * 4096 }
    }

    // SEMANTICS 119.2
    #[test]
    fn pages_are_changed_by_others_where_they_say_so() {
        let (mut changers, place) = (Changers::default(), (InodeId(7), Some(0)));
        changers.note(place, session(1), pages(5, 2));
        assert!(changers.others_have_changed(place, session(2), pages(6, 3)));
        assert!(!changers.others_have_changed(place, session(2), pages(7, 3)));
        assert!(!changers.others_have_changed(place, session(1), pages(5, 2)));
        assert!(!changers.others_have_changed((InodeId(7), Some(1)), session(2), pages(5, 2)));
    }

    // SEMANTICS 119.2
    #[test]
    fn what_there_is_no_room_for_counts_as_changed() {
        let (mut changers, place) = (Changers::default(), (InodeId(7), Some(0)));
        for page in 0..2 * limits::DATA_LEASE_HOLES_MAX as u64 {
            changers.note(place, session(1), pages(3 * page, 1));
        }
        assert_eq!(changers.of[&place][&session(1)].runs(), limits::DATA_LEASE_HOLES_MAX);
        for inode in 8..8 + limits::DATA_LEASES_PER_SERVER_MAX as u64 {
            changers.note((InodeId(inode), None), session(1), pages(0, 1));
        }
        assert!(changers.others_have_changed((InodeId(1 << 40), None), session(1), pages(0, 1)));
        assert_eq!(changers.count, limits::DATA_LEASES_PER_SERVER_MAX);
    }
}

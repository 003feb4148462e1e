//! Which sessions' programs map lanes of a slot to store into them without asking, by the library's views.
//!
//! While there is one, kernels keep no pages of the lane: nobody could recall them when a program stores.

use std::collections::BTreeSet;

use ramlace_base::{LaneId, SessionId};
use serde::{Deserialize, Serialize};

/// A mapping of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mapping {
    /// Whose.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u64,
}

/// All of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mappings {
    of: BTreeSet<(LaneId, Mapping)>,
}

impl Mappings {
    /// Whether some program maps the lane.
    #[must_use]
    pub fn has(&self, lane: LaneId) -> bool {
        let first = Mapping { session: SessionId::NONE, number: 0 };
        self.of.range((lane, first)..).next().is_some_and(|(of, _)| *of == lane)
    }

    /// Whether this one is known.
    #[must_use]
    pub fn knows(&self, lane: LaneId, mapping: Mapping) -> bool {
        self.of.contains(&(lane, mapping))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Which lanes are mapped by whom; both may come several times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneId, SessionId)> + '_ {
        self.of.iter().map(|(lane, mapping)| (*lane, mapping.session))
    }

    /// Whose they are; a session may come several times.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.of.iter().map(|(_, mapping)| mapping.session)
    }

    pub(crate) fn begin(&mut self, lane: LaneId, mapping: Mapping) {
        self.of.insert((lane, mapping));
    }

    pub(crate) fn end(&mut self, lane: LaneId, mapping: Mapping) {
        self.of.remove(&(lane, mapping));
    }

    pub(crate) fn end_lane(&mut self, lane: LaneId) {
        self.of.retain(|(of, _)| *of != lane);
    }

    pub(crate) fn end_session(&mut self, session: SessionId) {
        self.of.retain(|(_, mapping)| mapping.session != session);
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Generation, InodeId};

    use crate::{LaneChange, LaneTable};

    use super::*;

    fn mapping(session: u8, number: u64) -> Mapping {
        Mapping { session: SessionId([session; 16]), number }
    }

    // SEMANTICS 8.7
    #[test]
    fn a_lane_is_stored_into_until_its_last_mapping_its_session_or_the_lane_ends() {
        let lane = |number| LaneId { inode: InodeId(70), lane: number };
        let mut table = LaneTable::default();
        for lane in [lane(0), lane(1)] {
            table.apply(&LaneChange::Begun { lane, generation: Generation(1), loss: None });
        }
        let begin = |table: &mut LaneTable, lane, mapping| {
            let begun = table.begin_mapping(lane, mapping).unwrap().expect("it is new");
            table.apply(&begun);
            assert_eq!(table.begin_mapping(lane, mapping).unwrap(), None, "a request that comes again");
        };
        begin(&mut table, lane(1), mapping(1, 1));
        begin(&mut table, lane(1), mapping(1, 2));
        begin(&mut table, lane(1), mapping(2, 1));
        assert!(!table.is_stored_into(lane(0)) && table.is_stored_into(lane(1)));
        let by = [1, 1, 2].map(|session| (lane(1), Some(SessionId([session; 16]))));
        assert!(table.stored_into().eq(by));
        table.apply(&table.end_mapping(lane(1), mapping(1, 1)).unwrap());
        assert_eq!(table.end_mapping(lane(1), mapping(1, 1)), None);
        assert!(table.is_stored_into(lane(1)) && table.knows(SessionId([1; 16])));
        table.end_session(SessionId([1; 16]));
        assert!(table.is_stored_into(lane(1)) && !table.knows(SessionId([1; 16])));
        assert_eq!(table.sessions().collect::<Vec<_>>(), [SessionId([2; 16])]);
        table.apply(&LaneChange::Dropped { lane: lane(1) });
        assert!(!table.is_stored_into(lane(1)) && !table.knows(SessionId([2; 16])));
    }

    // SEMANTICS 90.4
    #[test]
    fn a_lane_is_stored_into_while_a_kernel_that_may_store_has_it() {
        let lane = LaneId { inode: InodeId(70), lane: 0 };
        let mut table = LaneTable::default();
        table.apply(&LaneChange::Begun { lane, generation: Generation(1), loss: None });
        for (number, stores, is_stored_into) in [(1, false, false), (3, false, false), (2, true, true)] {
            table.apply(&table.begin_passthrough(lane, number, stores).unwrap().unwrap());
            assert_eq!(table.is_stored_into(lane), is_stored_into, "also where the later one comes first");
            assert!(table.stored_into().eq(is_stored_into.then_some((lane, None))));
        }
        assert_eq!(table.begin_passthrough(lane, 2, true).unwrap(), None);
        table.apply(&table.end_passthroughs(lane, 2).unwrap());
        assert!(table.is_stored_into(lane), "the last may store as well, as far as is known");
        table.apply(&table.end_passthroughs(lane, 3).unwrap());
        assert!(!table.is_stored_into(lane));
    }
}

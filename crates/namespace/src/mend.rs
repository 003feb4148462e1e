//! Compares what came on behalf of another slot with what that slot knows.
//!
//! A message of a server says for which slot it speaks, and every holder of the pool's secret can claim that.
//! An operation that its coordinator does not know was never its own: holds for it are dropped, as if it had
//! been aborted; numbers that the coordinator has not given out yet are finished nowhere.
//!
//! A coordinator remembers an operation, in its log, from before it asks for a part until it knows that the
//! part is finished. So a hold that a slot had when it began to ask, and that the answer does not name,
//! belongs to no operation. Holds that came while the request was under way are not judged.

use ramlace_base::Slot;
use ramlace_wire::mend::OperationsKnown;
use serde::{Deserialize, Serialize};

/// A slot's records of operations that another slot coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The slot that has recorded it.
    pub(crate) slot: Slot,
    pub(crate) coordinator: Slot,
    /// All below are finished.
    pub(crate) finished_below: u64,
    /// Those from there on of which something is known: how many parts are held; 0: it is finished.
    pub(crate) halves: Vec<(u64, u32)>,
}

/// A slot's records that the other slot does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disowned {
    /// The other.
    pub coordinator: Slot,
    /// Operations, and how many parts were held for each.
    pub halves: Vec<(u64, u32)>,
    /// All below the first number were taken for finished; all below the second can be.
    pub finished_below: Option<(u64, u64)>,
}

impl Doubt {
    /// The slot that can be asked.
    #[must_use]
    pub fn coordinator(&self) -> Slot {
        self.coordinator
    }

    /// The records to be dropped according to the coordinator's answer; `None`: it knows all of them.
    #[must_use]
    pub fn held_against(&self, known: &OperationsKnown) -> Option<Disowned> {
        let is_nobodys = |(number, parts): &(u64, u32)| {
            if *parts == 0 {
                return *number >= known.next;
            }
            known.unfinished.binary_search(&(self.slot, *number)).is_err()
        };
        let halves: Vec<(u64, u32)> = self.halves.iter().copied().filter(is_nobodys).collect();
        let is_ahead = self.finished_below > known.next;
        // A part of an operation that has begun may be under way.
        let mut unfinished = known.unfinished.iter().filter(|(slot, _)| *slot == self.slot);
        let first_unfinished = unfinished.next().map_or(known.next, |(_, number)| *number);
        (is_ahead || !halves.is_empty()).then(|| Disowned {
            coordinator: self.coordinator,
            halves,
            finished_below: is_ahead.then_some((self.finished_below, first_unfinished)),
        })
    }
}

impl Disowned {
    /// Operations for which something is held.
    pub fn held(&self) -> impl Iterator<Item = u64> + '_ {
        self.halves.iter().filter(|(_, parts)| *parts > 0).map(|(number, _)| *number)
    }

    /// Whether numbers are taken for finished that were never given out.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.finished_below.is_some() || self.halves.iter().any(|(_, parts)| *parts == 0)
    }
}

#[cfg(test)]
#[path = "mend_tests.rs"]
mod tests;

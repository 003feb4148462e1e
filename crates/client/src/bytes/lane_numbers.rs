//! The version numbers of a file's lanes: a server raises a lane's number with each change. They show which state
//! of the lanes a copy has.

use ramlace_base::Generation;

/// The numbers of a file's lanes at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneNumbers {
    pub(crate) generation: Generation,
    /// By lane; `None`: not asked.
    pub(crate) lanes: Vec<Option<u64>>,
}

impl LaneNumbers {
    /// Numbers that are no newer than either state. `None` where that is not known: the file was truncated
    /// between them.
    pub(crate) fn older(mut self, other: &LaneNumbers) -> Option<LaneNumbers> {
        if self.generation != other.generation {
            return None;
        }
        for (mine, theirs) in self.lanes.iter_mut().zip(&other.lanes) {
            *mine = match (*mine, *theirs) {
                (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
                (known, None) | (None, known) => known,
            };
        }
        Some(self)
    }
}

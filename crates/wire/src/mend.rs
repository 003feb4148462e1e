//! What `ramlace check --repair` asks: a server compares what it was sent with what the slots and homes that
//! must know it know, and drops what they do not know.
//!
//! Every holder of the pool's secret can send, in another server's name, what could be true. Nothing shows that
//! when it comes; afterwards the slot, or the file's home, in whose name it was sent can be asked.

use ramlace_base::{LaneId, Slot, limits};
use serde::{Deserialize, Serialize};

use crate::check::Trouble;
use crate::possible::is_counted;
use crate::{Kind, Request};

/// Asks a server to compare what its slots have recorded of others' operations with what those say, some
/// coordinators at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mend {
    /// Whether what is found is mended.
    pub repair: bool,
    /// Coordinators behind this one; none: from the first on.
    pub after: Option<Slot>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// At most [`ramlace_base::limits::CHECK_TROUBLES_MAX`] of it.
    pub found: Vec<Trouble>,
    /// The last coordinator that was asked, where there may be more.
    pub next: Option<Slot>,
}

impl Request for Mend {
    const KIND: Kind = Kind::Mend;
    type Reply = Mended;

    fn fits(&self, reply: &Mended) -> bool {
        reply.found.len() <= limits::CHECK_TROUBLES_MAX
            && reply.next.is_none_or(|next| Some(next) > self.after)
    }
}

/// Asks a server to have lanes fit to their files again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MendLanes {
    /// Those that `check` has found, at most [`ramlace_base::limits::MEND_LANES_MAX`].
    pub lanes: Vec<LaneId>,
}

/// What became of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanesMended {
    /// What was mended.
    pub mended: Vec<Trouble>,
    /// The first so many lanes fit; the next one could not be mended, and is an error when it is asked for first.
    pub fit: u32,
}

impl Request for MendLanes {
    const KIND: Kind = Kind::MendLanes;
    type Reply = LanesMended;

    fn fits(&self, reply: &LanesMended) -> bool {
        let fit = reply.fit as usize;
        (1..=self.lanes.len()).contains(&fit) && reply.mended.len() <= fit
    }

    fn is_possible(&self) -> bool {
        (1..=limits::MEND_LANES_MAX).contains(&self.lanes.len())
    }
}

/// Asks a slot which operations it coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryOperations {
    /// The slot.
    pub coordinator: Slot,
}

/// Its operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationsKnown {
    /// The number that its next operation gets; it has given out none from here on.
    pub next: u64,
    /// Those that are not finished everywhere, in order: the slot that was asked for a part, and the
    /// operation's number there.
    pub unfinished: Vec<(Slot, u64)>,
}

impl Request for QueryOperations {
    const KIND: Kind = Kind::QueryOperations;
    type Reply = OperationsKnown;

    fn slot(&self, _named: Slot) -> Slot {
        self.coordinator
    }

    fn fits(&self, reply: &OperationsKnown) -> bool {
        is_counted(reply.next)
            && reply.unfinished.is_sorted()
            && reply.unfinished.iter().all(|(_, number)| *number < reply.next)
    }
}

//! What `ramlace check --repair` asks: a server holds what it was told against those who must know, and lets go of what
//! they know nothing of.
//!
//! Whoever has the pool's secret can say in another server's name what could be true. Nothing shows that when it comes;
//! afterwards the slot, or the file's home, in whose name it was said can be asked.

use ramlace_base::{LaneId, Slot, limits};
use serde::{Deserialize, Serialize};

use crate::check::Trouble;
use crate::possible::is_counted;
use crate::{Kind, Request};

/// Asks a server to look, and perhaps to mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mend {
    /// Whether what is found is mended.
    pub repair: bool,
    /// Lanes that do not fit to their files, as `check` has found, in the order of their names; at most
    /// [`ramlace_base::limits::CHECK_LANES_MAX`].
    pub lanes: Vec<LaneId>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// At most [`ramlace_base::limits::CHECK_TROUBLES_MAX`] of it.
    pub found: Vec<Trouble>,
}

impl Request for Mend {
    const KIND: Kind = Kind::Mend;
    type Reply = Mended;

    fn fits(&self, reply: &Mended) -> bool {
        reply.found.len() <= limits::CHECK_TROUBLES_MAX
    }

    fn is_possible(&self) -> bool {
        self.lanes.len() <= limits::CHECK_LANES_MAX
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
    /// Those that are not settled everywhere, in order: who was asked for a part, and the operation's number there.
    pub unsettled: Vec<(Slot, u64)>,
}

impl Request for QueryOperations {
    const KIND: Kind = Kind::QueryOperations;
    type Reply = OperationsKnown;

    fn fits(&self, reply: &OperationsKnown) -> bool {
        is_counted(reply.next)
            && reply.unsettled.is_sorted()
            && reply.unsettled.iter().all(|(_, number)| *number < reply.next)
    }
}

//! The changes of a slot's lanes: the content of log records.

use ramlace_base::{ByteRange, Generation, LaneId, numbered_variants};
use serde::{Deserialize, Serialize};

use crate::mappings::Mapping;
use crate::residency::Loss;
use crate::writes::WriteId;

/// One change of a lane, or of what is remembered of its writers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneChange {
    /// It begins: with its first write, or with the bytes that its file had inline.
    Begun {
        /// The lane.
        lane: LaneId,
        /// The newest generation that it has received.
        generation: Generation,
        /// Set when it begins on a server that does not have the file's older bytes.
        loss: Option<Loss>,
    },
    /// Its file was truncated.
    Cut {
        /// The lane.
        lane: LaneId,
        /// The file's generation since.
        generation: Generation,
        /// Bytes of the lane that stay; `None`: all of them.
        length: Option<u64>,
    },
    /// Its file is gone.
    Dropped {
        /// The lane.
        lane: LaneId,
    },
    /// A kernel has its file: from now on it has no holes.
    PassthroughBegun {
        /// The lane.
        lane: LaneId,
        /// The number of the passthrough.
        number: u64,
        /// Whether the kernel may store into it.
        stores: bool,
    },
    /// Passthroughs up to this one have ended.
    PassthroughsOver {
        /// The lane.
        lane: LaneId,
        /// The number of the last of them.
        number: u64,
    },
    /// A change of bytes is done, a write or a punch: a retry of it is answered and not done again.
    Written {
        /// The lane.
        lane: LaneId,
        /// The bytes.
        range: ByteRange,
        /// The write.
        id: WriteId,
    },
    /// A write of many runs is done.
    RunsWritten {
        /// The lane.
        lane: LaneId,
        /// Those of its runs, joined where they touch, whose bytes had been lost.
        found: Vec<ByteRange>,
        /// The write.
        id: WriteId,
    },
    /// A cell is changed: its answer, and the value to be stored. `CellStored` follows once it is stored.
    CellChanged {
        /// The value to be stored.
        cell: CellStore,
        /// The change.
        id: WriteId,
    },
    /// The change of a cell before this was stored: nothing is left to be done for it.
    CellStored {
        /// The lane.
        lane: LaneId,
    },
    /// A session's program maps its file, and stores into it without asking.
    MappingBegun {
        /// The lane.
        lane: LaneId,
        /// Which of whose mappings.
        mapping: Mapping,
    },
    /// A mapping has ended.
    MappingOver {
        /// The lane.
        lane: LaneId,
        /// Which of whose mappings.
        mapping: Mapping,
    },
}

// Number 9 was the end of a session, which is now a change of the slot.
numbered_variants! { LaneChange:
    1 Begun { lane, generation, loss };
    2 Cut { lane, generation, length };
    3 Dropped { lane };
    4 PassthroughBegun { lane, number, stores };
    5 PassthroughsOver { lane, number };
    6 Written { lane, range, id };
    7 CellChanged { cell, id };
    8 CellStored { lane };
    10 RunsWritten { lane, found, id };
    11 MappingBegun { lane, mapping };
    12 MappingOver { lane, mapping };
}

/// The value of a cell, and the one that it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellStore {
    /// The lane.
    pub lane: LaneId,
    /// Where in its file.
    pub offset: u64,
    /// The number before.
    pub before: u64,
    /// The number afterwards.
    pub after: u64,
}

/// The effect of a change on the bytes of a lane. It is idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreStep {
    /// Bytes from this one on are gone.
    Cut {
        /// The lane.
        lane: LaneId,
        /// Bytes that stay.
        length: u64,
    },
    /// All bytes are gone.
    Remove {
        /// The lane.
        lane: LaneId,
    },
    /// Stores a cell's new number, if the cell still holds the one before.
    Cell(CellStore),
}

impl StoreStep {
    /// Whether it gives memory back: it is done before its record is written, which may need that memory. If a
    /// process dies between the two, the file's home sends the message again.
    #[must_use]
    pub fn frees_memory(self) -> bool {
        !matches!(self, StoreStep::Cell(_))
    }
}

impl LaneChange {
    /// The effect on bytes in the store. The bytes of a write are stored, and those of a punch freed, before
    /// this change.
    #[must_use]
    pub fn bytes(&self) -> Option<StoreStep> {
        match *self {
            LaneChange::Cut { lane, length: Some(length), .. } => Some(StoreStep::Cut { lane, length }),
            LaneChange::Dropped { lane } => Some(StoreStep::Remove { lane }),
            LaneChange::CellChanged { cell, .. } => Some(StoreStep::Cell(cell)),
            _ => None,
        }
    }

    /// Whether it may use the last of the store: it frees memory, or ends something.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        matches!(
            self,
            LaneChange::Cut { .. }
                | LaneChange::Dropped { .. }
                | LaneChange::PassthroughBegun { .. }
                | LaneChange::PassthroughsOver { .. }
                | LaneChange::MappingOver { .. }
        )
    }
}

/// The effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEffect {
    /// The bytes of a lane have changed: sessions that wait for that are notified; and the time of a file that
    /// a kernel has does not show anything that this server did.
    Changed {
        /// The lane.
        lane: LaneId,
        /// The bytes.
        range: ByteRange,
    },
}

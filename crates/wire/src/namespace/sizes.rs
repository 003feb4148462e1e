//! The size of a file and the memory behind it: truncating, extending and appending.

use ramlace_base::{Generation, InodeId, Sequence, Slot};
use serde::{Deserialize, Serialize};

use crate::possible::{is_generation, is_size};
use crate::{Attributes, Kind, Request};

/// Sets a file's size. Answered when every lane that can be reached has confirmed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncate {
    /// The file.
    pub inode: InodeId,
    /// Its new size.
    pub size: u64,
    /// The generation in which the sender has taken memory up to the new size: without it a file that a kernel maps is
    /// not made longer (`Passthrough`).
    pub allocated: Option<Generation>,
}

impl Request for Truncate {
    const KIND: Kind = Kind::Truncate;
    type Reply = Attributes;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Attributes) -> bool {
        reply.is_of(self.inode)
    }
}

/// The file is at least `size` long: sent after the data has arrived in its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// The file.
    pub inode: InodeId,
    /// The writer's generation; Retry when the file was truncated meanwhile.
    pub generation: Generation,
    /// The least size.
    pub size: u64,
    /// From here on to `size` all bytes were written, or have memory.
    pub from: u64,
}

/// A part of the file has got memory, or may have lost it, and its size stays: sent after the lanes have done
/// it. So the home knows which files have no holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoteMemory {
    /// The file.
    pub inode: InodeId,
    /// The generation in which it was done.
    pub generation: Generation,
    /// Where the part begins.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// It has memory now, else it may have none.
    pub taken: bool,
}

impl Request for NoteMemory {
    const KIND: Kind = Kind::NoteMemory;
    type Reply = ();

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

/// What the home knows about a file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeInfo {
    /// Published size.
    pub size: u64,
    /// The file's generation.
    pub generation: Generation,
}

impl SizeInfo {
    pub(crate) fn is_possible(&self) -> bool {
        is_size(self.size) && is_generation(self.generation)
    }
}

impl Request for Extend {
    const KIND: Kind = Kind::Extend;
    type Reply = SizeInfo;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &SizeInfo) -> bool {
        reply.is_possible()
    }
}

/// Reserves the next `length` bytes at the end of a file for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveAppend {
    /// The file.
    pub inode: InodeId,
    /// Bytes.
    pub length: u64,
}

/// Where to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendReserved {
    /// The file: a slot that is asked to cancel this change knows by it what to give back.
    pub inode: InodeId,
    /// The reservation's name: the number of the change in its session.
    pub number: Sequence,
    /// Offset of the reserved bytes.
    pub offset: u64,
    /// The generation to write with.
    pub generation: Generation,
}

impl Request for ReserveAppend {
    const KIND: Kind = Kind::ReserveAppend;
    type Reply = AppendReserved;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &AppendReserved) -> bool {
        reply.inode == self.inode
            && is_generation(reply.generation)
            && reply.offset.checked_add(self.length).is_some_and(is_size)
    }
}

/// The reserved bytes are written (or not: then they stay a hole, and it is no error if they are not reserved any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishAppend {
    /// The file.
    pub inode: InodeId,
    /// The reservation's name: the same offset may be reserved again.
    pub number: Sequence,
    /// Not all of its bytes were written.
    pub failed: bool,
}

impl Request for FinishAppend {
    const KIND: Kind = Kind::FinishAppend;
    type Reply = SizeInfo;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &SizeInfo) -> bool {
        reply.is_possible()
    }
}

//! A change that a slot holds ready for an operation that is not decided: see [`crate::holds`].

use ramlace_base::{InodeId, Name, Slot, numbered_variants};
use ramlace_wire::FileKind;
use ramlace_wire::peer::PartitionAttributes;
use serde::{Deserialize, Serialize};

/// A change that waits for a decision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Hold {
    /// A directory that nothing leads to yet.
    Made(InodeId),
    /// An empty directory that takes no entries.
    Sealed(InodeId),
    /// A file with one link more.
    Raised(InodeId),
    /// A file with one link less; it lives until the decision.
    Lowered(InodeId),
    /// A name that no other operation may change.
    Entry(HeldEntry),
    /// An inode that gets another name, and a directory perhaps another parent.
    Moved { inode: InodeId, parent: Option<InodeId> },
    /// The order in which directories change their parents (slot 0).
    Moves,
    /// A directory all of whose partitions change; this slot is its home.
    Changing { inode: InodeId, becomes: Becomes },
    /// Entries of another slot's directory that are not shown yet.
    Taken(InodeId),
    /// Empty partitions of another slot's directory.
    SealedPartition(InodeId),
    /// Partitions of another slot's directory that get other attributes.
    SetPartition { inode: InodeId, attributes: PartitionAttributes },
}

numbered_variants! { Hold:
    0 Made(body);
    1 Sealed(body);
    2 Raised(body);
    3 Lowered(body);
    4 Entry(body);
    5 Moved { inode, parent };
    6 Moves;
    7 Changing { inode, becomes };
    8 Taken(body);
    9 SealedPartition(body);
    10 SetPartition { inode, attributes };
}

/// A name, and where it is to lead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldEntry {
    pub parent: InodeId,
    pub name: Name,
    /// Reserved when the name is new.
    pub cookie: Option<u64>,
    /// `None`: the entry goes.
    pub put: Option<(InodeId, FileKind)>,
}

/// What a directory at home becomes when an operation on all its partitions is done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Becomes {
    Spread(Box<[Slot]>),
    Whole,
    Changed(PartitionAttributes),
}

numbered_variants! { Becomes:
    0 Spread(body);
    1 Whole;
    2 Changed(body);
}

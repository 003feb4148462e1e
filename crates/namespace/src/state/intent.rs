//! The progress of an operation across slots. [`crate::intent`], [`crate::rename`] and [`crate::partitions`]
//! advance it.

use std::collections::BTreeMap;

use ramlace_base::{InodeId, Slot, Timestamp, numbered_variants};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::{PartitionAttributes, Target};
use ramlace_wire::{Credentials, FileKind};
use serde::{Deserialize, Serialize};

use crate::command::DeliveryId;
use crate::state::hold::Hold;

/// An operation that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Intent {
    pub who: Credentials,
    /// The operation, for its answer.
    pub goal: Goal,
    /// The holds in this slot.
    pub holds: Vec<Hold>,
    /// Other slots that may hold something, and the number by which they know the operation.
    pub asked: BTreeMap<Slot, u64>,
    /// The request that is not answered yet.
    pub awaited: Option<DeliveryId>,
    /// Parts asked for so far.
    pub parts: u32,
    /// When it was decided, if it waits for the other slots to do their parts.
    pub decided: Option<Timestamp>,
}

/// The kind of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Goal {
    /// And the homes that are asked, one after the other, when the one before has no room.
    MakeDirectory(Vec<Slot>),
    RemoveDirectory,
    Link,
    Unlink,
    Rename(Box<Rename>),
    Partitions(Box<Partitions>),
}

numbered_variants! { Goal:
    0 MakeDirectory(body);
    1 RemoveDirectory;
    2 Link;
    3 Unlink;
    4 Rename(body);
    5 Partitions(body);
}

/// A rename under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rename {
    pub request: wire::Rename,
    pub inode: InodeId,
    pub kind: FileKind,
    /// Which user must own the inode.
    pub owner: Option<u32>,
    /// The target of the new name before the rename.
    pub target: Option<Target>,
    /// It takes part in the order of moves.
    pub moves: bool,
    /// The slot that keeps the order is notified of the end when all others have done their parts.
    pub order_is_last: bool,
    pub stage: Stage,
}

/// The next part to be held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    /// The order of moves.
    Order,
    /// The new parent must not be inside the moved directory: the walk is here.
    Ascend(InodeId),
    /// The new entry.
    Put,
    /// The inode.
    Inode,
    /// The old parent must not be inside the directory that is moved back: the walk is here.
    AscendBack(InodeId),
    /// The target that was found.
    Target,
    /// Everything is held.
    Held,
}

numbered_variants! { Stage:
    0 Order;
    1 Ascend(body);
    2 Put;
    3 Inode;
    4 AscendBack(body);
    5 Target;
    6 Held;
}

/// An operation on all partitions that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Partitions {
    pub inode: InodeId,
    pub task: Task,
}

/// The rest of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    Spread {
        partitions: Box<[Slot]>,
        /// The partition that is sent next.
        partition: usize,
        /// Its entries behind this cookie.
        after: u64,
    },
    Collapse {
        rest: Vec<Slot>,
    },
    Set {
        rest: Vec<Slot>,
        attributes: PartitionAttributes,
        /// Answered with the attributes; a change of the layout is not.
        tells: bool,
    },
}

numbered_variants! { Task:
    0 Spread { partitions, partition, after };
    1 Collapse { rest };
    2 Set { rest, attributes, tells };
}

//! The changes of a slot: the content of its log records.

use ramlace_base::{Epoch, SessionId, Timestamp};
use ramlace_lanes::{LaneChange, StoreStep};
use ramlace_namespace::{Command, Room};
use ramlace_wire::Owner;
use serde::{Deserialize, Serialize};

/// How a slot's names begin: everything that the first command must find again on replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotBirth {
    /// Slots of the pool.
    pub slots: u32,
    /// The epoch in which its counter begins.
    pub began: Epoch,
    /// Keys the order of directory entries.
    pub hash_seed: u64,
    /// Owner of the root directory, should the slot hold it.
    pub owner: Owner,
    /// The root's times.
    pub now: Timestamp,
}

/// One thing that happens to a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotChange {
    /// Its names begin: something happens to them for the first time. Lanes may have begun before.
    Born(SlotBirth),
    /// A command to its names.
    Command {
        /// The command.
        command: Box<Command>,
        /// Whether it may make an inode.
        room: Room,
    },
    /// Something happens to its lanes.
    Lane(LaneChange),
    /// A session that it knows has ended.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// When.
        now: Timestamp,
    },
}

impl SlotChange {
    /// The step on the bytes of a lane that is done before the record is written, because the record may need
    /// the memory. If a process dies between the two, the file's home sends the message again.
    #[must_use]
    pub fn frees(&self) -> Option<StoreStep> {
        self.bytes().filter(|step| step.frees_memory())
    }

    /// The step on the bytes of a lane that is done afterwards.
    pub(crate) fn stores(&self) -> Option<StoreStep> {
        self.bytes().filter(|step| !step.frees_memory())
    }

    fn bytes(&self) -> Option<StoreStep> {
        match self {
            SlotChange::Lane(change) => change.bytes(),
            _ => None,
        }
    }

    /// Whether its record may use the last of the store, because it frees memory or ends something.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        match self {
            SlotChange::SessionEnded { .. } => true,
            SlotChange::Lane(change) => change.is_urgent(),
            SlotChange::Command { command, .. } => command.op.is_urgent(),
            SlotChange::Born(_) => false,
        }
    }
}

//! Family 0x04: what slots and lanes tell each other. Every message may arrive more than
//! once, and means the same each time.

use ramlace_base::{Generation, InodeId, LaneId, Sequence, SessionId, Slot, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Credentials, Kind, Layout, LayoutHints, Request};

/// Names one client's mutation for ever: what both halves of a two-slot operation share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// The client's session.
    pub session: SessionId,
    /// The mutation.
    pub sequence: Sequence,
}

/// Places a two-slot operation among those of the slot that coordinates it, so that the other
/// slot knows a late duplicate for what it is, and need not remember settled operations for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentStamp {
    /// The slot that coordinates.
    pub coordinator: Slot,
    /// The operation's number at the coordinator; never reused.
    pub number: u64,
    /// Every operation between these two slots with a smaller number is settled on both sides
    /// (or died with the coordinator's memory: then it is aborted).
    pub open_from: u64,
}

/// First half of mkdir: makes the directory's inode, without an entry yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareDirectory {
    /// The mkdir.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The slot that shall be its home.
    pub slot: Slot,
    /// The directory above.
    pub parent: InodeId,
    /// Permission bits.
    pub mode: u16,
    /// Owner and group.
    pub owner: Credentials,
    /// What it hands down.
    pub hints: LayoutHints,
    /// Its times.
    pub now: Timestamp,
}

/// The inode of a prepared directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryPrepared {
    /// The inode.
    pub inode: InodeId,
}

impl Request for PrepareDirectory {
    const KIND: Kind = Kind::PrepareDirectory;
    type Reply = DirectoryPrepared;
}

/// The mkdir is decided: the directory stays, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleDirectory {
    /// The mkdir.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The directory's home.
    pub slot: Slot,
    /// Whether its entry stands.
    pub keep: bool,
}

impl Request for SettleDirectory {
    const KIND: Kind = Kind::SettleDirectory;
    type Reply = ();
}

/// First half of rmdir: an empty directory takes no new entries from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealDirectory {
    /// The rmdir.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The directory.
    pub inode: InodeId,
}

impl Request for SealDirectory {
    const KIND: Kind = Kind::SealDirectory;
    type Reply = ();
}

/// The rmdir is decided: the sealed directory goes, or is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleSeal {
    /// The rmdir.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The directory.
    pub inode: InodeId,
    /// Whether it goes.
    pub remove: bool,
}

impl Request for SettleSeal {
    const KIND: Kind = Kind::SettleSeal;
    type Reply = ();
}

/// The file has a new generation; bytes of the lane beyond `length` are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutLane {
    /// The lane.
    pub lane: LaneId,
    /// The slot it lies in.
    pub slot: Slot,
    /// The file's new generation.
    pub generation: Generation,
    /// Bytes of the lane that stay.
    pub length: u64,
}

impl Request for CutLane {
    const KIND: Kind = Kind::CutLane;
    type Reply = ();
}

/// The file is gone for ever; its memory is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropLane {
    /// The lane.
    pub lane: LaneId,
    /// The slot it lies in.
    pub slot: Slot,
}

impl Request for DropLane {
    const KIND: Kind = Kind::DropLane;
    type Reply = ();
}

/// A lane that is about to begin, or that met a newer generation, asks the file's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryInode {
    /// The file.
    pub inode: InodeId,
    /// The lane's generation; `Generation(0)` when it is about to begin.
    pub since: Generation,
}

/// What the home answers; a file that is gone is Stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeAnswer {
    /// The file's generation.
    pub generation: Generation,
    /// Bytes up to the end of the last that was written: finished appends that are not published
    /// yet are among them.
    pub size: u64,
    /// The smallest size the file has had in any generation after `since`; `None` when it
    /// was never truncated since.
    pub smallest_size: Option<u64>,
    /// The file's layout: turns the size into the lane's length.
    pub layout: Layout,
}

impl Request for QueryInode {
    const KIND: Kind = Kind::QueryInode;
    type Reply = InodeAnswer;
}

/// Nobody has the file open any more: pages beyond its end are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimLane {
    /// The lane.
    pub lane: LaneId,
    /// The slot it lies in.
    pub slot: Slot,
}

impl Request for TrimLane {
    const KIND: Kind = Kind::TrimLane;
    type Reply = ();
}

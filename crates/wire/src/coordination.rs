//! Family 0x07, too: barriers, cells, and waiting for a change of bytes.
//!
//! A caller that has to wait gets that answer at once, and is notified of the end by [`crate::listen::Listen`].

use ramlace_base::{InodeId, Slot, numbered_variants};
use serde::{Deserialize, Serialize};

use crate::chunk::LaneTarget;
use crate::inline::InlineOutcome;
use crate::namespace::SizeInfo;
use crate::{Kind, LaneRight, Permit, Request};

/// A member arrives at a barrier. The same wait, sent again, asks for its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArriveBarrier {
    /// The barrier: 1 to 255 bytes. Its slot is a hash of them.
    pub name: Vec<u8>,
    /// How many members there are.
    pub parties: u32,
    /// Which of them this is, from 0.
    pub member: u32,
    /// The session's number for this wait, not 0.
    pub wait: u64,
    /// The member's machine, for people.
    pub host: String,
    /// Its process.
    pub pid: u32,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierAnswer {
    /// The round that is complete with this member, from 1; `None`: it waits for an event.
    pub passed: Option<u64>,
}

impl Request for ArriveBarrier {
    const KIND: Kind = Kind::ArriveBarrier;
    type Reply = BarrierAnswer;
}

/// A member waits no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveBarrier {
    /// The barrier.
    pub name: Vec<u8>,
    /// Which member.
    pub member: u32,
    /// The session's number for the wait.
    pub wait: u64,
}

/// Where a member was when it came last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberPlace {
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its session has ended since.
    pub gone: bool,
}

/// A member that has not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingMember {
    /// Which.
    pub member: u32,
    /// Where it was in an earlier round; `None` when it never came.
    pub last: Option<MemberPlace>,
}

/// The members that were missing when a member left; or the round that was complete before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierLeft {
    /// The round was complete with this member: it has not left.
    pub passed: Option<u64>,
    /// How many were missing.
    pub missing_count: u32,
    /// The first of them.
    pub missing: Vec<MissingMember>,
}

impl Request for LeaveBarrier {
    const KIND: Kind = Kind::LeaveBarrier;
    type Reply = BarrierLeft;
}

/// What is done to a cell: eight bytes at a multiple of eight, a number in little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellChange {
    /// Adds, modulo 2^64.
    Add(u64),
    /// Puts another number in the place of the expected one.
    Swap {
        /// What must be there.
        expected: u64,
        /// What shall be there.
        new: u64,
    },
}

numbered_variants! { CellChange:
    0 Add(body);
    1 Swap { expected, new };
}

impl CellChange {
    /// What a cell holds afterwards; `None`: it stays as it is.
    #[must_use]
    pub fn after(self, before: u64) -> Option<u64> {
        match self {
            CellChange::Add(number) => Some(before.wrapping_add(number)),
            CellChange::Swap { expected, new } => (before == expected).then_some(new),
        }
    }
}

/// Changes a cell of a lane, at once and exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeCell {
    /// The lane.
    pub target: LaneTarget,
    /// Offset within the lane's file.
    pub offset: u64,
    /// What is done.
    pub change: CellChange,
}

/// What a cell held, and whether it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellChanged {
    /// The number that was there.
    pub before: u64,
    /// Not when another number was expected.
    pub changed: bool,
}

impl Request for ChangeCell {
    const KIND: Kind = Kind::ChangeCell;
    type Reply = CellChanged;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Both))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(ChangeCell { target: self.target.by(permit), ..*self })
    }
}

/// The same for a file whose bytes live with its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeInlineCell {
    /// The file.
    pub inode: InodeId,
    /// Offset within the file.
    pub offset: u64,
    /// What is done.
    pub change: CellChange,
}

/// What became of a [`ChangeInlineCell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineCellChanged {
    /// *Written* also when another number was expected.
    pub outcome: InlineOutcome,
    /// What was there.
    pub cell: CellChanged,
    /// Size and generation.
    pub size: SizeInfo,
}

impl Request for ChangeInlineCell {
    const KIND: Kind = Kind::ChangeInlineCell;
    type Reply = InlineCellChanged;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &InlineCellChanged) -> bool {
        reply.size.is_possible()
    }
}

/// Were these bytes changed since? A wait that is not 0 asks for a notification when they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchChange {
    /// The file.
    pub inode: InodeId,
    /// One of its lanes; `None`: its size, and its bytes while they live with the inode.
    pub lane: Option<LaneTarget>,
    /// The first byte, within the lane's file where it is a lane.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// The number of an earlier answer; `None` asks for the present one alone.
    pub since: Option<u64>,
    /// The session's number for the wait.
    pub wait: u64,
}

/// Whether they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchAnswer {
    /// They were, or that is not known any more.
    pub changed: bool,
    /// Stands for the present state.
    pub number: u64,
    /// Of a file, not of a lane: its bytes live with the inode.
    pub inline: bool,
}

impl Request for WatchChange {
    const KIND: Kind = Kind::WatchChange;
    type Reply = WatchAnswer;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        self.lane.as_ref().map(|target| (target, LaneRight::Read))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        self.lane.map(|lane| WatchChange { lane: Some(lane.by(permit)), ..*self })
    }
}

/// A session waits no longer for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndWatch {
    /// The file.
    pub inode: InodeId,
    /// The lane, if it was one.
    pub lane: Option<u16>,
    /// The session's number for the wait.
    pub wait: u64,
}

impl Request for EndWatch {
    const KIND: Kind = Kind::EndWatch;
    type Reply = ();
}

/// Bytes of a lane were changed by stores into its memory: sessions that wait for that are to be notified, and kernels
/// that have yet to drop pages of them are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoteChange {
    /// The lane.
    pub target: LaneTarget,
    /// The first byte within the lane's file.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// The mapping for stores ([`crate::chunk::GrantLane`]) that is over by that.
    pub over: Option<u64>,
}

impl Request for NoteChange {
    const KIND: Kind = Kind::NoteChange;
    type Reply = ();

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(NoteChange { target: self.target.by(permit), ..*self })
    }
}

//! Family 0x02: bytes of lanes. A request stays within one lane; its data follows its body.

use ramlace_base::{Epoch, Generation, LaneId, Sequence, Slot};
use serde::{Deserialize, Serialize};

use crate::namespace::SizeInfo;
use crate::possible::is_size;
use crate::types::numbered;
use crate::{Kind, LaneRight, Permit, Request};

/// The lane that is meant, and what the sender knows about its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneTarget {
    /// The lane.
    pub lane: LaneId,
    /// The slot it lies in: the server must be that slot's primary.
    pub slot: Slot,
    /// The file's generation as the sender knows it. An older one than the lane's is
    /// answered with Retry; a newer one makes the lane ask the file's home first.
    pub generation: Generation,
    /// The map's epoch when the file was created: distinguishes a hole from a loss.
    pub created: Epoch,
    /// By what right a host's session asks; others need none.
    pub permit: Option<Permit>,
}

impl LaneTarget {
    /// The same by another right.
    #[must_use]
    pub fn by(self, permit: Option<Permit>) -> LaneTarget {
        LaneTarget { permit, ..self }
    }
}

numbered! {
    /// Whether a kernel keeps pages of what is read, and what may become of them.
    Keep {
        /// No kernel keeps them.
        No = 1,
        /// Programs may store into them, and publish that later: the session gets a lease.
        Share = 2,
        /// On a strict mount, where no program stores into them: the session gets a lease, and no other session
        /// owns them.
        Strict = 3,
        /// On a strict mount, where programs store into them: the session owns them, and no other kernel has them. One page is
        /// waited for until all others have dropped it; several are Busy where others have some of them.
        Own = 4,
        /// As zeros: they lie behind the end of the file. None of them are answered, and the session gets a lease.
        BehindEnd = 5,
    }
}

/// Reads bytes of a lane. Bytes that were never written are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChunk {
    /// The lane.
    pub target: LaneTarget,
    /// Offset within the lane's file.
    pub offset: u64,
    /// Bytes; at most [`ramlace_base::limits::DATA_BYTES_MAX`].
    pub length: u32,
    /// Whether a kernel will keep pages of them. With a length of 0 a session that shares them gets a lease on the whole
    /// lane; Unsupported where a strict mount may have newer bytes.
    pub keep: Keep,
    /// All of them get memory first, as if they were about to be written: programs may store into the pages that they
    /// are brought for. NoSpace where there is none; while little is left, also for more than a page that has holes.
    pub take: bool,
}

/// The bytes follow as data, unless all of them are zero and `hole` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRead {
    /// Every byte asked for is zero; no data follows.
    pub hole: bool,
    /// Before this request the session had a lease on the whole lane, and no part of it was recalled.
    pub kept: bool,
}

impl Request for ReadChunk {
    const KIND: Kind = Kind::ReadChunk;
    type Reply = ChunkRead;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((
            &self.target,
            if self.take || self.keep == Keep::Own { LaneRight::Both } else { LaneRight::Read },
        ))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(ReadChunk { target: self.target.by(permit), ..*self })
    }
}

numbered! {
    /// Where the bytes of a write come from: whether a kernel keeps pages of them.
    WriteOrigin {
        /// From a program's memory; no kernel keeps them, and nothing is recalled from the session.
        Program = 1,
        /// From a program, through pages that its kernel keeps: the session gets a lease on these bytes.
        Through = 2,
        /// Pages that a kernel writes back, because programs may have stored into them: only what differs from
        /// what that kernel was given is written. Never waits for other holders of leases.
        Back = 3,
        /// From a program, past the pages of its kernel, which does not have the bytes: the session's own pages are recalled
        /// as those of others.
        Beside = 4,
    }
}

/// Writes the data that follows. All of it is promised memory before the first byte is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteChunk {
    /// The lane.
    pub target: LaneTarget,
    /// Offset within the lane's file.
    pub offset: u64,
    /// Where the bytes come from.
    pub origin: WriteOrigin,
}

/// The bytes are in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkWritten {
    /// The newest data recall that this write made and did not wait for; 0: none. See
    /// [`crate::leases::WaitPublished`].
    pub recall: u64,
}

impl Request for WriteChunk {
    const KIND: Kind = Kind::WriteChunk;
    type Reply = ChunkWritten;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(WriteChunk { target: self.target.by(permit), ..*self })
    }
}

/// A [`WriteChunk`] by which the file grows, where the server of the lane is that of the file's home as well:
/// it carries what [`crate::namespace::Extend`] would send to the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendChunk {
    /// What is written, and where.
    pub write: WriteChunk,
    /// The least size of the file afterwards.
    pub size: u64,
    /// From here on to `size` all bytes are written by this.
    pub from: u64,
    /// The number of the extension in the session: it is a change of the home's slot.
    pub sequence: Sequence,
    /// So many numbers before it the oldest one lies that the session still waits for in the home's slot.
    pub outstanding: u32,
}

/// The bytes are in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkExtended {
    /// What the home knows of the size now. None: the home needs an [`crate::namespace::Extend`], whose answer
    /// says why it has not taken this one.
    pub size: Option<SizeInfo>,
}

impl Request for ExtendChunk {
    const KIND: Kind = Kind::ExtendChunk;
    type Reply = ChunkExtended;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.write.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        let write = WriteChunk { target: self.write.target.by(permit), ..self.write };
        Some(ExtendChunk { write, ..*self })
    }

    fn fits(&self, reply: &ChunkExtended) -> bool {
        reply.size.is_none_or(|size| size.is_possible())
    }
}

/// Frees a range of a lane; it reads as zeros afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PunchChunk {
    /// The lane.
    pub target: LaneTarget,
    /// Offset within the lane's file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Request for PunchChunk {
    const KIND: Kind = Kind::PunchChunk;
    type Reply = ();

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(PunchChunk { target: self.target.by(permit), ..*self })
    }
}

/// Asks for a descriptor of the lane's file. Unix sockets only, same user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantLane {
    /// The lane.
    pub target: LaneTarget,
    /// For stores by this mapping, a number that the session has not used before; `None`: for reading alone. Until the
    /// session says that it is over ([`crate::coordination::NoteChange`]), or ends, kernels keep no pages of the lane.
    pub mapping: Option<u64>,
}

/// A descriptor travels with this reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGranted {
    /// Length of the lane's file.
    pub length: u64,
}

impl Request for GrantLane {
    const KIND: Kind = Kind::GrantLane;
    type Reply = LaneGranted;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, if self.mapping.is_some() { LaneRight::Both } else { LaneRight::Read }))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(GrantLane { target: self.target.by(permit), ..*self })
    }

    fn fits(&self, reply: &LaneGranted) -> bool {
        is_size(reply.length)
    }
}

/// Asks for a descriptor of the lane's file for a kernel, which will read and map it without asking. From then
/// on, until the home says that the passthrough has ended, the lane has memory for every byte up to its end: what
/// would make a hole takes memory, or writes zeros. Unix sockets only, same user only.
///
/// Unsupported when the lane has holes already, or is not as long as the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantPassthrough {
    /// The lane.
    pub target: LaneTarget,
    /// The number that the home gave the passthrough.
    pub passthrough: u64,
    /// Bytes of the file, all of which are in this lane.
    pub length: u64,
    /// Whether the kernel may store into it: then other kernels keep no pages of the lane.
    pub stores: bool,
}

impl Request for GrantPassthrough {
    const KIND: Kind = Kind::GrantPassthrough;
    type Reply = LaneGranted;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, if self.stores { LaneRight::Both } else { LaneRight::Read }))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(GrantPassthrough { target: self.target.by(permit), ..*self })
    }

    fn fits(&self, reply: &LaneGranted) -> bool {
        is_size(reply.length)
    }
}

/// Takes the memory of a part of a lane, all or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocateLane {
    /// The lane.
    pub target: LaneTarget,
    /// Bytes from the lane's beginning.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Bytes behind these that the sender asks for next. If not all of them fit, it is refused now.
    pub more: u64,
    /// The file will not become longer by it: Unsupported behind the end of a lane that a kernel has, which would read
    /// what is there.
    pub keep_size: bool,
}

impl Request for AllocateLane {
    const KIND: Kind = Kind::AllocateLane;
    type Reply = ();

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(AllocateLane { target: self.target.by(permit), ..*self })
    }
}

/// Asks how much memory a lane holds: an attribute, which needs no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountLane {
    /// The lane.
    pub target: LaneTarget,
}

/// What a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneCounted {
    /// Bytes of memory.
    pub allocated: u64,
}

impl Request for CountLane {
    const KIND: Kind = Kind::CountLane;
    type Reply = LaneCounted;

    fn fits(&self, reply: &LaneCounted) -> bool {
        is_size(reply.allocated)
    }
}

numbered! {
    /// What is sought in a lane, or in a file.
    Sought {
        /// Bytes that may be other than zero.
        Data = 1,
        /// Zeros that have no memory; the end of the file is one, too.
        Hole = 2,
    }
}

/// Asks where the next data, or the next hole, begins. Behind the lane's end there is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeekLane {
    /// The lane.
    pub target: LaneTarget,
    /// From here on.
    pub offset: u64,
    /// What.
    pub sought: Sought,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSought {
    /// None: there is no more data.
    pub offset: Option<u64>,
}

impl Request for SeekLane {
    const KIND: Kind = Kind::SeekLane;
    type Reply = LaneSought;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Either))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(SeekLane { target: self.target.by(permit), ..*self })
    }

    fn fits(&self, reply: &LaneSought) -> bool {
        reply.offset.is_none_or(|found| found >= self.offset && is_size(found))
    }
}

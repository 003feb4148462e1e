//! Family 0x04: the messages between slots and lanes. Every message may arrive more than once, and means the
//! same each time.

use ramlace_base::{
    Generation, InodeId, LaneId, Name, Sequence, SessionId, Slot, Timestamp, limits, numbered_variants,
};
use serde::{Deserialize, Serialize};

use crate::inline::{Bytes, BytesPlace};
use crate::namespace::RenameMode;
use crate::possible::{MODE_MAX, is_counted, is_generation, is_lane, is_size};
use crate::{AccessLists, Attributes, Credentials, FileKind, Kind, Layout, LayoutHints, Owner, Request};

/// Names one client's mutation for ever: what both halves of a two-slot operation share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// The client's session.
    pub session: SessionId,
    /// The mutation.
    pub sequence: Sequence,
}

/// Places a two-slot operation among those of the slot that coordinates it, so that the other slot recognises a
/// late duplicate, and need not remember finished operations for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentStamp {
    /// The slot that coordinates.
    pub coordinator: Slot,
    /// The operation's number at the coordinator; never reused.
    pub number: u64,
    /// Every operation between these two slots with a smaller number is finished on both sides (or died with
    /// the coordinator's memory: then it is aborted).
    pub open_from: u64,
}

impl IntentStamp {
    pub(crate) fn is_possible(&self) -> bool {
        is_counted(self.number) && self.open_from <= self.number
    }
}

/// Asks a slot to hold its part of an operation ready: it has checked that the part can be done, and keeps it
/// possible, until [`Decide`] says whether it is done. A part that meets another undecided operation is refused
/// with Busy: no request waits for another, so no two wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The client's mutation.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The slot that is asked.
    pub slot: Slot,
    /// Distinguishes the parts of one operation; the same number is the same part.
    pub number: u32,
    /// The user for whom the client acts.
    pub who: Credentials,
    /// When the operation began.
    pub now: Timestamp,
    /// What is to be held.
    pub part: Part,
}

/// One slot's part in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// mkdir: a directory's inode, which nothing leads to yet. Answered with `Made`.
    MakeDirectory {
        /// The directory above.
        parent: InodeId,
        /// Permission bits.
        mode: u16,
        /// Owner and group.
        owner: Owner,
        /// What it hands down.
        hints: LayoutHints,
        /// Its access control lists.
        lists: AccessLists,
    },
    /// rmdir, or a rename that replaces it: an empty directory takes no entries from now on.
    SealDirectory {
        /// The directory.
        inode: InodeId,
        /// The user that must own it.
        owner: Option<u32>,
    },
    /// link: one more entry leads to the inode. Answered with `Linked`.
    RaiseLinks {
        /// A file or a symbolic link.
        inode: InodeId,
    },
    /// unlink, or a rename that replaces the entry: one entry less leads to the inode.
    LowerLinks {
        /// A file or a symbolic link.
        inode: InodeId,
        /// The user that must own it.
        owner: Option<u32>,
    },
    /// rename: the new entry, and all that lives in the new entry's slot: the inode itself, and
    /// what it replaces. Answered with `Found`.
    PutEntry(PutEntry),
    /// rename: the inode gets another name.
    MoveInode {
        /// The inode.
        inode: InodeId,
        /// A directory's new parent, when it changes.
        parent: Option<InodeId>,
        /// The user that must own it.
        owner: Option<u32>,
    },
    /// A directory changes its parent: no other directory does meanwhile. Asked of slot 0.
    OrderMoves,
    /// A directory is spread over slots: some of its entries live in this one from now on.
    TakePartition(TakePartition),
    /// A directory is whole again: its partitions here, which are empty, go.
    SealPartition {
        /// The directory.
        inode: InodeId,
    },
    /// The attributes of a spread directory change.
    SetPartition {
        /// The directory.
        inode: InodeId,
        /// What it has from now on.
        attributes: PartitionAttributes,
    },
}

numbered_variants! { Part:
    0 MakeDirectory { parent, mode, owner, hints, lists };
    1 SealDirectory { inode, owner };
    2 RaiseLinks { inode };
    3 LowerLinks { inode, owner };
    4 PutEntry(body);
    5 MoveInode { inode, parent, owner };
    6 OrderMoves;
    7 TakePartition(body);
    8 SealPartition { inode };
    9 SetPartition { inode, attributes };
}

impl Part {
    pub(crate) fn is_possible(&self, asked: Slot) -> bool {
        match self {
            Part::MakeDirectory { mode, .. } => *mode <= MODE_MAX,
            Part::TakePartition(take) => take.is_possible() && take.partitions.contains(&asked),
            Part::SetPartition { attributes, .. } => attributes.is_possible(),
            _ => true,
        }
    }
}

/// The new entry of a rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutEntry {
    /// The directory.
    pub parent: InodeId,
    /// The new name.
    pub name: Name,
    /// Where it shall lead.
    pub inode: InodeId,
    /// What that is.
    pub kind: FileKind,
    /// The directory that it comes from.
    pub from: InodeId,
    /// The user that must own the inode.
    pub owner: Option<u32>,
    /// What happens to the name's old entry.
    pub mode: RenameMode,
}

/// What a slot must know of a directory whose entries it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionAttributes {
    /// Permission bits.
    pub mode: u16,
    /// Owner and group.
    pub owner: Owner,
    /// What it hands down.
    pub hints: LayoutHints,
    /// Its access control lists.
    pub lists: AccessLists,
    /// Last read, when it is set.
    pub accessed: Option<Timestamp>,
    /// Last change of entries, when it is set.
    pub modified: Option<Timestamp>,
}

impl PartitionAttributes {
    fn is_possible(&self) -> bool {
        self.mode <= MODE_MAX
    }
}

/// Some entries of a directory that is being spread. A slot may be sent several of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakePartition {
    /// The directory.
    pub inode: InodeId,
    /// The first of the messages to this slot.
    pub first: bool,
    /// The directory's attributes.
    pub attributes: PartitionAttributes,
    /// The slot of each partition.
    pub partitions: Vec<Slot>,
    /// At most [`ramlace_base::limits::DIRECTORY_MOVED_ENTRIES_MAX`] entries.
    pub entries: Vec<MovedEntry>,
}

impl TakePartition {
    fn is_possible(&self) -> bool {
        self.attributes.is_possible()
            && self.partitions.len() == limits::DIRECTORY_PARTITIONS
            && self.entries.len() <= limits::DIRECTORY_MOVED_ENTRIES_MAX
            && self.entries.iter().all(|entry| (1..1 << 63).contains(&entry.cookie))
    }
}

/// An entry in flight to another slot. It keeps its cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedEntry {
    /// Its place in the directory.
    pub cookie: u64,
    /// Its name.
    pub name: Name,
    /// Where it leads.
    pub inode: InodeId,
    /// What that is.
    pub kind: FileKind,
}

/// What answers a [`Prepare`] that is held ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Nothing more to say.
    Ready,
    /// The inode of a new directory.
    Made(InodeId),
    /// The inode with its new count of links.
    Linked(Attributes),
    /// What the name leads to now.
    Found(Option<Target>),
}

numbered_variants! { Prepared:
    0 Ready;
    1 Made(body);
    2 Linked(body);
    3 Found(body);
}

/// What a rename replaces or exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// The user that must own it: a sticky directory's rule, which only the inode's home can check.
    pub owner: Option<u32>,
}

impl Request for Prepare {
    const KIND: Kind = Kind::Prepare;
    type Reply = Prepared;

    fn fits(&self, reply: &Prepared) -> bool {
        match (&self.part, reply) {
            (Part::MakeDirectory { .. }, Prepared::Made(inode)) => inode.slot() == self.slot,
            (Part::RaiseLinks { inode }, Prepared::Linked(attributes)) => attributes.is_of(*inode),
            (Part::PutEntry(_), Prepared::Found(_)) => true,
            (Part::MakeDirectory { .. } | Part::RaiseLinks { .. } | Part::PutEntry(_), _) => false,
            (_, reply) => *reply == Prepared::Ready,
        }
    }

    fn is_possible(&self) -> bool {
        self.stamp.is_possible() && self.stamp.coordinator != self.slot && self.part.is_possible(self.slot)
    }
}

/// The operation is decided: what the slot holds for it is done, or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decide {
    /// The client's mutation.
    pub token: Token,
    /// Its place among the coordinator's operations.
    pub stamp: IntentStamp,
    /// The slot that was asked.
    pub slot: Slot,
    /// Whether it is done.
    pub commit: bool,
    /// When it was decided: the time of what changes.
    pub now: Timestamp,
}

impl Request for Decide {
    const KIND: Kind = Kind::Decide;
    type Reply = ();

    fn is_possible(&self) -> bool {
        self.stamp.is_possible() && self.stamp.coordinator != self.slot
    }
}

/// Walks from a directory towards the root, while the directories live in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ascend {
    /// The client's mutation.
    pub token: Token,
    /// The directory to begin with.
    pub inode: InodeId,
    /// The directory to stop at.
    pub until: InodeId,
}

/// Where the walk came to: `until`, the root, or the first directory of another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ascended {
    /// The directory.
    pub inode: InodeId,
}

impl Request for Ascend {
    const KIND: Kind = Kind::Ascend;
    type Reply = Ascended;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
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
    /// The session that has truncated the file, whose kernel knows of it. All zero: no session.
    pub by: SessionId,
}

/// The lane is cut; and which sessions have yet to drop pages of what was cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneCut {
    /// The incarnation of the lane's server that the recalls belong to.
    pub life: u64,
    /// The data recalls that are not over; at most [`limits::DATA_RECALLS_PER_MESSAGE_MAX`].
    pub recalls: Vec<u64>,
}

impl Request for CutLane {
    const KIND: Kind = Kind::CutLane;
    type Reply = LaneCut;

    fn is_possible(&self) -> bool {
        is_lane(self.lane) && is_generation(self.generation) && is_size(self.length)
    }

    fn fits(&self, reply: &LaneCut) -> bool {
        reply.recalls.len() <= limits::DATA_RECALLS_PER_MESSAGE_MAX
    }
}

/// Asks a lane's server whether data recalls of [`LaneCut`] are over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryRecalls {
    /// The incarnation of the server that made them.
    pub life: u64,
    /// Their numbers.
    pub recalls: Vec<u64>,
}

/// Its answer. An error of kind Stale: the server has restarted, and the lane is to be cut again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecallsKnown {
    /// Whether no answer has to wait for any of them any more.
    pub over: bool,
}

impl Request for QueryRecalls {
    const KIND: Kind = Kind::QueryRecalls;
    type Reply = RecallsKnown;

    fn is_possible(&self) -> bool {
        self.recalls.len() <= limits::DATA_RECALLS_PER_MESSAGE_MAX
    }
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

    fn is_possible(&self) -> bool {
        is_lane(self.lane)
    }
}

/// A lane that met a newer generation, or that is sent what it has not asked for, asks the file's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryInode {
    /// The file.
    pub inode: InodeId,
    /// The lane's generation; `Generation(0)`: all of the file's.
    pub since: Generation,
}

/// What the home answers; a file that is gone is Stale.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Where its bytes are: a lane begins only when they are there, or in flight.
    pub place: BytesPlace,
    /// Sessions whose kernels have yet to drop pages from when they were in the inode: they have leases on its lanes.
    pub kept_by: Vec<SessionId>,
}

impl InodeAnswer {
    fn is_possible(&self) -> bool {
        self.kept_by.len() <= limits::KEPT_BY_SESSIONS_MAX
            && is_generation(self.generation)
            && is_size(self.size)
            && self.smallest_size.is_none_or(is_size)
            && self.layout.is_possible()
    }
}

impl Request for QueryInode {
    const KIND: Kind = Kind::QueryInode;
    type Reply = InodeAnswer;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &InodeAnswer) -> bool {
        reply.is_possible()
    }
}

/// A lane is about to begin: what [`QueryInode`] asks with `Generation(0)`. The home notes that there is such a lane, to
/// drop it with the file. If a session writes bytes, and the file's bytes live with its inode and there are none,
/// they live in its lanes from now on. Where a kernel keeps what it has of them, they stay inline: the writer has
/// them promoted then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginLane {
    /// The lane.
    pub lane: LaneId,
    /// The session whose bytes these are; `SessionId::NONE`: the lane begins for another reason, and an empty
    /// file stays inline.
    pub by: SessionId,
}

impl Request for BeginLane {
    const KIND: Kind = Kind::BeginLane;
    type Reply = InodeAnswer;

    fn slot(&self, _named: Slot) -> Slot {
        self.lane.inode.slot()
    }

    fn is_possible(&self) -> bool {
        is_lane(self.lane)
    }

    fn fits(&self, reply: &InodeAnswer) -> bool {
        reply.is_possible()
    }
}

/// A session writes pages back to lane 0 that it has not got there. It may have had them since the file's bytes lived with its inode: then its home
/// knows what others have done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryPages {
    /// The file.
    pub inode: InodeId,
    /// The session that has the pages.
    pub session: SessionId,
}

/// `Stale`: others have changed them since.
impl Request for QueryPages {
    const KIND: Kind = Kind::QueryPages;
    type Reply = ();

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

/// The bytes that a file had inline. They are the lane's first: it begins with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillLane {
    /// Lane 0.
    pub lane: LaneId,
    /// The slot it lies in.
    pub slot: Slot,
    /// The generation that the file took for this: identifies a late duplicate.
    pub generation: Generation,
    /// From the lane's first byte on.
    pub bytes: Bytes,
}

impl Request for FillLane {
    const KIND: Kind = Kind::FillLane;
    type Reply = ();

    fn is_possible(&self) -> bool {
        self.lane.lane == 0
            && is_generation(self.generation)
            && self.bytes.0.len() <= limits::INLINE_BYTES_MAX
    }
}

/// No session has the file open any more, or no kernel has it: pages beyond its end are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimLane {
    /// The lane.
    pub lane: LaneId,
    /// The slot it lies in.
    pub slot: Slot,
    /// Passthroughs to kernels up to this number have ended.
    pub passthroughs_over: u64,
}

impl Request for TrimLane {
    const KIND: Kind = Kind::TrimLane;
    type Reply = ();

    fn is_possible(&self) -> bool {
        is_lane(self.lane) && is_counted(self.passthroughs_over)
    }
}

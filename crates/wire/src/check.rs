//! What `ramlace check` asks: facts about everything that a server holds, page by page.
//!
//! Each server is asked for all of its slots and lanes, whatever the map says; only the pool's owner may ask.
//! Pages are bounded, and together no snapshot: a pool that is at work is checked twice, and what is wrong both
//! times is wrong.

use ramlace_base::{Epoch, Generation, InodeId, LaneId, Name, ServerId, Slot, limits};
use serde::{Deserialize, Serialize};

use crate::possible::is_size;
use crate::types::numbered;
use crate::{FileKind, Kind, Layout, Request};

/// Asks a server for its books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckStore {}

/// A server's books, all of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreFacts {
    /// The server.
    pub server: ServerId,
    /// The epoch of its map.
    pub epoch: Epoch,
    /// Memory of lanes, by the store's counter.
    pub lanes_bytes: u64,
    /// The same, added up lane by lane.
    pub summed_bytes: u64,
    /// All memory of the store, by its counters.
    pub counted_bytes: u64,
    /// All memory of the store, by the kernel; `None` where that would take long to find out.
    pub kernel_bytes: Option<u64>,
}

impl Request for CheckStore {
    const KIND: Kind = Kind::CheckStore;
    type Reply = StoreFacts;
}

/// Asks a server for its lanes after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckLanes {
    /// The last lane of the page before.
    pub after: Option<LaneId>,
}

/// Some lanes of a server, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanesPage {
    /// At most [`ramlace_base::limits::CHECK_LANES_MAX`].
    pub lanes: Vec<LaneFacts>,
    /// There are no more.
    pub end: bool,
}

/// A lane as its server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneFacts {
    /// The lane.
    pub lane: LaneId,
    /// The newest generation that it has received; `None`: the server's table does not have it.
    pub generation: Option<Generation>,
    /// Length of its file in the store; `None`: the store does not have it.
    pub length: Option<u64>,
    /// Memory that it takes.
    pub allocated_bytes: u64,
    /// Its first so many bytes were lost, but for what was written since.
    pub lost_below: u64,
    /// A write is under way.
    pub writing: bool,
}

impl Request for CheckLanes {
    const KIND: Kind = Kind::CheckLanes;
    type Reply = LanesPage;

    fn fits(&self, reply: &LanesPage) -> bool {
        let possible = |lane: &LaneFacts| {
            is_size(lane.allocated_bytes) && lane.length.is_none_or(is_size) && is_size(lane.lost_below)
        };
        reply.lanes.len() <= limits::CHECK_LANES_MAX && reply.lanes.iter().all(possible)
    }
}

/// Asks a server for its slots after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckSlots {
    /// The last slot of the page before.
    pub after: Option<Slot>,
}

/// Some slots of a server, in order; those in which nothing has happened yet are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotsPage {
    /// The slots.
    pub slots: Vec<SlotFacts>,
    /// There are no more.
    pub end: bool,
}

/// A slot: what is under way in it, and what it finds wrong by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotFacts {
    /// The slot.
    pub slot: Slot,
    /// Inodes that live here.
    pub inodes: u64,
    /// Operations begun here: the slot that was asked, and the number by which it knows them.
    pub asked: Vec<(Slot, u64)>,
    /// Operations of others that hold something here: the slots that began them, and their numbers.
    pub held: Vec<(Slot, u64)>,
    /// Partitions here of directories whose home is another slot.
    pub partitions: Vec<PartitionFacts>,
    /// Pending messages to others.
    pub deliveries: u32,
    /// What is wrong.
    pub troubles: Vec<Trouble>,
}

/// What a slot has of a directory that is spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionFacts {
    /// The directory.
    pub directory: InodeId,
    /// Directories among its entries here.
    pub links: u32,
    /// An operation under way makes, changes or removes it.
    pub held: bool,
}

numbered! {
    /// What a slot can find wrong by itself.
    TroubleKind {
        /// An inode counts other sessions that have it open than there are.
        OpensMiscounted = 1,
        /// A session has something open that is gone.
        OpenOfNothing = 2,
        /// A slot keeps things for a session that has ended.
        SessionGone = 3,
        /// An append was reserved by a session that does not exist.
        ReservationOfNobody = 4,
        /// Something is held for an operation that is not under way.
        HeldByNobody = 5,
        /// An operation waits for nothing.
        OperationStuck = 6,
        /// An inode has a number that is yet to be given out.
        NumberNotGivenOut = 7,
        /// A slot takes operations for finished that the slot that coordinates them has yet to begin.
        NumbersAhead = 8,
        /// A lane does not fit to its file, by the word of the file's home.
        LaneAstray = 9,
    }
}

/// Something that is wrong within a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// What it is.
    pub kind: TroubleKind,
    /// The inode that it is about.
    pub inode: Option<InodeId>,
    /// The rest, for people.
    pub text: String,
}

impl Request for CheckSlots {
    const KIND: Kind = Kind::CheckSlots;
    type Reply = SlotsPage;
}

/// Asks a server for its inodes after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInodes {
    /// The last inode of the page before; 0: from the first on.
    pub after: InodeId,
}

/// Some inodes of a server, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodesPage {
    /// At most [`ramlace_base::limits::CHECK_INODES_MAX`].
    pub inodes: Vec<InodeFacts>,
    /// What is wrong with them, as far as their slots can find out.
    pub troubles: Vec<Trouble>,
    /// There are no more.
    pub end: bool,
}

/// An inode as its slot has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeFacts {
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Entries that lead to it, as it counts them.
    pub links: u32,
    /// Sessions that have it open.
    pub opens: u32,
    /// An operation under way changes it.
    pub held: bool,
    /// Of a directory: the one above it.
    pub parent: Option<InodeId>,
    /// Of a file that may have lanes.
    pub file: Option<FileFacts>,
}

/// What of a file concerns its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The end of the last byte that was written or reserved, published or not.
    pub extent: u64,
    /// Raised by every truncation.
    pub generation: Generation,
    /// Where its bytes lie.
    pub layout: Layout,
    /// It grew since its lanes were asked to give back what they took ahead.
    pub untrimmed: bool,
    /// Some lane has yet to receive a truncation.
    pub cutting: bool,
    /// No lane from this one on has ever begun.
    pub lanes_begun: u16,
}

impl Request for CheckInodes {
    const KIND: Kind = Kind::CheckInodes;
    type Reply = InodesPage;

    fn fits(&self, reply: &InodesPage) -> bool {
        let possible = |file: &FileFacts| is_size(file.extent) && file.layout.is_possible();
        reply.inodes.len() <= limits::CHECK_INODES_MAX
            && reply.inodes.iter().all(|inode| inode.file.as_ref().is_none_or(possible))
    }
}

/// A place in the entries of a server: slots in order, in each the directories in order, in each
/// the cookies in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryPlace {
    /// The slot in which the entry lies.
    pub slot: Slot,
    /// Its directory.
    pub directory: InodeId,
    /// Its cookie.
    pub cookie: u64,
}

/// Asks a server for its entries after this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckEntries {
    /// Where the page before ended; `None`: from the first on.
    pub after: Option<EntryPlace>,
}

/// Some entries of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntriesPage {
    /// At most [`ramlace_base::limits::CHECK_ENTRIES_MAX`].
    pub entries: Vec<EntryFacts>,
    /// Where this page ended; `None`: there are no more.
    pub next: Option<EntryPlace>,
}

/// An entry as its slot has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFacts {
    /// Its directory.
    pub directory: InodeId,
    /// Its place in the directory.
    pub cookie: u64,
    /// Its name.
    pub name: Name,
    /// Where it leads.
    pub inode: InodeId,
    /// What it says that is.
    pub kind: FileKind,
    /// Its place is not that of its name: no lookup finds it.
    pub misplaced: bool,
}

impl Request for CheckEntries {
    const KIND: Kind = Kind::CheckEntries;
    type Reply = EntriesPage;
}

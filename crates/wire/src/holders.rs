//! Which sessions have which bytes in their kernels' pages, and which wait for which: for people who search for
//! what delays their programs.

use ramlace_base::{InodeId, SessionId};
use serde::{Deserialize, Serialize};

use crate::types::numbered;
use crate::{Kind, Request};

/// Which sessions have what of the bytes of this server?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListHolders {
    /// Of this file alone.
    pub inode: Option<InodeId>,
}

/// What a server knows of it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Those first about which most happens; at most [`ramlace_base::limits::HELD_PLACES_LISTED_MAX`].
    pub places: Vec<HeldPlace>,
    /// Places that are left out.
    pub left_out: u64,
}

/// The bytes of a lane, or those that live with an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPlace {
    /// The file.
    pub inode: InodeId,
    /// The lane; `None`: the bytes live with the inode.
    pub lane: Option<u16>,
    /// At most [`ramlace_base::limits::HOLDERS_LISTED_MAX`], as of waits, of fought pages and of those who store.
    pub holders: Vec<Holder>,
    /// Requests that wait for others, in the order in which they came.
    pub waits: Vec<PageWait>,
    /// Pages that change sides most often.
    pub fought: Vec<FoughtPage>,
    /// Sessions whose programs store into the lane's memory without asking: kernels keep no pages of it meanwhile.
    pub storers: Vec<Storer>,
    /// So does a kernel that has the file by passthrough.
    pub passed_through: bool,
}

/// A session whose program maps a lane for stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storer {
    /// The session.
    pub session: SessionId,
    /// What it calls itself.
    pub label: String,
}

/// A session whose kernel may have pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// What it calls itself.
    pub label: String,
    /// It may have any pages but those that were recalled.
    pub shares: bool,
    /// Bytes that it alone has; programs of a strict mount may store into them.
    pub owned_bytes: u64,
    /// Recalls that it has yet to acknowledge.
    pub recalls: u64,
    /// The oldest of them was made so long ago.
    pub millis: u64,
    /// It has not answered in time, and no caller waits for it.
    pub fenced: bool,
}

numbered! {
    /// What a request that waits is for.
    WaitsTo {
        /// Read bytes once.
        Look = 1,
        /// Keep pages of a mount that is not strict.
        Share = 2,
        /// Keep pages of a strict mount.
        Read = 3,
        /// Have pages alone, for stores.
        Own = 4,
        /// Change bytes by a call.
        Write = 5,
    }
}

/// A request that waits for others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageWait {
    /// The session of the claim.
    pub session: SessionId,
    /// What it calls itself.
    pub label: String,
    /// What for.
    pub to: WaitsTo,
    /// The first byte, within the lane.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Sessions that it waits for: they have the pages, or came before.
    pub blockers: Vec<SessionId>,
}

/// A page that sessions take from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoughtPage {
    /// Its first byte, within the lane.
    pub offset: u64,
    /// So often.
    pub changes: u64,
    /// In so long a time, up to the last change.
    pub millis: u64,
    /// The last change was so long ago.
    pub since_millis: u64,
    /// The sessions that it was taken from; the last few.
    pub sides: Vec<SessionId>,
}

impl Request for ListHolders {
    const KIND: Kind = Kind::ListHolders;
    type Reply = Holders;

    fn fits(&self, reply: &Holders) -> bool {
        reply.places.iter().all(|place| {
            self.inode.is_none_or(|inode| inode == place.inode)
                && place.waits.iter().all(|wait| wait.start <= wait.end)
        })
    }
}

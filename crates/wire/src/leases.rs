//! Leases, in the family of locks and events: what a session may rely on for a short while without asking, and
//! how it is notified that it may not any more.
//!
//! A lease is on an inode: on its attributes, or on the names in it. It lasts for
//! [`ramlace_base::limits::LEASE_MILLIS`] from the moment before the request for it left.

use ramlace_base::{InodeId, LaneId, Name, Slot};
use serde::{Deserialize, Serialize};

use crate::namespace::{DirectoryEntry, Found, InodeInfo, is_of_directory};
use crate::possible::{is_lane, is_size};
use crate::types::numbered;
use crate::{Attributes, Kind, Request};

numbered! {
    /// What of an inode a lease is on.
    Leased {
        /// Its attributes.
        Attributes = 1,
        /// Where the names in a directory lead that are in it.
        Names = 2,
    }
}

/// A [`crate::namespace::Lookup`] that asks for leases on the names of the directory and on the attributes. A name that is not
/// there is no error of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseName {
    /// The directory.
    pub parent: InodeId,
    /// The entry.
    pub name: Name,
    /// The names are wanted, too.
    pub names: bool,
    /// A program that looks at one name after the other will ask for those behind it in the directory's order: so many
    /// of them are wanted with it, where the names are.
    pub neighbours_max: u16,
}

/// Where it leads, and what may be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameLeased {
    /// As of a lookup; `None`: there is no such name.
    pub found: Option<Found>,
    /// The directory's names are leased.
    pub names: bool,
    /// The attributes that came are leased.
    pub attributes: bool,
    /// The directory, with a lease on its attributes, where its names are wanted and there is no such name, or neighbours are
    /// wanted: as long as that lasts no other session has made a name.
    pub directory: Option<Attributes>,
    /// Other entries, from the one behind the name on, and behind the last from the first on. Their attributes are there where they are
    /// leased.
    pub neighbours: Vec<DirectoryEntry>,
    /// These and the name are all that is in the directory.
    pub is_all: bool,
}

impl Request for LeaseName {
    const KIND: Kind = Kind::LeaseName;
    type Reply = NameLeased;

    fn fits(&self, reply: &NameLeased) -> bool {
        let neighbours_fit = reply.neighbours.len() <= usize::from(self.neighbours_max)
            && (reply.names || reply.neighbours.is_empty())
            && reply.neighbours.iter().all(DirectoryEntry::is_possible);
        reply.found.as_ref().is_none_or(Found::is_possible)
            && is_of_directory(reply.directory.as_ref(), self.parent)
            && neighbours_fit
    }
}

/// A [`crate::namespace::GetAttributes`] that asks for leases on the attributes and, of a directory, on its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAttributes {
    /// Of which inode.
    pub inode: InodeId,
    /// The names are wanted, too.
    pub names: bool,
}

/// What it is, and what may be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttributesLeased {
    /// As of `GetAttributes`.
    pub info: InodeInfo,
    /// The attributes are leased.
    pub attributes: bool,
    /// The names are leased.
    pub names: bool,
}

impl Request for LeaseAttributes {
    const KIND: Kind = Kind::LeaseAttributes;
    type Reply = AttributesLeased;

    fn fits(&self, reply: &AttributesLeased) -> bool {
        reply.info.is_of(self.inode)
    }
}

/// All leases of the session on names and attributes last from now on as if they were given now. One request, however many
/// they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLeases {}

/// The effect of a renewal: no lease is renewed whose recall the session has received, or will receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasesRenewed {
    /// They were; `false`: the session receives no recalls, or has too many to receive.
    pub renewed: bool,
    /// The server's incarnation, as by [`crate::listen::News`].
    pub life: u64,
    /// How often leases were taken from the session without a word, because the table was full. When it is not what it was, none is
    /// renewed that was given before.
    pub taken: u64,
    /// The newest recall that the session has not acknowledged: the renewal counts once the session has done
    /// that recall.
    pub newest: u64,
}

impl Request for RenewLeases {
    const KIND: Kind = Kind::RenewLeases;
    type Reply = LeasesRenewed;
}

/// A lease that ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// Its number at this server; they grow.
    pub number: u64,
    /// The inode.
    pub inode: InodeId,
    /// What of it.
    pub what: Leased,
}

/// A lease on bytes that ends: the holder's kernel is to write back what programs stored there, and to drop its pages.
/// Then it is acknowledged by [`EndRecalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRecall {
    /// Its number at this server; they grow, and are other numbers than those of [`Recall`].
    pub number: u64,
    /// The file.
    pub inode: InodeId,
    /// The lane; `None`: the bytes live with the inode.
    pub lane: Option<u16>,
    /// The first byte, within the lane.
    pub start: u64,
    /// The byte after the last; `u64::MAX`: all that follow.
    pub end: u64,
}

impl DataRecall {
    pub(crate) fn is_possible(&self) -> bool {
        is_size(self.start)
            && self.start <= self.end
            && self.lane.is_none_or(|lane| is_lane(LaneId { inode: self.inode, lane }))
    }
}

/// A slot that is delegated to the session, and that another session asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegationRecall {
    /// The slot.
    pub slot: Slot,
    /// The delegation's number.
    pub number: u64,
}

/// Data recalls are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecalls {
    /// No kernel page of these is left, and every write-back of one was answered.
    pub done: Vec<u64>,
    /// The kernel cannot drop these yet, because a write of its own has their pages locked; it drops them as
    /// soon as that is answered, and shows nobody these pages before. No answer waits for them any longer but
    /// that to [`WaitPublished`], and they are yet to be acknowledged.
    pub blocked: Vec<u64>,
    /// Files of relaxed mounts have these: no answer waits for them, and they are yet to be acknowledged.
    pub relaxed: Vec<u64>,
    /// The kernel has nothing left from before this incarnation of the server, and every write-back of that
    /// was answered. 0: nothing is said about that.
    pub life: u64,
}

impl EndRecalls {
    /// Says that these are done, and nothing else.
    #[must_use]
    pub fn of_done(done: &[u64]) -> EndRecalls {
        EndRecalls { done: done.to_vec(), ..EndRecalls::default() }
    }
}

impl Request for EndRecalls {
    const KIND: Kind = Kind::EndRecalls;
    type Reply = ();
}

/// Answered when the data recalls that this session's write-backs have made are acknowledged: what it wrote back is
/// seen everywhere then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitPublished {
    /// Recalls up to this number.
    pub recall: u64,
}

impl Request for WaitPublished {
    const KIND: Kind = Kind::WaitPublished;
    type Reply = ();
}

//! Opening and closing inodes: creating a file with its open, and passing an open file through to a kernel.

use ramlace_base::{InodeId, Name, Sequence, ServerId, Slot, Timestamp};
use serde::{Deserialize, Serialize};

use super::attributes::InodeInfo;
use super::entries::{NewMode, is_of_directory};
use super::sizes::SizeInfo;
use crate::possible::is_counted;
use crate::{Attributes, FileAttributes, FileKind, Kind, Layout, LayoutHints, Permit, Request};

/// Creates a file and opens it for the session; opens the one that is there unless `exclusive`.
///
/// A new file is opened as wished, whatever its mode says; one that is there as [`Open`] would.
/// One that is there but lives in another slot is `Exists` also without `exclusive`: it is looked
/// up and opened at its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// The directory.
    pub parent: InodeId,
    /// The new entry.
    pub name: Name,
    /// Permission bits, and the umask that the caller applies to them.
    pub mode: NewMode,
    /// Fail when the name is taken.
    pub exclusive: bool,
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Where the bytes shall lie; `None`: the server decides, by `wish`.
    pub layout: Option<Layout>,
    /// What the creator wants of the layout; without a wish the directory decides, then the pool.
    pub wish: LayoutWish,
    /// Named bytes.
    pub named: FileAttributes,
}

/// What a creator wants of a layout that the server chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutWish {
    /// What is `Some`.
    pub hints: LayoutHints,
    /// The stripe unit's bytes at the least, wherever the unit comes from.
    pub stripe_unit_min: u64,
    /// Servers that do not answer the creator at present: no lane shall lie there.
    pub silent: Vec<ServerId>,
}

/// An open inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Everything about it.
    pub info: InodeInfo,
    /// Whether this request made it.
    pub created: bool,
    /// What proves to the file's lanes for what the session of a host has it open; others need none.
    pub permit: Option<Permit>,
    /// What of this the session may rely on by leases, as by a `LeaseName` at this moment: after a `Create` by
    /// a session that receives recalls.
    pub leased: EntryLeased,
    /// The directory as it is then, by a lease, likewise.
    pub parent: Option<Attributes>,
}

impl Opened {
    /// Only a session that makes a name gets more than what it opens.
    fn is_without_leases(&self) -> bool {
        self.leased == EntryLeased::default() && self.parent.is_none()
    }
}

/// Leases that come with an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryLeased {
    /// The directory's names are leased.
    pub names: bool,
    /// The attributes that came are leased.
    pub attributes: bool,
}

impl Request for Create {
    const KIND: Kind = Kind::Create;
    type Reply = Opened;

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_possible()
            && reply.info.attributes.kind != FileKind::Directory
            && is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

/// Opens the file that has a name, where its inode lives with the entry: else `Exists`, and `Loop` for a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenEntry {
    /// The directory.
    pub parent: InodeId,
    /// The entry.
    pub name: Name,
    /// Check that the caller may read.
    pub read: bool,
    /// Check that the caller may write.
    pub write: bool,
}

impl Request for OpenEntry {
    const KIND: Kind = Kind::OpenEntry;
    type Reply = Opened;

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_possible()
            && reply.info.attributes.kind != FileKind::Directory
            && reply.is_without_leases()
    }
}

/// Cancels an earlier mutation of the session in this slot: it is not done if it comes after this. For
/// mutations that open an inode that the caller cannot name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelChange {
    /// Its number.
    pub sequence: Sequence,
}

/// What the mutation had come to before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeCancelled {
    /// The inode that it has opened.
    pub opened: Option<InodeId>,
}

impl Request for CancelChange {
    const KIND: Kind = Kind::CancelChange;
    type Reply = ChangeCancelled;
}

/// Opens an inode for the session: it lives until the session closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The inode.
    pub inode: InodeId,
    /// Check that the caller may read.
    pub read: bool,
    /// Check that the caller may write.
    pub write: bool,
    /// Check that the caller may run it: a kernel opens it for execution, and shows its bytes to no user who
    /// may not read them. For the users of a host its kernel is trusted to do so; for others only where the
    /// caller is the owner of the file, who may change its mode.
    pub run: bool,
}

impl Request for Open {
    const KIND: Kind = Kind::Open;
    type Reply = Opened;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_of(self.inode) && reply.is_without_leases()
    }
}

/// Passthrough of a file to a kernel: notifies the home that the session's kernel will read and map the file
/// without asking, until the session closes the inode. The session has it open; its bytes are in one lane. A
/// repeated request is the same passthrough, for writing as well where either said so.
///
/// When the session ends without having closed the inode, the home assumes for ever that a kernel may still
/// change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginPassthrough {
    /// The file.
    pub inode: InodeId,
    /// The kernel may change the bytes.
    pub write: bool,
    /// It does not come about: the session's kernel does not have the file.
    pub over: bool,
}

/// What the file is, for [`crate::chunk::GrantPassthrough`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassthroughBegun {
    /// Number of the passthrough; a later one has a larger number.
    pub number: u64,
    /// Its size and generation.
    pub size: SizeInfo,
}

impl Request for BeginPassthrough {
    const KIND: Kind = Kind::BeginPassthrough;
    type Reply = PassthroughBegun;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &PassthroughBegun) -> bool {
        is_counted(reply.number) && reply.size.is_possible()
    }
}

/// Gives back the session's reference to an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Close {
    /// The inode.
    pub inode: InodeId,
    /// When the session last wrote to it, if it did.
    pub modified: Option<Timestamp>,
    /// Its attributes are wanted, with a lease: a program that has written a file looks at it next.
    pub leases: bool,
}

/// The inode after a close.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Its attributes with a lease, where they are wanted and there is one.
    pub attributes: Option<Attributes>,
}

impl Request for Close {
    const KIND: Kind = Kind::Close;
    type Reply = Closed;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Closed) -> bool {
        let is_it = |told: &Attributes| self.leases && told.is_of(self.inode);
        reply.attributes.as_ref().is_none_or(is_it)
    }
}

/// Creates a file without a name in the slot of a directory, and opens it for the session: it lives until its last
/// close, unless a `Link` gives it a name before (`O_TMPFILE`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUnnamed {
    /// The directory, in which the caller must be allowed to make files.
    pub parent: InodeId,
    /// Permission bits, and the umask that the caller applies to them.
    pub mode: NewMode,
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Where the bytes shall lie; `None`: the server chooses, by the wish.
    pub layout: Option<Layout>,
    /// What the server is to choose a layout by.
    pub wish: LayoutWish,
}

impl Request for CreateUnnamed {
    const KIND: Kind = Kind::CreateUnnamed;
    type Reply = Opened;

    fn slot(&self, _named: Slot) -> Slot {
        self.parent.slot()
    }

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_possible() && reply.info.attributes.kind == FileKind::File && reply.is_without_leases()
    }
}

//! The entries of directories: looking up, listing, making, removing and renaming them.

use ramlace_base::{InodeId, Name, Slot, limits};
use serde::{Deserialize, Serialize};

use crate::types::numbered;
use crate::{Attributes, FileKind, Kind, Request};

/// The entry `name` of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// The directory.
    pub parent: InodeId,
    /// The entry.
    pub name: Name,
}

/// Where an entry leads. A directory may live in another slot: then only its inode is known here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Its attributes, when its home is the slot that answers.
    pub attributes: Option<Attributes>,
}

impl Found {
    pub(crate) fn is_possible(&self) -> bool {
        let told = |attributes: &Attributes| attributes.is_of(self.inode) && attributes.kind == self.kind;
        self.attributes.as_ref().is_none_or(told)
    }
}

impl Request for Lookup {
    const KIND: Kind = Kind::Lookup;
    type Reply = Found;

    fn fits(&self, reply: &Found) -> bool {
        reply.is_possible()
    }
}

/// The mode of what is made. The umask counts where the directory hands no access list down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMode {
    /// Permission bits, before the umask.
    pub mode: u16,
    /// Bits that are taken away.
    pub umask: u16,
}

impl From<u16> for NewMode {
    /// A mode that counts as it is.
    fn from(mode: u16) -> NewMode {
        NewMode { mode, umask: 0 }
    }
}

/// Creates a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symlink {
    /// The directory.
    pub parent: InodeId,
    /// The new entry.
    pub name: Name,
    /// Where it points; 1 to 4095 bytes without NUL.
    pub target: Vec<u8>,
}

/// An entry was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What it leads to.
    pub attributes: Attributes,
    /// The directory as it is then, by a lease, for a session that receives recalls.
    pub parent: Option<Attributes>,
}

impl Request for Symlink {
    const KIND: Kind = Kind::Symlink;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

/// The target of a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLink {
    /// The link.
    pub inode: InodeId,
}

impl Request for ReadLink {
    const KIND: Kind = Kind::ReadLink;
    type Reply = Vec<u8>;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Vec<u8>) -> bool {
        reply.len() <= limits::SYMLINK_BYTES_MAX
    }
}

/// Creates a directory; its inode lives in a slot that the server chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDirectory {
    /// The directory it is made in.
    pub parent: InodeId,
    /// The new entry.
    pub name: Name,
    /// Permission bits, and the umask that the caller applies to them.
    pub mode: NewMode,
}

impl Request for MakeDirectory {
    const KIND: Kind = Kind::MakeDirectory;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

/// Removes an empty directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveDirectory {
    /// The directory it is in.
    pub parent: InodeId,
    /// The entry.
    pub name: Name,
}

impl Request for RemoveDirectory {
    const KIND: Kind = Kind::RemoveDirectory;
    type Reply = ();
}

/// Removes an entry that is no directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlink {
    /// The directory.
    pub parent: InodeId,
    /// The entry.
    pub name: Name,
}

/// An entry was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlinked {
    /// The directory as it is then, by a lease, for a session that receives recalls.
    pub parent: Option<Attributes>,
    /// What the entry led to; `None` where it is an answer from before.
    pub inode: Option<InodeId>,
}

impl Request for Unlink {
    const KIND: Kind = Kind::Unlink;
    type Reply = Unlinked;

    fn fits(&self, reply: &Unlinked) -> bool {
        is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

/// Whether what is said of a directory, if anything is, can be true of this one.
pub(crate) fn is_of_directory(told: Option<&Attributes>, directory: InodeId) -> bool {
    told.is_none_or(|told| told.is_of(directory) && told.kind == FileKind::Directory)
}

/// Entries of a directory in the order of their cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDirectory {
    /// The directory.
    pub inode: InodeId,
    /// Entries with a larger cookie than this; 0 for the first.
    pub after: u64,
    /// At most so many; the server may answer fewer.
    pub entries_max: u32,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// Its place in the directory: 60 bits of keyed hash and 3 bits against collisions.
    pub cookie: u64,
    /// Its name.
    pub name: Name,
    /// Where it leads.
    pub inode: InodeId,
    /// What that is.
    pub kind: FileKind,
    /// The attributes, when the inode lives in the slot that answers.
    pub attributes: Option<Attributes>,
}

impl DirectoryEntry {
    pub(crate) fn is_possible(&self) -> bool {
        self.attributes.as_ref().is_none_or(|told| told.is_of(self.inode))
    }
}

/// Some entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryPage {
    /// The entries.
    pub entries: Vec<DirectoryEntry>,
    /// Nothing follows them.
    pub end: bool,
    /// The cookie after which the directory continues, perhaps in another slot.
    pub next: u64,
}

impl Request for ReadDirectory {
    const KIND: Kind = Kind::ReadDirectory;
    type Reply = DirectoryPage;

    fn fits(&self, reply: &DirectoryPage) -> bool {
        // Each page comes closer to the end.
        let cookies = std::iter::once(self.after).chain(reply.entries.iter().map(|entry| entry.cookie));
        cookies.is_sorted_by(|one, next| one < next)
            && (reply.end || reply.next > self.after)
            && reply.entries.len() <= self.entries_max as usize
            && reply.entries.iter().all(DirectoryEntry::is_possible)
    }
}

/// Gives an entry another name, in this directory or another. Renaming onto itself, or onto another
/// link to the same inode, does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// The directory it is in.
    pub parent: InodeId,
    /// Its name.
    pub name: Name,
    /// The directory it goes to.
    pub new_parent: InodeId,
    /// The slot of the new entry: of the directory, or of one of its partitions.
    pub new_slot: Slot,
    /// Its name there.
    pub new_name: Name,
    /// What happens to an entry that has this name.
    pub mode: RenameMode,
}

numbered! {
    /// What a rename does with an entry that has the new name.
    RenameMode {
        /// Replaces it: a file by what is no directory, an empty directory by a directory.
        Replace = 1,
        /// Fails with `Exists`: `RENAME_NOREPLACE`.
        Keep = 2,
        /// Gives it the old name; it must be there: `RENAME_EXCHANGE`.
        Exchange = 3,
    }
}

impl Request for Rename {
    const KIND: Kind = Kind::Rename;
    type Reply = ();
}

/// Makes one more entry for a file or a symbolic link. The request goes to the directory's slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The directory.
    pub parent: InodeId,
    /// The new entry.
    pub name: Name,
    /// Where it leads.
    pub inode: InodeId,
}

impl Request for Link {
    const KIND: Kind = Kind::Link;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_of(self.inode) && is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

/// Creates a named pipe, a socket's address or a device. Devices are the super-user's to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeNode {
    /// The directory.
    pub parent: InodeId,
    /// The new entry.
    pub name: Name,
    /// What it shall be: one of the special kinds.
    pub kind: FileKind,
    /// Permission bits, and the umask that the caller applies to them.
    pub mode: NewMode,
    /// A device's numbers; 0 for others.
    pub device: u32,
}

impl Request for MakeNode {
    const KIND: Kind = Kind::MakeNode;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_of_directory(reply.parent.as_ref(), self.parent)
    }
}

//! Family 0x03: the namespace. A request goes to the slot of the inode it names first; one that names
//! an entry of a directory, or lists or describes a directory, goes to the slot that its header names:
//! a directory may be spread over several.

use ramlace_base::{Generation, InodeId, Name, Sequence, ServerId, Slot, Timestamp, limits};
use serde::{Deserialize, Serialize};

use crate::possible::{is_counted, is_generation, is_size};
use crate::types::numbered;
use crate::{Attributes, FileAttributes, FileKind, Kind, Layout, LayoutHints, Permit, Request};

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

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAttributes {
    /// The inode.
    pub inode: InodeId,
}

/// Asks a server for the attributes of inodes that live with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAttributesMany {
    /// At most [`ramlace_base::limits::READDIR_ENTRIES_MAX`].
    pub inodes: Vec<InodeId>,
}

/// Attributes in the order of the question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManyAttributes {
    /// `None`: it is gone, or not with this server.
    pub attributes: Vec<Option<Attributes>>,
}

impl Request for GetAttributesMany {
    const KIND: Kind = Kind::GetAttributesMany;
    type Reply = ManyAttributes;

    fn fits(&self, reply: &ManyAttributes) -> bool {
        let told = |(asked, told): (&InodeId, &Option<Attributes>)| {
            told.as_ref().is_none_or(|told| told.is_of(*asked))
        };
        reply.attributes.len() == self.inodes.len() && self.inodes.iter().zip(&reply.attributes).all(told)
    }
}

/// Attributes, layout and named bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeInfo {
    /// Attributes.
    pub attributes: Attributes,
    /// A file's layout; `None` for others.
    pub layout: Option<Layout>,
    /// What a directory hands down; of a file its own mode alone; empty for others.
    pub hints: LayoutHints,
    /// Named bytes from the file's creation.
    pub named: FileAttributes,
    /// The slot of each partition of a directory that is spread over slots; empty for all others.
    /// The attributes are then of the entries in the slot that answers alone.
    pub partitions: Vec<Slot>,
    /// A file's bytes live with its inode, and its lanes are empty: see [`crate::inline`].
    pub inline: bool,
    /// A kernel may change the bytes at any moment, and nobody hears of it: see [`HandOver`].
    pub handed: bool,
}

impl InodeInfo {
    pub(crate) fn is_possible(&self) -> bool {
        self.attributes.is_possible()
            && self.layout.is_some() == (self.attributes.kind == FileKind::File)
            && self.layout.is_none_or(|layout| layout.is_possible())
            && match self.attributes.kind {
                FileKind::Directory => true,
                FileKind::File => self.hints.is_of_file(),
                _ => self.hints == LayoutHints::default(),
            }
            && matches!(self.partitions.len(), 0 | limits::DIRECTORY_PARTITIONS)
    }

    pub(crate) fn is_of(&self, inode: InodeId) -> bool {
        self.attributes.inode == inode && self.is_possible()
    }
}

impl Request for GetAttributes {
    const KIND: Kind = Kind::GetAttributes;
    type Reply = InodeInfo;

    fn fits(&self, reply: &InodeInfo) -> bool {
        reply.is_of(self.inode)
    }
}

/// What the partitions of a spread directory add to what its home says. The request goes to the first of
/// the slots, whose server answers for all of them that it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetPartitions {
    /// The directory.
    pub inode: InodeId,
    /// Slots other than its home: 1 to [`ramlace_base::limits::DIRECTORY_PARTITIONS`].
    pub slots: Vec<Slot>,
}

/// What some partitions say together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionsInfo {
    /// Counts of entries and directories, and the latest times.
    pub attributes: Attributes,
    /// The slots that it is said of.
    pub slots: Vec<Slot>,
}

impl Request for GetPartitions {
    const KIND: Kind = Kind::GetPartitions;
    type Reply = PartitionsInfo;

    fn fits(&self, reply: &PartitionsInfo) -> bool {
        reply.attributes.is_of(self.inode) && reply.slots.iter().all(|slot| self.slots.contains(slot))
    }
}

/// Changes what is `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttributes {
    /// The inode.
    pub inode: InodeId,
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub accessed: Option<Timestamp>,
    /// Last change of content.
    pub modified: Option<Timestamp>,
    /// Why the times are set.
    pub times: TimeReason,
}

impl SetAttributes {
    /// Changes nothing: to begin with.
    #[must_use]
    pub const fn nothing(inode: InodeId) -> SetAttributes {
        SetAttributes {
            inode,
            mode: None,
            uid: None,
            gid: None,
            accessed: None,
            modified: None,
            times: TimeReason::Chosen,
        }
    }
}

numbered! {
    /// Why times are set: it decides who may.
    TimeReason {
        /// Somebody chose them: the owner's right.
        Chosen = 1,
        /// They are the present moment: also for whom the mode lets write.
        Now = 2,
        /// The content was changed then: also for whom the mode lets write, or who has it open for that.
        Wrote = 3,
        /// The same, and the host's kernel says that the writer may not keep set-id bits.
        WroteAndDropsSetId = 4,
    }
}

impl Request for SetAttributes {
    const KIND: Kind = Kind::SetAttributes;
    type Reply = Attributes;

    fn fits(&self, reply: &Attributes) -> bool {
        reply.is_of(self.inode)
    }
}

/// Sets a file's size. Answered when every lane that can be reached has heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncate {
    /// The file.
    pub inode: InodeId,
    /// Its new size.
    pub size: u64,
    /// The generation in which the sender has taken memory up to the new size: without it a file that a kernel maps is
    /// not made longer (`Handed`).
    pub allocated: Option<Generation>,
}

impl Request for Truncate {
    const KIND: Kind = Kind::Truncate;
    type Reply = Attributes;

    fn fits(&self, reply: &Attributes) -> bool {
        reply.is_of(self.inode)
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
    /// Permission bits, and what of them the caller's umask takes away.
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
    /// The stripe unit's bytes at the least, whoever has set it.
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
    /// What of this the session may believe by leases, as by a `LeaseName` at this moment: after a `Create` by a session that
    /// hears of recalls.
    pub leased: EntryLeased,
    /// The directory as it is then, by a lease, likewise.
    pub parent: Option<Attributes>,
}

impl Opened {
    /// Only a session that makes a name is told more than what it opens.
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
            && is_directory_told(reply.parent.as_ref(), self.parent)
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

/// An earlier mutation of the session in this slot is given up: it is not done if it comes after this. For what opens an inode
/// that its caller cannot name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUp {
    /// Its number.
    pub sequence: Sequence,
}

/// What the mutation had come to before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// The inode that it has opened.
    pub opened: Option<InodeId>,
}

impl Request for GiveUp {
    const KIND: Kind = Kind::GiveUp;
    type Reply = GivenUp;
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
    /// Check that the caller may run it: a kernel opens it for execution, and shows its bytes to nobody who may not read
    /// them. Of the users of a host its kernel is believed so; of others the owner of the file, who may change its mode.
    pub run: bool,
}

impl Request for Open {
    const KIND: Kind = Kind::Open;
    type Reply = Opened;

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_of(self.inode) && reply.is_without_leases()
    }
}

/// Tells the home that the session's kernel will read and map the file without asking, until the session closes the
/// inode. The session has it open; its bytes are in one lane. Again: it is the same handover, for writing as well where
/// either said so.
///
/// When the session ends without having closed the inode, a kernel may still change it: that is believed for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The file.
    pub inode: InodeId,
    /// The kernel may change the bytes.
    pub write: bool,
    /// It does not come about: the session's kernel does not have the file.
    pub over: bool,
}

/// What the file is, for [`crate::chunk::HandLane`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// Number of the handover; a later one has a larger number.
    pub number: u64,
    /// Its size and generation.
    pub size: SizeInfo,
}

impl Request for HandOver {
    const KIND: Kind = Kind::HandOver;
    type Reply = HandedOver;

    fn fits(&self, reply: &HandedOver) -> bool {
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
}

impl Request for Close {
    const KIND: Kind = Kind::Close;
    type Reply = ();
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
    /// The directory as it is then, by a lease, for a session that hears of recalls.
    pub parent: Option<Attributes>,
}

impl Request for Symlink {
    const KIND: Kind = Kind::Symlink;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_directory_told(reply.parent.as_ref(), self.parent)
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
    /// Permission bits, and what of them the caller's umask takes away.
    pub mode: NewMode,
}

impl Request for MakeDirectory {
    const KIND: Kind = Kind::MakeDirectory;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_directory_told(reply.parent.as_ref(), self.parent)
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
    /// The directory as it is then, by a lease, for a session that hears of recalls.
    pub parent: Option<Attributes>,
    /// What the entry led to; `None` where it is an answer from before.
    pub inode: Option<InodeId>,
}

impl Request for Unlink {
    const KIND: Kind = Kind::Unlink;
    type Reply = Unlinked;

    fn fits(&self, reply: &Unlinked) -> bool {
        is_directory_told(reply.parent.as_ref(), self.parent)
    }
}

/// Whether what is told of a directory, if anything is, can be this one's.
pub(crate) fn is_directory_told(told: Option<&Attributes>, directory: InodeId) -> bool {
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

/// Some entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryPage {
    /// The entries.
    pub entries: Vec<DirectoryEntry>,
    /// Nothing follows them.
    pub end: bool,
    /// The cookie behind which the directory goes on, perhaps in another slot.
    pub next: u64,
}

impl Request for ReadDirectory {
    const KIND: Kind = Kind::ReadDirectory;
    type Reply = DirectoryPage;

    fn fits(&self, reply: &DirectoryPage) -> bool {
        let told =
            |entry: &DirectoryEntry| entry.attributes.as_ref().is_none_or(|told| told.is_of(entry.inode));
        // Each page comes closer to the end.
        let cookies = std::iter::once(self.after).chain(reply.entries.iter().map(|entry| entry.cookie));
        cookies.is_sorted_by(|one, next| one < next)
            && (reply.end || reply.next > self.after)
            && reply.entries.len() <= self.entries_max as usize
            && reply.entries.iter().all(told)
    }
}

/// The file is at least `size` long: sent after the data has arrived in its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// The file.
    pub inode: InodeId,
    /// The writer's generation; Retry when the file was truncated meanwhile.
    pub generation: Generation,
    /// The least size.
    pub size: u64,
    /// From here on to `size` all bytes were written, or have memory.
    pub from: u64,
}

/// A part of the file has got memory, or may have lost it, and its size stays: sent after the lanes have done it. The home
/// knows of a file without holes that it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoteMemory {
    /// The file.
    pub inode: InodeId,
    /// The generation in which it was done.
    pub generation: Generation,
    /// Where the part begins.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// It has memory now, else it may have none.
    pub taken: bool,
}

impl Request for NoteMemory {
    const KIND: Kind = Kind::NoteMemory;
    type Reply = ();
}

/// What the home knows about a file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeInfo {
    /// Published size.
    pub size: u64,
    /// The file's generation.
    pub generation: Generation,
}

impl SizeInfo {
    pub(crate) fn is_possible(&self) -> bool {
        is_size(self.size) && is_generation(self.generation)
    }
}

impl Request for Extend {
    const KIND: Kind = Kind::Extend;
    type Reply = SizeInfo;

    fn fits(&self, reply: &SizeInfo) -> bool {
        reply.is_possible()
    }
}

/// Reserves the next `length` bytes at the end of a file for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveAppend {
    /// The file.
    pub inode: InodeId,
    /// Bytes.
    pub length: u64,
}

/// Where to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendReserved {
    /// Offset of the reserved bytes.
    pub offset: u64,
    /// The generation to write with.
    pub generation: Generation,
}

impl Request for ReserveAppend {
    const KIND: Kind = Kind::ReserveAppend;
    type Reply = AppendReserved;

    fn fits(&self, reply: &AppendReserved) -> bool {
        is_generation(reply.generation) && reply.offset.checked_add(self.length).is_some_and(is_size)
    }
}

/// The reserved bytes are written (or given up: then they stay a hole).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishAppend {
    /// The file.
    pub inode: InodeId,
    /// Offset of the reservation.
    pub offset: u64,
    /// Not all of its bytes were written.
    pub failed: bool,
}

impl Request for FinishAppend {
    const KIND: Kind = Kind::FinishAppend;
    type Reply = SizeInfo;

    fn fits(&self, reply: &SizeInfo) -> bool {
        reply.is_possible()
    }
}

/// Sets what files made in a directory inherit; or a file's own mode, while nobody has it open (else `Busy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLayout {
    /// The directory, or the file.
    pub inode: InodeId,
    /// What a directory hands down; of a file the mode alone.
    pub hints: LayoutHints,
}

impl Request for SetLayout {
    const KIND: Kind = Kind::SetLayout;
    type Reply = ();
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
        reply.attributes.is_of(self.inode) && is_directory_told(reply.parent.as_ref(), self.parent)
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
    /// Permission bits, and what of them the caller's umask takes away.
    pub mode: NewMode,
    /// A device's numbers; 0 for others.
    pub device: u32,
}

impl Request for MakeNode {
    const KIND: Kind = Kind::MakeNode;
    type Reply = Made;

    fn fits(&self, reply: &Made) -> bool {
        reply.attributes.is_possible() && is_directory_told(reply.parent.as_ref(), self.parent)
    }
}

/// Creates a file without a name in the slot of a directory, and opens it for the session: it lives until its last
/// close, unless a `Link` gives it a name before (`O_TMPFILE`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUnnamed {
    /// The directory, in which the caller must be allowed to make files.
    pub parent: InodeId,
    /// Permission bits, and what of them the caller's umask takes away.
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

    fn fits(&self, reply: &Opened) -> bool {
        reply.info.is_possible() && reply.info.attributes.kind == FileKind::File && reply.is_without_leases()
    }
}

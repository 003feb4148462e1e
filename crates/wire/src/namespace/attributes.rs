//! What an inode is: its attributes, its layout and its partitions, and changes of them.

use ramlace_base::{InodeId, Slot, Timestamp, limits};
use serde::{Deserialize, Serialize};

use crate::types::numbered;
use crate::{Attributes, FileAttributes, FileKind, Kind, Layout, LayoutHints, Request};

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

/// Attributes in the order of the request.
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
    /// A kernel may change the bytes at any moment, without notice: see [`super::BeginPassthrough`].
    pub may_change_unnoticed: bool,
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
    /// Why times are set: it decides which callers may set them.
    TimeReason {
        /// A program chose them: the owner's right.
        Chosen = 1,
        /// They are the present moment: also allowed to callers that may write by the mode.
        Now = 2,
        /// The content was changed then: also allowed to callers that may write by the mode, or have it open
        /// for writing.
        Wrote = 3,
        /// The same, and the host's kernel says that the writer may not keep set-id bits.
        WroteAndDropsSetId = 4,
    }
}

impl Request for SetAttributes {
    const KIND: Kind = Kind::SetAttributes;
    type Reply = Attributes;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Attributes) -> bool {
        reply.is_of(self.inode)
    }
}

/// Sets what files made in a directory inherit; or a file's own mode, while no session has it open (else
/// `Busy`).
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

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

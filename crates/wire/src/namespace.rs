//! Family 0x03: the namespace. A request goes to the slot of the inode it names first; one that names
//! an entry of a directory, or lists or describes a directory, goes to the slot that its header names:
//! a directory may be spread over several.

mod attributes;
mod entries;
mod open;
mod sizes;

pub use attributes::{
    GetAttributes, GetAttributesMany, GetPartitions, InodeInfo, ManyAttributes, PartitionsInfo,
    SetAttributes, SetLayout, TimeReason,
};
pub(crate) use entries::is_directory_told;
pub use entries::{
    DirectoryEntry, DirectoryPage, Found, Link, Lookup, Made, MakeDirectory, MakeNode, NewMode,
    ReadDirectory, ReadLink, RemoveDirectory, Rename, RenameMode, Symlink, Unlink, Unlinked,
};
pub use open::{
    Close, Create, CreateUnnamed, EntryLeased, GiveUp, GivenUp, HandOver, HandedOver, LayoutWish, Open,
    OpenEntry, Opened,
};
pub use sizes::{AppendReserved, Extend, FinishAppend, NoteMemory, ReserveAppend, SizeInfo, Truncate};

//! The inodes of a slot.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Result, Timestamp, numbered_variants};
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::namespace::InodeInfo;
use ramlace_wire::xattrs::XattrName;
use ramlace_wire::{AccessList, AccessLists, Attributes, Credentials, FileKind, LayoutHints, Owner};
use serde::{Deserialize, Serialize};

use crate::state::directory::Directory;
use crate::state::file::File;

/// A file, a directory, a symbolic link, a pipe, a socket or a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// Sessions that have it open.
    pub opens: u32,
    /// An operation that is not decided has raised or lowered `links`.
    pub held: bool,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    /// Never had a name, and may get one while it is open.
    pub linkable: bool,
    pub xattrs: Option<Box<Xattrs>>,
    /// The entries beyond the mode.
    pub lists: Option<Box<AccessLists>>,
    pub body: Body,
}

/// The state that depends on the kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    File(File),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Special(Special),
}

numbered_variants! { Body:
    0 File(body);
    1 Directory(body);
    2 Symlink(body);
    3 Special(body);
}

/// A pipe, a socket or a device: a name that means something to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Special {
    pub kind: FileKind,
    pub device: u32,
}

/// The extended attributes of an inode that has some.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Xattrs(pub BTreeMap<XattrName, Box<[u8]>>);

/// One of an inode's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Access,
    Default,
}

/// The purpose of an access: bits of a mode.
pub(crate) mod right {
    pub const READ: u16 = 4;
    pub const WRITE: u16 = 2;
    /// Of a directory.
    pub const SEARCH: u16 = 1;
    /// Of a file.
    pub const RUN: u16 = 1;
}

/// Permission bits, set-id bits and the sticky bit.
pub(crate) const MODE_MAX: u16 = 0o7777;
pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
pub(crate) const STICKY: u16 = 0o1000;

impl Inode {
    pub(crate) fn new(mode: u16, owner: Owner, now: Timestamp, body: Body) -> Inode {
        Inode {
            mode,
            uid: owner.uid,
            gid: owner.gid,
            links: if matches!(body, Body::Directory(_)) { 2 } else { 1 },
            opens: 0,
            held: false,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            linkable: false,
            xattrs: None,
            lists: None,
            body,
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(special) => special.kind,
        }
    }

    pub(crate) fn attributes(&self, inode: InodeId) -> Attributes {
        let (size, generation) = match &self.body {
            Body::File(file) => (file.size, file.generation),
            Body::Directory(directory) => (directory.entries.len(), Generation::FIRST),
            Body::Symlink(target) => (target.len() as u64, Generation::FIRST),
            Body::Special(_) => (0, Generation::FIRST),
        };
        let device = if let Body::Special(special) = &self.body { special.device } else { 0 };
        Attributes {
            inode,
            kind: self.kind(),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            size,
            device,
            generation,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
            xattrs: self.xattrs.is_some() || self.lists.is_some(),
            allocated: match &self.body {
                Body::File(file) => file.allocated(),
                Body::Symlink(target) => Some(target.len() as u64),
                Body::Directory(_) | Body::Special(_) => Some(0),
            },
        }
    }

    pub(crate) fn info(&self, inode: InodeId) -> InodeInfo {
        let mut info = InodeInfo {
            attributes: self.attributes(inode),
            layout: None,
            hints: LayoutHints::default(),
            named: Vec::new(),
            partitions: Vec::new(),
            inline: false,
            may_change_unnoticed: false,
        };
        match &self.body {
            Body::File(file) => {
                info.layout = Some(file.layout);
                info.hints = LayoutHints::of_file(file.rules);
                info.inline = file.place() != BytesPlace::Lanes;
                info.named = file.named.as_deref().cloned().unwrap_or_default();
            }
            Body::Directory(directory) => {
                info.hints = directory.hints;
                info.partitions =
                    directory.spread.as_ref().map(|spread| spread.partitions.to_vec()).unwrap_or_default();
            }
            Body::Symlink(_) | Body::Special(_) => {}
        }
        info
    }

    pub(crate) fn directory(&self, inode: InodeId) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::new(ErrorKind::NotDirectory, format!("inode {inode} is no directory"))),
        }
    }

    pub(crate) fn file(&self, inode: InodeId) -> Result<&File> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => {
                Err(Error::new(ErrorKind::IsDirectory, format!("inode {inode} is a directory, not a file")))
            }
            Body::Symlink(_) | Body::Special(_) => Err(Error::new(
                ErrorKind::Invalid,
                format!("inode {inode} is {}, not a file", self.kind().described()),
            )),
        }
    }

    pub(crate) fn list(&self, which: Which) -> Option<&AccessList> {
        let lists = self.lists.as_ref()?;
        match which {
            Which::Access => lists.access.as_ref(),
            Which::Default => lists.default.as_ref(),
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }

    /// Whether the mode, or the access list, gives all of these rights; the super-user has them always.
    pub(crate) fn allows(&self, who: &Credentials, rights: u16) -> bool {
        if let Some(list) = self.list(Which::Access) {
            return who.uid == 0 || list.allows(self.owner(), who, rights);
        }
        let shift = match () {
            () if who.uid == self.uid => 6,
            () if who.in_group(self.gid) => 3,
            () => 0,
        };
        who.uid == 0 || (self.mode >> shift) & rights == rights
    }

    pub(crate) fn check_allows(&self, who: &Credentials, rights: u16) -> Result<()> {
        if self.allows(who, rights) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "user {} may not {}, which belongs to user {} with mode {:04o}{}",
                who.uid,
                self.shown(rights),
                self.uid,
                self.mode,
                if self.list(Which::Access).is_some() { " and an access list" } else { "" }
            ),
        ))
    }

    /// The refused rights, as text that follows the path that a client names. Rights to search concern the
    /// directories before the last name of a path.
    fn shown(&self, rights: u16) -> String {
        let words = [(right::READ, "read"), (right::WRITE, "write"), (right::SEARCH, "search")];
        let named: Vec<&str> =
            words.iter().filter(|(bit, _)| rights & bit != 0).map(|(_, word)| *word).collect();
        let what = match self.kind() {
            FileKind::Directory if rights == right::SEARCH => "a directory on the way",
            FileKind::Directory => "the directory",
            _ => "the file",
        };
        format!("{} {what}", named.join(" and "))
    }

    /// Changing mode, owner and layout is the owner's business, whatever the mode says.
    pub(crate) fn check_owner(&self, who: &Credentials) -> Result<()> {
        if who.uid == 0 || who.uid == self.uid {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotPermitted,
            format!("it belongs to user {}, not to user {}", self.uid, who.uid),
        ))
    }

    /// Which user must own an entry of this directory for the caller to remove it, where the directory is
    /// sticky.
    pub(crate) fn sticky_owner(&self, who: &Credentials) -> Option<u32> {
        (self.mode & STICKY != 0 && who.uid != 0 && who.uid != self.uid).then_some(who.uid)
    }

    /// Whether the inode belongs to the user that a sticky directory asks for.
    pub(crate) fn check_sticky(&self, owner: Option<u32>) -> Result<()> {
        match owner {
            Some(owner) if owner != self.uid => Err(Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "it belongs to user {}; user {owner} may not remove it from a sticky directory",
                    self.uid
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whether no operation under way changes the count of links.
    pub(crate) fn check_not_held(&self, inode: InodeId) -> Result<()> {
        if self.held {
            return Err(Error::new(
                ErrorKind::Retry,
                format!("an entry of inode {inode} is just being made or removed"),
            ));
        }
        Ok(())
    }

    /// Something has changed for an operation that was decided at `when`: perhaps before the latest change here.
    pub(crate) fn note_change(&mut self, when: Timestamp) {
        self.changed = when.behind(self.changed);
    }

    /// The content has changed.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        self.modified = now;
        self.changed = now;
    }
}

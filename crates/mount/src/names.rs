//! Entries: looking them up, making and removing them.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_client::{RenameMode, Rights};
use ramlace_fuse::Entry;
use ramlace_wire::leases::NameLeased;
use ramlace_wire::namespace::{Create, MakeNode, NewMode};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints};

use crate::attributes::entry;
use crate::filesystem::PoolFileSystem;
use crate::leases::{Asked, Believed, Offered};

/// Permission bits, without the file's type.
const PERMISSIONS: u32 = 0o7777;

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSIONS) as u16
}

/// The mode of what is made, and the umask of the program that makes it.
pub(crate) fn new_mode(mode: u32, umask: u32) -> NewMode {
    NewMode { mode: permissions(mode), umask: permissions(umask) }
}

pub(crate) fn name_of(bytes: &[u8]) -> Result<Name> {
    Name::new(bytes)
}

impl PoolFileSystem {
    pub(crate) fn lookup(&self, parent_node: u64, name: &[u8], thread: u32) -> Result<Entry> {
        let parent = self.nodes.inode(parent_node);
        let asked = self.leases.ask();
        let NameLeased { found, names, attributes: leased } =
            self.raw().lease_name(parent, &name_of(name)?, self.leases.names)?;
        let (attributes, leased) = match found.attributes {
            // What this mount has written and not told anybody yet is told before the home is asked. And what a file with
            // holes takes its lanes know.
            Some(attributes)
                if attributes.allocated.is_some() && !self.handles.is_written_here(found.inode) =>
            {
                (attributes, leased)
            }
            _ => self.attributes_of_entry(found.inode)?,
        };
        self.handles.note(&attributes);
        self.removed.heard(&attributes);
        let leased = leased && !self.handed.may_be_stored_into(found.inode);
        if attributes.kind == FileKind::Directory {
            return Ok(self.found_directory(
                asked,
                (parent_node, name, names),
                (&attributes, leased),
                thread,
            ));
        }
        let believed = self.leases.entry(asked, (parent, names), Offered::of(&attributes, leased));
        Ok(entry(&attributes, believed))
    }

    /// The kernel may have a directory elsewhere: see [`crate::nodes`].
    fn found_directory(
        &self,
        asked: Asked,
        (parent, name, names): (u64, &[u8], bool),
        (attributes, leased): (&Attributes, bool),
        thread: u32,
    ) -> Entry {
        // Counted before a number is chosen for it, so that nothing is forgotten in between.
        self.leases.count(attributes.inode, 1);
        let told = self.nodes.found(parent, name, attributes.inode, thread);
        let offered = Offered::of(attributes, leased && told.leased);
        let mut believed = self.leases.entry(asked, (self.nodes.inode(parent), names), offered);
        self.leases.count(attributes.inode, -1);
        if told.unsure {
            believed.attributes = Duration::ZERO;
        }
        Entry { node: told.node, ..entry(attributes, believed) }
    }

    /// Attributes of an inode that an entry led to a moment ago, and whether they are leased.
    fn attributes_of_entry(&self, inode: InodeId) -> Result<(Attributes, bool)> {
        match self.raw().lease_attributes(inode, false) {
            // It was removed between the two requests.
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::new(ErrorKind::NotFound, "it was removed just now"))
            }
            leased => {
                let mut leased = leased?;
                leased.info.attributes.allocated = Some(self.raw().allocated(&leased.info)?);
                Ok((leased.info.attributes, leased.attributes))
            }
        }
    }

    /// An entry is made here: its directory has changed, perhaps also where no answer came.
    fn made(&self, parent: InodeId, made: Result<Attributes>) -> Result<Entry> {
        self.leases.names_changed_here(self.leases.ask(), parent, made.is_ok(), None);
        Ok(entry(&made?, Believed::NOT))
    }

    pub(crate) fn symlink(&self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.made(parent, self.raw().symlink(parent, &name_of(name)?, target))
    }

    pub(crate) fn make_directory(&self, parent_node: u64, name: &[u8], mode: NewMode) -> Result<Entry> {
        let parent = self.nodes.inode(parent_node);
        let made = self.made(parent, self.raw().make_directory(parent, &name_of(name)?, mode))?;
        self.nodes.made(parent_node, name, InodeId(made.node));
        Ok(made)
    }

    /// `mknod`, `mkfifo`, and `bind` of a Unix socket.
    pub(crate) fn make_node(
        &self,
        parent: InodeId,
        name: &[u8],
        (mode, umask): (u32, u32),
        device: u32,
    ) -> Result<Entry> {
        let kind = match mode & libc::S_IFMT {
            0 => Some(FileKind::File),
            _ => FileKind::from_type_bits(mode),
        };
        if let Some(kind) = kind.filter(|kind| kind.is_special()) {
            let device = if kind.is_device() { device } else { 0 };
            let (name, mode) = (name_of(name)?, new_mode(mode, umask));
            let request = MakeNode { parent, name, kind, mode, device };
            let made = self.raw().make_node(&request);
            made.iter().for_each(|attributes| self.removed.heard(attributes));
            return self.made(parent, made);
        }
        if kind != Some(FileKind::File) {
            return Err(Error::new(ErrorKind::Invalid, "a kind of node that nobody knows"));
        }
        let rights = Rights { read: false, write: false };
        let made =
            self.raw().create(&self.create_request(parent, name, new_mode(mode, umask), rights, true)?);
        let made = made.and_then(|(file, opened)| file.close().map(|()| opened.info.attributes));
        self.made(parent, made)
    }

    pub(crate) fn create_request(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: NewMode,
        rights: Rights,
        exclusive: bool,
    ) -> Result<Create> {
        let name = name_of(name)?;
        Ok(Create {
            parent,
            name,
            mode,
            exclusive,
            read: rights.read,
            write: rights.write,
            layout: None,
            wish: self.raw().layout_wish(LayoutHints::default())?,
            named: FileAttributes::new(),
        })
    }

    /// `renameat2`: replacing, not replacing, or exchanging; from a name in a node to one in another.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::Keep,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Error::new(ErrorKind::Invalid, "a rename that no pool knows")),
        };
        let (parent, new_parent) = (self.nodes.inode(from.0), self.nodes.inode(to.0));
        let replaced = if mode == RenameMode::Replace { self.keep_replaced(to) } else { None };
        // Only what is all with its home can be leased; without it the names are dropped when it is done.
        let lease = |directory| self.raw().lease_attributes(directory, true).is_ok_and(|leased| leased.names);
        let moving = self.leases.before_move(parent, new_parent, lease);
        let renamed = self.raw().rename(parent, &name_of(from.1)?, new_parent, &name_of(to.1)?, mode);
        self.leases.changed_here(&[parent, new_parent]);
        self.leases.after_move(moving);
        replaced.into_iter().for_each(|inode| self.leases.answered_here(inode));
        match (&renamed, replaced) {
            (Ok(()), _) => self.nodes.moved(from, to, mode == RenameMode::Exchange),
            (Err(_), Some(inode)) => self.removed.forget(inode),
            (Err(_), None) => {}
        }
        renamed
    }

    /// A directory that is about to be replaced is removed: what it was is kept, where the kernel knows it.
    fn keep_replaced(&self, place: (u64, &[u8])) -> Option<InodeId> {
        let inode = self.nodes.at(place.0, place.1)?;
        let (attributes, _) = self.attributes_of_entry(inode).ok()?;
        self.removed.keep(&attributes);
        Some(inode)
    }

    /// One more name for a file.
    pub(crate) fn link(&self, inode: InodeId, parent: InodeId, name: &[u8]) -> Result<Entry> {
        self.made(parent, self.raw().link(inode, parent, &name_of(name)?))
    }

    pub(crate) fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let (name, asked) = (name_of(name)?, self.leases.ask());
        let removed = self.raw().unlink_leasing(parent, &name);
        let after = removed.as_ref().ok().and_then(Option::as_ref);
        self.leases.names_changed_here(asked, parent, removed.is_ok(), after);
        removed.map(drop)
    }

    pub(crate) fn remove_directory(&self, parent_node: u64, name: &[u8]) -> Result<()> {
        let (parent, name) = (self.nodes.inode(parent_node), name_of(name)?);
        // Who works in it or has it open may go on asking what it is. Where that cannot be had now, the removal says why.
        let found = self.raw().lookup(parent, &name).ok();
        let known = found.filter(|found| found.kind == FileKind::Directory).and_then(|found| {
            found.attributes.or_else(|| Some(self.attributes_of_entry(found.inode).ok()?.0))
        });
        if let Some(attributes) = &known {
            self.removed.keep(attributes);
        }
        let removed = self.raw().remove_directory(parent, &name);
        self.leases.names_changed_here(self.leases.ask(), parent, removed.is_ok(), None);
        if let Some(attributes) = &known {
            self.leases.answered_here(attributes.inode);
            if removed.is_err() {
                self.removed.forget(attributes.inode);
            }
        }
        removed
    }
}

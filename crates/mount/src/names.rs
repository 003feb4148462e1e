//! Entries: looking them up, making and removing them.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_client::{RenameMode, Rights};
use ramlace_fuse::Entry;
use ramlace_wire::leases::NameLeased;
use ramlace_wire::namespace::{Create, MakeNode};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints};

use crate::attributes::entry;
use crate::filesystem::PoolFileSystem;
use crate::leases::Believed;

/// Permission bits, without the file's type.
const PERMISSIONS: u32 = 0o7777;

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSIONS) as u16
}

pub(crate) fn name_of(bytes: &[u8]) -> Result<Name> {
    Name::new(bytes)
}

impl PoolFileSystem {
    pub(crate) fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Entry> {
        let asked = self.leases.ask();
        let NameLeased { found, names, attributes: leased } =
            self.raw().lease_name(parent, &name_of(name)?, self.leases.names)?;
        let (attributes, leased) = match found.attributes {
            // What this mount has written and not told anybody yet is told before the home is asked.
            Some(attributes) if !self.handles.is_written_here(found.inode) => (attributes, leased),
            _ => self.attributes_of_entry(found.inode)?,
        };
        self.handles.note(&attributes);
        let leased = leased && !self.handed.may_be_stored_into(found.inode);
        let believed = self.leases.entry(asked, (parent, names), (found.inode, leased));
        Ok(entry(&attributes, believed))
    }

    /// Attributes of an inode that an entry led to a moment ago, and whether they are leased.
    fn attributes_of_entry(&self, inode: InodeId) -> Result<(Attributes, bool)> {
        match self.raw().lease_attributes(inode, false) {
            // It was removed between the two requests.
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::new(ErrorKind::NotFound, "it was removed just now"))
            }
            leased => leased.map(|leased| (leased.info.attributes, leased.attributes)),
        }
    }

    /// An entry is made here: its directory has changed, perhaps also where no answer came.
    fn made(&self, parent: InodeId, made: Result<Attributes>) -> Result<Entry> {
        self.leases.changed_here(&[parent]);
        Ok(entry(&made?, Believed::NOT))
    }

    pub(crate) fn symlink(&self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.made(parent, self.raw().symlink(parent, &name_of(name)?, target))
    }

    pub(crate) fn make_directory(&self, parent: InodeId, name: &[u8], mode: u32) -> Result<Entry> {
        self.made(parent, self.raw().make_directory(parent, &name_of(name)?, permissions(mode)))
    }

    /// `mknod`, `mkfifo`, and `bind` of a Unix socket.
    pub(crate) fn make_node(&self, parent: InodeId, name: &[u8], mode: u32, device: u32) -> Result<Entry> {
        let kind = match mode & libc::S_IFMT {
            0 => Some(FileKind::File),
            _ => FileKind::from_type_bits(mode),
        };
        if let Some(kind) = kind.filter(|kind| kind.is_special()) {
            let device = if kind.is_device() { device } else { 0 };
            let request = MakeNode { parent, name: name_of(name)?, kind, mode: permissions(mode), device };
            return self.made(parent, self.raw().make_node(&request));
        }
        if kind != Some(FileKind::File) {
            return Err(Error::new(ErrorKind::Invalid, "a kind of node that nobody knows"));
        }
        let rights = Rights { read: false, write: false };
        let made = self.raw().create(&self.create_request(parent, name, mode, rights, true)?);
        let made = made.and_then(|(file, opened)| file.close().map(|()| opened.info.attributes));
        self.made(parent, made)
    }

    pub(crate) fn create_request(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        rights: Rights,
        exclusive: bool,
    ) -> Result<Create> {
        let name = name_of(name)?;
        Ok(Create {
            parent,
            name,
            mode: permissions(mode),
            exclusive,
            read: rights.read,
            write: rights.write,
            layout: None,
            wish: self.raw().layout_wish(LayoutHints::default())?,
            named: FileAttributes::new(),
        })
    }

    /// `renameat2`: replacing, not replacing, or exchanging.
    pub(crate) fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::Keep,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Error::new(ErrorKind::Invalid, "a rename that no pool knows")),
        };
        // Only what is all with its home can be leased; without it the names are dropped when it is done.
        let lease = |directory| self.raw().lease_attributes(directory, true).is_ok_and(|leased| leased.names);
        let moving = self.leases.before_move(parent, new_parent, lease);
        let renamed = self.raw().rename(parent, &name_of(name)?, new_parent, &name_of(new_name)?, mode);
        self.leases.changed_here(&[parent, new_parent]);
        self.leases.after_move(moving);
        renamed
    }

    /// One more name for a file.
    pub(crate) fn link(&self, inode: InodeId, parent: InodeId, name: &[u8]) -> Result<Entry> {
        self.made(parent, self.raw().link(inode, parent, &name_of(name)?))
    }

    pub(crate) fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let removed = self.raw().unlink(parent, &name_of(name)?);
        self.leases.changed_here(&[parent]);
        removed
    }

    pub(crate) fn remove_directory(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let name = name_of(name)?;
        // Who works in it or has it open may go on asking what it is. Where that cannot be had now, the removal says why.
        let found = self.raw().lookup(parent, &name).ok();
        let known = found.filter(|found| found.kind == FileKind::Directory).and_then(|found| {
            found.attributes.or_else(|| Some(self.attributes_of_entry(found.inode).ok()?.0))
        });
        if let Some(attributes) = &known {
            self.removed.keep(attributes);
        }
        let removed = self.raw().remove_directory(parent, &name);
        self.leases.changed_here(&[parent]);
        if let (Err(_), Some(attributes)) = (&removed, &known) {
            self.removed.forget(attributes.inode);
        }
        removed
    }
}

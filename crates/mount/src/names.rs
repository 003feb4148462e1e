//! Entries: looking them up, making and removing them.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_client::{RenameMode, Rights};
use ramlace_fuse::Entry;
use ramlace_wire::namespace::{Create, MakeNode};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints};

use crate::attributes::entry;
use crate::filesystem::PoolFileSystem;

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
        let found = self.raw().lookup(parent, &name_of(name)?)?;
        let attributes = match found.attributes {
            // What this mount has written and not told anybody yet is told before the home is asked.
            Some(attributes) if !self.handles.is_written_here(found.inode) => attributes,
            _ => self.attributes_of_entry(found.inode)?,
        };
        self.handles.note(&attributes);
        Ok(entry(&attributes))
    }

    /// Attributes of an inode that an entry led to a moment ago.
    fn attributes_of_entry(&self, inode: InodeId) -> Result<Attributes> {
        match self.raw().info(inode) {
            // It was removed between the two requests.
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::new(ErrorKind::NotFound, "it was removed just now"))
            }
            info => Ok(info?.attributes),
        }
    }

    pub(crate) fn symlink(&self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        Ok(entry(&self.raw().symlink(parent, &name_of(name)?, target)?))
    }

    pub(crate) fn make_directory(&self, parent: InodeId, name: &[u8], mode: u32) -> Result<Entry> {
        Ok(entry(&self.raw().make_directory(parent, &name_of(name)?, permissions(mode))?))
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
            return Ok(entry(&self.raw().make_node(&request)?));
        }
        if kind != Some(FileKind::File) {
            return Err(Error::new(ErrorKind::Invalid, "a kind of node that nobody knows"));
        }
        let rights = Rights { read: false, write: false };
        let (file, opened) = self.raw().create(&self.create_request(parent, name, mode, rights, true)?)?;
        file.close()?;
        Ok(entry(&opened.info.attributes))
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
        self.raw().rename(parent, &name_of(name)?, new_parent, &name_of(new_name)?, mode)
    }

    /// One more name for a file.
    pub(crate) fn link(&self, inode: InodeId, parent: InodeId, name: &[u8]) -> Result<Entry> {
        Ok(entry(&self.raw().link(inode, parent, &name_of(name)?)?))
    }

    pub(crate) fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.raw().unlink(parent, &name_of(name)?)
    }

    pub(crate) fn remove_directory(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let name = name_of(name)?;
        // Who works in it or has it open may go on asking what it is. Where that cannot be had now, the removal says why.
        let found = self.raw().lookup(parent, &name).ok();
        let known = found
            .filter(|found| found.kind == FileKind::Directory)
            .and_then(|found| found.attributes.or_else(|| self.attributes_of_entry(found.inode).ok()));
        if let Some(attributes) = &known {
            self.removed.keep(attributes);
        }
        let removed = self.raw().remove_directory(parent, &name);
        if let (Err(_), Some(attributes)) = (&removed, &known) {
            self.removed.forget(attributes.inode);
        }
        removed
    }
}

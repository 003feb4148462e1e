//! The requests about the entries of directories: look up, create, link, rename and remove.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_client::{RenameMode, Rights};
use ramlace_fuse::{AnsweringSet, Entry};
use ramlace_wire::leases::{AttributesLeased, NameLeased};
use ramlace_wire::namespace::{Create, DirectoryEntry, Made, MakeNode, NewMode};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints};

use crate::attributes::entry;
use crate::believed::Asked;
use crate::kept::Named;
use crate::leases::{Believed, Keeping, NameChange, Offered};
use crate::mounted::PoolFileSystem;

/// Permission bits, without the file's type.
const PERMISSIONS: u32 = 0o7777;

/// The entry that a name leads to.
struct FoundEntry {
    asked: Asked,
    attributes: Attributes,
    /// The directory's names are leased.
    names: bool,
    /// The attributes are leased.
    leased: bool,
}

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSIONS) as u16
}

/// The mode of what is created, and the umask of the program that creates it.
pub(crate) fn new_mode(mode: u32, umask: u32) -> NewMode {
    NewMode { mode: permissions(mode), umask: permissions(umask) }
}

pub(crate) fn name_of(bytes: &[u8]) -> Result<Name> {
    Name::new(bytes)
}

impl PoolFileSystem {
    pub(crate) fn lookup(&self, parent_node: u64, name: &[u8], thread: u32) -> Result<Entry> {
        let parent = self.nodes.inode(parent_node);
        let checked = name_of(name)?;
        let since = self.handles.now();
        let found = match self.kept_entry(parent, name)? {
            Some(kept) => kept,
            None => self.ask_for_entry(parent, &checked)?,
        };
        let FoundEntry { asked, attributes, names, leased } = found;
        self.handles.note(&attributes, since);
        self.removed.note(&attributes);
        let leased = leased && !self.passthrough.may_be_stored_into(attributes.inode);
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

    /// An entry that was found before, under valid leases. What it leads to may have to be asked for.
    ///
    /// Errors: `NotFound`, if a valid lease says that there is no such name.
    fn kept_entry(&self, parent: InodeId, name: &[u8]) -> Result<Option<FoundEntry>> {
        if !self.leases.names {
            return Ok(None);
        }
        let Some((named, asked)) = self.leases.kept_name(self.raw(), parent, name) else { return Ok(None) };
        let Some(inode) = named.inode() else {
            return Err(Error::new(ErrorKind::NotFound, "there is no such name"));
        };
        let names = matches!(named, Named::At(_));
        if let Some((attributes, asked_then)) = self.kept_attributes(inode) {
            let asked = asked.earlier(asked_then);
            return Ok(Some(FoundEntry { asked, attributes, names, leased: true }));
        }
        if !names {
            // With the name the kernel gets a lease on it.
            return Ok(None);
        }
        let (attributes, leased) = self.attributes_of_entry(inode)?;
        Ok(Some(FoundEntry { asked, attributes, names, leased }))
    }

    /// Kept attributes under a valid lease, unless programs here may change them without asking.
    pub(crate) fn kept_attributes(&self, inode: InodeId) -> Option<(Attributes, Asked)> {
        let kept = self.leases.kept_attributes(self.raw(), inode)?;
        (!self.is_changing(&kept.0)).then_some(kept)
    }

    fn keep_attributes(&self, asked: Asked, attributes: &Attributes) {
        self.leases.keep(asked, Keeping::Attributes(attributes));
        // An open for writing either has found this, or is seen here.
        if self.is_changing(attributes) {
            self.leases.forget_kept(attributes.inode);
        }
    }

    /// Whether programs here may change a file without its home knowing it yet.
    pub(crate) fn is_changing(&self, of: &Attributes) -> bool {
        of.kind == FileKind::File && (self.handles.is_written_here(of.inode) || self.passthrough.is_enabled())
    }

    fn ask_for_entry(&self, parent: InodeId, name: &Name) -> Result<FoundEntry> {
        let (asked, reported) = (self.leases.ask(), self.raw().times_reported());
        let neighbours_max = self.leases.neighbours_wanted(parent);
        let NameLeased { found, names, attributes: leased, directory, neighbours, is_all } =
            self.raw().lease_name(parent, name, self.leases.names, neighbours_max)?;
        let name = name.as_bytes();
        if let Some(directory) = directory.as_ref().filter(|_| neighbours_max > 0) {
            let found = found.as_ref().map(|found| (name, found.inode));
            let came = Keeping::Neighbours { directory, found, neighbours: &neighbours, is_all };
            self.keep_neighbours((asked, reported), came, &neighbours);
        }
        let Some(found) = found else {
            if let Some(directory) = &directory {
                self.leases.keep(asked, Keeping::Absence { directory, name });
            }
            return Err(Error::new(ErrorKind::NotFound, "there is no such name"));
        };
        let inode = found.inode;
        if names && self.leases.names {
            self.leases.keep(asked, Keeping::Name { directory: parent, name, inode });
        }
        let (attributes, leased) = match found.attributes {
            Some(attributes) if self.tells_all(&attributes, reported) => {
                if leased {
                    self.keep_attributes(asked, &attributes);
                }
                (attributes, leased)
            }
            _ => self.attributes_of_entry(inode)?,
        };
        Ok(FoundEntry { asked, attributes, names, leased })
    }

    /// Keeps what came with a name under leases.
    fn keep_neighbours(
        &self,
        (asked, reported): (Asked, u64),
        came: Keeping<'_>,
        neighbours: &[DirectoryEntry],
    ) {
        self.leases.keep(asked, came);
        for attributes in neighbours.iter().filter_map(|entry| entry.attributes.as_ref()) {
            if self.tells_all(attributes, reported) {
                self.keep_attributes(asked, attributes);
            }
        }
    }

    /// Whether a home knows all of a file's attributes: times of writes here that were not reported yet are reported
    /// before it is asked, and the memory of a file with holes is known only to its lanes.
    fn tells_all(&self, attributes: &Attributes, reported: u64) -> bool {
        attributes.allocated.is_some() && !self.has_unreported_times(attributes.inode, reported)
    }

    /// Whether the home of a file may not have known, when it was asked, when programs here had written to
    /// it; `reported` was taken before.
    fn has_unreported_times(&self, inode: InodeId, reported: u64) -> bool {
        self.handles.is_written_here(inode) || self.raw().has_unreported_times(inode, reported)
    }

    /// The kernel may have a directory at another place: see [`crate::places`].
    fn found_directory(
        &self,
        asked: Asked,
        (parent, name, names): (u64, &[u8], bool),
        (attributes, leased): (&Attributes, bool),
        thread: u32,
    ) -> Entry {
        // Counted before a number is chosen for it, so that it is not forgotten in between.
        self.nodes.tell(attributes.inode);
        let found = self.nodes.places.found(parent, name, attributes.inode, thread);
        let offered = Offered::of(attributes, leased && found.leased);
        let mut believed = self.leases.entry(asked, (self.nodes.inode(parent), names), offered);
        self.nodes.forget(attributes.inode, 1);
        if found.unsure {
            believed.attributes = Duration::ZERO;
        }
        Entry { node: found.node, ..entry(attributes, believed) }
    }

    /// Attributes of an inode to which an entry has just led, and whether they are leased.
    fn attributes_of_entry(&self, inode: InodeId) -> Result<(Attributes, bool)> {
        match self.lease_attributes(inode) {
            // It was removed between the two requests.
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::new(ErrorKind::NotFound, "it was removed just now"))
            }
            leased => {
                let leased = leased?;
                Ok((leased.info.attributes, leased.attributes))
            }
        }
    }

    /// Attributes with a lease, and how much memory there is; they are kept if the home knows the memory.
    pub(crate) fn lease_attributes(&self, inode: InodeId) -> Result<AttributesLeased> {
        let asked = self.leases.ask();
        let mut leased = self.raw().lease_attributes(inode, false)?;
        let attributes = &leased.info.attributes;
        if leased.attributes && attributes.allocated.is_some() && !self.is_changing(attributes) {
            self.keep_attributes(asked, attributes);
        }
        leased.info.attributes.allocated = Some(self.raw().allocated(&leased.info)?);
        Ok(leased)
    }

    /// Creates an entry: its directory has changed, perhaps even if there was no answer.
    fn make(&self, parent: InodeId, name: &[u8], make: impl FnOnce(&Name) -> Result<Made>) -> Result<Entry> {
        Ok(entry(&self.make_anything(parent, name, make)?, Believed::NOT))
    }

    /// The same; returns the attributes of what was made.
    fn make_anything(
        &self,
        parent: InodeId,
        name: &[u8],
        make: impl FnOnce(&Name) -> Result<Made>,
    ) -> Result<Attributes> {
        let (name, asked) = (name_of(name)?, self.leases.ask());
        let made = make(&name);
        let change = match &made {
            Ok(made) => NameChange::MadeOnce(made.attributes.inode),
            Err(_) => NameChange::Perhaps,
        };
        let after = made.as_ref().ok().and_then(|made| made.parent.as_ref());
        self.leases.name_changed_here(asked, (parent, name.as_bytes()), change, after);
        Ok(made?.attributes)
    }

    pub(crate) fn symlink(&self, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(parent, name, |name| self.raw().symlink(parent, name, target))
    }

    pub(crate) fn make_directory(&self, parent_node: u64, name: &[u8], mode: NewMode) -> Result<Entry> {
        let parent = self.nodes.inode(parent_node);
        let made = self.make(parent, name, |name| self.raw().make_directory(parent, name, mode))?;
        self.nodes.places.made(parent_node, name, InodeId(made.node));
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
            let mode = new_mode(mode, umask);
            return self.make(parent, name, |name| {
                let made =
                    self.raw().make_node(&MakeNode { parent, name: name.clone(), kind, mode, device })?;
                self.removed.note(&made.attributes);
                Ok(made)
            });
        }
        if kind != Some(FileKind::File) {
            return Err(Error::new(ErrorKind::Invalid, "a kind of node that nobody knows"));
        }
        let rights = Rights { read: false, write: false };
        let request = self.create_request(parent, name, new_mode(mode, umask), rights, true)?;
        self.make(parent, name, |_| {
            let (file, opened) = self.raw().create(&request)?;
            file.close()?;
            Ok(Made { attributes: opened.info.attributes, parent: opened.parent })
        })
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

    /// `renameat2`: replacing, not replacing, or exchanging; from a name in one node to a name in another.
    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::Keep,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Error::new(ErrorKind::Invalid, "a rename that no pool knows")),
        };
        let (parent, new_parent) = (self.nodes.inode(from.0), self.nodes.inode(to.0));
        let replaced = if mode == RenameMode::Replace { self.keep_replaced(to) } else { None };
        // Names can only be leased if the home has all of them. Otherwise the kernel's names are dropped when
        // it is done.
        let lease = |directory| self.raw().lease_attributes(directory, true).is_ok_and(|leased| leased.names);
        let (name, new_name) = (name_of(from.1)?, name_of(to.1)?);
        let moving = self.leases.before_move(parent, new_parent, lease);
        let renamed = self.raw().rename(parent, &name, new_parent, &new_name, mode);
        self.leases.name_moved_here((parent, from.1), (new_parent, to.1));
        self.leases.after_move(moving);
        replaced.into_iter().for_each(|inode| self.leases.answered_here(inode));
        match (&renamed, replaced) {
            (Ok(()), _) => self.nodes.places.moved(from, to, mode == RenameMode::Exchange),
            (Err(_), Some(inode)) => self.removed.forget(inode),
            (Err(_), None) => {}
        }
        renamed
    }

    /// A directory that is about to be replaced is removed by that: keeps its attributes, if the kernel knows
    /// it.
    fn keep_replaced(&self, place: (u64, &[u8])) -> Option<InodeId> {
        let inode = self.nodes.places.at(place.0, place.1)?;
        let (attributes, _) = self.attributes_of_entry(inode).ok()?;
        self.removed.keep(&attributes);
        Some(inode)
    }

    /// Creates one more name for a file. The second is to be dropped after the reply.
    pub(crate) fn link(
        &self,
        (node, inode): (u64, InodeId),
        parent: InodeId,
        name: &[u8],
    ) -> Result<(Entry, Option<AnsweringSet>)> {
        let linked = self.make_anything(parent, name, |name| {
            let linked = self.raw().link(inode, parent, name);
            self.leases.answered_here(inode);
            linked
        })?;
        let (now, setting) = self.attributes_to_set(node, linked, false);
        Ok((entry(&now, Believed::NOT), setting))
    }

    pub(crate) fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let (entry, asked) = (name_of(name)?, self.leases.ask());
        let removed = self.raw().unlink_leasing(parent, &entry);
        match removed.as_ref().ok().and_then(|removed| removed.inode) {
            Some(inode) => {
                self.leases.answered_here(inode);
                // It may have been closed for later just before nothing was kept of it.
                self.raw().hasten_close(inode);
            }
            None => self.leases.something_changed_here(),
        }
        let after = removed.as_ref().ok().and_then(|removed| removed.parent.as_ref());
        let change = if removed.is_ok() { NameChange::Removed } else { NameChange::Perhaps };
        self.leases.name_changed_here(asked, (parent, name), change, after);
        removed.map(drop)
    }

    pub(crate) fn remove_directory(&self, parent_node: u64, name: &[u8]) -> Result<()> {
        let (parent, entry) = (self.nodes.inode(parent_node), name_of(name)?);
        // Programs that work in the directory or have it open may still ask for its attributes. If they
        // cannot be had now, the removal returns the reason.
        let found = self.raw().lookup(parent, &entry).ok();
        let known = found.filter(|found| found.kind == FileKind::Directory).and_then(|found| {
            found.attributes.or_else(|| Some(self.attributes_of_entry(found.inode).ok()?.0))
        });
        if let Some(attributes) = &known {
            self.removed.keep(attributes);
        }
        let asked = self.leases.ask();
        let removed = self.raw().remove_directory(parent, &entry);
        let change = if removed.is_ok() { NameChange::Removed } else { NameChange::Perhaps };
        self.leases.name_changed_here(asked, (parent, name), change, None);
        match &known {
            Some(attributes) => self.leases.answered_here(attributes.inode),
            None => self.leases.something_changed_here(),
        }
        if let (Some(attributes), Err(_)) = (&known, &removed) {
            self.removed.forget(attributes.inode);
        }
        removed
    }
}

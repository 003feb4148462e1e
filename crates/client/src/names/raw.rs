//! Operations by inode: one method for each message of the namespace family.

use std::collections::BTreeMap;
use std::time::Instant;

use ramlace_base::{ErrorKind, InodeId, Name, Redirect, Result, ServerId};
use ramlace_wire::namespace::{
    Create, CreateUnnamed, DirectoryEntry, DirectoryPage, Found, GetAttributesMany, InodeInfo, LayoutWish,
    Link, Lookup, Made, MakeDirectory, MakeNode, NewMode, Opened, ReadLink, RemoveDirectory, Rename,
    RenameMode, SetAttributes, SetLayout, Symlink, Unlink, Unlinked,
};
use ramlace_wire::walk::{Walk, Walked};
use ramlace_wire::{Attributes, FileKind, LayoutHints, Request};

use crate::Pool;
use crate::bytes::file::File;
use crate::names::gates::OpenAnswer;
use crate::names::path::{Tree, Wanted};
use crate::names::rights::Rights;
use crate::session::retry::is_unanswered;

/// The mode bits by which programs run as their owner or group.
const SET_ID_BITS: u16 = 0o6000;

/// Operations by inode; from [`Pool::raw`]. Changes have one effect, however often the network
/// makes the client repeat them.
#[derive(Clone, Copy)]
pub struct Raw<'a> {
    pub(crate) pool: &'a Pool,
    /// The path by which entries are changed; empty: by their directory's inode alone.
    pub(crate) by_path: &'a [Name],
}

impl Raw<'_> {
    /// The entry `name` of a directory.
    pub fn lookup(self, parent: InodeId, name: &Name) -> Result<Found> {
        let session = self.pool.session()?;
        let request = Lookup { parent, name: name.clone() };
        session.in_partition(parent, name, |slot, deadline| session.ask(slot, &request, deadline))
    }

    /// Attributes, layout and named attributes of an inode, with this process's latest writes, and the memory
    /// that it holds.
    pub fn info(self, inode: InodeId) -> Result<InodeInfo> {
        let session = self.pool.session()?;
        session.push_times(inode)?;
        session.with_allocated(session.whole_info(inode)?)
    }

    /// Bytes of memory that a file holds. Its lanes are asked if its home does not know, because the file may
    /// have holes. A lane whose server does not answer counts as if it had none.
    pub fn allocated(self, info: &InodeInfo) -> Result<u64> {
        self.pool.session()?.allocated(info)
    }

    /// Attributes of a file whose creation was promised and may not have been sent yet; without a request.
    #[must_use]
    pub fn promised_attributes(self, inode: InodeId) -> Option<Attributes> {
        self.pool.session().ok()?.promised_attributes(inode)
    }

    /// Sends what was promised in the slot of an inode so far, and waits until it is done.
    ///
    /// # Errors
    /// Those of the home; `Lost`: some of it was refused.
    pub fn sync(self, inode: InodeId) -> Result<()> {
        let session = self.pool.session()?;
        session.sync_promises(inode.slot(), session.deadline())
    }

    /// Sends all that was promised so far, and waits until it is done.
    ///
    /// # Errors
    /// The same, of any home.
    pub fn sync_all(self) -> Result<()> {
        let session = self.pool.session()?;
        session.sync_all_promises(session.deadline())
    }

    /// Changes what is `Some`.
    pub fn set_attributes(self, change: &SetAttributes) -> Result<Attributes> {
        let session = self.pool.session()?;
        match change.modified {
            Some(_) => session.forget_times(change.inode),
            None => session.push_times(change.inode)?,
        }
        if let Some(attributes) = session.set_attributes_behind(change) {
            return Ok(attributes);
        }
        let _names = session.before_changing(change.inode);
        let before = session.before_direct(change.inode.slot());
        let attributes = session.change(change.inode.slot(), change, session.deadline())?;
        session.learn_file(before, &attributes);
        // A spread directory's home knows only its own entries.
        if attributes.kind == FileKind::Directory {
            Ok(self.info(change.inode)?.attributes)
        } else {
            Ok(attributes)
        }
    }

    /// Changes what is `Some` of files of one slot, where files of one directory are: many by one message. Calls
    /// `done` with each and its outcome. Directories are changed by [`Raw::set_attributes`].
    ///
    /// # Errors
    /// There is no session, or a home does not take when this process wrote to a file; then none was changed.
    pub fn set_attributes_of_files(
        self,
        changes: &[SetAttributes],
        mut done: impl FnMut(&SetAttributes, Result<()>),
    ) -> Result<()> {
        let session = self.pool.session()?;
        let Some(slot) = changes.first().map(|change| change.inode.slot()) else { return Ok(()) };
        for change in changes {
            match change.modified {
                Some(_) => session.forget_times(change.inode),
                None => session.push_times(change.inode)?,
            }
        }
        let alone = |change: &SetAttributes| self.set_attributes(change);
        session.change_together(slot, changes, alone, |change, changed| done(change, changed.map(drop)));
        Ok(())
    }

    /// Sets a file's size.
    pub fn truncate(self, inode: InodeId, size: u64) -> Result<Attributes> {
        let session = self.pool.session()?;
        let attributes = match session.truncate(inode, size) {
            Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Reserved) => {
                let (file, opened) = self.open(inode, Rights { read: false, write: true })?;
                // By an open file the home does not see which user truncates.
                if crate::acting::is_for_a_user() && opened.info.attributes.mode & SET_ID_BITS != 0 {
                    file.drop_set_id()?;
                }
                return file.set_size(size);
            }
            truncated => truncated?,
        };
        session.learn_size(inode, attributes.generation, attributes.size);
        Ok(attributes)
    }

    /// The layout part of a [`Create`] whose server shall choose the layout: `hints`, else what the
    /// directory's files inherit, else the pool's defaults.
    pub fn layout_wish(self, hints: LayoutHints) -> Result<LayoutWish> {
        Ok(self.pool.session()?.layout_wish(hints, 0, false))
    }

    /// Creates a file and opens it; opens an existing one unless the request is exclusive. `Retry` when the
    /// name is being removed: repeated, the call creates it.
    pub fn create(self, request: &Create) -> Result<(File, Opened)> {
        File::create(self, request, None)
    }

    /// The same for a caller that may know that the name is free: `is_free` says so for the time when it is
    /// called. Then the file may be made by a promise ([`crate::ConnectOptions::behind`]).
    pub fn create_if_free(self, request: &Create, is_free: &dyn Fn() -> bool) -> Result<(File, Opened)> {
        File::create(self, request, Some(is_free))
    }

    /// Opens the file that has a name. `Loop` for a symbolic link, which is not followed; `Retry` when the
    /// name is being removed.
    pub fn open_entry(self, parent: InodeId, name: &Name, rights: Rights) -> Result<(File, Opened)> {
        File::open_entry(self, parent, name, rights)
    }

    /// Creates a file without a name and opens it: it lives until its last close, unless [`Raw::link`] gives
    /// it a name before.
    pub fn create_unnamed(self, request: &CreateUnnamed) -> Result<(File, Opened)> {
        File::create_unnamed(self.pool, request)
    }

    /// Opens an inode.
    pub fn open(self, inode: InodeId, rights: Rights) -> Result<(File, Opened)> {
        File::open_inode(self.pool, inode, rights)
    }

    /// Opens a file for reading whose close was deferred ([`File::defer_close`]), without a request; `None`: it is to be opened
    /// in the usual way. `now`: its present attributes, under a valid lease, and when that was first asked for.
    pub fn reopen(
        self,
        inode: InodeId,
        now: impl FnOnce() -> Option<(Attributes, Instant)>,
    ) -> Option<(File, OpenAnswer)> {
        File::reopen(self.pool, inode, now)
    }

    /// An inode that no program has open is not to stay open at its home ([`File::defer_close`]).
    pub fn hasten_close(self, inode: InodeId) {
        if let Ok(session) = self.pool.session() {
            session.hasten_close(inode);
        }
    }

    /// Opens an inode for a kernel that executes it, on behalf of a user who may not be allowed to read it.
    pub fn open_to_run(self, inode: InodeId) -> Result<(File, Opened)> {
        File::open_to_run(self.pool, inode)
    }

    /// Creates a symbolic link. The answer has the directory's new attributes, with a lease as from
    /// [`Raw::lease_attributes`] if there is one; so do the answers to the other requests that create an
    /// entry.
    pub fn symlink(self, parent: InodeId, name: &Name, target: &[u8]) -> Result<Made> {
        let request = Symlink { parent, name: name.clone(), target: target.to_vec() };
        self.change_entry(parent, name, &request)
    }

    /// Creates a named pipe, a socket's address or a device.
    pub fn make_node(self, request: &MakeNode) -> Result<Made> {
        self.change_entry(request.parent, &request.name, request)
    }

    /// The target of a symbolic link.
    pub fn read_link(self, inode: InodeId) -> Result<Vec<u8>> {
        let session = self.pool.session()?;
        session.ask(inode.slot(), &ReadLink { inode }, session.deadline())
    }

    /// Creates a directory.
    pub fn make_directory(self, parent: InodeId, name: &Name, mode: NewMode) -> Result<Made> {
        self.change_entry(parent, name, &MakeDirectory { parent, name: name.clone(), mode })
    }

    /// Removes an empty directory.
    pub fn remove_directory(self, parent: InodeId, name: &Name) -> Result<()> {
        self.change_entry(parent, name, &RemoveDirectory { parent, name: name.clone() })
    }

    /// Removes an entry that is no directory.
    pub fn unlink(self, parent: InodeId, name: &Name) -> Result<()> {
        self.unlink_leasing(parent, name).map(drop)
    }

    /// Removes entries that are no directories, many by one message; those that are not there are no error.
    ///
    /// Errors: the first one; the others are removed all the same, as far as they can be asked for.
    pub fn unlink_all(self, parent: InodeId, names: Vec<Name>) -> Result<()> {
        let mut outcome = Ok(());
        self.unlink_each(parent, names, |_, done| {
            if let Err(error) = done
                && error.kind() != ErrorKind::NotFound
                && outcome.is_ok()
            {
                outcome = Err(error);
            }
        })?;
        outcome
    }

    /// The same; calls `done` with each name and what became of it, in no certain order.
    ///
    /// Errors: there is no session; then `done` was not called.
    pub(crate) fn unlink_each(
        self,
        parent: InodeId,
        names: Vec<Name>,
        mut done: impl FnMut(&Name, Result<()>),
    ) -> Result<()> {
        let session = self.pool.session()?;
        // The names of a spread directory lie in several slots.
        if session.spreads.get(parent).is_some() {
            names.iter().for_each(|name| done(name, self.unlink(parent, name)));
        } else {
            let requests: Vec<Unlink> = names.into_iter().map(|name| Unlink { parent, name }).collect();
            let alone = |request: &Unlink| self.unlink_leasing(parent, &request.name);
            let mut inodes = Vec::new();
            session.change_together(parent.slot(), &requests, alone, |request, removed| {
                inodes.extend(removed.as_ref().ok().map(|removed| removed.inode));
                done(&request.name, removed.map(drop));
            });
            session.close_removed(&inodes);
        }
        Ok(())
    }

    /// The same; also returns what the entry led to, and the directory's new attributes, with a lease as from
    /// [`Raw::lease_attributes`] if there is one.
    pub fn unlink_leasing(self, parent: InodeId, name: &Name) -> Result<Unlinked> {
        let removed = self.change_entry(parent, name, &Unlink { parent, name: name.clone() });
        let inode = match &removed {
            Ok(removed) => Some(removed.inode),
            // It may be done all the same.
            Err(error) => is_unanswered(error).then_some(None),
        };
        if let Some(inode) = inode {
            self.pool.session()?.close_removed(&[inode]);
        }
        removed
    }

    /// Gives an entry another name, here or in another directory.
    pub fn rename(
        self,
        parent: InodeId,
        name: &Name,
        new_parent: InodeId,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        let session = self.pool.session()?;
        session.in_partitions((parent, name), (new_parent, new_name), |slot, new_slot, deadline| {
            let (name, new_name) = (name.clone(), new_name.clone());
            let request = Rename { parent, name, new_parent, new_slot, new_name, mode };
            session.change(slot, &request, deadline)
        })
    }

    /// How often it was reported to homes when this process wrote: see [`Raw::has_unreported_times`].
    #[must_use]
    pub fn times_reported(self) -> u64 {
        self.pool.session().map_or(0, |session| session.times_reported())
    }

    /// Whether the home of an inode does not know yet when this process last wrote to it, or may have been
    /// notified since `reported`: then what it answered in between lacks that time.
    #[must_use]
    pub fn has_unreported_times(self, inode: InodeId, reported: u64) -> bool {
        self.pool.session().is_ok_and(|session| session.has_unreported_times(inode, reported))
    }

    /// Makes one more entry for a file or a symbolic link; returns its attributes.
    pub fn link(self, inode: InodeId, parent: InodeId, name: &Name) -> Result<Made> {
        let session = self.pool.session()?;
        let request = Link { parent, name: name.clone(), inode };
        session.in_partition(parent, name, |slot, deadline| session.change(slot, &request, deadline))
    }

    /// Opens what an entry leads to, or what is created with it.
    pub(crate) fn open_by_entry<R: Request<Reply = Opened>>(
        self,
        parent: InodeId,
        name: &Name,
        request: &R,
    ) -> Result<Opened> {
        let session = self.pool.session()?;
        session.in_partition(parent, name, |slot, deadline| {
            session.change_by(self.by_path, slot, request, deadline)
        })
    }

    /// Changes an entry in the slot that has it.
    pub(crate) fn change_entry<R: Request>(
        self,
        parent: InodeId,
        name: &Name,
        request: &R,
    ) -> Result<R::Reply> {
        let session = self.pool.session()?;
        session.in_partition(parent, name, |slot, deadline| {
            session.change_by(self.by_path, slot, request, deadline)
        })
    }

    /// Entries of a directory behind the cookie `after`, at most `entries_max`; none when there are no more.
    pub fn read_directory(self, inode: InodeId, after: u64, entries_max: u32) -> Result<DirectoryPage> {
        let session = self.pool.session()?;
        session.read_partitions(inode, after, entries_max)
    }

    /// The same, each with its attributes as far as they can be had: those that live elsewhere are requested
    /// together, in one more request for each server. An entry that is removed meanwhile, or whose server
    /// does not answer, comes without.
    pub fn read_directory_plus(self, inode: InodeId, after: u64, entries_max: u32) -> Result<DirectoryPage> {
        let mut page = self.read_directory(inode, after, entries_max)?;
        let session = self.pool.session()?;
        let map = session.map()?;
        let mut missing: BTreeMap<ServerId, Vec<&mut DirectoryEntry>> = BTreeMap::new();
        for entry in page.entries.iter_mut().filter(|entry| entry.attributes.is_none()) {
            session.push_times(entry.inode)?;
            if let Some(server) = map.primary(entry.inode.slot()) {
                missing.entry(server).or_default().push(entry);
            }
        }
        for (server, entries) in missing {
            let inodes = entries.iter().map(|entry| entry.inode).collect();
            let request = GetAttributesMany { inodes };
            // A caller that needs one of the missing attributes asks for it alone, and gets the error.
            let Ok(reply) = session.ask_server(server, &request, session.deadline()) else { continue };
            for (entry, attributes) in entries.into_iter().zip(reply.attributes) {
                entry.attributes = attributes.filter(|attributes| attributes.inode == entry.inode);
            }
        }
        Ok(page)
    }

    /// Sets what files made in a directory inherit.
    pub fn set_layout(self, inode: InodeId, hints: LayoutHints) -> Result<()> {
        let session = self.pool.session()?;
        // A file's rules can be set when nobody has it open: others close what they have deferred.
        session.once_closed(inode, || {
            session.change(inode.slot(), &SetLayout { inode, hints }, session.deadline())
        })
    }
}

impl Tree for Raw<'_> {
    fn walk(&self, parent: InodeId, names: Vec<Name>, wanted: Wanted) -> Result<Walked> {
        let session = self.pool.session()?;
        let first = names[0].clone();
        let (info, bytes) = (wanted != Wanted::Nothing, wanted == Wanted::Bytes);
        let request = Walk { from: parent, names, info, bytes };
        session.in_partition(parent, &first, |slot, deadline| session.ask(slot, &request, deadline))
    }

    fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        Raw::read_link(*self, inode)
    }

    fn note_path(&self, path: &[u8], above: &[InodeId]) {
        if let Ok(session) = self.pool.session() {
            session.known_paths.note(path, above);
        }
    }
}

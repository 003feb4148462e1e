//! The namespace by path. Paths are bytes; they begin at the pool's root with or without a slash.

use std::collections::VecDeque;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, limits};
use ramlace_wire::namespace::{
    DirectoryEntry, Found, InodeInfo, MakeNode, NewMode, RenameMode, SetAttributes, TimeReason,
};
use ramlace_wire::{Attributes, FileKind, LayoutHints};

use crate::names::path::{LastLink, Place, Wanted, resolve, resolve_making, resolve_with};
use crate::names::raw::Raw;
use crate::pool::locator::ShownPath;
use crate::{File, OpenOptions, Pool};

/// The attributes that [`Pool::set_attributes`] changes: those that are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits, 0o7777 at most.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub accessed: Option<ramlace_base::Timestamp>,
    /// Last change of content.
    pub modified: Option<ramlace_base::Timestamp>,
    /// The times are the present moment: users that may write can set them so, not only the owner.
    pub now: bool,
}

/// A directory that is removed with all that is in it.
struct Doomed {
    parent: InodeId,
    name: Name,
    inode: InodeId,
    /// Its last listing went to the end, and what that named is gone or was dealt with.
    is_emptied: bool,
}

impl Doomed {
    fn new(parent: InodeId, name: Name, inode: InodeId) -> Doomed {
        Doomed { parent, name, inode, is_emptied: false }
    }
}

impl Pool {
    /// Everything about what the path leads to; a link at its end is followed.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<InodeInfo> {
        self.info_at(path.as_ref(), LastLink::Follow)
    }

    /// Everything about what the path names; a link at its end is not followed.
    pub fn lstat(&self, path: impl AsRef<[u8]>) -> Result<InodeInfo> {
        self.info_at(path.as_ref(), LastLink::Keep)
    }

    /// Whether the path leads to something.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory; a `mode` without a umask is used as it is.
    pub fn mkdir(&self, path: impl AsRef<[u8]>, mode: impl Into<NewMode>) -> Result<Attributes> {
        let (path, mode) = (path.as_ref(), mode.into());
        self.make_entry(path, |raw, parent, name| Ok(raw.make_directory(parent, name, mode)?.attributes))
    }

    /// Creates a directory and its missing parents; existing ones are no error.
    pub fn mkdir_all(&self, path: impl AsRef<[u8]>, mode: impl Into<NewMode>) -> Result<()> {
        let (path, mode) = (path.as_ref(), mode.into());
        let raw = self.raw();
        resolve_making(&raw, path, |parent, name| match raw.make_directory(parent, name, mode) {
            // Another client may make the same tree at the same time.
            Err(error) if error.kind() == ErrorKind::Exists => raw.lookup(parent, name),
            made => {
                let inode = made?.attributes.inode;
                Ok(Found { inode, kind: FileKind::Directory, attributes: None })
            }
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name, _) = self.old_entry(path)?;
        self.raw().remove_directory(parent, &name).map_err(|error| error.context(ShownPath(path)))
    }

    /// Removes an entry that is no directory.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        // The server finds out what is there, except where a slash behind the name requires a directory.
        if self.at_entry(path, |raw, parent, name| raw.unlink(parent, name))?.is_some() {
            return Ok(());
        }
        let (parent, name, found) = self.old_entry(path)?;
        if path.ends_with(b"/") && found.kind != FileKind::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, format!("{} is no directory", ShownPath(path))));
        }
        self.raw().unlink(parent, &name).map_err(|error| error.context(ShownPath(path)))
    }

    /// Gives what `old` names the name `new`; links at their ends are not followed. An entry that has the new
    /// name is replaced, kept (`Exists`) or exchanged, as `mode` says.
    pub fn rename(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        let (old, new) = (old.as_ref(), new.as_ref());
        let tell = |error: Error| error.context(format!("{} to {}", ShownPath(old), ShownPath(new)));
        let (parent, name, found) = self.named_entry(old)?;
        let Place::Entry { parent: new_parent, name: new_name, found: there, slash } =
            resolve(&self.raw(), new, LastLink::Keep)?
        else {
            return Err(ends_in_no_name(new));
        };
        // A slash behind a name requires a directory, also for an entry that the rename puts there.
        let there = there.map(|there| there.kind).filter(|_| mode == RenameMode::Exchange);
        if slash && there.unwrap_or(found.kind) != FileKind::Directory {
            return Err(tell(Error::new(ErrorKind::NotDirectory, "what is renamed is no directory")));
        }
        self.raw().rename(parent, &name, new_parent, &new_name, mode).map_err(tell)
    }

    /// Makes `new` one more name of the file or link that `old` names; a link at the end of `old`
    /// is not followed.
    pub fn link(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<Attributes> {
        let (old, new) = (old.as_ref(), new.as_ref());
        let (inode, _) = self.find(old, LastLink::Keep)?;
        let (parent, name) = match resolve(&self.raw(), new, LastLink::Keep)? {
            Place::Entry { found: None, slash: true, .. } => return Err(not_found(new)),
            Place::Entry { found: Some(_), .. } | Place::Directory(_) => {
                return Err(Error::new(ErrorKind::Exists, format!("{} is there already", ShownPath(new))));
            }
            Place::Entry { parent, name, .. } => (parent, name),
        };
        let made = self.raw().link(inode, parent, &name).map_err(|error| error.context(ShownPath(new)))?;
        Ok(made.attributes)
    }

    /// Removes a file, a link, or a directory with all that is in it. Links are not followed.
    pub fn remove_tree(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name, found) = self.old_entry(path)?;
        let removed = match found.kind {
            FileKind::Directory => self.remove_directories(Doomed::new(parent, name, found.inode)),
            _ => forgive_missing(self.raw().unlink(parent, &name)),
        };
        removed.map_err(|error| error.context(ShownPath(path)))
    }

    /// Keeps one directory after the other on a stack of its own: trees may be deeper than the thread's stack
    /// allows.
    fn remove_directories(&self, top: Doomed) -> Result<()> {
        let mut stack = vec![top];
        while let Some(doomed) = stack.last_mut() {
            if doomed.is_emptied {
                match forgive_missing(self.raw().remove_directory(doomed.parent, &doomed.name)) {
                    // An entry was made meanwhile, or something else has the name.
                    Err(error) if matches!(error.kind(), ErrorKind::NotEmpty | ErrorKind::NotDirectory) => {
                        doomed.is_emptied = false;
                    }
                    removed => {
                        removed?;
                        stack.pop();
                    }
                }
                continue;
            }
            let inner = if self.is_there(doomed)? { self.empty(doomed)? } else { None };
            match inner {
                Some(directories) => stack.extend(directories),
                None => _ = stack.pop(),
            }
        }
        Ok(())
    }

    /// Whether a directory has its name still. Others may have moved it out of the tree, and then what is in it is
    /// none of ours; what has the name now is found when the directory above is listed again.
    fn is_there(&self, doomed: &Doomed) -> Result<bool> {
        match self.raw().lookup(doomed.parent, &doomed.name) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => Ok(false),
            found => Ok(found?.inode == doomed.inode),
        }
    }

    /// Removes what one page of a directory names, but for the directories, which it returns; `None` when it went
    /// away meanwhile.
    fn empty(&self, doomed: &mut Doomed) -> Result<Option<Vec<Doomed>>> {
        let inode = doomed.inode;
        let (entries, end) = match self.raw().read_directory(inode, 0, limits::READDIR_ENTRIES_MAX) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => return Ok(None),
            // The directory has nothing left besides what was lost, and that is gone.
            Err(error) if error.kind() == ErrorKind::Lost => (Vec::new(), true),
            page => page.map(|page| (page.entries, page.end))?,
        };
        doomed.is_emptied = end || entries.is_empty();
        let (directories, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.kind == FileKind::Directory);
        self.raw().unlink_all(inode, others.into_iter().map(|entry| entry.name).collect())?;
        Ok(Some(directories.into_iter().map(|entry| Doomed::new(inode, entry.name, entry.inode)).collect()))
    }

    /// Creates a symbolic link at `path` that points to `target`.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Attributes> {
        let path = path.as_ref();
        self.make_entry(path, |raw, parent, name| Ok(raw.symlink(parent, name, target.as_ref())?.attributes))
    }

    /// Creates a named pipe, a socket's address or a device (which takes the super-user). A `mode` without a
    /// umask is used as it is. `device` is as [`ramlace_wire::DeviceNumbers`] encodes it, and 0 for other
    /// kinds.
    pub fn make_node(
        &self,
        path: impl AsRef<[u8]>,
        kind: FileKind,
        mode: impl Into<NewMode>,
        device: u32,
    ) -> Result<Attributes> {
        let (path, mode) = (path.as_ref(), mode.into());
        self.make_entry(path, |raw, parent, name| {
            Ok(raw.make_node(&MakeNode { parent, name: name.clone(), kind, mode, device })?.attributes)
        })
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let found = self.find(path, LastLink::Keep)?;
        if found.1 != FileKind::Symlink {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is no symbolic link", ShownPath(path))));
        }
        self.raw().read_link(found.0).map_err(|error| error.context(ShownPath(path)))
    }

    /// The entries of a directory, in the order of their cookies.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<ReadDir> {
        let path = path.as_ref();
        let (inode, kind) = self.find(path, LastLink::Follow)?;
        if kind != FileKind::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, format!("{} is no directory", ShownPath(path))));
        }
        Ok(ReadDir { path: path.to_vec(), plus: false, ..self.entries_of(inode) })
    }

    /// The same, with the attributes of entries that live on other servers too, as far as they can be had:
    /// with one request for each of these servers and page, not for each entry.
    pub fn read_dir_plus(&self, path: impl AsRef<[u8]>) -> Result<ReadDir> {
        Ok(ReadDir { plus: true, ..self.read_dir(path)? })
    }

    /// The entries of a directory by its inode, with their attributes as in [`Pool::read_dir_plus`]: so a
    /// caller that walks a tree need not resolve each directory's path from the root.
    #[must_use]
    pub fn entries_of(&self, directory: InodeId) -> ReadDir {
        ReadDir {
            pool: self.clone(),
            inode: directory,
            path: Vec::new(),
            plus: true,
            page: VecDeque::new(),
            after: 0,
            end: false,
        }
    }

    /// Changes attributes; a link at the end of the path is followed.
    pub fn set_attributes(&self, path: impl AsRef<[u8]>, changes: &AttributeChanges) -> Result<Attributes> {
        let path = path.as_ref();
        let (inode, _) = self.find(path, LastLink::Follow)?;
        let AttributeChanges { mode, uid, gid, accessed, modified, now } = *changes;
        let times = if now { TimeReason::Now } else { TimeReason::Chosen };
        let request = SetAttributes { inode, mode, uid, gid, accessed, modified, times };
        self.raw().set_attributes(&request).map_err(|error| error.context(ShownPath(path)))
    }

    /// Sets a file's size by path.
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<Attributes> {
        let path = path.as_ref();
        let (inode, _) = self.find(path, LastLink::Follow)?;
        self.raw().truncate(inode, size).map_err(|error| error.context(ShownPath(path)))
    }

    /// A file's layout, or what a directory's files inherit: the `layout` and `hints` of [`Pool::stat`].
    pub fn get_layout(&self, path: impl AsRef<[u8]>) -> Result<InodeInfo> {
        self.stat(path)
    }

    /// Sets what files made in a directory inherit; or a file's own rules: its mode, which `None` removes,
    /// and whether it reserves its memory.
    ///
    /// # Errors
    /// `Busy` where a client has the file open and its rules are to change.
    pub fn set_layout(&self, path: impl AsRef<[u8]>, hints: LayoutHints) -> Result<()> {
        let path = path.as_ref();
        let (inode, kind) = self.find(path, LastLink::Follow)?;
        if kind != FileKind::Directory && !(kind == FileKind::File && hints.is_of_file()) {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                format!(
                    "the layout of {} was fixed when it was created, but for the mode and the reserve of a file; set it on a directory, or \
                     copy the file",
                    ShownPath(path)
                ),
            ));
        }
        self.check_width(hints)
            .and_then(|()| self.raw().set_layout(inode, hints))
            .map_err(|error| error.context(ShownPath(path)))
    }

    /// Refuses a width that no file of this pool can have: a file's lanes lie on different servers, so there
    /// are never more lanes than servers. When a file is created its width is a hint, and is narrowed; people
    /// who ask for a width explicitly get an error.
    pub fn check_width(&self, hints: LayoutHints) -> Result<()> {
        let Some(width) = hints.width else { return Ok(()) };
        let servers = self.map()?.servers.iter().filter(|entry| !entry.forgotten).count();
        if usize::from(width) <= servers {
            return Ok(());
        }
        let text = format!(
            "files cannot have {}: the pool has {}, and each lane lies on another; without a width they get all",
            count(width.into(), "lane"),
            count(servers as u64, "server")
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Opens, or creates, a file.
    pub fn open(&self, path: impl AsRef<[u8]>, options: &OpenOptions) -> Result<File> {
        File::open(self, path.as_ref(), options, 0)
    }

    /// The same for an entry of a directory; a symbolic link is not followed (`Loop`). `path` is what errors of
    /// the open file name it by.
    pub fn open_at(
        &self,
        directory: InodeId,
        name: &Name,
        path: impl AsRef<[u8]>,
        options: &OpenOptions,
    ) -> Result<File> {
        File::open_at(self, (directory, name), path.as_ref(), options)
    }

    fn info_at(&self, path: &[u8], last: LastLink) -> Result<InodeInfo> {
        let session = self.session()?;
        let told = session.times_reported();
        let (place, came) = resolve_with(&self.raw(), path, last, Wanted::Info)?;
        let inode = match place {
            Place::Directory(inode) => inode,
            Place::Entry { found: Some(found), .. } => found.inode,
            Place::Entry { found: None, .. } => return Err(not_found(path)),
        };
        match came.info {
            // The home's answer lacks what this process has written and the home does not know yet.
            Some(info) if info.attributes.inode == inode && !session.has_unreported_times(inode, told) => {
                session.with_allocated(info)
            }
            _ => self.raw().info(inode).map_err(|error| error.context(ShownPath(path))),
        }
    }

    /// The inode that a path leads to, which must be there.
    pub(crate) fn find(&self, path: &[u8], last: LastLink) -> Result<(InodeId, FileKind)> {
        match resolve(&self.raw(), path, last)? {
            Place::Directory(inode) => Ok((inode, FileKind::Directory)),
            Place::Entry { found: Some(found), .. } => Ok((found.inode, found.kind)),
            Place::Entry { found: None, .. } => Err(not_found(path)),
        }
    }

    /// Makes an entry; a slash behind its name changes nothing.
    fn make_entry<T>(&self, path: &[u8], make: impl Fn(Raw<'_>, InodeId, &Name) -> Result<T>) -> Result<T> {
        if let Some(made) = self.at_entry(path, &make)? {
            return Ok(made);
        }
        match resolve(&self.raw(), path, LastLink::Unseen)? {
            Place::Entry { parent, name, .. } => {
                make(self.raw(), parent, &name).map_err(|error| error.context(ShownPath(path)))
            }
            Place::Directory(_) => {
                Err(Error::new(ErrorKind::Exists, format!("{} is there already", ShownPath(path))))
            }
        }
    }

    /// An existing entry; a slash behind its name requires a directory.
    fn named_entry(&self, path: &[u8]) -> Result<(InodeId, Name, Found)> {
        match resolve(&self.raw(), path, LastLink::Keep)? {
            Place::Entry { parent, name, found: Some(found), .. } => Ok((parent, name, found)),
            Place::Entry { found: None, .. } => Err(not_found(path)),
            Place::Directory(_) => Err(ends_in_no_name(path)),
        }
    }

    /// An existing entry; a link is not followed even with a slash behind it.
    fn old_entry(&self, path: &[u8]) -> Result<(InodeId, Name, Found)> {
        let trimmed = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
        let path = if trimmed == 0 { path } else { &path[..trimmed] };
        match resolve(&self.raw(), path, LastLink::Keep)? {
            Place::Entry { parent, name, found: Some(found), .. } => Ok((parent, name, found)),
            Place::Entry { found: None, .. } => Err(not_found(path)),
            Place::Directory(_) => Err(Error::new(
                ErrorKind::Invalid,
                format!("{} ends in no name that could be removed", ShownPath(path)),
            )),
        }
    }
}

/// Linux returns EBUSY for `.`, `..` and the root.
fn ends_in_no_name(path: &[u8]) -> Error {
    Error::new(ErrorKind::Busy, format!("{} ends in no name that could be changed", ShownPath(path)))
}

fn not_found(path: &[u8]) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} does not exist", ShownPath(path)))
}

fn forgive_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The entries of a directory, fetched page by page.
pub struct ReadDir {
    pool: Pool,
    inode: InodeId,
    /// The path as given, for messages; empty when the directory was given by inode.
    path: Vec<u8>,
    /// With the attributes of all entries.
    plus: bool,
    page: VecDeque<DirectoryEntry>,
    after: u64,
    end: bool,
}

impl ReadDir {
    fn fetch(&mut self) -> Result<()> {
        let (raw, most) = (self.pool.raw(), limits::READDIR_ENTRIES_MAX);
        let page = if self.plus {
            raw.read_directory_plus(self.inode, self.after, most)?
        } else {
            raw.read_directory(self.inode, self.after, most)?
        };
        self.end = page.end;
        if let Some(last) = page.entries.last() {
            if last.cookie <= self.after {
                return Err(Error::new(ErrorKind::Corrupt, "a directory's cookies do not grow"));
            }
            self.after = last.cookie;
        }
        self.page = page.entries.into();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirectoryEntry>;

    fn next(&mut self) -> Option<Result<DirectoryEntry>> {
        while self.page.is_empty() && !self.end {
            if let Err(error) = self.fetch() {
                self.end = true;
                let shown = !self.path.is_empty();
                return Some(Err(if shown { error.context(ShownPath(&self.path)) } else { error }));
            }
        }
        self.page.pop_front().map(Ok)
    }
}

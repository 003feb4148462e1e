//! Opening files: the access wanted, what to create when there is none, and where its bytes shall lie.

use std::time::Instant;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_wire::namespace::{Create, CreateUnnamed, NewMode, Open, OpenEntry, Opened};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints, Mode};

use crate::Pool;
use crate::backoff::Backoff;
use crate::bytes::file::File;
use crate::names::gates::{OpenAnswer, OpenByName};
use crate::names::path::{LastLink, Place, Wanted, resolve, resolve_with};
use crate::names::placing::Placing;
use crate::names::raw::Raw;
use crate::names::rights::Rights;
use crate::pool::locator::ShownPath;

/// How [`Pool::open`] opens a file. The default opens nothing: set `read` or `write`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file when it is not there. A new file is opened with the access wanted, whatever `mode`
    /// says.
    pub create: bool,
    /// With `create`: fail when the name is taken.
    pub exclusive: bool,
    /// Truncate the file to nothing; needs `write`.
    pub truncate: bool,
    /// Every write goes to the end, whatever its offset; implies `write`.
    pub append: bool,
    /// Permission bits of a new file, and the caller's umask.
    pub mode: NewMode,
    /// Where the bytes of a new file shall lie.
    pub hints: LayoutHints,
    /// On which servers they shall lie.
    pub placing: Placing,
    /// Named attributes of a new file.
    pub named: FileAttributes,
    /// The consistency mode of this open file; `None`: coherent. If the file's own mode is stricter, that
    /// counts.
    ///
    /// `Relaxed`: small reads may be answered again from this process's cache
    /// ([`crate::ConnectOptions::cache_bytes`]), whatever others have changed, until [`File::refresh_range`]
    /// or until it takes a lock of these bytes. No other client waits for this file. `Strict`: every read
    /// asks the servers, and nothing of the file is mapped or copied into memory, where others would see a
    /// store later.
    pub sharing: Option<Mode>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            mode: NewMode { mode: 0o644, umask: 0 },
            hints: LayoutHints::default(),
            placing: Placing::Usual,
            named: FileAttributes::new(),
            sharing: None,
        }
    }
}

impl OpenOptions {
    /// For reading.
    #[must_use]
    pub fn reading() -> OpenOptions {
        OpenOptions { read: true, ..OpenOptions::default() }
    }

    /// For reading and writing, created when missing.
    #[must_use]
    pub fn creating() -> OpenOptions {
        OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
    }

    fn request(
        &self,
        pool: &Pool,
        parent: InodeId,
        name: Name,
        rights: Rights,
        unit_min: u64,
    ) -> Result<Create> {
        let layout = self.placing.layout(pool, (parent, &name), self.hints, unit_min)?;
        let here = self.placing == Placing::Here;
        Ok(Create {
            parent,
            name,
            mode: self.mode,
            exclusive: self.exclusive,
            read: rights.read,
            write: rights.write,
            layout,
            wish: pool.session()?.layout_wish(self.hints, unit_min, here),
            named: self.named.clone(),
        })
    }

    /// The mode of an open file, given the file's own mode.
    fn sharing_of(&self, own: Option<Mode>) -> Mode {
        self.sharing.map_or(Mode::Coherent, |asked| asked.or_stricter(own.unwrap_or(asked)))
    }

    fn rights(&self) -> Result<Rights> {
        let rights = Rights { read: self.read, write: self.write || self.append };
        if !rights.read && !rights.write {
            return Err(Error::new(ErrorKind::Invalid, "a file is opened for reading, for writing, or both"));
        }
        if !rights.write && self.truncate {
            return Err(Error::new(ErrorKind::Invalid, "truncating needs a file open for writing"));
        }
        Ok(rights)
    }
}

impl Pool {
    /// All bytes of a file. Those of an inline file come with the last step of its path: with a single
    /// request if one server has all directories of it.
    ///
    /// Errors: as for an open for reading; `OutOfMemory` when they do not fit.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        if let Some(bytes) = self.read_small(path)? {
            return Ok(bytes);
        }
        let file = self.open(path, &OpenOptions::reading())?;
        let mut bytes = Vec::new();
        // The file had this size when it was opened, which was during this call.
        let size = usize::try_from(file.known_size()).unwrap_or(usize::MAX);
        let refuse = |_| Error::new(ErrorKind::NoSpace, format!("there is no memory for {size} bytes"));
        bytes.try_reserve_exact(size).map_err(refuse).map_err(|error| file.tell(error))?;
        bytes.resize(size, 0);
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// The same for an inline file; `None` when the file is not inline, or when its server was not among
    /// those that resolved the path: then open it.
    pub fn read_small(&self, path: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let (_, came) = resolve_with(&self.raw(), path.as_ref(), LastLink::Follow, Wanted::Bytes)?;
        Ok(came.bytes)
    }
}

impl File {
    /// Opens, or creates, a file; a new one gets a stripe unit of `unit_min` bytes at least.
    pub(crate) fn open(pool: &Pool, path: &[u8], options: &OpenOptions, unit_min: u64) -> Result<File> {
        let tell = |error: Error| error.context(ShownPath(path));
        let rights = options.rights().map_err(tell)?;
        File::open_until(pool, path, options, || File::open_once(pool, path, options, rights, unit_min))
    }

    /// The same for an entry of a directory; a symbolic link is not followed.
    pub(crate) fn open_at(
        pool: &Pool,
        (directory, name): (InodeId, &Name),
        path: &[u8],
        options: &OpenOptions,
    ) -> Result<File> {
        let tell = |error: Error| error.context(ShownPath(path));
        let (rights, raw) = (options.rights().map_err(tell)?, pool.raw());
        File::open_until(pool, path, options, || {
            let opened = if options.create {
                options
                    .request(pool, directory, name.clone(), rights, 0)
                    .and_then(|request| raw.create(&request))
            } else {
                raw.open_entry(directory, name, rights)
            };
            opened.map_err(tell)
        })
    }

    fn open_until(
        pool: &Pool,
        path: &[u8],
        options: &OpenOptions,
        open_once: impl Fn() -> Result<(File, Opened)>,
    ) -> Result<File> {
        let mut backoff = Backoff::new(pool.session()?.deadline());
        let (mut file, opened) = loop {
            match open_once() {
                // The entry was removed, or created, between the lookup and the open.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Stale | ErrorKind::Retry)
                        && !pool.session()?.is_ended()
                        && backoff.pause().is_ok() => {}
                other => break other?,
            }
        };
        file.path = path.to_vec();
        file.append = options.append;
        file.sharing = options.sharing_of(file.mode());
        if options.truncate && !opened.created && opened.info.attributes.size > 0 {
            file.truncate(0)?;
        }
        Ok(file)
    }

    fn open_once(
        pool: &Pool,
        path: &[u8],
        options: &OpenOptions,
        rights: Rights,
        unit_min: u64,
    ) -> Result<(File, Opened)> {
        let opened = pool.at_entry(path, |raw, parent, name| {
            if options.create {
                raw.create(&options.request(pool, parent, name.clone(), rights, unit_min)?)
            } else {
                raw.open_entry(parent, name, rights)
            }
        });
        match opened {
            Ok(Some(opened)) => return Ok(opened),
            // The path does not end in a name, or names a symbolic link: it is followed, except with O_EXCL.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Loop && !options.exclusive => {}
            Err(error) => return Err(error),
        }
        // O_EXCL does not follow a link at the end; everything else does.
        let last = if options.create && options.exclusive { LastLink::Keep } else { LastLink::Follow };
        let raw = pool.raw();
        let refuse = |kind, text| Err(Error::new(kind, text));
        let opened = match resolve(&raw, path, last)? {
            Place::Directory(_) => refuse(ErrorKind::IsDirectory, "it is a directory"),
            Place::Entry { found: Some(_), .. } if options.create && options.exclusive => {
                refuse(ErrorKind::Exists, "it is there already")
            }
            Place::Entry { found: Some(found), .. } => match found.kind {
                FileKind::Directory => refuse(ErrorKind::IsDirectory, "it is a directory"),
                _ => File::open_inode(pool, found.inode, rights),
            },
            Place::Entry { found: None, slash: true, .. } => {
                refuse(ErrorKind::IsDirectory, "a path that ends with a slash names no file")
            }
            Place::Entry { parent, name, found: None, .. } if options.create => {
                raw.create(&options.request(pool, parent, name, rights, unit_min)?)
            }
            Place::Entry { found: None, .. } => refuse(ErrorKind::NotFound, "it does not exist"),
        };
        opened.map_err(|error| error.context(ShownPath(path)))
    }

    pub(crate) fn create(
        raw: Raw<'_>,
        request: &Create,
        is_free: Option<&dyn Fn() -> bool>,
    ) -> Result<(File, Opened)> {
        let rights = Rights { read: request.read, write: request.write };
        let session = raw.pool.session()?;
        let by_name = session.inodes.open_by_name();
        let behind = is_free.filter(|_| raw.by_path.is_empty());
        let behind = behind.and_then(|is_free| session.create_behind(request, is_free));
        let create = || raw.open_by_entry(request.parent, &request.name, request);
        match behind.unwrap_or_else(|| session.with_room_to_open(create)) {
            Err(error) if error.kind() == ErrorKind::Exists && !request.exclusive => {
                File::open_elsewhere(raw, request.parent, &request.name, rights)
            }
            opened => File::adopt(raw.pool, opened?, rights, &by_name),
        }
    }

    pub(crate) fn open_entry(
        raw: Raw<'_>,
        parent: InodeId,
        name: &Name,
        rights: Rights,
    ) -> Result<(File, Opened)> {
        let request = OpenEntry { parent, name: name.clone(), read: rights.read, write: rights.write };
        let session = raw.pool.session()?;
        let by_name = session.inodes.open_by_name();
        match raw.open_by_entry(parent, name, &request) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                File::open_elsewhere(raw, parent, name, rights)
            }
            opened => File::adopt(raw.pool, opened?, rights, &by_name),
        }
    }

    /// The entry exists, and its inode lives in another slot: an inode keeps its number when its name moves.
    fn open_elsewhere(raw: Raw<'_>, parent: InodeId, name: &Name, rights: Rights) -> Result<(File, Opened)> {
        let found = raw.lookup(parent, name).map_err(come_again)?;
        File::open_inode(raw.pool, found.inode, rights)
    }

    fn adopt(
        pool: &Pool,
        opened: Opened,
        rights: Rights,
        by_name: &OpenByName<'_>,
    ) -> Result<(File, Opened)> {
        let (handle, opened) = pool.session()?.adopt(opened, rights, by_name)?;
        Ok((File::new(pool, &opened, rights, handle)?, opened))
    }

    pub(crate) fn create_unnamed(pool: &Pool, request: &CreateUnnamed) -> Result<(File, Opened)> {
        let session = pool.session()?;
        let rights = Rights { read: request.read, write: request.write };
        let by_name = session.inodes.open_by_name();
        let opened = session.change(request.parent.slot(), request, session.deadline())?;
        File::adopt(pool, opened, rights, &by_name)
    }

    pub(crate) fn open_inode(pool: &Pool, inode: InodeId, rights: Rights) -> Result<(File, Opened)> {
        File::open_as(pool, &Open { inode, read: rights.read, write: rights.write, run: false }, rights)
    }

    pub(crate) fn reopen(
        pool: &Pool,
        inode: InodeId,
        now: impl FnOnce() -> Option<(Attributes, Instant)>,
    ) -> Option<(File, OpenAnswer)> {
        let session = pool.session().ok()?;
        if !session.inodes.has_deferred_close(inode) {
            return None;
        }
        let (now, leased) = now()?;
        let (handle, answer) = session.reopen(inode, (&now, leased))?;
        let rights = Rights { read: true, write: false };
        Some((File::new(pool, &answer.opened, rights, handle).ok()?, answer))
    }

    pub(crate) fn open_to_run(pool: &Pool, inode: InodeId) -> Result<(File, Opened)> {
        let rights = Rights { read: true, write: false };
        File::open_as(pool, &Open { inode, read: false, write: false, run: true }, rights)
    }

    fn open_as(pool: &Pool, request: &Open, rights: Rights) -> Result<(File, Opened)> {
        let (handle, opened) = pool.session()?.open_inode(request)?;
        Ok((File::new(pool, &opened, rights, handle)?, opened))
    }
}

/// The name was removed between the create and the lookup: the same create finds it free.
fn come_again(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Retry, error.message()),
        _ => error,
    }
}

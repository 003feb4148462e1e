//! An open file: positional reads and writes, append, size.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, limits};
use ramlace_wire::chunk::{AllocateLane, PunchChunk};
use ramlace_wire::namespace::{
    Create, Extend, FinishAppend, GetAttributes, InodeInfo, Open, Opened, ReserveAppend, Truncate,
};
use ramlace_wire::{FileAttributes, FileKind, Layout, LayoutHints};

use crate::Pool;
use crate::fork::PerFork;
use crate::inodes::{Handle, Size};
use crate::locator::ShownPath;
use crate::path::{LastLink, Place, resolve};
use crate::session::{Backoff, Session};
use crate::transfer::{Direction, Memory, Outcome, Transfer};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// How [`Pool::open`] opens a file. The default opens nothing: set `read` or `write`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file when it is not there; needs `write` or `append`.
    pub create: bool,
    /// With `create`: fail when the name is taken.
    pub exclusive: bool,
    /// Cut the file to nothing; needs `write`.
    pub truncate: bool,
    /// Every write goes to the end, whatever its offset; implies `write`.
    pub append: bool,
    /// Permission bits of a new file, after the caller's umask.
    pub mode: u16,
    /// Where the bytes of a new file shall lie.
    pub hints: LayoutHints,
    /// Named bytes of a new file.
    pub named: FileAttributes,
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
            mode: 0o644,
            hints: LayoutHints::default(),
            named: FileAttributes::new(),
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

    fn rights(&self) -> Result<Rights> {
        let rights = Rights { read: self.read, write: self.write || self.append };
        if !rights.read && !rights.write {
            return Err(Error::new(ErrorKind::Invalid, "a file is opened for reading, for writing, or both"));
        }
        if !rights.write && (self.create || self.truncate) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "creating and truncating need a file open for writing",
            ));
        }
        Ok(rights)
    }
}

/// An open file. Methods take `&self` and may be called by many threads at once. Dropping it
/// closes it; the inode lives until its last open file in any client is closed.
///
/// After a fork the child opens the inode again, in a session of its own, when it first uses it.
pub struct File {
    pool: Pool,
    inode: InodeId,
    rights: Rights,
    append: bool,
    layout: Layout,
    named: FileAttributes,
    /// As it was opened, for messages; empty when it was opened by inode.
    path: Vec<u8>,
    handles: PerFork<Handle>,
}

impl File {
    /// Opens, or creates, a file; a new one gets a stripe unit of `unit_min` bytes at least.
    pub(crate) fn open(pool: &Pool, path: &[u8], options: &OpenOptions, unit_min: u64) -> Result<File> {
        let tell = |error: Error| error.context(ShownPath(path));
        let rights = options.rights().map_err(tell)?;
        let mut backoff = Backoff::new(pool.session()?.deadline());
        let (mut file, opened) = loop {
            match File::open_once(pool, path, options, rights, unit_min) {
                // The entry went, or came, between the lookup and the open.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Stale | ErrorKind::Retry)
                        && !pool.session()?.is_ended()
                        && backoff.pause().is_ok() => {}
                other => break other.map_err(tell)?,
            }
        };
        file.path = path.to_vec();
        file.append = options.append;
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
        // O_EXCL does not follow a link at the end; everything else does.
        let last = if options.create && options.exclusive { LastLink::Keep } else { LastLink::Follow };
        let raw = pool.raw();
        match resolve(&raw, path, last)? {
            Place::Directory(_) => Err(Error::new(ErrorKind::IsDirectory, "it is a directory")),
            Place::Entry { found: Some(_), .. } if options.create && options.exclusive => {
                Err(Error::new(ErrorKind::Exists, "it is there already"))
            }
            Place::Entry { found: Some(found), .. } => match found.kind {
                FileKind::Directory => Err(Error::new(ErrorKind::IsDirectory, "it is a directory")),
                _ => File::open_inode(pool, found.inode, rights),
            },
            Place::Entry { found: None, slash: true, .. } => {
                Err(Error::new(ErrorKind::IsDirectory, "a path that ends with a slash names no file"))
            }
            Place::Entry { parent, name, found: None, .. } if options.create => {
                let mut layout = raw.choose_layout(parent, &name, options.hints)?;
                layout.stripe_unit = layout.stripe_unit.max(unit_min);
                let request = Create {
                    parent,
                    name,
                    mode: options.mode,
                    exclusive: options.exclusive,
                    layout,
                    named: options.named.clone(),
                };
                raw.create(&request, rights)
            }
            Place::Entry { found: None, .. } => Err(Error::new(ErrorKind::NotFound, "it does not exist")),
        }
    }

    pub(crate) fn create(pool: &Pool, request: &Create, rights: Rights) -> Result<(File, Opened)> {
        let session = pool.session()?;
        let opened = session.change(request.parent.slot(), request, session.deadline())?;
        let handle = session.adopt(&opened, rights)?;
        Ok((File::new(pool, &opened, rights, handle)?, opened))
    }

    pub(crate) fn open_inode(pool: &Pool, inode: InodeId, rights: Rights) -> Result<(File, Opened)> {
        let request = Open { inode, read: rights.read, write: rights.write };
        let (handle, opened) = pool.session()?.open_inode(&request)?;
        Ok((File::new(pool, &opened, rights, handle)?, opened))
    }

    fn new(pool: &Pool, opened: &Opened, rights: Rights, handle: Handle) -> Result<File> {
        let inode = opened.info.attributes.inode;
        let Some(layout) = opened.info.layout else {
            return Err(Error::new(ErrorKind::Invalid, format!("inode {inode} is no regular file")));
        };
        Ok(File {
            pool: pool.clone(),
            inode,
            rights,
            append: false,
            layout,
            named: opened.info.named.clone(),
            path: Vec::new(),
            handles: PerFork::with(handle),
        })
    }

    /// The inode.
    #[must_use]
    pub fn inode(&self) -> InodeId {
        self.inode
    }

    /// The pool it was opened from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where its bytes lie; never changes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Named bytes from its creation.
    #[must_use]
    pub fn named(&self) -> &FileAttributes {
        &self.named
    }

    /// What it was opened for.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Attributes, layout and named bytes as the home has them now.
    pub fn info(&self) -> Result<InodeInfo> {
        self.refresh(self.handle()?).map_err(|error| self.tell(error))
    }

    /// The published size in bytes.
    pub fn size(&self) -> Result<u64> {
        Ok(self.info()?.attributes.size)
    }

    /// Reads at `offset` until the buffer is full or the file ends; returns the bytes read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let memory = Memory::of_slice(buffer, offset);
        // SAFETY: the memory is the caller's exclusive buffer until this call returns.
        unsafe { self.read_into(&memory, offset) }
    }

    /// Reads at `offset` into several buffers, one after the other.
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let memory = Memory::of_slices_mut(buffers, offset);
        // SAFETY: as in `read_at`.
        unsafe { self.read_into(&memory, offset) }
    }

    /// Writes at `offset` and returns the bytes written: fewer than given only when the pool
    /// filled up in the middle; the next call then says so.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        if self.append {
            return self.append(bytes).map(|_| bytes.len());
        }
        let memory = Memory::of_bytes(bytes, offset);
        // SAFETY: the memory is the caller's shared buffer, which a write only reads.
        unsafe { self.write_from(&memory, offset) }
    }

    /// Writes several buffers, one after the other.
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        if self.append {
            let joined: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            return self.append(&joined).map(|_| joined.len());
        }
        let memory = Memory::of_slices(buffers, offset);
        // SAFETY: as in `write_at`.
        unsafe { self.write_from(&memory, offset) }
    }

    /// Writes all bytes at the file's end, which the home chooses, and returns where that was.
    /// Bytes of one append are never mixed with another's; a failed one leaves a hole.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.needs(self.rights.write, "writing")?;
        let handle = self.handle()?;
        if bytes.is_empty() {
            return self.size();
        }
        self.append_all(handle, bytes).map_err(|error| self.tell(error))
    }

    fn append_all(&self, handle: &Handle, bytes: &[u8]) -> Result<u64> {
        let session = &handle.session;
        let mut backoff = Backoff::new(session.deadline());
        loop {
            let request = ReserveAppend { inode: self.inode, length: bytes.len() as u64 };
            let reserved = session.change(self.inode.slot(), &request, session.deadline())?;
            let memory = Memory::of_bytes(bytes, reserved.offset);
            let size = Size { generation: reserved.generation, size: reserved.offset };
            // SAFETY: a write only reads the caller's buffer.
            let outcome = unsafe { self.transfer(session, size, Direction::Write, &memory).run() };
            // Finished even when it failed: an open reservation holds the published size back.
            let finish = FinishAppend { inode: self.inode, offset: reserved.offset };
            let finished = session.change(self.inode.slot(), &finish, session.deadline());
            match outcome {
                Outcome::Done => {
                    let finished = finished?;
                    handle.open.learn(Size { generation: finished.generation, size: finished.size });
                    return Ok(reserved.offset);
                }
                Outcome::Failed { error, .. } => return Err(error),
                Outcome::Outdated(error) => backoff.pause_after(error)?,
            }
        }
    }

    /// Sets the size.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.needs(self.rights.write, "writing")?;
        let handle = self.handle()?;
        let session = &handle.session;
        let written = handle.open.written();
        let request = Truncate { inode: self.inode, size };
        let attributes = session
            .change(self.inode.slot(), &request, session.deadline())
            .map_err(|error| self.tell(error))?;
        handle.open.learn(Size { generation: attributes.generation, size: attributes.size });
        handle.open.clean_if(written);
        Ok(())
    }

    /// Takes the memory of the file's first `length` bytes and makes the file at least so long.
    /// Without room for all of it, NoSpace; what some lanes took by then is given back at the
    /// last close.
    pub fn allocate(&self, length: u64) -> Result<()> {
        self.needs(self.rights.write, "writing")?;
        check_range(0, length).map_err(|error| self.tell(error))?;
        let handle = self.handle()?;
        let allocate = |size: Size| {
            for lane in 0..self.layout.width {
                let lane_length = ramlace_layout::lane_length(&self.layout, lane, length);
                if lane_length > 0 {
                    let transfer = self.transfer(&handle.session, size, Direction::Write, &Memory::NONE);
                    let target = transfer.target(lane)?;
                    let request = AllocateLane { target, length: lane_length };
                    handle.session.change_lane(target.slot, &request, handle.session.deadline())?;
                }
            }
            self.extend(handle, size, length)
        };
        self.with_size(handle, allocate).map_err(|error| self.tell(error))
    }

    /// Frees a range; it reads as zeros afterwards. The size stays.
    pub fn punch(&self, range: ByteRange) -> Result<()> {
        self.needs(self.rights.write, "writing")?;
        check_range(range.start, range.length()).map_err(|error| self.tell(error))?;
        let handle = self.handle()?;
        let punch = |size: Size| {
            for lane in 0..self.layout.width {
                let span = ramlace_layout::lane_span(&self.layout, lane, range);
                if !span.is_empty() {
                    let transfer = self.transfer(&handle.session, size, Direction::Write, &Memory::NONE);
                    let target = transfer.target(lane)?;
                    let request = PunchChunk { target, offset: span.start, length: span.length() };
                    handle.session.change_lane(target.slot, &request, handle.session.deadline())?;
                }
            }
            handle.session.touch(&handle.open);
            Ok(())
        };
        self.with_size(handle, punch).map_err(|error| self.tell(error))
    }

    /// Makes times exact at the home. Written bytes are in the servers' memory already when a
    /// write returns; there is nothing behind it that they could be flushed to.
    pub fn sync(&self) -> Result<()> {
        let handle = self.handle()?;
        handle.session.push_times(self.inode).map_err(|error| self.tell(error))
    }

    /// Closes the file and says whether that went well; dropping it closes it as well.
    pub fn close(self) -> Result<()> {
        match self.handles.get() {
            Some(handle) => handle.close().map_err(|error| self.tell(error)),
            None => Ok(()),
        }
    }

    /// This process's open reference; a forked child opens the inode when it first uses it.
    pub(crate) fn handle(&self) -> Result<&Handle> {
        self.handles
            .get_or_make(|| {
                let request = Open { inode: self.inode, read: self.rights.read, write: self.rights.write };
                self.pool.session()?.open_inode(&request).map(|(handle, _)| handle)
            })
            .map_err(|error| self.tell(error))
    }

    pub(crate) fn tell(&self, error: Error) -> Error {
        if self.path.is_empty() {
            error.context(format!("inode {}", self.inode))
        } else {
            error.context(ShownPath(&self.path))
        }
    }

    fn needs(&self, right: bool, what: &str) -> Result<()> {
        if right {
            return Ok(());
        }
        Err(self.tell(Error::new(ErrorKind::BadHandle, format!("it was not opened for {what}"))))
    }

    /// Asks the home for everything about the inode.
    fn refresh(&self, handle: &Handle) -> Result<InodeInfo> {
        let session = &handle.session;
        session.push_times(self.inode)?;
        let info =
            session.ask(self.inode.slot(), &GetAttributes { inode: self.inode }, session.deadline())?;
        handle.open.learn(Size { generation: info.attributes.generation, size: info.attributes.size });
        Ok(info)
    }

    /// Runs `work` with the known generation; when the file was truncated meanwhile, asks the
    /// home and runs it again.
    pub(crate) fn with_size<T>(&self, handle: &Handle, mut work: impl FnMut(Size) -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::new(handle.session.deadline());
        loop {
            match work(handle.open.size()) {
                Err(error) if error.kind() == ErrorKind::Retry => {
                    backoff.pause_after(error)?;
                    self.refresh(handle)?;
                }
                other => return other,
            }
        }
    }

    pub(crate) fn transfer<'a>(
        &'a self,
        session: &'a Arc<Session>,
        size: Size,
        direction: Direction,
        memory: &'a Memory<'a>,
    ) -> Transfer<'a> {
        Transfer {
            session,
            inode: self.inode,
            layout: &self.layout,
            generation: size.generation,
            direction,
            memory,
            saw_hole: Cell::new(false),
        }
    }

    /// Reads the file's bytes into the memory that stands for them, from `offset` on.
    ///
    /// # Safety
    /// The memory must be valid for writes until the call returns.
    pub(crate) unsafe fn read_into(&self, memory: &Memory<'_>, offset: u64) -> Result<usize> {
        self.needs(self.rights.read, "reading")?;
        let handle = self.handle()?;
        // What lies beyond the largest file lies beyond the end of this one.
        let length = (memory.bytes() as u64).min(limits::FILE_BYTES_MAX.saturating_sub(offset));
        if length == 0 {
            return Ok(0);
        }
        let mut backoff: Option<Backoff> = None;
        loop {
            let mut size = handle.open.size();
            if offset + length > size.size {
                let info = self.refresh(handle).map_err(|error| self.tell(error))?;
                size = Size { generation: info.attributes.generation, size: info.attributes.size };
            }
            let there = size.size.saturating_sub(offset).min(length);
            if there == 0 {
                return Ok(0);
            }
            let clamped = memory.clamped(there as usize);
            let transfer = self.transfer(&handle.session, size, Direction::Read, &clamped);
            // SAFETY: the caller's promise.
            match unsafe { transfer.run() } {
                Outcome::Done if transfer.saw_hole.get() && !self.is_current(handle, size)? => {}
                Outcome::Done => return Ok(there as usize),
                Outcome::Failed { error, .. } => return Err(self.tell(error)),
                Outcome::Outdated(error) => {
                    let backoff = backoff.get_or_insert_with(|| Backoff::new(handle.session.deadline()));
                    backoff.pause_after(error).map_err(|error| self.tell(error))?;
                    self.refresh(handle).map_err(|error| self.tell(error))?;
                }
            }
        }
    }

    /// Whether the file still has this generation, by its home.
    fn is_current(&self, handle: &Handle, size: Size) -> Result<bool> {
        let info = self.refresh(handle).map_err(|error| self.tell(error))?;
        Ok(info.attributes.generation == size.generation)
    }

    /// Writes the file's bytes from the memory that stands for them.
    ///
    /// # Safety
    /// The memory must be valid for reads until the call returns.
    pub(crate) unsafe fn write_from(&self, memory: &Memory<'_>, offset: u64) -> Result<usize> {
        self.needs(self.rights.write, "writing")?;
        let handle = self.handle()?;
        let length = memory.bytes() as u64;
        check_range(offset, length).map_err(|error| self.tell(error))?;
        if length == 0 {
            return Ok(0);
        }
        let mut backoff: Option<Backoff> = None;
        loop {
            let size = handle.open.size();
            // SAFETY: the caller's promise.
            let outcome = unsafe { self.transfer(&handle.session, size, Direction::Write, memory).run() };
            let written = match outcome {
                Outcome::Done => Ok(length),
                Outcome::Failed { done_to, error }
                    if error.kind() == ErrorKind::NoSpace && done_to > offset =>
                {
                    Ok(done_to - offset)
                }
                Outcome::Failed { error, .. } => return Err(self.tell(error)),
                Outcome::Outdated(error) => Err(error),
            };
            let extended = match written {
                Ok(written) => self.extend(handle, size, offset + written).map(|()| written as usize),
                Err(error) => Err(error),
            };
            match extended {
                Err(error) if error.kind() == ErrorKind::Retry => {
                    let deadline = || Backoff::new(handle.session.deadline());
                    backoff
                        .get_or_insert_with(deadline)
                        .pause_after(error)
                        .map_err(|error| self.tell(error))?;
                    self.refresh(handle).map_err(|error| self.tell(error))?;
                }
                other => return other.map_err(|error| self.tell(error)),
            }
        }
    }

    /// Tells the home that the file reaches `end`, unless that is known; marks it as written.
    fn extend(&self, handle: &Handle, size: Size, end: u64) -> Result<()> {
        if end <= size.size {
            handle.session.touch(&handle.open);
            return Ok(());
        }
        let written = handle.open.written();
        let request = Extend { inode: self.inode, generation: size.generation, size: end };
        let told = handle.session.change_lane(self.inode.slot(), &request, handle.session.deadline())?;
        handle.open.learn(Size { generation: told.generation, size: told.size });
        // The home took its own time for this, which is later than what it had not heard of.
        handle.open.clean_if(written);
        Ok(())
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "File({} at '{}')", self.inode, ShownPath(&self.path))
    }
}

fn check_range(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
        _ => Err(Error::new(
            ErrorKind::TooBig,
            format!(
                "{length} bytes at offset {offset} reach beyond the largest file, {} bytes",
                limits::FILE_BYTES_MAX
            ),
        )),
    }
}

/// The overall deadline of one call that began now.
pub(crate) fn deadline_in(millis: u32) -> Instant {
    Instant::now() + std::time::Duration::from_millis(millis.into())
}

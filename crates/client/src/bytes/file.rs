//! An open file: its layout and rights, and its share of the inode that this process holds open.

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::namespace::{GetAttributes, InodeInfo, Open, Opened};
use ramlace_wire::{Attributes, FileAttributes, FileRules, Layout, Mode};

use crate::Pool;
use crate::backoff::Backoff;
use crate::bytes::keeping::{CachedReads, RelaxedReads};
use crate::fork::PerFork;
use crate::names::gates::OpenAnswer;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::names::rights::Rights;
use crate::pool::locator::ShownPath;

/// An open file. Methods take `&self` and may be called by many threads at once. Dropping it closes it; the
/// inode lives until its last open file in any client is closed.
///
/// After a fork the child opens the inode again, in a session of its own, when it first uses it.
pub struct File {
    pool: Pool,
    inode: InodeId,
    rights: Rights,
    pub(crate) append: bool,
    layout: Layout,
    rules: FileRules,
    /// The consistency mode of this open file.
    pub(crate) sharing: Mode,
    named: FileAttributes,
    /// The path by which it was opened, for messages; empty when it was opened by inode.
    pub(crate) path: Vec<u8>,
    handles: PerFork<Handle>,
    /// Its cached blocks, from the first read on.
    pub(crate) cached: PerFork<Box<dyn CachedReads>>,
    /// The same if it is open in relaxed mode.
    pub(crate) relaxed: PerFork<Box<dyn RelaxedReads>>,
}

impl File {
    pub(crate) fn new(pool: &Pool, opened: &Opened, rights: Rights, handle: Handle) -> Result<File> {
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
            rules: opened.info.hints.rules,
            sharing: Mode::Coherent,
            named: opened.info.named.clone(),
            path: Vec::new(),
            handles: PerFork::with(handle),
            cached: PerFork::new(),
            relaxed: PerFork::new(),
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

    /// The file's own consistency mode when it was opened; it cannot be changed while it is open.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.rules.mode
    }

    /// The file's own rules; like the mode, they cannot be changed while it is open.
    #[must_use]
    pub fn rules(&self) -> FileRules {
        self.rules
    }

    /// Whether a change that makes it longer allocates the memory of all that is new; this cannot be changed
    /// either while it is open.
    #[must_use]
    pub fn reserves(&self) -> bool {
        self.rules.reserve
    }

    /// The mode of this open file: what it was opened in ([`crate::OpenOptions::sharing`]), or the file's own where that is stricter.
    #[must_use]
    pub fn sharing(&self) -> Mode {
        self.sharing
    }

    /// Named attributes from its creation.
    #[must_use]
    pub fn named(&self) -> &FileAttributes {
        &self.named
    }

    /// The access for which it was opened.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Attributes, layout and named bytes as the home has them now, and what memory it holds.
    pub fn info(&self) -> Result<InodeInfo> {
        let handle = self.handle()?;
        let info = self.refresh(handle).and_then(|info| handle.session.with_allocated(info));
        info.map_err(|error| self.tell(error))
    }

    /// The published size in bytes.
    pub fn size(&self) -> Result<u64> {
        self.refresh(self.handle()?).map(|info| info.attributes.size).map_err(|error| self.tell(error))
    }

    /// The size that was last learned: the file had it when it was opened, or later.
    #[must_use]
    pub fn known_size(&self) -> u64 {
        self.handles.get().map_or(0, |handle| handle.open.size().size)
    }

    /// Learns attributes that the home has sent in another reply.
    pub fn learn(&self, attributes: &Attributes) {
        if let Some(handle) = self.handles.get() {
            handle.open.learn(Size { generation: attributes.generation, size: attributes.size });
        }
    }

    /// Makes times exact at the home. Written bytes are in the servers' memory when a write returns; there is
    /// no further storage to flush them to.
    pub fn sync(&self) -> Result<()> {
        let handle = self.handle()?;
        handle.session.push_times(self.inode).map_err(|error| self.tell(error))
    }

    /// Closes the file and returns errors of that; dropping it closes it as well.
    pub fn close(self) -> Result<()> {
        match self.handles.get() {
            Some(handle) => handle.close().map_err(|error| self.tell(error)),
            None => Ok(()),
        }
    }

    /// What a drop does. Returns the attributes of a file that was open for writing, if its home has sent them with a
    /// lease ([`crate::Raw::lease_attributes`]): where this was the process's last open file of the inode.
    pub fn let_go(self) -> Option<Attributes> {
        self.handles.get().and_then(Handle::let_go)
    }

    /// Leaves its close at the home for later, so that it can be opened again without a request ([`crate::Raw::reopen`]), where it is
    /// this process's last open file of an inode that it has only read. `answer`: the home's, to its open for reading; its attributes are
    /// leased ([`crate::Pool::on_recalls`]). `false`: drop it as usual.
    #[must_use]
    pub fn defer_close(&self, answer: OpenAnswer) -> bool {
        self.handles.get().is_some_and(|handle| handle.defer_close(answer))
    }

    /// Whether the session in which it was opened may write to the inode, by this open file or by another.
    #[must_use]
    pub fn session_may_write(&self) -> bool {
        self.handle().is_ok_and(|handle| handle.open.may_write())
    }

    /// This process's open reference; a forked child opens the inode when it first uses it.
    pub(crate) fn handle(&self) -> Result<&Handle> {
        self.handles
            .get_or_make(|| {
                let request =
                    Open { inode: self.inode, read: self.rights.read, write: self.rights.write, run: false };
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

    pub(crate) fn needs_writing(&self) -> Result<()> {
        self.needs(self.rights.write, "writing")
    }

    pub(crate) fn needs(&self, right: bool, what: &str) -> Result<()> {
        if right {
            return Ok(());
        }
        Err(self.tell(Error::new(ErrorKind::BadHandle, format!("it was not opened for {what}"))))
    }

    /// Asks the home for everything about the inode.
    pub(crate) fn refresh(&self, handle: &Handle) -> Result<InodeInfo> {
        handle.session.push_times(self.inode)?;
        self.ask_info(handle)
    }

    /// The same, without waiting for a number: the home's times may be older than what was written here.
    pub(crate) fn ask_info(&self, handle: &Handle) -> Result<InodeInfo> {
        let session = &handle.session;
        let info =
            session.ask(self.inode.slot(), &GetAttributes { inode: self.inode }, session.deadline())?;
        handle.open.learn_info(&info);
        Ok(info)
    }

    /// The known size when the file is known to reach `end`, else what the home says now.
    pub(crate) fn size_for(&self, handle: &Handle, end: u64) -> Result<Size> {
        let known = handle.open.size();
        if end <= known.size {
            return Ok(known);
        }
        let attributes = self.refresh(handle)?.attributes;
        Ok(Size { generation: attributes.generation, size: attributes.size })
    }

    /// Runs `work` with the known generation; when the file was truncated meanwhile, asks the home for its
    /// size and runs `work` again.
    pub(crate) fn with_size<T>(&self, handle: &Handle, mut work: impl FnMut(Size) -> Result<T>) -> Result<T> {
        // Begins at the first retry: a long transfer may have used its time before it meets a truncation.
        let mut backoff: Option<Backoff> = None;
        loop {
            match work(handle.open.size()) {
                Err(error) if error.kind() == ErrorKind::Retry => {
                    let begin = || Backoff::new(handle.session.deadline());
                    backoff.get_or_insert_with(begin).pause_after(error)?;
                    self.refresh(handle)?;
                }
                other => return other,
            }
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "File({} at '{}')", self.inode, ShownPath(&self.path))
    }
}

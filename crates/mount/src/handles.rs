//! The table of the files that the kernel has open: from the number that the kernel uses to the open file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_client::{File, OpenAnswer};
use ramlace_sync::{Mutex, RwLock};
use ramlace_wire::{Attributes, Mode};

use crate::pages::DropByOpen;
use crate::set_ids::{Doubts, SetIds};
use crate::versions::{Version, Versions};
use crate::write_errors::{Reported, WriteErrors};

/// The bits that a write or a truncation clears, because the file is no longer what its owner made it.
pub(crate) const SET_ID_BITS: u16 = 0o6000;

/// The unit in which memory is counted, in bytes.
const PAGE_BYTES: u64 = 4096;

/// How what programs write by a descriptor gets from the kernel to the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// The kernel copies it into its pages and passes it on from there, in pieces that end with the first page that it
    /// does not have whole.
    InPages,
    /// As the program gives it, past the kernel's pages. What these have of the bytes is recalled as from other machines.
    Beside,
}

/// A file that the kernel has open.
pub(crate) struct OpenFile {
    pub(crate) file: Arc<File>,
    pub(crate) writes: Writes,
    /// Passthrough: the kernel reads and maps it without asking. See [`crate::passthrough`].
    pub(crate) passthrough: bool,
    /// The consistency mode: the file's own, or the mount's.
    pub(crate) mode: Mode,
    /// The version of the file when it was opened.
    opened_in: Version,
    /// The program has its descriptor, and the kernel has dropped older pages: [`Versions`] have learned the
    /// version.
    open_finished: AtomicBool,
    /// The kernel may be dropping pages until then. Lock order: this one, then those of [`Handles`] and of
    /// [`crate::nodes`].
    dropping: Mutex<Option<DropByOpen>>,
    /// The home's answer to the open, if its close may be deferred.
    answer: Mutex<Option<OpenAnswer>>,
    /// Failed write-backs that were reported by this descriptor.
    pub(crate) errors_reported: Reported,
    /// Those that were reported by an unlock through it. They are reported again by `fsync` and `close`.
    pub(crate) errors_unlocks_reported: Reported,
}

impl OpenFile {
    pub(crate) fn new(
        file: Arc<File>,
        writes: Writes,
        passthrough: bool,
        mode: Mode,
        opened_in: Version,
        errors: &WriteErrors,
    ) -> OpenFile {
        OpenFile {
            file,
            writes,
            passthrough,
            mode,
            opened_in,
            open_finished: AtomicBool::new(false),
            dropping: Mutex::default(),
            answer: Mutex::default(),
            errors_reported: errors.begin(),
            errors_unlocks_reported: errors.begin(),
        }
    }

    /// The kernel drops pages when it gets the reply to this open, perhaps while a program is writing.
    pub(crate) fn drops_pages(&self, dropping: DropByOpen) {
        *self.dropping.lock() = Some(dropping);
    }

    /// The file is only read by this descriptor: its close may be deferred, if it is a usual file.
    pub(crate) fn keep_answer(&self, answer: OpenAnswer) {
        if self.mode == Mode::Coherent && !self.passthrough {
            *self.answer.lock() = Some(answer);
        }
    }

    /// The answer that was kept; from now on the close is not deferred.
    pub(crate) fn take_answer(&self) -> Option<OpenAnswer> {
        self.answer.lock().take()
    }

    /// The descriptor is used, so its open is over. Not to be called for a write of the kernel's own, for
    /// which it picks any descriptor.
    pub(crate) fn finish_open(&self, versions: &Versions, handles: &Handles) {
        if !self.open_finished.swap(true, Ordering::Relaxed) {
            let (inode, writes) = (self.file.inode(), self.file.rights().write);
            versions.learn(inode, self.opened_in);
            if writes {
                versions.bare_pages_are_gone(inode);
            }
            match self.dropping.lock().take() {
                // Writes under way meanwhile would belong to descriptors that are still open.
                Some(dropping) if handles.writers_of(inode) <= usize::from(writes) => dropping.end_unseen(),
                dropping => drop(dropping),
            }
        }
    }
}

/// What is known of an inode that is open for writing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Written {
    /// How often it is open.
    opens: usize,
    /// Its set-id bits.
    set_ids: SetIds,
    /// It had extended attributes in the attributes that the kernel got last.
    xattrs: bool,
    /// Up to here all its bytes have memory, as its home has said since it was opened, unless a hole was made
    /// here. It only becomes less.
    whole_to: u64,
}

/// Open files by the number that the kernel was given. Numbers are never reused. Lock order: `table`, then `doubts`.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
    doubts: Mutex<Doubts>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Arc<OpenFile>>,
    /// How often inodes are open of which the kernel keeps pages.
    cached: HashMap<InodeId, usize>,
    /// Inodes that are open for writing.
    writers: HashMap<InodeId, Written>,
    last: u64,
    /// The number of times that some file got a hole here.
    holes_made: u64,
}

/// A moment before something is asked of homes: what they answer may be older than a hole that was made here since, or than a
/// recall that has come.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    holes_made: u64,
    doubts: u64,
    at: Instant,
}

impl Written {
    /// Its home was asked at a time; `doubted`: its attributes were recalled since.
    fn learn(&mut self, attributes: &Attributes, asked: Instant, doubted: bool) {
        self.set_ids.learn(attributes.mode & SET_ID_BITS != 0, asked, doubted);
        self.xattrs = attributes.xattrs;
        self.whole_to = self.whole_to.min(whole_to(attributes));
    }

    /// Whether these attributes say something new.
    fn differs_from(self, attributes: &Attributes, asked: Instant, doubted: bool) -> bool {
        let mut other = self;
        other.learn(attributes, asked, doubted);
        !other.set_ids.says_as(self.set_ids) || Written { set_ids: self.set_ids, ..other } != self
    }
}

/// Up to where all bytes of a file have memory, according to its home.
fn whole_to(attributes: &Attributes) -> u64 {
    match attributes.allocated {
        Some(allocated) if allocated >= attributes.size => attributes.size.next_multiple_of(PAGE_BYTES),
        _ => 0,
    }
}

impl Handles {
    /// To be taken before something is asked of homes.
    pub(crate) fn now(&self) -> Since {
        let (holes_made, at) = (self.table.read().holes_made, Instant::now());
        Since { holes_made, doubts: self.doubts.lock().count(), at }
    }

    /// Whether the attributes of an inode were recalled since.
    fn is_doubted_since(&self, since: Since, inode: InodeId) -> bool {
        self.doubts.lock().any_since(since.doubts, inode)
    }

    /// Adds a file for which its home has returned these attributes after `since`.
    pub(crate) fn add(&self, file: OpenFile, attributes: &Attributes, since: Since) -> u64 {
        let mut table = self.table.write();
        if !file.passthrough {
            *table.cached.entry(file.file.inode()).or_default() += 1;
        }
        if file.file.rights().write {
            let whole_to = if table.holes_made == since.holes_made { whole_to(attributes) } else { 0 };
            let new = || Written { whole_to, ..Written::default() };
            let written = table.writers.entry(file.file.inode()).or_insert_with(new);
            written.opens += 1;
            written.learn(attributes, since.at, self.is_doubted_since(since, attributes.inode));
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Arc::new(file));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<OpenFile>> {
        let table = self.table.read();
        let missing = || Error::new(ErrorKind::BadHandle, format!("the kernel has no open file {number}"));
        table.open.get(&number).cloned().ok_or_else(missing)
    }

    /// Removes a file; it closes when the last request that uses it is done.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut table = self.table.write();
        let file = table.open.remove(&number)?;
        let inode = file.file.inode();
        if !file.passthrough
            && let Some(opens) = table.cached.get_mut(&inode)
        {
            *opens -= 1;
            if *opens == 0 {
                table.cached.remove(&inode);
            }
        }
        if file.file.rights().write
            && let Some(writers) = table.writers.get_mut(&inode)
        {
            writers.opens -= 1;
            if writers.opens == 0 {
                table.writers.remove(&inode);
            }
        }
        Some(file)
    }

    /// Whether programs here may read or map pages of the kernel's of this inode.
    pub(crate) fn is_cached(&self, inode: InodeId) -> bool {
        self.table.read().cached.contains_key(&inode)
    }

    /// The kernel is sent these attributes, which were asked for at a time.
    pub(crate) fn note(&self, attributes: &Attributes, since: Since) {
        let Some(known) = self.written(attributes.inode) else { return };
        if known.differs_from(attributes, since.at, self.is_doubted_since(since, attributes.inode)) {
            self.learn(attributes, since);
        }
    }

    /// Its home has answered this of a file, whatever was known.
    pub(crate) fn learn(&self, attributes: &Attributes, since: Since) {
        if let Some(written) = self.table.write().writers.get_mut(&attributes.inode) {
            written.learn(attributes, since.at, self.is_doubted_since(since, attributes.inode));
        }
    }

    /// Another client has changed the attributes of a file.
    pub(crate) fn doubt(&self, inode: InodeId) {
        // First: an answer that is learned now either finds this, or is doubted below.
        self.doubts.lock().note(inode);
        if self.is_written_here(inode)
            && let Some(written) = self.table.write().writers.get_mut(&inode)
        {
            written.set_ids.doubt();
        }
    }

    /// An extended attribute is about to be set.
    pub(crate) fn expect_xattrs(&self, inode: InodeId) {
        let mut table = self.table.write();
        if let Some(written) = table.writers.get_mut(&inode) {
            written.xattrs = true;
        }
    }

    /// Whether a file that is open for writing here had no extended attributes when the kernel last got its
    /// attributes.
    pub(crate) fn has_no_xattrs(&self, inode: InodeId) -> bool {
        self.written(inode).is_some_and(|written| !written.xattrs)
    }

    /// Whether a file that is open for writing here has set-id bits, as its home has said.
    pub(crate) fn has_set_id(&self, inode: InodeId) -> bool {
        self.written(inode).is_some_and(|written| written.set_ids.are_seen())
    }

    /// Whether a file that is open for writing here may have got set-id bits, since its attributes were recalled.
    pub(crate) fn is_set_id_doubted(&self, inode: InodeId) -> bool {
        self.written(inode).is_some_and(|written| written.set_ids.are_doubted(Instant::now()))
    }

    /// Its home was asked for that and does not answer: for a while nobody asks again.
    pub(crate) fn asked_for_set_id_in_vain(&self, inode: InodeId) {
        if let Some(written) = self.table.write().writers.get_mut(&inode) {
            written.set_ids.asked_in_vain(Instant::now());
        }
    }

    /// Whether a file that is open for writing here may have got set-id bits that no recall has told of: attributes that are
    /// not leased are believed for a while. Says so to one caller; others go on.
    pub(crate) fn is_set_id_outdated(&self, inode: InodeId) -> bool {
        let now = Instant::now();
        let is_outdated = |written: &Written| written.set_ids.are_outdated(now);
        if !self.written(inode).is_some_and(|written| is_outdated(&written)) {
            return false;
        }
        let mut table = self.table.write();
        let Some(written) = table.writers.get_mut(&inode).filter(|written| is_outdated(written)) else {
            return false;
        };
        written.set_ids.renew(now);
        true
    }

    fn written(&self, inode: InodeId) -> Option<Written> {
        self.table.read().writers.get(&inode).copied()
    }

    /// Bytes from here on may become a hole by an operation that is about to begin here.
    pub(crate) fn make_hole(&self, inode: InodeId, from: u64) {
        let mut table = self.table.write();
        table.holes_made += 1;
        if let Some(written) = table.writers.get_mut(&inode) {
            written.whole_to = written.whole_to.min(from);
        }
    }

    /// An open file of this inode, if it is open for reading only here.
    pub(crate) fn only_read(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        let table = self.table.read();
        let mut of = table.open.values().filter(|open| open.file.inode() == inode);
        of.next().filter(|_| !table.writers.contains_key(&inode)).cloned()
    }

    /// Whether programs here may store into pages up to this byte of an inode, and some of these may have no
    /// memory.
    pub(crate) fn may_store_into_holes(&self, inode: InodeId, end: u64) -> bool {
        self.written(inode).is_some_and(|written| end > written.whole_to)
    }

    /// How often this mount has the inode open for writing.
    fn writers_of(&self, inode: InodeId) -> usize {
        self.table.read().writers.get(&inode).map_or(0, |written| written.opens)
    }

    /// Whether this mount has the inode open for writing: then its newest times are known only here.
    pub(crate) fn is_written_here(&self, inode: InodeId) -> bool {
        self.table.read().writers.contains_key(&inode)
    }
}

//! The files that the kernel has open: numbers in, open files out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_client::File;
use ramlace_sync::{Mutex, RwLock};
use ramlace_wire::{Attributes, Mode};

use crate::pages::DropByOpen;
use crate::versions::{Version, Versions};
use crate::write_errors::{Heard, WriteErrors};

/// Bits that a write or a truncation takes from a file that is no longer what its owner made it.
pub(crate) const SET_ID_BITS: u16 = 0o6000;

/// What memory is counted in.
const PAGE_BYTES: u64 = 4096;

/// A file the kernel has open.
pub(crate) struct OpenFile {
    pub(crate) file: Arc<File>,
    /// It was opened to append, so the kernel keeps no pages of what is written by it.
    pub(crate) append: bool,
    /// The kernel reads and maps it without asking: see [`crate::handed`].
    pub(crate) handed: bool,
    /// The file's own, or the mount's.
    pub(crate) mode: Mode,
    /// What the file was when it was opened.
    opened_in: Version,
    /// The program has its descriptor, and the kernel has dropped older pages: [`Versions`] know it.
    settled: AtomicBool,
    /// The kernel may be dropping pages until then.
    dropping: Mutex<Option<DropByOpen>>,
    /// Failed write-backs that this descriptor has told of.
    pub(crate) errors_heard: Heard,
    /// Those that an unlock by it has told of. What an unlock tells, `fsync` and `close` tell all the same.
    pub(crate) errors_unlocks_heard: Heard,
}

impl OpenFile {
    pub(crate) fn new(
        file: Arc<File>,
        append: bool,
        handed: bool,
        mode: Mode,
        opened_in: Version,
        errors: &WriteErrors,
    ) -> OpenFile {
        OpenFile {
            file,
            append,
            handed,
            mode,
            opened_in,
            settled: AtomicBool::new(false),
            dropping: Mutex::default(),
            errors_heard: errors.begin(),
            errors_unlocks_heard: errors.begin(),
        }
    }

    /// The kernel drops pages when it hears of this open, perhaps while a program is writing.
    pub(crate) fn drops_pages(&self, dropping: DropByOpen) {
        *self.dropping.lock() = Some(dropping);
    }

    /// The descriptor is used, so its open is over. Not to be called for a write of the kernel's own, which
    /// guesses a descriptor.
    pub(crate) fn settle(&self, versions: &Versions, handles: &Handles) {
        if !self.settled.swap(true, Ordering::Relaxed) {
            let (inode, writes) = (self.file.inode(), self.file.rights().write);
            versions.learn(inode, self.opened_in);
            if writes {
                versions.bare_pages_are_gone(inode);
            }
            match self.dropping.lock().take() {
                // Writes that were under way meanwhile are of descriptors that are open still.
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
    /// It had set-id bits when the kernel last heard of its attributes.
    set_id: bool,
    /// It had extended attributes then.
    xattrs: bool,
    /// Up to here it has memory for all its bytes, as its home has said since it was opened, and nobody here has made a
    /// hole. It only becomes less.
    whole_to: u64,
}

/// Open files by the number the kernel was given. Numbers are never used again.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Arc<OpenFile>>,
    /// Inodes that are open for writing.
    writers: HashMap<InodeId, Written>,
    last: u64,
    /// How often somebody here has made a hole in some file.
    holes_made: HolesMade,
}

/// A moment: what a home has said since may be older than a hole that was made later.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HolesMade(u64);

impl Written {
    fn learn(&mut self, attributes: &Attributes) {
        self.set_id = attributes.mode & SET_ID_BITS != 0;
        self.xattrs = attributes.xattrs;
        self.whole_to = self.whole_to.min(whole_to(attributes));
    }

    fn differs_from(self, attributes: &Attributes) -> bool {
        let mut other = self;
        other.learn(attributes);
        other != self
    }
}

/// Up to where a file has memory for all its bytes, by what its home says.
fn whole_to(attributes: &Attributes) -> u64 {
    match attributes.allocated {
        Some(allocated) if allocated >= attributes.size => attributes.size.next_multiple_of(PAGE_BYTES),
        _ => 0,
    }
}

impl Handles {
    /// A moment before something is asked of homes.
    pub(crate) fn holes_made(&self) -> HolesMade {
        self.table.read().holes_made
    }

    /// Adds a file of which its home has said these attributes since then.
    pub(crate) fn add(&self, file: OpenFile, attributes: &Attributes, since: HolesMade) -> u64 {
        let mut table = self.table.write();
        if file.file.rights().write {
            let whole_to = if table.holes_made == since { whole_to(attributes) } else { 0 };
            let new = || Written { opens: 0, set_id: false, xattrs: false, whole_to };
            let written = table.writers.entry(file.file.inode()).or_insert_with(new);
            written.opens += 1;
            written.learn(attributes);
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

    /// Takes a file out; it closes when the last request that uses it is done.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut table = self.table.write();
        let file = table.open.remove(&number)?;
        let inode = file.file.inode();
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

    /// The kernel hears of these attributes.
    pub(crate) fn note(&self, attributes: &Attributes) {
        let known = self.written(attributes.inode);
        if known.is_some_and(|known| known.differs_from(attributes)) {
            let mut table = self.table.write();
            if let Some(written) = table.writers.get_mut(&attributes.inode) {
                written.learn(attributes);
            }
        }
    }

    /// An extended attribute is about to be set.
    pub(crate) fn expect_xattrs(&self, inode: InodeId) {
        let mut table = self.table.write();
        if let Some(written) = table.writers.get_mut(&inode) {
            written.xattrs = true;
        }
    }

    /// Whether a file that is written here had no extended attributes when the kernel last heard of it.
    pub(crate) fn has_no_xattrs(&self, inode: InodeId) -> bool {
        self.written(inode).is_some_and(|written| !written.xattrs)
    }

    /// Whether a file that is written here had set-id bits when the kernel last heard of it.
    pub(crate) fn has_set_id(&self, inode: InodeId) -> bool {
        self.written(inode).is_some_and(|written| written.set_id)
    }

    fn written(&self, inode: InodeId) -> Option<Written> {
        self.table.read().writers.get(&inode).copied()
    }

    /// Bytes from here on may become a hole by what somebody here is about to do.
    pub(crate) fn make_hole(&self, inode: InodeId, from: u64) {
        let mut table = self.table.write();
        table.holes_made.0 += 1;
        if let Some(written) = table.writers.get_mut(&inode) {
            written.whole_to = written.whole_to.min(from);
        }
    }

    /// A file of this inode that is open here, where nobody here may store into it.
    pub(crate) fn only_read(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        let table = self.table.read();
        let mut of = table.open.values().filter(|open| open.file.inode() == inode);
        of.next().filter(|_| !table.writers.contains_key(&inode)).cloned()
    }

    /// Whether programs here may store into pages up to this byte of an inode, and perhaps not all of them have memory.
    pub(crate) fn may_store_into_holes(&self, inode: InodeId, end: u64) -> bool {
        self.written(inode).is_some_and(|written| end > written.whole_to)
    }

    /// How often this mount has the inode open for writing.
    fn writers_of(&self, inode: InodeId) -> usize {
        self.table.read().writers.get(&inode).map_or(0, |written| written.opens)
    }

    /// Whether this mount has the inode open for writing: then its newest times are known here alone.
    pub(crate) fn is_written_here(&self, inode: InodeId) -> bool {
        self.table.read().writers.contains_key(&inode)
    }
}

//! The files that the kernel has open: numbers in, open files out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_client::File;

use crate::versions::{Version, Versions};
use crate::write_errors::Heard;

/// A file the kernel has open.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// It was opened to append, so the kernel keeps no pages of what is written by it.
    pub(crate) append: bool,
    /// What the file was when it was opened.
    opened_in: Version,
    /// The program has its descriptor, and the kernel has dropped older pages: [`Versions`] know it.
    settled: AtomicBool,
    /// Failed write-backs that this descriptor has told of.
    pub(crate) errors_heard: Heard,
}

impl OpenFile {
    pub(crate) fn new(file: File, append: bool, opened_in: Version, errors_heard: Heard) -> OpenFile {
        OpenFile { file, append, opened_in, settled: AtomicBool::new(false), errors_heard }
    }

    /// The descriptor is used, so its open is over. Not to be called for a write of the kernel's own, which
    /// guesses a descriptor.
    pub(crate) fn settle(&self, versions: &Versions) {
        if !self.settled.swap(true, Ordering::Relaxed) {
            versions.learn(self.file.inode(), self.opened_in);
        }
    }
}

/// Open files by the number the kernel was given. Numbers are never used again.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Arc<OpenFile>>,
    /// How often each inode is open for writing.
    writers: HashMap<InodeId, usize>,
    last: u64,
}

impl Handles {
    pub(crate) fn add(&self, file: OpenFile) -> u64 {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if file.file.rights().write {
            *table.writers.entry(file.file.inode()).or_default() += 1;
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Arc::new(file));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<OpenFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let missing = || Error::new(ErrorKind::BadHandle, format!("the kernel has no open file {number}"));
        table.open.get(&number).cloned().ok_or_else(missing)
    }

    /// Takes a file out; it closes when the last request that uses it is done.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let file = table.open.remove(&number)?;
        let inode = file.file.inode();
        if file.file.rights().write
            && let Some(writers) = table.writers.get_mut(&inode)
        {
            *writers -= 1;
            if *writers == 0 {
                table.writers.remove(&inode);
            }
        }
        Some(file)
    }

    /// Whether this mount has the inode open for writing: then its newest times are known here alone.
    pub(crate) fn is_written_here(&self, inode: InodeId) -> bool {
        self.table.read().unwrap_or_else(PoisonError::into_inner).writers.contains_key(&inode)
    }
}

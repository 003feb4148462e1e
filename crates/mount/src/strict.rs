//! What a strict mount adds: pages that programs store into lie in this kernel alone, or not at all.
//!
//! The server keeps the order (`ramlace_lanes`). Here it is seen to that whoever waited for a page gets something done with it: a page is
//! not dropped while it is being read, nor in the first moments after that, however soon somebody else wants it.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, InodeId, Result};
use ramlace_client::{File, KeptRead};

use crate::filesystem::PoolFileSystem;

/// How long a page stays at least: the program that waited for it has yet to be woken.
const HOLD_MIN: Duration = Duration::from_micros(100);

/// Which pages are being read, and which were just now.
#[derive(Default)]
pub(crate) struct StrictReads {
    files: Mutex<HashMap<InodeId, Reads>>,
    answered: Condvar,
}

#[derive(Default)]
struct Reads {
    under_way: Vec<ByteRange>,
    answered: Vec<(ByteRange, Instant)>,
}

/// A read of pages, until its answer has left.
pub(crate) struct Reading<'a> {
    reads: &'a StrictReads,
    inode: InodeId,
    range: ByteRange,
}

impl StrictReads {
    /// The kernel asks for pages.
    pub(crate) fn begin(&self, inode: InodeId, range: ByteRange) -> Reading<'_> {
        self.lock().entry(inode).or_default().under_way.push(range);
        Reading { reads: self, inode, range }
    }

    /// Waits until these pages may be dropped.
    pub(crate) fn await_turn(&self, inode: InodeId, range: ByteRange) {
        let mut files = self.lock();
        loop {
            let Some(reads) = files.get_mut(&inode) else { return };
            let meets = |other: &ByteRange| !other.intersection(range).is_empty();
            if reads.under_way.iter().any(meets) {
                files = self.answered.wait(files).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            reads.forget_old();
            let newest = reads.answered.iter().filter(|(other, _)| meets(other)).map(|(_, at)| *at).max();
            let Some(newest) = newest else { return };
            drop(files);
            std::thread::sleep((newest + HOLD_MIN).saturating_duration_since(Instant::now()));
            files = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Reads>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reads {
    fn forget_old(&mut self) {
        self.answered.retain(|(_, at)| at.elapsed() < HOLD_MIN);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut files = self.reads.lock();
        if let Some(reads) = files.get_mut(&self.inode) {
            if let Some(at) = reads.under_way.iter().position(|range| *range == self.range) {
                reads.under_way.swap_remove(at);
            }
            reads.forget_old();
            reads.answered.push((self.range, Instant::now()));
            // Files of which nothing is read keep no entry for longer than it takes to see this.
            files.retain(|_, reads| {
                !reads.under_way.is_empty() || reads.answered.iter().any(|(_, at)| at.elapsed() < HOLD_MIN)
            });
        }
        drop(files);
        self.reads.answered.notify_all();
    }
}

impl PoolFileSystem {
    /// Bytes for the kernel's pages. Programs may store into those of a file that is open for writing here; from an open for writing
    /// on all others are dropped.
    pub(crate) fn read_pages_strictly(
        &self,
        file: &File,
        buffer: &mut [u8],
        range: ByteRange,
    ) -> Result<KeptRead> {
        let inode = file.inode();
        let _reading = self.pages.begin_read(inode, file.layout(), range);
        if !self.handles.is_written_here(inode) {
            self.versions.note_bare_pages(inode);
        }
        // An open for writing either has seen this, or is seen here.
        let own = self.handles.is_written_here(inode);
        let take = own && self.handles.may_store_into_holes(inode, range.end);
        let bytes = file.read_strictly(buffer, range.start, own, take)?;
        Ok(KeptRead { bytes, repeated: false })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const FILE: InodeId = InodeId(7);
    const PAGE: ByteRange = ByteRange { start: 0, end: 4096 };

    #[test]
    fn a_page_is_not_dropped_before_it_was_read_and_held() {
        let (reads, over) = (StrictReads::default(), AtomicBool::new(false));
        reads.await_turn(FILE, PAGE);
        let reading = reads.begin(FILE, PAGE);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                reads.await_turn(FILE, ByteRange { start: 0, end: u64::MAX });
                assert!(over.load(Ordering::SeqCst));
            });
            // Another page is nobody's business.
            reads.await_turn(FILE, ByteRange { start: 4096, end: 8192 });
            over.store(true, Ordering::SeqCst);
            drop(reading);
        });
        reads.await_turn(FILE, PAGE);
        drop(reads.begin(InodeId(8), PAGE));
        assert!(reads.lock().len() <= 2);
    }
}

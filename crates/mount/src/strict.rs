//! Pages of strict files: while one kernel may store into a page, no other kernel has it.
//!
//! The server grants and recalls the pages (`ramlace_lanes`). This file makes sure that a program that waited for
//! a page can use it: the page is not dropped while it is being read, nor for a short time after that, however
//! soon another client wants it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, InodeId};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

/// How long a page stays at least: the program that waited for it still has to be woken.
const HOLD_MIN: Duration = Duration::from_micros(100);

/// Which pages are being read, and which have just been read.
#[derive(Default)]
pub(crate) struct StrictReads {
    table: Mutex<Table>,
    answered: Condvar,
}

#[derive(Default)]
struct Table {
    files: HashMap<InodeId, Reads>,
    /// Files for which a read was answered, and when: they are checked once more, and forgotten.
    answered: VecDeque<(InodeId, Instant)>,
}

#[derive(Default)]
struct Reads {
    in_flight: Vec<ByteRange>,
    answered: Vec<(ByteRange, Instant)>,
}

/// A read of pages, until its reply has been sent.
pub(crate) struct Reading<'a> {
    reads: &'a StrictReads,
    inode: InodeId,
    range: ByteRange,
}

impl StrictReads {
    /// The kernel requests pages.
    pub(crate) fn begin(&self, inode: InodeId, range: ByteRange) -> Reading<'_> {
        self.lock().files.entry(inode).or_default().in_flight.push(range);
        Reading { reads: self, inode, range }
    }

    /// Waits until these pages may be dropped.
    pub(crate) fn await_turn(&self, inode: InodeId, range: ByteRange) {
        let mut table = self.lock();
        loop {
            let Some(reads) = table.files.get_mut(&inode) else { return };
            let meets = |other: &ByteRange| !other.intersection(range).is_empty();
            if reads.in_flight.iter().any(meets) {
                table = self.answered.wait(table);
                continue;
            }
            reads.forget_old(Instant::now());
            let newest = reads.answered.iter().filter(|(other, _)| meets(other)).map(|(_, at)| *at).max();
            let Some(newest) = newest else { return };
            drop(table);
            std::thread::sleep((newest + HOLD_MIN).saturating_duration_since(Instant::now()));
            table = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    /// A read of a file was answered. Removes the entries of files of which nothing is read any more.
    fn note_answer(&mut self, inode: InodeId, range: ByteRange, now: Instant) {
        let Some(reads) = self.files.get_mut(&inode) else { return };
        if let Some(at) = reads.in_flight.iter().position(|other| *other == range) {
            reads.in_flight.swap_remove(at);
        }
        reads.forget_old(now);
        reads.answered.push((range, now));
        self.answered.push_back((inode, now));
        while let Some((old, _)) = self.answered.front().copied().filter(|(_, at)| now - *at >= HOLD_MIN) {
            self.answered.pop_front();
            let Some(reads) = self.files.get_mut(&old) else { continue };
            reads.forget_old(now);
            if reads.in_flight.is_empty() && reads.answered.is_empty() {
                self.files.remove(&old);
            }
        }
    }
}

impl Reads {
    fn forget_old(&mut self, now: Instant) {
        self.answered.retain(|(_, at)| now.saturating_duration_since(*at) < HOLD_MIN);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.reads.lock().note_answer(self.inode, self.range, Instant::now());
        self.reads.answered.notify_all();
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
            // Another page does not matter.
            reads.await_turn(FILE, ByteRange { start: 4096, end: 8192 });
            over.store(true, Ordering::SeqCst);
            drop(reading);
        });
        reads.await_turn(FILE, PAGE);
        drop(reads.begin(InodeId(8), PAGE));
        assert!(reads.lock().files.len() <= 2);
    }

    #[test]
    fn what_is_kept_of_files_goes_with_their_last_reads() {
        let mut table = Table::default();
        let (begun, count) = (Instant::now(), 1_000);
        for number in 0..count {
            table.files.entry(InodeId(number)).or_default().in_flight.push(PAGE);
            table.note_answer(InodeId(number), PAGE, begun);
        }
        // One of them is read again.
        table.files.get_mut(&InodeId(5)).unwrap().in_flight.push(PAGE);
        table.files.entry(FILE).or_default().in_flight.push(PAGE);
        table.note_answer(FILE, PAGE, begun + HOLD_MIN);
        let mut left: Vec<u64> = table.files.keys().map(|inode| inode.0).collect();
        left.sort_unstable();
        assert_eq!((left, table.answered.len()), (vec![5, 7], 1));
    }
}

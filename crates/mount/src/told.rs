//! Attributes that were told a moment ago, and of which it is not known yet whether the kernel has them.
//!
//! A thread that asks anything else has what it was told before. Two things depend on it. Of an inode that the kernel hears
//! of for the first time by a CREATE it takes attributes as they are, whatever was recalled meanwhile: so a recall drops them
//! once more when the thread has them. And what a change of this mount's own outdates the kernel drops by itself, but for
//! what is on its way: only then does it have to be told. A thread may end and ask nothing more: what it was told counts as taken in
//! when no lease of then holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, limits};
use ramlace_sync::{Mutex, MutexGuard};

/// Threads that are remembered at most.
const THREADS_MAX: usize = 1_024;
/// A thread that asks nothing more may be gone. What it was told so long ago the kernel has, or believes no more: so long ago is
/// before any lease that holds.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(limits::LEASE_MILLIS + limits::LEASE_MARGIN_MILLIS);
/// So long a recall waits for a thread that made the file and asks nothing more. It takes its answer in some microseconds; this
/// is for one whose core was given to another just then.
const TAKEN_IN: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct Told {
    by_thread: Mutex<HashMap<u32, Telling>>,
    /// There are some.
    any: AtomicBool,
}

struct Telling {
    inode: InodeId,
    at: Instant,
    /// The thread made the inode: this is the first that the kernel hears of it.
    is_made: bool,
}

impl Telling {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < FORGOTTEN_AFTER
    }
}

impl Told {
    /// This thread is being told of an inode. Whether it will be known when it has heard.
    pub(crate) fn begin(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Telling { inode, at: Instant::now(), is_made: false }, thread)
    }

    /// The same of one that the thread has made.
    pub(crate) fn begin_made(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Telling { inode, at: Instant::now(), is_made: true }, thread)
    }

    fn note(&self, mut telling: Telling, thread: u32) -> bool {
        // Threads out of sight have no number.
        if thread == 0 {
            return false;
        }
        let mut by_thread = self.lock();
        if let Some(before) = by_thread.get(&thread) {
            // It is told more of what it has just made.
            telling.is_made |= before.is_made && before.inode == telling.inode;
        } else if by_thread.len() >= THREADS_MAX {
            by_thread.retain(|_, before| before.is_recent(telling.at));
            if by_thread.len() >= THREADS_MAX {
                return false;
            }
        }
        by_thread.insert(thread, telling);
        self.any.store(true, Ordering::Release);
        true
    }

    /// The thread asks something.
    pub(crate) fn end(&self, thread: u32) {
        if self.any.load(Ordering::Acquire) {
            let mut by_thread = self.lock();
            by_thread.remove(&thread);
            self.any.store(!by_thread.is_empty(), Ordering::Release);
        }
    }

    /// Whether attributes of the inode may be on their way to the kernel.
    pub(crate) fn is_under_way(&self, inode: InodeId) -> bool {
        let now = Instant::now();
        let is_told = |telling: &Telling| telling.inode == inode && telling.is_recent(now);
        self.any.load(Ordering::Acquire) && self.lock().values().any(is_told)
    }

    /// Whether the kernel may be just hearing for the first time of an inode that was made.
    pub(crate) fn is_being_made(&self, inode: InodeId) -> bool {
        let is_new =
            |telling: &Telling| telling.inode == inode && telling.is_made && telling.at.elapsed() < TAKEN_IN;
        self.any.load(Ordering::Acquire) && self.lock().values().any(is_new)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Telling>> {
        self.by_thread.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_under_way_until_its_thread_asks_again() {
        let told = Told::default();
        assert!(told.begin(InodeId(7), 1) && told.begin_made(InodeId(8), 2));
        told.end(3);
        assert!(told.is_under_way(InodeId(7)) && told.is_under_way(InodeId(8)));
        assert!(!told.is_being_made(InodeId(7)));
        told.end(1);
        assert!(!told.is_under_way(InodeId(7)) && told.is_under_way(InodeId(8)));
        told.end(2);
        assert!(!told.is_under_way(InodeId(8)) && !told.is_being_made(InodeId(8)));
        assert!(!told.any.load(Ordering::Acquire));
    }

    #[test]
    fn a_thread_that_makes_a_file_and_asks_nothing_more_is_waited_for_a_moment() {
        let told = Told::default();
        assert!(told.begin_made(InodeId(8), 2));
        while told.is_being_made(InodeId(8)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(told.is_under_way(InodeId(8)));
    }

    // SEMANTICS 137.1
    #[test]
    fn threads_that_are_gone_are_forgotten_after_their_leases() {
        let told = Told::default();
        assert!((1..=THREADS_MAX as u32).all(|thread| told.begin(InodeId(7), thread)));
        told.lock().values_mut().for_each(|telling| telling.at -= FORGOTTEN_AFTER);
        assert!(!told.is_under_way(InodeId(7)), "no lease of then holds");
        assert!(told.begin_made(InodeId(8), u32::MAX) && told.is_being_made(InodeId(8)));
        assert_eq!(told.lock().len(), 1);
    }

    #[test]
    fn who_is_out_of_sight_or_one_too_many_is_not_remembered() {
        let told = Told::default();
        assert!(!told.begin(InodeId(7), 0));
        assert!((1..=THREADS_MAX as u32).all(|thread| told.begin(InodeId(7), thread)));
        assert!(!told.begin_made(InodeId(8), u32::MAX));
        assert!(told.begin(InodeId(7), 1), "it is there already");
        assert!(!told.is_under_way(InodeId(8)));
    }
}

//! Attributes that the kernel was recently told, while it is not known whether it has processed them.
//!
//! A thread that sends another request has processed its earlier replies. Two things depend on it. If a
//! CREATE makes an inode that is new to the kernel, the kernel takes its attributes as they are, whatever was
//! recalled meanwhile: so a recall drops them once more when the thread has them. And attributes that a
//! change of this mount's own outdates are dropped by the kernel itself, except in replies that it has not
//! processed: only then does it have to be notified. A thread may end and send nothing more: its replies
//! count as processed when no lease of that time is valid any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, limits};
use ramlace_sync::{Mutex, MutexGuard};

/// The limit of threads that are remembered.
const THREADS_MAX: usize = 1_024;
/// A thread that sends nothing more may be gone. After this time the kernel has processed its replies, or
/// does not use them any more, because no lease of that time is valid.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(limits::LEASE_MILLIS + limits::LEASE_MARGIN_MILLIS);
/// How long a recall waits for a thread that created the file and sends nothing more. It processes the reply
/// within microseconds; this is for a thread that is not scheduled just then.
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
    /// The thread created the inode: the kernel did not know it before.
    is_made: bool,
}

impl Telling {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < FORGOTTEN_AFTER
    }
}

impl Told {
    /// This thread is being told of an inode. Returns whether it will be noticed when it has processed the
    /// reply.
    pub(crate) fn begin(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Telling { inode, at: Instant::now(), is_made: false }, thread)
    }

    /// The same for an inode that the thread has created.
    pub(crate) fn begin_made(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Telling { inode, at: Instant::now(), is_made: true }, thread)
    }

    fn note(&self, mut telling: Telling, thread: u32) -> bool {
        // Threads in another namespace have no number here.
        if thread == 0 {
            return false;
        }
        let mut by_thread = self.lock();
        if let Some(before) = by_thread.get(&thread) {
            // It is told more of what it has just created.
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

    /// The thread sends a request.
    pub(crate) fn end(&self, thread: u32) {
        if self.any.load(Ordering::Acquire) {
            let mut by_thread = self.lock();
            by_thread.remove(&thread);
            self.any.store(!by_thread.is_empty(), Ordering::Release);
        }
    }

    /// Whether the kernel may not have processed attributes of the inode yet.
    pub(crate) fn is_under_way(&self, inode: InodeId) -> bool {
        let now = Instant::now();
        let is_told = |telling: &Telling| telling.inode == inode && telling.is_recent(now);
        self.any.load(Ordering::Acquire) && self.lock().values().any(is_told)
    }

    /// Whether the kernel may just be getting a new inode for the first time.
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

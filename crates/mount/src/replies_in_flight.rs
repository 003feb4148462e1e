//! Replies with attributes that the kernel may not have processed yet.
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
const PROCESSED_WITHIN: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct RepliesInFlight {
    by_thread: Mutex<HashMap<u32, Reply>>,
    /// There are some.
    any: AtomicBool,
}

struct Reply {
    inode: InodeId,
    at: Instant,
    /// The thread created the inode: the kernel did not know it before.
    is_created: bool,
}

impl Reply {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < FORGOTTEN_AFTER
    }
}

impl RepliesInFlight {
    /// A reply to this thread contains attributes of an inode. Returns whether it will be noticed when the
    /// thread has processed the reply.
    pub(crate) fn sent(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Reply { inode, at: Instant::now(), is_created: false }, thread)
    }

    /// The same for an inode that the thread has created.
    pub(crate) fn sent_for_created(&self, inode: InodeId, thread: u32) -> bool {
        self.note(Reply { inode, at: Instant::now(), is_created: true }, thread)
    }

    fn note(&self, mut reply: Reply, thread: u32) -> bool {
        // Threads in another namespace have no number here.
        if thread == 0 {
            return false;
        }
        let mut by_thread = self.lock();
        if let Some(before) = by_thread.get(&thread) {
            // One more reply about what it has just created.
            reply.is_created |= before.is_created && before.inode == reply.inode;
        } else if by_thread.len() >= THREADS_MAX {
            by_thread.retain(|_, before| before.is_recent(reply.at));
            if by_thread.len() >= THREADS_MAX {
                return false;
            }
        }
        by_thread.insert(thread, reply);
        self.any.store(true, Ordering::Release);
        true
    }

    /// The thread sends a request: it has processed its earlier replies.
    pub(crate) fn processed(&self, thread: u32) {
        if self.any.load(Ordering::Acquire) {
            let mut by_thread = self.lock();
            by_thread.remove(&thread);
            self.any.store(!by_thread.is_empty(), Ordering::Release);
        }
    }

    /// Whether the kernel may not have processed attributes of the inode yet.
    pub(crate) fn is_in_flight(&self, inode: InodeId) -> bool {
        let now = Instant::now();
        let is_recent = |reply: &Reply| reply.inode == inode && reply.is_recent(now);
        self.any.load(Ordering::Acquire) && self.lock().values().any(is_recent)
    }

    /// Whether the kernel may just be getting a new inode for the first time.
    pub(crate) fn is_being_created(&self, inode: InodeId) -> bool {
        let is_new =
            |reply: &Reply| reply.inode == inode && reply.is_created && reply.at.elapsed() < PROCESSED_WITHIN;
        self.any.load(Ordering::Acquire) && self.lock().values().any(is_new)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Reply>> {
        self.by_thread.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_in_flight_until_its_thread_asks_again() {
        let replies = RepliesInFlight::default();
        assert!(replies.sent(InodeId(7), 1) && replies.sent_for_created(InodeId(8), 2));
        replies.processed(3);
        assert!(replies.is_in_flight(InodeId(7)) && replies.is_in_flight(InodeId(8)));
        assert!(!replies.is_being_created(InodeId(7)));
        replies.processed(1);
        assert!(!replies.is_in_flight(InodeId(7)) && replies.is_in_flight(InodeId(8)));
        replies.processed(2);
        assert!(!replies.is_in_flight(InodeId(8)) && !replies.is_being_created(InodeId(8)));
        assert!(!replies.any.load(Ordering::Acquire));
    }

    #[test]
    fn a_thread_that_makes_a_file_and_asks_nothing_more_is_waited_for_a_moment() {
        let replies = RepliesInFlight::default();
        assert!(replies.sent_for_created(InodeId(8), 2));
        while replies.is_being_created(InodeId(8)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(replies.is_in_flight(InodeId(8)));
    }

    // SEMANTICS 137.1
    #[test]
    fn threads_that_are_gone_are_forgotten_after_their_leases() {
        let replies = RepliesInFlight::default();
        assert!((1..=THREADS_MAX as u32).all(|thread| replies.sent(InodeId(7), thread)));
        replies.lock().values_mut().for_each(|reply| reply.at -= FORGOTTEN_AFTER);
        assert!(!replies.is_in_flight(InodeId(7)), "no lease of then holds");
        assert!(replies.sent_for_created(InodeId(8), u32::MAX) && replies.is_being_created(InodeId(8)));
        assert_eq!(replies.lock().len(), 1);
    }

    #[test]
    fn threads_out_of_sight_or_one_too_many_are_not_remembered() {
        let replies = RepliesInFlight::default();
        assert!(!replies.sent(InodeId(7), 0));
        assert!((1..=THREADS_MAX as u32).all(|thread| replies.sent(InodeId(7), thread)));
        assert!(!replies.sent_for_created(InodeId(8), u32::MAX));
        assert!(replies.sent(InodeId(7), 1), "it is there already");
        assert!(!replies.is_in_flight(InodeId(8)));
    }
}

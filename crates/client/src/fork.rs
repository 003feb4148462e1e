//! Which process this is, counted in forks, and values that each process has for itself.
//!
//! After a fork the child must never wait for a lock that another thread of its parent held:
//! nobody would ever give it back. So nothing here locks. A value of the parent is left alone
//! in the child (its destructor would speak on the parent's sockets) and a new one is made.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use ramlace_base::Result;

static FORKS: AtomicU64 = AtomicU64::new(0);
static REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Makes forks count from now on. Two threads that come here at once register twice; then a
/// fork counts twice, which is as good.
pub(crate) fn watch() {
    if !REGISTERED.load(Ordering::SeqCst) {
        // SAFETY: the handler only adds to an atomic number, which is safe after a fork, and
        // it lives as long as the library is loaded.
        let result = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        assert_eq!(result, 0, "the C library has no memory for a fork handler");
        REGISTERED.store(true, Ordering::SeqCst);
    }
}

/// How many forks lie between the first process and this one, at least: differs in a child.
pub(crate) fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

struct Node<T> {
    fork: u64,
    value: T,
    next: *mut Node<T>,
}

/// One value for each process, made when it is first asked for.
pub(crate) struct PerFork<T> {
    head: AtomicPtr<Node<T>>,
}

// SAFETY: the values are owned and given out as shared references only, so the box is as
// sendable and as shareable as what it owns.
unsafe impl<T: Send + Sync> Send for PerFork<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PerFork<T> {}

impl<T> PerFork<T> {
    #[cfg(test)]
    fn new() -> PerFork<T> {
        PerFork { head: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(crate) fn with(value: T) -> PerFork<T> {
        let node = Box::new(Node { fork: count(), value, next: ptr::null_mut() });
        PerFork { head: AtomicPtr::new(Box::into_raw(node)) }
    }

    /// This process's value, if it has been made.
    pub(crate) fn get(&self) -> Option<&T> {
        self.nodes().find(|node| node.fork == count()).map(|node| &node.value)
    }

    /// This process's value. When two threads make one at once, one is dropped.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let node = Box::into_raw(Box::new(Node { fork: count(), value: make()?, next: ptr::null_mut() }));
        loop {
            let head = self.head.load(Ordering::Acquire);
            if let Some(value) = self.get() {
                // SAFETY: the node was made above and never published.
                drop(unsafe { Box::from_raw(node) });
                return Ok(value);
            }
            // SAFETY: until the exchange succeeds, this thread alone has the node.
            unsafe { (*node).next = head };
            if self.head.compare_exchange(head, node, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: published nodes live as long as `self`.
                return Ok(unsafe { &(*node).value });
            }
        }
    }

    /// The values that ancestors of this process made, for what may be done without a lock.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = &T> {
        self.nodes().filter(|node| node.fork != count()).map(|node| &node.value)
    }

    fn nodes(&self) -> impl Iterator<Item = &Node<T>> {
        let mut next = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: published nodes are never changed, and freed by `drop` alone.
            let node = unsafe { next.as_ref() }?;
            next = node.next;
            Some(node)
        })
    }
}

impl<T> Drop for PerFork<T> {
    fn drop(&mut self) {
        let mut next = *self.head.get_mut();
        while !next.is_null() {
            // SAFETY: `&mut self` says that nobody else looks; every node came from a box.
            let node = unsafe { Box::from_raw(next) };
            next = node.next;
            if node.fork != count() {
                std::mem::forget(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn threads_agree_on_one_value() {
        let made = AtomicUsize::new(0);
        let values = PerFork::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let value = values.get_or_make(|| Ok(made.fetch_add(1, Ordering::SeqCst))).unwrap();
                    assert!(ptr::eq(value, values.get().unwrap()));
                });
            }
        });
    }

    #[test]
    fn values_of_this_process_are_dropped() {
        let witness = Arc::new(());
        drop(PerFork::with(witness.clone()));
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}

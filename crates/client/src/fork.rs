//! Counts forks to identify the process, and holds values of which each process has its own.
//!
//! After a fork the child must never wait for a lock that another thread of its parent held: nobody would
//! ever release it. So nothing here locks. A parent's value is never dropped in the child (its destructor
//! would write to the parent's sockets), and a new one is made.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ramlace_base::Result;

use crate::list::List;

static FORKS: AtomicU64 = AtomicU64::new(0);
static REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Makes forks count from now on. Two threads that come here at once register twice; then a fork counts
/// twice, which does no harm.
pub(crate) fn watch() {
    if !REGISTERED.load(Ordering::SeqCst) {
        // SAFETY: the handler only adds to an atomic number, which is safe after a fork, and
        // it lives as long as the library is loaded.
        let result = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        assert_eq!(result, 0, "the C library has no memory for a fork handler");
        REGISTERED.store(true, Ordering::SeqCst);
    }
}

/// How many forks lie between the first process and this one, at least: it differs between parent and child.
pub(crate) fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// A value and the process that owns it.
struct Owned<T> {
    fork: u64,
    value: T,
}

/// One value for each process, made when it is first asked for.
pub struct PerFork<T> {
    values: List<Owned<T>>,
}

impl<T> PerFork<T> {
    /// Without a value.
    pub(crate) fn new() -> PerFork<T> {
        PerFork { values: List::default() }
    }

    /// With this process's value.
    pub fn with(value: T) -> PerFork<T> {
        let values = List::default();
        values.push(Owned { fork: count(), value });
        PerFork { values }
    }

    /// This process's value, if it has been made.
    pub(crate) fn get(&self) -> Option<&T> {
        self.own().map(|owned| &owned.value)
    }

    /// This process's value. When two threads make one at once, one is dropped.
    pub fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Owned { fork: count(), value: make()? };
        Ok(&self.values.push_unless(made, || self.own()).value)
    }

    /// The values that ancestors of this process have made, for uses that need no lock.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = &T> {
        self.values.iter().filter(|owned| owned.fork != count()).map(|owned| &owned.value)
    }

    fn own(&self) -> Option<&Owned<T>> {
        self.values.iter().find(|owned| owned.fork == count())
    }
}

impl<T> Drop for PerFork<T> {
    fn drop(&mut self) {
        for owned in self.values.drain() {
            if owned.fork != count() {
                std::mem::forget(owned);
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
                    assert!(std::ptr::eq(value, values.get().unwrap()));
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

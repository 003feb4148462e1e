//! The locks of every room that has threads.
//!
//! They are the standard library's, with one answer to a thread that panicked while it held one: the next that
//! comes gets the lock. A panic is reported where it happened (a request is answered with an error, a worker
//! ends); behind a lock lie tables that are right after each statement, and a mount or a library that could
//! never take its table again would hang every program that uses the pool. `clippy.toml` keeps the standard
//! library's own out of all other rooms, so that this is not decided anew at each lock.
//!
//! Invariant: no lock here is ever poisoned, and none costs more than the standard library's.
#![forbid(unsafe_code)]
// The one place for these.
#![allow(clippy::disallowed_types)]

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A value that one thread at a time may reach.
#[derive(Default, Debug)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// The value, of a lock that has no other user any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free, and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock when it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A value that many threads may read at once, or one change.
#[derive(Default, Debug)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free lock around a value.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no other thread changes the value, and reads it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread uses the value, and takes it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes threads that wait for what lies behind a [`Mutex`] to change.
#[derive(Default, Debug)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// A variable on which no thread waits yet.
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    /// Gives the lock back, waits to be woken, and takes it again. It may wake without a reason: ask in a loop.
    #[inline]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for this time at most. A caller that must know whether the time has passed asks the clock.
    #[inline]
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one that waits.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn panic_with<T>(guard: T) {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("a test's panic, with the lock"));
        }));
        assert!(panicked.is_err());
    }

    #[test]
    fn a_lock_is_usable_after_a_panic_with_it() {
        let mutex = Mutex::new(1);
        panic_with(mutex.lock());
        *mutex.lock() += 1;
        assert_eq!(*mutex.try_lock().expect("nobody has it"), 2);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert_eq!(mutex.into_inner(), 2);

        let both = RwLock::new(1);
        panic_with(both.write());
        assert_eq!(*both.read(), 1);
        *both.write() = 2;
        assert_eq!(*both.read(), 2);
    }

    #[test]
    fn waits_end_when_woken_and_when_their_time_is_over_after_a_panic_too() {
        let (ready, wake) = (Mutex::new(false), Condvar::new());
        panic_with(ready.lock());
        assert!(!*wake.wait_timeout(ready.lock(), Duration::from_millis(1)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *ready.lock() = true;
                wake.notify_all();
            });
            let mut seen = ready.lock();
            while !*seen {
                seen = wake.wait(seen);
            }
        });
    }
}

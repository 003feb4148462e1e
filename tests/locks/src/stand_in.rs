//! What `crates/sync` offers, over shuttle's locks.

use std::sync::TryLockError;
use std::time::Duration;

use shuttle::sync::MutexGuard;

/// A value that one thread at a time may reach.
#[derive(Default, Debug)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics with a lock here")
    }

    /// Takes the lock when it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread has panicked with a lock"),
        }
    }
}

/// Wakes threads that wait for what lies behind a [`Mutex`] to change.
#[derive(Default, Debug)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    /// Gives the lock back, waits to be woken, and takes it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("no thread panics with a lock here")
    }

    /// The same: no time passes here, so that a thread that is not woken waits for ever.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, _time: Duration) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

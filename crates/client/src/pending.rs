//! A call that runs in the background and is waited for later: to publish or refresh bytes takes as long as
//! they take to move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_sync::{Condvar, Mutex};

use crate::fork;
use crate::session::heart::block_signals;

/// The calls under way in this process.
static IN_FLIGHT: Places = Places::new();

/// A call under way, on a thread of its own. It runs to its end even if nobody waits for it.
pub struct Pending {
    outcome: Arc<Outcome>,
    /// The process that began it; a forked child has no such thread.
    fork: u64,
}

#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<()>>>,
    over: Condvar,
}

/// The limited number of places for calls under way: how many are taken in the lower half, and in the upper one the
/// number of forks of the process that took them. A forked child has no such threads, so that nobody would give its
/// parent's places back there: it begins with all of them.
struct Places(AtomicU64);

/// One of them, until it is dropped.
struct Place {
    places: &'static Places,
    process: u64,
}

impl Places {
    const fn new() -> Places {
        Places(AtomicU64::new(0))
    }

    fn take(&'static self) -> Option<Place> {
        let process = upper_half(fork::count() << 32);
        let more = |now| {
            let taken = if upper_half(now) == process { now - process } else { 0 };
            (taken < limits::PENDING_CALLS_MAX as u64).then_some(process + taken + 1)
        };
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Place { places: self, process })
    }
}

fn upper_half(number: u64) -> u64 {
    number & !u64::from(u32::MAX)
}

impl Drop for Place {
    fn drop(&mut self) {
        let fewer = |now| (upper_half(now) == self.process).then(|| now - 1);
        // In a forked child it counts no more.
        let _ = self.places.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }
}

impl Pending {
    /// Begins a call.
    ///
    /// Errors: `Retry` where [`limits::PENDING_CALLS_MAX`] calls are under way; those of starting a thread.
    pub fn begin(call: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Pending> {
        Pending::begin_in(&IN_FLIGHT, call)
    }

    fn begin_in(
        places: &'static Places,
        call: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Pending> {
        fork::watch();
        let place = places.take().ok_or_else(|| {
            let text = format!("{} calls are under way; wait for one of them", limits::PENDING_CALLS_MAX);
            Error::new(ErrorKind::Retry, text)
        })?;
        let outcome = Arc::new(Outcome::default());
        let there = outcome.clone();
        let work = move || {
            block_signals();
            let ended = Ending(there);
            let result = call();
            drop(place);
            ended.with(result);
        };
        std::thread::Builder::new()
            .name("ramlace-pending".into())
            .spawn(work)
            .map_err(|error| Error::from_io(&error, "starting a thread for a call"))?;
        Ok(Pending { outcome, fork: fork::count() })
    }

    /// The call's result, if it has ended. Does not wait.
    ///
    /// Errors: `BadHandle` in a forked child.
    pub fn poll(&self) -> Result<Option<Result<()>>> {
        self.check_process()?;
        Ok(self.outcome.result.lock().clone())
    }

    /// Waits until the call has ended.
    ///
    /// Errors: those of the call; `BadHandle` in a forked child.
    pub fn wait(&self) -> Result<()> {
        self.check_process()?;
        let mut result = self.outcome.result.lock();
        loop {
            match &*result {
                Some(result) => return result.clone(),
                None => result = self.outcome.over.wait(result),
            }
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.fork == fork::count() {
            return Ok(());
        }
        let text = "the call goes on in the process that this one was forked from";
        Err(Error::new(ErrorKind::BadHandle, text))
    }
}

/// Wakes the waiting threads when the call ends, also when it has panicked.
struct Ending(Arc<Outcome>);

impl Ending {
    fn with(self, result: Result<()>) {
        *self.0.result.lock() = Some(result);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let broken =
            || Err(Error::new(ErrorKind::Fatal, "a call that went on beside the program has broken off"));
        self.0.result.lock().get_or_insert_with(broken);
        self.0.over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    // SEMANTICS 144.1, 144.2
    #[test]
    fn calls_go_on_beside_the_program_and_no_more_than_there_may_be() {
        // Other tests of this process begin calls, too.
        static PLACES: Places = Places::new();
        let (sender, receiver) = channel::<()>();
        let receiver = Arc::new(Mutex::new(receiver));
        let begin = || {
            let receiver = receiver.clone();
            Pending::begin_in(&PLACES, move || {
                let _ = receiver.lock().recv();
                Err(Error::new(ErrorKind::NoSpace, "full"))
            })
        };
        let mut pending: Vec<Pending> = (0..limits::PENDING_CALLS_MAX).map(|_| begin().unwrap()).collect();
        assert_eq!(begin().map(drop).unwrap_err().kind(), ErrorKind::Retry);
        assert!(pending.iter().all(|call| call.poll().unwrap().is_none()));
        sender.send(()).unwrap();
        while pending.iter().all(|call| call.poll().unwrap().is_none()) {
            std::thread::yield_now();
        }
        // The place is free again before the call's end is reported.
        pending.push(begin().unwrap());
        drop(sender);
        for call in pending {
            assert_eq!(call.wait().unwrap_err().kind(), ErrorKind::NoSpace);
            assert_eq!(call.poll().unwrap().unwrap().unwrap_err().kind(), ErrorKind::NoSpace);
        }
    }

    // SEMANTICS 144.2
    #[test]
    fn a_forked_child_has_all_places() {
        static PLACES: Places = Places::new();
        fork::watch();
        let all = || -> Vec<Place> { std::iter::from_fn(|| PLACES.take()).collect() };
        let taken = all();
        assert_eq!(taken.len(), limits::PENDING_CALLS_MAX);
        // SAFETY: the child takes numbers, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = all();
            // Given back by nobody there; those of the child are its own all the same.
            drop(taken);
            let right = own.len() == limits::PENDING_CALLS_MAX && PLACES.take().is_none();
            drop(own);
            let right = right && all().len() == limits::PENDING_CALLS_MAX;
            // SAFETY: ends the child without the test runner's own handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just started.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(PLACES.take().is_none());
        drop(taken);
        assert_eq!(all().len(), limits::PENDING_CALLS_MAX);
    }

    // SEMANTICS 144.2
    #[test]
    fn a_call_that_breaks_off_is_an_error_to_the_thread_that_waits() {
        let call = Pending::begin(|| panic!("as a test wants it")).unwrap();
        assert_eq!(call.wait().unwrap_err().kind(), ErrorKind::Fatal);
    }
}

//! Accounting: which purpose has which memory, and the ballast that holds the rest.
//!
//! Lock order: the one mutex here is the only lock of this crate. It is held while the ballast is shrunk, never while
//! it grows or lanes change: those are counted first, made without the lock, and corrected afterwards by what the
//! kernel really took. Only what needs memory of a growing ballast waits for its step.

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use rustix::fs::OFlags;

use crate::ballast::{Ballast, Growth};
use crate::{StoreRoot, sys};

/// Where the memory of a store is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What the store lends in all.
    pub size_bytes: u64,
    /// Lanes and meta files together.
    pub used_bytes: u64,
    /// Memory of lanes.
    pub lanes_bytes: u64,
    /// Memory of the server's log, snapshots and map.
    pub meta_bytes: u64,
    /// Memory held by the ballast: free, and already taken from the machine.
    pub reserved_bytes: u64,
    /// Not used: `size_bytes - used_bytes`, reserved or not.
    pub free_bytes: u64,
    /// What lanes may still take: free less the headroom for the log.
    pub free_for_lanes_bytes: u64,
}

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Lanes leave the headroom alone.
    Lanes,
    /// The log's ordinary entries leave half of the headroom to the urgent ones.
    Meta,
    /// What frees memory may use all of it.
    UrgentMeta,
}

/// The counters and the ballast of one store, shared with the thread that reserves.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    size: u64,
    headroom: u64,
    lanes: u64,
    meta: u64,
    promised: u64,
    withheld: u64,
    /// How often memory was promised: whether somebody takes memory at this time.
    promises: u64,
    pub(crate) ballast: Ballast,
    pub(crate) stopping: bool,
}

impl Pool {
    /// Counters of a store whose lanes and meta files hold this much now.
    pub(crate) fn new(root: &StoreRoot, lanes: u64, meta: u64) -> Result<Pool> {
        let file =
            sys::tell(sys::open_file(root.descriptor(), "ballast", OFlags::CREATE), "opening the ballast")?;
        let size = root.size_bytes();
        let state = State {
            size,
            headroom: headroom_bytes(size),
            lanes,
            meta,
            promised: 0,
            withheld: 0,
            promises: 0,
            ballast: Ballast::new(file, root.has_huge_pages())?,
            stopping: false,
        };
        Ok(Pool { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Promises `bytes`, shrinking the ballast if needed. Follow with [`Pool::account`].
    ///
    /// Errors: `NoSpace`, naming the pool's fill.
    pub(crate) fn promise(&self, purpose: Purpose, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        state.promises += 1;
        loop {
            if bytes > state.room(purpose) {
                return Err(state.full(bytes));
            }
            if state.unreserved() >= bytes || !state.ballast.is_growing() {
                break;
            }
            state = self.wait(state);
        }
        state.make_unreserved(bytes)?;
        state.promised += bytes;
        Ok(())
    }

    /// Ends a promise (0 for none): the files of `purpose` now hold `after` instead of `before` bytes.
    pub(crate) fn account(&self, purpose: Purpose, promised: u64, before: u64, after: u64) {
        let mut state = self.lock();
        assert!(state.promised >= promised, "accounted for more than was promised");
        state.promised -= promised;
        let counter = if purpose == Purpose::Lanes { &mut state.lanes } else { &mut state.meta };
        assert!(*counter + after >= before, "more freed than counted");
        *counter = *counter + after - before;
        if state.wants_more_ballast() {
            self.changed.notify_all();
        }
    }

    /// Lets go of some memory that is held free, whatever the counters say; whether there was some.
    pub(crate) fn shrink_ballast(&self) -> Result<bool> {
        let mut state = self.lock_at_rest();
        let held = state.ballast.allocated();
        state.ballast.shrink(limits::HUGE_PAGE_BYTES)?;
        Ok(state.ballast.allocated() < held)
    }

    /// Begins a step of the reservation; `None`: there is nothing to be reserved, or it has to stop. Also how often
    /// memory was promised.
    pub(crate) fn begin_growing(&self, bytes_max: u64) -> Option<(Growth, u64)> {
        let mut state = self.lock();
        let units = state.unreserved() / limits::HUGE_PAGE_BYTES * limits::HUGE_PAGE_BYTES;
        if state.stopping || units == 0 {
            return None;
        }
        Some((state.ballast.begin_growing(units.min(bytes_max)), state.promises))
    }

    /// Ends it. Returns whether its memory could be counted, and how often memory was promised.
    pub(crate) fn end_growing(&self) -> (Result<()>, u64) {
        let mut state = self.lock();
        let counted = state.ballast.end_growing();
        self.changed.notify_all();
        (counted, state.promises)
    }

    /// Keeps so much from lanes and from ordinary entries of the log, for what else these have promised to take.
    pub(crate) fn withhold(&self, bytes: u64) {
        self.lock().withheld = bytes;
    }

    pub(crate) fn usage(&self) -> Usage {
        let state = self.lock();
        let used = state.lanes + state.meta;
        Usage {
            size_bytes: state.size,
            used_bytes: used,
            lanes_bytes: state.lanes,
            meta_bytes: state.meta,
            reserved_bytes: state.ballast.allocated(),
            free_bytes: state.size.saturating_sub(used),
            free_for_lanes_bytes: state.room(Purpose::Lanes),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the counters wrong: every change is one assignment.
        self.state.lock()
    }

    /// The same while the ballast does not grow.
    pub(crate) fn lock_at_rest(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.ballast.is_growing() {
            state = self.wait(state);
        }
        state
    }

    /// Lets the reservation sleep until memory was freed or it must stop.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state)
    }

    /// As [`Pool::wait`], for a time at most.
    pub(crate) fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, State>,
        time: std::time::Duration,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time)
    }

    /// Sets whether the reservation thread is to stop.
    pub(crate) fn set_stopping(&self, stopping: bool) {
        self.lock().stopping = stopping;
        self.changed.notify_all();
    }
}

impl State {
    /// Memory that is unused and not held by the ballast.
    pub(crate) fn unreserved(&self) -> u64 {
        self.size.saturating_sub(self.lanes + self.meta + self.promised + self.ballast.held())
    }

    /// Memory of lanes, and all that is taken, the ballast included.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.lanes, self.lanes + self.meta + self.ballast.allocated())
    }

    /// Refilling starts at two units, so that a small file created and removed again and again does
    /// not make the ballast breathe with it.
    pub(crate) fn wants_more_ballast(&self) -> bool {
        self.unreserved() >= 2 * limits::HUGE_PAGE_BYTES
    }

    fn room(&self, purpose: Purpose) -> u64 {
        let left = match purpose {
            Purpose::Lanes => self.headroom + self.withheld,
            Purpose::Meta => self.headroom / 2 + self.withheld,
            Purpose::UrgentMeta => 0,
        };
        self.size.saturating_sub(self.lanes + self.meta + self.promised + left)
    }

    fn make_unreserved(&mut self, bytes: u64) -> Result<()> {
        while self.unreserved() < bytes && self.ballast.allocated() > 0 {
            let short = bytes - self.unreserved();
            self.ballast.shrink(short)?;
        }
        Ok(())
    }

    fn full(&self, bytes: u64) -> Error {
        Error::new(
            ErrorKind::NoSpace,
            format!(
                "the store is full: {} more do not fit beside {} of files and {} of log in {} ({} are kept for \
                 the log); remove something, or start a pool with more --memory: one that runs does not grow",
                format_bytes(bytes),
                format_bytes(self.lanes),
                format_bytes(self.meta),
                format_bytes(self.size),
                format_bytes(self.headroom)
            ),
        )
    }
}

/// What lanes leave free, so that deletes can be logged when all else is full.
fn headroom_bytes(size: u64) -> u64 {
    (size / limits::STORE_HEADROOM_FRACTION).max(limits::STORE_HEADROOM_BYTES_MIN)
}

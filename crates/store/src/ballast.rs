//! The ballast: a file that holds what is free, so that the machine cannot lend it to others.
//!
//! It grows at its end in the background and shrinks at its end whenever a lane needs memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ramlace_base::{ByteRange, Error, Result, limits};

use crate::machine::machine_memory;
use crate::pool::Pool;
use crate::sys;
use crate::window::Mapping;

/// How long the reservation waits when the machine itself has run short of memory.
const SHORT_OF_MEMORY_PAUSE: Duration = Duration::from_secs(5);
/// The machine's memory is asked for once in so many steps: reading it costs more than a step.
const STEPS_PER_LOOK: u32 = 16;

/// The file and what the kernel says it holds.
#[derive(Debug)]
pub(crate) struct Ballast {
    file: OwnedFd,
    length: u64,
    allocated: u64,
    huge: bool,
}

impl Ballast {
    pub(crate) fn new(file: OwnedFd, huge: bool) -> Result<Ballast> {
        let size = sys::file_size(&file, "looking at the ballast")?;
        Ok(Ballast { file, length: size.length, allocated: size.allocated, huge })
    }

    /// Memory that it holds, in bytes.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Gives back at least `bytes` as far as it has them, in whole units from its end.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Result<()> {
        let units = bytes.next_multiple_of(limits::HUGE_PAGE_BYTES);
        let length = self.length.saturating_sub(units);
        sys::tell(rustix::fs::ftruncate(&self.file, length), "shrinking the ballast")?;
        self.measure()
    }

    /// Takes `bytes` more (whole units), pre-faulted; what was taken before an error stays counted.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        let range = ByteRange { start: self.length, end: self.length + bytes };
        let grown = self.take(range);
        self.measure()?;
        grown
    }

    fn take(&self, range: ByteRange) -> Result<()> {
        let doing = "growing the ballast";
        sys::tell(rustix::fs::ftruncate(&self.file, range.end), doing)?;
        if self.huge {
            let mapping = Mapping::new(self.file.as_fd(), range.start, range.length())?;
            // Whether it worked is seen below; fallocate then says why it did not.
            let _ = mapping.populate(0, range.length());
        }
        sys::tell(sys::allocate(&self.file, range), doing)
    }

    fn measure(&mut self) -> Result<()> {
        let size = sys::file_size(&self.file, "looking at the ballast")?;
        (self.length, self.allocated) = (size.length, size.allocated);
        Ok(())
    }
}

/// The thread that fills the ballast; dropping this stops it.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Arc<Pool>,
    thread: Option<JoinHandle<()>>,
}

impl Reservation {
    pub(crate) fn start(pool: Arc<Pool>) -> Result<Reservation> {
        pool.set_stopping(false);
        let shared = Arc::clone(&pool);
        let thread = std::thread::Builder::new()
            .name("reservation".into())
            .spawn(move || run(&shared))
            .map_err(|error| Error::from_io(&error, "starting the thread that reserves memory"))?;
        Ok(Reservation { pool, thread: Some(thread) })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.set_stopping(true);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that its panic message has not said.
            let _ = thread.join();
        }
    }
}

fn run(pool: &Pool) {
    // On Linux a process id of none means this thread alone. Being less polite would still work.
    let _ = rustix::process::setpriority_process(None, 19);
    loop {
        let mut state = pool.lock();
        while !state.stopping && !state.wants_more_ballast() {
            state = pool.wait(state);
        }
        if state.stopping {
            return;
        }
        drop(state);
        if !fill(pool) {
            let state = pool.lock();
            if !state.stopping {
                drop(pool.wait_for(state, SHORT_OF_MEMORY_PAUSE));
            }
        }
    }
}

/// Fills step by step until less than one unit is left over. False when the machine is short of memory.
fn fill(pool: &Pool) -> bool {
    for step in 0u32.. {
        if step % STEPS_PER_LOOK == 0 && !machine_has_room() {
            return false;
        }
        let mut state = pool.lock();
        let units = state.unreserved() / limits::HUGE_PAGE_BYTES * limits::HUGE_PAGE_BYTES;
        if state.stopping || units == 0 {
            return true;
        }
        if state.ballast.grow(units.min(limits::RESERVE_STEP_BYTES_MAX)).is_err() {
            return false;
        }
        drop(state);
        std::thread::sleep(Duration::from_micros(limits::RESERVE_PAUSE_MICROS));
    }
    true
}

/// Reserving must not make the machine kill a process for memory.
fn machine_has_room() -> bool {
    let steps = limits::RESERVE_STEP_BYTES_MAX * u64::from(STEPS_PER_LOOK);
    machine_memory().is_ok_and(|memory| memory.available_bytes > steps + limits::STORE_MARGIN_BYTES / 2)
}

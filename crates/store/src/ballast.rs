//! The ballast: a file that holds what is free, so that the machine cannot lend it to others.
//!
//! It grows at its end in the background and shrinks at its end whenever a lane needs memory. A thread grows it, in
//! steps, and takes no lock meanwhile: the kernel clears the pages, which takes long where the processors are busy.
//! The thread has the priority of all others for the same reason: what it holds in the kernel during a step, requests
//! may wait for. Instead it rests: as long as a step took, and longer beside requests that take memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, Result, limits};

use crate::machine::machine_memory;
use crate::pool::Pool;
use crate::sys;
use crate::window::Mapping;

/// How long the reservation waits when the machine itself has run short of memory.
const SHORT_OF_MEMORY_PAUSE: Duration = Duration::from_secs(5);
/// The machine's memory is asked for once in so many steps: reading it costs more than a step.
const STEPS_PER_LOOK: u32 = 16;
/// The rest after a step, in times of what it took: while nobody takes memory, and while somebody does.
const REST_QUIET: u32 = 1;
const REST_BUSY: u32 = 16;
const REST_MIN: Duration = Duration::from_micros(limits::RESERVE_PAUSE_MICROS);
/// The longest rest: a store that is dropped waits for it.
const REST_MAX: Duration = Duration::from_millis(200);

/// The file and what the kernel says it holds.
#[derive(Debug)]
pub(crate) struct Ballast {
    file: Arc<OwnedFd>,
    length: u64,
    allocated: u64,
    /// Bytes that are being taken at this moment, without the lock; the file must not be shrunk meanwhile.
    growing: u64,
    huge: bool,
}

/// A part that the ballast is about to take.
#[derive(Debug)]
pub(crate) struct Growth {
    file: Arc<OwnedFd>,
    range: ByteRange,
    huge: bool,
}

impl Growth {
    /// Takes it, pre-faulted.
    fn take(&self) -> Result<()> {
        let doing = "growing the ballast";
        sys::tell(rustix::fs::ftruncate(&self.file, self.range.end), doing)?;
        if self.huge {
            let mapping = Mapping::new(self.file.as_fd(), self.range.start, self.range.length())?;
            // Whether it worked is seen below; fallocate then says why it did not.
            let _ = mapping.populate(0, self.range.length());
        }
        sys::tell(sys::allocate(&self.file, self.range), doing)
    }
}

impl Ballast {
    pub(crate) fn new(file: OwnedFd, huge: bool) -> Result<Ballast> {
        let size = sys::file_size(&file, "looking at the ballast")?;
        let (length, allocated) = (size.length, size.allocated);
        Ok(Ballast { file: Arc::new(file), length, allocated, growing: 0, huge })
    }

    /// Memory that it holds, in bytes.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The same with what it takes at this moment.
    pub(crate) fn held(&self) -> u64 {
        self.allocated + self.growing
    }

    /// Whether it takes memory at this moment.
    pub(crate) fn is_growing(&self) -> bool {
        self.growing > 0
    }

    /// Gives back at least `bytes` as far as it has them, in whole units from its end. It must not be growing.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Result<()> {
        assert!(!self.is_growing(), "the ballast was shrunk while it grew");
        let units = bytes.next_multiple_of(limits::HUGE_PAGE_BYTES);
        let length = self.length.saturating_sub(units);
        sys::tell(rustix::fs::ftruncate(&self.file, length), "shrinking the ballast")?;
        self.measure()
    }

    /// Begins to take `bytes` more (whole units); follow with [`Ballast::end_growing`].
    pub(crate) fn begin_growing(&mut self, bytes: u64) -> Growth {
        assert!(!self.is_growing(), "the ballast grew twice at once");
        self.growing = bytes;
        let range = ByteRange { start: self.length, end: self.length + bytes };
        Growth { file: Arc::clone(&self.file), range, huge: self.huge }
    }

    /// Counts what was taken, before an error, too.
    pub(crate) fn end_growing(&mut self) -> Result<()> {
        self.growing = 0;
        self.measure()
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
        let Some((growth, taken_before)) = pool.begin_growing(limits::RESERVE_STEP_BYTES_MAX) else {
            return true;
        };
        let begun = Instant::now();
        let grown = growth.take();
        let took = begun.elapsed();
        let (counted, taken) = pool.end_growing();
        if grown.and(counted).is_err() {
            return false;
        }
        let rest = if taken == taken_before { REST_QUIET } else { REST_BUSY };
        std::thread::sleep((took * rest).clamp(REST_MIN, REST_MAX));
    }
    true
}

/// Reserving must not make the machine kill a process for memory.
fn machine_has_room() -> bool {
    let steps = limits::RESERVE_STEP_BYTES_MAX * u64::from(STEPS_PER_LOOK);
    machine_memory().is_ok_and(|memory| memory.available_bytes > steps + limits::STORE_MARGIN_BYTES / 2)
}

//! Pauses between attempts, up to a deadline.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};

const PAUSE_MILLIS_MIN: u64 = 1;
const PAUSE_MILLIS_MAX: u64 = 20;

/// Growing pauses up to a deadline.
pub(crate) struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new(deadline: Instant) -> Backoff {
        Backoff { deadline, pause: Duration::from_millis(PAUSE_MILLIS_MIN) }
    }

    /// Whether there is no time for another attempt before a deadline.
    pub(crate) fn is_over(deadline: Instant) -> bool {
        Instant::now() + Duration::from_millis(PAUSE_MILLIS_MAX) >= deadline
    }

    /// Sleeps, or fails when the deadline would pass.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.pause_after(Error::new(ErrorKind::TimedOut, "the deadline passed"))
    }

    /// The same with the error to fail with.
    pub(crate) fn pause_after(&mut self, error: Error) -> Result<()> {
        if Instant::now() + self.pause >= self.deadline {
            return Err(error);
        }
        // Two clients that are in each other's way do not come again at the same moment.
        std::thread::sleep(self.pause.mul_f32(crate::entropy::between_half_and_one()));
        self.pause = (self.pause * 2).min(Duration::from_millis(PAUSE_MILLIS_MAX));
        Ok(())
    }
}

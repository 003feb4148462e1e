//! The growing pauses between attempts, up to a deadline.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};

const PAUSE_MILLIS_MIN: u64 = 1;
const PAUSE_MILLIS_MAX: u64 = 20;

/// Growing pauses between attempts, up to a deadline.
pub struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    /// No pause has been made yet.
    pub fn new(deadline: Instant) -> Backoff {
        Backoff { deadline, pause: Duration::from_millis(PAUSE_MILLIS_MIN) }
    }

    /// Changes the deadline.
    pub fn move_to(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether there is no time left for another attempt before a deadline.
    pub fn is_over(now: Instant, deadline: Instant) -> bool {
        now + Duration::from_millis(PAUSE_MILLIS_MAX) >= deadline
    }

    /// The pause before the next attempt, if there is time for one. `share`, from a half to the whole, is the
    /// part of it that is taken: so two clients that collide do not retry at the same moment.
    pub fn next(&mut self, now: Instant, share: f32) -> Option<Duration> {
        let pause = self.pause;
        (now + pause < self.deadline).then(|| {
            self.pause = (pause * 2).min(Duration::from_millis(PAUSE_MILLIS_MAX));
            pause.mul_f32(share)
        })
    }

    /// Sleeps, or fails when the deadline would pass.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.pause_after(Error::new(ErrorKind::TimedOut, "the deadline passed"))
    }

    /// As `pause`; `error` is the one to fail with.
    pub(crate) fn pause_after(&mut self, error: Error) -> Result<()> {
        let pause = self.next(Instant::now(), crate::entropy::between_half_and_one()).ok_or(error)?;
        std::thread::sleep(pause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_end_before_the_deadline() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut backoff = Backoff::new(at(100));
        let pauses: Vec<_> = (0..7).map(|_| backoff.next(begin, 1.0).unwrap().as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 20, 20]);
        assert_eq!(backoff.next(at(79), 0.5), Some(Duration::from_millis(10)));
        assert_eq!(backoff.next(at(80), 0.5), None, "the whole pause has to fit");
        assert!(Backoff::is_over(at(80), at(100)));
        assert!(!Backoff::is_over(at(79), at(100)));
    }
}

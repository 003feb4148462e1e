//! Looking again for a moment before going to sleep.
//!
//! Waking a sleeping thread costs more than a small call: 45 µs at each end where cores of a virtual machine
//! sleep, 3 µs elsewhere. Whoever expects an answer at once looks for it again and again for some microseconds,
//! lets other programs run in between, and sleeps only then. A connection on which that was in vain, since the other
//! side is far away or slow, stops it but for a trial now and then: an idle connection costs nothing.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long one wait may look.
const SPIN_MICROS_MAX: u64 = 50;
/// Waits without looking between two trials.
const TRIAL_EVERY: u32 = 64;
/// Successes that count: after so many waits in vain in a row a connection sleeps at once.
const CREDIT_MAX: u32 = 4;

/// What a connection has learned of its waits.
#[derive(Default)]
pub(crate) struct Spin {
    credit: Cell<u32>,
    slept: Cell<u32>,
}

impl Spin {
    /// Begins a wait; `None`: sleep at once.
    pub(crate) fn begin(&self) -> Option<Spinning<'_>> {
        let slept = self.slept.get();
        if self.credit.get() == 0 && slept < TRIAL_EVERY {
            self.slept.set(slept + 1);
            return None;
        }
        self.slept.set(0);
        Some(Spinning { spin: self, until: Instant::now() + Duration::from_micros(SPIN_MICROS_MAX) })
    }
}

/// One wait that looks.
pub(crate) struct Spinning<'a> {
    spin: &'a Spin,
    until: Instant,
}

impl Spinning<'_> {
    /// What was waited for is here.
    pub(crate) fn found(&self) {
        self.spin.credit.set(CREDIT_MAX);
    }

    /// Lets others run. `false`: it is time to sleep.
    pub(crate) fn again(&self) -> bool {
        if Instant::now() >= self.until {
            self.spin.credit.set(self.spin.credit.get().saturating_sub(1));
            return false;
        }
        rustix::thread::sched_yield();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_end_the_looking_but_for_a_trial() {
        let spin = Spin::default();
        let looks = || {
            spin.begin().is_some_and(|spinning| {
                while spinning.again() {}
                true
            })
        };
        assert_eq!((0..=TRIAL_EVERY).filter(|_| looks()).count(), 1);
        for _ in 0..2 * TRIAL_EVERY {
            if let Some(spinning) = spin.begin() {
                spinning.found();
            }
        }
        let looked = (0..TRIAL_EVERY).filter(|_| looks()).count();
        assert_eq!(looked as u32, CREDIT_MAX);
    }
}

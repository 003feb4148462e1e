//! Polling for a short time before going to sleep.
//!
//! Waking a sleeping thread costs more than a small call: 45 µs at each end where cores of a virtual machine
//! sleep, 3 µs elsewhere. A thread that expects an answer at once polls for it for some microseconds, lets
//! other programs run in between, and sleeps only then. A connection on which that was in vain, because the
//! other side is far away or slow, stops it except for an occasional trial: an idle connection costs nothing.
//!
//! If both sides share a core, polling only keeps the other from answering: so after a poll that succeeded
//! only after the core was given to another thread, a side sleeps at once for a while.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long one wait may poll.
const SPIN_MICROS_MAX: u64 = 50;
/// Waits without polling between two trials.
const TRIAL_EVERY: u32 = 64;
/// The limit of counted successes: after this many waits in vain in a row a connection sleeps at once.
const CREDIT_MAX: u32 = 4;

/// Polls from one that counts how often the core was given away to the next that does.
const COUNT_EVERY: u32 = 32;
/// After this many counted polls in a row that needed the core to be given away, it counts as shared.
const SHARED_POLLS: u32 = 3;
/// Waits that then sleep at once, before polling begins again.
const SHARED_WAITS: u32 = 256;

/// What a connection has learned from its waits.
#[derive(Default)]
pub(crate) struct Spin {
    credit: Cell<u32>,
    slept: Cell<u32>,
    /// Polls until the next that counts.
    uncounted: Cell<u32>,
    /// Counted polls in a row that needed the core to be given away.
    shared_polls: Cell<u32>,
    /// Waits that are still to sleep at once, since the core is shared.
    shared_waits: Cell<u32>,
}

impl Spin {
    /// Begins a wait; `None`: sleep at once.
    pub(crate) fn begin(&self) -> Option<Spinning<'_>> {
        if let Some(left) = self.shared_waits.get().checked_sub(1) {
            self.shared_waits.set(left);
            return None;
        }
        let slept = self.slept.get();
        if self.credit.get() == 0 && slept < TRIAL_EVERY {
            self.slept.set(slept + 1);
            return None;
        }
        self.slept.set(0);
        let until = Instant::now() + Duration::from_micros(SPIN_MICROS_MAX);
        Some(Spinning { spin: self, until, switches: self.counts().then(switches) })
    }

    /// Whether this poll counts; after one that needed it, the next one does, too.
    fn counts(&self) -> bool {
        let counts = self.uncounted.get() == 0 || self.shared_polls.get() > 0;
        self.uncounted.set(if counts { COUNT_EVERY } else { self.uncounted.get() - 1 });
        counts
    }

    /// A counting poll has succeeded.
    fn note_switches(&self, count: u64) {
        let polls = if count == 0 { 0 } else { self.shared_polls.get() + 1 };
        if polls < SHARED_POLLS {
            self.shared_polls.set(polls);
        } else {
            // The next poll decides whether polling continues.
            self.shared_polls.set(SHARED_POLLS - 1);
            self.shared_waits.set(SHARED_WAITS);
        }
    }
}

/// How often this thread's core was given to another.
fn switches() -> u64 {
    // SAFETY: `getrusage` fills the structure, which is plain numbers.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_nvcsw.unsigned_abs() + usage.ru_nivcsw.unsigned_abs()
}

/// One wait that polls.
pub(crate) struct Spinning<'a> {
    spin: &'a Spin,
    until: Instant,
    /// How often the core had been given away when it began, if this poll counts.
    switches: Option<u64>,
}

impl Spinning<'_> {
    /// The wait has succeeded.
    pub(crate) fn found(&self) {
        self.spin.credit.set(CREDIT_MAX);
        if let Some(before) = self.switches {
            self.spin.note_switches(switches() - before);
        }
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
    fn waits_in_vain_end_the_polling_but_for_a_trial() {
        let spin = Spin::default();
        let polls = || {
            spin.begin().is_some_and(|spinning| {
                while spinning.again() {}
                true
            })
        };
        assert_eq!((0..=TRIAL_EVERY).filter(|_| polls()).count(), 1);
        for _ in 0..2 * TRIAL_EVERY {
            if let Some(spinning) = spin.begin() {
                spinning.found();
            }
        }
        spin.shared_waits.set(0);
        let polled = (0..TRIAL_EVERY).filter(|_| polls()).count();
        assert_eq!(polled as u32, CREDIT_MAX);
    }

    #[test]
    fn where_the_core_is_shared_waits_sleep_at_once_until_it_is_not() {
        let spin = Spin { credit: Cell::new(CREDIT_MAX), ..Spin::default() };
        let sleeps = || (0..SHARED_WAITS).filter(|_| spin.begin().is_none()).count() as u32;
        // One that needed it is no sign; several in a row are.
        spin.note_switches(1);
        spin.note_switches(0);
        (0..SHARED_POLLS - 1).for_each(|_| spin.note_switches(2));
        assert_eq!(sleeps(), 0);
        (0..SHARED_POLLS).for_each(|_| spin.note_switches(1));
        assert_eq!(sleeps(), SHARED_WAITS);
        assert!(spin.begin().is_some_and(|spinning| spinning.switches.is_some()), "it is looked at again");
        spin.note_switches(1);
        assert_eq!(sleeps(), SHARED_WAITS);
        spin.note_switches(0);
        assert_eq!(sleeps(), 0);
    }
}

//! When the mount polls the modification times of files under passthrough ([`crate::passthrough`]): the kernel
//! does not report stores into mapped pages, and a program need not sync or close. Pure: the time is an
//! argument.

use std::time::{Duration, Instant};

/// The pause of the polling thread between two of its rounds.
pub const PAUSE: Duration = Duration::from_millis(500);
/// A file is polled in the first round that begins this long after its last poll. A store just after a poll
/// is reported by the next: a pause, a round and the poll itself have to fit into the rest of 5 seconds.
const INTERVAL: Duration = Duration::from_millis(4_000);

/// The time of the last poll.
#[derive(Debug, Default)]
pub struct MtimePoll {
    last: Option<Instant>,
}

impl MtimePoll {
    /// Whether this round is to poll; then that is noted.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

//! When to check the times of mapped files, for programs that neither sync nor close: decided without a clock
//! or a kernel.

use std::time::{Duration, Instant};

/// The pause of the checking thread between two of its rounds.
pub const PAUSE: Duration = Duration::from_millis(500);
/// A file is checked in the first round that begins this long after its last check. A store just after a
/// check is reported by the next: a pause, a round and the check itself have to fit into the rest of 5
/// seconds.
const AFTER: Duration = Duration::from_millis(4_000);

/// The time of the last check.
#[derive(Debug, Default)]
pub struct Looks {
    last: Option<Instant>,
}

impl Looks {
    /// Whether this round is to check; then that is noted.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= AFTER);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

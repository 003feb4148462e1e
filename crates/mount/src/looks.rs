//! When the times of mapped files are looked at, for programs that neither sync nor close: what is decided about it without a clock or a kernel.

use std::time::{Duration, Instant};

/// How long the thread that looks rests between two of its rounds.
pub const PAUSE: Duration = Duration::from_millis(500);
/// A look comes in the first round that begins so long after the last look did. What is stored just behind a look is told with the next: a
/// pause, a round and the look itself are to fit into what is left of 5 seconds.
const AFTER: Duration = Duration::from_millis(4_000);

/// When there was a look.
#[derive(Debug, Default)]
pub struct Looks {
    last: Option<Instant>,
}

impl Looks {
    /// Whether this round is to look; then it does.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= AFTER);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

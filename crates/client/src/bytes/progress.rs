//! By when a large transfer has to come on: it may take as long as it needs, and must not stand still. Reads no clock.

use std::time::{Duration, Instant};

/// How a transfer comes on.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    patience: Duration,
    deadline: Instant,
}

impl Progress {
    /// It begins now, and stands still for no longer than `patience`.
    pub fn begin(now: Instant, patience: Duration) -> Progress {
        Progress { patience, deadline: now + patience }
    }

    /// An answer has come, or begins to. That something is sent, or sent again, is no progress.
    pub fn made(&mut self, now: Instant) {
        self.deadline = now + self.patience;
    }

    /// So long no server was asked anything: others of this process had the connections.
    pub fn excuse(&mut self, waited: Duration) {
        self.deadline += waited;
    }

    /// What was waited for there may take until this moment.
    pub fn allow(&mut self, until: Instant) {
        self.deadline = self.deadline.max(until);
    }

    /// By when something has to come.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

//! The deadline of a large transfer moves with its progress: it may take as long as it needs, but must not
//! stall. Reads no clock.

use std::time::{Duration, Instant};

/// The progress of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    patience: Duration,
    deadline: Instant,
}

impl Progress {
    /// Begins now; it may stall for at most `patience`.
    pub fn begin(now: Instant, patience: Duration) -> Progress {
        Progress { patience, deadline: now + patience }
    }

    /// A reply has arrived, or begins to. Sending something, or sending it again, is no progress.
    pub fn made(&mut self, now: Instant) {
        self.deadline = now + self.patience;
    }

    /// For this long no server was asked anything, because others of this process had the connections: it
    /// does not count as a stall.
    pub fn excuse(&mut self, waited: Duration) {
        self.deadline += waited;
    }

    /// The wait for that connection may take until this moment.
    pub fn allow(&mut self, until: Instant) {
        self.deadline = self.deadline.max(until);
    }

    /// The next sign of progress has to come by this moment.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

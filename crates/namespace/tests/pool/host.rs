//! A server's part of the bargain: each command is logged before it is applied.

use ramlace_namespace::{Command, Effect, SlotState};

/// One slot with its snapshot and its log.
pub struct Host {
    pub state: SlotState,
    snapshot: Vec<u8>,
    log: Vec<Vec<u8>>,
}

impl Host {
    pub fn new(state: SlotState) -> Host {
        let snapshot = postcard::to_stdvec(&state).unwrap();
        Host { state, snapshot, log: Vec::new() }
    }

    pub fn apply(&mut self, command: &Command) -> Vec<Effect> {
        self.log.push(postcard::to_stdvec(command).unwrap());
        self.state.apply(command)
    }

    /// Begins again from snapshot and log: everything must be as before.
    pub fn crash(&mut self) {
        let mut again: SlotState = postcard::from_bytes(&self.snapshot).unwrap();
        for record in &self.log {
            again.apply(&postcard::from_bytes(record).unwrap());
        }
        assert_eq!(again, self.state, "the replayed state differs");
        self.state = again;
    }

    pub fn write_snapshot(&mut self) {
        self.snapshot = postcard::to_stdvec(&self.state).unwrap();
        self.log.clear();
    }
}

//! What a client knows of servers while it calls them, as `crates/client/src/session/lines.rs` has it, and why an attempt has no reply.

use ramlace_base::{Error, ErrorKind};
use ramlace_client::pure::{Failed, Remedy};

/// How long a sign of life, and one server's map, is waited for.
pub const SIGN_OF_LIFE_MILLIS_MAX: u64 = 500;
/// How long the heart waits for one answer.
pub const PATIENCE_MILLIS_MAX: u64 = 1_000;
/// SEMANTICS 17.1.
pub const ENDS_WITHIN_MILLIS: u64 = 5_000;

/// One server as a client knows it.
#[derive(Clone, Copy, Default)]
pub struct Known {
    /// The process to which there is a connection.
    pub connection: Option<u64>,
    pub failing: bool,
    pub suspect: bool,
}

impl Known {
    /// What is noted of it when an attempt has failed.
    pub fn note(&mut self, remedy: Remedy, keeps_dead_connections: bool) {
        if remedy.drops_lines {
            self.failing = true;
            if !keeps_dead_connections {
                self.connection = None;
            }
        }
        self.suspect |= remedy.suspects;
    }

    /// A heartbeat was answered, or not.
    pub fn beats(&mut self, answers: bool) {
        self.failing = !answers;
        self.suspect &= !answers;
    }
}

/// Why an attempt has no reply.
#[derive(Clone)]
pub struct Failure {
    pub error: Error,
    pub failed: Failed,
}

impl Failure {
    pub fn lost(kind: ErrorKind) -> Failure {
        let failed = Failed { kind, from_server: false, refused_or_silent: false, brings_map: false };
        Failure { error: Error::new(kind, "no answer"), failed }
    }

    pub fn silent() -> Failure {
        let lost = Failure::lost(ErrorKind::HostDown);
        Failure { failed: Failed { refused_or_silent: true, ..lost.failed }, ..lost }
    }

    /// A server has said it.
    pub fn told(error: Error, brings_map: bool) -> Failure {
        let failed = Failed { kind: error.kind(), from_server: true, refused_or_silent: false, brings_map };
        Failure { error, failed }
    }
}

//! The client's tables with locks, under many orders of threads: their files as they stand in `crates/client`, compiled over the locks of
//! [`shuttle`], which runs one thread at a time and decides at each lock and at each wait which one goes on.
//!
//! There a wait with a time limit has none, so that a thread that is not woken hangs: shuttle says so, as it does of threads that wait for each
//! other's locks. Atomic numbers are the standard library's: no thread gives way at them.
//!
//! Not here: what uses sockets, whole sessions or memory (`lines`, `behind`, `heart`, `listening`, `cache`, `cache_worker`, `near_lanes`, `copy`), and
//! tables with one lock that no thread waits for with another (`known_paths`, `spreads`, the sessions of a pool).
#![forbid(unsafe_code)]

// The files name their locks by the crate `ramlace_sync`: here that is this one.
extern crate self as ramlace_sync;

mod stand_in;

pub use shuttle::sync::MutexGuard;
pub use stand_in::{Condvar, Mutex};

// The rooms of the client, as its files name them.
#[allow(dead_code, reason = "a file has more than these tests ask for")]
#[path = "../../../crates/client/src/session"]
mod session {
    /// Connections. The client's own have sockets.
    #[path = "../../../../tests/locks/src/lines.rs"]
    pub(crate) mod lines;
    pub(crate) mod outbox;
    pub(crate) mod patience;
    pub mod pending;
    pub(crate) mod places;
    pub mod sequences;
}

#[allow(dead_code, reason = "a file has more than these tests ask for")]
#[path = "../../../crates/client/src/names"]
mod names {
    pub(crate) mod deferred;
    pub(crate) mod gates;
    /// What gates hold. The client's own has maps of lanes beside it.
    #[path = "../../../../tests/locks/src/open_inode.rs"]
    pub(crate) mod open_inode;
    pub mod renewals;
}

#[allow(dead_code, reason = "a file has more than these tests ask for")]
#[path = "../../../crates/client/src/bytes"]
mod bytes {
    pub(crate) mod givers;
}

#[allow(dead_code, reason = "a file has more than these tests ask for")]
#[path = "../../../crates/client/src/coordination"]
mod coordination {
    pub(crate) mod parked;
    pub(crate) mod waits;
}

pub mod scenes;

//! The settings of a session: addresses where servers may be, and the key that proves its identity.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};

use ramlace_base::ServerId;

use crate::pool::key_source::KeySource;

/// Where one server of the pool may be found before the map is known.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    /// Its number, where the pool's own file names it.
    pub(crate) server: Option<ServerId>,
    pub(crate) tcp: String,
    pub(crate) unix: Option<PathBuf>,
}

/// Set when a pool is connected; a forked child reads it without a lock.
pub(crate) struct Settings {
    pub(crate) seeds: Vec<Seed>,
    /// The pool's id as `pool.json` has it.
    pub(crate) pool: Option<String>,
    /// The key that proves the identity of this client: the pool's owner, or a host.
    pub(crate) key: KeySource,
    /// The session is a host's.
    pub(crate) for_users: bool,
    pub(crate) local: bool,
    /// How long a call may take.
    pub(crate) deadline_millis: AtomicU32,
    pub(crate) label: String,
    /// Changes may be promised, and sent later.
    pub(crate) behind: bool,
    /// Calls no longer wait for other machines.
    pub(crate) waits_are_over: AtomicBool,
    /// The session is about to end, and to close all its files.
    pub(crate) ends: AtomicBool,
}

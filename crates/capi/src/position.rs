//! The position that reads, writes and seeks of one open file share.

use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::Result;
use ramlace_client::PerFork;
use ramlace_sync::{Mutex, MutexGuard};

/// Where the next read or write begins. One call has its turn at a time, from its beginning to
/// its end, as POSIX has it: threads that read one file get different bytes.
pub(crate) struct Position {
    offset: AtomicU64,
    /// A forked child has a lock of its own: the thread that held its parent's is not in it.
    turns: PerFork<Mutex<()>>,
}

/// One call's turn.
pub(crate) struct Turn<'a> {
    offset: &'a AtomicU64,
    _turn: MutexGuard<'a, ()>,
}

impl Position {
    pub(crate) fn new() -> Position {
        Position { offset: AtomicU64::new(0), turns: PerFork::with(Mutex::new(())) }
    }

    pub(crate) fn turn(&self) -> Result<Turn<'_>> {
        let turns = self.turns.get_or_make(|| Ok(Mutex::new(())))?;
        // A call that panicked has not moved the position.
        let turn = turns.lock();
        Ok(Turn { offset: &self.offset, _turn: turn })
    }
}

impl Turn<'_> {
    pub(crate) fn get(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, offset: u64) {
        self.offset.store(offset, Ordering::Relaxed);
    }
}

//! What processes agree on: locks, cells, barriers, changes that are waited for, and what is still owed
//! to a server after a wait was given up.

pub(crate) mod barriers;
pub(crate) mod cells;
pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod file_locks;
pub(crate) mod locking;
pub(crate) mod parked;
pub(crate) mod waits;

//! How processes coordinate: locks, cells, barriers, waits for changes, and messages that servers still have
//! to be sent after a wait was abandoned.

pub(crate) mod barriers;
pub(crate) mod cells;
pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod file_locks;
pub(crate) mod locking;
pub(crate) mod parked;
pub(crate) mod waits;

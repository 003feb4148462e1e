//! Which inodes a record may change, as a filter for those that sessions wait for: see [`crate::coordination`].

use ramlace_base::{ByteRange, InodeId, Slot};

/// Watched inodes that a record may change.
#[derive(Default)]
pub struct Watched {
    pub homes: bool,
    /// Those of one slot; `None`: of all slots.
    pub slot: Option<Slot>,
    /// Inline bytes.
    pub bytes: Option<(InodeId, ByteRange)>,
}

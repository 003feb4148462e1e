//! What a record may change of homes that somebody has asked about: see [`crate::coordination`].

use ramlace_base::{ByteRange, InodeId, Slot};

/// Homes that a record may change.
#[derive(Default)]
pub struct Watched {
    pub homes: bool,
    /// Those of one slot; of all without one.
    pub slot: Option<Slot>,
    /// Bytes that live with an inode.
    pub bytes: Option<(InodeId, ByteRange)>,
}

//! How to copy.

use ramlace_wire::LayoutHints;

use crate::mounts::Mounts;

/// Bytes that are copied in one piece: four lanes of 2 MiB, so that a call reaches several servers.
pub const PART_BYTES: usize = 8 << 20;

/// How to copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Directories with all that is in them.
    pub recursive: bool,
    /// Threads that copy.
    pub jobs: usize,
    /// How new files of a pool shall be striped.
    pub hints: LayoutHints,
    /// This process's umask.
    pub umask: u16,
    /// Where the pools of this copy are mounted on this machine.
    pub mounts: Mounts,
}

//! The engine of `cp`: one walker, several workers, big files shared among them by ranges.
//!
//! `side` is a place where files are (`below` one on this machine that no link leads to), `file` an open one, `transfer` the copy of one file,
//! `queue` what waits, `walk` finds what is to be copied, `engine` runs it all.

mod below;
mod engine;
mod file;
mod progress;
mod queue;
mod side;
mod transfer;
mod walk;

pub use engine::{Summary, copy};
pub use progress::Progress;
pub use side::{Kind, Side};
pub use transfer::partial;
pub use walk::Root;

use ramlace_wire::LayoutHints;

/// Bytes that are copied in one piece: four lanes of 2 MiB, so that a call reaches several servers.
pub const PART_BYTES: usize = 8 << 20;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// Directories with all that is in them.
    pub recursive: bool,
    /// Threads that copy.
    pub jobs: usize,
    /// How new files of a pool shall be striped.
    pub hints: LayoutHints,
    /// This process's umask.
    pub umask: u16,
}

//! The engine of `cp`: one walker, several workers, big files shared among them by ranges.
//!
//! `side` is a place where files are (`below` one on this machine that no link leads to), `file` an open one, `transfer` the copy of one file,
//! `queue` what waits, `walk` finds what is to be copied, `engine` runs it all.

mod below;
mod engine;
mod file;
mod options;
mod progress;
mod queue;
mod side;
mod transfer;
mod walk;

pub use engine::{Summary, copy};
pub use options::CopyOptions;
pub use progress::Progress;
pub use side::{Kind, Side};
pub use transfer::partial;
pub use walk::Root;

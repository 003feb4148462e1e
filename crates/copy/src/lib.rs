//! Copies files into a pool, out of it and within it: one walker, several workers, big files shared among them by ranges.
//!
//! [`copy`] runs it all and reports the progress to a [`Listener`]. [`Side`] is a place where files are, and [`Root`] a source with the
//! full path of its copy; a caller that copies a single file otherwise says by [`partial`] what a failure has left.
//!
//! From below: `closing`; `below` is a place on this machine that no link leads to, `within` one in a pool, `side` any place, `mounts` where pools
//! are mounted, `options`, `file` is an open file, `transfer` the copy of one file, `queue` what waits, `walk` finds what is to be copied, `engine` runs it all.
//!
//! Invariant: `copy` prints nothing and reads no command line; below what was named it follows no symbolic link; of a copy that
//! fails nothing is left, or the error names what is.
#![deny(unsafe_code)]

mod below;
mod closing;
mod engine;
mod file;
mod mounts;
mod options;
mod queue;
#[cfg(test)]
mod scratch;
mod side;
mod transfer;
mod walk;
mod within;

pub use below::Below;
pub use closing::close;
pub use engine::{Listener, Summary, copy};
pub use file::layout_is_fixed;
pub use mounts::Mounts;
pub use options::CopyOptions;
pub use side::{Entries, Found, Identity, Kind, Side};
pub use transfer::partial;
pub use walk::Root;
pub use within::Within;

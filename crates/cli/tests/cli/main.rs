//! The command, run as people run it.
//!
//! One program: it is linked once.

mod common;
mod copies;
mod names;
mod pools;
mod top;
mod trees;
mod warm;

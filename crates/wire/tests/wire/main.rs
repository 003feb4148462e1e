//! Messages and their bytes: there and back, as they are written down, damaged, and as the document describes
//! them.
//!
//! One program: the code for all messages is compiled once.

mod common;
mod document;
mod fuzz;
mod golden;
mod round_trip;

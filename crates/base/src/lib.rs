//! The vocabulary of all other crates: identifiers, byte ranges, units, limits and errors.
//!
//! Invariant: `base` does no I/O, reads no clock and starts no thread.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod error;
mod ids;
pub mod limits;
mod name;
mod numbered;
pub mod path;
mod plain;
mod range;
pub mod units;

pub use error::{Error, ErrorKind, Redirect, Result};
pub use ids::{
    Epoch, Generation, InodeId, LaneId, NUMBERS_PER_EPOCH, Position, Sequence, ServerId, SessionId, Slot,
    Timestamp,
};
pub use name::Name;
#[doc(hidden)]
pub use numbered::are_distinct;
pub use plain::plain;
pub use range::ByteRange;

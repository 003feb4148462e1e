//! A slot as one value: names, lanes, what is remembered of their writers, and the slot's position in its history. It lies above
//! `namespace` and `lanes`, since neither names the other.
//!
//! [`SlotValue::apply`] takes one [`SlotChange`] after the other and is everything that a record of the log
//! does: the names and lanes it changes, the counts it moves, the bytes of cells that are to be stored, and
//! what others must be notified of. Two values that began the same and took the same changes are the same. So a
//! log, a snapshot, a replica and a move of a slot to another server need nothing else: a value, and the
//! changes after its position.
//!
//! What the shell must do:
//! - it writes a change to its log before it applies it, with the position that it will have ([`SlotValue::position`]);
//! - what a change frees ([`SlotChange::frees`]) it does to the store before that, and what [`Effects::store`] says
//!   afterwards, before the next change;
//! - a session that has ended is reported to every slot that knows it ([`SlotValue::knows`]), and is not
//!   accepted again.
//!
//! Invariant: `slot` does no I/O, reads no clock, draws no random number and starts no thread.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod change;
mod value;

pub use change::{SlotBirth, SlotChange};
pub use value::{Counts, CountsChange, Effects, SlotValue};

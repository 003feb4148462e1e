//! The cluster map: what it must be, how it is read, and the embedded coordinator that decides it.
//!
//! The [`Coordinator`] is a state machine: the server that embeds it feeds it [`Input`]s, keeps its state (or
//! its inputs) in the store before it answers, and hands out [`Coordinator::map`]. Clients and servers check a
//! map that arrives with [`validate`] and read it with [`route`], [`slots_of`], [`is_hole_or_lost`] and
//! [`slots_changed`].
//!
//! Invariant: `cluster` does no I/O, reads no clock and draws no random number; epochs only
//! grow, a slot always has a live primary, and a slot never claims bytes that were lost.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod coordinator;
mod key_book;
mod map;

pub use coordinator::{Coordinator, CoordinatorConfig, Decision, Input};
pub use key_book::{begin_rotation, change_keys, finish_rotation, first_key_book, use_next_secret};
pub use map::{Absent, has_lost, is_hole_or_lost, route, slots_changed, slots_of, validate};

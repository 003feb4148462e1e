//! Arithmetic of placement: offset to chunk to lane to slot, and the choice of a new file's lanes.
//!
//! Chunk `i` of a file is on lane `i mod width`, at `(i div width) × stripe_unit` of that lane's
//! dense file; lane `k` is in slot `(base_slot + k × stride) mod slots`. A layout that came from
//! outside goes through [`validate()`] once; everything else here takes valid layouts.
//!
//! Invariant: `layout` does no I/O, reads no clock and draws no random number: the same
//! arguments give the same places, on every machine.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod arithmetic;
mod choose;
mod partition;
mod parts;
mod runs;
mod validate;

pub use arithmetic::{
    MergedPieces, Piece, Pieces, file_offset, lane_length, lane_slot, lane_span, merged_pieces, pieces,
};
pub use choose::{SEARCH_STEPS_MAX, barrier_slot, choose, choose_from, first_server, name_key};
pub use partition::{
    COLLISION_BITS, HASH_BITS, last_cookie, name_hash, partition_behind, partition_of_hash, partition_of_name,
};
pub use parts::{Part, choose_for_parts};
pub use runs::{Cut, Cuts, Shape, cuts};
pub use validate::validate;

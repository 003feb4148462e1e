//! One test for each rule of a slot, told as a short story.

mod access_lists;
mod asked;
mod entries;
mod exactly_once;
mod inline;
mod locks;
mod memory;
mod neighbours;
mod passthrough;
mod renames;
mod rights;
mod set_id;
mod sizes;
mod story;
mod two_slots;
mod xattrs;

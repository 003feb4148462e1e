//! The state machine of names against models and by short stories.
//!
//! One program: the code for a slot and its commands is compiled once.

mod barriers;
mod lanes;
mod pools;
mod rules;
mod spreading;
mod users;

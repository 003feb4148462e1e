//! The protocol against this machine's kernel.
//!
//! One program: it is linked once, and its tests mount one at a time (`toy::alone`).

mod mounting;
mod other;
mod pages;
mod passthrough;
mod requests;
mod toy;

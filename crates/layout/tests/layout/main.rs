//! The arithmetic of layouts against models, and the choice of lanes.
//!
//! One program: it is linked once.

mod arithmetic;
mod choose;
mod maps;
mod parts;
mod runs;

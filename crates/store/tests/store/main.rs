//! The store on real memory. `storm` is a program of its own, which computes (scripts/rustc.sh), and so is `rest`,
//! which looks at its process.
//!
//! One program: it is linked once.

mod clients;
mod common;
mod lanes;
mod refused;
mod reserve;
mod roots;

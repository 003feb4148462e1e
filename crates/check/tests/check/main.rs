//! A pool of two servers that are only facts: what is found in them, and what is asked for.

mod asking;
mod comparing;
mod facts;
mod servers;

//! The C ABI of ramlace: `libramlace.so` and `ramlace.h`, which is generated from this crate.
//!
//! Every function here checks what C cannot promise (null pointers, handles, lengths, flags),
//! calls the client library, and turns its answer into a return value, `errno` and a text.
//!
//! Invariant: no policy lives here; no panic and no allocation of Rust's crosses the border; a
//! handle is a number in a table and is never dereferenced, so that a stale one is an error.
// The names in the header follow C.
#![allow(non_camel_case_types)]
// What a caller must hold to is said once, at the head of the header.
#![allow(clippy::missing_safety_doc)]
// These comments are the header's: brackets in them are C's.
#![allow(rustdoc::broken_intra_doc_links)]

mod answers;
mod coordination;
mod copies;
mod directory;
mod failure;
mod file;
mod fork;
mod kinds;
mod layout;
mod locks;
mod mapping;
mod names;
mod open;
mod pass;
mod pending;
mod pool;
mod position;
mod runs;
mod table;
mod types;
mod vectors;
mod version;
mod views;
mod xattrs;

pub use coordination::*;
pub use directory::*;
pub use failure::{ramlace_error, ramlace_error_code};
pub use file::*;
pub use kinds::ramlace_error_kind;
pub use layout::*;
pub use locks::*;
pub use mapping::*;
pub use names::*;
pub use open::*;
pub use pending::*;
pub use pool::*;
pub use runs::*;
pub use types::*;
pub use vectors::*;
pub use version::*;
pub use views::*;
pub use xattrs::*;

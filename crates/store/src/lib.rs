//! The memory that holds chunks: one private tmpfs for each server, one dense file for each lane.
//!
//! A [`StoreRoot`] is the tmpfs itself, held open by the small parent of a server; a [`Store`]
//! is what the server's child does with it. [`MetaFile`]s hold the server's log and snapshots.
//!
//! Invariant: the bytes of a lane are touched by system calls only, never by loads and stores,
//! because a client of the same user may truncate a granted file at any moment.
//!
//! Invariant: `lanes_bytes + meta_bytes + reserved_bytes` of [`Usage`] is what the kernel counts.
#![warn(unsafe_code)]

mod audit;
mod ballast;
mod cache;
mod lane;
mod machine;
mod meta;
mod mount;
mod pool;
mod prepare;
mod probe;
mod range_set;
mod root;
mod runs;
mod shared;
mod spread;
mod store;
mod sys;
mod unwritten;
mod window;

pub use audit::Audit;
pub use lane::Extent;
pub use machine::{MachineMemory, machine_memory};
pub use meta::MetaFile;
pub use pool::Usage;
pub use root::{Backing, StoreOptions, StoreRoot};
pub use shared::{StaleStore, find_stale, remove_stale};
pub use store::Store;
pub use window::{Segment, Window};

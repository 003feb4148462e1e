//! Files' bytes: the pieces of a transfer and the rounds that send them, the memory that they move to and
//! from, mappings, arrays, and the leases on bytes that a kernel caches.

pub(crate) mod array;
pub(crate) mod blocks;
pub(crate) mod cache;
pub(crate) mod cache_worker;
pub(crate) mod content;
pub(crate) mod copy;
pub(crate) mod data_leases;
pub(crate) mod file;
pub(crate) mod givers;
pub(crate) mod growth;
pub(crate) mod holes;
pub(crate) mod inline;
pub(crate) mod keeping;
pub(crate) mod kept;
pub(crate) mod lane_numbers;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod near;
pub(crate) mod near_lanes;
pub(crate) mod packing;
pub(crate) mod pages;
pub(crate) mod passthrough;
pub(crate) mod permits;
pub(crate) mod pieces;
pub(crate) mod progress;
pub(crate) mod relaxed;
pub(crate) mod round;
pub(crate) mod runs;
pub(crate) mod seen;
pub(crate) mod space;
pub(crate) mod transfer;

//! A pool as a directory: translates the kernel's file system requests into client calls.
//!
//! [`Mount::new`] connects the pool and mounts it; [`Mount::run`] serves the kernel until the directory is
//! unmounted. What the kernel may cache, and until when:
//!
//! * Names and attributes: for the rest of a lease, unless it is recalled ([`leases`]). A repeated request is
//!   answered from what is kept ([`kept`]), under leases that are renewed together.
//! * Access control lists: as long as the attributes beside them ([`access_lists`]).
//! * Pages: until another client changes their bytes, by leases that servers recall ([`recalls`],
//!   [`droppers`], [`pages`]). An open that finds another version of the file drops them ([`versions`]), and
//!   so does another size. `user.ramlace.refresh` drops them at once ([`refresh`]).
//! * How a file's own mode, or the mount's, changes this: [`modes`], [`strict`].
//! * Written bytes: not at all. A `write` is in the pool when it returns; stores into mapped memory are
//!   written back by `msync`, `fsync`, `close` or when the kernel decides to.
//!
//! The files:
//!
//! - `mount` builds everything and `filesystem` passes each request of the kernel on. Requests are functions of what is
//!   mounted, by subject: `names`, `files`, `data`, `locking`, `xattrs`, `access_lists`, `directories`, `ioctls`; `users`
//!   is for whom a request is made.
//! - `mounted` is what a mounted pool holds: tables that depend on no kind of request but the one that waits in them
//!   (`handles`, `leases`, `kept`, `kept_lists`, `locks`, `strict`, `droppers`, `recalls`, `refresh`, `passthrough`, `places`,
//!   `lost_stores`, `space`...). `believed`, below `leases`, `set_ids`, below `handles`, `refresh/queue` and `mtime_poll`, below `passthrough`,
//!   are pure.
//! - What is known of an inode for as long as the kernel knows it is in one table, [`nodes`], and FORGET ends it there.
//!   `nodes/` has its parts, and `versions`, `modes`, `pages`, `write_errors`, `removed` and `locks` what is done with
//!   them. What ends at another time has a table of its own; [`nodes`] says which, and why.
//!
//! Invariant: the mount decides nothing about names, placement or rights; one request of the kernel is one
//! call of the client, or a few.
//!
//! Lock order: a lock belongs to one file here and is held only while its table is read or changed: no server
//! is asked, and nothing is written to the kernel's device, while one is held. Where a file holds its lock
//! while another is taken, its type says which: `places`, `handles`, `passthrough`, `droppers`; under those of
//! `nodes` no other is taken. `space` alone asks servers under its lock.

mod access_lists;
mod attributes;
/// The mount's decisions about leases, without a clock or a kernel: also used by the simulator (`tests/sim`).
#[doc(hidden)]
pub mod believed;
mod data;
mod directories;
mod droppers;
mod files;
mod filesystem;
mod handles;
mod in_flight;
mod ioctls;
mod kept;
mod kept_lists;
mod leases;
mod locking;
mod locks;
mod lost_stores;
mod modes;
mod mount;
mod mounted;
/// When a mount polls the times of mapped files, without a clock: also used by the simulator (`tests/sim`).
#[doc(hidden)]
pub mod mtime_poll;
mod names;
mod nodes;
mod pages;
mod passthrough;
mod places;
mod reads;
mod recalls;
mod refresh;
mod removed;
mod replies_in_flight;
mod set_ids;
mod signals;
mod space;
mod strict;
mod users;
mod versions;
mod write_errors;
mod xattrs;

pub use filesystem::{PENDING_ATTRIBUTE, REQUESTS_ATTRIBUTE, SYNC_ATTRIBUTE};
pub use ioctls::publish_bytes;
pub use lost_stores::LOST_STORES_ATTRIBUTE;
pub use mount::{Mount, MountOptions, run_porter, unmount};
pub use ramlace_fuse::{
    Ended, Flags, GuardCommand, MountPoint, Porter, Stopper, clear_dead, mounted_on, mounts, remount,
    run_guard,
};
pub use ramlace_wire::Mode;
pub use refresh::REFRESH_ATTRIBUTE;
pub use signals::on_ending;
pub use xattrs::{MODE_ATTRIBUTE, RESERVE_ATTRIBUTE};

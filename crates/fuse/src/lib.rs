//! The kernel's FUSE protocol: requests decoded, replies encoded, mounting, and the loop between.
//!
//! A program implements [`FileSystem`], mounts with [`Session::mount`] and answers with [`Session::run`].
//! The protocol is version 7 of `linux/fuse.h`, minor 31 to 45 (Linux 5.4 to 6.18).
//!
//! A process that answers a mount must not use that mount's files itself. Where it maps them, munmap writes dirty pages
//! back under the lock of the address space that its workers need; where it has them open and starts a program, the
//! child closes them before its exec and waits for an answer, holding the connection open for ever if the session
//! ends meanwhile. The kernel has no way out of either but an abort.
//!
//! Lock order: a lock belongs to one file here and is held while its table is read or changed; [`guard`] and [`turns`] alone
//! take another one under their own, and say so.
//!
//! Invariant: `fuse` knows nothing of pools. What the kernel sends is bytes of a stranger: decoding checks every
//! length and never panics. Every request is answered exactly once, by the descriptor that it was read from.

mod abi;
mod attributes;
mod backing;
mod bdi;
mod buffer;
mod counts;
mod decode;
mod delays;
mod device;
mod directory;
mod dropped;
mod encode;
mod flags;
mod flusher;
mod fusermount;
mod given_up;
mod guard;
mod guarding;
mod inflight;
mod init;
mod mount;
mod mounts;
mod notifier;
mod operation;
mod options;
mod porter;
mod reply;
mod session;
mod turns;
mod workers;

pub use attributes::{Attributes, Entry, FileLock, LockKind, OpenFlags, StatFs, StatX, Time};
pub use backing::{Backing, BackingFiles};
pub use buffer::Scratch;
pub use counts::RequestCounts;
pub use directory::DirectoryBuffer;
pub use dropped::{AnsweringEnd, AnsweringSet, Size, SizeAsked};
pub use flags::Flags;
pub use flusher::become_io_flusher;
pub use guard::GuardCommand;
pub use guarding::run_guard;
pub use mount::{clear_dead, mounted_on, remount, unmount};
pub use mounts::{MountPoint, mounts};
pub use notifier::Notifier;
pub use operation::{Caller, Operation, Request, SetAttributes, SetTime};
pub use options::{Invalidation, MountMethod, MountOptions, Urgency, Workers};
pub use porter::{Porter, run_porter};
pub use reply::Reply;
pub use session::{Ended, Session, Stopper};

/// The node number of the root directory.
pub const ROOT_NODE: u64 = 1;

/// What answers the kernel's requests.
pub trait FileSystem: Send + Sync + 'static {
    /// Answers one request, on a worker thread.
    ///
    /// It may wait for the network: other workers go on, up to [`Workers::threads_max`]. `reply` may be moved to
    /// another thread and answered later (a parked request), which holds no worker.
    ///
    /// A file system that parks a request checks [`Reply::interrupted`] under the lock that guards the parked requests:
    /// [`FileSystem::interrupt`] may come before the request is found there.
    fn handle(&self, request: Request<'_>, reply: Reply);

    /// What waits for a request.
    fn urgency(&self, operation: &Operation<'_>) -> Urgency {
        let _ = operation;
        Urgency::Usual
    }

    /// A request has to wait until others are answered. What this returns is dropped right before it is handled.
    fn waits(&self, unique: u64, operation: &Operation<'_>) -> Option<Box<dyn Send>> {
        let _ = (unique, operation);
        None
    }

    /// The kernel gives back this many lookups of the node.
    fn forget(&self, node: u64, lookups: u64) {
        let _ = (node, lookups);
    }

    /// The program that waits for this request has a signal: a request that waits shall be answered soon (EINTR).
    ///
    /// A killed program ends only when its request has been answered.
    fn interrupt(&self, unique: u64) {
        let _ = unique;
    }

    /// The mount is gone: nobody waits for what is under way. Each worker that notices it calls this.
    fn unmounted(&self) {}

    /// The mount is gone and every worker has ended.
    fn destroy(&self) {}
}

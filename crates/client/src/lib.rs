//! The client library of ramlace: sessions, striping, retry, the namespace and arrays.
//!
//! [`Pool::connect`] finds a pool and begins a session. Paths are bytes and begin at the pool's
//! root. Every call is synchronous, may be made from many threads at once, and ends by its
//! deadline: with its result or with an error that names the file, the server and the next step.
//!
//! Invariant: data moves between the caller's memory and the servers that hold it and passes
//! nobody else; a change is made once, however often the network makes the client repeat it.

mod acting;
mod array;
mod backoff;
mod barriers;
mod calls;
mod cells;
mod changes;
mod check;
mod content;
mod copy;
mod data_leases;
mod descriptors;
mod directory;
mod entropy;
mod events;
#[cfg(test)]
mod fake;
#[doc(hidden)]
pub mod fault;
mod file;
mod file_locks;
mod fork;
mod given_up;
mod handing;
mod heart;
mod holes;
mod inline;
mod inodes;
mod kept;
mod key_source;
mod keys;
mod leases;
mod lines;
mod list;
mod liveness;
mod locator;
mod locking;
mod mapping;
mod memory;
mod namespace;
mod near;
mod open;
mod options;
mod parked;
mod partitions;
mod path;
mod pieces;
mod pool;
mod raw;
mod reach;
mod reached;
mod round;
mod runs;
#[cfg(test)]
mod scratch;
mod sequences;
mod session;
mod sessions;
mod space;
#[cfg(test)]
mod tests;
mod transfer;
mod waits;
mod ways;
mod xattrs;

pub use acting::acting_for;
pub use array::{Array, ArrayType, Order};
pub use changes::ChangeVersion;
pub use copy::Copy;
pub use data_leases::DataLeases;
pub use directory::{
    HOST_KEY_FILE_VARIABLE, POOL_DEFAULT, POOL_VARIABLE, PoolDirectory, PoolFile, PoolFileHosts,
    PoolFileServer, SECRET_FILE_VARIABLE, pool_name, read_secret_file, runtime_directory,
};
pub use file::File;
pub use file_locks::LockRequest;
#[doc(hidden)]
pub use fork::PerFork;
pub use handing::LaneHere;
pub use kept::{KeptRead, RecallsMade};
pub use keys::{HostKeyReport, Revoked, SecretRotation};
pub use leases::OnRecall;
pub use locator::{Locator, PoolName};
pub use locking::{GivenUp, Waited};
pub use mapping::Mapping;
pub use namespace::{AttributeChanges, ReadDir};
pub use open::{OpenOptions, Rights};
pub use options::{ConnectOptions, LOCAL_VARIABLE};
pub use pool::{Capacity, Pool, ServerReport};
pub use ramlace_transport::{HostKey, Secret};
pub use ramlace_wire::keys::{HostKeyEntry, HostKeyName, Rotation};
pub use ramlace_wire::leases::DataRecall;
pub use ramlace_wire::locks::{HeldLock, LOCK_END, LockKind, LockTable, LockedFile};
pub use ramlace_wire::namespace::{NewMode, RenameMode};
pub use raw::Raw;
pub use reach::NOBODY_ANSWERS;

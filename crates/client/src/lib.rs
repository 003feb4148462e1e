//! The client library of ramlace: sessions, striping, retry, the namespace and arrays.
//!
//! [`Pool::connect`] finds a pool and begins a session. Paths are bytes and begin at the pool's root. Every
//! call is synchronous, may be made from many threads at once, and ends by its deadline, or a bounded time
//! later where other machines' kernels have the bytes: with its result or with an error that names the file,
//! the server and the next step.
//!
//! Rooms: `session` connects to servers and repeats requests; `names` has paths and inodes; `bytes` moves
//! data; `coordination` has locks and waits; `pool` finds a pool and is the interface to callers. `client` is
//! one session with the tables of the three in the middle.
//!
//! Invariant: data moves only between the caller's memory and the servers that hold it; a change is made
//! once, however often the network makes the client repeat it.

mod acting;
mod backoff;
mod bytes;
mod callbacks;
mod client;
mod coordination;
mod entropy;
#[cfg(test)]
mod fake;
#[doc(hidden)]
pub mod fault;
mod fork;
mod list;
mod listening;
mod names;
mod pending;
mod pool;
#[doc(hidden)]
pub mod pure;
#[cfg(test)]
mod scratch;
mod session;
#[cfg(test)]
mod tests;

pub use acting::acting_for;
pub use bytes::array::{Array, ArrayType, Order};
pub use bytes::copy::Copy;
pub use bytes::file::File;
pub use bytes::mapping::Mapping;
pub use bytes::pages::{KeptRead, RecallsMade};
pub use bytes::passthrough::LaneHere;
pub use callbacks::{Broken, DataLeases, Doubt, OnBroken, OnDoubt, OnRecall};
pub use coordination::changes::ChangeVersion;
pub use coordination::file_locks::LockRequest;
pub use coordination::locking::{Cancellation, Waited};
#[doc(hidden)]
pub use fork::PerFork;
pub use names::namespace::{AttributeChanges, ReadDir};
pub use names::open::OpenOptions;
pub use names::placing::Placing;
pub use names::raw::Raw;
pub use names::renewals::Renewed;
pub use names::rights::Rights;
pub use pending::Pending;
pub use pool::directory::{
    HOST_KEY_FILE_VARIABLE, POOL_DEFAULT, POOL_VARIABLE, PoolDirectory, PoolFile, PoolFileHosts,
    PoolFileServer, SECRET_FILE_VARIABLE, pool_name, read_secret_file, runtime_directory,
};
pub use pool::keys::{HostKeyReport, Revoked, SecretRotation, lets_owner_in};
pub use pool::locator::{Locator, PoolName};
pub use pool::options::{ConnectOptions, LOCAL_VARIABLE};
pub use pool::{Capacity, Pool, ServerReport};
pub use ramlace_layout::Part;
pub use ramlace_transport::{HostKey, Secret, this_host};
pub use ramlace_wire::keys::{HostKeyEntry, HostKeyName, Rotation};
pub use ramlace_wire::leases::DataRecall;
pub use ramlace_wire::locks::{HeldLock, LOCK_END, LockKind, LockTable, LockedFile};
pub use ramlace_wire::namespace::{NewMode, RenameMode};
pub use ramlace_wire::runs::{Strided, Tile};
pub use session::reach::NOBODY_ANSWERS;

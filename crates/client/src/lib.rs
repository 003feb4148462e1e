//! The client library of ramlace: sessions, striping, retry, the namespace and arrays.
//!
//! [`Pool::connect`] finds a pool and begins a session. Paths are bytes and begin at the pool's root. Every
//! call is synchronous, may be made from many threads at once, and ends by its deadline, or a bounded time
//! later where other machines' kernels have the bytes: with its result or with an error that names the file,
//! the server and the next step.
//!
//! Rooms. `session` names no client, names or bytes (of `pool` it has `key_source`, the key that it proves). `client` holds
//! the tables of `names`, `coordination` and `bytes`, each in a file of its own.
//!
//! - `session`: what this process is for servers.
//!   - Connections: `lines`, `places` (whose turn it is), `descriptors`, `reach` (finding and greeting), `settings`.
//!   - Calls: `calls`, `exchange` and `holders` (a request and its answer), `patience`, `retry` (the one rule for a request
//!     without a reply: pure) and `judging` (does what it says); `sequences` (numbers of changes), `openings` (changes
//!     that nobody waited for), `many` (several changes in one message).
//!   - Sent later: `promises` (changes of a delegated slot: pure) and `behind` (the same for threads); `pending` (what
//!     servers have yet to be sent, and what is next: pure), `outbox` (the same for threads), `sending` (which thread sends it),
//!     `heart` (when) and `liveness` (heartbeats).
//! - `client`: one session with these tables. `listening` has a thread for each server that sends the
//!   session news unasked (recalls, events, a newer map); `callbacks` are called with what is recalled.
//! - `names`: `path`, `raw`, `namespace`, `open` and `xattrs` (what callers ask), `placing`, `rights`; `partitions` and
//!   `spreads` (directories in several slots); `known_paths` and `by_known_path` (several steps of a path in one request);
//!   `inodes` (opening, closing, times) with `gates` and `open_inode` (what is open), `deferred` (which close is due: pure) and
//!   `closing`; `leases` (what may be cached) and `renewals`; `behind` promises changes by answers that `predicting`
//!   works out (pure), `together` sends many at once.
//! - `coordination`: `locking` and `file_locks`, `barriers`, `cells`, `changes`; `waits`, `parked` and `events` are the
//!   threads that wait, and what wakes them.
//! - `bytes`: `file`, `content`, `space` and `holes` (what callers ask), `memory` (where it lies); `transfer`, `growth` and
//!   `round` (many requests under way), `progress` (by when they must go on: pure), `pieces`, `packing` and `runs`;
//!   `inline`, `permits`; `near` and `near_lanes` (lanes of this machine's servers); `pages`, `kept` and `passthrough` (how
//!   bytes meet a kernel's pages), `data_leases` with `givers` (which servers recall them); `seen` and `lane_numbers` (which state a
//!   copy has), `mapping`, `array`, `copy`; `blocks` (cached blocks, pure) with `cache`, `cache_worker` and `keeping` (by
//!   leases) and `relaxed` (one open file, until it is refreshed).
//! - `pool`: the interface to callers: how a pool is named, found and proven to.
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
pub use names::gates::OpenAnswer;
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
pub use pool::{Capacity, OfEach, Pool, ServerReport, Timed};
pub use ramlace_layout::Part;
pub use ramlace_transport::{HostKey, Secret, this_host};
pub use ramlace_wire::keys::{HostKeyEntry, HostKeyName, Rotation};
pub use ramlace_wire::leases::DataRecall;
pub use ramlace_wire::locks::{HeldLock, LOCK_END, LockKind, LockTable, LockedFile};
pub use ramlace_wire::namespace::{NewMode, RenameMode};
pub use ramlace_wire::runs::{Strided, Tile};
pub use session::places::{OnTurn, Turn};
pub use session::reach::NOBODY_ANSWERS;

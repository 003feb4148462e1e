//! Starts pools and stops them: servers as daemons of this machine.
#![deny(unsafe_code)]

mod cancel;
mod claim;
mod daemon;
mod known_pools;
mod local;
mod lock;
mod metrics_address;
mod plan;
mod processes;
mod ready;
mod sentences;
mod stop;

pub use cancel::Cancel;
pub use claim::{Claim, clear_stale};
pub use daemon::{Daemon, serve_words, wait_until};
pub use known_pools::{KnownPool, PoolState, hosts_of, known_pools};
pub use local::{LocalPlan, start_here, stop_here, undo_here};
pub use lock::DirectoryLock;
pub use metrics_address::MetricsAddress;
pub use plan::{PoolOptions, default_slots, inodes_of_server, random_pool_id, share_memory};
pub use ready::{adopt, keep_descriptors_here};
pub use sentences::{listed, option_for};
pub use stop::{remove_stale_stores, stop_servers};

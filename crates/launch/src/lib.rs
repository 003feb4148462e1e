//! Starts pools and stops them: servers as daemons of this machine, and of many machines by an agent on each.
//!
//! A start takes the pool's directory ([`Claim`]) and follows a plan that was made and checked before: [`start_here`] a
//! [`LocalPlan`], [`start_on_hosts`] a [`HostsPlan`] of what a hosts file says, by a [`Transport`]. [`stop_here`] and
//! [`stop_on_hosts`] are their opposites, [`known_pools()`] returns what there is. An [`Agent`] is the other side of a transport.
//!
//! From below: `sentences`, `words`, `descriptors`, `lingering` and `cancel`; `lock`, `looking`, `peer`, `processes`, `sockets`, `running`,
//! `stop`, `known_pools` and `claim` are a pool's directory and what runs of it here; `ready` and `daemon` start one server, by what `plan` has decided; `local` is a pool of this
//! machine. For many, `hosts` and `hosts_plan` say what each has, `agent_protocol` is what is said between the machines:
//! by `agent`, `agent_site` and `agent_stop` there, by `remote` (one host) and `crew` (all of them) here, for `hosts_start` and `hosts_stop`.
//!
//! Invariant: prints nothing, reads no command line and catches no signal; servers outlive the process that started them, and a start
//! that fails leaves none, or its error says where.
#![deny(unsafe_code)]

mod agent;
mod agent_protocol;
mod agent_site;
mod agent_stop;
mod cancel;
mod claim;
mod crew;
mod daemon;
mod descriptors;
#[cfg(test)]
mod fake_server;
mod hosts;
mod hosts_plan;
mod hosts_start;
mod hosts_stop;
mod known_pools;
mod lingering;
mod listener;
mod local;
mod lock;
mod looking;
mod metrics_address;
mod peer;
mod plan;
mod processes;
mod ready;
mod remote;
mod running;
mod sentences;
mod sockets;
mod stop;
mod words;

pub use agent::{Agent, AgentEnd};
pub use cancel::Cancel;
pub use claim::Claim;
pub use daemon::serve_words;
pub use descriptors::raise_descriptor_limit;
pub use hosts::{Host, read_hosts};
pub use hosts_plan::{AllHosts, HostsPlan};
pub use hosts_start::{HostStarted, start_on_hosts};
pub use hosts_stop::{HostStopped, PoolStopped, stop_on_hosts};
pub use known_pools::{KnownPool, PoolState, hosts_of, known_pools};
pub use listener::Listener;
pub use local::{LocalPlan, runs_here, start_here, stop_here, undo_here};
pub use lock::DirectoryLock;
pub use looking::{all as all_processes, look_at_each};
pub use metrics_address::MetricsAddress;
pub use plan::{PoolOptions, default_slots, random_pool_id};
pub use ready::{adopt, keep_descriptors_here};
pub use remote::{AGENT_COMMAND, Transport};
pub use sentences::{listed, option_for};

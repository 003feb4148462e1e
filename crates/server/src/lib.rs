//! One server of a pool: a supervisor that holds the memory, and a child that serves it.
//!
//! Requests come in by [`connection`](self), change slots and lanes through `Durable`'s log, and are answered
//! by replies; slots send each other deliveries. Everything in the child runs on one thread.
//!
//! The files, by subject:
//!
//! - The process: `supervisor` (the parent), `process` (the child), `config`, `harden` and `sandbox` (what a child gives
//!   up), `stop`, `log_file`. `clock` is the one door for time and entropy.
//! - Clients: `connection` serves one connection, `callers` limits how many there are, `identity` says as whom a request
//!   is made, `keys` which keys the pool accepts, `permits` which bytes a host reaches, `sessions` their life, `kept` what
//!   kept replies cost.
//! - What a server holds: `server`, and in `server/` its parts, tables that know no request: keys, lanes, leases, the map,
//!   pending deliveries, waiting tasks, counters. A part named *desk* is a table with the tasks that wait for it.
//!   Everything below is functions of `Server`.
//! - Answers: `requests` says what answers each message to a slot, `changes` what the server adds to clients' changes,
//!   `walk` is several steps of a path. `gate` is the one door by which answers leave, and where they wait.
//! - The log: `commit` is the one way to change the state. `durable`, `record` (the kinds), `framing` (the bytes),
//!   `snapshot` and `page_holders` rebuild it: slots, each a value of the crate `slot`, and what is the server's own.
//! - Bytes: `chunk` moves the bytes of lanes, `staging` has memory for those that wait, `extending` notifies the home in the
//!   same request, `runs` many runs at once, `promotion` takes over what was inline. `lanes`, `lane_life`, `cuts`, `holes`,
//!   `passthrough` and `grant` do for the store and for waiting tasks what the crate `lanes` decides.
//! - Leases: `delegations` (a slot that one session answers for), `many` (what that session sends then), `leases` (names
//!   and attributes), `data_leases` and `owners` (bytes, pages of strict files), `origin` (whose pages have what is
//!   written), `holders` (which sessions have what), `listen` (news for sessions), `coordination` (cells, waits for
//!   changes), `deadlock` (cycles of waits).
//! - The pool: `membership` holds the map, `peers` calls other servers, `cause` knows for which request, `deliveries`
//!   delivers what slots send each other, `spread` parts directories, `mend` and `check` serve `ramlace check`.
//! - Counters: `metrics` counts, `exposition` serves the counters to Prometheus.
//!
//! `pure` collects the decisions that need no clock, socket or log, for the simulator (`tests/sim`).
//!
//! Invariant: `server` decides nothing about names, placement or membership; the pure crates do.

#[cfg(test)]
mod beside_tests;
mod callers;
mod cause;
mod changes;
mod check;
mod chunk;
mod clock;
mod commit;
mod config;
mod connection;
mod coordination;
mod cuts;
#[cfg(test)]
mod cuts_tests;
mod data_leases;
#[cfg(test)]
mod data_leases_tests;
mod deadlock;
mod delegations;
mod deliveries;
#[cfg(test)]
mod delivery_tests;
mod durable;
mod exposition;
mod extending;
mod framing;
mod gate;
#[cfg(test)]
mod gate_tests;
mod grant;
mod harden;
mod holders;
mod holes;
mod identity;
mod kept;
mod keys;
mod lane_life;
mod lanes;
mod leases;
#[cfg(test)]
mod leases_tests;
mod listen;
#[cfg(test)]
mod listen_tests;
mod log_file;
#[cfg(test)]
mod made_up_tests;
mod many;
#[cfg(test)]
mod many_tests;
mod membership;
mod mend;
mod metrics;
mod origin;
mod owners;
#[cfg(test)]
mod owners_tests;
mod page_holders;
mod passthrough;
mod peers;
mod permits;
#[cfg(test)]
mod permits_tests;
mod process;
mod promotion;
#[doc(hidden)]
pub mod pure;
mod record;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod repeated_tests;
mod requests;
mod runs;
#[cfg(test)]
mod runs_tests;
mod sandbox;
mod server;
#[cfg(test)]
mod server_tests;
mod sessions;
mod shared_memory;
#[cfg(test)]
mod shared_memory_tests;
#[cfg(test)]
mod small_pages_tests;
mod snapshot;
mod spread;
mod staging;
mod stop;
mod supervisor;
#[cfg(test)]
mod testing;
mod walk;
#[cfg(test)]
#[path = "../../wire/tests/wire/common/mod.rs"]
mod wire_samples;

pub use config::ServeOptions;
pub use harden::{clean_environment, harden, hide};
pub use log_file::keep_log_short;
pub use process::run as run_child;
pub use sandbox::{MountFiles, enter_mount as enter_mount_sandbox, landlock_version};
pub use supervisor::keep;

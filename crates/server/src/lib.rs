//! One server of a pool: a supervisor that holds the memory, and a child that serves it.
//!
//! Requests come in by [`connection`](self), change slots and lanes through `Durable`'s log, and are answered
//! by replies; slots send each other deliveries. Everything in the child runs on one thread.
//!
//! Invariant: `server` decides nothing about names, placement or membership; the pure crates do.

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
mod requests;
mod runs;
mod sandbox;
mod server;
#[cfg(test)]
mod server_tests;
mod sessions;
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
pub use process::run as run_child;
pub use sandbox::{MountFiles, enter_mount as enter_mount_sandbox, landlock_version};
pub use supervisor::keep;

//! Frames over TCP and Unix sockets: the handshake, deadlines, back-pressure, descriptors.
//!
//! Two sides of one protocol: [`blocking`] for clients, whose calling threads do the socket work
//! themselves, and [`nonblocking`] for servers, on a current-thread tokio runtime. Both move bulk
//! bytes between the socket and their place without a copy in between.
//!
//! Invariant: no connection exists whose two ends have not proved the pool's secret to each
//! other; `transport` never loads from or stores to a [`RawSegment`], only system calls do; and
//! what a connection holds in memory is bounded, whatever its peer sends or does not read.

mod address;
pub mod blocking;
mod failure;
mod frame;
mod handshake;
mod input;
mod key_files;
mod keys;
mod machine;
pub mod nonblocking;
mod permits;
mod raw;
mod seal;
mod secret;
mod socket;
mod spin;
pub mod trace;

pub use address::Address;
pub use failure::{ConnectFailure, Failure};
pub use frame::{TakeBody, decoding};
pub use key_files::{create_private_file, replace_private_file};
pub use keys::{ClientKey, HostKey, Proved, Role, SecretId, ServerKeys};
pub use machine::this_host;
pub use permits::Holder;
pub use raw::RawSegment;
pub use seal::Protection;
pub use secret::Secret;

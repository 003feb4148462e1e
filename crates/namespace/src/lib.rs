//! The namespace of one slot as a state machine: directories, files and links; sizes, generations
//! and appends; the two halves of operations that touch two slots; exactly-once replies.
//!
//! [`SlotState`] takes a [`Command`] and answers with [`Effect`]s; the same commands give the same
//! state and the same effects, so the very same call serves requests, replays a log and will feed
//! replicas. Slots talk to each other by *deliveries* alone: messages that stay in the state until
//! they are answered, are delivered at least once and mean the same each time.
//!
//! What the shell must do:
//! - a command is logged before it is applied, and its effects follow the log;
//! - a delivery is delivered until its answer is reported, also after a restart; before each further attempt,
//!   and after a reported failure, [`SlotState::open_delivery`] says whether it is still pending;
//! - a lane that receives a generation more than one above its own, by a `CutLane` or by a request, asks the
//!   file's home (`QueryInode`, since its own) and cuts to that size first: a newer `CutLane` replaces those
//!   that it has missed;
//! - a session that has ended is not accepted again, and its end is reported to every slot that knows it.
//!
//! `Retry` and `HostDown` are no answers: nothing has happened, they are not kept, and the same
//! sequence may come again.
//!
//! Permissions are those of POSIX mode bits, owner and group, of access control lists, and of the sticky bit.
//!
//! Invariant: `namespace` does no I/O, reads no clock, draws no random number and starts no thread.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod access_lists;
mod apply;
mod attributes;
mod barriers;
mod cells;
mod collapse;
mod command;
mod delegations;
mod entries;
mod facts;
mod handles;
mod holds;
mod inline;
mod intent;
pub mod leases;
mod links;
mod locking;
mod mend;
mod partitions;
mod passthrough;
mod peers;
mod query;
mod rename;
mod reports;
mod set_id;
mod sizes;
mod spread;
mod state;
mod touched;
mod unnamed;
mod xattrs;

pub use command::{Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, Room};
pub use mend::{Disowned, Doubt};
pub use query::{AskedBy, Query};
pub use state::SlotState;
pub use state::delegation::Delegation;

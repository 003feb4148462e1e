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
//! Layers, from below; a layer names only those above it in this list:
//!
//! - Words: `command` is what goes into a slot and what comes out of it. `mend` (operations in doubt) has its own.
//! - State: `state` is what a slot holds, and how its parts are reached; `state/` has the parts (`inode`, `directory`,
//!   `file`, `session`, `intent`, `hold`, `outbox`...). They know no operation.
//! - Operations, functions of [`SlotState`] with a file for each subject: `entries`, `unnamed`, `handles`, `delegations`,
//!   `attributes`, `set_id`, `access_lists`, `xattrs`, `sizes`, `inline`, `cells`, `locking`, `barriers`, `passthrough`.
//!   `query` has what can be asked, `facts` what `ramlace check` reads.
//! - Operations across slots (two-phase commit): `holds` (a prepared part), `peers` (the participant), `intent` (the
//!   coordinator), and what they serve: `links`, `rename`, `partitions` with `spread` and `collapse`. `reports` takes the
//!   outcomes of deliveries.
//! - The door: `apply` passes each command to its operation; `touched` finds what that has changed for others.
//!
//! Beside them `leases` is the table of one server, and no part of a slot.
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
pub use state::delegation::Delegation;
pub use state::{Repeated, SlotState};

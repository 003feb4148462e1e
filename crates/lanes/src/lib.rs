//! The state and rules of a server's lanes: generations, losses, writes that are done, passthrough to kernels,
//! and changes of bytes that sessions wait for. Bytes themselves stay in `store`.
//!
//! [`LaneTable`] is the part of a slot that outlives the process. Its queries (`standing`, `cut`, `finish` and
//! others) change nothing and answer with a [`LaneChange`]; the shell logs that and gives it to
//! [`LaneTable::apply`], the only way to change the table. So a replay, and later a replica, goes through the
//! same states. [`Traffic`] is not kept over a restart: writes whose bytes are arriving, and the sessions that
//! wait for changes.
//!
//! What the shell must do:
//! - it logs a change before it applies it, and does to the store what [`LaneChange::bytes`] says;
//! - the result of a write or a punch, also of one that was cut short, becomes a [`LaneEffect`] in one place,
//!   and each effect goes to [`Traffic::note`], so that others are notified of it;
//! - it stops the writes under way in a lane before it cuts or drops it: late bytes must not overwrite newer
//!   ones;
//! - one lane begins, is cut, promoted to or dropped by one task at a time.
//!
//! Invariant: `lanes` does no I/O, reads no clock, draws no random number and starts no thread.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod change;
mod data_leases;
mod lane;
mod mappings;
mod outdated;
mod pages;
mod ranges;
mod residency;
mod table;
mod traffic;
mod watches;
mod writes;

pub use change::{CellStore, LaneChange, LaneEffect, StoreStep};
pub use data_leases::held::Held;
pub use data_leases::{Asked, Change, DataLeases, Stored, Ticket, Wish};
pub use lane::{Lane, Standing};
pub use mappings::{Mapping, Mappings};
pub use outdated::{News, Outdated};
pub use pages::PAGE_BYTES;
pub use residency::{Loss, Residency};
pub use table::{CutPlan, LaneTable, lost};
pub use traffic::{Notified, Traffic, Writer};
pub use watches::{HomeSeen, Place};
pub use writes::{WriteId, WritesDone};

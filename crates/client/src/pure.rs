//! The client's decisions that need no clock, thread or socket, for the simulator (`tests/sim`): not part of
//! the library's interface.

pub use crate::backoff::Backoff;
pub use crate::bytes::progress::Progress;
pub use crate::names::renewals::{RecallsDone, State as Renewal};
pub use crate::session::pending::{Added, Home, Message, PendingMessages, Subject, TakenUp};
pub use crate::session::promises::{AllPromises, Due, NotPromised, Pending, Promise, Version};
pub use crate::session::retry::{Failed, MapAsked, OnRetry, Remedy, Verdict, is_in_doubt, is_unacknowledged};
pub use crate::session::sequences::{Kept, NumberFor, Sequences, Ticket};

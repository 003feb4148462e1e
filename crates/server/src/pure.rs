//! Decisions of a server's child that need no clock, socket or log, for the simulator (`tests/sim`): not part
//! of the crate's interface.

pub use crate::server::acknowledged::Acknowledged;
pub use crate::server::delegation_desk::DelegationDesk;
pub use crate::sessions::{SessionRecord, Sessions};

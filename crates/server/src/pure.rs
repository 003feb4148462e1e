//! What a server's child decides without a clock, a socket or a log, for the simulator (`tests/sim`): no part of what the crate promises.

pub use crate::server::delegation_desk::DelegationDesk;
pub use crate::sessions::{SessionRecord, Sessions};

//! The session to which a slot is delegated.

use ramlace_base::SessionId;
use serde::{Deserialize, Serialize};

/// One session answers for the slot, and sends its changes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The session.
    pub session: SessionId,
    /// Its number in the slot, for ever; from 1.
    pub number: u64,
}

//! Several steps of a path, and what it leads to, in one request: in the namespace's family.

use ramlace_base::{InodeId, Name, limits};
use serde::{Deserialize, Serialize};

use crate::inline::Bytes;
use crate::namespace::{Found, InodeInfo};
use crate::{ErrorBody, Kind, Request};

/// Follows names from a directory, as far as the server that has the first of them has the others too. Goes to
/// the slot of the first name's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    /// The directory of the first name.
    pub from: InodeId,
    /// The names, each an entry of what the one before leads to; from 1 to
    /// [`ramlace_base::limits::WALK_NAMES_MAX`].
    pub names: Vec<Name>,
    /// Return everything about what the last name leads to.
    pub info: bool,
    /// With it the bytes of a file that has them inline, if they may be read.
    pub bytes: bool,
}

/// How far the server could go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walked {
    /// Where the names lead, in their order, at least one unless `stopped`. They end before a directory of
    /// another server, and with what is no directory.
    pub steps: Vec<Found>,
    /// Why the next name leads nowhere.
    pub stopped: Option<ErrorBody>,
    /// About the last step, when it is that of the last name, was asked for, and lives here.
    pub info: Option<InodeInfo>,
    /// The same file's bytes, all of them.
    pub bytes: Option<Bytes>,
}

impl Request for Walk {
    const KIND: Kind = Kind::Walk;
    type Reply = Walked;

    fn fits(&self, reply: &Walked) -> bool {
        let end = reply.steps.last().map_or(self.from, |step| step.inode);
        reply.steps.len() <= self.names.len()
            && reply.steps.iter().all(Found::is_possible)
            && reply.info.as_ref().is_none_or(|info| info.is_of(end))
            && reply.bytes.as_ref().is_none_or(|bytes| bytes.0.len() <= limits::INLINE_BYTES_MAX)
    }
}

//! Permits: what the session of a host may do with the bytes of a file that it has opened.
//!
//! The file's home computes a permit when it opens the file, and every lane can check it: both know a key that
//! the pool's servers alone have. So a host reaches no byte of a file that none of its users opened, and no
//! lane has to ask another server. Sessions of the owner and of servers have every right, and no permit.

use ramlace_base::InodeId;
use serde::{Deserialize, Serialize};

use crate::{Kind, Request};

/// Proof that a session may read, or write, one file. What a half of it is made of only servers know: `transport` works it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// Proves the right to read; zeros prove nothing.
    pub read: [u8; 8],
    /// Proves the right to write; zeros prove nothing.
    pub write: [u8; 8],
}

impl Permit {
    /// Its parts that were opened for.
    #[must_use]
    pub fn of(self, opened: OpenedFor) -> Permit {
        let part = |half, has| if has { half } else { [0; 8] };
        Permit { read: part(self.read, opened.read), write: part(self.write, opened.write) }
    }
}

/// What a session has opened a file for, by all opens since its last close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedFor {
    /// Reading, or running.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

impl OpenedFor {
    /// What both together allow.
    #[must_use]
    pub fn and(self, other: OpenedFor) -> OpenedFor {
        OpenedFor { read: self.read | other.read, write: self.write | other.write }
    }
}

/// What a request about a lane needs a file to be open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneRight {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    Both,
    /// One of them.
    Either,
}

impl LaneRight {
    /// Whether these are enough.
    #[must_use]
    pub fn is_within(self, OpenedFor { read, write }: OpenedFor) -> bool {
        match self {
            LaneRight::Read => read,
            LaneRight::Write => write,
            LaneRight::Both => read && write,
            LaneRight::Either => read || write,
        }
    }

    /// For people.
    #[must_use]
    pub fn described(self) -> &'static str {
        match self {
            LaneRight::Read => "reading",
            LaneRight::Write => "writing",
            LaneRight::Both => "reading and writing",
            LaneRight::Either => "reading or writing",
        }
    }
}

/// Asks the home for the permit of what the session has open: the one that its open brought was computed from a
/// secret that the pool no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetPermit {
    /// The file.
    pub inode: InodeId,
}

impl Request for GetPermit {
    const KIND: Kind = Kind::GetPermit;
    /// None for a session that needs none.
    type Reply = Option<Permit>;
}

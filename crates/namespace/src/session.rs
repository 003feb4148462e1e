//! What a slot keeps for each session: replies, open inodes, appends.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Sequence, SessionId, limits};
use ramlace_wire::ErrorBody;
use serde::{Deserialize, Serialize};

use crate::command::Reply;
use crate::locks::LockCount;

/// One session's part of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// Everything below has been answered and seen.
    acknowledged_below: Sequence,
    replies: BTreeMap<Sequence, Cached>,
    /// Open inodes, and whether they may be written.
    pub open: BTreeMap<InodeId, bool>,
    /// Files in which the session may have reservations.
    pub appending: BTreeSet<InodeId>,
    /// Files of which it holds locks, or waits for some.
    pub locked: BTreeMap<InodeId, LockCount>,
    /// All of these.
    pub locks: LockCount,
    /// Barriers to which it came.
    pub barriers: BTreeSet<Vec<u8>>,
}

/// What has become of a mutation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cached {
    /// It waits for errands.
    Waiting,
    /// It has been answered.
    Answered(std::result::Result<Reply, ErrorBody>),
}

impl Session {
    /// Looks a mutation up before it is done: `Ok(None)` when it is new and may be done.
    ///
    /// A refusal is not cached: nothing has happened.
    pub(crate) fn admit(
        &mut self,
        session: SessionId,
        sequence: Sequence,
        acknowledged_below: Sequence,
    ) -> Result<Option<&Cached>> {
        if sequence == Sequence(0) {
            return Err(Error::new(ErrorKind::Invalid, "a mutation needs a number in its session, from 1"));
        }
        if acknowledged_below > self.acknowledged_below {
            self.acknowledged_below = acknowledged_below;
            self.replies = self.replies.split_off(&acknowledged_below);
        }
        if sequence < self.acknowledged_below {
            return Err(Error::new(
                ErrorKind::Stale,
                format!("session {session} has already seen the answer of its mutation {}", sequence.0),
            ));
        }
        if self.replies.len() >= limits::REPLIES_PER_SESSION_MAX && !self.replies.contains_key(&sequence) {
            return Err(Error::new(
                ErrorKind::TooMany,
                format!(
                    "session {session} has {} mutations whose answers it has not acknowledged",
                    self.replies.len()
                ),
            ));
        }
        Ok(self.replies.get(&sequence))
    }

    /// Whether something has become of a mutation, or will.
    pub(crate) fn has_met(&self, sequence: Sequence) -> bool {
        sequence < self.acknowledged_below || self.replies.contains_key(&sequence)
    }

    /// A mutation is not done any more; which inode it had opened before.
    pub(crate) fn give_up(&mut self, sequence: Sequence) -> Option<InodeId> {
        match self.replies.get(&sequence) {
            Some(Cached::Answered(Ok(Reply::Opened(opened)))) => Some(opened.info.attributes.inode),
            Some(_) => None,
            None => {
                let refusal = Error::new(ErrorKind::Stale, "the mutation was given up before it came");
                self.remember(sequence, Cached::Answered(Err(ErrorBody::new(&refusal))));
                None
            }
        }
    }

    /// Remembers what has become of a mutation, unless its answer has been seen already.
    pub(crate) fn remember(&mut self, sequence: Sequence, cached: Cached) {
        if sequence >= self.acknowledged_below {
            self.replies.insert(sequence, cached);
        }
    }

    /// Nothing has become of a mutation; the same may come again.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        self.replies.remove(&sequence);
    }

    /// Whether one more inode may be opened.
    pub(crate) fn check_may_open(&self, inode: InodeId) -> Result<()> {
        if self.open.len() >= limits::OPEN_INODES_PER_SESSION_MAX && !self.open.contains_key(&inode) {
            return Err(Error::new(
                ErrorKind::TooMany,
                format!("the session has {} files open", self.open.len()),
            ));
        }
        Ok(())
    }
}

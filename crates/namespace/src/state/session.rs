//! What a slot keeps for each session: replies, open inodes, appends.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Sequence, SessionId, limits, numbered_variants};
use ramlace_wire::namespace::AppendReserved;
use ramlace_wire::{ErrorBody, OpenedFor};
use serde::{Deserialize, Serialize};

use crate::command::Reply;
use crate::state::locks::LockCount;

/// One session's part of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// Everything below has been answered and seen.
    acknowledged_below: Sequence,
    replies: BTreeMap<Sequence, Cached>,
    /// The bytes of the replies.
    kept_bytes: u64,
    /// The part of them that was reported to the slot's owner.
    reported_bytes: u64,
    /// Open inodes, and the access for which each is open.
    pub open: BTreeMap<InodeId, OpenedFor>,
    /// Files in which the session may have reservations.
    pub appending: BTreeSet<InodeId>,
    /// Files of which it holds locks, or waits for some.
    pub locked: BTreeMap<InodeId, LockCount>,
    /// All of these.
    pub locks: LockCount,
    /// Barriers to which it came.
    pub barriers: BTreeSet<Vec<u8>>,
}

/// The outcome of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cached {
    /// It waits for deliveries.
    Waiting,
    /// It has been answered.
    Answered(std::result::Result<Reply, ErrorBody>),
    /// It waits for deliveries, but no caller waits for it: if it has not been done, it never will be.
    Cancelled,
}

numbered_variants! { Cached:
    0 Waiting;
    1 Answered(body);
    2 Cancelled;
}

/// What a mutation has left that its session does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Nothing,
    /// It has opened this inode.
    Open(InodeId),
    /// It has reserved bytes.
    Reservation(AppendReserved),
}

impl Cached {
    /// Memory that it takes, about.
    fn bytes(&self) -> u64 {
        const EACH: usize = 64;
        let more = match self {
            Cached::Waiting | Cached::Cancelled => 0,
            Cached::Answered(Ok(reply)) => reply.heap_bytes(),
            Cached::Answered(Err(error)) => error.message.len(),
        };
        (EACH + more) as u64
    }
}

impl Session {
    /// The change of the bytes of the replies since the last call.
    pub(crate) fn take_kept_change(&mut self) -> i64 {
        let change = self.kept_bytes as i64 - self.reported_bytes as i64;
        self.reported_bytes = self.kept_bytes;
        change
    }

    /// The part of them that was reported to the slot's owner.
    pub(crate) fn reported_reply_bytes(&self) -> u64 {
        self.reported_bytes
    }

    /// The bytes of the replies, for a slot's owner that has no figures yet.
    pub(crate) fn kept_anew(&mut self) -> u64 {
        self.reported_bytes = self.kept_bytes;
        self.kept_bytes
    }

    /// The bytes of the replies below this number.
    pub(crate) fn kept_below(&self, sequence: Sequence) -> u64 {
        self.replies.range(..sequence).map(|(_, cached)| cached.bytes()).sum()
    }

    /// The session has the answers of all mutations below this number.
    pub(crate) fn acknowledge(&mut self, below: Sequence) {
        if below > self.acknowledged_below {
            self.acknowledged_below = below;
            let kept = self.replies.split_off(&below);
            let seen = std::mem::replace(&mut self.replies, kept);
            self.kept_bytes -= seen.values().map(Cached::bytes).sum::<u64>();
        }
    }

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
        self.acknowledge(acknowledged_below);
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

    /// Whether a mutation has a result, or will have one.
    pub(crate) fn has_met(&self, sequence: Sequence) -> bool {
        sequence < self.acknowledged_below || self.replies.contains_key(&sequence)
    }

    /// Whether a mutation was answered: then its cancellation leaves nothing more to be kept.
    pub(crate) fn has_answered(&self, sequence: Sequence) -> bool {
        sequence < self.acknowledged_below || matches!(self.replies.get(&sequence), Some(Cached::Answered(_)))
    }

    /// What is known of a mutation that was met and not acknowledged yet.
    pub(crate) fn met(&self, sequence: Sequence) -> Option<&Cached> {
        self.replies.get(&sequence)
    }

    /// A mutation is not done any more; what has to be undone of it if it was done before.
    pub(crate) fn cancel(&mut self, sequence: Sequence) -> Undo {
        match self.replies.get(&sequence) {
            Some(Cached::Answered(Ok(Reply::Opened(opened)))) => Undo::Open(opened.info.attributes.inode),
            Some(Cached::Answered(Ok(Reply::Reserved(reserved)))) => Undo::Reservation(*reserved),
            Some(Cached::Answered(_) | Cached::Cancelled) => Undo::Nothing,
            Some(Cached::Waiting) => {
                self.remember(sequence, Cached::Cancelled);
                Undo::Nothing
            }
            None => {
                self.remember(sequence, Cached::Answered(Err(ErrorBody::new(&cancelled()))));
                Undo::Nothing
            }
        }
    }

    /// A mutation waits for deliveries.
    pub(crate) fn wait(&mut self, sequence: Sequence) {
        if self.replies.get(&sequence) != Some(&Cached::Cancelled) {
            self.remember(sequence, Cached::Waiting);
        }
    }

    /// Remembers the outcome of a mutation, unless its answer was acknowledged already.
    pub(crate) fn remember(&mut self, sequence: Sequence, cached: Cached) {
        if sequence >= self.acknowledged_below {
            self.kept_bytes += cached.bytes();
            let before = self.replies.insert(sequence, cached);
            self.kept_bytes -= before.map_or(0, |before| before.bytes());
        }
    }

    /// A mutation had no effect; it may be repeated, unless it was cancelled.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        if self.replies.get(&sequence) == Some(&Cached::Cancelled) {
            return self.remember(sequence, Cached::Answered(Err(ErrorBody::new(&cancelled()))));
        }
        let before = self.replies.remove(&sequence);
        self.kept_bytes -= before.map_or(0, |before| before.bytes());
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

/// The answer to late copies of a cancelled mutation.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Stale, "the mutation was given up before it was done")
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 138.4
    #[test]
    fn what_was_cancelled_while_it_waited_is_not_done_by_a_later_copy() {
        let (session_id, sequence) = (SessionId([1; 16]), Sequence(1));
        let mut session = Session::default();
        assert_eq!(session.admit(session_id, sequence, sequence).unwrap(), None);
        session.wait(sequence);
        assert_eq!(session.cancel(sequence), Undo::Nothing);
        session.wait(sequence);
        assert_eq!(session.admit(session_id, sequence, sequence).unwrap(), Some(&Cached::Cancelled));
        // The other slot could not be reached.
        session.forget(sequence);
        let copy = session.admit(session_id, sequence, sequence).unwrap();
        assert!(
            matches!(copy, Some(Cached::Answered(Err(refusal))) if refusal.kind == ErrorKind::Stale.number())
        );
        // A mutation that was not cancelled may be repeated.
        session.wait(Sequence(2));
        session.forget(Sequence(2));
        assert_eq!(session.admit(session_id, Sequence(2), sequence).unwrap(), None);
    }

    #[test]
    fn what_replies_take_is_told_and_given_back() {
        const SESSION: SessionId = SessionId([1; 16]);
        let mut session = Session::default();
        let (mut reported, mut draw) = (0, 1_u64);
        for number in 1..3000_u64 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let acknowledged = Sequence(number.saturating_sub(draw >> 60).max(1));
            session.admit(SESSION, Sequence(number), acknowledged).unwrap();
            let text = "x".repeat((draw >> 40) as usize % 500);
            let refused = Cached::Answered(Err(ErrorBody::new(&Error::new(ErrorKind::Exists, text))));
            session.remember(Sequence(number), Cached::Waiting);
            match draw >> 33 & 3 {
                0 => session.forget(Sequence(number)),
                1 => session.remember(Sequence(number), Cached::Answered(Ok(Reply::Done))),
                _ => session.remember(Sequence(number), refused),
            }
            reported += session.take_kept_change();
            let kept: u64 = session.replies.values().map(Cached::bytes).sum();
            assert_eq!((session.kept_bytes, reported), (kept, kept as i64));
            assert_eq!(session.kept_below(Sequence(u64::MAX)), kept);
        }
        session.admit(SESSION, Sequence(5000), Sequence(5000)).unwrap();
        reported += session.take_kept_change();
        assert_eq!((reported, session.kept_anew(), session.take_kept_change()), (0, 0, 0));
    }
}

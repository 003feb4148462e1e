//! Which chunk writes of which session are done: a retry is answered and not done again.
//!
//! Kept for each slot, because it moves with the slot; at most
//! [`limits::REPLIES_PER_SESSION_MAX`] numbers for each session and slot.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, Result, Sequence, SessionId, limits};
use serde::{Deserialize, Serialize};

/// The chunk writes done in a slot, by session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritesDone {
    done: BTreeMap<SessionId, Window>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    /// Every write below has been answered, or its client no longer waits. Not logged: a late attempt is only
    /// possible within this incarnation of the process.
    #[serde(skip)]
    below: Sequence,
    /// With the previous value of the cell, if the change was one of a cell.
    done: BTreeMap<Sequence, Option<u64>>,
}

impl WritesDone {
    /// Whether this write is done already. Forgets those below `below`: their writer has the answers, or no
    /// longer waits.
    ///
    /// Errors: `Stale` when the write itself is one of those, an attempt that was held up somewhere: its
    /// bytes must not overwrite newer ones; `TooMany` when the session has too many under way.
    pub fn admit(&mut self, session: SessionId, sequence: Sequence, below: Sequence) -> Result<bool> {
        let window = self.done.entry(session).or_default();
        if below > window.below {
            window.below = below;
            window.done = window.done.split_off(&below);
        }
        if sequence < window.below {
            return Err(Error::new(
                ErrorKind::Stale,
                format!("write {} of this session was answered or given up before", sequence.0),
            ));
        }
        if sequence.0 - window.below.0 >= limits::REPLIES_PER_SESSION_MAX as u64 {
            return Err(Error::new(
                ErrorKind::TooMany,
                format!(
                    "a session has at most {} writes under way in a slot",
                    limits::REPLIES_PER_SESSION_MAX
                ),
            ));
        }
        Ok(window.done.contains_key(&sequence))
    }

    /// Notes a write, with the previous value of the cell if it is the change of one. Beyond the limit the
    /// oldest is forgotten: a session has no more under way.
    pub fn insert(&mut self, session: SessionId, sequence: Sequence, before: Option<u64>) {
        let done = &mut self.done.entry(session).or_default().done;
        done.entry(sequence).or_insert(before);
        if done.len() > limits::REPLIES_PER_SESSION_MAX {
            done.pop_first();
        }
    }

    /// The value of a cell before a change that is done.
    #[must_use]
    pub fn cell_before(&self, session: SessionId, sequence: Sequence) -> Option<u64> {
        *self.done.get(&session)?.done.get(&sequence)?
    }

    /// Forgets a session.
    pub fn end_session(&mut self, session: SessionId) {
        self.done.remove(&session);
    }

    /// The sessions that have written here.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.done.keys().copied()
    }

    /// Whether the session has written here.
    #[must_use]
    pub fn knows(&self, session: SessionId) -> bool {
        self.done.contains_key(&session)
    }

    /// Whether no session has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Everything that is remembered.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, Sequence, Option<u64>)> {
        self.done.iter().flat_map(|(session, window)| {
            window.done.iter().map(|(sequence, before)| (*session, *sequence, *before))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([1; 16]);

    fn admit(writes: &mut WritesDone, sequence: u64, below: u64) -> Result<bool> {
        writes.admit(SESSION, Sequence(sequence), Sequence(below))
    }

    #[test]
    fn writes_are_remembered_until_acknowledged() {
        let mut writes = WritesDone::default();
        for sequence in 1..=5 {
            writes.insert(SESSION, Sequence(sequence), None);
        }
        assert!(admit(&mut writes, 1, 1).unwrap() && admit(&mut writes, 4, 4).unwrap());
        assert!(!admit(&mut writes, 6, 4).unwrap());
        assert!(!writes.admit(SessionId([2; 16]), Sequence(4), Sequence(4)).unwrap());
        writes.end_session(SESSION);
        assert_eq!(writes.iter().count(), 0);
    }

    #[test]
    fn an_attempt_that_was_abandoned_is_refused_for_ever() {
        let mut writes = WritesDone::default();
        writes.insert(SESSION, Sequence(5), None);
        assert!(!admit(&mut writes, 6, 6).unwrap());
        assert_eq!(admit(&mut writes, 5, 5).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(admit(&mut writes, 4, 1).unwrap_err().kind(), ErrorKind::Stale);
    }

    #[test]
    fn a_session_has_only_so_many_writes_under_way() {
        let limit = limits::REPLIES_PER_SESSION_MAX as u64;
        let mut writes = WritesDone::default();
        assert!(!admit(&mut writes, limit, 1).unwrap());
        assert_eq!(admit(&mut writes, limit + 1, 1).unwrap_err().kind(), ErrorKind::TooMany);
        assert!(!admit(&mut writes, limit + 1, 2).unwrap());
    }

    #[test]
    fn memory_is_bounded() {
        let mut writes = WritesDone::default();
        for sequence in 0..3000 {
            writes.insert(SESSION, Sequence(sequence), None);
        }
        assert_eq!(writes.iter().count(), limits::REPLIES_PER_SESSION_MAX);
    }
}

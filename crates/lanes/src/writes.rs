//! Which chunk writes of which session are done: a retry is answered and not done again.
//!
//! Kept for each slot, because it moves with the slot; at most
//! [`limits::LANE_WRITES_PER_SESSION_MAX`] numbers for each session and slot.

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
    /// Every write below has been answered, or its client no longer waits.
    below: Sequence,
    /// With the previous value of the cell, if the change was one of a cell.
    done: BTreeMap<Sequence, Option<u64>>,
}

/// One change of bytes, as its session numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteId {
    /// The session.
    pub session: SessionId,
    /// The number.
    pub sequence: Sequence,
    /// How far back the oldest change lies for which the session still waits in the slot.
    pub outstanding: u32,
}

impl WriteId {
    /// Every change of the session in the slot below this one has been answered, or its client no longer waits.
    #[must_use]
    pub fn below(self) -> Sequence {
        Sequence(self.sequence.0.saturating_sub(self.outstanding.into()))
    }
}

impl Window {
    /// Whether as many writes are remembered as may be, from `below` on.
    fn remembers_most_above(&self, below: Sequence) -> bool {
        let most = limits::LANE_WRITES_PER_SESSION_MAX;
        self.done.len() >= most && self.done.range(below..).count() >= most
    }
}

impl WritesDone {
    /// Whether this write is done already. `below`: those for which its session no longer waits.
    ///
    /// Errors: `Stale` when the write itself is one of those, an attempt that was held up somewhere: its
    /// bytes must not overwrite newer ones; `TooMany` when the session has too many under way.
    pub fn is_done(&self, session: SessionId, sequence: Sequence, below: Sequence) -> Result<bool> {
        let window = self.done.get(&session);
        let below = window.map_or(below, |window| below.max(window.below));
        let is_done = window.is_some_and(|window| window.done.contains_key(&sequence));
        if sequence < below {
            return Err(Error::new(
                ErrorKind::Stale,
                format!("write {} of this session was answered or given up before", sequence.0),
            ));
        }
        let is_full = window.is_some_and(|window| window.remembers_most_above(below));
        if is_full && !is_done {
            return Err(Error::new(
                ErrorKind::TooMany,
                format!(
                    "at most {} writes of a session are remembered in a slot before it has the answer of the oldest",
                    limits::LANE_WRITES_PER_SESSION_MAX
                ),
            ));
        }
        Ok(is_done)
    }

    /// Notes a write, with the previous value of the cell if it is the change of one, and forgets those for which its
    /// session no longer waits. Beyond the limit the oldest is forgotten: a session has no more under way.
    pub fn insert(&mut self, id: WriteId, before: Option<u64>) {
        let window = self.done.entry(id.session).or_default();
        if id.below() > window.below {
            window.below = id.below();
            window.done = window.done.split_off(&window.below);
        }
        window.done.entry(id.sequence).or_insert(before);
        if window.done.len() > limits::LANE_WRITES_PER_SESSION_MAX {
            window.done.pop_first();
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

    fn is_done(writes: &WritesDone, sequence: u64, below: u64) -> Result<bool> {
        writes.is_done(SESSION, Sequence(sequence), Sequence(below))
    }

    fn write(sequence: u64, below: u64) -> WriteId {
        WriteId { session: SESSION, sequence: Sequence(sequence), outstanding: (sequence - below) as u32 }
    }

    #[test]
    fn writes_are_remembered_until_acknowledged() {
        let mut writes = WritesDone::default();
        for sequence in 1..=5 {
            writes.insert(write(sequence, 1), None);
        }
        assert!(is_done(&writes, 1, 1).unwrap() && is_done(&writes, 4, 4).unwrap());
        assert!(!is_done(&writes, 6, 4).unwrap());
        assert!(!writes.is_done(SessionId([2; 16]), Sequence(4), Sequence(4)).unwrap());
        writes.insert(write(6, 4), None);
        assert_eq!(writes.iter().map(|(_, sequence, _)| sequence.0).collect::<Vec<_>>(), [4, 5, 6]);
        writes.end_session(SESSION);
        assert_eq!(writes.iter().count(), 0);
    }

    #[test]
    fn an_attempt_that_was_abandoned_is_refused_for_ever() {
        let mut writes = WritesDone::default();
        writes.insert(write(5, 5), None);
        assert!(!is_done(&writes, 6, 6).unwrap());
        writes.insert(write(6, 6), None);
        assert_eq!(is_done(&writes, 5, 5).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(is_done(&writes, 4, 1).unwrap_err().kind(), ErrorKind::Stale);
        let moved: WritesDone = postcard::from_bytes(&postcard::to_stdvec(&writes).unwrap()).unwrap();
        assert_eq!(moved, writes);
        assert_eq!(is_done(&moved, 5, 5).unwrap_err().kind(), ErrorKind::Stale, "wherever the slot is");
    }

    #[test]
    fn a_session_has_only_so_many_writes_under_way() {
        let limit = limits::LANE_WRITES_PER_SESSION_MAX as u64;
        let mut writes = WritesDone::default();
        assert!(!is_done(&writes, 10 * limit, 1).unwrap(), "what it changes elsewhere does not count");
        (2..limit + 2).for_each(|sequence| writes.insert(write(sequence, 1), None));
        assert_eq!(is_done(&writes, limit + 2, 1).unwrap_err().kind(), ErrorKind::TooMany);
        assert!(is_done(&writes, limit + 1, 1).unwrap(), "what is done is answered");
        assert!(!is_done(&writes, limit + 2, 3).unwrap());
    }

    #[test]
    fn memory_is_bounded() {
        let mut writes = WritesDone::default();
        for sequence in 0..10_000 {
            writes.insert(write(sequence, 0), None);
        }
        assert_eq!(writes.iter().count(), limits::LANE_WRITES_PER_SESSION_MAX);
    }
}

//! Which chunk writes of which session are done: a retry is answered and not done again.
//!
//! Kept for each slot, because it moves with the slot; at most
//! [`limits::REPLIES_PER_SESSION_MAX`] numbers for each session and slot.

use std::collections::{BTreeSet, HashMap};

use ramlace_base::{Sequence, SessionId, Slot, limits};

/// The chunk writes done, by slot and session.
#[derive(Default)]
pub struct WritesDone {
    done: HashMap<(SessionId, Slot), BTreeSet<Sequence>>,
}

impl WritesDone {
    /// Whether this write is done already.
    pub fn contains(&self, slot: Slot, session: SessionId, sequence: Sequence) -> bool {
        self.done.get(&(session, slot)).is_some_and(|done| done.contains(&sequence))
    }

    /// Notes a write. The oldest is forgotten beyond the limit: a session has no more under way.
    pub fn insert(&mut self, slot: Slot, session: SessionId, sequence: Sequence) {
        let done = self.done.entry((session, slot)).or_default();
        done.insert(sequence);
        if done.len() > limits::REPLIES_PER_SESSION_MAX {
            done.pop_first();
        }
    }

    /// Forgets writes below a number: their writer knows the answers.
    pub fn acknowledge(&mut self, slot: Slot, session: SessionId, below: Sequence) {
        if let Some(done) = self.done.get_mut(&(session, slot)) {
            while done.first().is_some_and(|first| *first < below) {
                done.pop_first();
            }
        }
    }

    /// Forgets a session.
    pub fn end_session(&mut self, session: SessionId) {
        self.done.retain(|(other, _), _| *other != session);
    }

    /// Everything, for snapshots.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, SessionId, Sequence)> {
        self.done
            .iter()
            .flat_map(|((session, slot), done)| done.iter().map(|sequence| (*slot, *session, *sequence)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_remembered_until_acknowledged() {
        let (slot, session) = (Slot(3), SessionId([1; 16]));
        let mut writes = WritesDone::default();
        for sequence in 1..=5 {
            writes.insert(slot, session, Sequence(sequence));
        }
        writes.acknowledge(slot, session, Sequence(4));
        assert!(!writes.contains(slot, session, Sequence(3)));
        assert!(writes.contains(slot, session, Sequence(4)));
        assert!(!writes.contains(Slot(4), session, Sequence(4)));
        writes.end_session(session);
        assert_eq!(writes.iter().count(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut writes = WritesDone::default();
        for sequence in 0..3000 {
            writes.insert(Slot(0), SessionId::NONE, Sequence(sequence));
        }
        assert_eq!(writes.iter().count(), limits::REPLIES_PER_SESSION_MAX);
    }
}

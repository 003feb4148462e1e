//! Which changes of bytes sessions no longer wait for. A slot learns of it with the next change that is done there; a
//! request that fails says it, too, and what came before it must not be done late. Such attempts are held up in this
//! incarnation of the server or nowhere, so it is kept no longer.

use std::collections::HashMap;

use ramlace_base::{Sequence, SessionId, Slot};

/// The oldest change that each session still waits for, by slot.
#[derive(Default)]
pub struct Acknowledged {
    below: HashMap<SessionId, HashMap<Slot, Sequence>>,
}

impl Acknowledged {
    /// A request says this. Returns what the newest one has said.
    pub fn note(&mut self, session: SessionId, slot: Slot, below: Sequence) -> Sequence {
        let newest = self.below.entry(session).or_default().entry(slot).or_default();
        *newest = below.max(*newest);
        *newest
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.below.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_request_has_said_counts() {
        let mut known = Acknowledged::default();
        let (first, second) = (SessionId([1; 16]), SessionId([2; 16]));
        assert_eq!(known.note(first, Slot(1), Sequence(6)), Sequence(6));
        assert_eq!(known.note(first, Slot(1), Sequence(4)), Sequence(6));
        assert_eq!(known.note(first, Slot(2), Sequence(4)), Sequence(4));
        assert_eq!(known.note(second, Slot(1), Sequence(4)), Sequence(4));
        known.end_session(first);
        assert_eq!(known.note(first, Slot(1), Sequence(1)), Sequence(1));
    }
}

//! Delegation of a slot to one session, its holder: the holder answers for the slot by itself, until it gives the
//! slot back, is fenced, or ends. The server makes requests of others wait meanwhile. That the slot is delegated
//! is part of its state: the holder's promises outlive a restart of the server, so the delegation has to.

use ramlace_base::{InodeId, Sequence, SessionId, limits};

use crate::state::SlotState;
use crate::state::delegation::Delegation;

impl SlotState {
    /// The session to which the slot is delegated now.
    #[must_use]
    pub fn delegation(&self) -> Option<Delegation> {
        self.delegation
    }

    /// The inode that the next create makes.
    #[must_use]
    pub fn next_inode(&self) -> InodeId {
        InodeId::new(self.slot, self.next_counter.min(InodeId::COUNTER_MAX))
    }

    /// Whether the slot can be delegated: it has numbers for all that its holder may promise, and no operation
    /// across slots is under way that this slot coordinates or holds a part of. What is held for another slot is done
    /// when that one says so, and its holder would promise by what was before.
    #[must_use]
    pub fn may_be_delegated(&self) -> bool {
        self.delegation.is_none()
            && self.has_numbers_for_promises(3)
            && self.intents.is_empty()
            && self.unfinished.is_empty()
            && self.coordinators.values().all(|coordinator| coordinator.held_numbers().next().is_none())
    }

    /// Whether there are numbers for so many times what a holder may promise before it sends it.
    #[must_use]
    pub fn has_numbers_for_promises(&self, times: u64) -> bool {
        self.next_counter + times * limits::CHANGES_PER_MESSAGE_MAX as u64 <= self.numbers_end()
    }

    /// Delegates the slot, if that is possible now.
    pub(crate) fn delegate(&mut self, session: SessionId) {
        if !self.may_be_delegated() {
            return;
        }
        // So that the slot is notified when the session ends.
        self.sessions.entry(session).or_default();
        self.delegations += 1;
        self.delegation = Some(Delegation { session, number: self.delegations });
    }

    /// A delegation ends. A late message about an older one does not end a newer one. The replies below the
    /// number are kept no longer: a slot that is quiet from now on would keep them as long as the session lasts.
    pub(crate) fn end_delegation(&mut self, number: u64, acknowledged_below: Sequence) {
        let Some(held) = self.delegation.filter(|held| held.number == number) else { return };
        self.end_delegation_if(|delegation| *delegation == held);
        if let Some(session) = self.sessions.get_mut(&held.session) {
            session.acknowledge(acknowledged_below);
        }
    }

    /// Its holder may have given programs numbers of inodes that it has promised and will never send: no other
    /// inode gets one of them, or a descriptor of what was lost would lead to a file of somebody else.
    pub(crate) fn end_delegation_if(&mut self, ends: impl Fn(&Delegation) -> bool) {
        if self.delegation.take_if(|delegation| ends(delegation)).is_some() {
            let told = limits::CHANGES_PER_MESSAGE_MAX as u64;
            self.next_counter = (self.next_counter + told).min(self.numbers_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Epoch, Slot, Timestamp};

    use super::*;
    use crate::command::{Command, Op, Origin};

    const SESSION: SessionId = SessionId([1; 16]);
    const OTHER: SessionId = SessionId([2; 16]);

    fn ends(number: u64) -> Op {
        Op::EndDelegation { number, acknowledged_below: Sequence(0) }
    }

    fn apply(state: &mut SlotState, op: Op) -> Option<(SessionId, u64)> {
        let effects = state.apply(&Command { now: Timestamp { nanos: 5 }, origin: Origin::Server, op });
        assert_eq!(effects, []);
        state.delegation().map(|delegation| (delegation.session, delegation.number))
    }

    // SEMANTICS 142.6
    #[test]
    fn no_inode_gets_a_number_that_the_holder_of_an_ended_delegation_may_have_told() {
        let mut state = SlotState::new(Slot(3), 16, Epoch(1), 7);
        let told = limits::CHANGES_PER_MESSAGE_MAX as u64;
        let first = state.next_inode().counter();
        for (times, end) in [(1, ends(1)), (2, Op::EndSession { session: SESSION })] {
            apply(&mut state, Op::Delegate { session: SESSION });
            apply(&mut state, ends(7));
            assert_eq!(state.next_inode().counter(), first + (times - 1) * told, "it goes on");
            apply(&mut state, end);
            assert_eq!(state.next_inode().counter(), first + times * told);
        }
        apply(&mut state, ends(2));
        assert_eq!(state.next_inode().counter(), first + 2 * told, "it had ended");
    }

    // SEMANTICS 142.3
    #[test]
    fn a_slot_is_delegated_to_one_session_until_that_very_delegation_or_the_session_ends() {
        let mut state = SlotState::new(Slot(3), 16, Epoch(1), 7);
        assert_eq!(apply(&mut state, Op::Delegate { session: SESSION }), Some((SESSION, 1)));
        assert_eq!(
            apply(&mut state, Op::Delegate { session: OTHER }),
            Some((SESSION, 1)),
            "it is not taken away"
        );
        assert_eq!(apply(&mut state, ends(1)), None);
        assert_eq!(apply(&mut state, Op::Delegate { session: OTHER }), Some((OTHER, 2)));
        assert_eq!(apply(&mut state, ends(1)), Some((OTHER, 2)), "that was another one");
        assert_eq!(apply(&mut state, Op::EndSession { session: SESSION }), Some((OTHER, 2)));
        assert!(state.has_session(OTHER), "its end is told to slots that know it");
        assert_eq!(apply(&mut state, Op::EndSession { session: OTHER }), None);
    }
}

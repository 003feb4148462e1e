//! Barriers: members of a name that wait until all of them have come, round after round.
//!
//! A barrier is remembered as long as the session of one of its members lives, with where each member was
//! when it came last. A member counts once in a round, whatever its session sends again.

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::coordination::{ArriveBarrier, BarrierAnswer, BarrierLeft, LeaveBarrier};

use crate::command::{Effect, Reply};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    /// A member comes. `room`: whether the server remembers one more member.
    pub(crate) fn arrive_barrier(
        &mut self,
        caller: Caller,
        request: &ArriveBarrier,
        room: bool,
        effects: &mut Vec<Effect>,
    ) -> Step {
        self.check_barrier(request)?;
        if !room && !self.knows_member(&request.name, request.member) {
            let text = "the server remembers as many members of barriers as it may";
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        let session = caller.token.session;
        let (passed, notified) =
            self.barriers.change(&request.name, |barrier| barrier.arrive(session, request))?;
        self.session_mut(caller).barriers.insert(request.name.clone());
        let round = passed.unwrap_or_default();
        effects.extend(notified.into_iter().map(|(session, wait)| Effect::BarrierPassed {
            session,
            wait,
            round,
        }));
        Ok(Some(Reply::Barrier(BarrierAnswer { passed })))
    }

    pub(crate) fn leave_barrier(&mut self, caller: Caller, request: &LeaveBarrier) -> Step {
        let session = caller.token.session;
        let left = match self.barriers.get(&request.name) {
            Some(_) => self.barriers.change(&request.name, |barrier| barrier.leave(session, request)),
            None => BarrierLeft { passed: None, missing_count: 0, missing: Vec::new() },
        };
        Ok(Some(Reply::BarrierLeft(Box::new(left))))
    }

    /// The session has ended: it waits no longer.
    pub(crate) fn end_barriers(&mut self, session: SessionId, names: impl IntoIterator<Item = Vec<u8>>) {
        for name in names {
            self.barriers.change(&name, |barrier| barrier.forget(session));
        }
    }

    /// Whether a member of a barrier is remembered here.
    #[must_use]
    pub fn knows_member(&self, name: &[u8], member: u32) -> bool {
        self.barriers.get(name).is_some_and(|barrier| barrier.members.contains_key(&member))
    }

    /// Members of barriers that are remembered here.
    #[must_use]
    pub fn barrier_members(&self) -> u64 {
        self.barriers.members()
    }

    /// Members that wait at barriers here.
    #[must_use]
    pub fn barrier_waits(&self) -> u64 {
        self.barriers.values().map(|barrier| u64::from(barrier.waiting)).sum()
    }

    fn check_barrier(&self, request: &ArriveBarrier) -> Result<()> {
        let ArriveBarrier { name, parties, member, wait, host, .. } = request;
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if !(1..=limits::BARRIER_NAME_BYTES_MAX).contains(&name.len()) {
            return refuse(format!("a barrier's name has 1 to 255 bytes, not {}", name.len()));
        }
        if !(1..=limits::BARRIER_PARTIES_MAX).contains(parties) {
            return refuse(format!(
                "a barrier has 1 to {} parties, not {parties}",
                limits::BARRIER_PARTIES_MAX
            ));
        }
        if member >= parties {
            return refuse(format!(
                "the members of {parties} parties are 0 to {}, not {member}",
                parties - 1
            ));
        }
        if *wait == 0 || host.len() > limits::BARRIER_HOST_BYTES_MAX {
            return refuse("an arrival at a barrier has a number, and a host of at most 64 bytes".into());
        }
        let slot = ramlace_layout::barrier_slot(name, self.slots);
        if slot != self.slot {
            return refuse(format!("this barrier is in {slot}, not in {}", self.slot));
        }
        Ok(())
    }
}

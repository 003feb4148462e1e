//! Barriers: members of a name that wait until all of them have come, round after round.
//!
//! A barrier is remembered as long as the session of one of its members lives, with where each member was
//! when it came last. A member counts once in a round, whatever its session sends again.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::coordination::{
    ArriveBarrier, BarrierAnswer, BarrierLeft, LeaveBarrier, MemberPlace, MissingMember,
};
use serde::{Deserialize, Serialize};

use crate::command::{Effect, Reply};
use crate::state::{Caller, SlotState, Step};

/// A session that waits, and its number for the wait.
type Told = (SessionId, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stand {
    /// It waits in the round at hand.
    Waits,
    /// This round was complete with it.
    Passed(u64),
    /// It gave up.
    Left,
}

/// The last that is known of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    session: SessionId,
    wait: u64,
    stand: Stand,
    place: MemberPlace,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Barrier {
    /// Of the round at hand; the first to come says how many.
    parties: u32,
    /// Rounds that were complete.
    rounds: u64,
    /// Members that wait.
    waiting: u32,
    members: BTreeMap<u32, Member>,
}

impl Barrier {
    /// A member comes: the round that is complete with it, and who else is to be told.
    fn arrive(&mut self, session: SessionId, request: &ArriveBarrier) -> Result<(Option<u64>, Vec<Told>)> {
        let before = self.members.get(&request.member);
        if let Some(member) = before.filter(|member| (member.session, member.wait) == (session, request.wait))
        {
            match member.stand {
                Stand::Waits => return Ok((None, Vec::new())),
                Stand::Passed(round) => return Ok((Some(round), Vec::new())),
                Stand::Left => {}
            }
        }
        if self.waiting > 0 && self.parties != request.parties {
            let text = format!("its members wait for {} parties, not for {}", self.parties, request.parties);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let waits_here = before.is_some_and(|member| member.stand == Stand::Waits);
        if let Some(member) = before.filter(|member| waits_here && member.session != session) {
            let MemberPlace { host, pid, .. } = &member.place;
            let text = format!(
                "member {} waits there already, process {pid} on {host}; the session of a process that has died \
                 ends within {} seconds",
                request.member,
                limits::SESSION_EXPIRY_MILLIS / 1000
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        if self.waiting == 0 {
            self.parties = request.parties;
            self.members.retain(|member, _| *member < request.parties);
        }
        let place = MemberPlace { host: request.host.clone(), pid: request.pid, gone: false };
        let member = Member { session, wait: request.wait, stand: Stand::Waits, place };
        self.members.insert(request.member, member);
        self.waiting += u32::from(!waits_here);
        if self.waiting < self.parties {
            return Ok((None, Vec::new()));
        }
        Ok((Some(self.rounds + 1), self.complete(request.member)))
    }

    /// The round is over; those who are to be told, but for the last.
    fn complete(&mut self, last: u32) -> Vec<Told> {
        self.rounds += 1;
        self.waiting = 0;
        let mut told = Vec::new();
        for (number, member) in &mut self.members {
            if member.stand == Stand::Waits {
                member.stand = Stand::Passed(self.rounds);
                if *number != last {
                    told.push((member.session, member.wait));
                }
            }
        }
        told
    }

    fn leave(&mut self, session: SessionId, request: &LeaveBarrier) -> BarrierLeft {
        let member = self.members.get_mut(&request.member);
        if let Some(member) = member.filter(|member| (member.session, member.wait) == (session, request.wait))
        {
            match member.stand {
                Stand::Passed(round) => {
                    return BarrierLeft { passed: Some(round), missing_count: 0, missing: Vec::new() };
                }
                Stand::Waits => {
                    let left = self.missing();
                    self.members.get_mut(&request.member).expect("just seen").stand = Stand::Left;
                    self.waiting -= 1;
                    return left;
                }
                Stand::Left => {}
            }
        }
        self.missing()
    }

    fn missing(&self) -> BarrierLeft {
        let waits = |member: &u32| self.members.get(member).is_some_and(|known| known.stand == Stand::Waits);
        let missing = (0..self.parties).filter(|member| !waits(member)).take(limits::BARRIER_MISSING_MAX);
        let told = missing.map(|member| MissingMember {
            member,
            last: self.members.get(&member).map(|known| known.place.clone()),
        });
        BarrierLeft { passed: None, missing_count: self.parties - self.waiting, missing: told.collect() }
    }

    /// A session has ended.
    fn forget(&mut self, session: SessionId) {
        for member in self.members.values_mut().filter(|member| member.session == session) {
            if member.stand == Stand::Waits {
                member.stand = Stand::Left;
                self.waiting -= 1;
            }
            member.place.gone = true;
        }
    }

    fn is_forgotten(&self) -> bool {
        self.members.values().all(|member| member.place.gone)
    }
}

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
        let mut barrier = self.barriers.remove(&request.name).unwrap_or_default();
        let arrived = barrier.arrive(session, request);
        if !barrier.is_forgotten() {
            self.barriers.insert(request.name.clone(), barrier);
        }
        let (passed, told) = arrived?;
        self.session_mut(caller).barriers.insert(request.name.clone());
        let round = passed.unwrap_or_default();
        effects.extend(told.into_iter().map(|(session, wait)| Effect::BarrierPassed {
            session,
            wait,
            round,
        }));
        Ok(Some(Reply::Barrier(BarrierAnswer { passed })))
    }

    pub(crate) fn leave_barrier(&mut self, caller: Caller, request: &LeaveBarrier) -> Step {
        let left = match self.barriers.get_mut(&request.name) {
            Some(barrier) => barrier.leave(caller.token.session, request),
            None => BarrierLeft { passed: None, missing_count: 0, missing: Vec::new() },
        };
        Ok(Some(Reply::BarrierLeft(Box::new(left))))
    }

    /// The session has ended: it waits no longer.
    pub(crate) fn end_barriers(&mut self, session: SessionId, names: impl IntoIterator<Item = Vec<u8>>) {
        for name in names {
            let Some(barrier) = self.barriers.get_mut(&name) else { continue };
            barrier.forget(session);
            if barrier.is_forgotten() {
                self.barriers.remove(&name);
            }
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
        self.barriers.values().map(|barrier| barrier.members.len() as u64).sum()
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

//! One barrier: its members, where each was when it came last, and the round at hand.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::coordination::{ArriveBarrier, BarrierLeft, LeaveBarrier, MemberPlace, MissingMember};
use serde::{Deserialize, Serialize};

/// A session that waits, and its number for the wait.
pub(crate) type Told = (SessionId, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stand {
    /// It waits in the round at hand.
    Waits,
    /// This round was complete with it.
    Passed(u64),
    /// It has cancelled its wait.
    Left,
}

/// The last that is known of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    session: SessionId,
    wait: u64,
    stand: Stand,
    place: MemberPlace,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Barrier {
    /// Of the round at hand; the first to come says how many.
    pub parties: u32,
    /// Rounds that were complete.
    pub rounds: u64,
    /// Members that wait.
    pub waiting: u32,
    pub members: BTreeMap<u32, Member>,
}

impl Barrier {
    /// A member arrives: the round that is complete with it, and the other members to notify.
    pub(crate) fn arrive(
        &mut self,
        session: SessionId,
        request: &ArriveBarrier,
    ) -> Result<(Option<u64>, Vec<Told>)> {
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

    /// The round is complete; the members to notify, but for the last.
    pub(crate) fn complete(&mut self, last: u32) -> Vec<Told> {
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

    pub(crate) fn leave(&mut self, session: SessionId, request: &LeaveBarrier) -> BarrierLeft {
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

    pub(crate) fn missing(&self) -> BarrierLeft {
        let waits = |member: &u32| self.members.get(member).is_some_and(|known| known.stand == Stand::Waits);
        let missing = (0..self.parties).filter(|member| !waits(member)).take(limits::BARRIER_MISSING_MAX);
        let told = missing.map(|member| MissingMember {
            member,
            last: self.members.get(&member).map(|known| known.place.clone()),
        });
        BarrierLeft { passed: None, missing_count: self.parties - self.waiting, missing: told.collect() }
    }

    /// A session has ended.
    pub(crate) fn forget(&mut self, session: SessionId) {
        for member in self.members.values_mut().filter(|member| member.session == session) {
            if member.stand == Stand::Waits {
                member.stand = Stand::Left;
                self.waiting -= 1;
            }
            member.place.gone = true;
        }
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.members.values().all(|member| member.place.gone)
    }
}

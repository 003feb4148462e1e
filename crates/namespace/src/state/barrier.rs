//! One barrier: its members, where each was when it came last, and the round at hand; and all barriers of a slot.

use std::collections::BTreeMap;
use std::fmt;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits, numbered_variants};
use ramlace_wire::coordination::{ArriveBarrier, BarrierLeft, LeaveBarrier, MemberPlace, MissingMember};
use serde::{Deserialize, Serialize, Serializer};

/// A session that waits, and its number for the wait.
pub(crate) type Notified = (SessionId, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It waits in the round at hand.
    Waits,
    /// This round was complete with it.
    Passed(u64),
    /// It has cancelled its wait.
    Left,
}

numbered_variants! { Stand:
    0 Waits;
    1 Passed(body);
    2 Left;
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

impl Member {
    /// Whether its session lives, and may not know yet that its round is complete.
    fn may_ask_again(&self) -> bool {
        matches!(self.stand, Stand::Passed(_)) && !self.place.gone
    }
}

impl Barrier {
    /// A member arrives: the round that is complete with it, and the other members to notify.
    pub(crate) fn arrive(
        &mut self,
        session: SessionId,
        request: &ArriveBarrier,
    ) -> Result<(Option<u64>, Vec<Notified>)> {
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
            // One whose round opened may not have heard of it, and asks again.
            self.members.retain(|number, member| *number < request.parties || member.may_ask_again());
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
    pub(crate) fn complete(&mut self, last: u32) -> Vec<Notified> {
        self.rounds += 1;
        self.waiting = 0;
        let mut notified = Vec::new();
        for (number, member) in &mut self.members {
            if member.stand == Stand::Waits {
                member.stand = Stand::Passed(self.rounds);
                if *number != last {
                    notified.push((member.session, member.wait));
                }
            }
        }
        notified
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
        let named = missing.map(|member| MissingMember {
            member,
            last: self.members.get(&member).map(|known| known.place.clone()),
        });
        BarrierLeft { passed: None, missing_count: self.parties - self.waiting, missing: named.collect() }
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

    fn count(&self) -> u64 {
        self.members.len() as u64
    }

    fn is_forgotten(&self) -> bool {
        self.members.values().all(|member| member.place.gone)
    }
}

/// The barriers of a slot by name. The members are counted as they come and go: whether a server may remember one more
/// is asked for each that comes. A snapshot has the barriers alone.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<Vec<u8>, Barrier>")]
pub(crate) struct Barriers {
    by_name: BTreeMap<Vec<u8>, Barrier>,
    members: u64,
}

/// As the barriers alone, which the count follows from.
impl fmt::Debug for Barriers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.by_name.fmt(formatter)
    }
}

impl From<BTreeMap<Vec<u8>, Barrier>> for Barriers {
    fn from(by_name: BTreeMap<Vec<u8>, Barrier>) -> Barriers {
        let members = by_name.values().map(Barrier::count).sum();
        Barriers { by_name, members }
    }
}

impl Serialize for Barriers {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.by_name.serialize(serializer)
    }
}

impl Barriers {
    /// The barrier of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Barrier> {
        self.by_name.get(name)
    }

    /// All of them.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Barrier> {
        self.by_name.values()
    }

    /// Members that are remembered.
    pub(crate) fn members(&self) -> u64 {
        self.members
    }

    /// Lets this happen to the barrier of a name, which begins with it, and forgets one of which nobody is left.
    pub(crate) fn change<T>(&mut self, name: &[u8], happens: impl FnOnce(&mut Barrier) -> T) -> T {
        let mut barrier = self.by_name.remove(name).unwrap_or_default();
        self.members -= barrier.count();
        let outcome = happens(&mut barrier);
        if !barrier.is_forgotten() {
            self.members += barrier.count();
            self.by_name.insert(name.to_vec(), barrier);
        }
        outcome
    }
}

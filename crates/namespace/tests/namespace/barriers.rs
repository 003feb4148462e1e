//! Barriers of a slot against a model that knows only the waiters, with the server's process dying at any
//! moment.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ramlace_base::{Epoch, ErrorKind, Sequence, SessionId, Slot, Timestamp, limits};
use ramlace_namespace::{Command, Effect, Op, Origin, Reply, SlotState};
use ramlace_wire::Credentials;
use ramlace_wire::coordination::{ArriveBarrier, BarrierLeft, LeaveBarrier};

const NAMES: [&[u8]; 2] = [b"one", b"two"];
const MEMBERS: u32 = 4;
const SESSIONS: u64 = 3;

fn session(number: u64) -> SessionId {
    SessionId([number as u8 + 1; 16])
}

/// A session, its wait, and the round.
type Notified = (SessionId, u64, u64);

/// A slot, its log, and how it is asked.
struct Host {
    state: SlotState,
    log: Vec<Vec<u8>>,
    sequence: u64,
}

impl Host {
    fn new() -> Host {
        // One slot: every name is in it.
        Host { state: SlotState::new(Slot(0), 1, Epoch(1), 7), log: Vec::new(), sequence: 0 }
    }

    fn command(&mut self, origin: Origin, op: Op) -> Vec<Effect> {
        let command = Command { now: Timestamp { nanos: 1 }, origin, op };
        self.log.push(postcard::to_stdvec(&command).unwrap());
        self.state.apply(&command)
    }

    fn change(&mut self, of: u64, op: Op) -> (Result<Reply, ErrorKind>, Vec<Notified>) {
        self.sequence += 1;
        let origin = Origin::Client {
            session: session(of),
            sequence: Sequence(self.sequence),
            acknowledged_below: Sequence(self.sequence),
            who: Credentials::new(1, 1),
            on_behalf: false,
        };
        let effects = self.command(origin, op);
        let mut answer = None;
        let mut told = Vec::new();
        for effect in effects {
            match effect {
                Effect::Reply { outcome, .. } => answer = Some(outcome.map_err(|error| error.kind())),
                Effect::BarrierPassed { session, wait, round } => told.push((session, wait, round)),
                other => panic!("{other:?}"),
            }
        }
        (answer.expect("answered at once"), told)
    }

    /// Messages that were not received are lost; the state is restored from the log, or a snapshot.
    fn crash(&mut self) {
        let mut again = SlotState::new(Slot(0), 1, Epoch(1), 7);
        for record in &self.log {
            again.apply(&postcard::from_bytes(record).unwrap());
        }
        assert_eq!(again, self.state, "a replay comes to the same");
        let bytes = postcard::to_stdvec(&again).unwrap();
        self.state = postcard::from_bytes(&bytes).unwrap();
    }
}

/// One barrier, as simply as it can be said.
#[derive(Default)]
struct Model {
    parties: u32,
    rounds: u64,
    /// Members that wait, of which session and with which number.
    waiting: BTreeMap<u32, (u64, u64)>,
    /// The last wait of each member, its session, and whether that is alive.
    last: BTreeMap<u32, (u64, u64, bool)>,
    /// Rounds that waits passed.
    passed: BTreeMap<(u64, u64), u64>,
}

#[derive(Clone, Debug)]
enum Act {
    Arrive { name: usize, parties: u32, member: u32, session: u64 },
    Again { back: usize },
    Leave { back: usize },
    EndSession(u64),
    Crash,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => (0..NAMES.len(), prop_oneof![6 => Just(3u32), 1 => 1..=MEMBERS], 0..3u32, 0..SESSIONS)
            .prop_map(|(name, parties, member, session)| Act::Arrive { name, parties, member, session }),
        2 => (0..8usize).prop_map(|back| Act::Again { back }),
        3 => (0..8usize).prop_map(|back| Act::Leave { back }),
        1 => (0..SESSIONS).prop_map(Act::EndSession),
        1 => Just(Act::Crash),
    ]
}

fn request(name: usize, parties: u32, member: u32, of: u64, wait: u64) -> ArriveBarrier {
    ArriveBarrier {
        name: NAMES[name].to_vec(),
        parties,
        member,
        wait,
        host: format!("host{of}"),
        pid: member,
    }
}

#[derive(Default)]
struct World {
    models: [Model; 2],
    /// Every arrival that was answered well: barrier, parties, member, session, wait.
    arrivals: Vec<(usize, u32, u32, u64, u64)>,
    last_wait: u64,
}

impl World {
    fn step(&mut self, host: &mut Host, act: &Act) {
        match *act {
            Act::Arrive { name, parties, member, session } => {
                self.last_wait += 1;
                self.arrive(host, (name, parties, member, session, self.last_wait));
            }
            Act::Again { back } => {
                if let Some(arrival) = self.recent(back) {
                    self.arrive(host, arrival);
                }
            }
            Act::Leave { back } => {
                if let Some((name, _, member, of, wait)) = self.recent(back) {
                    self.leave(host, name, member, of, wait);
                    // No session asks for a wait that it has cancelled.
                    self.arrivals.retain(|arrival| arrival.4 != wait);
                }
            }
            Act::EndSession(of) => {
                host.command(Origin::Server, Op::EndSession { session: session(of) });
                for model in &mut self.models {
                    model.waiting.retain(|_, (session, _)| *session != of);
                    for last in model.last.values_mut().filter(|last| last.1 == of) {
                        last.2 = false;
                    }
                    if model.last.values().all(|last| !last.2) {
                        *model = Model::default();
                    }
                }
                self.arrivals.retain(|(.., session, _)| *session != of);
            }
            Act::Crash => host.crash(),
        }
        let waiting: usize = self.models.iter().map(|model| model.waiting.len()).sum();
        assert_eq!(host.state.barrier_waits(), waiting as u64);
        let places = NAMES.iter().flat_map(|name| (0..MEMBERS).map(move |member| (name, member)));
        let known = places.filter(|(name, member)| host.state.knows_member(name, *member)).count();
        assert_eq!(host.state.barrier_members(), known as u64, "as many are counted as are remembered");
    }

    fn recent(&self, back: usize) -> Option<(usize, u32, u32, u64, u64)> {
        self.arrivals.iter().rev().nth(back).copied()
    }

    fn arrive(&mut self, host: &mut Host, arrival: (usize, u32, u32, u64, u64)) {
        let (name, parties, member, of, wait) = arrival;
        let model = &mut self.models[name];
        let asks_again = model.waiting.get(&member) == Some(&(of, wait));
        let op = Op::ArriveBarrier { request: request(name, parties, member, of, wait), room: true };
        let (answer, told) = host.change(of, op);
        let refused = if member >= parties {
            Some(ErrorKind::Invalid)
        } else if asks_again || model.is_last_of(member, of, wait) {
            None
        } else if !model.waiting.is_empty() && model.parties != parties {
            Some(ErrorKind::Invalid)
        } else if model.waiting.get(&member).is_some_and(|(session, _)| *session != of) {
            Some(ErrorKind::Exists)
        } else {
            None
        };
        if let Some(kind) = refused {
            assert_eq!(answer, Err(kind), "{arrival:?}");
            return;
        }
        let Ok(Reply::Barrier(answer)) = answer else { panic!("{arrival:?}: {answer:?}") };
        if asks_again {
            assert_eq!((answer.passed, told.len()), (None, 0));
            return;
        }
        if model.is_last_of(member, of, wait) {
            assert_eq!((answer.passed, told.len()), (Some(model.passed[&(of, wait)]), 0));
            return;
        }
        if model.waiting.is_empty() {
            model.parties = parties;
            let passed = &model.passed;
            model.last.retain(|member, (wait, of, lives)| {
                *member < parties || (*lives && passed.contains_key(&(*of, *wait)))
            });
        }
        // One that a later wait of this member has followed counts as a new one.
        model.passed.remove(&(of, wait));
        model.waiting.insert(member, (of, wait));
        model.last.insert(member, (wait, of, true));
        self.arrivals.push(arrival);
        if model.waiting.len() < parties as usize {
            assert_eq!((answer.passed, told.len()), (None, 0));
            return;
        }
        model.rounds += 1;
        let waited = std::mem::take(&mut model.waiting);
        model.passed.extend(waited.values().map(|who| (*who, model.rounds)));
        let others = waited.values().filter(|who| **who != (of, wait));
        let expected: Vec<_> = others.map(|(of, wait)| (session(*of), *wait, model.rounds)).collect();
        assert_eq!((answer.passed, told), (Some(model.rounds), expected), "{arrival:?}");
    }

    fn leave(&mut self, host: &mut Host, name: usize, member: u32, of: u64, wait: u64) {
        let model = &mut self.models[name];
        let request = LeaveBarrier { name: NAMES[name].to_vec(), member, wait };
        let (answer, _) = host.change(of, Op::LeaveBarrier(request));
        let Ok(Reply::BarrierLeft(left)) = answer else { panic!("{answer:?}") };
        let BarrierLeft { passed, missing, .. } = *left;
        if model.is_last_of(member, of, wait) && model.waiting.get(&member) != Some(&(of, wait)) {
            assert_eq!(passed, model.passed.get(&(of, wait)).copied());
        } else {
            assert_eq!(passed, None);
        }
        if model.waiting.get(&member) == Some(&(of, wait)) {
            let absent = (0..model.parties).filter(|member| !model.waiting.contains_key(member));
            let named: Vec<u32> = missing.iter().map(|missing| missing.member).collect();
            assert_eq!(named, absent.collect::<Vec<_>>());
            for missing in &missing {
                let came = model.last.contains_key(&missing.member);
                assert_eq!(missing.last.is_some(), came, "where a member was is known when it came before");
            }
            model.waiting.remove(&member);
        }
    }
}

impl Model {
    /// This wait was the member's last, and it passed.
    fn is_last_of(&self, member: u32, of: u64, wait: u64) -> bool {
        self.last.get(&member).is_some_and(|last| (last.0, last.1) == (wait, of))
            && self.passed.contains_key(&(of, wait))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    // SEMANTICS 79.1, 79.2
    #[test]
    fn a_barrier_opens_when_all_have_come_and_counts_each_once(acts in prop::collection::vec(acts(), 1..120)) {
        let (mut world, mut host) = (World::default(), Host::new());
        for act in &acts {
            world.step(&mut host, act);
        }
    }
}

fn arrive(host: &mut Host, of: u64, parties: u32, member: u32, wait: u64) -> Result<Reply, ErrorKind> {
    host.change(of, Op::ArriveBarrier { request: request(0, parties, member, of, wait), room: true }).0
}

// SEMANTICS 79.1
#[test]
fn who_has_not_heard_that_its_round_opened_hears_it_also_when_fewer_have_come_since() {
    let mut host = Host::new();
    for member in 0..3 {
        arrive(&mut host, u64::from(member), 3, member, 1).unwrap();
    }
    // The events are lost with the server's process; a smaller round is complete before member 2 asks again.
    host.crash();
    arrive(&mut host, 0, 2, 0, 2).unwrap();
    arrive(&mut host, 1, 2, 1, 2).unwrap();
    let Ok(Reply::Barrier(told)) = arrive(&mut host, 2, 3, 2, 1) else { panic!() };
    assert_eq!((told.passed, host.state.barrier_waits()), (Some(1), 0));
    // With its session it is forgotten when the next smaller round begins.
    host.command(Origin::Server, Op::EndSession { session: session(2) });
    arrive(&mut host, 0, 2, 0, 3).unwrap();
    assert!(!host.state.knows_member(NAMES[0], 2));
}

// SEMANTICS 80.1
#[test]
fn missing_members_are_told_with_where_they_were() {
    let mut host = Host::new();
    arrive(&mut host, 0, 2, 0, 1).unwrap();
    arrive(&mut host, 1, 2, 1, 1).unwrap();
    host.command(Origin::Server, Op::EndSession { session: session(1) });
    arrive(&mut host, 0, 3, 0, 2).unwrap();
    let leave = LeaveBarrier { name: NAMES[0].to_vec(), member: 0, wait: 2 };
    let (Ok(Reply::BarrierLeft(left)), _) = host.change(0, Op::LeaveBarrier(leave)) else { panic!() };
    assert_eq!((left.passed, left.missing_count), (None, 2));
    let last = left.missing[0].last.as_ref().unwrap();
    assert_eq!((left.missing[0].member, last.host.as_str(), last.pid, last.gone), (1, "host1", 1, true));
    assert_eq!((left.missing[1].member, &left.missing[1].last), (2, &None));
}

// SEMANTICS 80.2
#[test]
fn a_barrier_is_limited_and_a_refusal_changes_nothing() {
    let mut host = Host::new();
    arrive(&mut host, 0, 2, 0, 1).unwrap();
    let before = host.state.clone();
    let refused = |host: &mut Host, request: ArriveBarrier, room| {
        let kind = host.change(1, Op::ArriveBarrier { request, room }).0.unwrap_err();
        host.command(Origin::Server, Op::EndSession { session: session(1) });
        kind
    };
    let good = request(0, 2, 1, 1, 1);
    for bad in [
        ArriveBarrier { name: Vec::new(), ..good.clone() },
        ArriveBarrier { name: vec![b'x'; limits::BARRIER_NAME_BYTES_MAX + 1], ..good.clone() },
        ArriveBarrier { parties: limits::BARRIER_PARTIES_MAX + 1, ..good.clone() },
        ArriveBarrier { parties: 0, ..good.clone() },
        ArriveBarrier { parties: 3, ..good.clone() },
        ArriveBarrier { member: 2, ..good.clone() },
        ArriveBarrier { wait: 0, ..good.clone() },
        ArriveBarrier { host: "x".repeat(limits::BARRIER_HOST_BYTES_MAX + 1), ..good.clone() },
    ] {
        assert_eq!(refused(&mut host, bad.clone(), true), ErrorKind::Invalid, "{bad:?}");
        assert_eq!(host.state, before, "{bad:?}");
    }
    assert_eq!(refused(&mut host, good.clone(), false), ErrorKind::TooMany);
    assert_eq!(host.state, before);
    assert_eq!(host.change(1, Op::ArriveBarrier { request: good, room: true }).1.len(), 1);
    for of in 0..2 {
        host.command(Origin::Server, Op::EndSession { session: session(of) });
    }
    assert_eq!(host.state.barrier_members(), 0, "a barrier goes with the last of its sessions");
}

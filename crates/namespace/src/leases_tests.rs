//! Leases against a model of holders that rely on what they were given until it expires or its recall arrives.

use proptest::prelude::*;

use super::*;

const SESSIONS: u8 = 3;
const INODES: u64 = 3;

fn session(number: u8) -> SessionId {
    SessionId([number + 1; 16])
}

fn inode(number: u64) -> InodeId {
    InodeId::new(Slot((number % 2) as u16), number + 10)
}

fn subject(number: u64) -> Subject {
    let what = if number.is_multiple_of(2) { Leased::Attributes } else { Leased::Names };
    (inode(number / 2), what)
}

#[derive(Clone, Debug)]
enum Act {
    /// A session asks for a lease; the request has been under way for this long.
    Give {
        session: u8,
        subject: u64,
        late: u64,
    },
    Change {
        subject: u64,
        knows: Option<u8>,
    },
    /// A session receives its recalls and does them.
    Hear {
        session: u8,
    },
    /// The server receives the acknowledgement.
    Acknowledge {
        session: u8,
    },
    /// Its connection is new: it does not say what it has received before.
    Begin {
        session: u8,
    },
    End {
        session: u8,
    },
    /// A session renews its leases; the request has been under way for this long.
    Renew {
        session: u8,
        late: u64,
    },
    Wait {
        millis: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let session = || 0..SESSIONS;
    let subject = || 0..2 * INODES;
    prop_oneof![
        6 => (session(), subject(), 0..20u64).prop_map(|(session, subject, late)| Act::Give { session, subject, late }),
        4 => (subject(), prop::option::of(session())).prop_map(|(subject, knows)| Act::Change { subject, knows }),
        3 => session().prop_map(|session| Act::Hear { session }),
        3 => session().prop_map(|session| Act::Acknowledge { session }),
        1 => session().prop_map(|session| Act::Begin { session }),
        1 => session().prop_map(|session| Act::End { session }),
        4 => (session(), 0..20u64).prop_map(|(session, late)| Act::Renew { session, late }),
        4 => prop_oneof![0..30u64, 300..900u64].prop_map(|millis| Act::Wait { millis }),
    ]
}

/// What each session relies on: until when, and which version of the subject.
#[derive(Default)]
struct Model {
    now: u64,
    versions: BTreeMap<Subject, u64>,
    believed: BTreeMap<(SessionId, Subject), Believed>,
    renewing: BTreeMap<SessionId, Renewing>,
}

/// By a lease that was asked for at that moment.
struct Believed {
    asked: u64,
    until: u64,
    version: u64,
}

/// The state that a session uses when it renews.
#[derive(Default)]
struct Renewing {
    /// How often leases had been taken from it, and since when it knows that.
    taken: Option<(u64, u64)>,
    acknowledged_to: u64,
}

impl Model {
    fn version(&self, subject: Subject) -> u64 {
        self.versions.get(&subject).copied().unwrap_or_default()
    }

    /// No session relies on what is no longer true, unless it is waited for.
    fn check(&self, leases: &Leases) {
        for ((holder, subject), Believed { until, version, .. }) in &self.believed {
            let stale = *until > self.now && *version != self.version(*subject);
            let slot = subject.0.slot();
            let pending = leases.newest_pending(slot);
            assert!(!stale || pending.is_some(), "{holder:?} believes an old {subject:?}");
            if let Some(number) = pending {
                assert!(leases.pending_until(slot, number).is_some());
            }
        }
    }

    /// Everything that a session was given, since it last knew which leases were taken from it, lasts from
    /// when it asked.
    fn renew(&mut self, who: SessionId, asked: u64, renewal: Renewal) {
        let renewing = self.renewing.entry(who).or_default();
        if renewal.newest > renewing.acknowledged_to {
            return;
        }
        let (taken, since) = *renewing.taken.get_or_insert((renewal.taken, self.now));
        if taken != renewal.taken {
            renewing.taken = Some((renewal.taken, self.now));
            return;
        }
        let own = self
            .believed
            .iter_mut()
            .filter(|((holder, _), believed)| *holder == who && believed.asked >= since);
        for (_, believed) in own {
            believed.until = believed.until.max(asked + limits::LEASE_MILLIS);
        }
    }
}

proptest! {
    // SEMANTICS 75, 77.1, 77.2, 138.2
    #[test]
    fn nobody_believes_what_has_changed_once_nobody_is_waited_for(
        room in prop_oneof![Just(4), Just(100)],
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let (mut leases, mut model) = (Leases::with_room_for(room), Model { now: 1_000, ..Model::default() });
        for act in acts {
            match act {
                Act::Give { session: who, subject: which, late } => {
                    let (who, subject) = (session(who), subject(which));
                    let resting = leases.resting.get(&subject).is_some_and(|until| *until > model.now);
                    if leases.give(who, subject.0, subject.1, model.now) {
                        assert!(!resting && !leases.subjects.contains_key(&subject), "a lease while one is recalled");
                        let asked = model.now - late;
                        let (until, version) = (asked + limits::LEASE_MILLIS, model.version(subject));
                        model.believed.insert((who, subject), Believed { asked, until, version });
                    } else {
                        // A holder may go by the lease that it has; the answer is new all the same.
                        model.believed.remove(&(who, subject));
                    }
                }
                Act::Change { subject: which, knows } => {
                    let (subject, knows) = (subject(which), knows.map(session));
                    *model.versions.entry(subject).or_default() += 1;
                    let version = model.version(subject);
                    if let Some(knows) = knows
                        && let Some(believed) = model.believed.get_mut(&(knows, subject))
                    {
                        believed.version = version;
                    }
                    leases.changed(subject.0, subject.1, knows, model.now);
                }
                Act::Hear { session: who } => {
                    let who = session(who);
                    let told = leases.unacknowledged(who);
                    for recall in &told {
                        model.believed.remove(&(who, (recall.inode, recall.what)));
                    }
                    let newest = told.last().map_or(0, |recall| recall.number);
                    let renewing = model.renewing.entry(who).or_default();
                    renewing.acknowledged_to = renewing.acknowledged_to.max(newest);
                }
                Act::Acknowledge { session: who } => {
                    let who = session(who);
                    leases.acknowledge(who, model.renewing.get(&who).map_or(0, |renewing| renewing.acknowledged_to));
                }
                Act::Begin { session: who } => _ = leases.acknowledge(session(who), 0),
                Act::End { session: who } => {
                    let who = session(who);
                    model.believed.retain(|(holder, _), _| *holder != who);
                    model.renewing.remove(&who);
                    leases.end_session(who);
                }
                Act::Renew { session: who, late } => {
                    if let Some(renewal) = leases.renew(session(who), model.now) {
                        model.renew(session(who), model.now - late, renewal);
                    }
                }
                Act::Wait { millis } => {
                    model.now += millis;
                    leases.pass(model.now);
                }
            }
            model.check(&leases);
            let counted: usize = leases.holders.values().map(Vec::len).sum();
            prop_assert_eq!(counted, leases.given);
        }
        // A session that is silent is waited for as long as its lease and no longer.
        leases.pass(model.now + HOLD_MILLIS);
        prop_assert!(leases.recalls.is_empty() && leases.in_slots.is_empty() && leases.subjects.is_empty());
    }
}

// SEMANTICS 77.1
#[test]
fn a_session_that_lets_a_recall_run_out_gets_nothing_before_it_asks_again() {
    let (mut leases, file) = (Leases::default(), inode(0));
    assert!(!leases.give(session(0), file, Leased::Attributes, 0), "nobody hears of its recalls");
    leases.acknowledge(session(0), 0);
    assert!(leases.give(session(0), file, Leased::Attributes, 0));
    assert!(!leases.changed(file, Leased::Names, None, 1), "that is another lease");
    assert!(leases.changed(file, Leased::Attributes, Some(session(1)), 1));
    assert_eq!(leases.newest_pending(file.slot()), Some(1));
    assert_eq!(leases.pending_until(file.slot(), 1), Some(750));
    leases.pass(HOLD_MILLIS);
    assert_eq!(leases.newest_pending(file.slot()), None);
    let later = HOLD_MILLIS + limits::LEASE_REST_MILLIS;
    assert!(!leases.give(session(0), file, Leased::Attributes, later));
    leases.acknowledge(session(0), 0);
    assert!(!leases.give(session(0), file, Leased::Attributes, later), "it has not done it");
    assert_eq!(leases.renew(session(0), later), None, "so it delays nobody any more");
    leases.acknowledge(session(0), 1);
    assert!(leases.give(session(0), file, Leased::Attributes, later));
}

#[test]
fn a_session_that_listens_and_has_done_nothing_since_ends_nobodys_wait() {
    let (mut leases, file) = (Leases::default(), inode(0));
    assert!(!leases.acknowledge(session(0), 0) && !leases.acknowledge(session(0), 0));
    assert!(leases.give(session(0), file, Leased::Attributes, 0));
    assert!(leases.changed(file, Leased::Attributes, None, 1));
    assert!(!leases.acknowledge(session(0), 0), "it has not done it");
    assert!(leases.acknowledge(session(0), 1) && !leases.acknowledge(session(0), 1));
}

// SEMANTICS 138.2
#[test]
fn a_holder_that_has_done_a_recall_and_acknowledges_it_late_is_waited_for_as_it_renewed() {
    let (mut leases, file, other) = (Leases::default(), inode(0), inode(1));
    leases.acknowledge(session(0), 0);
    assert!(leases.give(session(0), file, Leased::Attributes, 0));
    assert!(leases.give(session(0), other, Leased::Attributes, 0));
    assert!(leases.changed(file, Leased::Attributes, None, 1));
    assert_eq!(leases.renew(session(0), HOLD_MILLIS - 1), Some(Renewal { taken: 0, newest: 1 }));
    leases.pass(HOLD_MILLIS);
    assert!(leases.changed(other, Leased::Attributes, None, HOLD_MILLIS));
    assert_eq!(leases.pending_until(other.slot(), 2), Some(2 * HOLD_MILLIS - 1), "it goes by it");
    leases.pass(2 * HOLD_MILLIS);
    assert_eq!(leases.renew(session(0), 2 * HOLD_MILLIS), None, "and by no other before it is acknowledged");
}

// SEMANTICS 78.1
#[test]
fn a_full_table_gives_nothing_and_keeps_what_it_gave() {
    let mut leases = Leases::default();
    leases.acknowledge(session(0), 0);
    let one = |number: usize| InodeId::new(Slot(1), number as u64);
    for number in 0..65_536 {
        assert!(leases.give(session(0), one(number), Leased::Attributes, 10));
    }
    assert!(!leases.give(session(0), one(limits::LEASES_PER_SERVER_MAX), Leased::Attributes, 20));
    assert!(leases.give(session(0), one(7), Leased::Attributes, 20), "an extension takes no room");
    assert!(leases.changed(one(7), Leased::Attributes, None, 30));
    assert!(leases.give(session(0), one(limits::LEASES_PER_SERVER_MAX), Leased::Attributes, 40));
    assert!(leases.give(session(0), one(0), Leased::Attributes, 10 + HOLD_MILLIS), "what is over makes room");
}

// SEMANTICS 138.2
#[test]
fn what_changes_while_nobody_is_waited_for_is_told_before_anything_is_renewed() {
    let (mut leases, file, other) = (Leases::default(), inode(0), inode(1));
    leases.acknowledge(session(0), 0);
    assert!(leases.give(session(0), file, Leased::Attributes, 0));
    assert!(leases.give(session(0), other, Leased::Attributes, 0));
    assert_eq!(leases.renew(session(0), 700), Some(Renewal { taken: 0, newest: 0 }));
    let later = 700 + HOLD_MILLIS;
    assert!(leases.changed(file, Leased::Attributes, None, later), "it is told");
    assert_eq!(leases.newest_pending(file.slot()), None, "and not waited for");
    assert_eq!(leases.renew(session(0), later), Some(Renewal { taken: 0, newest: 1 }));
    assert!(leases.changed(other, Leased::Attributes, None, later + 1), "what is left is renewed");
    assert_eq!(leases.newest_pending(other.slot()), Some(2));
    assert_eq!(leases.unacknowledged(session(0)).len(), 2);
    leases.pass(later + HOLD_MILLIS);
    assert_eq!(leases.renew(session(0), later + HOLD_MILLIS), None, "it let a recall run out");
    assert_eq!(leases.unacknowledged(session(0)).len(), 2, "and is told of it when it asks");
    leases.acknowledge(session(0), 2);
    assert_eq!(leases.renew(session(0), later + HOLD_MILLIS), Some(Renewal { taken: 0, newest: 0 }));
}

// SEMANTICS 138.2
#[test]
fn a_session_that_does_not_listen_gets_no_more_and_loses_what_it_cannot_be_told() {
    let mut leases = Leases::default();
    leases.acknowledge(session(0), 0);
    let one = |number: usize| InodeId::new(Slot(1), number as u64);
    for number in 0..=limits::RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX {
        assert!(leases.give(session(0), one(number), Leased::Attributes, 0));
    }
    for number in 0..=limits::RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX {
        leases.changed(one(number), Leased::Attributes, None, HOLD_MILLIS);
    }
    assert_eq!(
        leases.sessions[&session(0)].unacknowledged.len(),
        limits::RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX
    );
    assert_eq!(leases.renew(session(0), HOLD_MILLIS), None);
    assert!(!leases.give(session(0), one(0), Leased::Names, HOLD_MILLIS));
    leases.acknowledge(session(0), limits::RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX as u64);
    assert_eq!(leases.renew(session(0), HOLD_MILLIS), Some(Renewal { taken: 1, newest: 0 }));
}

// SEMANTICS 138.2
#[test]
fn leases_that_make_room_for_others_are_not_renewed() {
    let mut leases = Leases::default();
    leases.acknowledge(session(0), 0);
    leases.acknowledge(session(1), 0);
    let one = |number: usize| InodeId::new(Slot(1), number as u64);
    for number in 0..limits::LEASES_PER_SERVER_MAX {
        assert!(leases.give(session(0), one(number), Leased::Attributes, 0));
    }
    assert_eq!(leases.renew(session(0), HOLD_MILLIS - 1), Some(Renewal { taken: 0, newest: 0 }));
    assert!(!leases.give(session(1), one(0), Leased::Names, HOLD_MILLIS), "they are believed still");
    assert_eq!(leases.renew(session(0), HOLD_MILLIS), None, "and shall not be for ever");
    let over = 2 * HOLD_MILLIS - 1;
    assert!(leases.changed(one(7), Leased::Attributes, None, over - 1));
    assert_eq!(leases.pending_until(Slot(1), 1), Some(over), "who believes is waited for");
    leases.acknowledge(session(0), 1);
    assert!(leases.give(session(1), one(0), Leased::Names, over), "one was recalled");
    assert!(leases.give(session(1), one(1), Leased::Names, over), "all others are over");
    assert_eq!(leases.given, 2);
    assert_eq!(leases.renew(session(0), over), Some(Renewal { taken: 1, newest: 0 }));
    assert_eq!(leases.renew(session(1), over), Some(Renewal { taken: 0, newest: 0 }));
}

// SEMANTICS 78.1
#[test]
fn a_full_table_is_looked_through_when_something_may_be_over() {
    let mut leases = Leases::with_room_for(2);
    for who in 0..3 {
        leases.acknowledge(session(who), 0);
    }
    let one = |number: u64| InodeId::new(Slot(1), number);
    assert!(leases.give(session(0), one(0), Leased::Attributes, 0));
    assert!(leases.give(session(1), one(1), Leased::Attributes, 100));
    assert!(leases.renew(session(0), 200).is_some());
    for now in [300, HOLD_MILLIS, HOLD_MILLIS + 50] {
        assert!(!leases.give(session(2), one(2), Leased::Attributes, now));
    }
    assert_eq!(leases.full_until, HOLD_MILLIS + 100, "the second is over first");
    leases.resting.insert((one(9), Leased::Names), 0);
    assert!(!leases.give(session(2), one(2), Leased::Attributes, HOLD_MILLIS + 99));
    assert_eq!(leases.resting.len(), 1, "nobody has looked");
    assert!(leases.give(session(2), one(2), Leased::Attributes, HOLD_MILLIS + 100));
    // A recalled lease makes room at once.
    assert!(!leases.give(session(1), one(1), Leased::Attributes, HOLD_MILLIS + 100));
    leases.changed(one(2), Leased::Attributes, None, HOLD_MILLIS + 101);
    assert!(leases.give(session(1), one(1), Leased::Attributes, HOLD_MILLIS + 102));
}

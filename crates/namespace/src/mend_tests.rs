//! Records that belong to no operation are dropped; all others stay, also those that come while the request
//! is under way.

use ramlace_base::{Epoch, InodeId, Sequence, SessionId, Timestamp};
use ramlace_wire::peer::{Decide, IntentStamp, Part, Prepare, Token};
use ramlace_wire::{AccessLists, Credentials, LayoutHints, Owner};

use super::*;
use crate::command::{Command, Effect, Op, Origin};
use crate::state::SlotState;

const OTHER: Slot = Slot(5);
const HERE: Slot = Slot(3);
const NOW: Timestamp = Timestamp { nanos: 1 };
const TOKEN: Token = Token { session: SessionId([1; 16]), sequence: Sequence(1) };

fn slot() -> SlotState {
    SlotState::new(HERE, 8, Epoch(1), 7)
}

fn tell(state: &mut SlotState, origin: Origin, op: Op) -> Vec<Effect> {
    state.apply(&Command { now: NOW, origin, op })
}

fn stamp(number: u64, open_from: u64) -> IntentStamp {
    IntentStamp { coordinator: OTHER, number, open_from }
}

/// Asks the slot to hold a new directory ready; whether it does.
fn hold(state: &mut SlotState, number: u64, open_from: u64, part_number: u32) -> bool {
    let part = Part::MakeDirectory {
        parent: InodeId::ROOT,
        mode: 0o755,
        owner: Owner { uid: 0, gid: 0 },
        hints: LayoutHints::default(),
        lists: AccessLists::NONE,
    };
    let who = Credentials::new(0, 0);
    let stamp = stamp(number, open_from);
    let message = Prepare { token: TOKEN, stamp, slot: HERE, number: part_number, who, now: NOW, part };
    let effects = tell(state, Origin::Peer, Op::Prepare(Box::new(message)));
    matches!(effects.last(), Some(Effect::PeerReply(Ok(_))))
}

fn decide(state: &mut SlotState, number: u64, open_from: u64) {
    let decide = Decide { token: TOKEN, stamp: stamp(number, open_from), slot: HERE, commit: true, now: NOW };
    tell(state, Origin::Peer, Op::Decide(decide));
}

fn known(next: u64, unfinished: &[u64]) -> OperationsKnown {
    OperationsKnown { next, unfinished: unfinished.iter().map(|number| (HERE, *number)).collect() }
}

fn only(state: &SlotState) -> Doubt {
    assert_eq!(state.coordinators_behind(None).collect::<Vec<_>>(), [OTHER]);
    assert_eq!(state.coordinators_behind(Some(OTHER)).next(), None);
    state.doubt(OTHER).expect("something is believed")
}

#[test]
fn what_is_held_for_nobody_is_let_go_and_what_is_somebodys_stays() {
    let mut state = slot();
    assert!(hold(&mut state, 10, 10, 1) && hold(&mut state, 11, 10, 1));
    let doubt = only(&state);
    assert_eq!(doubt.held_against(&known(12, &[10, 11])), None);
    let disowned = doubt.held_against(&known(12, &[10])).unwrap();
    assert_eq!((disowned.held().collect::<Vec<_>>(), disowned.is_ahead()), (vec![11], false));
    tell(&mut state, Origin::Server, Op::Disown(disowned));
    assert_eq!(state.inode_count(), 1, "the directory that was held ready is gone");
    decide(&mut state, 10, 10);
    assert_eq!(state.inode_count(), 1, "the other one is there");
    assert_eq!(only(&state).held_against(&known(12, &[])), None);
}

#[test]
fn operations_that_are_yet_to_come_are_taken_for_finished_no_more() {
    let mut state = slot();
    // A sender says that all below a number far ahead is finished, and that a still later one was done.
    assert!(hold(&mut state, 1_000, 1_000, 1));
    decide(&mut state, 1_000, 1_000);
    decide(&mut state, 2_000, 1_000);
    assert!(!hold(&mut state, 20, 20, 1), "this pair of slots is of no use");
    let disowned = only(&state).held_against(&known(20, &[])).unwrap();
    assert!(disowned.is_ahead());
    tell(&mut state, Origin::Server, Op::Disown(disowned));
    assert!(hold(&mut state, 20, 20, 1));
    decide(&mut state, 20, 20);
    assert_eq!(only(&state).held_against(&known(21, &[])), None);
}

// SEMANTICS 133.2
#[test]
fn operations_that_have_begun_are_not_set_back_to_before_their_part_has_come() {
    let mut state = slot();
    decide(&mut state, 1_000, 1_000);
    let disowned = only(&state).held_against(&known(20, &[18, 19])).unwrap();
    tell(&mut state, Origin::Server, Op::Disown(disowned));
    assert!(hold(&mut state, 18, 18, 1), "it was on its way");
}

// SEMANTICS 133.1
#[test]
fn what_comes_while_the_query_is_under_way_is_not_judged() {
    let mut state = slot();
    assert!(hold(&mut state, 10, 10, 1));
    let disowned = only(&state).held_against(&known(10, &[])).unwrap();
    // The very number is given out meanwhile, and asks for another part.
    assert!(hold(&mut state, 10, 10, 2));
    let before = state.clone();
    tell(&mut state, Origin::Server, Op::Disown(disowned));
    assert_eq!(state, before);
}

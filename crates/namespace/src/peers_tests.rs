//! What a slot keeps of another that coordinated operations with it, and which messages of it are refused.

use ramlace_base::{InodeId, Sequence, SessionId};
use ramlace_wire::peer::{Part, Token};
use ramlace_wire::{AccessLists, Credentials, LayoutHints, Owner};

use super::*;
use crate::command::{Command, Origin};

const OTHER: Slot = Slot(5);
const HERE: Slot = Slot(3);
const WHO: Credentials = Credentials::new(0, 0);

fn slot() -> SlotState {
    SlotState::new(HERE, 8, Epoch(1), 7)
}

fn token(number: u64) -> Token {
    Token { session: SessionId([1; 16]), sequence: Sequence(number) }
}

fn tell(state: &mut SlotState, op: Op) -> Result<DeliveryAnswer> {
    let now = Timestamp { nanos: 1 };
    match state.apply(&Command { now, origin: Origin::Peer, op }).pop() {
        Some(Effect::PeerReply(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

fn ask(state: &mut SlotState, number: u64, open_from: u64, part: Part) -> Result<DeliveryAnswer> {
    let stamp = IntentStamp { coordinator: OTHER, number, open_from };
    let now = Timestamp { nanos: 1 };
    let token = token(number);
    tell(state, Op::Prepare(Box::new(Prepare { token, stamp, slot: HERE, number: 1, who: WHO, now, part })))
}

fn make(state: &mut SlotState, number: u64, open_from: u64) -> Result<DeliveryAnswer> {
    let owner = Owner { uid: 0, gid: 0 };
    let (parent, hints) = (InodeId::ROOT, LayoutHints::default());
    ask(
        state,
        number,
        open_from,
        Part::MakeDirectory { parent, mode: 0o755, owner, hints, lists: AccessLists::NONE },
    )
}

fn decide(state: &mut SlotState, number: u64, open_from: u64, commit: bool) {
    let stamp = IntentStamp { coordinator: OTHER, number, open_from };
    let now = Timestamp { nanos: 2 };
    let decide = Decide { token: token(number), stamp, slot: HERE, commit, now };
    assert_eq!(tell(state, Op::Decide(decide)), Ok(DeliveryAnswer::Done));
}

/// The late message changes nothing.
fn assert_finished(state: &mut SlotState, number: u64, open_from: u64) {
    let before = state.clone();
    assert_eq!(make(state, number, open_from).unwrap_err().kind(), ErrorKind::Invalid);
    decide(state, number, open_from, false);
    assert_eq!(*state, before, "a late duplicate of {number} changes something");
}

#[test]
fn a_pair_of_slots_keeps_nothing_but_a_number_when_all_is_finished() {
    let mut state = slot();
    for number in [7, 20, 21, 400] {
        make(&mut state, number, number).unwrap();
        decide(&mut state, number, number, true);
        assert_eq!(
            state.coordinators[&OTHER],
            Coordinator { finished_below: number + 1, halves: BTreeMap::new() }
        );
        assert_finished(&mut state, number, number);
    }
    assert_eq!(state.inode_count(), 4);
}

#[test]
fn operations_that_end_out_of_order_are_told_from_late_ones() {
    let mut state = slot();
    make(&mut state, 10, 10).unwrap();
    make(&mut state, 12, 10).unwrap();
    decide(&mut state, 12, 10, true);
    assert_finished(&mut state, 12, 10);
    // A third one between them comes only now.
    make(&mut state, 11, 10).unwrap();
    decide(&mut state, 10, 10, false);
    assert_finished(&mut state, 10, 10);
    assert_finished(&mut state, 12, 10);
    decide(&mut state, 11, 11, true);
    for number in 10..=12 {
        assert_finished(&mut state, number, 10);
    }
    assert_eq!(state.coordinators[&OTHER], Coordinator { finished_below: 13, halves: BTreeMap::new() });
    assert_eq!(state.inode_count(), 2);
}

/// Another server may be wrong; it does not end this one.
#[test]
fn parts_that_are_for_another_slot_are_refused() {
    let mut state = slot();
    let Ok(DeliveryAnswer::Prepared(Prepared::Made(mine))) = make(&mut state, 1, 1) else {
        panic!("not made")
    };
    decide(&mut state, 1, 1, true);
    let elsewhere = InodeId::new(Slot(7), 9);
    let attributes = state.inodes[&mine].partition_attributes(false);
    let parts = [
        Part::OrderMoves,
        Part::RaiseLinks { inode: elsewhere },
        Part::LowerLinks { inode: elsewhere, owner: None },
        Part::SealDirectory { inode: elsewhere, owner: None },
        Part::MoveInode { inode: elsewhere, parent: None, owner: None },
        Part::SealPartition { inode: mine },
        Part::SetPartition { inode: mine, attributes },
    ];
    for (number, part) in (2..).zip(parts) {
        let before = state.inodes.clone();
        let refused = ask(&mut state, number, number, part.clone()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{part:?}: {refused}");
        decide(&mut state, number, number, true);
        assert_eq!(state.inodes, before, "{part:?}");
    }
}

// SEMANTICS 142.2
#[test]
fn a_slot_that_holds_a_part_for_another_is_not_delegated_before_that_is_decided() {
    let mut state = slot();
    let delegate = |state: &mut SlotState| {
        let op = Op::Delegate { session: SessionId([1; 16]) };
        state.apply(&Command { now: Timestamp { nanos: 3 }, origin: Origin::Server, op });
        state.delegation().is_some()
    };
    make(&mut state, 3, 3).unwrap();
    make(&mut state, 4, 3).unwrap();
    decide(&mut state, 4, 3, true);
    assert!(
        !state.may_be_delegated() && !delegate(&mut state),
        "what its holder knows may be otherwise soon"
    );
    decide(&mut state, 3, 3, true);
    assert!(state.may_be_delegated() && delegate(&mut state));
    assert!(!state.may_be_delegated());
}

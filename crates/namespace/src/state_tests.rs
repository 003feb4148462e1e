//! A slot that comes to the end of its numbers.

use ramlace_base::Name;
use ramlace_wire::namespace::MakeDirectory;

use super::*;
use crate::command::{Command, Op, Origin};

const SESSION: SessionId = SessionId([1; 16]);
const WHO: Credentials = Credentials::new(0, 0);

/// The slot of the root, in which so many numbers are left of those of its epoch.
fn slot(left: u64) -> SlotState {
    let mut state = SlotState::new(Slot(0), 8, Epoch(1), 7);
    state.install_root(WHO.owner(), Timestamp { nanos: 0 });
    let end = Epoch(2).first_number();
    (state.next_counter, state.next_intent) = (end - left, end - left);
    state
}

/// What the session is answered, if it does not wait for another slot.
fn mkdir(state: &mut SlotState, number: u64, home: Slot) -> Option<ErrorKind> {
    let name = Name::new(format!("d{number}")).unwrap();
    let request = MakeDirectory { parent: InodeId::ROOT, name, mode: 0o700.into() };
    let (sequence, acknowledged_below) = (Sequence(number), Sequence(1));
    let origin =
        Origin::Client { session: SESSION, sequence, acknowledged_below, who: WHO, on_behalf: false };
    let op = Op::MakeDirectory { request, homes: vec![home] };
    let effects = state.apply(&Command { now: Timestamp { nanos: 1 }, origin, op });
    effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { outcome, .. } => outcome.err().map(|error| error.kind()),
        _ => None,
    })
}

#[test]
fn no_slot_gives_out_a_number_of_one_that_begins_anew_in_its_place() {
    let mut state = slot(1);
    assert_eq!(mkdir(&mut state, 1, Slot(0)), None);
    let last = InodeId::new(Slot(0), Epoch(2).first_number() - 1);
    assert_eq!(state.inodes().last(), Some(last));
    assert_eq!(mkdir(&mut state, 2, Slot(0)), Some(ErrorKind::NoSpace));
    assert_eq!(mkdir(&mut state, 3, Slot(5)), None, "the operation has the last number");
    assert_eq!(state.unfinished, BTreeSet::from([(Slot(5), last.counter())]));
    let before = (state.unfinished.clone(), state.intents.clone());
    assert_eq!(mkdir(&mut state, 4, Slot(6)), Some(ErrorKind::NoSpace));
    assert_eq!((state.unfinished.clone(), state.intents.clone()), before);
    assert_eq!((state.next_counter, state.next_intent), (last.counter() + 1, last.counter() + 1));
    let successor = SlotState::new(Slot(0), 8, Epoch(2), 7);
    assert_eq!(successor.not_here(last).kind(), ErrorKind::Lost);
}

#[test]
fn a_spread_directory_that_cannot_be_looked_through_says_why_to_who_would_remove_it() {
    let mut state = slot(1);
    assert_eq!(mkdir(&mut state, 1, Slot(0)), None);
    let inode = state.inodes().last().unwrap();
    let partitions = [Slot(5); limits::DIRECTORY_PARTITIONS];
    let (_, directory) = state.directory_mut(inode);
    directory.spread = Some(crate::state::directory::Spread::new(&partitions));
    state.next_intent += 1;
    let mut rmdir = || {
        let name = Name::new("d1").unwrap();
        let request = ramlace_wire::namespace::RemoveDirectory { parent: InodeId::ROOT, name };
        let (sequence, acknowledged_below) = (Sequence(2), Sequence(1));
        let origin =
            Origin::Client { session: SESSION, sequence, acknowledged_below, who: WHO, on_behalf: false };
        let op = Op::RemoveDirectory(request);
        let effects = state.apply(&Command { now: Timestamp { nanos: 2 }, origin, op });
        effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { outcome, .. } => outcome.err().map(|error| error.kind()),
            _ => None,
        })
    };
    assert_eq!(rmdir(), Some(ErrorKind::Retry));
    assert_eq!(rmdir(), Some(ErrorKind::NoSpace));
}

// SEMANTICS 142.6
#[test]
fn what_may_be_promised_has_numbers() {
    let told = limits::CHANGES_PER_MESSAGE_MAX as u64;
    let delegate = |state: &mut SlotState| {
        let op = Op::Delegate { session: SESSION };
        state.apply(&Command { now: Timestamp { nanos: 1 }, origin: Origin::Server, op });
        state.delegation().is_some()
    };
    // Also while what was sent is answered, and until it is heard that the slot is wanted back.
    assert!(!delegate(&mut slot(3 * told - 1)));
    let mut state = slot(3 * told + 1);
    assert!(delegate(&mut state));
    state.next_counter += 2 * told + 2;
    let op = Op::EndSession { session: SESSION };
    state.apply(&Command { now: Timestamp { nanos: 2 }, origin: Origin::Server, op });
    assert_eq!(state.next_counter, Epoch(2).first_number(), "those that were told, as far as there were any");
}

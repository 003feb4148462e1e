//! mkdir and rmdir: both halves, late duplicates, lost slots.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Redirect, Result, Sequence, Slot, Timestamp, limits};
use ramlace_namespace::{
    Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, SlotState,
};
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::{Bytes, InlineMode, WriteInline};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::{self, IntentStamp, Part, Prepared, Token};
use ramlace_wire::{AccessLists, ErrorBody, LayoutHints};

use crate::rules::story::*;

fn token() -> Token {
    Token { session: session(9), sequence: Sequence(1) }
}

fn stamp(number: u64, open_from: u64) -> IntentStamp {
    IntentStamp { coordinator: Slot(7), number, open_from }
}

fn part(number: u64, open_from: u64, part: Part) -> Op {
    Op::Prepare(Box::new(peer::Prepare {
        token: token(),
        stamp: stamp(number, open_from),
        slot: Slot(0),
        number: 1,
        who: ALICE,
        now: Timestamp { nanos: 5 },
        part,
    }))
}

fn prepare(number: u64, open_from: u64) -> Op {
    let parent = InodeId::new(Slot(7), 1);
    let hints = LayoutHints::default();
    part(
        number,
        open_from,
        Part::MakeDirectory { parent, mode: 0o700, owner: ALICE.owner(), hints, lists: AccessLists::NONE },
    )
}

fn seal(number: u64, open_from: u64, inode: InodeId) -> Op {
    part(number, open_from, Part::SealDirectory { inode, owner: None })
}

fn decide(number: u64, open_from: u64, commit: bool) -> Op {
    let (stamp, now) = (stamp(number, open_from), Timestamp { nanos: 6 });
    Op::Decide(peer::Decide { token: token(), stamp, slot: Slot(0), commit, now })
}

fn made(inode: InodeId) -> std::result::Result<DeliveryAnswer, ErrorBody> {
    Ok(DeliveryAnswer::Prepared(Prepared::Made(inode)))
}

fn prepared(answer: Result<DeliveryAnswer>) -> InodeId {
    match answer.unwrap() {
        DeliveryAnswer::Prepared(Prepared::Made(inode)) => inode,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_prepared_directory_waits_for_its_entry() {
    let mut story = Story::new();
    let inode = prepared(story.peer(prepare(3, 3)));
    assert_eq!(prepared(story.peer(prepare(3, 3))), inode, "the same each time");
    assert_eq!(story.refused(Op::Create(create(inode, "f", 1))), ErrorKind::Retry);
    assert_eq!(story.page(inode, 0, 10).entries, []);
    // No request waits: the rmdir fails.
    assert_eq!(story.peer(seal(4, 3, inode)).unwrap_err().kind(), ErrorKind::Busy);
    story.peer(decide(3, 3, true)).unwrap();
    story.create(inode, "f");
}

#[test]
fn a_home_without_room_is_passed_over() {
    let full = || Err(ErrorBody::new(&Error::new(ErrorKind::NoSpace, "no room")));
    let down = || Err(ErrorBody::new(&Error::new(ErrorKind::Denied, "something else")));
    let begin = |story: &mut Story| {
        let request = wire::MakeDirectory { parent: InodeId::ROOT, name: name("d"), mode: 0o700.into() };
        let homes = [5, 6, 7].map(Slot).to_vec();
        assert_eq!(story.send(Op::MakeDirectory { request, homes }), None);
    };
    // Answers the latest request; the home that was asked, and what the client gets.
    let answer = |story: &mut Story, result| {
        let asked = story.sent.iter().rev().find_map(|(delivery, message)| match message {
            Delivery::Prepare(message) => Some((*delivery, message.slot)),
            _ => None,
        });
        let (delivery, home) = asked.unwrap();
        (home, reply(&story.server(Op::DeliveryDone { delivery, result })))
    };
    let mut story = Story::new();
    begin(&mut story);
    assert_eq!(answer(&mut story, full()), (Slot(5), None));
    let inode = InodeId::new(Slot(6), 9);
    let (home, told) = answer(&mut story, made(inode));
    assert_eq!((home, attributes(told.unwrap()).inode), (Slot(6), inode));
    let decisions: Vec<(u16, bool)> = story
        .sent
        .iter()
        .filter_map(|(_, message)| match message {
            Delivery::Decide(decide) => Some((decide.slot.0, decide.commit)),
            _ => None,
        })
        .collect();
    assert_eq!(decisions, [(5, false), (6, true)]);
    // None has room; another reason than room is one.
    for (last, kind) in [(full(), ErrorKind::NoSpace), (down(), ErrorKind::Denied)] {
        let mut story = Story::new();
        begin(&mut story);
        answer(&mut story, full());
        answer(&mut story, full());
        let (home, told) = answer(&mut story, last);
        assert_eq!((home, told.unwrap().unwrap_err().kind()), (Slot(7), kind));
        assert_eq!(story.page(InodeId::ROOT, 0, 10).entries, []);
    }
}

#[test]
fn late_duplicates_leave_no_orphan() {
    let mut story = Story::new();
    // The abort comes before the request, and again afterwards.
    story.peer(decide(3, 3, false)).unwrap();
    assert!(story.peer(prepare(3, 3)).is_err());
    story.peer(decide(3, 3, false)).unwrap();
    // Finished, forgotten, and asked once more.
    let inode = prepared(story.peer(prepare(4, 3)));
    story.peer(decide(4, 3, true)).unwrap();
    prepared(story.peer(prepare(9, 9)));
    assert!(story.peer(prepare(4, 3)).is_err());
    story.peer(decide(4, 3, false)).unwrap();
    assert_eq!(story.info(inode).unwrap().attributes.links, 2);
    assert_eq!(story.state.inode_count(), 3);
}

#[test]
fn finished_operations_are_forgotten() {
    let mut story = Story::new();
    let bytes = |story: &Story| postcard::to_stdvec(&story.state).unwrap().len();
    let mut first = 0;
    for number in 1..=1000 {
        story.peer(prepare(number, number)).unwrap();
        story.peer(decide(number, number, false)).unwrap();
        if number == 10 {
            first = bytes(&story);
        }
    }
    assert!(bytes(&story) <= first + 16, "{} bytes, {first} at first", bytes(&story));
}

#[test]
fn a_lost_coordinator_aborts() {
    let mut story = Story::new();
    let child = story.mkdir(InodeId::ROOT, "d");
    let orphan = prepared(story.peer(prepare(3, 3)));
    story.peer(seal(4, 3, child)).unwrap();
    assert_eq!(story.refused(Op::Create(create(child, "f", 1))), ErrorKind::Retry);
    // It begins anew, with larger numbers and without memory.
    story.peer(prepare(1 << 25, 1 << 25)).unwrap();
    assert_eq!(story.info(orphan).unwrap_err().kind(), ErrorKind::Stale);
    story.create(child, "f");
}

#[test]
fn a_sealed_directory_takes_no_entries_until_it_is_decided() {
    let mut story = Story::new();
    let child = story.mkdir(InodeId::ROOT, "d");
    let seal = |number| seal(number, 1, child);
    let decide = |number, remove| decide(number, 1, remove);
    story.peer(seal(1)).unwrap();
    story.peer(seal(1)).unwrap();
    assert_eq!(story.peer(seal(2)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(story.refused(Op::Create(create(child, "f", 1))), ErrorKind::Retry);
    story.peer(decide(1, false)).unwrap();
    assert!(story.peer(seal(1)).is_err(), "a late duplicate does not seal for ever");
    let file = story.create(child, "f");
    assert_eq!(story.peer(seal(3)).unwrap_err().kind(), ErrorKind::NotEmpty);
    story.peer(decide(3, false)).unwrap();
    story.ask(unlink(child, "f")).unwrap();
    story.ask(close(file)).unwrap();
    // A session has it open: it goes with the last close, and takes no entries meanwhile.
    story.ask(Op::Open(wire::Open { inode: child, read: true, write: false, run: false })).unwrap();
    story.peer(seal(4)).unwrap();
    story.peer(decide(4, true)).unwrap();
    assert_eq!(story.refused(Op::Create(create(child, "f", 1))), ErrorKind::NotFound);
    assert_eq!(story.page(child, 0, 10).entries, []);
    story.ask(close(child)).unwrap();
    assert_eq!(story.info(child).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(story.peer(seal(5)).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn a_home_that_is_out_of_reach_aborts_the_mkdir() {
    let mut story = Story::new();
    assert_eq!(story.send(mkdir(InodeId::ROOT, "d", Slot(5))), None);
    assert_eq!(story.refused(Op::Create(create(InodeId::ROOT, "d", 1))), ErrorKind::Retry);
    let (request, _) = story.sent[0].clone();
    let effects = story.server(Op::DeliveryUnreachable { delivery: request });
    assert_eq!(reply(&effects).unwrap().unwrap_err().kind(), ErrorKind::HostDown);
    // The name is free at once; the abort is pending until it has arrived, the request is not.
    story.create(InodeId::ROOT, "d");
    let pending: Vec<(DeliveryId, Delivery)> =
        story.state.open_deliveries().map(|(id, m)| (id, m.clone())).collect();
    let [(decide, Delivery::Decide(message))] = &pending[..] else { panic!("{pending:?}") };
    assert!(!message.commit);
    let late = made(InodeId::new(Slot(5), 9));
    assert_eq!(story.server(Op::DeliveryDone { delivery: request, result: late }), []);
    let again = ErrorBody::new(&Error::new(ErrorKind::Redirect(Redirect::Moved), "elsewhere"));
    story.server(Op::DeliveryDone { delivery: *decide, result: Err(again) });
    story.server(Op::DeliveryUnreachable { delivery: *decide });
    assert_eq!(story.state.open_deliveries().count(), 1);
    story.done(*decide);
    assert_eq!(story.state.open_deliveries().count(), 0);
}

#[test]
fn the_entry_of_a_lost_directory_can_be_removed() {
    for kind in [ErrorKind::Stale, ErrorKind::Lost] {
        let mut story = Story::new();
        story.send(mkdir(InodeId::ROOT, "d", Slot(5)));
        story.server(Op::DeliveryDone { delivery: story.sent[0].0, result: made(InodeId::new(Slot(5), 9)) });
        assert_eq!(story.send(rmdir(InodeId::ROOT, "d")), None);
        let seal = story.sent.last().unwrap().0;
        let lost = ErrorBody::new(&Error::new(kind, "its server was forgotten"));
        let effects = story.server(Op::DeliveryDone { delivery: seal, result: Err(lost) });
        assert_eq!(reply(&effects), Some(Ok(Reply::Done)));
        assert_eq!(story.size(InodeId::ROOT), 0);
    }
}

#[test]
fn what_was_lost_with_the_server_before_is_told_from_what_was_removed() {
    let state = SlotState::new(Slot(3), SLOTS, Epoch(4), 7);
    let mut story = Story { state, ..Story::new() };
    let inode = |counter| InodeId::new(Slot(3), counter);
    let Op::Prepare(message) = prepare(1, 1) else { unreachable!() };
    let first =
        prepared(story.peer(Op::Prepare(Box::new(peer::Prepare { slot: Slot(3), ..*message })))).counter();
    assert_eq!(first, Epoch(4).first_number());
    for (counter, kind) in [(2, ErrorKind::Lost), (first - 1, ErrorKind::Lost), (first + 1, ErrorKind::Stale)]
    {
        assert_eq!(story.info(inode(counter)).unwrap_err().kind(), kind, "{counter}");
        let open = Op::Open(wire::Open { inode: inode(counter), read: true, write: false, run: false });
        assert_eq!(story.refused(open), kind, "{counter}");
    }
}

#[test]
fn a_directory_in_which_one_is_made_has_to_wait() {
    let mut story = Story::new();
    let child = story.mkdir(InodeId::ROOT, "d");
    assert_eq!(story.send(mkdir(child, "inner", Slot(5))), None);
    assert_eq!(story.refused(rmdir(InodeId::ROOT, "d")), ErrorKind::Retry);
    story.server(Op::DeliveryUnreachable { delivery: story.sent[0].0 });
    story.ask(rmdir(InodeId::ROOT, "d")).unwrap();
}

#[test]
fn a_dead_session_is_not_answered_but_its_mkdir_ends_well() {
    let mut story = Story::new();
    assert_eq!(story.send(mkdir(InodeId::ROOT, "d", Slot(5))), None);
    story.server(Op::EndSession { session: session(1) });
    let (delivery, result) = (story.sent[0].0, made(InodeId::new(Slot(5), 9)));
    let effects = story.server(Op::DeliveryDone { delivery, result });
    assert_eq!(reply(&effects), None);
    assert_eq!(story.size(InodeId::ROOT), 1);
    assert!(!story.state.has_session(session(1)));
}

#[test]
fn operations_across_slots_are_bounded() {
    let mut story = Story::new();
    for number in 0..limits::INTENTS_PER_SLOT_MAX {
        assert_eq!(story.send(mkdir(InodeId::ROOT, &number.to_string(), Slot(5))), None);
    }
    assert_eq!(story.refused(mkdir(InodeId::ROOT, "one more", Slot(5))), ErrorKind::Busy);
    assert_eq!(story.refused(rmdir(InodeId::ROOT, "one more")), ErrorKind::NotFound);
}

#[test]
fn what_is_pending_for_servers_that_are_down_is_bounded() {
    let mut story = Story::new();
    let wide = u16::try_from(SLOTS).unwrap();
    let narrow = story.create_wide(InodeId::ROOT, "narrow", 1);
    let file = story.create_wide(InodeId::ROOT, "file", 2);
    let small = story.create_inline(InodeId::ROOT, "small", 1);
    let bytes = WriteInline {
        inode: small,
        mode: InlineMode::At,
        offset: 0,
        bytes: Bytes(vec![1]),
        origin: WriteOrigin::Program,
    };
    story.ask(Op::WriteInline { request: bytes, room: true }).unwrap();
    story.extend(file, 1, 1 << 20).unwrap();
    // A message is pending for each lane of a truncated file. In the end there is room for one message more.
    let full = limits::DELIVERIES_PER_SLOT_MAX - 1;
    for number in 0.. {
        let left = full - story.state.open_deliveries().count();
        if left == 0 {
            break;
        }
        let width = wide.min(u16::try_from(left).unwrap_or(wide));
        let pending = story.create_wide(InodeId::ROOT, &number.to_string(), width);
        story.extend(pending, 1, 1 << 30).unwrap();
        assert_eq!(story.send(truncate(pending, 0)), None);
    }
    let lower = |number, inode| part(number, 1, Part::LowerLinks { inode, owner: None });
    assert_eq!(story.refused(unlink(InodeId::ROOT, "file")), ErrorKind::Busy);
    assert_eq!(story.refused(truncate(file, 0)), ErrorKind::Busy);
    assert_eq!(story.peer(lower(1, file)).unwrap_err().kind(), ErrorKind::Busy);
    story.peer(lower(2, narrow)).unwrap();
    story.peer(decide(2, 1, false)).unwrap();
    // The last.
    assert_eq!(story.send(mkdir(InodeId::ROOT, "a", Slot(5))), None);
    assert_eq!(story.refused(mkdir(InodeId::ROOT, "b", Slot(5))), ErrorKind::Busy);
    assert_eq!(story.refused(promote(small)), ErrorKind::Busy);
    assert_eq!(story.refused(unlink(InodeId::ROOT, "narrow")), ErrorKind::Busy);
    assert_eq!(story.state.open_deliveries().count(), limits::DELIVERIES_PER_SLOT_MAX);
}

#[test]
fn every_message_says_what_is_not_finished_yet() {
    let mut story = Story::new();
    let begin = |story: &mut Story, text: &str, home| {
        assert_eq!(story.send(mkdir(InodeId::ROOT, text, Slot(home))), None);
        match story.sent.last() {
            Some((delivery, Delivery::Prepare(message))) => (*delivery, message.stamp),
            other => panic!("{other:?}"),
        }
    };
    let (request, first) = begin(&mut story, "a", 5);
    let (_, second) = begin(&mut story, "b", 5);
    let (_, other) = begin(&mut story, "c", 6);
    assert_eq!((first.open_from, second.open_from), (first.number, first.number));
    assert_eq!(other.open_from, other.number, "each pair of slots has its own");
    story.server(Op::DeliveryDone { delivery: request, result: made(InodeId::new(Slot(5), 9)) });
    let Some((told, Delivery::Decide(message))) = story.sent.last().cloned() else {
        panic!("{:?}", story.sent)
    };
    assert_eq!(message.stamp, first);
    story.done(told);
    let (_, third) = begin(&mut story, "d", 5);
    assert_eq!(third.open_from, second.number, "the first is finished");
}

#[test]
fn an_operation_that_outlives_its_session_is_not_begun_again() {
    let mut story = Story::new();
    assert_eq!(story.send(mkdir(InodeId::ROOT, "d", Slot(5))), None);
    story.server(Op::EndSession { session: story.session });
    story.sequence -= 1;
    assert_eq!(story.refused(mkdir(InodeId::ROOT, "e", Slot(5))), ErrorKind::Invalid);
}

#[test]
fn a_slot_runs_out_of_numbers_and_says_so() {
    let mut state = SlotState::new(Slot(3), SLOTS, Epoch(1 << 24), 7);
    let Op::Prepare(message) = prepare(0, 0) else { unreachable!() };
    let origin = Origin::Peer;
    let op = Op::Prepare(Box::new(peer::Prepare { slot: Slot(3), ..*message }));
    let effects = state.apply(&Command { now: Timestamp { nanos: 0 }, origin, op });
    let [Effect::PeerReply(Err(error))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

// SEMANTICS 138.3
#[test]
fn what_is_held_for_another_slot_is_told_to_whoever_asked_for_it_too() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "file");
    for (number, asked) in
        [(3, Part::RaiseLinks { inode: file }), (4, Part::LowerLinks { inode: file, owner: None })]
    {
        let effects = story.command(Origin::Peer, part(number, 3, asked));
        let knows = effects.iter().find_map(|effect| match effect {
            Effect::Changed { inode, knows, .. } if *inode == file => Some(*knows),
            _ => None,
        });
        assert_eq!(knows, Some(None), "it may have looked since, if it waits for it no more");
        story.peer(decide(number, 3, true)).unwrap();
    }
}

//! Small files whose bytes live with their inode.

use ramlace_base::{Epoch, ErrorKind, Generation, InodeId, LaneId, Slot};
use ramlace_namespace::{AskedBy, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Reply};
use ramlace_wire::ErrorBody;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::coordination::{CellChange, ChangeInlineCell};
use ramlace_wire::inline::{
    Bytes, BytesPlace, InlineMode, InlineOutcome, InlineRead, InlineWritten, ReadInline, WriteInline,
};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::FillLane;

use crate::rules::story::{
    ALICE, MALLORY, ROOT_USER, Story, close, promote, reply, session, set, size_of_reply, truncate, unlink,
};

const ROOT: InodeId = InodeId::ROOT;

fn op(inode: InodeId, mode: InlineMode, offset: u64, bytes: &[u8], room: bool) -> Op {
    Op::WriteInline {
        request: WriteInline {
            inode,
            mode,
            offset,
            bytes: Bytes(bytes.to_vec()),
            origin: WriteOrigin::Program,
        },
        room,
    }
}

fn write(story: &mut Story, inode: InodeId, offset: u64, bytes: &[u8]) -> InlineWritten {
    written(story.ask(op(inode, InlineMode::At, offset, bytes, true)))
}

fn append(story: &mut Story, inode: InodeId, bytes: &[u8]) -> InlineWritten {
    written(story.ask(op(inode, InlineMode::End, 0, bytes, true)))
}

fn written(reply: ramlace_base::Result<Reply>) -> InlineWritten {
    match reply.unwrap() {
        Reply::WroteInline(written) => written,
        other => panic!("{other:?}"),
    }
}

fn read(story: &Story, inode: InodeId) -> InlineRead {
    let request = ReadInline { inode, offset: 0, length: 4096, keep: false };
    story.state.query(&ROOT_USER, &request).unwrap()
}

fn bytes(story: &Story, inode: InodeId) -> Vec<u8> {
    read(story, inode).bytes.expect("it is inline").0
}

/// The message that carries the bytes away.
fn fill(story: &Story) -> (DeliveryId, FillLane) {
    let mut open = story.state.open_deliveries();
    match open.next() {
        Some((delivery, Delivery::FillLane(message))) => (delivery, message.clone()),
        other => panic!("{other:?}"),
    }
}

fn refuse(story: &mut Story, delivery: DeliveryId, kind: ErrorKind) -> Option<ramlace_base::Result<Reply>> {
    let body = ErrorBody::new(&ramlace_base::Error::new(kind, "no"));
    reply(&story.server(Op::DeliveryDone { delivery, result: Err(body) }))
}

#[test]
fn bytes_size_and_times_change_in_one_step() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 2);
    let made = story.info(file).unwrap();
    assert!(made.inline && bytes(&story, file).is_empty());
    let first = write(&mut story, file, 3, b"abc");
    assert_eq!((first.outcome, first.offset, first.size.size), (InlineOutcome::Written, 3, 6));
    assert_eq!(bytes(&story, file), b"\0\0\0abc");
    assert_eq!(append(&mut story, file, b"de").offset, 6);
    write(&mut story, file, 0, b"xy");
    assert_eq!(bytes(&story, file), b"xy\0abcde");
    let now = story.info(file).unwrap().attributes;
    assert_eq!(now.size, 8);
    assert!(now.modified > made.attributes.modified && now.changed > made.attributes.changed);
    assert_eq!(story.state.inline_bytes(), 8);
    story.ask(unlink(ROOT, "f")).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent, [], "no lane has to hear of it");
    assert_eq!(story.state.inline_bytes(), 0);
}

#[test]
fn pages_are_written_back_as_far_as_the_file_reaches() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    write(&mut story, file, 0, &[1; 100]);
    let within = |offset, length| op(file, InlineMode::Within, offset, &vec![2; length], false);
    assert_eq!(written(story.ask(within(90, 4000))).outcome, InlineOutcome::Written);
    assert_eq!(bytes(&story, file), [[1; 90].as_slice(), &[2; 10]].concat());
    let before = story.info(file).unwrap();
    assert_eq!(written(story.ask(within(100, 4096))).outcome, InlineOutcome::Written);
    assert_eq!(story.info(file).unwrap(), before, "nothing lies there");
    story.ask(truncate(file, 1 << 20)).unwrap();
    assert_eq!(written(story.ask(within(1 << 16, 4096))).outcome, InlineOutcome::Full);
}

#[test]
fn a_truncation_cuts_and_adds_zeros() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 2);
    write(&mut story, file, 0, b"abcdef");
    story.ask(truncate(file, 3)).unwrap();
    story.ask(truncate(file, 1 << 40)).unwrap();
    let found = read(&story, file);
    assert_eq!((found.size.size, found.size.generation), (1 << 40, Generation(2)));
    assert_eq!(found.bytes.unwrap().0, b"abc", "what grows takes no memory");
    assert_eq!(append(&mut story, file, b"x").outcome, InlineOutcome::Full);
    write(&mut story, file, 5, b"f");
    assert_eq!(bytes(&story, file), b"abc\0\0f");
    assert_eq!(story.sent, [], "no lane has begun");
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    assert_eq!(write(&mut story, file, 0, &[1; 4096]).outcome, InlineOutcome::Written);
    let before = story.info(file).unwrap();
    assert_eq!(write(&mut story, file, 4096, b"x").outcome, InlineOutcome::Full);
    assert_eq!(append(&mut story, file, b"x").outcome, InlineOutcome::Full);
    let huge = op(file, InlineMode::At, u64::MAX, b"x", true);
    assert_eq!(story.refused(huge), ErrorKind::TooBig);
    for length in [0, 4097] {
        assert_eq!(story.refused(op(file, InlineMode::At, 0, &vec![1; length], true)), ErrorKind::Invalid);
    }
    assert_eq!(story.info(file).unwrap(), before);
    // A server without room lets no file grow; existing bytes may change.
    let other = story.create_inline(ROOT, "g", 1);
    assert_eq!(written(story.ask(op(other, InlineMode::At, 0, b"x", false))).outcome, InlineOutcome::Full);
    assert_eq!(written(story.ask(op(file, InlineMode::At, 0, b"x", false))).outcome, InlineOutcome::Written);
}

#[test]
fn on_their_way_bytes_can_be_read_and_not_changed() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 2);
    write(&mut story, file, 0, b"abc");
    assert_eq!(story.send(promote(file)), None);
    let (delivery, message) = fill(&story);
    assert_eq!((message.lane, message.slot), (LaneId { inode: file, lane: 0 }, Slot(9)));
    assert_eq!((message.bytes.0.as_slice(), message.generation), (b"abc".as_slice(), Generation(2)));
    assert_eq!(story.asked_by_a_lane(file, 0).place, BytesPlace::Leaving);
    assert_eq!(bytes(&story, file), b"abc");
    for change in [
        op(file, InlineMode::At, 0, b"x", true),
        truncate(file, 1),
        promote(file),
        Op::ReserveAppend(wire::ReserveAppend { inode: file, length: 1 }),
    ] {
        assert_eq!(story.refused(change), ErrorKind::Retry);
    }
    assert_eq!(size_of_reply(story.done(delivery).unwrap()), 3);
    assert_eq!(read(&story, file).bytes, None);
    assert_eq!(write(&mut story, file, 0, b"x").outcome, InlineOutcome::InLanes);
    assert_eq!(story.asked_by_a_lane(file, 0).place, BytesPlace::Lanes);
    assert!(!story.info(file).unwrap().inline);
    assert_eq!(size_of_reply(story.ask(promote(file))), 3, "it is there already");
    assert_eq!(story.reserve(file, 10), 3);
    assert_eq!(story.state.inline_bytes(), 0);
}

#[test]
fn an_empty_file_goes_to_its_lanes_without_a_message() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 2);
    assert_eq!(
        story.refused(Op::Extend(wire::Extend { inode: file, generation: Generation(1), size: 1, from: 0 })),
        ErrorKind::Invalid
    );
    assert_eq!(size_of_reply(story.ask(promote(file))), 0);
    assert_eq!(story.sent, []);
    assert_eq!(size_of_reply(story.extend(file, 1, 10)), 10);
}

#[test]
fn refused_bytes_stay_and_their_lane_is_thought_to_have_begun() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    write(&mut story, file, 0, b"abc");
    story.send(promote(file));
    let (delivery, first) = fill(&story);
    let told = refuse(&mut story, delivery, ErrorKind::NoSpace).unwrap();
    assert_eq!(told.unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(append(&mut story, file, b"d").outcome, InlineOutcome::Written);
    assert_eq!(bytes(&story, file), b"abcd");
    // The next message is known for a newer one, and is sent even when there is nothing to carry.
    story.ask(truncate(file, 0)).unwrap();
    assert_eq!(story.send(promote(file)), None);
    let (delivery, second) = fill(&story);
    assert!(second.bytes.0.is_empty() && second.generation > first.generation);
    refuse(&mut story, delivery, ErrorKind::NoSpace);
    story.ask(unlink(ROOT, "f")).unwrap();
    story.ask(close(file)).unwrap();
    assert!(matches!(story.sent.last(), Some((_, Delivery::DropLane(_)))), "{:?}", story.sent);
}

#[test]
fn nobody_waits_for_a_server_that_does_not_answer() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    write(&mut story, file, 0, b"abc");
    story.send(promote(file));
    let (delivery, _) = fill(&story);
    let told = reply(&story.server(Op::DeliveryUnreachable { delivery })).unwrap();
    assert_eq!(told.unwrap_err().kind(), ErrorKind::HostDown);
    for change in [promote(file), op(file, InlineMode::At, 0, b"x", true), truncate(file, 0)] {
        assert_eq!(story.refused(change), ErrorKind::HostDown);
    }
    assert_eq!(bytes(&story, file), b"abc");
    assert_eq!(story.done(delivery), None);
    assert_eq!(read(&story, file).bytes, None, "the bytes have arrived at last");
}

#[test]
fn a_file_that_goes_on_the_way_takes_leave_of_its_lanes() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 2);
    write(&mut story, file, 0, b"abc");
    story.send(promote(file));
    let (delivery, _) = fill(&story);
    story.ask(unlink(ROOT, "f")).unwrap();
    let told = story.send(close(file)).unwrap();
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Stale, "whoever waited for the promotion hears of it");
    assert!(story.state.open_delivery(delivery).is_none());
    let drops = story.state.open_deliveries().filter(|(_, message)| matches!(message, Delivery::DropLane(_)));
    assert_eq!(drops.count(), 1, "of the lane that the bytes were sent to");
}

#[test]
fn only_who_may_reads_writes_and_promotes() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    write(&mut story, file, 0, b"secret");
    story
        .ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o600), ..crate::rules::story::set(file) }))
        .unwrap();
    let request = ReadInline { inode: file, offset: 0, length: 9, keep: false };
    let asked = |session| story.state.query(AskedBy { who: &MALLORY, session }, &request);
    assert_eq!(asked(session(9)).unwrap_err().kind(), ErrorKind::Denied);
    assert!(asked(session(1)).is_ok(), "that session has it open");
}

#[test]
fn who_has_it_open_for_writing_alone_learns_how_many_bytes_there_are_and_none_of_them() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "f", 1);
    write(&mut story, file, 0, b"a secret");
    story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o600), ..set(file) })).unwrap();
    let asked = |story: &Story, length, session| {
        let request = ReadInline { inode: file, offset: 0, length, keep: false };
        story.state.query(AskedBy { who: &MALLORY, session }, &request)
    };
    let request = ChangeInlineCell { inode: file, offset: 0, change: CellChange::Add(0) };
    let nothing_added = || Op::ChangeInlineCell { request, room: true };
    let open = |read| Op::Open(wire::Open { inode: file, read, write: true, run: false });
    story.session = session(2);
    story.ask(open(false)).unwrap();
    story.who = MALLORY;
    assert_eq!(asked(&story, 8, session(2)).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(asked(&story, 0, session(9)).unwrap_err().kind(), ErrorKind::Denied);
    let found = asked(&story, 0, session(2)).unwrap();
    assert_eq!((found.size.size, found.bytes), (8, Some(Bytes(Vec::new()))));
    assert_eq!(story.refused(nothing_added()), ErrorKind::Denied);
    story.who = ALICE;
    story.ask(open(true)).unwrap();
    story.who = MALLORY;
    story.ask(nothing_added()).unwrap();
}

#[test]
fn a_change_by_another_takes_the_set_id_bits_of_a_small_program() {
    for change in [
        (|inode| op(inode, InlineMode::At, 0, b"x", true)) as fn(InodeId) -> Op,
        |inode| op(inode, InlineMode::End, 0, b"x", true),
        |inode| truncate(inode, 0),
    ] {
        let mut story = Story::new();
        let file = story.create_inline(ROOT, "f", 1);
        story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o6777), ..set(file) })).unwrap();
        story.who = MALLORY;
        story.ask(change(file)).unwrap();
        assert_eq!(story.info(file).unwrap().attributes.mode, 0o777);
    }
}

// SEMANTICS 139.3
#[test]
fn whoever_knows_a_size_hears_that_its_bytes_are_in_lanes() {
    for length in [3000, 4096] {
        let mut story = Story::new();
        let file = story.create_inline(ROOT, "f", 2);
        write(&mut story, file, 0, &vec![1; length]);
        story.send(promote(file));
        let (delivery, _) = fill(&story);
        let effects = story.server(Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) });
        let told = |effect: &Effect| match effect {
            Effect::Changed { inode, knows, .. } if *inode == file => Some(*knows),
            _ => None,
        };
        let asker = effects.iter().find_map(|effect| match effect {
            Effect::Reply { token, .. } => Some(token.session),
            _ => None,
        });
        assert!(asker.is_some());
        assert_eq!(effects.iter().find_map(told), Some(asker), "{length}: all but the one that asked for it");
    }
}

// SEMANTICS 137.5
#[test]
fn first_bytes_take_an_empty_file_to_its_lanes() {
    let begin = |inode, by| Op::BeginLane { lane: LaneId { inode, lane: 0 }, by, epoch: Epoch(3) };
    let mut story = Story::new();
    let empty = story.create_inline(ROOT, "empty", 2);
    // The writer knows the result.
    let knows = |effects: &[Effect]| match effects {
        [Effect::Changed { inode, knows, .. }] if *inode == empty => *knows,
        other => panic!("{other:?}"),
    };
    assert_eq!(knows(&story.server(begin(empty, session(1)))), Some(session(1)));
    let info = story.info(empty).unwrap();
    assert_eq!((info.inline, info.layout.unwrap().created), (false, Epoch(3)));
    assert_eq!(story.server(begin(empty, session(2))), [], "it is there");
    assert!(matches!(read(&story, empty), InlineRead { bytes: None, since: Epoch(3), .. }));

    let written_to = story.create_inline(ROOT, "written to", 2);
    write(&mut story, written_to, 0, b"abc");
    assert_eq!(story.server(begin(written_to, session(1))), []);
    assert_eq!(bytes(&story, written_to), b"abc");
    // Bytes that are being moved go with a message of their own, and lane 0 may have begun although it refused.
    assert!(story.send(promote(written_to)).is_none());
    let (delivery, _) = fill(&story);
    assert_eq!(story.server(begin(written_to, session(1))), []);
    refuse(&mut story, delivery, ErrorKind::NoSpace).unwrap().unwrap_err();
    story.ask(truncate(written_to, 0)).unwrap();
    assert_eq!(story.server(begin(written_to, session(1))), []);
    assert!(story.info(written_to).unwrap().inline);
    story.ask(unlink(ROOT, "empty")).unwrap();
    story.ask(close(empty)).unwrap();
    assert_eq!(story.server(begin(empty, session(1))), [], "it is gone");
}

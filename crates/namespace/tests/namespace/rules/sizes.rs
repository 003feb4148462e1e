//! Sizes, appends and truncations.

use ramlace_base::{ErrorKind, Generation, InodeId, LaneId, Sequence, Slot, limits};
use ramlace_namespace::{Delivery, DeliveryAnswer, Effect, Op, Reply};
use ramlace_wire::namespace as wire;

use crate::rules::story::*;

// SEMANTICS 7.2
#[test]
fn the_published_size_stops_before_the_first_unfinished_append() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.extend(file, 1, 100).unwrap();
    let (first, second) = (story.reserve(file, 10), story.reserve(file, 20));
    assert_eq!((first, second), (100, 110));
    assert_eq!(size_of_reply(story.finish(file, second)), 100);
    // A lane must not take the finished append for a hole when its bytes are lost.
    assert_eq!(story.asked_by_a_lane(file, 0).size, 130);
    // A write behind the reservations is not lost, and not seen yet.
    assert_eq!(size_of_reply(story.extend(file, 1, 500)), 100);
    assert_eq!(story.reserve(file, 1), 500);
    assert_eq!(size_of_reply(story.finish(file, first)), 500);
    assert_eq!(size_of_reply(story.finish(file, 500)), 501);
    assert_eq!(story.finish(file, 500).unwrap_err().kind(), ErrorKind::Retry);
}

#[test]
fn a_dead_writer_leaves_a_hole() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.session = session(2);
    story.reserve(file, 1000);
    story.session = session(1);
    let mine = story.reserve(file, 10);
    assert_eq!(size_of_reply(story.finish(file, mine)), 0);
    story.server(Op::EndSession { session: session(2) });
    assert_eq!(story.size(file), 1010);
    assert!(!story.state.has_session(session(2)));
}

// SEMANTICS 7.3
#[test]
fn a_reservation_of_which_its_session_does_not_know_is_given_back_when_it_is_cancelled() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let reserve = || Op::ReserveAppend(wire::ReserveAppend { inode: file, length: 100 });
    let finish = |number| {
        Op::FinishAppend(wire::FinishAppend { inode: file, number: Sequence(number), failed: false })
    };
    let cancel = || Op::CancelChange(wire::CancelChange { sequence: Sequence(10) });
    // The answer to change 10 is never acknowledged.
    let ask = |story: &mut Story, sequence, op| reply(&story.numbered(sequence, 10, op)).unwrap();
    let offset = |reply| match reply {
        Ok(Reply::Reserved(reserved)) => (reserved.number.0, reserved.offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(offset(ask(&mut story, 10, reserve())), (10, 0));
    assert_eq!(offset(ask(&mut story, 11, reserve())), (11, 100));
    let waits = ask(&mut story, 12, finish(11));
    assert_eq!(size_of_reply(waits), 0, "it waits for what lies before it");
    let effects = story.numbered(13, 10, cancel());
    assert_eq!(story.size(file), 200);
    let told =
        |effect: &Effect| matches!(effect, Effect::Changed { inode, knows: None, .. } if *inode == file);
    assert!(effects.iter().any(told), "the session that cancels does not know the size either: {effects:?}");
    // A truncation takes reservations with it: what is reserved in the same place later is another one.
    story.numbered(14, 10, truncate(file, 0));
    assert_eq!(offset(ask(&mut story, 15, reserve())), (15, 0));
    ask(&mut story, 16, cancel()).unwrap();
    assert_eq!(ask(&mut story, 17, finish(10)).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(size_of_reply(ask(&mut story, 18, finish(15))), 100);
}

#[test]
fn an_append_belongs_to_its_session_and_has_limits() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let offset = story.reserve(file, 10);
    story.session = session(2);
    assert_eq!(story.finish(file, offset).unwrap_err().kind(), ErrorKind::Retry);
    let reserve = |length| Op::ReserveAppend(wire::ReserveAppend { inode: file, length });
    story.who = MALLORY;
    assert_eq!(
        story.fail(file, offset).unwrap_err().kind(),
        ErrorKind::Denied,
        "it has no reservation, and no right"
    );
    story.who = ROOT_USER;
    story.fail(file, offset).expect("what is not reserved needs not be given back");
    assert_eq!(story.refused(reserve(0)), ErrorKind::Invalid);
    assert_eq!(story.refused(reserve(limits::FILE_BYTES_MAX - 9)), ErrorKind::TooBig);
    assert_eq!(story.refused(reserve(u64::MAX)), ErrorKind::TooBig);
    for _ in 1..limits::APPEND_RESERVATIONS_MAX {
        story.reserve(file, 1);
    }
    assert_eq!(story.refused(reserve(1)), ErrorKind::Retry);
    assert_eq!(story.extend(file, 1, limits::FILE_BYTES_MAX + 1).unwrap_err().kind(), ErrorKind::TooBig);
    assert_eq!(story.refused(truncate(file, u64::MAX)), ErrorKind::TooBig);
}

#[test]
fn a_writer_of_an_older_generation_writes_again() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.extend(file, 1, 100).unwrap();
    assert_eq!(story.send(truncate(file, 10)), None);
    assert_eq!(story.extend(file, 1, 200).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(story.extend(file, 3, 200).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(size_of_reply(story.extend(file, 2, 200)), 200);
}

#[test]
fn a_truncation_takes_unfinished_appends_with_it() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.extend(file, 1, 100).unwrap();
    let offset = story.reserve(file, 50);
    // Growing beyond a reservation: its bytes must not show up later in the middle of zeros.
    assert_eq!(story.send(truncate(file, 400)), None);
    let cuts = story.cuts();
    assert_eq!((cuts[0].1.generation, cuts[0].1.length), (Generation(2), 100));
    assert_eq!(story.size(file), 400);
    assert_eq!(story.finish(file, offset).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(story.reserve(file, 1), 400);
    // Bytes written behind a reservation go as well.
    story.extend(file, 2, 900).unwrap();
    assert_eq!(story.send(truncate(file, 400)), None);
    assert_eq!(story.reserve(file, 1), 400);
}

#[test]
fn growing_a_file_tells_nobody() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 4);
    assert_eq!(attributes(story.ask(truncate(file, 1 << 30))).size, 1 << 30);
    assert_eq!(attributes(story.ask(truncate(file, 1 << 30))).generation, Generation(1));
    assert_eq!(story.sent, []);
}

#[test]
fn a_truncation_is_answered_when_each_lane_has_acknowledged_it_or_cannot() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 3);
    story.extend(file, 1, 1 << 20).unwrap();
    assert_eq!(story.send(truncate(file, (1 << 16) + 5)), None);
    let cuts = story.cuts();
    let lanes: Vec<(Slot, u64)> = cuts.iter().map(|(_, cut)| (cut.slot, cut.length)).collect();
    assert_eq!(lanes, [(Slot(9), 1 << 16), (Slot(12), 5), (Slot(15), 0)]);
    assert_eq!(story.done(cuts[0].0), None);
    assert_eq!(reply(&story.server(Op::DeliveryUnreachable { delivery: cuts[1].0 })), None);
    assert!(!story.state.is_awaited(cuts[1].0) && story.state.is_awaited(cuts[2].0));
    let answered = attributes(story.done(cuts[2].0).unwrap());
    assert_eq!((answered.size, answered.generation), ((1 << 16) + 5, Generation(2)));
    // The message to the lane that is down is still pending, and the lane may ask.
    assert_eq!(story.state.open_deliveries().count(), 1);
    assert_eq!(story.smallest_size(file, 1), Some((1 << 16) + 5));
    assert_eq!(story.done(cuts[1].0), None);
    assert_eq!(story.smallest_size(file, 1), None);
}

#[test]
fn a_lane_learns_the_smallest_size_since_its_generation() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    for (generation, grown, cut) in [(1, 1000, 500), (2, 2000, 300), (3, 3000, 700), (4, 4000, 800)] {
        story.extend(file, generation, grown).unwrap();
        story.send(truncate(file, cut));
    }
    assert_eq!(story.cuts().len(), 1, "a newer message replaces an older one");
    assert_eq!(story.smallest_size(file, 1), Some(300));
    assert_eq!(story.smallest_size(file, 3), Some(700));
    assert_eq!(story.smallest_size(file, 4), Some(800));
    assert_eq!(story.smallest_size(file, 5), None);
    // All four truncations are answered by the one message about the last.
    let (delivery, cut) = story.cuts()[0];
    assert_eq!((cut.generation, cut.length), (Generation(5), 800));
    let effects = story.server(Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) });
    assert_eq!(effects.len(), 4);
    assert_eq!(story.smallest_size(file, 0), None);
}

#[test]
fn truncations_that_a_dead_lane_does_not_hear_of_are_bounded() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let most = limits::TRUNCATIONS_UNRECEIVED_MAX as u64;
    for generation in 1..=most {
        story.extend(file, generation, 1 << 20).unwrap();
        assert_eq!(story.send(truncate(file, generation)), None);
    }
    story.extend(file, most + 1, 1 << 20).unwrap();
    assert_eq!(story.refused(truncate(file, most + 1)), ErrorKind::Busy);
    // A shorter one makes most of the history needless.
    assert_eq!(story.send(truncate(file, 5)), None);
    assert_eq!(story.smallest_size(file, 1), Some(1));
    assert_eq!(story.smallest_size(file, 20), Some(5));
}

#[test]
fn a_closed_file_gives_back_its_tails_once() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 2);
    (0..2).for_each(|lane| story.begin_lane(file, lane));
    story.extend(file, 1, 10 << 20).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 2);
    let lane = LaneId { inode: file, lane: 0 };
    let Delivery::TrimLane(trim) = &story.sent[0].1 else { panic!("{:?}", story.sent) };
    assert_eq!((trim.lane, trim.slot), (lane, Slot(9)));
    let (kept, abandoned) = (story.sent[0].0, story.sent[1].0);
    story.done(kept);
    let open = Op::Open(wire::Open { inode: file, read: true, write: false, run: false });
    story.ask(open.clone()).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 2, "nobody can have written");
    // Advice that could not be given is given after the next use.
    story.server(Op::DeliveryUnreachable { delivery: abandoned });
    assert_eq!(story.state.open_deliveries().count(), 0);
    story.ask(open).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 4);
}

#[test]
fn a_file_whose_size_was_set_before_it_was_written_gives_back_its_tails_too() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 2);
    (0..2).for_each(|lane| story.begin_lane(file, lane));
    story.ask(truncate(file, 10 << 20)).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 2);
    // A later write into the hole at its end does not make it grow either.
    story.ask(Op::Open(wire::Open { inode: file, read: false, write: true, run: false })).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 4);
}

#[test]
fn small_files_have_no_tails() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 2);
    (0..2).for_each(|lane| story.begin_lane(file, lane));
    story.extend(file, 1, 1 << 20).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent, []);
    // The store takes whole huge pages from this very length on.
    story.ask(Op::Open(wire::Open { inode: file, read: true, write: true, run: false })).unwrap();
    story.extend(file, 1, 2 * limits::EXACT_PAGES_BYTES_MAX - 1).unwrap();
    story.ask(close(file)).unwrap();
    assert_eq!(story.sent.len(), 1);
}

//! Files that kernels read and map without asking.

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Redirect};
use ramlace_namespace::{Delivery, DeliveryAnswer, Op, Reply};
use ramlace_wire::namespace as wire;
use ramlace_wire::{ErrorBody, LayoutHints, Mode};

use crate::rules::story::*;

fn begin_passthrough(inode: InodeId, write: bool) -> Op {
    Op::BeginPassthrough(wire::BeginPassthrough { inode, write, over: false })
}

fn open(inode: InodeId, write: bool) -> Op {
    Op::Open(wire::Open { inode, read: true, write, run: false })
}

fn number(story: &mut Story, inode: InodeId, write: bool) -> u64 {
    match story.ask(begin_passthrough(inode, write)).unwrap() {
        Reply::PassthroughBegun(told) => told.number,
        other => panic!("{other:?}"),
    }
}

/// The numbers up to which the lane was told that passthroughs have ended.
fn over(story: &Story) -> Vec<u64> {
    let told = |delivery: &Delivery| match delivery {
        Delivery::TrimLane(message) => Some(message.passthroughs_over),
        _ => None,
    };
    story.sent.iter().filter_map(|(_, delivery)| told(delivery)).collect()
}

/// A file of 100 bytes in one lane, open for writing.
fn story_with_file() -> (Story, InodeId) {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.extend(file, 1, 100).unwrap();
    (story, file)
}

#[test]
fn a_kernel_gets_what_its_session_has_open_and_no_more() {
    let (mut story, file) = story_with_file();
    let Reply::PassthroughBegun(told) = story.ask(begin_passthrough(file, true)).unwrap() else { panic!() };
    assert_eq!((told.size.size, told.size.generation), (100, Generation(1)));
    story.session = session(2);
    assert_eq!(story.refused(begin_passthrough(file, false)), ErrorKind::BadHandle);
    story.ask(open(file, false)).unwrap();
    assert_eq!(story.refused(begin_passthrough(file, true)), ErrorKind::BadHandle);
    assert!(number(&mut story, file, false) > told.number);
    let wide = story.create_wide(InodeId::ROOT, "wide", 2);
    assert_eq!(story.refused(begin_passthrough(wide, false)), ErrorKind::Unsupported);
    let small = story.create_inline(InodeId::ROOT, "small", 1);
    assert!(story.ask(begin_passthrough(small, false)).is_err());
}

// SEMANTICS 140.4, 140.5
#[test]
fn what_a_kernel_may_have_that_nobody_can_ask_does_not_become_strict() {
    let (mut story, file) = story_with_file();
    let set = |mode| Op::SetLayout(wire::SetLayout { inode: file, hints: LayoutHints::of_mode(mode) });
    number(&mut story, file, true);
    story.server(Op::EndSession { session: session(1) });
    story.session = session(2);
    assert_eq!(story.refused(set(Some(Mode::Strict))), ErrorKind::Busy);
    story.ask(set(Some(Mode::Relaxed))).unwrap();
    // A strict file is given to no kernel.
    let strict = story.create(InodeId::ROOT, "strict");
    story.extend(strict, 1, 100).unwrap();
    story.ask(close(strict)).unwrap();
    let hints = LayoutHints::of_mode(Some(Mode::Strict));
    story.ask(Op::SetLayout(wire::SetLayout { inode: strict, hints })).unwrap();
    story.ask(open(strict, true)).unwrap();
    assert_eq!(story.refused(begin_passthrough(strict, false)), ErrorKind::Unsupported);
}

// SEMANTICS 90.2
#[test]
fn nobody_is_told_that_bytes_are_the_same_while_a_kernel_may_write_them() {
    let (mut story, file) = story_with_file();
    number(&mut story, file, false);
    assert!(!story.info(file).unwrap().may_change_unnoticed, "it only reads");
    number(&mut story, file, true);
    assert!(story.info(file).unwrap().may_change_unnoticed);
    number(&mut story, file, false);
    assert!(story.info(file).unwrap().may_change_unnoticed, "it goes on writing");
    let before = story.info(file).unwrap().attributes.changed;
    story.ask(close(file)).unwrap();
    let after = story.info(file).unwrap();
    assert!(!after.may_change_unnoticed);
    assert!(after.attributes.changed > before, "it may have been written until then");
}

// SEMANTICS 96.1
#[test]
fn a_kernel_that_nobody_can_ask_any_more_is_believed_to_write_for_ever() {
    for write in [false, true] {
        let (mut story, file) = story_with_file();
        number(&mut story, file, write);
        story.server(Op::EndSession { session: session(1) });
        assert_eq!(story.info(file).unwrap().may_change_unnoticed, write);
        assert_eq!(over(&story), vec![]);
        story.session = session(2);
        story.ask(open(file, true)).unwrap();
        number(&mut story, file, true);
        story.ask(close(file)).unwrap();
        assert_eq!(story.info(file).unwrap().may_change_unnoticed, write);
        // Its memory must not be replaced: its lane keeps the bytes that it has.
        assert_eq!(story.refused(truncate(file, 200)), ErrorKind::Redirect(Redirect::Passthrough));
        assert_eq!(over(&story), vec![]);
    }
}

// SEMANTICS 92.1
#[test]
fn the_lane_hears_when_the_last_kernel_has_let_go() {
    let (mut story, file) = story_with_file();
    number(&mut story, file, true);
    story.session = session(2);
    story.ask(open(file, false)).unwrap();
    let last = number(&mut story, file, false);
    story.ask(close(file)).unwrap();
    assert_eq!(over(&story), vec![]);
    story.session = session(1);
    story.ask(close(file)).unwrap();
    assert_eq!(over(&story), vec![last]);
    // Nobody else tells it: a server that does not answer hears of it later.
    let delivery = story.sent.last().unwrap().0;
    let is_open = |story: &Story| story.state.open_deliveries().any(|(open, _)| open == delivery);
    assert!(!story.state.is_awaited(delivery), "nobody waits for it");
    story.server(Op::DeliveryUnreachable { delivery });
    assert!(is_open(&story));
    let result = Err(ErrorBody::new(&Error::new(ErrorKind::TimedOut, "it says nothing")));
    story.server(Op::DeliveryDone { delivery, result });
    assert!(is_open(&story));
    story.server(Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) });
    assert!(!is_open(&story));
    // A late message says nothing about later passthroughs.
    story.ask(open(file, false)).unwrap();
    assert!(number(&mut story, file, false) > last);
    // Of several that wait for a silent server the last one says all.
    for _ in 0..5 {
        story.ask(close(file)).unwrap();
        story.ask(open(file, false)).unwrap();
        number(&mut story, file, false);
    }
    let waiting = story.state.open_deliveries();
    assert_eq!(waiting.filter(|(_, message)| matches!(message, Delivery::TrimLane(_))).count(), 1);
}

// SEMANTICS 92.1
#[test]
fn what_a_kernel_has_grows_with_its_memory() {
    let (mut story, file) = story_with_file();
    let grow = |size, allocated| Op::Truncate(wire::Truncate { inode: file, size, allocated });
    number(&mut story, file, false);
    assert_eq!(story.refused(grow(200, None)), ErrorKind::Redirect(Redirect::Passthrough));
    assert_eq!(story.refused(grow(200, Some(Generation(7)))), ErrorKind::Redirect(Redirect::Passthrough));
    assert_eq!(story.size(file), 100);
    story.ask(grow(200, Some(Generation(1)))).unwrap();
    assert_eq!(story.size(file), 200);
    assert!(story.send(grow(50, None)).is_none(), "a shorter one waits for its lane, as ever");
    story.deliver();
    assert_eq!(
        story.refused(grow(60, Some(Generation(1)))),
        ErrorKind::Redirect(Redirect::Passthrough),
        "that memory was cut off"
    );
}

#[test]
fn a_file_that_is_gone_is_forgotten_here_too() {
    let (mut story, file) = story_with_file();
    number(&mut story, file, true);
    story.ask(unlink(InodeId::ROOT, "f")).unwrap();
    story.ask(close(file)).unwrap();
    story.deliver();
    assert!(story.info(file).is_err());
}

// SEMANTICS 92.2
#[test]
fn what_is_under_way_behind_the_end_goes_before_a_mapped_file_grows() {
    let (mut story, file) = story_with_file();
    let grow = |generation| {
        Op::Truncate(wire::Truncate { inode: file, size: 200, allocated: Some(Generation(generation)) })
    };
    number(&mut story, file, true);
    let offset = story.reserve(file, 10);
    // Its lane is cut at the published end, and so is the memory that was taken for more.
    assert!(story.send(grow(1)).is_none());
    let lengths: Vec<u64> = story.cuts().iter().map(|(_, cut)| cut.length).collect();
    assert_eq!(lengths, [100]);
    story.deliver();
    assert_eq!(story.size(file), 100);
    assert_eq!(story.finish(file, offset).unwrap_err().kind(), ErrorKind::Retry);
    story.ask(grow(2)).unwrap();
    assert_eq!(story.size(file), 200);
}

// SEMANTICS 92.4
#[test]
fn an_append_that_was_not_written_makes_no_mapped_file_longer() {
    let (mut story, file) = story_with_file();
    number(&mut story, file, true);
    let (first, second) = (story.reserve(file, 10), story.reserve(file, 10));
    story.fail(file, first).unwrap();
    assert_eq!(story.size(file), 100);
    // There are bytes behind it, so it has memory.
    story.finish(file, second).unwrap();
    assert_eq!(story.size(file), 120);
    // What is given back is reserved again in the same place, of a newer generation: the first one's end, told late or
    // twice, is nothing to it.
    let given_back = story.reserve(file, 10);
    let number = story.reserved[&(file, given_back)];
    let fail = || Op::FinishAppend(wire::FinishAppend { inode: file, number, failed: true });
    story.ask(fail()).unwrap();
    assert_eq!(story.reserve(file, 10), given_back);
    story.ask(fail()).unwrap();
    story.finish(file, given_back).unwrap();
    assert_eq!(story.size(file), 130);
    story.session = session(2);
    story.ask(open(file, true)).unwrap();
    story.reserve(file, 50);
    story.server(Op::EndSession { session: session(2) });
    assert_eq!(story.size(file), 130);
}

/// What was told of the file's cuts: generations and lengths.
fn cuts(story: &Story) -> Vec<(u64, u64)> {
    story.cuts().iter().map(|(_, cut)| (cut.generation.0, cut.length)).collect()
}

// SEMANTICS 92.5
#[test]
fn a_late_write_of_an_append_that_was_given_back_meets_a_newer_generation() {
    for ends in ["failed", "cancelled", "ended"] {
        let (mut story, file) = story_with_file();
        number(&mut story, file, true);
        story.session = session(2);
        story.ask(open(file, true)).unwrap();
        let offset = story.reserve(file, 10);
        let sequence = story.reserved[&(file, offset)];
        match ends {
            "failed" => drop(story.fail(file, offset).unwrap()),
            "cancelled" => drop(reply(&story.numbered(
                story.sequence + 1,
                sequence.0,
                Op::CancelChange(wire::CancelChange { sequence }),
            ))),
            _ => drop(story.server(Op::EndSession { session: session(2) })),
        }
        (story.session, story.sequence) = (session(1), story.sequence + 2);
        assert_eq!((cuts(&story), story.size(file)), (vec![(2, 100)], 100), "{ends}");
        assert_eq!((story.reserve(file, 10), story.generation(file)), (100, Generation(2)), "{ends}");
        story.finish(file, 100).unwrap();
        story.deliver();
        assert_eq!(story.size(file), 110);
    }
}

// SEMANTICS 92.5
#[test]
fn what_is_given_back_beside_other_appends_is_not_reserved_again_before_they_have_ended() {
    let (mut story, file) = story_with_file();
    number(&mut story, file, true);
    let (first, second) = (story.reserve(file, 10), story.reserve(file, 20));
    story.fail(file, second).unwrap();
    // The first one would be cut off by a newer generation.
    assert_eq!((cuts(&story), story.generation(file)), (vec![], Generation(1)));
    let third = story.reserve(file, 5);
    assert_eq!(third, second + 20);
    story.fail(file, third).unwrap();
    story.finish(file, first).unwrap();
    assert_eq!((story.size(file), cuts(&story)), (110, vec![(2, 110)]));
    assert_eq!(story.reserve(file, 1), 110);
    // Where something was written behind it, the file goes on there.
    let behind = story.reserve(file, 10);
    story.fail(file, 110).unwrap();
    story.finish(file, behind).unwrap();
    assert_eq!((story.size(file), story.generation(file)), (121, Generation(2)));
    assert_eq!(story.reserve(file, 1), 121);
}

// SEMANTICS 92.1
#[test]
fn a_passthrough_that_does_not_come_about_leaves_nothing() {
    let (mut story, file) = story_with_file();
    let last = number(&mut story, file, true);
    story.ask(Op::BeginPassthrough(wire::BeginPassthrough { inode: file, write: true, over: true })).unwrap();
    assert!(!story.info(file).unwrap().may_change_unnoticed);
    assert_eq!(over(&story), vec![last]);
    story.ask(truncate(file, 200)).unwrap();
}

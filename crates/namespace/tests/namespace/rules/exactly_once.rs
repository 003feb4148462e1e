//! A repeated mutation has one effect and its first answer.

use ramlace_base::{ErrorKind, InodeId, Sequence, Slot, limits};
use ramlace_namespace::{DeliveryAnswer, Effect, Op, Reply};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::Prepared;

use crate::rules::story::*;

#[test]
fn a_repeated_mutation_has_one_effect_and_its_first_answer() {
    let mut story = Story::new();
    let op = Op::Create(wire::Create { exclusive: true, ..create(InodeId::ROOT, "f", 1) });
    let first = story.numbered(5, 1, op.clone());
    // Holders of leases are notified of the first alone.
    let is_answer = |effect: &Effect| !matches!(effect, Effect::Changed { .. });
    assert_eq!(story.numbered(5, 1, op.clone()), [first.into_iter().find(is_answer).unwrap()]);
    assert_eq!(story.state.inode_count(), 2);
    // A failure is an answer too, and stays one when the reason has gone.
    let failed = story.numbered(6, 1, op.clone());
    assert_eq!(reply(&failed).unwrap().unwrap_err().kind(), ErrorKind::Exists);
    story.numbered(7, 1, unlink(InodeId::ROOT, "f"));
    assert_eq!(story.numbered(6, 1, op.clone()), failed);
    // An acknowledged answer is forgotten, and its mutation is never done again.
    story.numbered(8, 7, close(InodeId::ROOT));
    assert_eq!(reply(&story.numbered(6, 1, op)).unwrap().unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn a_retry_answer_is_not_kept() {
    let mut story = Story::new();
    story.send(mkdir(InodeId::ROOT, "d", Slot(5)));
    let busy = Op::Create(create(InodeId::ROOT, "d", 1));
    assert_eq!(reply(&story.numbered(9, 1, busy.clone())).unwrap().unwrap_err().kind(), ErrorKind::Retry);
    let result = Ok(DeliveryAnswer::Prepared(Prepared::Made(InodeId::new(Slot(5), 9))));
    story.server(Op::DeliveryDone { delivery: story.sent[0].0, result });
    assert_eq!(reply(&story.numbered(9, 1, busy)).unwrap().unwrap_err().kind(), ErrorKind::IsDirectory);
}

#[test]
fn a_session_that_acknowledges_nothing_is_stopped() {
    let mut story = Story::new();
    let most = limits::REPLIES_PER_SESSION_MAX as u64;
    for sequence in 1..=most {
        story.numbered(sequence, 1, close(InodeId::ROOT));
    }
    let refused = story.numbered(most + 1, 1, unlink(InodeId::ROOT, "f"));
    assert_eq!(reply(&refused).unwrap().unwrap_err().kind(), ErrorKind::TooMany);
    let again = story.numbered(most + 1, 2, unlink(InodeId::ROOT, "f"));
    assert_eq!(reply(&again).unwrap().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn what_is_cancelled_is_not_done_and_what_it_has_opened_is_told() {
    let mut story = Story::new();
    let make = |text: &str| Op::Create(create(InodeId::ROOT, text, 1));
    let mut ask = |sequence, op| reply(&story.numbered(sequence, 1, op)).unwrap();
    let cancel = |sequence| Op::CancelChange(wire::CancelChange { sequence: Sequence(sequence) });
    let told = |answer| match answer {
        Ok(Reply::ChangeCancelled(wire::ChangeCancelled { opened })) => opened,
        other => panic!("{other:?}"),
    };
    // It comes later than the news of its end.
    assert_eq!(told(ask(6, cancel(5))), None);
    assert_eq!(ask(5, make("late")).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(told(ask(7, cancel(5))), None);
    // It came before: made, found, or refused.
    let made = opened(ask(8, make("f"))).info.attributes.inode;
    assert_eq!(told(ask(9, cancel(8))), Some(made));
    let find = |text| Op::OpenEntry(open_entry(InodeId::ROOT, text));
    assert_eq!(opened(ask(10, find("f"))).info.attributes.inode, made);
    assert_eq!(told(ask(11, cancel(10))), Some(made));
    assert_eq!(ask(12, find("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(told(ask(13, cancel(12))), None);
    assert_eq!(story.state.inode_count(), 2);
}

#[test]
fn a_mutation_without_a_number_is_refused() {
    let mut story = Story::new();
    let refused = story.numbered(0, 0, Op::Create(create(InodeId::ROOT, "f", 1)));
    assert_eq!(reply(&refused).unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(story.state.inode_count(), 1);
}

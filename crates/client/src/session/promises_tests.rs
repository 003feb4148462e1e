//! Promises that are made, sent, refused and given back, by a clock of numbers.

use ramlace_base::ErrorKind;

use super::*;

const SLOT: Slot = Slot(3);

fn change(counter: u64) -> Promise {
    let inode = InodeId::new(SLOT, counter);
    let at = Timestamp { nanos: 1 };
    Promise {
        kind: Kind::Create,
        inode,
        directory: Some(InodeId::new(SLOT, 1)),
        makes: true,
        at,
        body: vec![0; 100],
        answer: Vec::new(),
        kept: None,
        number: 0,
    }
}

fn held(now: Instant) -> (AllPromises, Version) {
    let mut all = AllPromises::default();
    let version = all.begin_asking(SLOT);
    assert_eq!(all.end_asking(SLOT, version, Some(7), now), version);
    (all, version.unwrap())
}

// SEMANTICS 142.1
#[test]
fn what_is_promised_is_sent_in_its_order_and_once_it_is_old() {
    let now = Instant::now();
    let (mut all, version) = held(now);
    for counter in 1..=3 {
        all.promise(SLOT, version, change(counter), now).unwrap();
    }
    assert_eq!(all.due(now + AGE_MAX / 2, |_| true), None);
    assert_eq!(all.due(now + AGE_MAX, |_| false), None, "another server's");
    assert_eq!(all.due(now + AGE_MAX, |_| true), Some((SLOT, Due::Send)));
    assert!(all.begin_sending(SLOT));
    let (number, waiting) = all.sent_now(SLOT).unwrap();
    assert_eq!((number, waiting.len()), (7, 3));
    assert!(!all.begin_sending(SLOT), "one thread at a time keeps their order");
    all.promise(SLOT, version, change(4), now).unwrap();
    let done = all.answered(SLOT, 2);
    assert_eq!(done.iter().map(|promise| promise.inode.counter()).collect::<Vec<_>>(), [1, 2]);
    all.end_sending(SLOT, now);
    assert!(!all.is_at_rest(SLOT));
    assert_eq!(all.sent_now(SLOT).unwrap().1[0].inode.counter(), 3);
}

// SEMANTICS 142.2
#[test]
fn nothing_is_promised_beside_a_change_that_began_before_the_slot_was_asked_for() {
    let now = Instant::now();
    let mut all = AllPromises::default();
    assert!(!all.begin_direct(SLOT, false), "of a file: it makes no inode");
    assert!(all.begin_direct(SLOT, true));
    let asked = all.begin_asking(SLOT);
    assert_eq!(asked, None, "it may be done after this create, and take the next number");
    assert_eq!(all.end_asking(SLOT, asked, Some(7), now), None);
    let version = all.version(SLOT).unwrap();
    assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised));
    all.end_direct(SLOT, true);
    all.promise(SLOT, version, change(1), now).unwrap();
    let mut all = AllPromises::default();
    all.begin_direct(SLOT, true);
    all.end_direct(SLOT, true);
    assert_eq!(all.count(), 0, "it is forgotten");
}

// SEMANTICS 142.2
#[test]
fn nothing_is_promised_by_what_is_not_known_any_more() {
    let now = Instant::now();
    let (mut all, version) = held(now);
    assert!(all.begin_direct(SLOT, true));
    assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised));
    all.end_direct(SLOT, true);
    assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised), "the change may have made it");
    let version = all.begin_asking(SLOT).unwrap();
    assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised), "it makes an inode");
    assert_eq!(all.end_asking(SLOT, Some(version), Some(7), now), Some(version));
    assert!(all.promise(SLOT, version, change(1), now).is_ok());
    // A delegation that began while it was requested.
    let asked_in = all.begin_asking(SLOT);
    all.begin_direct(SLOT, true);
    all.end_direct(SLOT, true);
    assert_eq!(all.end_asking(SLOT, asked_in, Some(7), now), None);
}

// SEMANTICS 142.2
#[test]
fn an_answer_is_not_known_if_another_change_was_under_way_when_it_was_asked_for() {
    let now = Instant::now();
    let (mut all, _) = held(now);
    // The slot may do the second first and the first last, whose answer may arrive first.
    let (first, second) = (all.begin_asking(SLOT), all.begin_asking(SLOT));
    assert_eq!(all.end_asking(SLOT, first, Some(7), now), None, "the second began meanwhile");
    assert_eq!(all.end_asking(SLOT, second, Some(7), now), None, "the first was under way");
    all.begin_direct(SLOT, true);
    let third = all.begin_asking(SLOT);
    all.end_direct(SLOT, true);
    assert_eq!(all.end_asking(SLOT, third, Some(7), now), None, "that change may make an inode");
    let alone = all.begin_asking(SLOT);
    assert!(alone.is_some());
    assert_eq!(all.end_asking(SLOT, alone, Some(7), now), alone);
}

// SEMANTICS 142.3
#[test]
fn a_slot_that_is_wanted_is_given_back_once_nothing_is_pending_there() {
    let now = Instant::now();
    let (mut all, version) = held(now);
    all.promise(SLOT, version, change(1), now).unwrap();
    all.want_back(&[DelegationRecall { slot: SLOT, number: 7 }]);
    assert_eq!(all.promise(SLOT, version, change(2), now), Err(NotPromised));
    assert_eq!(all.due(now, |_| true), Some((SLOT, Due::Send)), "at once");
    assert!(!all.begin_giving_back(SLOT, 7));
    assert!(all.begin_sending(SLOT));
    assert_eq!(all.due(now, |_| true), None);
    all.answered(SLOT, 1);
    all.end_sending(SLOT, now);
    assert_eq!(all.due(now, |_| true), Some((SLOT, Due::GiveBack(7))));
    assert!(all.begin_giving_back(SLOT, 7));
    all.is_over(SLOT, 7);
    assert_eq!(all.count(), 0);
}

#[test]
fn a_slot_that_is_not_used_is_given_back_and_a_full_one_is_sent_first() {
    let now = Instant::now();
    let (mut all, version) = held(now);
    for counter in 0..limits::CHANGES_PER_MESSAGE_MAX as u64 {
        all.promise(SLOT, version, change(counter), now).unwrap();
    }
    assert_eq!(all.promise(SLOT, version, change(0), now), Err(NotPromised));
    assert!(all.begin_sending(SLOT));
    all.answered(SLOT, usize::MAX);
    all.end_sending(SLOT, now);
    assert_eq!(all.due(now + IDLE / 2, |_| true), None);
    assert_eq!(all.due(now + IDLE, |_| true), Some((SLOT, Due::GiveBack(7))));
    all.promise(SLOT, version, change(1), now + IDLE).unwrap();
    assert!(!all.begin_giving_back(SLOT, 7), "it is used again");
    let pending = all.pending(SLOT).unwrap();
    let ended = Error::new(ErrorKind::Stale, "it has ended");
    let broken = all.break_all(&ended);
    assert_eq!((broken.len(), all.count()), (1, 0));
    assert_eq!(all.loss_among(SLOT, pending), Some(&ended));
}

// SEMANTICS 142.4
#[test]
fn what_is_promised_later_is_not_waited_for_and_not_lost_for_those_who_wait() {
    let now = Instant::now();
    let (mut all, version) = held(now);
    assert_eq!(all.pending(SLOT), None);
    for counter in 1..=3 {
        all.promise(SLOT, version, change(counter), now).unwrap();
    }
    let first = all.pending(SLOT).unwrap();
    all.promise(SLOT, version, change(4), now).unwrap();
    let second = all.pending(SLOT).unwrap();
    assert!(all.begin_sending(SLOT));
    assert!(all.are_pending(SLOT, first), "it is sent, and has no answer");
    let refused = Error::new(ErrorKind::Stale, "refused");
    let lost = |all: &AllPromises| [first, second].map(|these| all.loss_among(SLOT, these).is_some());
    all.answered(SLOT, 3);
    assert!(all.are_pending(SLOT, first), "whoever caches something of it is told first");
    assert_eq!(all.pending(SLOT), Some(second));
    all.end_sending(SLOT, now);
    assert_eq!(lost(&all), [false, false]);
    assert!(!all.are_pending(SLOT, first) && all.are_pending(SLOT, second));
    assert!(all.begin_sending(SLOT));
    let last = all.answered(SLOT, 1);
    assert!(all.pending(SLOT).is_some() && all.are_pending(SLOT, second));
    assert_eq!(all.with_pending(), [SLOT]);
    all.note_loss(SLOT, last[0].number, &refused);
    all.end_sending(SLOT, now);
    assert!(!all.are_pending(SLOT, second) && all.is_at_rest(SLOT));
    assert_eq!(lost(&all), [false, true]);
    // A later one does not hide it.
    all.note_loss(SLOT, last[0].number + 1, &refused);
    assert_eq!(lost(&all), [false, true]);
    all.note_loss(SLOT, last[0].number + 3, &refused);
    assert_eq!(lost(&all), [false, true]);
}

// SEMANTICS 142.4
#[test]
fn of_many_losses_none_is_forgotten() {
    let mut all = AllPromises::default();
    let error = |number: u64| Error::new(ErrorKind::Stale, number.to_string());
    let one = |number| Pending { first: number, last: number };
    let lost =
        |all: &AllPromises, number| all.loss_among(SLOT, one(number)).map(|why| why.message().to_owned());
    let told = |number: u64| Some(number.to_string());
    // Promises of other slots, and those that were kept, have the numbers in between.
    let apart: Vec<u64> = (1..=LOSSES_MAX as u64).map(|number| number * 10).collect();
    apart.iter().for_each(|number| all.note_loss(SLOT, *number, &error(*number)));
    for number in &apart {
        assert_eq!(
            [number - 1, *number, number + 1].map(|number| lost(&all, number)),
            [None, told(*number), None]
        );
    }
    assert_eq!(all.loss_among(SLOT, Pending { first: 15, last: 35 }), Some(&error(30)), "the last of them");
    assert_eq!(all.loss_among(Slot(4), one(10)), None);
    for number in 1001..2000 {
        all.note_loss(SLOT, number, &error(number));
    }
    assert_eq!([10, 15, 20].map(|number| lost(&all, number)), [20; 3].map(told), "two are joined");
    assert_eq!([30, 1001, 1999].map(|number| lost(&all, number)), [30, 1999, 1999].map(told));
    assert_eq!([25, 31, 1000, 2000].map(|number| lost(&all, number)), [const { None }; 4]);
}

#[test]
fn what_others_wait_for_comes_first_and_what_is_not_used_rests_when_it_has_to() {
    let (now, other) = (Instant::now(), Slot(9));
    let (mut all, version) = held(now);
    let of_other = all.begin_asking(other);
    all.end_asking(other, of_other, Some(8), now).unwrap();
    all.promise(SLOT, version, change(1), now).unwrap();
    assert_eq!(all.due(now + AGE_MAX, |_| true), Some((SLOT, Due::Send)));
    all.want_back(&[DelegationRecall { slot: other, number: 8 }]);
    assert_eq!(all.due(now + AGE_MAX, |_| true), Some((other, Due::GiveBack(8))));
    all.is_over(other, 8);
    let later = now + 2 * IDLE;
    let again = all.begin_asking(other);
    all.end_asking(other, again, Some(9), later).unwrap();
    all.begin_sending(SLOT);
    assert_eq!(all.due(later, |_| true), None);
    all.rest(later);
    assert_eq!(all.due(later, |_| true), Some((other, Due::GiveBack(9))));
}

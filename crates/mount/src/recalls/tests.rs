//! Tests of what drops, recalls and checks make the mount do, at times that the tests choose.

use super::job::{CUT_MILLIS, RESTS_MAX, STUCK_MILLIS, UNBEGUN_MILLIS};
use super::*;

const FILE: InodeId = InodeId(7);
const HERE: ServerId = ServerId(1);

fn page(inode: InodeId, at: u64) -> Wanted {
    Wanted { inode, parts: vec![ByteRange { start: at * 4096, end: (at + 1) * 4096 }] }
}

fn all(drop: &Wanted) -> Vec<ByteRange> {
    drop.parts.clone()
}

fn none(_: &Wanted) -> Vec<ByteRange> {
    Vec::new()
}

/// A check while every thread that drops is asleep.
fn look<T>(drops: &mut Drops<T>, now: u64, locked: impl Fn(&Wanted) -> Vec<ByteRange>) -> Vec<Effect<T>> {
    drops.look(now, |drop| HeldPages { locked: locked(drop), ..HeldPages::default() }, |_| true)
}

fn recall(drops: &mut Drops<&'static str>, inode: InodeId, number: u64, now: u64) {
    assert_eq!(drops.add(page(inode, number), For::Server(HERE, number), now), None);
}

#[test]
fn a_recall_is_done_when_its_pages_are_dropped() {
    let mut drops = Drops::new();
    recall(&mut drops, FILE, 1, 0);
    recall(&mut drops, FILE, 1, 0);
    let (id, dropped) = drops.next(0).unwrap();
    assert_eq!(dropped, page(FILE, 1));
    recall(&mut drops, FILE, 1, 0);
    assert_eq!(drops.next(0), None, "it was told again before it was done");
    assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
    recall(&mut drops, FILE, 1, 0);
    let (id, _) = drops.next(0).expect("it is sent again, so the answer was not received");
    assert_eq!(drops.over(id, false, 0), None, "the kernel has not dropped them");
    assert!(drops.jobs.is_empty() && drops.running.is_empty() && drops.recalled.is_empty());
}

#[test]
fn a_late_recall_is_blocked_once_while_a_request_holds_pages() {
    let mut drops = Drops::new();
    assert_eq!(drops.next_look(), None);
    recall(&mut drops, FILE, 1, 100);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.next_look(), Some(100 + LATE_MILLIS));
    assert_eq!(look(&mut drops, 100 + LATE_MILLIS - 1, all), []);
    assert_eq!(look(&mut drops, 100 + LATE_MILLIS, none), [], "a load holds it, or a write-back");
    let again = drops.next_look().unwrap();
    assert_eq!(again, 100 + 2 * LATE_MILLIS);
    assert_eq!(look(&mut drops, again, all), [Effect::Blocked(HERE, 1)]);
    assert_eq!(drops.next_look(), None);
    assert_eq!(look(&mut drops, u64::MAX - 1, all), []);
    assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
}

// SEMANTICS 114.1
#[test]
fn a_late_recall_is_not_blocked_while_its_thread_waits_for_a_processor() {
    let mut drops = Drops::new();
    recall(&mut drops, FILE, 1, 0);
    let (id, _) = drops.next(0).unwrap();
    let held = |drop: &Wanted| HeldPages { locked: all(drop), ..HeldPages::default() };
    for turn in 1..100 {
        let sleeps = turn % 2 == 0;
        assert_eq!(drops.look(turn * LATE_MILLIS, held, |_| sleeps), [], "it was awake since");
    }
    assert_eq!(drops.look(100 * LATE_MILLIS, held, |_| true), []);
    assert_eq!(drops.look(100 * LATE_MILLIS + 1, held, |_| true), [], "it sleeps for a moment only");
    assert_eq!(drops.look(101 * LATE_MILLIS, held, |of| of == id), [Effect::Blocked(HERE, 1)]);
}

// SEMANTICS 114.6
#[test]
fn a_recall_waits_a_while_for_a_truncation_of_its_file() {
    let mut drops = Drops::new();
    let cut = |_: &Wanted| HeldPages { is_cut: true, ..HeldPages::default() };
    recall(&mut drops, FILE, 1, 0);
    drops.next(0).unwrap();
    for turn in 1..CUT_MILLIS / LATE_MILLIS {
        assert_eq!(drops.look(turn * LATE_MILLIS, cut, |_| true), []);
    }
    assert_eq!(drops.look(CUT_MILLIS, cut, |_| true), [Effect::Blocked(HERE, 1)]);
}

// SEMANTICS 136.2
#[test]
fn drops_are_pending_until_the_last_one_of_their_file_is_over() {
    let mut drops: Drops<&str> = Drops::new();
    for number in [1, 2] {
        drops.add_relaxed(page(FILE, number), (HERE, number), 0);
    }
    assert!(drops.is_pending(FILE) && !drops.is_pending(InodeId(8)));
    let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
    look(&mut drops, 1, all);
    drops.over(ids[0], true, 0);
    assert!(drops.is_pending(FILE), "the other one is under way");
    drops.over(ids[1], true, 0);
    assert!(!drops.is_pending(FILE) && drops.pending.is_empty());
}

// SEMANTICS 117.5
#[test]
fn pages_beside_those_that_a_request_holds_are_dropped_before_it_is_told() {
    let mut drops: Drops<&str> = Drops::new();
    let parts = vec![ByteRange { start: 0, end: 10 * 4096 }];
    drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
    let (whole, _) = drops.next(0).unwrap();
    let held = |at: u64| move |_: &Wanted| page(FILE, at).parts;
    assert_eq!(look(&mut drops, LATE_MILLIS, held(4)), []);
    let (rest, Wanted { parts, .. }) = drops.next(LATE_MILLIS).unwrap();
    let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
    assert_eq!(parts, [range(0, 4), range(5, 10)]);
    assert_eq!(look(&mut drops, 2 * LATE_MILLIS, held(4)), [], "they are not dropped yet");
    assert_eq!(drops.over(rest, true, 0), None);
    assert!(
        drops.is_too_late(Some(3 * LATE_MILLIS), 2 * LATE_MILLIS + 1),
        "there is something to say at once"
    );
    // Another page is held by now: the earlier one may be read again.
    assert_eq!(look(&mut drops, 2 * LATE_MILLIS + 1, held(7)), []);
    let (rest, Wanted { parts, .. }) = drops.next(3 * LATE_MILLIS).unwrap();
    assert_eq!(parts, [range(4, 5)]);
    assert_eq!(drops.over(rest, false, 0), None, "the kernel would not");
    assert_eq!(look(&mut drops, 3 * LATE_MILLIS, held(4)), [Effect::Blocked(HERE, 1)]);
    assert_eq!(drops.over(whole, true, 0), Some(Effect::Done(HERE, 1)));
    assert!(drops.jobs.is_empty() && drops.running.is_empty());
}

// SEMANTICS 117.3
#[test]
fn requests_that_come_again_and_again_hold_a_recall_up_a_few_times() {
    let mut drops: Drops<&str> = Drops::new();
    let parts = vec![ByteRange { start: 0, end: 100 * 4096 }];
    drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
    drops.next(0).unwrap();
    for turn in 1..=RESTS_MAX as u64 {
        assert_eq!(look(&mut drops, turn * LATE_MILLIS, |_| page(FILE, turn).parts), []);
        // None of them ends.
        drops.next(turn * LATE_MILLIS).expect("it may be held up by the request that has come since");
    }
    let last = RESTS_MAX as u64 * LATE_MILLIS;
    let now = last + STUCK_MILLIS;
    assert_eq!(look(&mut drops, now - 1, |_| page(FILE, 90).parts), [], "it may go on");
    let now = now + LATE_MILLIS;
    assert_eq!(look(&mut drops, now, |_| page(FILE, RESTS_MAX as u64).parts), [], "nothing has come since");
    assert_eq!(look(&mut drops, now + LATE_MILLIS, |_| page(FILE, 90).parts), [Effect::Blocked(HERE, 1)]);
}

// SEMANTICS 117.5
#[test]
fn a_recall_is_not_blocked_while_pages_are_dropped_that_no_request_holds() {
    let mut drops: Drops<&str> = Drops::new();
    let parts = vec![ByteRange { start: 0, end: 2049 * 4096 }];
    drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
    drops.next(0).unwrap();
    let held = |_: &Wanted| page(FILE, 0).parts;
    assert_eq!(look(&mut drops, LATE_MILLIS, held), []);
    let (rest, _) = drops.next(LATE_MILLIS).unwrap();
    // They are written back one after the other.
    let turns = 2..=2 * STUCK_MILLIS / LATE_MILLIS;
    turns.for_each(|turn| assert_eq!(look(&mut drops, turn * LATE_MILLIS, held), []));
    let now = 3 * STUCK_MILLIS;
    assert_eq!(drops.over(rest, true, now), None);
    assert_eq!(look(&mut drops, now, held), [Effect::Blocked(HERE, 1)]);
}

/// All threads of a file are stuck; the recalls have two pages each.
fn stuck() -> Drops<&'static str> {
    let mut drops = Drops::new();
    for number in 0..(LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX) as u64 {
        drops.add(two_pages(number), For::Nobody, 0);
    }
    for now in 0..=LATE_DROPS_PER_FILE_MAX as u64 {
        while drops.next(now * LATE_MILLIS).is_some() {}
        look(&mut drops, now * LATE_MILLIS, all);
    }
    assert!(drops.waiting.is_empty());
    drops
}

fn two_pages(at: u64) -> Wanted {
    Wanted { inode: FILE, parts: vec![ByteRange { start: 2 * at * 4096, end: (2 * at + 2) * 4096 }] }
}

fn first_page(drop: &Wanted) -> Vec<ByteRange> {
    vec![ByteRange { end: drop.parts[0].start + 4096, ..drop.parts[0] }]
}

// SEMANTICS 117.5
#[test]
fn what_no_request_holds_is_dropped_though_all_threads_of_its_file_are_stuck() {
    let mut drops = stuck();
    let now = 10_000;
    for number in 100..200 {
        drops.add(two_pages(number), For::Server(HERE, number), now);
    }
    assert_eq!(drops.next(now), None);
    // Requests hold a page of one half, and nothing of the other.
    let held = |drop: &Wanted| {
        let is_held = drop.parts[0].start < 300 * 4096;
        if is_held { first_page(drop) } else { Vec::new() }
    };
    let (mut done, mut blocked) = (0, 0);
    for now in (0..18).map(|turn| now + turn * LATE_MILLIS) {
        while let Some((id, _)) = drops.next(now) {
            done += usize::from(matches!(drops.over(id, true, now), Some(Effect::Done(..))));
        }
        blocked += look(&mut drops, now, held).len();
    }
    assert_eq!((done, blocked), (50, 50));
    // Those are dropped as well when nothing holds them any more.
    let now = now + 20 * LATE_MILLIS;
    assert_eq!(look(&mut drops, now, none), []);
    while let Some((id, _)) = drops.next(now) {
        done += usize::from(matches!(drops.over(id, true, now), Some(Effect::Done(..))));
    }
    assert_eq!((done, drops.free_waiting), (100, 0));
}

// SEMANTICS 117.3
#[test]
fn recalls_of_which_no_part_can_begin_to_be_dropped_are_blocked_in_time() {
    let mut drops = stuck();
    let (now, count) = (10_000, 100);
    (100..100 + count).for_each(|number| _ = drops.add(two_pages(number), For::Server(HERE, number), now));
    let mut told = Vec::new();
    let end = now + STUCK_MILLIS + 2 * LATE_MILLIS;
    for now in (now..=end).step_by(LATE_MILLIS as usize) {
        // None of them ends.
        while drops.next(now).is_some() {}
        told.extend(look(&mut drops, now, first_page));
        assert!(told.is_empty() || now >= 10_000 + STUCK_MILLIS);
    }
    assert_eq!(told.len(), count as usize - FREE_DROPS_PER_FILE_MAX, "those that cannot begin, and once");
    assert_eq!(drops.take_added() as u64, count);
    assert_eq!(drops.take_added(), 0);
}

// SEMANTICS 136.1
#[test]
fn nobody_waits_for_what_a_relaxed_mount_is_to_drop() {
    let mut drops: Drops<&str> = Drops::new();
    let recall = |drops: &mut Drops<&str>, number, now| {
        assert_eq!(drops.add_relaxed(page(FILE, number), (HERE, number), now), None);
    };
    recall(&mut drops, 1, 100);
    assert_eq!(drops.next_look(), Some(100));
    assert!(drops.is_too_late(None, 100));
    assert_eq!(look(&mut drops, 100, none), [Effect::Relaxed(HERE, 1)], "it is told at once, and once");
    let (id, _) = drops.next(100).unwrap();
    assert_eq!(look(&mut drops, 100 + LATE_MILLIS, all), []);
    assert_eq!(drops.next_look(), None);
    assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)), "and when it is done");
    recall(&mut drops, 2, 200);
    assert!(
        drops.is_too_late(Some(200 + LATE_MILLIS), 200),
        "who waits for the time of another one is woken"
    );
    look(&mut drops, 200, none);
    assert!(!drops.is_too_late(Some(200 + LATE_MILLIS), 201));
}

// SEMANTICS 140.1
#[test]
fn a_relaxed_file_s_recalls_are_told_at_once_and_those_of_others_when_they_are_late() {
    let mut drops: Drops<&str> = Drops::new();
    let other = InodeId(8);
    recall(&mut drops, other, 1, 100);
    assert_eq!(drops.add_relaxed(page(FILE, 2), (HERE, 2), 100), None);
    // The repetition changes nothing about either.
    assert_eq!(drops.add_relaxed(page(FILE, 2), (HERE, 2), 100), None);
    recall(&mut drops, other, 1, 100);
    assert_eq!(drops.jobs.len(), 2);
    assert_eq!(look(&mut drops, 100, all), [Effect::Relaxed(HERE, 2)]);
    assert_eq!(drops.next_look(), Some(100 + LATE_MILLIS));
    let (id, dropped) = drops.next(100).unwrap();
    assert_eq!(dropped, page(other, 1));
    assert_eq!(look(&mut drops, 100 + LATE_MILLIS, all), []);
    assert_eq!(look(&mut drops, 100 + 2 * LATE_MILLIS, all), [Effect::Blocked(HERE, 1)]);
    assert_eq!(drops.over(id, true, 200), Some(Effect::Done(HERE, 1)));
}

#[test]
fn whoever_waits_goes_on_when_they_are_dropped_or_after_a_while() {
    let mut drops = Drops::new();
    drops.add(page(FILE, 1), For::Waiting("first", HOLDER_WAITS_MILLIS_MAX), 0);
    drops.add(page(FILE, 2), For::Waiting("second", HOLDER_WAITS_MILLIS_MAX), 5);
    let (first, _) = drops.next(0).unwrap();
    let (second, _) = drops.next(0).unwrap();
    assert_eq!(drops.over(first, true, 0), Some(Effect::Go("first")));
    assert_eq!(look(&mut drops, 5 + HOLDER_WAITS_MILLIS_MAX - 1, all), []);
    assert_eq!(look(&mut drops, 5 + HOLDER_WAITS_MILLIS_MAX, none), [Effect::Go("second")]);
    assert_eq!((look(&mut drops, 9_999, all), drops.next_look()), (vec![], None));
    assert_eq!(drops.over(second, true, 0), None);
}

#[test]
fn a_stuck_file_leaves_threads_to_others() {
    let mut drops = Drops::new();
    for number in 0..100 {
        recall(&mut drops, FILE, number, 0);
    }
    let stuck: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
    assert_eq!(stuck.len(), DROPS_PER_FILE_MAX);
    recall(&mut drops, InodeId(8), 100, 0);
    assert_eq!(drops.next(0).unwrap().1.inode, InodeId(8));
    assert_eq!(drops.next(0), None);
    drops.over(stuck[0], true, 0);
    assert_eq!(drops.next(0).unwrap().1, page(FILE, DROPS_PER_FILE_MAX as u64));
}

#[test]
fn what_is_stuck_leaves_others_of_its_file_a_thread() {
    let mut drops = Drops::new();
    for number in 0..100 {
        recall(&mut drops, FILE, number, 0);
    }
    let mut ids = Vec::new();
    for turn in 1..20 {
        ids.extend(std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id));
        look(&mut drops, turn * LATE_MILLIS, none);
    }
    assert_eq!(ids.len(), LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX + FREE_DROPS_PER_FILE_MAX);
    ids.drain(..).for_each(|id| _ = drops.over(id, true, 0));
    assert!(drops.running.is_empty());
    let more = std::iter::from_fn(|| drops.next(0)).count();
    assert_eq!(more, DROPS_PER_FILE_MAX + FREE_DROPS_PER_FILE_MAX);
}

// SEMANTICS 128.7
#[test]
fn what_is_blocked_before_it_begins_keeps_no_thread_from_others() {
    let mut drops = Drops::new();
    for number in 0..100 {
        recall(&mut drops, FILE, number, 0);
    }
    let begin = |drops: &mut Drops<&str>, now| std::iter::from_fn(|| drops.next(now)).count();
    let mut begun = begin(&mut drops, 0);
    let mut told = 0;
    for turn in 1..=UNBEGUN_MILLIS / LATE_MILLIS + 1 {
        told += look(&mut drops, turn * LATE_MILLIS, all).len();
        begun += begin(&mut drops, turn * LATE_MILLIS);
    }
    assert_eq!(told, 100, "each of them is told once, begun or not");
    assert_eq!(begun, LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX);
}

// SEMANTICS 128.7
#[test]
fn what_is_dropped_for_nobody_keeps_no_thread_from_others() {
    let mut drops: Drops<&str> = Drops::new();
    for number in 0..DROPS_PER_FILE_MAX as u64 {
        drops.add(page(FILE, number), For::Nobody, 0);
    }
    assert_eq!(drops.next_look(), None, "there is nothing to say of them");
    assert_eq!(std::iter::from_fn(|| drops.next(5)).count(), DROPS_PER_FILE_MAX);
    recall(&mut drops, FILE, 100, 5);
    assert_eq!(drops.next(5), None);
    assert_eq!((drops.next_look(), look(&mut drops, 5 + LATE_MILLIS, none)), (Some(5 + LATE_MILLIS), vec![]));
    assert_eq!(drops.next(6 + LATE_MILLIS).unwrap().1, page(FILE, 100));
}

#[test]
fn threads_begin_when_all_are_at_work_and_few_stay() {
    let mut drops = Drops::new();
    assert!(!drops.begin_thread(), "there is nothing to do");
    for number in 0..200 {
        recall(&mut drops, InodeId(100 + number), number, 0);
    }
    let begun: Vec<u64> =
        std::iter::from_fn(|| drops.begin_thread().then(|| drops.next(0).unwrap().0)).collect();
    assert_eq!((begun.len(), drops.next(0)), (THREADS_MAX, None));
    begun.into_iter().for_each(|id| _ = drops.over(id, true, 0));
    let stay = (0..THREADS_MAX).filter(|_| drops.begin_idling()).count();
    assert_eq!(stay, IDLE_THREADS_MAX);
    (stay..THREADS_MAX).for_each(|_| drops.end_thread());
    assert!(drops.begin_thread(), "more wait than are idle");
    while drops.next(0).is_some() {}
    assert!(!drops.begin_thread());
}

#[test]
fn drops_for_nobody_are_not_repeated() {
    let mut drops: Drops<&str> = Drops::new();
    for _ in 0..3 {
        drops.add(page(FILE, 1), For::Nobody, 0);
    }
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.next(0), None);
    drops.add(page(FILE, 1), For::Nobody, 0);
    let (second, _) = drops.next(0).expect("the first one may be past these pages");
    assert_eq!((drops.over(id, true, 0), drops.over(second, true, 0), drops.next_look()), (None, None, None));
}

#[test]
fn a_new_life_hears_nothing_of_the_last_ones_recalls() {
    let mut drops = Drops::new();
    recall(&mut drops, FILE, 1, 0);
    recall(&mut drops, FILE, 2, 0);
    drops.add(page(FILE, 3), For::Server(ServerId(9), 1), 0);
    let (first, _) = drops.next(0).unwrap();
    assert_eq!(drops.add_life(HERE, 5, &[]), Some(Effect::DroppedAll(HERE, 5)));
    assert_eq!(drops.over(first, true, 0), None);
    recall(&mut drops, FILE, 1, 0);
    let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
    let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true, 0)).collect();
    assert_eq!(told, [Effect::Done(ServerId(9), 1), Effect::Done(HERE, 1)]);
}

// SEMANTICS 118.5
#[test]
fn all_files_are_dropped_however_many_after_what_servers_wait_for_and_each_once() {
    let mut drops: Drops<&str> = Drops::new();
    let files: Vec<InodeId> = (0..=DROPS_MAX as u64).map(InodeId).collect();
    let all = || files.iter().map(|inode| Wanted { inode: *inode, parts: vec![WHOLE] }).collect();
    drops.add_all(all());
    recall(&mut drops, FILE, 1, 0);
    let (first, dropped) = drops.next(0).unwrap();
    assert_eq!(drops.over(first, true, 0), Some(Effect::Done(HERE, 1)), "{dropped:?}");
    let (runs, dropped) = drops.next(0).unwrap();
    assert_eq!(dropped, Wanted { inode: files[0], parts: vec![WHOLE] });
    // Pages that were read since it began may be behind it.
    drops.add_all(all());
    assert_eq!(drops.over(runs, true, 0), None);
    let mut left: Vec<InodeId> = Vec::new();
    while let Some((id, dropped)) = drops.next(0) {
        assert_eq!((drops.over(id, true, 0), dropped.parts), (None, vec![WHOLE]));
        left.push(dropped.inode);
    }
    left.sort();
    assert_eq!(left, files);
    assert!(drops.jobs.is_empty());
}

/// A check while reads that are not sent yet have these pages locked.
fn look_unsent(drops: &mut Drops<&'static str>, now: u64, pages: &[ByteRange]) -> Vec<Effect<&'static str>> {
    drops.look(now, |_| HeldPages { unsent: pages.to_vec(), ..HeldPages::default() }, |_| true)
}

// SEMANTICS 128.14
#[test]
fn a_page_that_a_read_has_locked_which_is_not_sent_yet_needs_no_drop() {
    let mut drops = Drops::new();
    let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
    drops.add(Wanted { inode: FILE, parts: vec![range(0, 4)] }, For::Server(HERE, 1), 0);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.skip(id, &[range(1, 2)]), [range(0, 1), range(2, 4)]);
    assert_eq!(drops.skip(id, &[range(0, 1), range(2, 9)]), []);
    assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
    // What a write has brought to the servers is in what is read later.
    drops.add(page(FILE, 1), For::Waiting("write", WAITING_MILLIS_MAX), 0);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.skip(id, &[range(1, 2)]), []);
    assert_eq!(drops.over(id, true, 0), Some(Effect::Go("write")));
    // A server's new life waits until everything is dropped.
    drops.add_life(HERE, 5, &[FILE]);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.skip(id, &[range(1, 2)]), [WHOLE]);
    assert_eq!(drops.over(id, true, 0), Some(Effect::DroppedAll(HERE, 5)));
    assert!(drops.jobs.is_empty() && drops.recalled.is_empty());
}

// SEMANTICS 128.14
#[test]
fn a_recall_is_done_though_its_drop_waits_for_a_read_that_is_not_sent_yet() {
    let mut drops = Drops::new();
    let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
    drops.add(Wanted { inode: FILE, parts: vec![range(0, 4)] }, For::Server(HERE, 1), 0);
    let (whole, _) = drops.next(0).unwrap();
    // The thread waits for the second page; the others are dropped by another one.
    assert_eq!(look_unsent(&mut drops, LATE_MILLIS, &[range(1, 2)]), []);
    let (rest, Wanted { parts, .. }) = drops.next(LATE_MILLIS).unwrap();
    assert_eq!(parts, [range(0, 1), range(2, 4)]);
    // Another read waits for its turn when that thread begins. Both are sent by now: they have come after the recall.
    assert_eq!(drops.skip(rest, &[range(3, 4)]), [range(0, 1), range(2, 3)]);
    assert_eq!(look_unsent(&mut drops, 2 * LATE_MILLIS, &[]), []);
    assert_eq!(drops.over(rest, true, 2 * LATE_MILLIS), None);
    assert_eq!(look_unsent(&mut drops, 3 * LATE_MILLIS, &[]), [Effect::Done(HERE, 1)]);
    assert_eq!(look_unsent(&mut drops, 9 * LATE_MILLIS, &[]), []);
    assert!(drops.recalled.is_empty(), "told again it is another one");
    assert_eq!(drops.over(whole, true, 9 * LATE_MILLIS), None);
    assert!(drops.jobs.is_empty() && drops.running.is_empty());
}

// SEMANTICS 128.14
#[test]
fn what_lies_behind_a_page_that_is_locked_under_a_second_drop_is_dropped_by_a_third() {
    let mut drops = Drops::new();
    let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
    drops.add(Wanted { inode: FILE, parts: vec![range(0, 9)] }, For::Server(HERE, 1), 0);
    drops.next(0).unwrap();
    assert_eq!(look_unsent(&mut drops, LATE_MILLIS, &[range(1, 2)]), []);
    assert!(drops.next(LATE_MILLIS).is_some_and(|(_, rest)| rest.parts == [range(0, 1), range(2, 9)]));
    // A read that is not sent yet has locked a page of that one behind its begin.
    assert_eq!(look_unsent(&mut drops, 2 * LATE_MILLIS, &[range(1, 2), range(5, 6)]), []);
    let (third, Wanted { parts, .. }) = drops.next(2 * LATE_MILLIS).unwrap();
    assert_eq!(parts, [range(0, 1), range(2, 5), range(6, 9)]);
    assert_eq!(drops.over(third, true, 3 * LATE_MILLIS), None);
    assert_eq!(look_unsent(&mut drops, 3 * LATE_MILLIS, &[]), [Effect::Done(HERE, 1)]);
}

// SEMANTICS 114.1
#[test]
fn a_drop_that_nothing_holds_is_not_blocked_because_a_page_of_it_was_once() {
    let mut drops = Drops::new();
    let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
    drops.add(Wanted { inode: FILE, parts: vec![range(0, 9)] }, For::Server(HERE, 1), 0);
    let (whole, _) = drops.next(0).unwrap();
    assert_eq!(look_unsent(&mut drops, LATE_MILLIS, &[range(1, 2)]), []);
    // The rest gets no thread, and the first one writes back what programs have stored.
    for turn in 2..=2 * STUCK_MILLIS / LATE_MILLIS {
        assert_eq!(look_unsent(&mut drops, turn * LATE_MILLIS, &[]), []);
    }
    assert_eq!(drops.over(whole, true, 9 * STUCK_MILLIS), Some(Effect::Done(HERE, 1)));
}

// SEMANTICS 128.14
#[test]
fn what_is_done_before_it_begins_is_not_dropped_any_more() {
    let mut drops = Drops::new();
    for number in 0..100 {
        recall(&mut drops, FILE, number, 0);
    }
    let begun: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
    let all = [ByteRange { start: 0, end: 100 * 4096 }];
    let told = look_unsent(&mut drops, LATE_MILLIS, &all);
    let done: Vec<_> = (0..100).map(|number| Effect::Done(HERE, number)).collect();
    assert_eq!((told, drops.jobs.len()), (done, begun.len()));
    assert_eq!(drops.next(LATE_MILLIS), None);
    begun.into_iter().for_each(|id| assert_eq!(drops.over(id, true, LATE_MILLIS), None));
    assert!(drops.jobs.is_empty() && drops.waiting.is_empty() && drops.pending.is_empty());
    assert_eq!((drops.usual, drops.free_waiting), (0, 0));
}

// SEMANTICS 119.1
#[test]
fn a_new_life_hears_when_all_files_of_before_are_dropped_and_no_life_before_it_does() {
    let mut drops: Drops<&str> = Drops::new();
    let files = [FILE, InodeId(8)];
    assert_eq!(drops.add_life(HERE, 5, &files), None);
    let (first, dropped) = drops.next(0).unwrap();
    assert_eq!(dropped, Wanted { inode: FILE, parts: vec![WHOLE] });
    assert_eq!(drops.over(first, true, 0), None, "there is another one");
    assert_eq!(drops.add_life(HERE, 6, &files), None);
    let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
    let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true, 0)).collect();
    assert_eq!(told, [Effect::DroppedAll(HERE, 6)]);
    // Pages that the kernel has not dropped are still there.
    assert_eq!(drops.add_life(HERE, 7, &files[..1]), None);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.over(id, false, 0), None);
    assert_eq!(drops.add_life(HERE, 8, &files[..1]), None);
    let (id, _) = drops.next(0).unwrap();
    assert_eq!(drops.over(id, true, 0), Some(Effect::DroppedAll(HERE, 8)));
    assert!(drops.jobs.is_empty() && drops.lives.is_empty());
}

// SEMANTICS 119.1
#[test]
fn what_a_new_life_recalls_is_done_before_all_files_of_before_are_dropped_however_many() {
    let mut drops: Drops<&str> = Drops::new();
    let files: Vec<InodeId> = (0..=DROPS_MAX as u64).map(InodeId).collect();
    assert_eq!(drops.add_life(HERE, 5, &files), None);
    recall(&mut drops, FILE, 1, 0);
    let (id, dropped) = drops.next(0).unwrap();
    assert_eq!(dropped, page(FILE, 1));
    assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
    // The files of an earlier incarnation are not dropped twice.
    assert_eq!(drops.add_life(HERE, 6, &files), None);
    let (mut count, mut told) = (0, Vec::new());
    while let Some((id, _)) = drops.next(0) {
        count += 1;
        told.extend(drops.over(id, true, 0));
    }
    assert_eq!((count, told), (files.len(), vec![Effect::DroppedAll(HERE, 6)]));
    assert!(drops.jobs.is_empty() && drops.pending.is_empty());
}

#[test]
fn too_many_drops_are_refused_and_hold_nobody_up() {
    let mut drops = Drops::new();
    for number in 0..DROPS_MAX as u64 {
        drops.add(page(FILE, number), For::Server(HERE, number), 0);
    }
    assert_eq!(
        drops.add(page(FILE, 1), For::Waiting("late", WAITING_MILLIS_MAX), 0),
        Some(Effect::Go("late"))
    );
    assert_eq!(drops.add(page(FILE, 1), For::Server(HERE, u64::MAX), 0), None);
    assert_eq!(drops.jobs.len(), DROPS_MAX);
}

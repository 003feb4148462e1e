//! What a server knows after a restart of pages that kernels have from before.

use ramlace_base::Slot;
use ramlace_wire::leases::EndRecalls;

use super::*;

/// A restarted server; these sessions had leases before.
fn next_life(holders: &[usize]) -> DataLeases {
    DataLeases::after(holders.iter().map(|holder| (session(*holder), false)))
}

/// Others have changed pages of the first session before the restart.
fn outdated(pages: ByteRange) -> News {
    News::Outdated { place: FILE, session: session(0), pages }
}

// SEMANTICS 119.2
#[test]
fn what_was_stored_before_a_new_life_and_what_others_write_in_it_all_survive() {
    let mut place = Place_::new();
    let mut pages = [place.read_page(0, 0), place.read_page(2, 0)];
    place.leases = next_life(&[0, 2]);
    (pages[0][9], pages[1][12]) = (9, 12);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 2, "both may have the page");
    place.write_back(0, 0, &pages[0]).unwrap();
    assert_eq!(place.change(session(1), 20, &[8]), waits, "they are asked once");
    place.write_back(2, 0, &pages[1]).unwrap();
    for (number, holder) in waits.iter().zip([0, 2]) {
        place.leases.acknowledge(session(holder), &EndRecalls::of_done(&[*number]));
    }
    assert_eq!([5, 9, 12, 20].map(|at| place.bytes[at]), [7, 9, 12, 8]);
    assert!(place.leases.has_returned(session(0)) && !place.leases.has_returned(session(0)));
    let other = (InodeId(71), None);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let waits = place.leases.before_change(other, session(1), whole(0), Change::Erase, read, 0).unwrap();
    assert_eq!(waits.len(), 1, "the first one has nothing any more");
}

// SEMANTICS 119.2
#[test]
fn a_session_that_does_not_drop_pages_of_before_in_time_loses_what_it_stored_where_others_wrote() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    place.leases = next_life(&[0]);
    page[9] = 9;
    place.change(session(1), 5, &[7]);
    let end = place.leases.next_end().unwrap();
    assert_eq!(end, limits::DATA_RECALL_MILLIS);
    assert!(place.leases.pass(end));
    assert_eq!(place.write_back(0, 0, &page).unwrap_err().kind(), ErrorKind::Stale);
    // Elsewhere nothing has changed.
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    place.leases.stored((InodeId(71), None), session(0), 0, &page, read, end).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 0]);
}

// SEMANTICS 119.2
#[test]
fn a_session_that_was_asked_for_too_many_places_of_before_has_nothing_that_counts() {
    let mut leases = next_life(&[0]);
    let place = |inode: usize| (InodeId(inode as u64), None);
    for inode in 0..=limits::DATA_RECALLS_PER_SESSION_MAX {
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        leases.before_change(place(inode), session(1), whole(0), Change::Write, read, 0).unwrap();
    }
    leases.check_base(place(0), session(0), whole(1)).unwrap();
    let last = place(limits::DATA_RECALLS_PER_SESSION_MAX);
    for _ in 0..2 {
        assert_eq!(leases.check_base(last, session(0), whole(1)).unwrap_err().kind(), ErrorKind::Stale);
        // Pages that it reads after the restart count like any others.
        leases.keep(last, session(0), whole(2), 0);
        leases.check_base(last, session(0), whole(2)).unwrap();
    }
    // So it does after the next restart: changes by others at places where this session was not asked could
    // not be logged.
    let mut log = Outdated::default();
    leases.take_news().iter().for_each(|news| log.note(news));
    let mut next = next_life(&[0]);
    log.news().for_each(|news| next.note_before(&news));
    assert_eq!(next.check_base(last, session(0), whole(1)).unwrap_err().kind(), ErrorKind::Stale);
    assert!(next.has_returned(session(0)));
    next.check_base(last, session(0), whole(1)).unwrap();
    next.take_news().iter().for_each(|news| log.note(news));
    assert_eq!(log, Outdated::default());
}

#[test]
fn what_the_log_could_not_be_told_yet_is_told_when_there_is_more_of_it() {
    let mut place = Place_::new();
    place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    place.leases.take_news();
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    let told = place.leases.take_news();
    let dropped = News::Dropped { place: FILE, session: session(0), pages: whole(0) };
    assert_eq!(told, [dropped]);
    assert!(place.leases.may_wait(&dropped));
    assert!(!place.leases.may_wait(&outdated(whole(0))), "bytes are not to change before");
    place.read_page(0, 1);
    assert_eq!(place.leases.take_news(), told);
}

/// A change of a place by a session that was not there before: the recalls it waits for.
fn change_at(leases: &mut DataLeases, place: Place, now: u64) -> Vec<u64> {
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.before_change(place, session(1), whole(0), Change::Write, read, now).unwrap()
}

// SEMANTICS 118.4
#[test]
fn a_session_that_says_nothing_is_waited_for_once_for_all_that_it_had_before() {
    let mut leases = next_life(&[0, 2]);
    let place = |inode: u64| (InodeId(inode), None);
    assert_eq!(change_at(&mut leases, place(70), 0).len(), 2);
    let second = change_at(&mut leases, place(71), 3_000);
    // The other one is there, and has one file that it cannot drop.
    leases.acknowledge(session(2), &EndRecalls::of_done(&[second[1]]));
    assert!(leases.is_waited(second[0]));
    assert!(leases.pass(limits::DATA_RECALL_MILLIS));
    assert!(!leases.is_waited(second[0]), "the wait for the first was one for all");
    let third = change_at(&mut leases, place(72), limits::DATA_RECALL_MILLIS);
    let holders: Vec<SessionId> = third.iter().map(|number| leases.recalls[number].holder).collect();
    assert_eq!(holders, [session(2)], "it has said something");
    for inode in [70, 71, 72] {
        let lost = leases.check_base(place(inode), session(0), whole(0));
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Stale, "others wrote there");
    }
    leases.check_base(place(73), session(0), whole(0)).unwrap();
    assert!(leases.take_news().iter().any(|news| matches!(news,
        News::Outdated { place: at, session: of, .. } if *at == place(72) && *of == session(0))));
    // It comes back, and drops all that is recalled.
    let told: Vec<u64> = leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    leases.acknowledge(session(0), &EndRecalls::of_done(&told));
    assert!(leases.has_returned(session(0)));
    leases.keep(place(72), session(0), whole(0), 0);
    assert_eq!(change_at(&mut leases, place(72), 6_000).len(), 2, "it is waited for as everybody");
}

// SEMANTICS 118.4
#[test]
fn a_session_that_is_late_again_and_again_for_what_it_had_before_is_waited_for_no_more() {
    let mut leases = next_life(&[0]);
    let mut now = 0;
    let mut waited = 0;
    for inode in 0..20 {
        // One of two it acknowledges.
        let done = change_at(&mut leases, (InodeId(100 + inode), None), now);
        let late = change_at(&mut leases, (InodeId(200 + inode), None), now);
        waited += late.len();
        leases.acknowledge(session(0), &EndRecalls::of_done(&done));
        now += limits::DATA_RECALL_MILLIS;
        leases.pass(now);
    }
    assert_eq!(waited, limits::DATA_RECALLS_OF_BEFORE_LATE_MAX);
}

// SEMANTICS 118.4
#[test]
fn a_session_that_is_there_again_after_it_was_late_is_waited_for_and_keeps_what_it_got_in_this_life() {
    let mut leases = next_life(&[0]);
    let place = |inode: u64| (InodeId(inode), None);
    let first = change_at(&mut leases, place(72), 0);
    leases.acknowledge(session(0), &EndRecalls::of_done(&first));
    // A page of another file is stuck, and the session is asked for nothing else meanwhile but what it has
    // got since the restart.
    let stuck = change_at(&mut leases, place(70), 0);
    leases.keep(place(71), session(0), whole(0), 0);
    leases.keep(place(72), session(0), whole(0), 0);
    let of_this_life = change_at(&mut leases, place(72), limits::DATA_RECALL_MILLIS - 1);
    assert_eq!(of_this_life.len(), 1);
    leases.pass(limits::DATA_RECALL_MILLIS);
    assert!(!leases.is_waited(stuck[0]));
    assert!(leases.is_waited(of_this_life[0]), "its time has just begun");
    // What it has read since the restart is recalled as from any session, also by a change that meets it
    // while it does not answer.
    let again = change_at(&mut leases, place(71), limits::DATA_RECALL_MILLIS);
    assert!(again.iter().all(|number| leases.is_waited(*number)) && !again.is_empty());
    leases.check_base(place(71), session(0), whole(0)).unwrap();
    leases.acknowledge(session(0), &EndRecalls::of_done(&again));
    assert_eq!(
        change_at(&mut leases, place(73), limits::DATA_RECALL_MILLIS).len(),
        1,
        "it has said something"
    );
}

// SEMANTICS 119.1
#[test]
fn of_a_file_that_was_made_in_this_life_nobody_has_pages_of_before() {
    let mut leases = next_life(&[0]).made_before([(Slot(0), 100)]);
    let place = |slot, counter| (InodeId::new(Slot(slot), counter), Some(0));
    assert!(change_at(&mut leases, place(0, 100), 0).is_empty());
    assert!(!leases.others_hold(place(0, 100), session(1), whole(0)));
    assert_eq!(change_at(&mut leases, place(0, 99), 0).len(), 1);
    assert_eq!(change_at(&mut leases, place(1, 100), 0).len(), 1, "of other slots that is not known");
}

// SEMANTICS 119.1
#[test]
fn a_session_that_drops_what_it_is_told_to_is_asked_at_any_number_of_places() {
    let mut leases = next_life(&[0]);
    for inode in 0..=2 * limits::DATA_RECALLS_PER_SESSION_MAX as u64 {
        let asked = change_at(&mut leases, (InodeId(inode), None), 0);
        assert_eq!(asked.len(), 1, "at place {inode}");
        leases.acknowledge(session(0), &EndRecalls::of_done(&asked));
    }
    let had = &leases.returning.of[&session(0)];
    assert!(had.asked.len() <= limits::DATA_RECALLS_PER_SESSION_MAX);
}

// SEMANTICS 119.1
#[test]
fn a_session_that_moves_bytes_elsewhere_drops_what_it_had_of_them_before() {
    let mut leases = next_life(&[0]);
    assert!(leases.recall_from(FILE, session(0), 0));
    assert_eq!(leases.unacknowledged(session(0), 0).len(), 1);
    assert!(!leases.recall_from(FILE, session(0), 0), "it was asked");
}

#[test]
fn what_was_dropped_before_the_log_could_be_told_that_it_is_outdated_leaves_nothing_in_it() {
    let mut place = Place_::new();
    place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert!(place.leases.has_news());
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    let mut log = Outdated::default();
    place.leases.take_news().iter().for_each(|news| log.note(news));
    assert_eq!(log, Outdated::default());
}

// SEMANTICS 119.3
#[test]
fn what_is_read_anew_after_a_drop_is_as_good_in_the_life_after_the_next() {
    let mut place = Place_::new();
    place.read_page(0, 0);
    let mut log = Outdated::default();
    let note = |leases: &mut DataLeases, log: &mut Outdated| {
        leases.take_news().iter().for_each(|news| log.note(news));
    };
    let after = |log: &Outdated| {
        let mut leases = next_life(&[0]);
        log.news().for_each(|news| leases.note_before(&news));
        leases
    };
    place.change(session(1), 5, &[7]);
    note(&mut place.leases, &mut log);
    assert!(log.has(session(0)));
    place.leases = after(&log);
    // It drops this page, and still has to drop those of other files: it has not reported that it has nothing
    // from before.
    let waits = place.change(session(1), 6, &[7]);
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    let mut page = place.read_page(0, 0);
    note(&mut place.leases, &mut log);
    place.leases = after(&log);
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.bytes[5..10], [7, 7, 0, 0, 9]);
}

// SEMANTICS 119.3
#[test]
fn pages_that_others_changed_before_they_were_dropped_are_refused_in_the_next_life() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    let told = place.leases.take_news();
    assert_eq!(told, [outdated(whole(0))]);
    place.change(session(1), 6, &[7]);
    assert_eq!(place.leases.take_news(), [], "the log knows");
    page[9] = 9;
    let mut next = next_life(&[0]);
    next.note_before(&outdated(whole(0)));
    let dropped = std::mem::replace(&mut place.leases, next);
    assert_eq!(place.write_back(0, 0, &page).unwrap_err().kind(), ErrorKind::Stale);
    place.write_back(0, 1, &vec![3; PAGE_BYTES as usize]).unwrap();
    assert_eq!(place.bytes[5..10], [7, 7, 0, 0, 0]);
    assert!(place.leases.has_returned(session(0)));
    place.read_page(0, 0);
    place.write_back(0, 0, &page).unwrap();
    // Without a further restart nothing is left of it.
    place.leases = dropped;
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    let dropped = News::Dropped { place: FILE, session: session(0), pages: whole(0) };
    assert_eq!(place.leases.take_news(), [dropped]);
}

// SEMANTICS 119.3
#[test]
fn so_are_those_of_a_strict_mount_though_it_had_them_alone_once() {
    let mut place = Place_::new();
    place.leases = DataLeases::after([(session(0), true)]);
    place.leases.note_before(&outdated(whole(0)));
    let asked = Asked { place: FILE, session: session(0), range: whole(2), wish: Wish::Own, call: 1 };
    assert!(place.leases.claim(&asked, &mut Ticket::default(), 0).unwrap());
    assert_eq!(place.change(session(1), whole(1).start, &[7]).len(), 1);
    let mut page = vec![0; PAGE_BYTES as usize];
    page[9] = 9;
    assert_eq!(place.write_back(0, 0, &page).unwrap_err().kind(), ErrorKind::Stale);
    // These were not changed: what it has got since the restart, and what it had before.
    place.write_back(0, 2, &page).unwrap();
    place.write_back(0, 1, &page).unwrap();
    let behind = PAGE_BYTES as usize;
    assert_eq!((place.bytes[9], place.bytes[behind], place.bytes[behind + 9]), (0, 7, 9));
}

#[test]
fn a_write_through_part_of_a_page_from_a_life_before_makes_it_no_better() {
    let mut place = Place_::new();
    place.leases = next_life(&[0]);
    place.leases.note_before(&outdated(whole(0)));
    let range = ByteRange { start: 100, end: 110 };
    place.bytes[100..110].fill(1);
    place.leases.wrote_through(FILE, session(0), range, &[1; 10], 0);
    let old = vec![3; PAGE_BYTES as usize];
    assert_eq!(place.write_back(0, 0, &old).unwrap_err().kind(), ErrorKind::Stale);
    // All of it is.
    let all = vec![4; PAGE_BYTES as usize];
    place.bytes[..PAGE_BYTES as usize].copy_from_slice(&all);
    place.leases.wrote_through(FILE, session(0), whole(0), &all, 0);
    place.write_back(0, 0, &all).unwrap();
}

#[test]
fn a_recall_that_spans_a_page_from_a_life_before_makes_it_no_better() {
    let mut place = Place_::new();
    place.leases = next_life(&[0]);
    place.leases.note_before(&outdated(whole(1)));
    let old = vec![3; PAGE_BYTES as usize];
    place.write_back(0, 0, &old).unwrap();
    // One recall of all three pages, of which the one in the middle was never given.
    place.change(session(1), 0, &[5; 2 * PAGE_BYTES as usize + 1]);
    assert_eq!(place.write_back(0, 1, &old).unwrap_err().kind(), ErrorKind::Stale);
    place.write_back(0, 0, &old).unwrap();
}

//! Which session may store into which page: examples. Histories at random are in [`model`].

use ramlace_base::InodeId;
use ramlace_wire::leases::EndRecalls;

use super::super::owners::GRANTS_REMEMBERED;
use super::super::{Change, News, Outdated, ReadNow, Stored};
use super::*;

#[path = "claims_model.rs"]
mod model;

use model::World;

const FILE: Place = (InodeId(70), Some(0));
const PAGES: usize = 4;
const BYTES: usize = PAGE_BYTES as usize;
/// Two strict mounts that write, one that reads, a coherent one, and a program of the library.
const KERNELS: usize = 4;
const READER: usize = 2;
const COHERENT: usize = 3;
const LIBRARY: usize = 4;

fn session(number: usize) -> SessionId {
    SessionId([number as u8 + 1; 16])
}

fn whole(page: usize) -> ByteRange {
    ByteRange { start: (page * BYTES) as u64, end: ((page + 1) * BYTES) as u64 }
}

fn claim(leases: &mut DataLeases, asked: &Asked) -> (bool, Ticket) {
    let mut ticket = Ticket::default();
    let granted = leases.claim(asked, &mut ticket, 0).unwrap();
    (granted, ticket)
}

fn own(number: usize, page: usize, call: u32) -> Asked {
    World::asked(number, page, Wish::Own, call)
}

#[test]
fn two_that_lost_a_page_and_want_it_again_do_not_wait_for_each_other() {
    let mut leases = DataLeases::default();
    for number in 0..2 {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    assert!(!claim(&mut leases, &own(0, 0, 1)).0, "the other may have it");
    let (granted, mut second) = claim(&mut leases, &own(1, 0, 1));
    assert!(!granted);
    // The first one's claim: the second has none of the page, for it asks for it.
    let mut first = Ticket(second.0 - 1);
    assert!(leases.claim(&own(0, 0, 1), &mut first, 0).unwrap());
    assert!(!leases.claim(&own(1, 0, 1), &mut second, 0).unwrap());
    let told = leases.unacknowledged(session(0), 0);
    leases.acknowledge(session(0), &EndRecalls::of_done(&[told.last().unwrap().number]));
    assert!(leases.claim(&own(1, 0, 1), &mut second, 0).unwrap());
}

#[test]
fn several_pages_are_owned_at_once_or_not_at_all() {
    let mut leases = DataLeases::default();
    let both = |number| Asked { range: ByteRange { start: 0, end: 2 * PAGE_BYTES }, ..own(number, 0, 1) };
    assert!(claim(&mut leases, &own(1, 1, 1)).0);
    let mut ticket = Ticket::default();
    assert_eq!(leases.claim(&both(0), &mut ticket, 0).unwrap_err().kind(), ErrorKind::Busy);
    assert!(leases.owners.claims.is_empty());
    assert!(claim(&mut leases, &both(1)).0);
}

#[test]
fn a_request_that_comes_again_takes_the_place_of_the_one_before() {
    let mut leases = DataLeases::default();
    assert!(claim(&mut leases, &own(0, 0, 1)).0);
    let (_, mut lost) = claim(&mut leases, &own(1, 0, 7));
    let (_, mut again) = claim(&mut leases, &own(1, 0, 8));
    assert_eq!(leases.claim(&own(1, 0, 7), &mut lost, 0).unwrap_err().kind(), ErrorKind::Retry);
    let told = leases.unacknowledged(session(0), 0);
    leases.acknowledge(session(0), &EndRecalls::of_done(&[told[0].number]));
    assert!(leases.claim(&own(1, 0, 8), &mut again, 0).unwrap());
    // The page is in its kernel: a late copy must not have the effect that it is not.
    claim(&mut leases, &own(0, 0, 2));
    let late = leases.claim(&own(1, 0, 7), &mut Ticket::default(), 0).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Retry);
}

// SEMANTICS 128.12
#[test]
fn a_request_that_comes_however_late_speaks_for_no_page() {
    let mut leases = DataLeases::default();
    let first = u32::MAX - 30;
    let call = |page: usize| own(0, page, first.wrapping_add(page as u32));
    for page in 1..=2 * GRANTS_REMEMBERED {
        assert!(claim(&mut leases, &call(page)).0, "page {page}");
    }
    // The page went to its kernel by a later request, and another machine wants it.
    assert!(!claim(&mut leases, &own(1, 1, 1)).0);
    let late = leases.claim(&own(0, 1, first), &mut Ticket::default(), 0).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Retry);
    // Asked once more it has another number.
    assert!(
        !claim(&mut leases, &call(2 * GRANTS_REMEMBERED + 1)).0 || leases.owners.claims[&FILE].len() == 1
    );
}

// SEMANTICS 128.12
#[test]
fn a_request_that_was_repeated_gets_nothing_when_the_other_did_not_have_to_wait() {
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(COHERENT), whole(0), 0);
    let (_, mut owner) = claim(&mut leases, &own(0, 0, 1));
    acknowledge_all(&mut leases, COHERENT);
    assert!(leases.claim(&own(0, 0, 1), &mut owner, 0).unwrap());
    let share = |call| World::asked(COHERENT, 0, Wish::Share, call);
    let (granted, mut lost) = claim(&mut leases, &share(1));
    assert!(!granted);
    acknowledge_all(&mut leases, 0);
    leases.keep(FILE, session(COHERENT), whole(0), 0);
    leases.recall_from(FILE, session(COHERENT), 0);
    assert!(claim(&mut leases, &share(2)).0, "it is just being asked to drop it");
    assert_eq!(leases.claim(&share(1), &mut lost, 0).unwrap_err().kind(), ErrorKind::Retry);
    assert!(leases.owners.claims.is_empty());
}

// SEMANTICS 128.13
#[test]
fn a_page_is_not_waited_for_that_a_write_holds_which_has_yet_to_begin() {
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(COHERENT), whole(0), 0);
    let (_, mut ticket) = claim(&mut leases, &own(0, 0, 1));
    let told: Vec<u64> = told(&leases, COHERENT).iter().map(|(number, _)| *number).collect();
    leases.acknowledge(session(COHERENT), &EndRecalls { blocked: told, ..EndRecalls::default() });
    assert!(!leases.claim(&own(0, 0, 1), &mut ticket, 0).unwrap());
    let written = ByteRange { start: 100, end: 200 };
    leases.comes(FILE, session(COHERENT), written);
    assert!(leases.claim(&own(0, 0, 1), &mut ticket, 0).unwrap());
    leases.has_come(FILE, session(COHERENT), written);
    assert!(leases.owners.coming.is_empty());
}

// SEMANTICS 128.13
#[test]
fn a_session_that_owns_too_many_parts_releases_the_farthest_at_once() {
    let mut leases = DataLeases::default();
    let count = limits::STRICT_RUNS_MAX;
    for page in 0..count {
        assert!(claim(&mut leases, &own(0, 2 * page, 1 + page as u32)).0);
    }
    assert!(told(&leases, 0).is_empty());
    assert!(claim(&mut leases, &own(0, 2 * count, 1 + count as u32)).0);
    let released = ByteRange { start: 0, end: whole(2 * (STRICT_RUNS_RELEASED - 1)).end };
    assert_eq!(told(&leases, 0).iter().map(|(_, range)| *range).collect::<Vec<_>>(), [released]);
    assert!(leases.owners.owns(FILE, session(0), whole(2 * count)));
    assert!(leases.had_alone(FILE, session(0), whole(0)), "what is stored there is written back");
    acknowledge_all(&mut leases, 0);
    assert!(claim(&mut leases, &own(1, 0, 1)).0);
}

// SEMANTICS 119.3
#[test]
fn a_session_that_drops_one_page_has_dropped_no_others_that_are_outdated() {
    let mut leases = DataLeases::after([(session(0), true)]);
    leases.note_before(&News::Outdated { place: FILE, session: session(0), pages: whole(0) });
    assert!(claim(&mut leases, &own(0, 2, 1)).0);
    leases.recall_owned_part(FILE, session(0), whole(2), 0);
    acknowledge_all(&mut leases, 0);
    assert_eq!(leases.check_base(FILE, session(0), whole(0)).unwrap_err().kind(), ErrorKind::Stale);
    assert!(leases.take_news().is_empty(), "the log need not forget it either");
}

// SEMANTICS 128.1
#[test]
fn an_owner_that_does_not_answer_loses_what_it_stores() {
    let mut leases = DataLeases::default();
    assert!(claim(&mut leases, &own(0, 0, 1)).0);
    let (_, mut ticket) = claim(&mut leases, &own(1, 0, 1));
    let end = leases.next_end().unwrap();
    assert!(leases.pass(end));
    assert!(leases.claim(&own(1, 0, 1), &mut ticket, end).unwrap());
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let late = leases.stored(FILE, session(0), 0, &[1; BYTES], read, end).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Stale);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    assert!(leases.stored(FILE, session(1), 0, &[1; BYTES], read, end).is_ok());
}

/// The pages that a session is asked to drop.
fn told(leases: &DataLeases, number: usize) -> Vec<(u64, ByteRange)> {
    let told = leases.unacknowledged(session(number), 0).into_iter();
    told.map(|recall| (recall.number, ByteRange { start: recall.start, end: recall.end })).collect()
}

/// A kernel has dropped all that it was asked to. Returns how many recalls that were.
fn acknowledge_all(leases: &mut DataLeases, number: usize) -> usize {
    let done: Vec<u64> = told(leases, number).iter().map(|(number, _)| *number).collect();
    leases.acknowledge(session(number), &EndRecalls::of_done(&done));
    done.len()
}

// SEMANTICS 128.8
#[test]
fn a_session_that_owns_page_after_page_gets_each_however_many_holes_the_leases_of_others_have() {
    const OWNED: usize = 2 * limits::DATA_LEASE_HOLES_MAX;
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(READER), whole(0), 0);
    let mut recalls = 0;
    // From the end: of holes of one size the first one is the first to go.
    for page in (0..OWNED).rev().map(|page| 2 * page) {
        let asked = own(0, page, (2 * OWNED - page) as u32);
        let (mut granted, mut ticket) = claim(&mut leases, &asked);
        for _ in 0..2 {
            recalls += acknowledge_all(&mut leases, READER);
            granted = granted || leases.claim(&asked, &mut ticket, 0).unwrap();
        }
        assert!(granted, "page {page}");
        assert!(!leases.is_fenced(FILE, session(READER)));
    }
    assert!(recalls <= 2 * OWNED, "{recalls} recalls");
}

// SEMANTICS 128.8
#[test]
fn a_change_that_others_own_in_thousands_of_parts_fences_nobody() {
    const OWNED: usize = limits::DATA_RECALLS_PER_SESSION_MAX + 1;
    let all = ByteRange { start: 0, end: whole(2 * OWNED).start };
    for by_claim in [true, false] {
        let mut leases = DataLeases::default();
        for page in 0..OWNED {
            assert!(claim(&mut leases, &own(0, 2 * page, 1 + page as u32)).0);
        }
        let punch = Asked { range: all, ..World::asked(LIBRARY, 0, Wish::Change, 0) };
        let mut ticket = Ticket::default();
        if by_claim {
            assert!(!leases.claim(&punch, &mut ticket, 0).unwrap());
        } else {
            let read: ReadNow<'_> = &mut |_| unreachable!("whole pages are erased");
            leases.before_change(FILE, session(LIBRARY), all, Change::Erase, read, 0).unwrap();
        }
        assert!(!leases.is_fenced(FILE, session(0)));
        let recalled = told(&leases, 0);
        assert!(recalled.len() <= limits::DATA_RECALLS_PER_CHANGE_MAX);
        for page in [0, OWNED / 2, OWNED - 1].map(|page| 2 * page) {
            assert!(recalled.iter().any(|(_, range)| range.intersection(whole(page)) == whole(page)));
            // What it stored there is written back; between them it has nothing alone.
            assert!(leases.had_alone(FILE, session(0), whole(page)));
            assert!(!leases.had_alone(FILE, session(0), whole(page + 1)));
        }
        acknowledge_all(&mut leases, 0);
        assert!(!by_claim || leases.claim(&punch, &mut ticket, 0).unwrap());
    }
}

// SEMANTICS 128.2
#[test]
fn sessions_that_wait_for_each_other_by_parts_of_large_recalls_are_told_of_the_others_again() {
    let mut leases = DataLeases::default();
    for number in 0..2 {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.before_change(FILE, session(LIBRARY), WHOLE, Change::Erase, read, 0).unwrap();
    let (granted, mut first) = claim(&mut leases, &own(0, 0, 1));
    let (other, mut second) = claim(&mut leases, &own(1, 1, 1));
    assert!(!granted && !other, "each has yet to drop what the other wants, and waits for a page of it");
    // Each can drop what the other wants.
    assert!(!leases.claim(&own(0, 0, 1), &mut first, 0).unwrap());
    for (number, page) in [(0, 1), (1, 0)] {
        let again =
            told(&leases, number).into_iter().skip(1).find(|(_, range)| *range == whole(page)).unwrap();
        leases.acknowledge(session(number), &EndRecalls::of_done(&[again.0]));
    }
    assert!(leases.claim(&own(0, 0, 1), &mut first, 0).unwrap());
    assert!(leases.claim(&own(1, 1, 1), &mut second, 0).unwrap());
}

// SEMANTICS 128.10
#[test]
fn an_answer_waits_for_the_rest_of_a_recall_whose_holder_waits_for_a_page_of_it() {
    let mut leases = DataLeases::default();
    assert!(claim(&mut leases, &World::asked(READER, 9, Wish::Strict, 1)).0);
    for number in [0, COHERENT] {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    let both = ByteRange { start: 0, end: whole(1).end };
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let recalls = leases.before_change(FILE, session(LIBRARY), both, Change::Write, read, 0).unwrap();
    let of_the_first = recalls[0];
    acknowledge_all(&mut leases, COHERENT);
    // The other one says nothing, and the first one's drop stops at the page that it reads.
    leases.keep(FILE, session(COHERENT), whole(1), 0);
    let (granted, mut ticket) = claim(&mut leases, &own(0, 1, 1));
    assert!(!granted);
    assert!(leases.is_waited(of_the_first), "it has the other page");
    assert!(leases.resend_waited(&recalls, 0) && !leases.resend_waited(&recalls, 0), "it is told once");
    let again = told(&leases, 0).into_iter().find(|(_, range)| *range == whole(0)).unwrap();
    leases.acknowledge(session(0), &EndRecalls::of_done(&[again.0]));
    assert!(!leases.is_waited(of_the_first), "it has nothing of it");
    // A session that changes only what it waits for does not wait for it.
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let waits = leases.before_change(FILE, session(LIBRARY), whole(1), Change::Write, read, 0).unwrap();
    assert!(!waits.contains(&of_the_first));
    acknowledge_all(&mut leases, COHERENT);
    assert!(leases.claim(&own(0, 1, 1), &mut ticket, 0).unwrap());
}

// SEMANTICS 128.2
#[test]
fn no_session_is_fenced_that_waits_for_a_page_of_what_it_is_to_drop() {
    let mut leases = DataLeases::default();
    for number in 0..2 {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    assert!(!claim(&mut leases, &own(0, 0, 1)).0, "the other says nothing for long");
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.before_change(FILE, session(LIBRARY), WHOLE, Change::Erase, read, 0).unwrap();
    let soon = leases.next_end().unwrap();
    assert_eq!(soon, limits::DATA_RECALL_STUCK_MILLIS);
    assert!(leases.pass(soon));
    let rest = ByteRange { start: PAGE_BYTES, end: u64::MAX };
    let again = told(&leases, 0).into_iter().find(|(_, range)| *range == rest).expect("all but the page");
    leases.acknowledge(session(0), &EndRecalls::of_done(&[again.0]));
    let end = leases.next_end().unwrap();
    assert_eq!(end, limits::DATA_RECALL_MILLIS, "the other one's time");
    assert!(leases.pass(end));
    assert!(leases.is_fenced(FILE, session(1)) && !leases.is_fenced(FILE, session(0)));
}

// SEMANTICS 128.2
#[test]
fn a_page_that_is_never_dropped_ends_its_holders_time_whatever_others_it_gets() {
    let mut leases = DataLeases::default();
    assert!(claim(&mut leases, &own(0, 0, 1)).0);
    let (granted, mut other) = claim(&mut leases, &own(1, 0, 1));
    assert!(!granted);
    // Its programs continue with page after page, so it sends something all the time.
    let step = limits::DATA_RECALL_MILLIS - 1;
    let turns = limits::DATA_RECALL_WRITING_MILLIS / step;
    for turn in 1..=turns {
        assert!(!leases.pass(turn * step), "it has a while");
        let asked = own(0, turn as usize, 1 + turn as u32);
        assert!(leases.claim(&asked, &mut Ticket::default(), turn * step).unwrap());
    }
    let end = limits::DATA_RECALL_WRITING_MILLIS;
    assert_eq!(leases.next_end(), Some(end));
    assert!(leases.pass(end) && leases.is_fenced(FILE, session(0)));
    assert!(leases.claim(&own(1, 0, 1), &mut other, end).unwrap());
}

// SEMANTICS 128.2
#[test]
fn a_session_that_gets_the_page_that_kept_it_from_its_drop_has_the_time_to_drop_it() {
    let mut leases = DataLeases::default();
    for number in 0..2 {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    let (granted, mut ticket) = claim(&mut leases, &own(0, 0, 1));
    assert!(!granted, "the other has yet to drop it");
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.before_change(FILE, session(LIBRARY), WHOLE, Change::Erase, read, 0).unwrap();
    assert!(leases.pass(limits::DATA_RECALL_STUCK_MILLIS));
    let (rest, _) = *told(&leases, 0).last().expect("all but the page");
    leases.acknowledge(session(0), &EndRecalls::of_done(&[rest]));
    // The other one writes back as long as it may.
    let (mut now, end) = (0, limits::DATA_RECALL_WRITING_MILLIS);
    while now + limits::DATA_RECALL_MILLIS < end {
        now += limits::DATA_RECALL_MILLIS - 1;
        leases.pass(now);
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        leases.stored(FILE, session(1), 0, &[1; BYTES], read, now).unwrap();
    }
    assert!(leases.pass(end) && leases.is_fenced(FILE, session(1)));
    assert!(leases.claim(&own(0, 0, 1), &mut ticket, end).unwrap());
    assert!(!leases.pass(end) && !leases.is_fenced(FILE, session(0)), "it could not drop it before");
    assert_eq!(leases.next_end(), Some(end + limits::DATA_RECALL_MILLIS));
}

#[test]
fn what_lies_together_is_recalled_as_one() {
    let mut leases = DataLeases::default();
    let many = ByteRange { start: 0, end: (1 << 20) * PAGE_BYTES };
    assert!(claim(&mut leases, &Asked { range: many, ..own(0, 0, 1) }).0);
    let punch = Asked { range: many, ..World::asked(LIBRARY, 0, Wish::Change, 0) };
    let (granted, mut ticket) = claim(&mut leases, &punch);
    assert!(!granted);
    assert_eq!(told(&leases, 0), [(1, many)]);
    // Its kernel reads a page of it, and its drop stops there.
    let (granted, mut page) = claim(&mut leases, &own(0, 7, 2));
    assert!(!granted && !leases.claim(&punch, &mut ticket, 0).unwrap());
    let rest =
        [ByteRange { start: 0, end: whole(7).start }, ByteRange { start: whole(7).end, end: many.end }];
    assert_eq!(told(&leases, 0), [(1, many), (2, rest[0]), (3, rest[1])]);
    assert!(!leases.claim(&punch, &mut ticket, 0).unwrap());
    assert_eq!(leases.last_number, 3, "it is told once");
    leases.acknowledge(session(0), &EndRecalls::of_done(&[3]));
    assert!(!leases.claim(&punch, &mut ticket, 0).unwrap());
    leases.acknowledge(session(0), &EndRecalls::of_done(&[2]));
    assert!(leases.claim(&punch, &mut ticket, 0).unwrap(), "it has nothing of the page");
    leases.end_claim(FILE, ticket);
    assert!(leases.claim(&own(0, 7, 2), &mut page, 0).unwrap());
}

#[test]
fn mounts_that_begin_to_store_into_one_small_file_at_once_do_not_wait_for_each_other() {
    let mut leases = DataLeases::default();
    for number in 0..3 {
        leases.keep(FILE, session(number), whole(0), 0);
    }
    let all = ByteRange { start: 0, end: u64::MAX };
    let mut recalls = Vec::new();
    for number in 0..2 {
        leases.begin_promotion(FILE, session(number));
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        recalls.push(leases.before_change(FILE, session(number), all, Change::Stored, read, 0).unwrap());
    }
    let waited = |leases: &DataLeases, of: usize| {
        recalls[of].iter().filter(|number| leases.is_waited(**number)).count()
    };
    assert_eq!([0, 1].map(|of| waited(&leases, of)), [1, 1], "for the third alone");
    let end = leases.next_end().unwrap();
    assert!(leases.pass(end));
    assert_eq!([0, 1].map(|of| waited(&leases, of)), [0, 0]);
    leases.end_promotion(FILE, session(0));
    assert_eq!(waited(&leases, 1), 1, "who has what it wanted drops what it had");
}

#[test]
fn pages_that_are_wanted_one_after_the_other_are_recalled_ahead() {
    let mut leases = DataLeases::default();
    let many = ByteRange { start: 0, end: 64 * PAGE_BYTES };
    assert!(claim(&mut leases, &Asked { range: many, ..own(0, 0, 1) }).0);
    let mut waited = 0;
    for page in 0..64 {
        let (granted, mut ticket) = claim(&mut leases, &own(1, page, 2));
        if granted {
            continue;
        }
        waited += 1;
        let told = leases.unacknowledged(session(0), 0);
        let numbers: Vec<u64> = told.iter().map(|recall| recall.number).collect();
        leases.acknowledge(session(0), &EndRecalls::of_done(&numbers));
        assert!(leases.claim(&own(1, page, 2), &mut ticket, 0).unwrap());
    }
    assert_eq!(waited, 5);
}

// SEMANTICS 131.1
#[test]
fn it_is_told_which_session_has_what_and_which_waits_for_which() {
    let mut leases = DataLeases::default();
    let many = ByteRange { start: 0, end: 8 * PAGE_BYTES };
    assert!(claim(&mut leases, &Asked { range: many, ..own(0, 0, 1) }).0);
    assert!(!claim(&mut leases, &own(1, 3, 1)).0);
    assert!(!claim(&mut leases, &World::asked(LIBRARY, 3, Wish::Read, 1)).0);
    let held = leases.held(None);
    assert_eq!((held.len(), held[0].place), (1, FILE));
    let has = held[0].holders[&session(0)];
    assert_eq!((has.owned_bytes, has.recalls, has.fenced), (7 * PAGE_BYTES, 1, false));
    let waits: Vec<_> = held[0].waits.iter().map(|wait| (wait.session, wait.blockers.len())).collect();
    assert_eq!(waits, [(session(1), 1), (session(LIBRARY), 2)]);
    assert!(held[0].waits[0].blockers.contains(&session(0)));
    let fought: Vec<_> = held[0].fought.iter().map(|(offset, fight)| (*offset, fight.changes)).collect();
    assert_eq!(fought, [(3 * PAGE_BYTES, 1)]);
    assert!(leases.held(Some(InodeId(1))).is_empty() && leases.held(Some(FILE.0)).len() == 1);
}

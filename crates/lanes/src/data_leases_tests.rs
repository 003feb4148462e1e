//! Leases on bytes: examples. Random histories are in [`model`], what is known after a server's restart in
//! [`lives`], limits of copies in [`copies`].

use ramlace_base::{ErrorKind, InodeId};
use ramlace_wire::leases::EndRecalls;

use super::*;
use crate::pages::page_at;

#[path = "copies_tests.rs"]
mod copies;
#[path = "lives_tests.rs"]
mod lives;
#[path = "data_leases_model.rs"]
mod model;

const FILE: Place = (InodeId(70), Some(0));
const MOUNTS: usize = 3;
const PAGES: usize = 3;

fn session(number: usize) -> SessionId {
    SessionId([number as u8 + 1; 16])
}

fn whole(page: usize) -> ByteRange {
    page_at(page as u64)
}

/// The server's bytes and its table.
struct Place_ {
    leases: DataLeases,
    bytes: Vec<u8>,
    now: u64,
}

impl Place_ {
    fn new() -> Place_ {
        Place_ { leases: DataLeases::default(), bytes: vec![0; PAGES * PAGE_BYTES as usize], now: 0 }
    }

    fn change(&mut self, by: SessionId, start: u64, bytes: &[u8]) -> Vec<u64> {
        let range = ByteRange { start, end: start + bytes.len() as u64 };
        let here = &self.bytes;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        let waits = self.leases.before_change(FILE, by, range, Change::Write, read, self.now).unwrap();
        self.bytes[range.start as usize..range.end as usize].copy_from_slice(bytes);
        waits
    }

    fn read_page(&mut self, mount: usize, page: usize) -> Vec<u8> {
        self.leases.keep(FILE, session(mount), whole(page), self.now);
        let ByteRange { start, end } = whole(page);
        self.bytes[start as usize..end as usize].to_vec()
    }

    fn write_back(&mut self, mount: usize, page: usize, bytes: &[u8]) -> Result<()> {
        let (me, offset) = (session(mount), whole(page).start);
        let here = &self.bytes;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        let Stored { ranges, merged } = self.leases.stored(FILE, me, offset, bytes, read, self.now)?;
        let merged = merged.as_deref().unwrap_or(bytes);
        for range in ranges {
            let (from, to) = ((range.start - offset) as usize, (range.end - offset) as usize);
            self.change(me, range.start, &merged[from..to]);
        }
        self.leases.wrote_back(FILE, me, offset, bytes, self.now);
        Ok(())
    }
}

#[test]
fn a_session_alone_recalls_nothing_and_writes_its_pages_whole() {
    let mut place = Place_::new();
    assert!(!place.leases.keep(FILE, session(0), whole(0), 0), "it had no lease");
    assert!(place.leases.keep(FILE, session(0), whole(1), 0), "the first read brought one on all");
    let read: ReadNow<'_> = &mut |_| unreachable!("nobody looks at what is here");
    let bytes = vec![1; PAGE_BYTES as usize];
    let stored = place.leases.stored(FILE, session(0), 0, &bytes, read, 0).unwrap();
    assert_eq!(stored, Stored { ranges: vec![whole(0)], merged: None });
    assert_eq!(place.change(session(0), 0, &bytes), [0; 0]);
}

#[test]
fn what_a_kernel_has_written_through_is_recalled_from_it_however_it_came() {
    let mut place = Place_::new();
    place.leases.keep(FILE, session(0), whole(0), 0);
    let waits = place.change(session(1), 0, &[1]);
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    assert_eq!(place.change(session(1), 0, &[2]).len(), 0, "it has dropped them");
    // A large write goes to its place as it arrives: its bytes are never in memory at once.
    place.leases.wrote_through(FILE, session(0), whole(0), &[], 0);
    assert_eq!(place.change(session(1), 0, &[3]).len(), 1);
}

// SEMANTICS 8.3
#[test]
fn what_is_recalled_in_a_moment_is_told_then_or_before_a_later_one_or_when_somebody_waits() {
    let mut place = Place_::new();
    let later = limits::DATA_RECALL_HELD_MILLIS;
    let recall = |place: &mut Place_, page| {
        place.read_page(0, page);
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        place.leases.recall_in_a_moment((FILE, session(0)), whole(page), read, place.now).unwrap();
    };
    assert_eq!(place.leases.told_at(session(0), 0), None);
    recall(&mut place, 0);
    recall(&mut place, 1);
    assert_eq!(place.leases.told_at(session(0), 0), Some(later));
    let told = place.leases.unacknowledged(session(0), 0);
    assert_eq!(
        told.iter().map(|recall| (recall.start, recall.end)).collect::<Vec<_>>(),
        [(whole(0).start, whole(0).end), (whole(1).start, whole(1).end)]
    );
    let waits = place.change(session(1), whole(1).start, &[7]);
    assert_eq!(waits, [told[1].number], "nothing is recalled twice");
    assert_eq!(place.leases.told_at(session(0), 0), Some(0), "somebody waits");
    assert_eq!(place.leases.told_at(session(0), told[1].number), None);
    let numbers = |place: &Place_, now| -> Vec<u64> {
        place.leases.told_by(session(0), 0, now).iter().map(|recall| recall.number).collect()
    };
    assert_eq!(numbers(&place, 0), [told[0].number, told[1].number], "and so is what comes before it");
    place.now = 10;
    recall(&mut place, 2);
    assert_eq!(place.leases.told_at(session(0), told[1].number), Some(10 + later));
    assert_eq!(numbers(&place, 9 + later).len(), 2);
    assert_eq!(numbers(&place, 10 + later).len(), 3);
}

// SEMANTICS 8.7, 116
#[test]
fn a_page_that_was_written_whole_after_a_drop_keeps_its_base_when_that_drop_is_acknowledged() {
    let mut place = Place_::new();
    place.read_page(0, 0);
    let first = place.change(session(1), 5, &[7]);
    // The kernel has dropped the page, and its program writes all of it before the server hears of the drop.
    let mut page = vec![1; PAGE_BYTES as usize];
    place.change(session(0), 0, &page);
    place.leases.wrote_through(FILE, session(0), whole(0), &page, 0);
    place.change(session(1), 6, &[8]);
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&first));
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.bytes[5..10], [1, 8, 1, 1, 9]);
}

#[test]
fn publishing_waits_for_pages_that_somebody_else_has_recalled() {
    let mut place = Place_::new();
    place.read_page(2, 0);
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 2);
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    let newest = place.leases.newest_at(FILE, session(0)).unwrap();
    assert_eq!(place.leases.of_others(session(0), newest).len(), 1, "the third has yet to drop its page");
}

// SEMANTICS 118.1, 118.2
#[test]
fn a_session_that_does_not_answer_is_fenced_until_it_does() {
    let mut place = Place_::new();
    let mut stale = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 1);
    assert!(place.leases.is_waited(waits[0]));
    let end = place.leases.next_end().unwrap();
    assert!(!place.leases.pass(end - 1));
    assert!(place.leases.pass(end) && !place.leases.is_waited(waits[0]));
    assert_eq!(place.leases.next_end(), None);
    stale[9] = 9;
    assert_eq!(place.write_back(0, 0, &stale).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(place.bytes[9], 0);
    // Another session may not speak for it.
    place.leases.acknowledge(session(2), &EndRecalls::of_done(&waits));
    assert!(place.write_back(0, 0, &stale).is_err());
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    assert!(place.write_back(0, 0, &stale).is_err(), "it has yet to drop all the rest");
    let told = place.leases.unacknowledged(session(0), 0);
    assert_eq!((told.len(), told[0].start, told[0].end), (1, 0, u64::MAX));
    // Pages that it reads anew meanwhile count like any others.
    let mut other = place.read_page(0, 1);
    other[9] = 8;
    place.write_back(0, 1, &other).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 8);
    assert!(place.write_back(0, 0, &stale).is_err());
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&[told[0].number]));
    let mut fresh = place.read_page(0, 0);
    fresh[9] = 9;
    place.write_back(0, 0, &fresh).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 9]);
}

#[test]
fn one_that_writes_back_meanwhile_is_waited_for_longer() {
    let mut place = Place_::new();
    let page = place.read_page(0, 0);
    place.change(session(1), 5, &[7]);
    let first = place.leases.next_end().unwrap();
    place.now = first - 1;
    place.write_back(0, 0, &page).unwrap();
    assert!(!place.leases.pass(first));
    place.now = limits::DATA_RECALL_WRITING_MILLIS - 1;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.leases.next_end(), Some(limits::DATA_RECALL_WRITING_MILLIS), "but not for ever");
}

#[test]
fn a_blocked_holder_is_not_waited_for_and_its_stores_are_taken() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert!(
        place.leases.acknowledge(session(0), &EndRecalls { blocked: waits.clone(), ..EndRecalls::default() })
    );
    assert!(!place.leases.is_waited(waits[0]) && place.leases.is_waited_by_publishers(waits[0]));
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 9]);
    assert_eq!(place.leases.unacknowledged(session(0), 0).len(), 1);
}

#[test]
fn stores_into_what_was_erased_meanwhile_are_gone_with_it_and_those_after_are_not() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 1);
    page[9] = 9;
    let cut = ByteRange { start: PAGE_BYTES, end: u64::MAX };
    let read: ReadNow<'_> = &mut |_| unreachable!("whole pages are not looked at");
    let waits = place.leases.before_change(FILE, session(1), cut, Change::Erase, read, 0).unwrap();
    place.bytes[PAGE_BYTES as usize..].fill(0);
    place.write_back(0, 1, &page).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 0);
    // Read anew before it is acknowledged.
    let mut page = place.read_page(0, 1);
    page[9] = 9;
    place.write_back(0, 1, &page).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 9);
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&waits));
    assert!(place.leases.has_lease(FILE, session(0)));
}

#[test]
fn each_reader_of_a_page_costs_its_writer_one_recall_however_often_it_writes() {
    let mut place = Place_::new();
    (1..=10).for_each(|reader| _ = place.read_page(reader, 0));
    let waits = place.change(session(0), 5, &[1]);
    assert_eq!(waits.len(), 10);
    assert_eq!(place.change(session(0), 6, &[2]), waits, "nobody is asked again");
    for reader in 1..=10 {
        let told: Vec<u64> =
            place.leases.unacknowledged(session(reader), 0).iter().map(|recall| recall.number).collect();
        assert_eq!(told.len(), 1);
        place.leases.acknowledge(session(reader), &EndRecalls::of_done(&told));
    }
    assert_eq!(place.change(session(0), 7, &[3]).len(), 0, "nobody has it");
}

#[test]
fn a_writer_that_streams_recalls_ahead() {
    let mut place = Place_::new();
    place.leases.keep(FILE, session(0), whole(0), 0);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let mut recalls = 0;
    for page in 0..64 {
        recalls += place
            .leases
            .before_change(FILE, session(1), whole(page), Change::Write, read, 0)
            .unwrap()
            .len()
            .min(1);
        let told = place.leases.unacknowledged(session(0), 0);
        let numbers: Vec<u64> = told.iter().map(|recall| recall.number).collect();
        place.leases.acknowledge(session(0), &EndRecalls::of_done(&numbers));
    }
    assert_eq!(recalls, 7);
}

#[test]
fn holes_that_are_filled_make_no_page_of_before_a_fence_known() {
    let mut leases = DataLeases::default();
    let page = |number: usize| whole(number);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.keep(FILE, session(0), WHOLE, 0);
    leases.before_change(FILE, session(1), page(1), Change::Write, read, 0).unwrap();
    leases.pass(limits::DATA_RECALL_MILLIS);
    for number in 0..=limits::DATA_LEASE_HOLES_MAX + 1 {
        leases.keep(FILE, session(0), page(2 * number), limits::DATA_RECALL_MILLIS);
    }
    for number in 0..limits::DATA_LEASE_HOLES_MAX {
        let range = page(2 * number + 1);
        assert_eq!(leases.check_base(FILE, session(0), range).unwrap_err().kind(), ErrorKind::Stale);
    }
    // It says that all of them are gone.
    let told: Vec<u64> = leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    leases.acknowledge(session(0), &EndRecalls::of_done(&told));
    leases.keep(FILE, session(0), page(1), limits::DATA_RECALL_MILLIS);
    leases.check_base(FILE, session(0), page(1)).unwrap();
}

#[test]
fn whoever_has_thousands_of_pages_to_drop_loses_the_lease_and_is_not_fenced() {
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(0), WHOLE, 0);
    for number in 0..=limits::DATA_RECALLS_PER_SESSION_MAX {
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        leases.before_change(FILE, session(1), whole(2 * number), Change::Stored, read, 0).unwrap();
    }
    assert!(!leases.is_fenced(FILE, session(0)));
    assert!(leases.of[&session(0)].len() <= limits::DATA_RECALLS_PER_SESSION_MAX / 4 + 1);
}

#[test]
fn room_is_made_at_one_place_after_the_other() {
    let mut leases = DataLeases::default();
    let place = |inode: usize| (InodeId(inode as u64), None);
    for inode in 0..limits::DATA_LEASES_PER_SERVER_MAX + 3 {
        leases.keep(place(inode), session(0), whole(0), 0);
        // The first one is used all the time.
        leases.keep(place(0), session(0), whole(0), 0);
    }
    let told = leases.unacknowledged(session(0), 0);
    let first = told.iter().filter(|recall| recall.inode == InodeId(0)).count();
    assert!(first <= 1, "{first} times of {}", told.len());
}

// SEMANTICS 116
#[test]
fn a_session_that_asks_for_a_lease_and_reads_nothing_changes_no_base() {
    let mut place = Place_::new();
    let mut stored = place.read_page(0, 0);
    assert!(place.leases.keep_whole(FILE, session(0), 0));
    stored[7] = 7;
    place.change(session(1), 5, &[5]);
    assert!(!place.leases.keep_whole(FILE, session(0), 0), "something was recalled");
    assert!(!place.leases.keep_whole(FILE, session(0), 0), "and is not dropped yet");
    place.write_back(0, 0, &stored).unwrap();
    assert_eq!(place.bytes[4..8], [0, 5, 0, 7]);
    let told: Vec<u64> =
        place.leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    place.leases.acknowledge(session(0), &EndRecalls::of_done(&told));
    assert!(!place.leases.keep_whole(FILE, session(0), 0));
    assert!(place.leases.keep_whole(FILE, session(0), 0));
    // A session that had no lease has all of it, and is notified of changes.
    assert!(!place.leases.keep_whole(FILE, session(2), 0));
    assert_eq!(place.change(session(1), 5, &[6]).len(), 2);
}

#[test]
fn a_full_table_takes_a_lease_back() {
    let mut leases = DataLeases::default();
    for inode in 0..limits::DATA_LEASES_PER_SERVER_MAX as u64 {
        leases.keep((InodeId(inode), None), session(0), WHOLE, 0);
    }
    assert!(leases.unacknowledged(session(0), 0).is_empty());
    leases.keep((InodeId(1 << 40), None), session(0), WHOLE, 0);
    assert_eq!(leases.unacknowledged(session(0), 0).len(), 1);
    assert!(!leases.has_lease((InodeId(0), None), session(0)));
    leases.end_session(session(0));
    assert!(
        leases.leases.is_empty() && leases.given == 0 && leases.recalls.is_empty() && leases.of.is_empty()
    );
}

#[test]
fn a_session_that_leaves_too_many_recalls_is_fenced() {
    let mut leases = DataLeases::default();
    let place = |inode: u64| (InodeId(inode), Some(1));
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let more = limits::DATA_RECALLS_PER_SESSION_MAX as u64;
    for inode in 0..=more {
        leases.keep(place(inode), session(0), WHOLE, 0);
        let waits = leases.before_change(place(inode), session(1), whole(0), Change::Write, read, 0).unwrap();
        assert_eq!(waits.len(), usize::from(inode < more));
    }
    assert!(!leases.has_lease(place(more), session(0)));
}

#[test]
fn many_runs_recall_a_few_ranges_and_keep_what_their_own_pages_were() {
    let (mut leases, here) = (DataLeases::default(), 9_u8);
    leases.keep(FILE, session(0), WHOLE, 0);
    // Every other page of a thousand, each with two runs in it.
    let runs: Vec<ByteRange> = (0..1000)
        .map(|run| (run / 2 * 2 * PAGE_BYTES + run % 2 * 100, 10))
        .map(|(start, length)| ByteRange { start, end: start + length })
        .collect();
    let mut read_pages = Vec::new();
    let read: ReadNow<'_> = &mut |page| {
        read_pages.push(page.start / PAGE_BYTES);
        Ok(vec![here; page.length() as usize])
    };
    let waits = leases.before_changes(FILE, session(1), &runs, Change::Write, read, 0).unwrap();
    assert!((1..=limits::DATA_RECALLS_PER_CHANGE_MAX).contains(&waits.len()), "{}", waits.len());
    read_pages.sort_unstable();
    assert_eq!(read_pages, (0..500).map(|page| 2 * page).collect::<Vec<u64>>());
    let told = leases.unacknowledged(session(0), 0);
    for page in [0, 1, 500, 998] {
        let at = page * PAGE_BYTES;
        assert!(told.iter().any(|recall| recall.start <= at && at < recall.end), "page {page}");
    }
    // A page that was recalled along with others, and has not changed, comes back as it is.
    let mut stores = vec![here; PAGE_BYTES as usize];
    stores[7] = 1;
    let read: ReadNow<'_> = &mut |range| Ok(vec![here; range.length() as usize]);
    let stored = leases.stored(FILE, session(0), PAGE_BYTES, &stores, read, 0).unwrap();
    assert_eq!(stored.merged.unwrap_or(stores.clone()), stores);
    let few = [ByteRange { start: 0, end: 1 }, ByteRange { start: 5 * PAGE_BYTES, end: 5 * PAGE_BYTES + 1 }];
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(0), WHOLE, 0);
    let read: ReadNow<'_> = &mut |range| Ok(vec![here; range.length() as usize]);
    let waits = leases.before_changes(FILE, session(1), &few, Change::Write, read, 0).unwrap();
    assert_eq!(waits.len(), 2);
    let told: Vec<u64> =
        leases.unacknowledged(session(0), 0).iter().map(|recall| recall.end - recall.start).collect();
    assert_eq!(told, [PAGE_BYTES, PAGE_BYTES]);
}

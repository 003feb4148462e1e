use ramlace_base::{ServerId, Slot};

use super::*;

const FILE: InodeId = InodeId(7);
const PAGE: u64 = 4096;

fn pages() -> Arc<Pages> {
    Arc::new(Pages::new(&Arc::default()))
}

fn forget(pages: &Pages) {
    pages.nodes.tell(FILE);
    pages.nodes.forget(FILE, 1);
}

fn layout(width: u16) -> Layout {
    Layout {
        stripe_unit: 16 * PAGE,
        width,
        base_slot: Slot(3),
        stride: 1,
        copies: 1,
        created: ramlace_base::Epoch(1),
    }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

fn page(at: u64) -> ByteRange {
    range(at * PAGE, (at + 1) * PAGE)
}

/// Writes a page; returns whether it has to be dropped.
fn write(pages: &Arc<Pages>, at: u64) -> bool {
    let request = pages.begin_through(FILE, page(at)).0;
    let suspect = pages.wrote_through(FILE, &layout(1), page(at), (1, &request)).is_some();
    if suspect {
        pages.write_answered(FILE);
    }
    suspect
}

fn read(pages: &Arc<Pages>, at: u64) {
    drop(pages.begin_read(FILE, &layout(1), page(at), Some(1)));
}

fn back(pages: &Arc<Pages>, at: u64) -> (Request, Vec<ByteRange>) {
    pages.begin_back(FILE, at * PAGE, &[7; PAGE as usize])
}

fn dropped(pages: &Pages) {
    pages.drop_begins(FILE);
    pages.drop_is_over(FILE);
}

#[test]
fn pages_that_were_dropped_and_read_again_before_a_write_are_suspect() {
    let pages = pages();
    read(&pages, 0);
    assert!(!write(&pages, 0), "nobody has dropped anything");
    dropped(&pages);
    assert!(!write(&pages, 0), "it was not read since");
    dropped(&pages);
    read(&pages, 0);
    assert!(!write(&pages, 1), "another page");
    assert!(!write(&pages, 0), "the program copied after the last answer");
    dropped(&pages);
    read(&pages, 0);
    assert!(write(&pages, 0));
    assert!(!write(&pages, 0));
    read(&pages, 0);
    assert!(!write(&pages, 0), "whoever is alone reads and writes in turns");
}

#[test]
fn a_drop_that_was_going_on_when_the_last_write_was_answered_counts() {
    let pages = pages();
    read(&pages, 0);
    pages.drop_begins(FILE);
    assert!(!write(&pages, 0));
    pages.drop_is_over(FILE);
    read(&pages, 0);
    assert!(write(&pages, 0), "it may have taken the page after the program copied");
    // The write's own drop is over before its answer.
    pages.drop_begins(FILE);
    pages.drop_is_over(FILE);
    pages.write_answered(FILE);
    read(&pages, 0);
    assert!(!write(&pages, 0));
}

// SEMANTICS 116
#[test]
fn pages_are_suspect_until_the_drop_of_an_open_is_over_and_from_then_on_where_others_write() {
    let pages = pages();
    read(&pages, 0);
    let opened = pages.drop_by_open(FILE);
    assert!(!write(&pages, 0), "it was not read since");
    drop(opened);
    read(&pages, 0);
    assert!(write(&pages, 0), "the drop may have come behind the last answer");
    let opened = pages.drop_by_open(FILE);
    read(&pages, 0);
    opened.end_unseen();
    assert!(!write(&pages, 0), "nobody wrote meanwhile");
    forget(&pages);
    pages.drop_by_open(FILE).end_unseen();
    assert!(pages.all().is_empty(), "nothing to remember");
}

#[test]
fn a_range_of_a_lane_is_dropped_as_parts_of_the_file() {
    let unit = 16 * PAGE;
    assert_eq!(parts(&layout(1), 0, page(5)), [page(5)]);
    assert_eq!(parts(&layout(1), 0, WHOLE), [WHOLE]);
    let striped = layout(3);
    assert_eq!(parts(&striped, 1, page(1)), [range(unit + PAGE, unit + 2 * PAGE)]);
    let two = [range(2 * unit - PAGE, 2 * unit), range(4 * unit, 4 * unit + PAGE)];
    assert_eq!(parts(&striped, 1, range(unit - PAGE, unit + PAGE)), two);
    assert_eq!(parts(&striped, 2, WHOLE), [range(2 * unit, u64::MAX)]);
    assert_eq!(parts(&striped, 0, range(0, 17 * unit)), [range(0, 49 * unit)]);
    assert_eq!(parts(&striped, 0, range(unit, 17 * unit)).len(), 16);
}

#[test]
fn a_range_of_a_lane_is_parts_of_the_file_as_far_as_any_file_may_reach() {
    let most = ramlace_base::limits::FILE_BYTES_MAX;
    for width in [1, 2, ramlace_base::limits::WIDTH_LANES_MAX] {
        let layout = layout(width);
        for lane in [0, 1, width - 1, ramlace_base::limits::WIDTH_LANES_MAX - 1] {
            for (start, end) in [(0, 0), (most, most), (most - 1, most), (most, u64::MAX), (0, u64::MAX)] {
                let parts = parts(&layout, lane, range(start, end));
                assert!(parts.iter().all(|part| part.start <= part.end), "{width} {lane} {start} {end}");
            }
        }
    }
}

#[test]
fn what_is_not_known_is_dropped_whole() {
    let pages = pages();
    assert_eq!(pages.parts(FILE, Some(2), page(1)), [WHOLE]);
    assert_eq!(pages.parts(FILE, None, page(0)), [page(0)]);
    drop(pages.begin_read(FILE, &layout(2), page(0), Some(1)));
    assert_eq!(pages.parts(FILE, Some(1), page(0)), [page(16)]);
    assert_eq!(pages.all(), [FILE]);
    forget(&pages);
    assert_eq!(pages.parts(FILE, Some(1), page(0)), [WHOLE]);
}

#[test]
fn writes_and_truncations_hold_their_pages_until_they_are_over() {
    let pages = pages();
    assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
    let write = pages.begin_through(FILE, page(1)).0;
    let locked =
        || -> Vec<u64> { (0..4).filter(|at| !pages.held(FILE, &[page(*at)]).locked.is_empty()).collect() };
    assert_eq!(locked(), [1]);
    let read = pages.begin_read(FILE, &layout(1), range(0, 4 * PAGE), Some(1));
    assert!(locked().is_empty(), "nothing is read that is locked");
    drop(read);
    let cut = pages.begin_cut(FILE);
    assert_eq!(locked(), [1]);
    assert!(pages.held(FILE, &[page(3)]).is_cut, "whatever lies before the new end, too");
    drop((write, cut));
    assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
}

#[test]
fn what_is_written_back_leaves_out_what_a_call_writes_where_the_page_may_be_older() {
    let pages = pages();
    let middle = range(100, 200);
    let write = pages.begin_through(FILE, middle).0;
    assert_eq!(back(&pages, 0).1, [page(0)], "the call's bytes are in the page");
    dropped(&pages);
    read(&pages, 0);
    assert_eq!(back(&pages, 0).1, [range(0, 100), range(200, PAGE)]);
    assert_eq!(back(&pages, 1).1, [page(1)]);
    let suspect = Suspect { range: middle, held: Held::Perhaps };
    assert_eq!(
        pages.wrote_through(FILE, &layout(1), middle, (2, &write)),
        Some(suspect),
        "the page was read before"
    );
    drop(write);
    assert_eq!(back(&pages, 0).1, [page(0)]);
}

// SEMANTICS 116
#[test]
fn what_was_left_out_for_a_call_that_fails_is_written_after_all() {
    let pages = pages();
    let write = pages.begin_through(FILE, range(100, 200)).0;
    dropped(&pages);
    read(&pages, 0);
    drop(back(&pages, 0));
    drop(pages.begin_back(FILE, 0, &[8; PAGE as usize]));
    let left = pages.fail_through(FILE, &write, 150);
    assert_eq!(left, [LeftOut { offset: 150, bytes: vec![8; 50] }], "what the page had last");
    let other = pages.clone();
    let next = std::thread::spawn(move || back(&other, 0).1);
    while pages.nodes.waiting(FILE) == 0 {
        std::thread::yield_now();
    }
    assert!(!next.is_finished(), "newer stores come behind it");
    assert_eq!(back(&pages, 1).1, [page(1)]);
    drop(write);
    assert_eq!(next.join().unwrap(), [page(0)]);
    assert_eq!(pages.fail_through(FILE, &pages.begin_through(FILE, page(0)).0, 0), []);
}

// SEMANTICS 128.5
#[test]
fn a_write_that_failed_in_part_holds_its_pages_and_no_write_backs() {
    let pages = pages();
    let write = pages.begin_through(FILE, range(100, 2 * PAGE)).0;
    dropped(&pages);
    read(&pages, 0);
    read(&pages, 1);
    assert_eq!(pages.fail_through(FILE, &write, 150), []);
    let other = pages.clone();
    let next = std::thread::spawn(move || back(&other, 1).1);
    while pages.nodes.waiting(FILE) == 0 {
        std::thread::yield_now();
    }
    pages.left_out_is_written(FILE, &write);
    assert_eq!(next.join().unwrap(), [page(1)], "it was not written by the call");
    assert_eq!(back(&pages, 0).1, [range(0, 100), range(150, PAGE)], "the call has written the rest");
    assert!([page(0), page(1)].iter().all(|page| !pages.held(FILE, &[*page]).locked.is_empty()));
    drop(write);
    assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
}

#[test]
fn a_write_waits_for_what_is_written_back_of_its_pages_already() {
    let pages = pages();
    let (back, elsewhere) = (back(&pages, 0).0, back(&pages, 9).0);
    let writer = pages.clone();
    let write = std::thread::spawn(move || drop(writer.begin_through(FILE, range(5, 6))));
    while pages.nodes.waiting(FILE) == 0 {
        std::thread::yield_now();
    }
    drop(elsewhere);
    assert!(!write.is_finished());
    drop(back);
    write.join().unwrap();
}

#[test]
fn recalls_that_nobody_has_waited_for_stay() {
    let pages = pages();
    let none = RecallsMade::default();
    pages.made(FILE, &none);
    assert!(pages.all().is_empty(), "nothing to remember");
    let first: RecallsMade = [(ServerId(0), 1)].into_iter().collect();
    let second: RecallsMade = [(ServerId(0), 1), (ServerId(1), 4)].into_iter().collect();
    pages.made(FILE, &first);
    assert_eq!(pages.unpublished(FILE), first);
    pages.made(FILE, &second);
    pages.published(FILE, &first);
    assert_eq!(pages.unpublished(FILE), second, "there are newer ones");
    pages.published(FILE, &second);
    assert_eq!(pages.unpublished(FILE), none);
}

use ramlace_base::{Epoch, Slot};

use super::*;

const FILE: InodeId = InodeId(7);
const SIZE: u64 = 100 * BLOCK_BYTES;

/// A file of some lanes, whose size is known from `now` on.
fn opened(width: u16, bytes_max: u64, now: Instant) -> Blocks {
    let layout = Layout {
        stripe_unit: BLOCK_BYTES,
        width,
        base_slot: Slot(0),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    };
    let mut blocks = Blocks::new(bytes_max);
    blocks.open(FILE, layout);
    lease(&mut blocks, 1, SIZE, now);
    blocks
}

fn moment(blocks: &Blocks) -> Moment {
    (blocks.files[&FILE].recalls, blocks.clears)
}

fn lease(blocks: &mut Blocks, generation: u64, size: u64, now: Instant) {
    blocks.learn_size(FILE, moment(blocks), leased(generation, size, now));
}

fn leased(generation: u64, size: u64, now: Instant) -> Leased {
    let until = now + Duration::from_millis(limits::LEASE_MILLIS);
    Leased { generation: Generation(generation), size, inline: false, until }
}

fn bring(blocks: &mut Blocks, number: u64, now: Instant) {
    bring_since(blocks, number, moment(blocks), now);
}

fn bring_since(blocks: &mut Blocks, number: u64, moment: Moment, asked: Instant) {
    let bytes = Arc::from(vec![number as u8; BLOCK_BYTES as usize]);
    blocks.keep(FILE, moment, Brought { number, bytes, asked, inline: false });
}

fn bring_inline(blocks: &mut Blocks, length: usize, moment: Moment, asked: Instant) {
    let bytes = Arc::from(vec![7; length]);
    blocks.keep(FILE, moment, Brought { number: 0, bytes, asked, inline: true });
}

/// Reads; a request that this needs first is left to the next thread.
fn read(blocks: &mut Blocks, offset: u64, now: Instant) -> Found {
    let found = blocks.read(FILE, &mut [0; 10], offset, now);
    if let Found::Ask(asking) = found {
        blocks.answered(FILE, asking.query);
    }
    found
}

/// The request that a read needs first.
fn asks(blocks: &mut Blocks, offset: u64, now: Instant) -> Option<Query> {
    match read(blocks, offset, now) {
        Found::Ask(asking) => Some(asking.query),
        _ => None,
    }
}

fn kept(blocks: &Blocks) -> Vec<u64> {
    assert_eq!(blocks.bytes, blocks.blocks.len() as u64 * BLOCK_BYTES);
    assert_eq!(blocks.order.len(), blocks.blocks.len());
    blocks.blocks.keys().map(|(_, number)| *number).collect()
}

// SEMANTICS 139.2
#[test]
fn the_block_that_was_used_longest_ago_goes_first() {
    let now = Instant::now();
    let mut blocks = opened(1, 3 * BLOCK_BYTES, now);
    (0..3).for_each(|number| bring(&mut blocks, number, now));
    assert_eq!(read(&mut blocks, 5, now), Found::Read(10));
    bring(&mut blocks, 3, now);
    assert_eq!(kept(&blocks), [0, 2, 3]);
    blocks.bytes_max = BLOCK_BYTES;
    bring(&mut blocks, 3, now);
    assert_eq!(kept(&blocks), [3]);
    blocks.bytes_max = 5;
    bring(&mut blocks, 4, now);
    assert!(kept(&blocks).is_empty());
}

// SEMANTICS 139.3
#[test]
fn what_is_recalled_goes_and_nothing_else() {
    let now = Instant::now();
    let mut blocks = opened(2, u64::MAX, now);
    (0..6).for_each(|number| bring(&mut blocks, number, now));
    let before = moment(&blocks);
    let recall = |inode, lane, start, end| DataRecall { number: 1, inode, lane, start, end };
    // The second block of lane 1, and a byte of the third.
    blocks.recall(&recall(FILE, Some(1), BLOCK_BYTES, 2 * BLOCK_BYTES + 1));
    assert_eq!(kept(&blocks), [0, 1, 2, 4]);
    // What was asked for before the recall is not kept.
    bring_since(&mut blocks, 3, before, now);
    assert_eq!(kept(&blocks), [0, 1, 2, 4]);
    blocks.recall(&recall(InodeId(8), None, 0, u64::MAX));
    blocks.recall(&recall(FILE, Some(0), 2 * BLOCK_BYTES, u64::MAX));
    assert_eq!(kept(&blocks), [0, 1, 2]);
    blocks.recall(&recall(FILE, None, 0, 1));
    assert!(kept(&blocks).is_empty());
    bring(&mut blocks, 1, now);
    blocks.close(FILE);
    assert!(kept(&blocks).is_empty());
    assert_eq!(read(&mut blocks, 0, now), Found::Nothing);
}

// SEMANTICS 139.1
#[test]
fn one_thread_asks_and_the_others_read_without_the_cache() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    let ask = |blocks: &mut Blocks, offset, now| blocks.read(FILE, &mut [0; 10], offset, now);
    let is_asked = |found, query| matches!(found, Found::Ask(asking) if asking.query == query);
    assert!(is_asked(ask(&mut blocks, 0, now), Query::Block(0)));
    assert_eq!(ask(&mut blocks, 100, now), Found::Nothing);
    assert!(is_asked(ask(&mut blocks, BLOCK_BYTES, now), Query::Block(1)));
    blocks.answered(FILE, Query::Block(0));
    assert!(is_asked(ask(&mut blocks, 100, now), Query::Block(0)));
    let late = now + BELIEVED;
    assert!(is_asked(ask(&mut blocks, 0, late), Query::Size));
    assert_eq!(ask(&mut blocks, 0, late), Found::Nothing);
}

// SEMANTICS 139.4
#[test]
fn after_a_query_that_brought_nothing_none_is_asked_for_a_while() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    bring(&mut blocks, 0, now);
    let until = now + Duration::from_millis(100);
    blocks.rest(FILE, until);
    assert_eq!(read(&mut blocks, BLOCK_BYTES, now), Found::Nothing);
    // Valid blocks are read all the same.
    assert_eq!(read(&mut blocks, 0, now), Found::Read(10));
    assert_eq!(asks(&mut blocks, BLOCK_BYTES, until), Some(Query::Block(1)));
}

// SEMANTICS 139.3
#[test]
fn what_came_from_the_inode_goes_when_the_file_goes_to_its_lanes() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    let inline = Leased { inline: true, ..leased(1, 3000, now) };
    blocks.learn_size(FILE, moment(&blocks), inline);
    let before = moment(&blocks);
    bring_inline(&mut blocks, 3000, before, now);
    assert_eq!(read(&mut blocks, 0, now), Found::Read(10));
    blocks.learn_size(FILE, before, inline);
    assert_eq!(read(&mut blocks, 0, now), Found::Read(10));
    // Size and generation are the same, but the bytes are now where changes recall nothing of the inode.
    lease(&mut blocks, 1, 3000, now);
    assert_eq!(asks(&mut blocks, 0, now), Some(Query::Block(0)));
    bring_inline(&mut blocks, 3000, before, now);
    assert_eq!(asks(&mut blocks, 0, now), Some(Query::Block(0)));
    bring(&mut blocks, 0, now);
    assert_eq!(read(&mut blocks, 0, now), Found::Read(10));
}

// SEMANTICS 139.5
#[test]
fn a_truncation_ends_what_is_kept_whether_a_lane_knows_of_it_or_not() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    bring(&mut blocks, 0, now);
    let before = moment(&blocks);
    assert_eq!(read(&mut blocks, 5, now), Found::Read(10));
    // The home recalls the size; nothing is read before it is leased again.
    blocks.recall_size(FILE);
    assert_eq!(asks(&mut blocks, 5, now), Some(Query::Size));
    // The file was only written to: its blocks are still valid.
    lease(&mut blocks, 1, SIZE, now);
    assert_eq!(read(&mut blocks, 5, now), Found::Read(10));
    // Or the lease expired, and the file was truncated meanwhile.
    let late = now + Duration::from_millis(limits::LEASE_MILLIS);
    assert_eq!(asks(&mut blocks, 5, late), Some(Query::Size));
    let asking = moment(&blocks);
    lease(&mut blocks, 2, SIZE, late);
    assert!(kept(&blocks).is_empty());
    // What was requested in between belongs to the file before the truncation.
    bring_since(&mut blocks, 1, asking, late);
    bring_since(&mut blocks, 1, before, late);
    assert!(kept(&blocks).is_empty());
    // So does a size that was requested before.
    blocks.learn_size(FILE, asking, leased(1, SIZE, late));
    assert_eq!(blocks.files[&FILE].generation, Generation(2));
}

// SEMANTICS 139.6
#[test]
fn the_end_is_where_the_home_says() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    let inline = |size| Leased { inline: true, ..leased(1, size, now) };
    blocks.learn_size(FILE, moment(&blocks), inline(3000));
    let before = moment(&blocks);
    bring_inline(&mut blocks, 3000, before, now);
    for (offset, bytes) in [(0, 10), (2995, 5), (3000, 0), (BLOCK_BYTES * 9, 0), (u64::MAX - 10, 0)] {
        assert_eq!(read(&mut blocks, offset, now), Found::Read(bytes));
    }
    // A file that has grown has more than is cached of it.
    blocks.learn_size(FILE, before, inline(4000));
    assert_eq!(read(&mut blocks, 100, now), Found::Read(10));
    assert_eq!(asks(&mut blocks, 2995, now), Some(Query::Block(0)));
}

// SEMANTICS 139.7
#[test]
fn nothing_is_believed_for_longer_than_a_server_waits() {
    let now = Instant::now();
    let (late, later) = (now + BELIEVED, now + BELIEVED + BELIEVED);
    assert!(BELIEVED < Duration::from_millis(limits::DATA_RECALL_MILLIS));
    let mut blocks = opened(2, u64::MAX, now);
    (0..3).for_each(|number| bring(&mut blocks, number, now));
    lease(&mut blocks, 1, SIZE, late);
    assert_eq!(asks(&mut blocks, BLOCK_BYTES, late), Some(Query::Lane(1)));
    let asking = moment(&blocks);
    blocks.learn_lane(FILE, asking, 1, late, true);
    assert_eq!(read(&mut blocks, BLOCK_BYTES, late), Found::Read(10));
    assert_eq!(asks(&mut blocks, 0, late), Some(Query::Lane(0)));
    // The server has recalled something of the lane, or has restarted: then all of the lane goes.
    blocks.learn_lane(FILE, asking, 0, late, false);
    assert_eq!(kept(&blocks), [1]);
    assert_eq!(asks(&mut blocks, 0, late), Some(Query::Block(0)));
    // An answer from before a recall says nothing.
    blocks.recall(&DataRecall { number: 1, inode: FILE, lane: Some(0), start: 0, end: 1 });
    blocks.learn_lane(FILE, asking, 1, later, true);
    lease(&mut blocks, 1, SIZE, later);
    assert_eq!(asks(&mut blocks, BLOCK_BYTES, later), Some(Query::Lane(1)));
}

// SEMANTICS 139.4
#[test]
fn all_that_is_kept_goes_at_once() {
    let now = Instant::now();
    let mut blocks = opened(1, u64::MAX, now);
    bring(&mut blocks, 0, now);
    let before = moment(&blocks);
    blocks.clear();
    assert_eq!(asks(&mut blocks, 0, now), Some(Query::Size));
    lease(&mut blocks, 1, SIZE, now);
    bring_since(&mut blocks, 0, before, now);
    assert!(kept(&blocks).is_empty());
}

// SEMANTICS 143.1
#[test]
fn what_a_relaxed_open_keeps_is_its_own_until_it_refreshes() {
    let now = Instant::now();
    let mut blocks = opened(2, 4 * BLOCK_BYTES, now);
    let full = |byte: u8| -> Arc<[u8]> { Arc::from(vec![byte; BLOCK_BYTES as usize]) };
    let mut buffer = [0; 10];
    bring(&mut blocks, 0, now);
    blocks.keep_relaxed(1, 0, full(11), None);
    blocks.keep_relaxed(2, 0, full(22), None);
    assert_eq!(blocks.read_relaxed(1, &mut buffer, 5), Some(10));
    assert_eq!(buffer, [11; 10]);
    assert_eq!(blocks.read_relaxed(3, &mut buffer, 5), None);
    // Neither a recall nor an expired lease concerns them.
    blocks.recall(&DataRecall { number: 1, inode: FILE, lane: None, start: 0, end: u64::MAX });
    blocks.close(FILE);
    assert_eq!(blocks.read_relaxed(2, &mut buffer, 0), Some(10));
    blocks.drop_relaxed(2, ByteRange { start: BLOCK_BYTES, end: u64::MAX });
    assert_eq!(blocks.read_relaxed(2, &mut buffer, 0), Some(10));
    blocks.drop_relaxed(2, ByteRange { start: 5, end: 6 });
    assert_eq!(blocks.read_relaxed(2, &mut buffer, 0), None);
    assert_eq!(blocks.read_relaxed(1, &mut buffer, 0), Some(10));
}

// SEMANTICS 143.1
#[test]
fn behind_the_end_of_what_a_relaxed_open_keeps_it_asks() {
    let mut blocks = Blocks::new(4 * BLOCK_BYTES);
    blocks.keep_relaxed(1, 3, Arc::from(vec![7; 100]), None);
    let at = |blocks: &mut Blocks, offset, length: usize| {
        blocks.read_relaxed(1, &mut vec![0; length], 3 * BLOCK_BYTES + offset)
    };
    assert_eq!(at(&mut blocks, 90, 10), Some(10));
    assert_eq!(
        (at(&mut blocks, 91, 10), at(&mut blocks, 100, 1), at(&mut blocks, 500, 1)),
        (None, None, None)
    );
    let of = |blocks: &Blocks, start, end| blocks.of_relaxed(1, ByteRange { start, end }).len();
    let (begin, end) = (3 * BLOCK_BYTES, 4 * BLOCK_BYTES);
    assert_eq!(
        (of(&blocks, begin, begin + 1), of(&blocks, end - 1, end), of(&blocks, end, u64::MAX)),
        (1, 1, 0)
    );
}

// SEMANTICS 139.2
#[test]
fn relaxed_opens_take_their_room_from_the_same_bytes() {
    let now = Instant::now();
    let mut blocks = opened(1, 4 * BLOCK_BYTES, now);
    for number in 0..3 {
        bring(&mut blocks, number, now);
        blocks.keep_relaxed(1, number, Arc::from(vec![9; BLOCK_BYTES as usize]), None);
    }
    assert_eq!(kept(&blocks), [1, 2, 1, 2]);
    assert_eq!(blocks.read_relaxed(1, &mut [0; 4], 0), None);
}

//! Random operations against plain byte vectors: contents, counters and refusals.

#[path = "store/common/mod.rs"]
mod common;

use std::collections::BTreeMap;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ramlace_base::{ErrorKind, limits};
use ramlace_store::{Backing, StoreRoot};

const SIZE: u64 = 16 * MIB;
const REACH: u64 = 9 * MIB;
const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
enum Step {
    Write { lane: u64, offset: u64, length: u64, seed: u8 },
    Receive { lane: u64, offset: u64, length: u64, seed: u8 },
    Prepare { lane: u64, offset: u64, length: u64 },
    Punch { lane: u64, offset: u64, length: u64 },
    Cut { lane: u64, length: u64 },
    Trim { lane: u64 },
    Remove { lane: u64 },
    Log { length: usize },
    DropLog,
    Reopen,
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..REACH,
        (0..REACH / PAGE).prop_map(|page| page * PAGE),
        (0..4u64).prop_map(|unit| unit * HUGE)
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..70_000u64, 0..4 * MIB, (0..3u64).prop_map(|unit| unit * HUGE)]
}

fn step() -> impl Strategy<Value = Step> {
    let lane = || 0..5u64;
    prop_oneof![
        6 => (lane(), offset(), length(), any::<u8>())
            .prop_map(|(lane, offset, length, seed)| Step::Write { lane, offset, length, seed }),
        3 => (lane(), offset(), length(), any::<u8>())
            .prop_map(|(lane, offset, length, seed)| Step::Receive { lane, offset, length, seed }),
        2 => (lane(), offset(), length()).prop_map(|(lane, offset, length)| Step::Prepare { lane, offset, length }),
        3 => (lane(), offset(), length()).prop_map(|(lane, offset, length)| Step::Punch { lane, offset, length }),
        2 => (lane(), offset()).prop_map(|(lane, length)| Step::Cut { lane, length }),
        2 => lane().prop_map(|lane| Step::Trim { lane }),
        1 => lane().prop_map(|lane| Step::Remove { lane }),
        2 => (0..30_000usize).prop_map(|length| Step::Log { length }),
        1 => Just(Step::DropLog),
        1 => Just(Step::Reopen),
    ]
}

/// What a store should be: bytes of each lane, and which of its pages the model knows to be taken.
#[derive(Default)]
struct Model {
    lanes: BTreeMap<u64, Vec<u8>>,
    log: Vec<u8>,
}

/// Bytes of pages of `offset..offset+length` that hold no data yet: what a write must at least take.
fn missing_bytes(store: &mut TestStore, lane_number: u64, offset: u64, length: u64) -> u64 {
    if !store.has_lane(lane(lane_number)) || length == 0 {
        return (offset + length).next_multiple_of(PAGE).saturating_sub(offset / PAGE * PAGE)
            * u64::from(length > 0);
    }
    let start = offset / PAGE * PAGE;
    let end = (offset + length).next_multiple_of(PAGE);
    let extents = store.extents(lane(lane_number), start, end - start).unwrap();
    extents.iter().filter(|extent| extent.is_hole).map(|extent| extent.range.length()).sum()
}

/// Prepares; says whether there was room, after checking that a refusal was right and left no trace.
fn prepare(store: &mut TestStore, model: &mut Model, number: u64, offset: u64, length: u64) -> bool {
    if !store.has_lane(lane(number)) {
        store.create_lane(lane(number)).unwrap();
    }
    model.lanes.entry(number).or_default();
    let missing = missing_bytes(store, number, offset, length);
    let free = store.usage().free_for_lanes_bytes;
    let old_length = store.lane_length(lane(number)).unwrap();
    match store.prepare_write(lane(number), offset, length) {
        Ok(()) => {
            let bytes = model.lanes.get_mut(&number).unwrap();
            if length > 0 && bytes.len() < (offset + length) as usize {
                bytes.resize((offset + length) as usize, 0);
            }
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(missing > free, "refused {length} at {offset}: {missing} missing, {free} free: {error}");
            let now = store.usage().free_for_lanes_bytes;
            assert!(
                missing > now,
                "refused {length} at {offset} though trimming made room: {missing} missing, {free} free, then {now}: {error}"
            );
            assert_eq!(store.lane_length(lane(number)).unwrap(), old_length);
            false
        }
    }
}

/// Receives bytes into a window by a system call, as the server does.
fn receive(store: &mut TestStore, number: u64, offset: u64, bytes: &[u8]) {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    let source = rustix::fs::memfd_create("source", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let source = std::fs::File::from(source);
    source.write_all_at(bytes, 0).unwrap();
    let window = store.window(lane(number), offset, bytes.len() as u64).unwrap();
    assert_eq!(window.length(), bytes.len());
    let mut at = 0;
    for segment in window.segments() {
        // SAFETY: the window is held, so its addresses are mapped; the kernel does the writing.
        let read = unsafe { libc::pread(source.as_raw_fd(), segment.address.cast(), segment.length, at) };
        assert_eq!(read, segment.length as isize);
        at += segment.length as i64;
    }
}

fn apply(store: &mut TestStore, model: &mut Model, step: &Step) {
    match *step {
        Step::Write { lane: number, offset, length, seed } => {
            let bytes = pattern(u64::from(seed), length as usize);
            if prepare(store, model, number, offset, length) {
                store.write_staged(lane(number), offset, &bytes).unwrap();
                put(model, number, offset, &bytes);
            }
        }
        Step::Receive { lane: number, offset, length, seed } => {
            let bytes = pattern(u64::from(seed), length as usize);
            if prepare(store, model, number, offset, length) {
                receive(store, number, offset, &bytes);
                put(model, number, offset, &bytes);
            }
        }
        Step::Prepare { lane: number, offset, length } => {
            prepare(store, model, number, offset, length);
        }
        Step::Log { length } => log(store, model, length),
        Step::DropLog => {
            drop(store.meta_append_file("log").unwrap());
            store.meta_remove("log").unwrap();
            model.log.clear();
        }
        Step::Reopen => store.reopen(),
        Step::Punch { lane: number, .. } | Step::Cut { lane: number, .. } | Step::Trim { lane: number }
            if !model.lanes.contains_key(&number) =>
        {
            assert_eq!(store.trim(lane(number)).unwrap_err().kind(), ErrorKind::NotFound);
        }
        Step::Punch { lane: number, offset, length } => {
            store.punch(lane(number), offset, length).unwrap();
            let bytes = model.lanes.get_mut(&number).unwrap();
            let end = bytes.len().min((offset + length) as usize);
            bytes[(offset as usize).min(end)..end].fill(0);
        }
        Step::Cut { lane: number, length } => {
            store.cut(lane(number), length).unwrap();
            model.lanes.get_mut(&number).unwrap().resize(length as usize, 0);
        }
        Step::Trim { lane: number } => {
            store.trim(lane(number)).unwrap();
            let taken = store.lane_allocated_bytes(lane(number)).unwrap();
            let length = store.lane_length(lane(number)).unwrap();
            assert!(taken <= length.next_multiple_of(PAGE), "{taken} bytes for {length} after trimming");
        }
        Step::Remove { lane: number } => {
            let removed = store.remove_lane(lane(number));
            assert_eq!(removed.is_ok(), model.lanes.remove(&number).is_some());
        }
    }
}

fn put(model: &mut Model, number: u64, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        model.lanes.get_mut(&number).unwrap()[offset as usize..offset as usize + bytes.len()]
            .copy_from_slice(bytes);
    }
}

/// The log takes what lanes leave, and its urgent entries take the rest.
fn log(store: &mut TestStore, model: &mut Model, length: usize) {
    let mut file = store.meta_append_file("log").unwrap();
    let bytes = pattern(length as u64, length);
    let headroom = (SIZE / limits::STORE_HEADROOM_FRACTION).max(limits::STORE_HEADROOM_BYTES_MIN);
    let room = store.usage().free_bytes;
    let done = file.append(&bytes).or_else(|error| {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(room < headroom / 2 + length as u64 + PAGE, "{error}, with {room} free");
        file.append_urgent(&bytes)
    });
    match done {
        Ok(()) => model.log.extend(bytes),
        Err(_) => assert!(room < length as u64 + PAGE),
    }
    assert_eq!(file.length(), model.log.len() as u64);
}

fn check(store: &mut TestStore, model: &Model) {
    assert_counted(store);
    assert_eq!(store.lane_ids().count(), model.lanes.len());
    for (number, bytes) in &model.lanes {
        assert_eq!(store.lane_length(lane(*number)).unwrap(), bytes.len() as u64);
        // assert! and not assert_eq!: megabytes of difference are not readable.
        assert!(read(store, lane(*number), 0, bytes.len()) == *bytes, "lane {number} differs");
    }
    assert!(store.meta_append_file("log").unwrap().read_all().unwrap() == model.log, "the log differs");
}

fn storm(backing: Backing, with_reservation: bool) {
    let cases = std::env::var("RAMLACE_STORM_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let steps = prop::collection::vec(step(), 1..40);
    TestRunner::new(config)
        .run(&steps, |steps| {
            let mut store = TestStore::new(StoreRoot::create(&options(SIZE, backing)).unwrap());
            let mut model = Model::default();
            for step in steps {
                if with_reservation {
                    store.start_reservation().unwrap();
                }
                apply(&mut store, &mut model, &step);
                if !with_reservation {
                    check(&mut store, &model);
                }
            }
            store.reopen(); // stops the reservation, so that the counters stand still
            check(&mut store, &model);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_private_tmpfs_behaves_as_the_model() {
    if private_works("storm") {
        storm(Backing::PrivateTmpfs, false);
    }
}

#[test]
fn shared_memory_behaves_as_the_model() {
    storm(Backing::SharedMemory, false);
}

#[test]
fn no_request_sees_the_reservation() {
    if private_works("storm with reservation") {
        storm(Backing::PrivateTmpfs, true);
    }
    storm(Backing::SharedMemory, true);
}

/// Storms that have found something.
#[test]
fn what_was_found_once_is_as_the_model() {
    if !private_works("storms of before") {
        return;
    }
    let steps = [
        Step::Receive { lane: 1, offset: 1_426_851, length: 10_846, seed: 0 },
        Step::Write { lane: 0, offset: 6_291_456, length: 1, seed: 0 },
        Step::Receive { lane: 1, offset: 9_335_590, length: 31_963, seed: 0 },
        Step::Write { lane: 2, offset: 3_502_080, length: 2_795_469, seed: 253 },
        Step::Write { lane: 3, offset: 2_711_552, length: 37_436, seed: 172 },
        Step::Cut { lane: 0, length: 7_479_296 },
        Step::Receive { lane: 4, offset: 3_493_802, length: 2_560_266, seed: 3 },
        Step::Receive { lane: 0, offset: 6_291_456, length: 2_920_678, seed: 117 },
    ];
    let mut store = TestStore::new(StoreRoot::create(&options(SIZE, Backing::PrivateTmpfs)).unwrap());
    let mut model = Model::default();
    for step in &steps {
        apply(&mut store, &mut model, step);
        check(&mut store, &model);
    }
}

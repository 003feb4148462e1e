//! Lanes on real memory: bytes, holes, memory taken and given back.

use crate::common::*;
use ramlace_base::{ByteRange, ErrorKind, limits};
use ramlace_store::{Backing, Extent, StoreRoot};

fn extent(start: u64, end: u64, is_hole: bool) -> Extent {
    Extent { range: ByteRange { start, end }, is_hole }
}

#[test]
fn a_small_file_costs_its_pages_and_a_chunk_one_huge_page() {
    on_each_backing("cost of files", 64 * MIB, |store| {
        write(store, lane(1), 0, &[1; 100]).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 4096);
        assert_eq!(store.lane_length(lane(1)).unwrap(), 100);
        write(store, lane(1), 8192, &[1; 1]).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 8192);
        write(store, lane(2), 0, &vec![2; MIB as usize]).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), HUGE);
        assert_eq!(store.lane_length(lane(2)).unwrap(), MIB);
        assert_counted(store);
        store.trim(lane(2)).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), MIB);
        assert_eq!(read(store, lane(2), 0, MIB as usize), vec![2; MIB as usize]);
        assert_counted(store);
    });
}

#[test]
fn chunks_are_huge_pages_in_a_private_tmpfs() {
    if !private_works("huge pages") {
        return;
    }
    let root = StoreRoot::create(&options(64 * MIB, Backing::PrivateTmpfs)).unwrap();
    if !root.has_huge_pages() {
        println!("skipped: {:?}", root.notes());
        return;
    }
    let mut store = TestStore::new(root);
    store.create_lane(lane(1)).unwrap();
    // The file ends inside the second huge page, which must be huge nevertheless.
    store.prepare_write(lane(1), 0, HUGE + 5).unwrap();
    let window = store.window(lane(1), 0, 4096).unwrap();
    let address = window.segments().next().unwrap().address.addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let huge = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{address:x}-")))
        .find(|line| line.starts_with("ShmemPmdMapped:"))
        .unwrap();
    assert_eq!(huge.split_whitespace().nth(1).unwrap(), "4096", "{huge}");
}

#[test]
fn holes_are_told_from_bytes_and_cost_nothing() {
    on_each_backing("holes", 64 * MIB, |store| {
        write(store, lane(1), 3 * HUGE, &[7; 4096]).unwrap();
        let taken = store.lane_allocated_bytes(lane(1)).unwrap();
        assert_eq!(taken, HUGE);
        assert_eq!(store.extents(lane(1), 0, HUGE).unwrap(), [extent(0, HUGE, true)]);
        let extents = store.extents(lane(1), 2 * HUGE + 5, HUGE + 100).unwrap();
        assert_eq!(extents, [extent(2 * HUGE + 5, 3 * HUGE, true), extent(3 * HUGE, 3 * HUGE + 105, false)]);
        assert_eq!(store.extents(lane(1), 90 * HUGE, 9).unwrap(), [extent(90 * HUGE, 90 * HUGE + 9, true)]);
        assert_eq!(store.extents(lane(1), 9, 0).unwrap(), []);
        assert_eq!(read(store, lane(1), 0, 4096), [0; 4096]);
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), taken);
        assert_counted(store);
    });
}

#[test]
fn punching_frees_pages_and_zeroes_edges() {
    on_each_backing("punch", 64 * MIB, |store| {
        let bytes = pattern(1, 5 * MIB as usize);
        write(store, lane(1), 0, &bytes).unwrap();
        let before = store.lane_allocated_bytes(lane(1)).unwrap();
        store.punch(lane(1), 100, 4096 * 3).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), before - 2 * 4096);
        let mut model = bytes;
        model[100..100 + 4096 * 3].fill(0);
        assert_eq!(read(store, lane(1), 0, model.len()), model);
        assert_eq!(store.lane_length(lane(1)).unwrap(), 5 * MIB);
        // What was freed must be taken again before it is written.
        assert_eq!(store.write_staged(lane(1), 4096, &[1]).unwrap_err().kind(), ErrorKind::Fatal);
        write(store, lane(1), 4096, &[1]).unwrap();
        model[4096] = 1;
        assert_eq!(read(store, lane(1), 0, model.len()), model);
        assert_counted(store);
    });
}

#[test]
fn cutting_frees_what_lies_beyond_and_zeroes_the_tail() {
    on_each_backing("cut", 64 * MIB, |store| {
        write(store, lane(1), 0, &vec![9; 3 * MIB as usize]).unwrap();
        store.cut(lane(1), MIB + 10).unwrap();
        assert_eq!(store.lane_length(lane(1)).unwrap(), MIB + 10);
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), MIB + 4096);
        store.cut(lane(1), 3 * MIB).unwrap();
        assert_eq!(read(store, lane(1), MIB, 20), [[9; 10], [0; 10]].concat());
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), MIB + 4096);
        store.cut(lane(1), 0).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 0);
        assert_counted(store);
    });
}

#[test]
fn removing_frees_all_also_while_mapped_and_granted() {
    on_each_backing("remove", 64 * MIB, |store| {
        write(store, lane(1), 0, &vec![9; 8 * MIB as usize]).unwrap();
        let window = store.window(lane(1), 0, 8 * MIB).unwrap();
        let granted = store.grant(lane(1), true).unwrap();
        store.remove_lane(lane(1)).unwrap();
        assert!(!store.has_lane(lane(1)));
        assert_eq!(store.usage().lanes_bytes, 0);
        assert_counted(store);
        assert_eq!(store.remove_lane(lane(1)).unwrap_err().kind(), ErrorKind::NotFound);
        drop((window, granted));
        assert_counted(store);
    });
}

#[test]
fn reused_memory_is_zeroed() {
    on_each_backing("zeroes", 32 * MIB, |store| {
        for round in 0..3 {
            let id = lane(round);
            store.create_lane(id).unwrap();
            store.allocate(id, 24 * MIB).unwrap();
            let bytes = read(store, id, 0, 24 * MIB as usize);
            assert!(bytes.iter().all(|byte| *byte == 0), "round {round}");
            store.write_staged(id, 0, &vec![0xa5; 24 * MIB as usize]).unwrap();
            store.remove_lane(id).unwrap();
        }
        assert_counted(store);
    });
}

#[test]
fn a_full_store_refuses_in_mid_chunk_and_recovers_by_deleting() {
    on_each_backing("full", 32 * MIB, |store| {
        let mut written = 0;
        let error = loop {
            match write(store, lane(1), written, &vec![3; MIB as usize]) {
                Ok(()) => written += MIB,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("32 MiB"), "{error}");
        // Everything but the headroom and less than one write is taken, to the page.
        assert_eq!(written, 31 * MIB);
        assert_counted(store);
        let before = store.usage();
        assert_eq!(store.prepare_write(lane(1), written, MIB).unwrap_err().kind(), ErrorKind::NoSpace);
        store.create_lane(lane(2)).unwrap();
        assert_eq!(store.prepare_write(lane(2), 100 * MIB, MIB).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.usage(), before);
        assert_eq!(store.lane_length(lane(1)).unwrap(), written);
        assert_eq!(store.lane_length(lane(2)).unwrap(), 0);
        assert_eq!(read(store, lane(1), 0, written as usize), vec![3; written as usize]);
        store.punch(lane(1), HUGE, 4 * HUGE).unwrap();
        write(store, lane(2), 0, &vec![4; 4 * HUGE as usize]).unwrap();
        assert_counted(store);
    });
}

#[test]
fn memory_taken_ahead_is_given_back_before_a_write_is_refused() {
    on_each_backing("tails", 32 * MIB, |store| {
        for number in 0..15 {
            write(store, lane(number), 0, &vec![1; MIB as usize]).unwrap();
        }
        // 30 MiB are taken, half of them ahead.
        assert_eq!(store.usage().lanes_bytes, 30 * MIB);
        write(store, lane(20), 0, &vec![2; 12 * MIB as usize]).unwrap();
        assert_eq!(read(store, lane(3), 0, MIB as usize), vec![1; MIB as usize]);
        assert_counted(store);
    });
}

#[test]
fn reopening_finds_the_same_bytes_and_counters() {
    on_each_backing("reopen", 64 * MIB, |store| {
        for number in 0..20 {
            write(store, lane(number), number * 1000, &pattern(number, (number * 70_000) as usize + 1))
                .unwrap();
        }
        store.meta_append_file("log").unwrap().append(b"hello").unwrap();
        let before = store.usage();
        store.reopen();
        assert_eq!(store.usage(), before);
        assert_eq!(store.lane_ids().count(), 20);
        for number in 0..20 {
            let bytes = pattern(number, (number * 70_000) as usize + 1);
            assert_eq!(read(store, lane(number), number * 1000, bytes.len()), bytes);
        }
        assert_eq!(store.meta_append_file("log").unwrap().read_all().unwrap(), b"hello");
        write(store, lane(3), 0, &[1; 50_000]).unwrap();
        assert_counted(store);
    });
}

#[test]
fn memory_promised_before_a_restart_is_still_promised() {
    on_each_backing("promises", 32 * MIB, |store| {
        store.create_lane(lane(1)).unwrap();
        store.allocate(lane(1), 30 * MIB).unwrap();
        store.create_lane(lane(2)).unwrap();
        store.allocate(lane(2), MIB - 4096).unwrap();
        store.reopen();
        // The store is full, and both lanes have never been written.
        store.prepare_write(lane(1), 5, 30 * MIB - 5).unwrap();
        store.prepare_write(lane(2), 0, MIB - 4096).unwrap();
        assert_eq!(store.prepare_write(lane(2), 0, MIB + 1).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 30 * MIB);
        assert_counted(store);
    });
}

#[test]
fn more_lanes_than_descriptors_and_more_windows_than_the_limit() {
    on_each_backing("limits", 64 * MIB, |store| {
        let count = limits::LANE_DESCRIPTORS_MAX as u64 + 50;
        for number in 0..count {
            write(store, lane(number), 0, &number.to_le_bytes()).unwrap();
        }
        let windows: Vec<_> = (0..count).map(|number| store.window(lane(number), 0, 8).unwrap()).collect();
        for number in 0..count {
            assert_eq!(read(store, lane(number), 0, 8), number.to_le_bytes());
        }
        // Windows that were pushed out of the cache while held still lead to their lane.
        for (number, window) in (0..count).zip(&windows) {
            assert_eq!(syscall_read(window), number.to_le_bytes());
        }
        assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() < 4 * limits::LANE_DESCRIPTORS_MAX);
    });
}

/// Lets the kernel read a window: through a pipe.
fn syscall_read(window: &ramlace_store::Window) -> Vec<u8> {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let segment = window.segments().next().unwrap();
    // SAFETY: the window is held, so its addresses are mapped; the kernel does the reading.
    let sent = unsafe { libc::write(writer.as_raw_fd(), segment.address.cast(), segment.length) };
    assert_eq!(sent, segment.length as isize);
    let mut bytes = vec![0; segment.length];
    reader.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    on_each_backing("bad requests", 32 * MIB, |store| {
        let missing = lane(9);
        assert_eq!(store.prepare_write(missing, 0, 1).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.lane_length(missing).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.grant(missing, false).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.read_staged(missing, 0, &mut [0]).unwrap_err().kind(), ErrorKind::NotFound);
        store.create_lane(missing).unwrap();
        assert_eq!(store.create_lane(missing).unwrap_err().kind(), ErrorKind::Exists);
        for (offset, length) in [(u64::MAX, 2), (limits::FILE_BYTES_MAX, 1), (0, u64::MAX)] {
            assert_eq!(store.prepare_write(missing, offset, length).unwrap_err().kind(), ErrorKind::TooBig);
            assert_eq!(store.punch(missing, offset, length).unwrap_err().kind(), ErrorKind::TooBig);
            assert_eq!(store.window(missing, offset, length).unwrap_err().kind(), ErrorKind::TooBig);
            assert_eq!(store.extents(missing, offset, length).unwrap_err().kind(), ErrorKind::TooBig);
        }
        assert_eq!(store.prepare_write(missing, limits::FILE_BYTES_MAX - 1, 1), Ok(()));
        assert_eq!(store.prepare_write(missing, 0, 1 << 40).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_counted(store);
    });
}

#[test]
fn pages_taken_for_stores_are_blank_until_they_are_written() {
    on_each_backing("memory for stores", 64 * MIB, |store| {
        store.create_lane(lane(1)).unwrap();
        assert_eq!(store.prepare_stores(lane(1), 0, 64 << 10, true), Ok(true));
        assert_eq!(
            store.prepare_stores(lane(1), 4096, 4096, true),
            Ok(true),
            "they are there, and zeros still"
        );
        write(store, lane(1), 5000, b"written").unwrap();
        assert_eq!(store.prepare_stores(lane(1), 4096, 4096, true), Ok(false));
        assert_eq!(store.prepare_stores(lane(1), 0, 64 << 10, true), Ok(false));
        assert_eq!(store.prepare_stores(lane(1), 0, 4096, true), Ok(true));
        // While a write is under way, its result is not known.
        assert_eq!(store.prepare_stores(lane(1), 64 << 10, 4096, false), Ok(false));
        store.grant(lane(1), false).unwrap();
        assert_eq!(store.prepare_stores(lane(1), 0, 4096, true), Ok(false), "somebody else may have written");
    });
}

#[test]
fn pages_for_stores_come_one_by_one_when_little_room_is_left() {
    on_each_backing("memory for stores", 64 * MIB, |store| {
        store.create_lane(lane(1)).unwrap();
        let room = store.usage().free_for_lanes_bytes;
        store.prepare_write(lane(1), 0, room - 8 * 4096).unwrap();
        store.create_lane(lane(2)).unwrap();
        assert_eq!(store.prepare_stores(lane(2), 0, 2 * 4096, true).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.prepare_stores(lane(2), 0, 4096, true), Ok(true));
        assert_eq!(store.prepare_stores(lane(2), 4096, 4096, true), Ok(true));
        assert_eq!(
            store.prepare_stores(lane(2), 0, 2 * 4096, true),
            Ok(true),
            "what is there is no question"
        );
        assert_eq!(store.lane_allocated_bytes(lane(2)), Ok(2 * 4096));
        let more = (2..20).find(|page| store.prepare_stores(lane(2), page * 4096, 4096, true).is_err());
        assert_eq!(more, Some(8));
    });
}

fn ranges(all: &[(u64, u64)]) -> Vec<ByteRange> {
    all.iter().map(|(start, end)| ByteRange { start: *start, end: *end }).collect()
}

#[test]
fn runs_move_their_bytes_and_gaps_stay_holes() {
    on_each_backing("runs", 64 * MIB, |store| {
        let runs = ranges(&[(10, 20), (20, 25), (5000, 5001), (40_960, 40_970)]);
        let bytes: Vec<u8> = (1..27).collect();
        store.create_lane(lane(1)).unwrap();
        store.prepare_writes(lane(1), &runs).unwrap();
        store.write_runs(lane(1), &runs, &bytes).unwrap();
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 3 * 4096);
        assert_eq!(store.read_runs(lane(1), runs.iter().copied()).unwrap(), bytes);
        assert_eq!(store.lane_length(lane(1)).unwrap(), 40_970);
        let around = ranges(&[(8, 12), (24, 26), (40_969, 40_972)]);
        let expected = [0, 0, 1, 2, 15, 0, 26, 0, 0];
        assert_eq!(store.read_runs(lane(1), around.into_iter()).unwrap(), expected);
        let unprepared = ranges(&[(10, 11), (20_000, 20_001)]);
        assert_eq!(store.write_runs(lane(1), &unprepared, &[0; 2]).unwrap_err().kind(), ErrorKind::Fatal);
        assert_counted(store);
    });
}

#[test]
fn runs_that_do_not_fit_together_take_nothing() {
    on_each_backing("runs of a full store", 16 * MIB, |store| {
        store.create_lane(lane(1)).unwrap();
        let far = ranges(&[(0, 4096), (4 * MIB, 5 * MIB), (32 * MIB, 64 * MIB)]);
        assert_eq!(store.prepare_writes(lane(1), &far).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.lane_allocated_bytes(lane(1)).unwrap(), 0);
        assert_eq!(store.lane_length(lane(1)).unwrap(), 0);
        store.prepare_writes(lane(1), &far[..2]).unwrap();
        assert_counted(store);
    });
}

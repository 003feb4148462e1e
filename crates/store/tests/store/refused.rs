//! A refused request takes nothing away from what was promised before.

use crate::common::*;
use ramlace_base::ErrorKind;

const PAGE: u64 = 4096;

/// Allocates on from `at` in steps that halve at each refusal, as a program that wants all there is.
/// Says what it got, after checking that no refusal changed what the lane holds.
fn allocate_all(store: &mut TestStore, number: u64, mut at: u64) -> u64 {
    let mut step = 16 * MIB;
    while step >= PAGE {
        let before = store.lane_allocated_bytes(lane(number)).unwrap();
        match store.allocate(lane(number), at + step) {
            Ok(()) => at += step,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                let after = store.lane_allocated_bytes(lane(number)).unwrap();
                // Memory ahead of the end may go, and nothing else.
                assert_eq!(after, before.min(at), "refused {step} more after {at}");
                assert_eq!(store.lane_length(lane(number)).unwrap(), at);
                step /= 2;
            }
        }
    }
    assert_counted(store);
    at
}

/// Every page of a range can still be written, though all other memory is taken.
fn assert_writable(store: &mut TestStore, number: u64, length: u64) {
    for at in (0..length).step_by(PAGE as usize) {
        write(store, lane(number), at, &[7; PAGE as usize]).unwrap();
    }
    assert_counted(store);
}

#[test]
fn what_was_allocated_survives_refusals() {
    on_each_backing("refusals", 32 * MIB, |store| {
        write(store, lane(1), 0, &vec![1; 14 * MIB as usize + 5]).unwrap();
        store.create_lane(lane(2)).unwrap();
        let got = allocate_all(store, 2, 0);
        write(store, lane(3), 0, &[1]).unwrap_err();
        assert_writable(store, 2, got);
    });
}

#[test]
fn what_an_earlier_process_allocated_survives_refusals() {
    on_each_backing("refusals after a restart", 32 * MIB, |store| {
        write(store, lane(1), 0, &vec![1; 30 * MIB as usize]).unwrap();
        store.create_lane(lane(2)).unwrap();
        // Exact pages, never written; a written one among them, and a hole.
        store.allocate(lane(2), 50 * PAGE).unwrap();
        store.write_staged(lane(2), 7 * PAGE, &[7; 9]).unwrap();
        store.prepare_write(lane(2), 60 * PAGE, 40 * PAGE).unwrap();
        store.reopen();
        let before = store.lane_allocated_bytes(lane(2)).unwrap();
        assert_eq!(before, 90 * PAGE);
        for length in [2 * MIB, MIB + 1, MIB + 13 * PAGE] {
            let refused = store.allocate(lane(2), length).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), before, "{length}");
            assert_counted(store);
        }
        // What is there is counted once: the rest fits to the page.
        let room = store.usage().free_for_lanes_bytes;
        let all = before + room;
        assert_eq!(store.allocate(lane(2), all + PAGE).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), before);
        store.allocate(lane(2), all).unwrap();
        assert_eq!(store.usage().free_for_lanes_bytes, 0);
        store.reopen();
        assert_eq!(read(store, lane(2), 7 * PAGE, 10), [[7; 9].as_slice(), &[0]].concat());
        assert_eq!(store.allocate(lane(2), all + 1).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_writable(store, 2, all);
    });
}

#[test]
fn the_kernels_own_refusal_keeps_what_an_earlier_process_allocated() {
    use std::os::unix::fs::FileExt;
    if !private_works("the kernel's own refusal") {
        return;
    }
    // The kernel refuses before it has seen all pages that were there, and after.
    for left in [5, 200] {
        let options = options(32 * MIB, ramlace_store::Backing::PrivateTmpfs);
        let store = &mut TestStore::new(ramlace_store::StoreRoot::create(&options).unwrap());
        store.create_lane(lane(1)).unwrap();
        store.create_lane(lane(2)).unwrap();
        store.allocate(lane(2), 10 * PAGE).unwrap();
        store.prepare_write(lane(2), 20 * PAGE, 10 * PAGE).unwrap();
        write(store, lane(2), 25 * PAGE, &[7; 9]).unwrap();
        store.reopen();
        // The books say that there is room; the kernel knows better, in the middle of the call.
        let client = std::fs::File::from(store.grant(lane(1), true).unwrap());
        let mut filled = 0;
        while client.write_all_at(&[6; PAGE as usize], filled).is_ok() {
            filled += PAGE;
        }
        client.set_len(filled - left * PAGE).unwrap();
        for length in [4 * MIB, 20 * MIB] {
            assert_eq!(store.allocate(lane(2), length).unwrap_err().kind(), ErrorKind::NoSpace);
            assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), 20 * PAGE, "{left} pages left");
            assert_eq!(store.lane_length(lane(2)).unwrap(), 30 * PAGE);
        }
        store.recount_granted().unwrap();
        assert_counted(store);
    }
}

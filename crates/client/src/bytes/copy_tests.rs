use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ramlace_wire::LayoutHints;

use super::*;
use crate::OpenOptions;
use crate::fake::FakePool;

const GRAIN: usize = 8;
const UNIT: usize = 64 << 10;

/// A copy of a new file of two lanes with this many grains, all zero, and the file as another client has it.
fn copied(pool: &FakePool, grains: usize) -> (Copy, File) {
    let hints = LayoutHints {
        stripe_unit: Some(UNIT as u64),
        width: Some(2),
        copies: Some(1),
        ..LayoutHints::default()
    };
    let options = OpenOptions { hints, ..OpenOptions::creating() };
    let file = pool.connect().open("/file", &options).unwrap();
    file.allocate((grains * GRAIN) as u64).unwrap();
    let theirs = pool.connect().open("/file", &options).unwrap();
    (file.copy(grains * GRAIN, GRAIN).unwrap(), theirs)
}

/// A grain of a copy as the program sees it.
fn grain(copy: &Copy, index: usize) -> &AtomicU64 {
    assert!((index + 1) * GRAIN <= copy.len());
    // SAFETY: it lies within the copy, which is aligned.
    unsafe { AtomicU64::from_ptr(copy.as_ptr().cast::<u64>().add(index)) }
}

fn there(file: &File, index: usize) -> u64 {
    let mut bytes = [0; GRAIN];
    assert_eq!(file.read_at(&mut bytes, (index * GRAIN) as u64).unwrap(), GRAIN);
    u64::from_ne_bytes(bytes)
}

fn put_there(file: &File, index: usize, value: u64) {
    assert_eq!(file.write_at(&value.to_ne_bytes(), (index * GRAIN) as u64).unwrap(), GRAIN);
}

// SEMANTICS 8.4
#[test]
fn what_is_stored_while_a_copy_is_refreshed_stays() {
    const GRAINS: usize = 512;
    let pool = FakePool::start(2);
    let (copy, _) = copied(&pool, GRAINS);
    let (stop, lost) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Stores into what is clean, looks whether it is still there, and makes it clean again.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..GRAINS - 1).for_each(|index| grain(&copy, index).store(1, Ordering::Relaxed));
                for index in 0..GRAINS - 1 {
                    lost.fetch_add(1 - grain(&copy, index).swap(0, Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        });
        // Others have changed the last one alone.
        let mut fresh = vec![0; GRAINS * GRAIN];
        for turn in 1..=20_000u64 {
            fresh[(GRAINS - 1) * GRAIN..].copy_from_slice(&turn.to_ne_bytes());
            copy.merge(&mut copy.twin.lock().bytes, 0, &fresh);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(grain(&copy, GRAINS - 1).load(Ordering::Relaxed), 20_000);
    assert_eq!(lost.into_inner(), 0, "stores were overwritten by what was there before");
}

#[test]
fn what_is_stored_while_a_copy_is_fetched_is_lost_or_published() {
    let pool = FakePool::start(2);
    let (copy, theirs) = copied(&pool, (4 << 20) / GRAIN);
    for turn in 1..=100u64 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Sooner or later in the transfer.
                std::thread::sleep(Duration::from_micros(50 * turn));
                grain(&copy, 0).store(turn, Ordering::Relaxed);
            });
            copy.fetch().unwrap();
        });
        copy.publish().unwrap();
        assert_eq!(grain(&copy, 0).load(Ordering::Relaxed), there(&theirs, 0), "turn {turn}");
    }
}

#[test]
fn a_fetch_that_fails_changes_no_copy_without_its_twin() {
    let pool = FakePool::start(2);
    let block = REFRESH_BYTES_MAX / GRAIN;
    let (copy, theirs) = copied(&pool, 2 * block);
    put_there(&theirs, 3, 5);
    theirs.truncate((block + 1) as u64 * GRAIN as u64).unwrap();
    assert_eq!(copy.fetch().unwrap_err().kind(), ErrorKind::Corrupt);
    put_there(&theirs, 3, 6);
    assert_eq!(copy.publish().unwrap(), 0, "nothing was stored here");
    assert_eq!(there(&theirs, 3), 6);
}

// SEMANTICS 8.4
#[test]
fn what_a_full_pool_did_not_take_of_a_copy_still_counts_as_changed() {
    let pool = FakePool::start(2);
    let (copy, theirs) = copied(&pool, 1000);
    // As many bytes as lie before the second grain.
    pool.state().lane_bytes_max = 2 * GRAIN;
    grain(&copy, 0).store(1, Ordering::Relaxed);
    grain(&copy, 2).store(2, Ordering::Relaxed);
    assert_eq!(copy.publish().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((there(&theirs, 0), there(&theirs, 2)), (1, 0));
    pool.state().lane_bytes_max = usize::MAX;
    assert_eq!(copy.publish().unwrap(), 2 * GRAIN as u64);
    assert_eq!((there(&theirs, 0), there(&theirs, 2)), (1, 2));
}

#[test]
fn grains_that_are_published_behind_a_cut_are_in_the_file() {
    let pool = FakePool::start(2);
    let (copy, theirs) = copied(&pool, 1000);
    theirs.truncate(3 * GRAIN as u64).unwrap();
    grain(&copy, 1).store(1, Ordering::Relaxed);
    grain(&copy, 500).store(2, Ordering::Relaxed);
    copy.publish().unwrap();
    assert_eq!(theirs.size().unwrap(), 501 * GRAIN as u64, "as by a write to the last of them");
    assert_eq!((there(&theirs, 1), there(&theirs, 400), there(&theirs, 500)), (1, 0, 2));
}

#[test]
fn a_forked_child_is_told_that_a_copy_is_its_parents() {
    let pool = FakePool::start(2);
    let (copy, _) = copied(&pool, 1000);
    // As a thread has it that moves bytes while the process forks.
    let held = copy.twin.lock();
    // SAFETY: the child calls nothing but the client, `alarm` and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it waits for the lock.
        unsafe { libc::alarm(20) };
        let refused = [copy.publish().map(drop), copy.refresh(), copy.fetch()]
            .into_iter()
            .all(|done| done.is_err_and(|error| error.kind() == ErrorKind::BadHandle));
        // SAFETY: ends the child without the test runner's own handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just started.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(held);
    copy.refresh().unwrap();
}

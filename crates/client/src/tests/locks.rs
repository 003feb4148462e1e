//! Locks whose answers get lost.

use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind};
use ramlace_wire::Kind;
use ramlace_wire::locks::LockKind;

use super::{SHORT_MILLIS, in_haste, striped};
use crate::Pool;
use crate::fake::{FakePool, Fault};

const BYTES: ByteRange = ByteRange { start: 3, end: 5 };

/// Locks that are held, and requests that have cancelled one.
fn held_and_cancelled(pool: &FakePool) -> (usize, usize) {
    let held = pool.state().locks.len();
    (held, pool.done(Kind::CancelLock))
}

fn await_sent(client: &Pool) {
    let end = Instant::now() + Duration::from_secs(60);
    while client.pending().unwrap() > 0 {
        assert!(Instant::now() < end, "{} messages are still pending", client.pending().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
}

// SEMANTICS 69.4
#[test]
fn a_lock_whose_answer_is_lost_is_taken_back() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &striped(1)).unwrap();
    let try_lock = || file.try_lock(BYTES, LockKind::Exclusive).map(|_| ());
    let wait = || file.lock(BYTES, LockKind::Exclusive, None);
    for (number, lock) in [&try_lock as &dyn Fn() -> ramlace_base::Result<()>, &wait].into_iter().enumerate()
    {
        pool.fault(Kind::SetLock, Fault::Held);
        pool.state().releases_held = false;
        in_haste(&client, SHORT_MILLIS, || lock().unwrap_err());
        assert_eq!(pool.state().locks.len(), 1, "it is held, and nobody knows");
        pool.state().releases_held = true;
        await_sent(&client);
        assert_eq!(held_and_cancelled(&pool), (0, number + 1));
        // A lost answer that is had in time is no doubt.
        pool.fault(Kind::SetLock, Fault::LoseReply);
        lock().unwrap();
        await_sent(&client);
        assert_eq!(held_and_cancelled(&pool), (1, number + 1));
        file.unlock(BYTES).unwrap();
    }
    file.close().unwrap();
}

// SEMANTICS 69.4
#[test]
fn a_lock_that_its_caller_does_not_want_any_more_is_taken_back() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &striped(1)).unwrap();
    // Only its cancelling finds out that it was granted: there is no event of that here.
    pool.state().locks_queue = true;
    let stop = || Err(Error::new(ErrorKind::Busy, "a signal"));
    let stopped = file.lock_with(BYTES, LockKind::Exclusive, None, &stop).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Busy);
    assert_eq!(held_and_cancelled(&pool), (0, 2));
    // One that is told by its time limit only has it.
    file.lock(BYTES, LockKind::Exclusive, Some(Duration::from_millis(1))).unwrap();
    assert_eq!(held_and_cancelled(&pool), (1, 3));
    file.unlock(BYTES).unwrap();
    // It was granted at once, and a signal came with it.
    pool.state().locks_queue = false;
    assert!(file.try_lock_with(BYTES, LockKind::Exclusive, stop).is_err());
    assert_eq!(held_and_cancelled(&pool), (0, 4));
    assert!(file.lock_with(BYTES, LockKind::Exclusive, None, &stop).is_err());
    assert_eq!(held_and_cancelled(&pool), (0, 5));
    assert!(file.try_lock(BYTES, LockKind::Exclusive).unwrap());
    assert_eq!(held_and_cancelled(&pool), (1, 5));
    file.close().unwrap();
}

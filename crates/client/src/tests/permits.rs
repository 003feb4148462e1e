//! Lanes that refuse the old permit, because the pool's secret has changed.

use ramlace_base::{ByteRange, ErrorKind, Timestamp};
use ramlace_wire::Kind;
use ramlace_wire::runs::{Strided, Tile};

use super::{SHORT_MILLIS, UNIT, in_haste, pattern, read, striped, write_all};
use crate::fake::{FakePool, Fault};
use crate::{File, OpenOptions, Pool};

/// A pool whose lanes require permits, and a file of two lanes.
fn start() -> (FakePool, Pool, File) {
    let pool = FakePool::start(2);
    pool.state().renew_permit();
    let client = pool.connect();
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, &pattern(8 << 20, 1), 0);
    (pool, client, file)
}

/// How many requests of a kind `work` has caused to be processed.
fn done(pool: &FakePool, kind: Kind, work: impl FnOnce()) -> usize {
    let before = pool.done(kind);
    work();
    pool.done(kind) - before
}

// SEMANTICS 130.3
#[test]
fn a_change_whose_answer_was_lost_is_done_once_also_by_a_new_permit() {
    let (pool, _client, file) = start();
    write_all(&file, &[0; 16], 0);
    let tiles = vec![Tile::once(vec![Strided { offset: 0, length: 8, count: 64, stride: 4096 }])];
    let changes: [(Kind, &dyn Fn()); 5] = [
        (Kind::ChangeCell, &|| assert!(file.fetch_add(8, 5).is_ok())),
        (Kind::WriteChunk, &|| write_all(&file, b"bytes", 4000)),
        (Kind::WriteChunk, &|| write_all(&file, &pattern(6 << 20, 2), UNIT)),
        (Kind::WriteRuns, &|| assert!(file.write_runs(&tiles, &pattern(64 * 8, 3)).is_ok())),
        (Kind::PunchChunk, &|| file.punch(ByteRange { start: 3 * UNIT, end: 4 * UNIT }).unwrap()),
    ];
    for (kind, change) in changes {
        let usual = done(&pool, kind, change);
        assert!(usual > 0, "{kind:?}");
        pool.fault(kind, Fault::LoseReplyAndRenew);
        assert_eq!(done(&pool, kind, change), usual, "{kind:?}");
        assert!(pool.state().faults.is_empty());
    }
}

// SEMANTICS 130.3
#[test]
fn a_cell_whose_answer_was_lost_is_counted_up_once_by_a_new_permit() {
    let (pool, _client, file) = start();
    write_all(&file, &[0; 16], 0);
    for before in [0, 5, 10] {
        pool.fault(Kind::ChangeCell, Fault::LoseReplyAndRenew);
        assert_eq!(file.fetch_add(8, 5).unwrap(), before);
    }
    assert_eq!(read(&file, 8, 8), 15u64.to_le_bytes());
}

// SEMANTICS 130.2
#[test]
fn everything_goes_on_when_lanes_take_another_permit() {
    let (pool, _client, file) = start();
    let renewed = || pool.state().renew_permit();
    for _ in 0..2 {
        renewed();
        assert_eq!(read(&file, 5, 5), pattern(10, 1)[5..]);
        renewed();
        assert!(read(&file, 0, 8 << 20) == pattern(8 << 20, 1));
        renewed();
        // Also requests that are never repeated as a whole: those that report a kernel's stores.
        file.publish_stores(Some(Timestamp { nanos: 0 })).unwrap();
    }
    assert_eq!(pool.done(Kind::NoteChange), 4);
}

// SEMANTICS 130.4
#[test]
fn while_the_home_is_down_an_old_permit_is_no_refusal() {
    let (pool, client, _) = start();
    let hints = ramlace_wire::LayoutHints { width: Some(1), ..striped(1).hints };
    let files = (0..8)
        .map(|number| client.open(format!("/single{number}"), &OpenOptions { hints, ..striped(1) }).unwrap());
    let files: Vec<File> = files.collect();
    files.iter().for_each(|file| write_all(file, &pattern(3 << 20, 1), 0));
    let map = pool.state().map.clone();
    let home = map.primary(files[0].inode().slot()).unwrap();
    pool.state().renew_permit();
    pool.state().silent.insert(home);
    for file in &files {
        for length in [8, 3 << 20] {
            let written = in_haste(&client, SHORT_MILLIS, || file.write_at(&pattern(length, 2), 0));
            let error = written.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::HostDown | ErrorKind::TimedOut), "{error}");
        }
    }
    pool.state().silent.clear();
}

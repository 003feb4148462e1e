//! Inline files: one request for each call, and their promotion to lanes.

use ramlace_base::{ByteRange, ErrorKind};
use ramlace_wire::Kind;

use super::{back, pattern, read, striped, write_all};
use crate::OpenOptions;
use crate::fake::FakePool;

#[test]
fn a_call_on_a_small_file_is_one_request() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/small", &striped(2)).unwrap();
    let counts = |kinds: &[Kind]| kinds.iter().map(|kind| pool.done(*kind)).sum::<usize>();
    let all = || pool.state().done.values().sum::<usize>();
    let before = all();
    write_all(&file, &pattern(4000, 1), 0);
    assert_eq!(read(&file, 0, 1 << 20), pattern(4000, 1));
    assert_eq!(read(&file, 3000, 10), pattern(4000, 1)[3000..3010]);
    assert_eq!(file.append(b"end").unwrap(), 4000);
    assert_eq!(read(&file, 4000, 100), b"end");
    assert_eq!(back(&file, &[7; 4096], 0).unwrap(), 4096);
    assert_eq!(all() - before, 6);
    assert_eq!(read(&file, 0, 5000), [7; 4003]);
    assert_eq!(counts(&[Kind::WriteChunk, Kind::ReadChunk, Kind::Promote, Kind::Extend]), 0);
}

#[test]
fn whoever_is_late_follows_the_file_to_its_lanes() {
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let mut expected = pattern(100, 1);
    for round in 0..6 {
        let name = format!("/file{round}");
        let file = here.open(&name, &striped(2)).unwrap();
        write_all(&file, &pattern(100, 1), 0);
        let late = there.open(&name, &striped(2)).unwrap();
        write_all(&file, &[9; 4096], 100);
        expected.truncate(100);
        expected.extend([9; 4096]);
        // The other client still takes it for inline.
        match round {
            0 => assert_eq!(read(&late, 0, 10_000), expected),
            1 => {
                write_all(&late, b"late", 50);
                expected[50..54].copy_from_slice(b"late");
            }
            2 => {
                assert_eq!(late.append(b"late").unwrap(), 4196);
                expected.extend(b"late");
            }
            3 => {
                assert_eq!(back(&late, &[1; 4096], 4096).unwrap(), 4096);
                expected[4096..].fill(1);
            }
            4 => {
                late.punch(ByteRange { start: 10, end: 20 }).unwrap();
                expected[10..20].fill(0);
            }
            _ => {
                late.truncate(60).unwrap();
                expected.truncate(60);
            }
        }
        assert_eq!(read(&late, 0, 10_000), expected, "round {round}");
        assert_eq!(read(&file, 0, 10_000), expected, "round {round}");
        expected = pattern(100, 1);
    }
    // A call that needs the lanes themselves asks for them once more, and learns that the file has them.
    assert_eq!(pool.done(Kind::Promote), 6 + 1);
}

#[test]
fn a_small_file_may_end_far_behind_its_bytes() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/sparse", &striped(2)).unwrap();
    write_all(&file, b"head", 0);
    file.truncate(100_000).unwrap();
    let mut expected = vec![0; 100_000];
    expected[..4].copy_from_slice(b"head");
    assert_eq!(read(&file, 0, 200_000), expected);
    assert_eq!(read(&file, 50_000, 10), [0; 10]);
    assert_eq!(read(&file, 99_999, 10), [0]);
    // A page behind what an inode can hold, written back.
    assert_eq!(back(&file, &[5; 8192], 96_000).unwrap(), 8192);
    expected[96_000..].fill(5);
    assert_eq!(read(&file, 0, 200_000), expected);
    assert_eq!(pool.done(Kind::Promote), 1);
}

#[test]
fn pages_behind_the_end_of_a_small_file_are_dropped() {
    let pool = FakePool::start(1);
    let file = pool.connect().open("/mapped", &striped(1)).unwrap();
    write_all(&file, &[1; 100], 0);
    assert_eq!(back(&file, &[2; 4096], 0).unwrap(), 4096);
    assert_eq!(back(&file, &[3; 12_288], 0).unwrap(), 12_288);
    assert_eq!(back(&file, &[4; 4096], 4096).unwrap(), 4096);
    assert_eq!(read(&file, 0, 9000), [3; 100]);
    assert_eq!(pool.done(Kind::Promote), 0);
}

#[test]
fn a_file_that_finds_no_room_in_its_lanes_stays_as_it_is() {
    let pool = FakePool::start(1);
    pool.state().lane_bytes_max = 4000;
    let file = pool.connect().open("/f", &OpenOptions { append: true, ..striped(1) }).unwrap();
    write_all(&file, &[1; 4096], 0);
    let full = |error: ramlace_base::Error| assert_eq!(error.kind(), ErrorKind::NoSpace);
    full(file.write_at(&[2; 10], 0).unwrap_err());
    full(file.reserve(ByteRange { start: 0, end: 10_000 }, false).unwrap_err());
    assert_eq!(read(&file, 0, 9000), [1; 4096]);
    pool.state().lane_bytes_max = 1 << 20;
    assert_eq!(file.append(&[2; 10]).unwrap(), 4096);
    assert_eq!(read(&file, 4090, 100), [[1; 6].as_slice(), &[2; 10]].concat());
}

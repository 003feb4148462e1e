//! Reads, writes, appends and sizes against plain vectors.

use std::io::{IoSlice, IoSliceMut};

use proptest::prelude::*;
use ramlace_base::{ByteRange, ErrorKind};
use ramlace_wire::Kind;

use super::{UNIT, back, pattern, read, striped, write_all};
use crate::OpenOptions;
use crate::fake::{FakePool, Fault};

#[test]
fn bytes_come_back_around_every_border() {
    let pool = FakePool::start(3);
    let client = pool.connect();
    for width in [1, 2, 3] {
        let file = client.open(format!("/borders{width}"), &striped(width)).unwrap();
        let mut model = Vec::new();
        for (index, border) in [4096, UNIT, 2 * UNIT, 3 * UNIT, (1 << 20) + UNIT].into_iter().enumerate() {
            for (start, length) in [(border - 1, 2), (border, 1), (border - 5, 5), (border - 3, 200_000)] {
                let bytes = pattern(length, index as u8);
                write_all(&file, &bytes, start);
                model.resize(model.len().max(start as usize + length), 0);
                model[start as usize..][..length].copy_from_slice(&bytes);
            }
        }
        assert!(read(&file, 0, model.len() + 10) == model, "width {width}");
        assert!(pool.state().content(file.inode()) == model, "width {width}");
        assert_eq!(file.size().unwrap(), model.len() as u64);
        assert_eq!(read(&file, model.len() as u64, 10), b"");
        assert_eq!(read(&file, model.len() as u64 - 1, 10).len(), 1);
    }
}

#[test]
fn a_small_read_or_write_is_one_request() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/small", &striped(2)).unwrap();
    write_all(&file, &[1; 8192], 0);
    let before = pool.state().seen.values().sum::<usize>();
    write_all(&file, &[2; 4096], 4096);
    assert_eq!(read(&file, 4000, 200), [&[1; 96][..], &[2; 104]].concat());
    assert_eq!(pool.state().seen.values().sum::<usize>(), before + 2);
}

#[test]
fn much_memory_is_taken_in_several_requests_that_each_have_their_time() {
    let pool = FakePool::start(1);
    let file = pool.connect().open("/large", &striped(1)).unwrap();
    file.allocate(5 << 29).unwrap();
    let taken = std::mem::take(&mut pool.state().allocated);
    let taken: Vec<_> = taken.iter().map(|part| (part.offset, part.length, part.more)).collect();
    assert_eq!(taken, [(0, 1 << 30, 3 << 29), (1 << 30, 1 << 30, 1 << 29), (2 << 30, 1 << 29, 0)]);
    assert_eq!(file.size().unwrap(), 5 << 29);
    pool.state().lane_bytes_max = 6 << 29;
    assert_eq!(file.allocate(7 << 29).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(pool.state().allocated.is_empty(), "what cannot fit takes nothing");
}

// SEMANTICS 137.5
#[test]
fn a_write_that_extends_is_one_request_where_its_home_is() {
    let asked = |pool: &FakePool, kinds: [Kind; 4]| kinds.map(|kind| pool.seen(kind));
    let kinds = [Kind::ExtendChunk, Kind::WriteChunk, Kind::Extend, Kind::Promote];
    let pool = FakePool::start(1);
    let (here, there) = (pool.connect(), pool.connect());
    let file = here.open("/grows", &striped(1)).unwrap();
    let mut model = Vec::new();
    for step in 0..4 {
        write_all(&file, &pattern(10_000, step), u64::from(step) * 10_000);
        model.extend(pattern(10_000, step));
    }
    assert_eq!(asked(&pool, kinds), [4, 0, 0, 0]);
    write_all(&file, &pattern(10_000, 9), 5_000);
    model[5_000..15_000].copy_from_slice(&pattern(10_000, 9));
    assert_eq!(asked(&pool, kinds), [4, 1, 0, 0], "it is not longer");
    // The home refuses it: it has another generation, and says so when it is asked.
    there.truncate("/grows", 25_000).unwrap();
    write_all(&file, &pattern(10_000, 7), 40_000);
    model.truncate(25_000);
    model.resize(40_000, 0);
    model.extend(pattern(10_000, 7));
    assert!(read(&file, 0, 100_000) == model && pool.state().content(file.inode()) == model);
    assert_eq!(file.size().unwrap(), 50_000);
    // An answer that is lost.
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Retry] {
        pool.fault(Kind::ExtendChunk, fault);
        write_all(&file, &pattern(10_000, 3), model.len() as u64);
        model.extend(pattern(10_000, 3));
        assert!(pool.state().content(file.inode()) == model, "{fault:?}");
    }
    // In a pool of two servers, one of two chunks lies on the other one.
    let pool = FakePool::start(2);
    let file = pool.connect().open("/grows", &striped(2)).unwrap();
    for chunk in 0..4 {
        write_all(&file, &pattern(UNIT as usize, chunk), u64::from(chunk) * UNIT);
    }
    assert_eq!(asked(&pool, kinds), [2, 2, 2, 0]);
    assert_eq!(file.size().unwrap(), 4 * UNIT);
}

// SEMANTICS 137.5
#[test]
fn what_has_bytes_is_promoted_before_lanes_are_written() {
    let pool = FakePool::start(1);
    let (here, there) = (pool.connect(), pool.connect());
    let file = here.open("/small", &striped(1)).unwrap();
    let other = there.open("/small", &striped(1)).unwrap();
    write_all(&other, b"there", 0);
    // Empty, as far as this client knows.
    write_all(&file, &pattern(10_000, 1), 100);
    assert_eq!(pool.done(Kind::Promote), 1);
    let expected = [&b"there"[..], &[0; 95], &pattern(10_000, 1)].concat();
    assert!(read(&file, 0, 20_000) == expected && read(&other, 0, 20_000) == expected);
}

#[test]
fn small_chunks_share_requests() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/shared", &striped(2)).unwrap();
    write_all(&file, &pattern(4 << 20, 1), 0);
    // 64 chunks in 2 lanes of 2 MiB, at most 1 MiB each.
    assert_eq!(pool.seen(Kind::WriteChunk), 4);
    assert!(read(&file, 0, 4 << 20) == pattern(4 << 20, 1));
    assert_eq!(pool.seen(Kind::ReadChunk), 4);
}

#[test]
fn a_pool_that_fills_up_says_how_much_was_written() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/full", &striped(2)).unwrap();
    pool.state().lane_bytes_max = 2 << 20;
    let bytes = pattern(6 << 20, 3);
    let written = file.write_at(&bytes, 0).unwrap();
    assert!(written > 0 && written <= 4 << 20, "{written}");
    assert_eq!(file.size().unwrap(), written as u64);
    assert!(read(&file, 0, bytes.len()) == bytes[..written]);
    let error = file.write_at(&bytes, 4 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().starts_with("/full: "), "{error}");
}

#[test]
fn truncation_elsewhere_is_noticed() {
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let file = here.open("/cut", &striped(2)).unwrap();
    write_all(&file, &pattern(300_000, 1), 0);
    there.truncate("/cut", 100_000).unwrap();
    assert!(read(&file, 0, 300_000) == pattern(300_000, 1)[..100_000]);
    write_all(&file, b"end", 99_999);
    there.truncate("/cut", 0).unwrap();
    // This client knows the size 100,002: the write must learn the new one and extend again.
    write_all(&file, b"x", 10);
    assert_eq!(file.size().unwrap(), 11);
    assert_eq!(read(&file, 0, 100), [&[0; 10][..], b"x"].concat());
}

#[test]
fn a_write_back_never_makes_a_file_longer() {
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let file = here.open("/mapped", &striped(2)).unwrap();
    write_all(&file, &pattern(300_000, 1), 0);
    let extended = pool.done(Kind::Extend);
    let page = [7; 4096];
    assert_eq!(back(&file, &page, 100_000).unwrap(), 4096);
    assert_eq!(back(&file, &page, 299_999).unwrap(), 4096);
    assert_eq!(back(&file, &page, 300_000).unwrap(), 4096);
    assert_eq!((file.size().unwrap(), pool.done(Kind::Extend)), (300_000, extended));
    let mut expected = pattern(300_000, 1);
    expected[100_000..104_096].fill(7);
    expected[299_999] = 7;
    assert!(read(&file, 0, 400_000) == expected);
    // This client knows the size 300,000: the lanes answer that this is outdated.
    there.truncate("/mapped", 250_000).unwrap();
    assert_eq!(back(&file, &pattern(300_000, 2), 0).unwrap(), 300_000);
    assert!(read(&file, 0, 400_000) == pattern(250_000, 2));
    there.truncate("/mapped", 10).unwrap();
    assert_eq!(back(&file, &page, 200_000).unwrap(), 4096);
    assert_eq!(file.size().unwrap(), 10);
    // What another client has appended is visible here as well.
    write_all(&there.open("/mapped", &striped(2)).unwrap(), &[1; 90_000], 10);
    assert_eq!(back(&file, &page, 90_000).unwrap(), 4096);
    assert_eq!(read(&file, 89_999, 10_000), [&[1][..], &[7; 10]].concat());
    there.truncate("/mapped", 300_000).unwrap();
    assert_eq!(read(&file, 90_010, 300_000), vec![0; 209_990]);
    let reading = here.open("/mapped", &OpenOptions::reading()).unwrap();
    assert_eq!(back(&reading, &page, 0).unwrap_err().kind(), ErrorKind::BadHandle);
}

#[test]
fn memory_is_taken_with_and_without_the_size() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/reserved", &striped(2)).unwrap();
    write_all(&file, &pattern(100_000, 1), 0);
    let range = |start, end| ByteRange { start, end };
    file.reserve(range(50_000, 500_000), true).unwrap();
    assert_eq!(file.size().unwrap(), 100_000);
    file.reserve(range(50_000, 500_000), false).unwrap();
    assert!(read(&file, 0, 600_000) == [pattern(100_000, 1), vec![0; 400_000]].concat());
    file.zero(range(10, 99_990), true).unwrap();
    let mut expected = pattern(100_000, 1);
    expected[10..99_990].fill(0);
    assert!(read(&file, 0, 100_000) == expected);
    file.zero(range(499_990, 700_000), true).unwrap();
    assert_eq!(file.size().unwrap(), 500_000);
    file.zero(range(499_990, 700_000), false).unwrap();
    assert_eq!(file.size().unwrap(), 700_000);
    pool.state().lane_bytes_max = 400_000;
    let error = file.reserve(range(0, 900_000), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().starts_with("/reserved: "), "{error}");
    assert_eq!(file.zero(range(0, 900_000), false).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.size().unwrap(), 700_000);
    assert_eq!(file.reserve(range(1, 1 << 63), true).unwrap_err().kind(), ErrorKind::TooBig);
}

#[test]
fn appends_of_many_threads_do_not_mix() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let options = OpenOptions { append: true, ..striped(2) };
    let file = client.open("/log", &options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..50 {
                    file.write_at(&[thread; 1000], 0).unwrap();
                }
            });
        }
    });
    let all = read(&file, 0, 300_000);
    assert_eq!(all.len(), 200_000);
    assert!(all.chunks(1000).all(|record| record.iter().all(|byte| *byte == record[0])));
}

#[test]
fn times_of_overwrites_are_exact_for_the_writer() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/times", &striped(1)).unwrap();
    write_all(&file, b"first", 0);
    let before = client.stat("/times").unwrap().attributes.modified;
    write_all(&file, b"again", 0);
    assert!(client.stat("/times").unwrap().attributes.modified > before);
    let pushed = pool.done(Kind::SetAttributes);
    client.stat("/times").unwrap();
    assert_eq!(pool.done(Kind::SetAttributes), pushed);
}

#[test]
fn holes_punches_and_vectors() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/holes", &striped(2)).unwrap();
    let parts = [pattern(1000, 1), pattern(UNIT as usize * 3, 2), pattern(7, 3)];
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let start = 2 * UNIT - 500;
    let all = parts.concat();
    assert_eq!(file.write_vectored_at(&slices, start).unwrap(), all.len());
    let (mut first, mut second) = (vec![9; start as usize + 10], vec![9; all.len()]);
    let read =
        file.read_vectored_at(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], 0).unwrap();
    assert_eq!(read, start as usize + all.len());
    assert!(first[..start as usize].iter().all(|byte| *byte == 0) && first[start as usize..] == all[..10]);
    assert!(second[..all.len() - 10] == all[10..]);
    file.punch(ByteRange { start: 2 * UNIT, end: 4 * UNIT }).unwrap();
    let mut expected = all.clone();
    expected[500..500 + 2 * UNIT as usize].fill(0);
    assert!(self::read(&file, start, all.len()) == expected);
    assert_eq!(file.write_at(b"x", u64::MAX).unwrap_err().kind(), ErrorKind::TooBig);
    // As everywhere beyond the end: nothing is read.
    assert_eq!(file.read_at(&mut [0; 2], (1 << 62) - 1).unwrap(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, length: usize, seed: u8 },
    Read { offset: u64, length: usize },
    Truncate { size: u64 },
    Append { length: usize, seed: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![
        0..2_000_000u64,
        (0..30u64, 0..3u64).prop_map(|(chunk, by)| (chunk * UNIT + by).saturating_sub(1))
    ];
    let length = prop_oneof![0..10usize, 0..200_000usize, Just(UNIT as usize), Just(2 << 20)];
    prop_oneof![
        4 => (near.clone(), length.clone(), any::<u8>())
            .prop_map(|(offset, length, seed)| Step::Write { offset, length, seed }),
        4 => (near.clone(), length.clone()).prop_map(|(offset, length)| Step::Read { offset, length }),
        1 => near.prop_map(|size| Step::Truncate { size }),
        1 => (length, any::<u8>()).prop_map(|(length, seed)| Step::Append { length, seed }),
    ]
}

#[test]
fn any_sequence_of_calls_is_as_on_a_vector() {
    let pool = FakePool::start(4);
    let (client, other) = (pool.connect(), pool.connect());
    let count = std::sync::atomic::AtomicUsize::new(0);
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    let steps = proptest::collection::vec((step(), any::<bool>()), 1..20);
    proptest!(config, |(width in 1..5u16, steps in steps)| {
        let name = format!("/p{}", count.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        let files = [client.open(&name, &striped(width)).unwrap(), other.open(&name, &striped(width)).unwrap()];
        let mut model: Vec<u8> = Vec::new();
        for (step, elsewhere) in steps {
            let file = &files[usize::from(elsewhere)];
            match step {
                Step::Write { offset, length, seed } => {
                    let bytes = pattern(length, seed);
                    prop_assert_eq!(file.write_at(&bytes, offset).unwrap(), length);
                    if length > 0 {
                        model.resize(model.len().max(offset as usize + length), 0);
                        model[offset as usize..][..length].copy_from_slice(&bytes);
                    }
                }
                Step::Read { offset, length } => {
                    let start = (offset as usize).min(model.len());
                    let end = (offset as usize + length).min(model.len());
                    prop_assert!(read(file, offset, length) == model[start..end]);
                }
                Step::Truncate { size } => {
                    file.truncate(size).unwrap();
                    model.resize(size as usize, 0);
                }
                Step::Append { length, seed } => {
                    let bytes = pattern(length, seed);
                    prop_assert_eq!(file.append(&bytes).unwrap(), model.len() as u64);
                    model.extend_from_slice(&bytes);
                }
            }
        }
        prop_assert!(read(&files[0], 0, model.len() + 1) == model);
        drop(files);
        client.unlink(&name).unwrap();
    });
}

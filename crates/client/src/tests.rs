//! The client against a pool of fakes: what it does when the network or the pool misbehaves.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ramlace_base::{ByteRange, ErrorKind, ServerId};
use ramlace_wire::{FileKind, Kind, LayoutHints};

use crate::fake::{FakePool, Fault};
use crate::{ArrayType, ConnectOptions, File, OpenOptions, Order, Pool};

const UNIT: u64 = 64 << 10;

fn striped(width: u16) -> OpenOptions {
    let hints = LayoutHints { stripe_unit: Some(UNIT), width: Some(width), copies: Some(1) };
    OpenOptions { hints, ..OpenOptions::creating() }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed | 1).collect()
}

fn write_all(file: &File, bytes: &[u8], offset: u64) {
    assert_eq!(file.write_at(bytes, offset).unwrap(), bytes.len());
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; length];
    let read = file.read_at(&mut buffer, offset).unwrap();
    buffer.truncate(read);
    buffer
}

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
fn lost_replies_have_one_effect() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Retry, Fault::Moved] {
        let dir = format!("/{fault:?}");
        pool.fault(Kind::MakeDirectory, fault);
        client.mkdir(&dir, 0o755).unwrap();
        pool.fault(Kind::Create, fault);
        let options = OpenOptions { exclusive: true, ..striped(2) };
        let file = client.open(format!("{dir}/file"), &options).unwrap();
        let before = pool.done(Kind::ReserveAppend);
        pool.fault(Kind::ReserveAppend, fault);
        assert_eq!(file.append(b"once").unwrap(), 0);
        assert_eq!(pool.done(Kind::ReserveAppend), before + 1);
        if fault != Fault::Moved {
            // A write that is told Retry begins anew: it must not be counted, its bytes must.
            pool.fault(Kind::WriteChunk, fault);
        }
        write_all(&file, b"twice?", 4);
        pool.fault(Kind::Extend, fault);
        write_all(&file, b"!", 10);
        assert_eq!(read(&file, 0, 20), b"oncetwice?!");
        pool.fault(Kind::Unlink, fault);
        client.unlink(format!("{dir}/file")).unwrap();
        pool.fault(Kind::RemoveDirectory, fault);
        client.rmdir(&dir).unwrap();
    }
}

#[test]
fn a_large_transfer_survives_lost_connections() {
    let pool = FakePool::start(3);
    let file = pool.connect().open("/large", &striped(3)).unwrap();
    let bytes = pattern(20 << 20, 9);
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Retry, Fault::Moved] {
        pool.fault(Kind::WriteChunk, fault);
    }
    write_all(&file, &bytes, 0);
    for fault in [Fault::LoseRequest, Fault::Retry, Fault::LoseReply, Fault::Moved] {
        pool.fault(Kind::ReadChunk, fault);
    }
    assert!(read(&file, 0, bytes.len()) == bytes);
    assert!(pool.state().faults.is_empty());
}

#[test]
fn a_silent_server_is_named_in_time_and_the_others_work() {
    let pool = FakePool::start(2);
    let options = ConnectOptions { deadline_millis: 300, ..pool.options() };
    let client = Pool::connect(&options).unwrap();
    let one = LayoutHints { width: Some(1), ..striped(1).hints };
    let files: Vec<File> = (0..8)
        .map(|index| client.open(format!("/f{index}"), &OpenOptions { hints: one, ..striped(1) }).unwrap())
        .collect();
    let wide = client.open("/wide", &striped(2)).unwrap();
    write_all(&wide, &pattern(1 << 20, 0), 0);
    files.iter().for_each(|file| write_all(file, b"data", 0));
    let silent = ServerId(1);
    pool.state().silent.insert(silent);
    let (mut answered, mut failed) = (0, 0);
    for file in &files {
        match file.read_at(&mut [0; 4], 0) {
            Ok(_) => answered += 1,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::HostDown), "{error}");
                let address = pool.state().map.servers[1].tcp.clone();
                assert!(
                    error.message().contains("server 1") && error.message().contains(&address),
                    "{error}"
                );
                assert!(error.message().contains("ramlace status"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(answered > 0 && failed > 0, "{answered} {failed}");
    let begun = Instant::now();
    let error = wide.read_at(&mut vec![0; 1 << 20], 0).unwrap_err();
    assert!(error.message().contains("server 1"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    pool.state().silent.clear();
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
    // Sizes are known to be 100,002 here: the write must find out and extend again.
    write_all(&file, b"x", 10);
    assert_eq!(file.size().unwrap(), 11);
    assert_eq!(read(&file, 0, 100), [&[0; 10][..], b"x"].concat());
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
fn trees_are_made_listed_and_removed() {
    let pool = FakePool::start(3);
    let client = pool.connect();
    client.mkdir_all("/a/b/c/", 0o755).unwrap();
    client.mkdir_all("a/b/c", 0o755).unwrap();
    for index in 0..10 {
        client.open(format!("/a/b/f{index}"), &striped(1)).unwrap();
    }
    client.symlink("../b/f3", "/a/b/link").unwrap();
    assert_eq!(client.read_link("/a/b/link").unwrap(), b"../b/f3");
    let names: Vec<String> =
        client.read_dir("/a/b").unwrap().map(|entry| entry.unwrap().name.to_string()).collect();
    assert_eq!(names.len(), 12);
    assert_eq!(client.stat("/a/b/link").unwrap().attributes.kind, FileKind::File);
    assert_eq!(client.lstat("/a/b/link").unwrap().attributes.kind, FileKind::Symlink);
    assert!(client.exists("/a/b/c").unwrap() && !client.exists("/a/x/y").unwrap());
    for (error, kind) in [
        (client.mkdir("/a", 0o755).unwrap_err(), ErrorKind::Exists),
        (client.mkdir("/", 0o755).unwrap_err(), ErrorKind::Exists),
        (client.mkdir_all("/a/b/f1/x", 0o755).unwrap_err(), ErrorKind::NotDirectory),
        (client.rmdir("/a").unwrap_err(), ErrorKind::NotEmpty),
        (client.rmdir("/").unwrap_err(), ErrorKind::Invalid),
        (client.unlink("/a").unwrap_err(), ErrorKind::IsDirectory),
        (client.unlink("/a/b/f1/").unwrap_err(), ErrorKind::NotDirectory),
        (client.read_link("/a").unwrap_err(), ErrorKind::Invalid),
        (client.read_dir("/a/b/f1").err().unwrap(), ErrorKind::NotDirectory),
        (client.open("/a", &striped(1)).unwrap_err(), ErrorKind::IsDirectory),
        (client.open("/new/", &striped(1)).unwrap_err(), ErrorKind::IsDirectory),
        (client.open("/none", &OpenOptions::reading()).unwrap_err(), ErrorKind::NotFound),
        (client.open("/a", &OpenOptions::default()).unwrap_err(), ErrorKind::Invalid),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains('/') || error.kind() == ErrorKind::Invalid, "{error}");
    }
    client.remove_tree("/a").unwrap();
    assert_eq!(client.read_dir("/").unwrap().count(), 0);
    assert_eq!(client.remove_tree("/a").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn one_reference_for_all_files_of_an_inode() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let first = client.open("/one", &striped(1)).unwrap();
    let second = client.open("/one", &striped(1)).unwrap();
    drop(first);
    assert_eq!(pool.done(Kind::Close), 0);
    write_all(&second, b"still open", 0);
    second.close().unwrap();
    assert_eq!(pool.done(Kind::Close), 1);
    assert!(pool.state().open.is_empty());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| drop(client.open("/one", &striped(1)).unwrap())));
        }
    });
    assert!(pool.state().open.is_empty());
    let last = client.open("/one", &striped(1)).unwrap();
    drop(client);
    drop(last);
    assert!(pool.state().open.is_empty());
    assert!(pool.done(Kind::CloseSession) >= 1);
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
    // As everywhere: there is nothing beyond the end.
    assert_eq!(file.read_at(&mut [0; 2], (1 << 62) - 1).unwrap(), 0);
}

#[test]
fn copies_publish_what_differs_and_keep_it_on_refresh() {
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let kind = ArrayType::new(&[100_000], "<f8", Order::C).unwrap();
    let array = here.create_array("/array", &kind, striped(2).hints, 0o644).unwrap();
    let error = array.map(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("copy"), "{error}");
    let (mine, theirs) = (array.into_copy().unwrap(), there.open_array("/array", true, Some(&kind)).unwrap());
    let theirs = theirs.into_copy().unwrap();
    let set = |copy: &crate::Copy, index: usize, value: f64| {
        // SAFETY: the copy has 100,000 elements.
        unsafe { copy.as_ptr().cast::<f64>().add(index).write(value) };
    };
    // SAFETY: as above.
    let get = |copy: &crate::Copy, index: usize| unsafe { copy.as_ptr().cast::<f64>().add(index).read() };
    set(&mine, 7, 1.5);
    (0..1000).for_each(|index| set(&mine, 50 * index, index as f64 + 1.0));
    set(&theirs, 8, 2.5);
    assert_eq!(mine.publish().unwrap(), 1001 * 8);
    assert_eq!(mine.publish().unwrap(), 0);
    assert_eq!(theirs.publish().unwrap(), 8);
    set(&theirs, 9, 3.5);
    theirs.refresh().unwrap();
    mine.refresh().unwrap();
    assert_eq!(
        (get(&theirs, 7), get(&theirs, 8), get(&theirs, 9), get(&theirs, 49_950)),
        (1.5, 2.5, 3.5, 1000.0)
    );
    assert_eq!((get(&mine, 7), get(&mine, 8), get(&mine, 9)), (1.5, 2.5, 0.0));
    assert_eq!(theirs.publish().unwrap(), 8);

    let other = ArrayType::new(&[50_000, 2], "<f8", Order::F).unwrap();
    let error = there.open_array("/array", false, Some(&other)).unwrap_err();
    assert!(error.message().contains("(100000)") && error.message().contains("(50000, 2)"), "{error}");
    there.open("/plain", &striped(1)).unwrap();
    assert_eq!(there.open_array("/plain", false, None).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn an_array_that_does_not_fit_leaves_nothing() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    pool.state().lane_bytes_max = 1 << 20;
    let kind = ArrayType::new(&[1 << 20], "<f8", Order::C).unwrap();
    let error = client.create_array("/big", &kind, LayoutHints::default(), 0o644).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(!client.exists("/big").unwrap());
}

#[test]
fn an_ended_session_stays_ended() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/open", &striped(1)).unwrap();
    let session = client.session().unwrap();
    pool.state().forget_sessions();
    write_all_or_stale(&file);
    assert!(session.is_ended());
    let error = client.mkdir("/x", 0o755).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert!(error.message().contains("connect again"), "{error}");
}

fn write_all_or_stale(file: &File) {
    let mut last = None;
    for _ in 0..3 {
        last = file.write_at(b"x", 0).err();
        if let Ok(session) = file.pool().session() {
            session.beat(Instant::now() + Duration::from_secs(1));
        }
    }
    assert_eq!(last.unwrap().kind(), ErrorKind::Stale);
}

#[test]
fn nobody_else_is_let_in() {
    let pool = FakePool::start(1);
    let other = FakePool::start(1);
    let options = ConnectOptions { secret_file: other.options().secret_file, ..pool.options() };
    let error = Pool::connect(&options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let options = ConnectOptions { addresses: vec!["localhost".into()], ..pool.options() };
    assert_eq!(Pool::connect(&options).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn a_forked_child_speaks_for_itself() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/forked", &striped(2)).unwrap();
    write_all(&file, b"parent", 0);
    // Another thread holds every lock it can while the process forks.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                write_all(&file, &[1; 100_000], 1_000_000);
            }
        });
        for index in 0..5u64 {
            // SAFETY: the child calls nothing but the client and `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let done = file.write_at(b"child", 10 * (index + 1)).is_ok_and(|written| written == 5)
                    && read(&file, 0, 6) == b"parent";
                // SAFETY: ends the child without the test runner's own handlers.
                unsafe { libc::_exit(i32::from(!done)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child that was just started.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "child {index}");
            assert_eq!(read(&file, 10 * (index + 1), 5), b"child");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(read(&file, 0, 6), b"parent");
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

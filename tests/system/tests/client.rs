//! The client library against real servers, with the local shortcuts and without.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ramlace_base::ErrorKind;
use ramlace_client::{ArrayType, File, OpenOptions, Order, Pool, fault};
use ramlace_system_tests::{TestPool, pattern};
use ramlace_wire::LayoutHints;

const UNIT: u64 = 64 << 10;

fn striped(width: u16) -> OpenOptions {
    let hints = LayoutHints { stripe_unit: Some(UNIT), width: Some(width), copies: Some(1) };
    OpenOptions { hints, ..OpenOptions::creating() }
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

fn write_around_borders(client: &Pool, name: &str, options: &OpenOptions) {
    let unit = options.hints.stripe_unit.unwrap_or(2 << 20);
    let file = client.open(name, options).unwrap();
    let mut model = Vec::new();
    let borders = [4096, unit, 2 * unit, 3 * unit, 4 * unit, (1 << 20) + unit];
    for (index, border) in borders.into_iter().enumerate() {
        for (before, length) in [(1, 2), (0, 1), (5, 5), (3, 70_000), (4096, 8192), (1, (2 << 20) + 2)] {
            let (start, bytes) = (border - before, pattern(length, index as u8));
            write_all(&file, &bytes, start);
            model.resize(model.len().max(start as usize + length), 0);
            model[start as usize..][..length].copy_from_slice(&bytes);
            let from = start.saturating_sub(1) as usize;
            let expected = &model[from..][..(length + 2).min(model.len() - from)];
            assert!(read(&file, from as u64, length + 2) == expected, "{name} at {start}");
        }
    }
    assert!(read(&file, 0, model.len() + 10) == model, "{name}");
    assert_eq!(file.size().unwrap(), model.len() as u64);
}

#[test]
fn bytes_come_back_around_every_border() {
    let pool = TestPool::start(3, "384MiB");
    for local in [true, false] {
        let client = pool.connect(local);
        for width in [1, 2, 3] {
            write_around_borders(&client, &format!("/borders-{local}-{width}"), &striped(width));
        }
        write_around_borders(&client, &format!("/usual-{local}"), &OpenOptions::creating());
    }
}

#[test]
fn clients_on_one_file_see_each_other() {
    let pool = TestPool::start(3, "256MiB");
    let record = 100_003;
    let sessions: Vec<Pool> = (0..4).map(|index| pool.connect(index % 2 == 0)).collect();
    sessions[0].open("/together", &striped(3)).unwrap();
    std::thread::scope(|scope| {
        for (index, client) in sessions.iter().enumerate() {
            scope.spawn(move || {
                let file = client.open("/together", &striped(3)).unwrap();
                for round in 0..20 {
                    let at = (round * 4 + index) * record;
                    write_all(&file, &pattern(record, at as u8), at as u64);
                    assert!(read(&file, at as u64, record) == pattern(record, at as u8));
                }
            });
        }
    });
    let file = sessions[1].open("/together", &OpenOptions::reading()).unwrap();
    assert_eq!(file.size().unwrap(), 80 * record as u64);
    for index in 0..80 {
        let at = index * record;
        assert!(read(&file, at as u64, record) == pattern(record, at as u8), "record {index}");
    }
}

#[test]
fn small_overlapping_writes_are_whole() {
    let pool = TestPool::start(2, "128MiB");
    let (here, there) = (pool.connect(true), pool.connect(false));
    let files = [here.open("/torn", &striped(2)).unwrap(), there.open("/torn", &striped(2)).unwrap()];
    write_all(&files[0], &[7; 4096], 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (index, file) in files.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                for round in 0..500u32 {
                    write_all(file, &[(2 * round) as u8 | index as u8; 4096], 0);
                }
                stop.store(true, Ordering::Release);
            });
        }
        let reader = here.open("/torn", &OpenOptions::reading()).unwrap();
        while !stop.load(Ordering::Acquire) {
            let bytes = read(&reader, 0, 4096);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn read");
        }
    });
}

#[test]
fn appends_of_many_threads_do_not_mix() {
    let pool = TestPool::start(2, "128MiB");
    let sessions = [pool.connect(true), pool.connect(false)];
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let client = &sessions[usize::from(thread % 2)];
            scope.spawn(move || {
                let file = client.open("/log", &OpenOptions { append: true, ..striped(2) }).unwrap();
                (0..100).for_each(|_| assert_eq!(file.write_at(&[thread + 1; 1000], 0).unwrap(), 1000));
            });
        }
    });
    let all = read(&sessions[0].open("/log", &OpenOptions::reading()).unwrap(), 0, 500_000);
    assert_eq!(all.len(), 400_000);
    for thread in 1..=4 {
        let records = all.chunks(1000).filter(|record| record.iter().all(|byte| *byte == thread));
        assert_eq!(records.count(), 100, "thread {thread}");
    }
}

#[test]
fn truncation_races_leave_written_bytes_or_zeros() {
    let pool = TestPool::start(2, "128MiB");
    let (writer, cutter) = (pool.connect(true), pool.connect(false));
    let file = writer.open("/race", &striped(2)).unwrap();
    let other = cutter.open("/race", &striped(2)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100u64 {
                write_all(&file, &pattern(50_000, 1), (round * 37_777) % 500_000);
            }
        });
        scope.spawn(|| (0..50u64).for_each(|round| other.truncate((round * 41_111) % 300_000).unwrap()));
    });
    let end = 400_000;
    other.truncate(1000).unwrap();
    other.truncate(end).unwrap();
    assert_eq!(file.size().unwrap(), end);
    let bytes = read(&file, 0, end as usize);
    assert!(bytes[1000..].iter().all(|byte| *byte == 0), "bytes came back from behind a truncation");
    write_all(&file, b"after", end);
    assert_eq!(read(&other, end, 10), b"after");
}

#[test]
fn a_truncation_elsewhere_is_seen_behind_a_hole() {
    let pool = TestPool::start(2, "128MiB");
    let (here, there) = (pool.connect(true), pool.connect(false));
    let file = here.open("/sparse", &striped(2)).unwrap();
    file.truncate(300_000).unwrap();
    assert_eq!(read(&file, 299_000, 2000), [0; 1000]);
    there.truncate("/sparse", 10).unwrap();
    // No lane was ever written, so none has heard of the truncation.
    assert_eq!(read(&file, 0, 100), [0; 10]);
    there.truncate("/sparse", 0).unwrap();
    assert_eq!(read(&file, 0, 1), b"");
}

#[test]
fn lost_replies_have_one_effect() {
    let pool = TestPool::start(2, "128MiB");
    let client = pool.connect(true);
    let lose = || fault::drop_replies(1);
    lose();
    client.mkdir("/d", 0o755).unwrap();
    lose();
    let file = client.open("/d/f", &OpenOptions { exclusive: true, ..striped(2) }).unwrap();
    for round in 0..10u64 {
        lose();
        assert_eq!(file.append(b"0123456789").unwrap(), 10 * round);
    }
    lose();
    write_all(&file, b"x", 100);
    assert_eq!(file.size().unwrap(), 101);
    lose();
    client.symlink("f", "/d/l").unwrap();
    lose();
    client.unlink("/d/l").unwrap();
    drop(file);
    lose();
    client.unlink("/d/f").unwrap();
    lose();
    client.rmdir("/d").unwrap();
    assert!(!client.exists("/d").unwrap());
}

#[test]
fn a_forked_child_opens_its_own_session() {
    let pool = TestPool::start(2, "128MiB");
    let client = pool.connect(true);
    let file = client.open("/forked", &striped(2)).unwrap();
    write_all(&file, b"parent", 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write_all(&file, &[1; 100_000], 1_000_000);
            }
        });
        for index in 1..=5u64 {
            // SAFETY: the child calls nothing but the client and `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let done = file.write_at(b"child", 10 * index).is_ok() && read(&file, 0, 6) == b"parent";
                // SAFETY: ends the child without the test runner's own handlers.
                unsafe { libc::_exit(i32::from(!done)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child that was just started.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "child {index}");
            assert_eq!(read(&file, 10 * index, 5), b"child");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn arrays_are_mapped_here_and_copied_elsewhere() {
    let pool = TestPool::start(3, "384MiB");
    let (here, elsewhere) = (pool.connect(true), pool.connect(false));
    let kind = ArrayType::new(&[1 << 20, 3], "<f8", Order::F).unwrap();
    for hints in
        [LayoutHints::default(), LayoutHints { width: Some(1), ..LayoutHints::default() }, striped(3).hints]
    {
        let array = here.create_array("/a", &kind, hints, 0o644).unwrap();
        let mapping = array.map(true).unwrap();
        assert_eq!(mapping.len() as u64, kind.bytes());
        let elements = mapping.as_ptr().cast::<f64>();
        for index in (0..3 << 20).step_by(1000) {
            // SAFETY: the array has 3 Mi elements, and nobody else touches them now.
            unsafe { elements.add(index).write(index as f64 + 1.0) };
        }
        let again = here.open_array("/a", true, Some(&kind)).unwrap();
        let second = again.map(false).unwrap();
        for index in [0, 1000, 262_000, 3_000_000] {
            // SAFETY: as above.
            assert_eq!(unsafe { second.as_ptr().cast::<f64>().add(index).read() }, index as f64 + 1.0);
            let bytes = read(again.file(), 8 * index as u64, 8);
            assert_eq!(f64::from_ne_bytes(bytes.try_into().unwrap()), index as f64 + 1.0);
        }
        let remote = elsewhere.open_array("/a", true, Some(&kind)).unwrap();
        let error = remote.map(true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("copy"), "{error}");
        let copy = remote.into_copy().unwrap();
        // SAFETY: the copy has as many elements as the array.
        unsafe {
            assert_eq!(copy.as_ptr().cast::<f64>().add(262_000).read(), 262_001.0);
            copy.as_ptr().cast::<f64>().add(5).write(-1.0);
        }
        assert_eq!(copy.publish().unwrap(), 8);
        // SAFETY: as above.
        assert_eq!(unsafe { elements.add(5).read() }, -1.0);
        drop((array, again, copy));
        here.unlink("/a").unwrap();
        // Mappings outlive the file.
        // SAFETY: as above.
        assert_eq!(unsafe { second.as_ptr().cast::<f64>().add(1000).read() }, 1001.0);
    }
}

#[test]
fn a_full_pool_says_so_and_deleting_frees() {
    let pool = TestPool::start(2, "64MiB");
    let client = pool.connect(false);
    let file = client.open("/fill", &striped(2)).unwrap();
    let (bytes, mut at) = (pattern(3 << 20, 5), 0u64);
    let error = loop {
        match file.write_at(&bytes, at) {
            Ok(written) => at += written as u64,
            Err(error) => break error,
        }
        assert!(at < 80 << 20, "the pool took more than it has");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(at > 40 << 20, "{at}");
    assert_eq!(file.size().unwrap(), at);
    let mut offset = 0;
    while offset < at {
        let length = (at - offset).min(bytes.len() as u64) as usize;
        let mut buffer = vec![0; length];
        assert_eq!(file.read_at(&mut buffer, offset).unwrap(), length);
        offset += length as u64;
    }
    drop(file);
    client.unlink("/fill").unwrap();
    let again = client.open("/again", &striped(2)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    // Freeing follows the unlink, it does not precede its answer.
    while again.write_at(&vec![1; 8 << 20], 0).is_err() {
        assert!(Instant::now() < deadline, "deleting did not free");
    }
}

#[test]
fn a_killed_server_comes_back_with_every_acknowledged_byte() {
    let pool = TestPool::start(3, "256MiB");
    let client = pool.connect(true);
    for index in 0..20u8 {
        let file = client.open(format!("/f{index}"), &striped(3)).unwrap();
        write_all(&file, &pattern(300_000, index), 0);
    }
    let held = client.open("/held", &striped(3)).unwrap();
    for id in 0..3 {
        let status = client.server_status(ramlace_base::ServerId(id)).unwrap();
        let pid = rustix::process::Pid::from_raw(status.pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        write_all(&held, &pattern(200_000, id as u8), 200_000 * u64::from(id));
        for index in 0..20u8 {
            let file = client.open(format!("/f{index}"), &OpenOptions::reading()).unwrap();
            assert!(read(&file, 0, 300_000) == pattern(300_000, index), "file {index} after server {id}");
        }
    }
    for id in 0..3 {
        assert!(read(&held, 200_000 * id, 200_000) == pattern(200_000, id as u8));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, length: usize, seed: u8 },
    Read { offset: u64, length: usize },
    Truncate { size: u64 },
    Append { length: usize, seed: u8 },
    Punch { offset: u64, length: u64 },
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
        1 => near.clone().prop_map(|size| Step::Truncate { size }),
        1 => (length, any::<u8>()).prop_map(|(length, seed)| Step::Append { length, seed }),
        1 => (near, 0..500_000u64).prop_map(|(offset, length)| Step::Punch { offset, length }),
    ]
}

#[test]
fn any_sequence_of_calls_is_as_on_a_vector() {
    let pool = TestPool::start(4, "512MiB");
    let (client, other) = (pool.connect(true), pool.connect(false));
    let count = AtomicUsize::new(0);
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let steps = proptest::collection::vec((step(), any::<bool>()), 1..25);
    proptest!(config, |(width in 1..5u16, steps in steps)| {
        let name = format!("/p{}", count.fetch_add(1, Ordering::SeqCst));
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
                Step::Punch { offset, length } => {
                    file.punch(ramlace_base::ByteRange { start: offset, end: offset + length }).unwrap();
                    let start = (offset as usize).min(model.len());
                    let end = ((offset + length) as usize).min(model.len());
                    model[start..end].fill(0);
                }
            }
        }
        prop_assert!(read(&files[0], 0, model.len() + 1) == model);
        drop(files);
        client.unlink(&name).unwrap();
    });
}

//! The client library against real servers, with the local shortcuts and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ramlace_base::{ByteRange, ErrorKind, Name, ServerId};
use ramlace_client::{
    ArrayType, DataLeases, DataRecall, File, OpenOptions, Order, Pool, RecallsMade, RenameMode, fault,
};
use ramlace_sync::Mutex;
use ramlace_system_tests::{TestPool, pattern};
use ramlace_wire::LayoutHints;
use ramlace_wire::leases::EndRecalls;

const UNIT: u64 = 64 << 10;

fn striped(width: u16) -> OpenOptions {
    let hints = LayoutHints {
        stripe_unit: Some(UNIT),
        width: Some(width),
        copies: Some(1),
        ..LayoutHints::default()
    };
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

// SEMANTICS 3
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

// SEMANTICS 6.2
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

/// A kernel that has pages no longer than this is locked, in which they are read, stored into and written back.
struct Kernel {
    pool: Pool,
    pages: Arc<Mutex<()>>,
}

impl DataLeases for Kernel {
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]) {
        let _none = self.pages.lock();
        let done: Vec<u64> = recalls.iter().map(|recall| recall.number).collect();
        self.pool.end_recalls(server, EndRecalls::of_done(&done));
    }

    fn forgotten(&self, _: ServerId, _: u64) {}

    fn unheard(&self, _: ServerId) {}
}

#[test]
fn a_write_back_that_races_with_truncations_never_makes_the_file_longer() {
    let pool = TestPool::start(2, "128MiB");
    let (writer, cutter) = (pool.connect(true), pool.connect(false));
    let pages = Arc::new(Mutex::new(()));
    writer.on_data_recalls(Arc::new(Kernel { pool: writer.clone(), pages: pages.clone() }));
    let file = writer.open("/mapped", &striped(2)).unwrap();
    let other = cutter.open("/mapped", &striped(2)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (file, stop, pages) = (&file, &stop, &pages);
            scope.spawn(move || {
                // Pages, as the kernel writes them back, and runs of pages across lanes and requests.
                let mut round = thread;
                while !stop.load(Ordering::Acquire) {
                    let length = [4096, 100_000, 200_000][(round % 3) as usize];
                    let at = (round * 36_864) % 450_000;
                    let _there = pages.lock();
                    file.read_keeping(&mut vec![0; length], at, &|_| ()).unwrap();
                    let written = file.write_back(&vec![9; length], at, &mut RecallsMade::default());
                    assert_eq!(written.unwrap(), length);
                    round += 2;
                }
            });
        }
        for round in 0..150u64 {
            let size = (round * 41_111) % 300_000;
            other.truncate(size).unwrap();
            // Nobody but this thread changes the size.
            assert_eq!(other.size().unwrap(), size);
            assert_eq!(read(&other, size.saturating_sub(1), 10).len() as u64, size.min(1));
            other.truncate(size / 2).unwrap();
            other.truncate(size).unwrap();
        }
        stop.store(true, Ordering::Release);
    });
    other.truncate(1000).unwrap();
    other.truncate(400_000).unwrap();
    assert!(read(&file, 1000, 400_000) == vec![0; 399_000], "bytes came back from behind a truncation");
}

#[test]
fn memory_that_was_reserved_beyond_the_end_outlives_the_last_close() {
    let pool = TestPool::start(2, "64MiB");
    let client = pool.connect(true);
    let used = || client.statfs().unwrap().used_bytes;
    let file = client.open("/reserved", &striped(2)).unwrap();
    write_all(&file, &pattern(1000, 1), 0);
    let before = used();
    let range = |start, end| ByteRange { start, end };
    file.reserve(range(0, 24 << 20), true).unwrap();
    assert!(used() >= before + (23 << 20), "{} {before}", used());
    assert_eq!(file.size().unwrap(), 1000);
    file.close().unwrap();
    // Another open and close: the second close follows what the first one has set off.
    client.open("/reserved", &OpenOptions::reading()).unwrap().close().unwrap();
    assert!(used() >= before + (23 << 20), "the last close gave it back");
    let filler = client.open("/filler", &striped(2)).unwrap();
    let bytes = vec![1; 1 << 20];
    let mut at = 0;
    while let Ok(written) = filler.write_at(&bytes, at) {
        at += written as u64;
    }
    let file = client.open("/reserved", &striped(2)).unwrap();
    write_all(&file, &pattern(24 << 20, 2), 0);
    // Zeroing gives memory back, and takes it again or says so.
    file.zero(range(5, (24 << 20) - 5), true).unwrap();
    let mut expected = pattern(24 << 20, 2);
    expected[5..(24 << 20) - 5].fill(0);
    assert!(read(&file, 0, 24 << 20) == expected);
    write_all(&file, &pattern(24 << 20, 3), 0);
    // A truncation to the size that it has takes what lies beyond.
    let freed = used();
    file.truncate(1000).unwrap();
    assert!(used() + (22 << 20) < freed);
    let error = file.reserve(range(0, 80 << 20), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.message().starts_with("/reserved: "), "{error}");
}

#[test]
fn a_process_that_slept_too_long_goes_on_in_a_new_session() {
    let pool = TestPool::start(2, "64MiB");
    let watcher = pool.connect(false);
    let sessions = || {
        let status = watcher.server_status(ramlace_base::ServerId(0)).unwrap();
        status.sessions
    };
    let alone = sessions();
    // SAFETY: the child calls nothing but the client and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(|| sleep_too_long(&pool.connect(true))).is_ok();
        // SAFETY: ends the child without the test runner's own handlers.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    // SAFETY: signals the child that was just started, which nobody else waits for.
    let send = |signal| assert_eq!(unsafe { libc::kill(child, signal) }, 0);
    let wait = |options| {
        let mut status = 0;
        // SAFETY: waits for the same child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, options) }, child);
        status
    };
    // It stops itself when its files are open.
    assert!(libc::WIFSTOPPED(wait(libc::WUNTRACED)));
    let deadline = Instant::now() + Duration::from_secs(40);
    while sessions() > alone && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    send(libc::SIGCONT);
    assert_eq!(wait(0), 0, "what the child says stands above");
}

fn sleep_too_long(client: &Pool) {
    let (old, unlinked) =
        (client.open("/old", &striped(2)).unwrap(), client.open("/gone", &striped(2)).unwrap());
    write_all(&old, b"before", 0);
    client.unlink("/gone").unwrap();
    // SAFETY: stops this process, which its parent waits for.
    assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    let error = old.write_at(b"after", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    assert!(client.is_ended());
    assert_eq!(client.stat("/old").unwrap_err().kind(), ErrorKind::Stale);
    assert!(client.reconnect().unwrap() && !client.reconnect().unwrap());
    for error in
        [old.size().unwrap_err(), old.truncate(0).unwrap_err(), unlinked.read_at(&mut [0], 0).unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    }
    let again = client.open("/old", &striped(2)).unwrap();
    assert_eq!(read(&again, 0, 10), b"before");
    write_all(&again, b"after", 6);
    drop(old);
    assert_eq!(read(&again, 0, 20), b"beforeafter");
}

/// Large reads on this machine come straight from the lanes' files: what others have done to the file counts all
/// the same, at once.
// SEMANTICS 111.1
#[test]
fn an_entry_is_opened_in_its_directory_wherever_that_has_gone() {
    let pool = TestPool::start(3, "96MiB");
    let client = Pool::connect(&pool.options(true)).unwrap();
    client.mkdir("/named", 0o755).unwrap();
    client.mkdir("/other", 0o755).unwrap();
    let directory = client.stat("/named").unwrap().attributes.inode;
    let exclusive = OpenOptions { exclusive: true, ..OpenOptions::creating() };
    let open = |name: &str, options: &OpenOptions| {
        client.open_at(directory, &Name::new(name).unwrap(), format!("/named/{name}"), options)
    };
    write_all(&open("before", &exclusive).unwrap(), b"here", 0);

    client.rename("/named", "/moved", RenameMode::Replace).unwrap();
    client.symlink("/other", "/named").unwrap();
    write_all(&open("behind", &exclusive).unwrap(), b"here too", 0);
    assert_eq!(read(&open("before", &OpenOptions::reading()).unwrap(), 0, 9), b"here");
    assert_eq!(read(&client.open("/moved/behind", &OpenOptions::reading()).unwrap(), 0, 9), b"here too");
    assert_eq!(client.read_dir("/other").unwrap().count(), 0);

    client.symlink("/other/made", "/moved/link").unwrap();
    for options in [OpenOptions::reading(), OpenOptions::creating(), exclusive] {
        let refused = open("link", &options).unwrap_err();
        let kind = if options.exclusive { ErrorKind::Exists } else { ErrorKind::Loop };
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(refused.message().starts_with("/named/link: "), "{refused}");
    }
    assert!(!client.exists("/other/made").unwrap());
    let emptied = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    assert_eq!(open("before", &emptied).unwrap().size().unwrap(), 0);
    client.rmdir("/other").unwrap();
    assert_eq!(open("nothing", &OpenOptions::reading()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn large_local_reads_see_what_others_have_done() {
    let pool = TestPool::start(3, "384MiB");
    let (near, far) = (pool.connect(true), pool.connect(false));
    let size = 6 << 20;
    for width in [1, 3] {
        let path = format!("/near-{width}");
        let theirs = far.open(&path, &striped(width)).unwrap();
        let ours = near.open(&path, &OpenOptions::reading()).unwrap();
        let mut model = vec![0; size];
        for round in 0..12u8 {
            let bytes = pattern(size - 1000 * usize::from(round), round);
            write_all(&theirs, &bytes, 0);
            model.resize(model.len().max(bytes.len()), 0);
            model[..bytes.len()].copy_from_slice(&bytes);
            assert!(read(&ours, 0, size + 10) == model, "written, round {round}");
            // What the reader knows of the size does not send it to the home: the lanes have to say it.
            let before = model.len();
            match round % 3 {
                0 => {
                    let cut = (2 << 20) + 77 * usize::from(round);
                    theirs.truncate(cut as u64).unwrap();
                    model.truncate(cut);
                }
                1 => {
                    // Shorter and longer again: what was cut off is zeros, and the length is as before.
                    theirs.truncate(1_000_001).unwrap();
                    theirs.truncate(model.len() as u64).unwrap();
                    model[1_000_001..].fill(0);
                }
                _ => {
                    let range = ByteRange { start: 123_456, end: 3_210_987 };
                    theirs.punch(range).unwrap();
                    model[123_456..3_210_987].fill(0);
                }
            }
            assert!(read(&ours, 0, before) == model, "changed, round {round}");
        }
        near.unlink(&path).unwrap();
        assert!(read(&ours, 0, size) == model[..model.len().min(size)], "unlinked, and still open");
    }
}

/// A reader's large reads of what was never written take no memory and no lane.
#[test]
fn large_local_reads_of_holes_take_nothing() {
    let pool = TestPool::start(1, "256MiB");
    let client = pool.connect(true);
    let file = client.open("/hole", &OpenOptions::creating()).unwrap();
    file.truncate(64 << 20).unwrap();
    let before = client.statfs().unwrap().used_bytes;
    for offset in [0, 8 << 20, 60 << 20] {
        assert_eq!(read(&file, offset, 4 << 20), vec![0; 4 << 20]);
    }
    assert_eq!(client.statfs().unwrap().used_bytes, before);
}

#[test]
fn a_truncation_elsewhere_is_seen_behind_a_hole() {
    let pool = TestPool::start(2, "128MiB");
    let (here, there) = (pool.connect(true), pool.connect(false));
    let file = here.open("/sparse", &striped(2)).unwrap();
    file.truncate(300_000).unwrap();
    assert_eq!(read(&file, 299_000, 2000), [0; 1000]);
    there.truncate("/sparse", 10).unwrap();
    // No lane was ever written, so none was notified of the truncation.
    assert_eq!(read(&file, 0, 100), [0; 10]);
    there.truncate("/sparse", 0).unwrap();
    assert_eq!(read(&file, 0, 1), b"");
}

// SEMANTICS 13
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

// SEMANTICS 21
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

// SEMANTICS 8.1, 8.2
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

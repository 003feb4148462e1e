//! Bytes that a kernel caches: what requests say of them, and how their leases end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId, ServerId};
use ramlace_layout::lane_slot;
use ramlace_sync::Mutex;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::leases::{DataRecall, EndRecalls};
use ramlace_wire::{Chain, Kind};

use super::{SHORT_MILLIS, UNIT, in_haste, pattern, striped, write_all};
use crate::fake::{FakePool, Fault};
use crate::{ConnectOptions, DataLeases, File, Pool, RecallsMade, Turn};

fn ended(done: &[u64], blocked: &[u64]) -> EndRecalls {
    EndRecalls { blocked: blocked.to_vec(), ..EndRecalls::of_done(done) }
}

/// Remembers what it receives.
#[derive(Default)]
struct Kernel {
    recalled: Mutex<Vec<(ServerId, DataRecall)>>,
    forgotten: Mutex<Vec<(ServerId, u64)>>,
    unheard: Mutex<Vec<ServerId>>,
}

impl DataLeases for Kernel {
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]) {
        self.recalled.lock().extend(recalls.iter().map(|recall| (server, *recall)));
    }

    fn forgotten(&self, server: ServerId, life: u64) {
        self.forgotten.lock().push((server, life));
    }

    fn unheard(&self, server: ServerId) {
        self.unheard.lock().push(server);
    }
}

fn with_kernel(client: &Pool) -> Arc<Kernel> {
    let kernel = Arc::new(Kernel::default());
    client.on_data_recalls(kernel.clone());
    kernel
}

fn keep(file: &File, offset: u64, length: usize) -> (Vec<u8>, bool) {
    let mut buffer = vec![0xee; length];
    let read = file.read_keeping(&mut buffer, offset, &|_| ()).unwrap();
    buffer.truncate(read.bytes);
    (buffer, read.repeated)
}

pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn recall(number: u64) -> DataRecall {
    DataRecall { number, inode: InodeId(7), lane: None, start: 0, end: u64::MAX }
}

#[test]
fn requests_say_which_bytes_a_kernel_keeps_and_where_written_ones_come_from() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/file", &striped(2)).unwrap();
    let bytes = pattern(4 * UNIT as usize, 1);
    // An inline file, one request in a lane, and one for each lane.
    for (length, times) in [(100, 1), (5000, 1), (bytes.len(), 2)] {
        let bytes = &bytes[..length];
        write_all(&file, bytes, 0);
        pool.state().data.origins.clear();
        pool.state().data.keeps.clear();
        let mut made = RecallsMade::default();
        assert_eq!(file.write_at(bytes, 0).unwrap(), length);
        assert_eq!(file.write_through(bytes, 0).unwrap(), length);
        assert_eq!(file.write_back(bytes, 0, &mut made).unwrap(), length);
        assert!(keep(&file, 0, length) == (bytes.to_vec(), false));
        assert_eq!(file.read_at(&mut vec![0; length], 0).unwrap(), length);
        let state = pool.state();
        let expected = [WriteOrigin::Program, WriteOrigin::Through, WriteOrigin::Back];
        let each = |times| expected.iter().flat_map(move |origin| std::iter::repeat_n(*origin, times));
        assert!(state.data.origins.iter().copied().eq(each(times)), "{:?}", state.data.origins);
        assert_eq!(state.data.keeps, [vec![true; times], vec![false; times]].concat());
        assert_eq!(made.iter().count(), times, "the newest recall of each server");
        assert_eq!(made.iter().map(|(_, number)| number).max(), Some(state.data.made));
    }
}

#[test]
fn made_recalls_are_the_newest_of_each_server() {
    let (mut made, mut later) = (RecallsMade::default(), RecallsMade::default());
    made.note(ServerId(0), 7);
    made.note(ServerId(1), 0);
    assert!(made.iter().eq([(ServerId(0), 7)]));
    // Answers come in any order.
    later.note(ServerId(0), 2);
    later.note(ServerId(3), 1);
    made.add(&later);
    assert!(made.iter().eq([(ServerId(0), 7), (ServerId(3), 1)]));
    assert!(!made.is_empty() && RecallsMade::default().is_empty());
}

#[test]
fn a_repeated_read_for_pages_says_so() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let small = client.open("/small", &striped(2)).unwrap();
    let large = client.open("/large", &striped(2)).unwrap();
    let bytes = pattern(4 * UNIT as usize, 1);
    write_all(&small, &bytes[..100], 0);
    write_all(&large, &bytes, 0);
    for (file, kind, length) in [
        (&small, Kind::ReadInline, 100),
        (&large, Kind::ReadChunk, 100),
        (&large, Kind::ReadChunk, bytes.len()),
    ] {
        for (fault, repeated) in [(Fault::LoseReply, true), (Fault::LoseRequest, true), (Fault::Moved, false)]
        {
            pool.fault(kind, fault);
            assert!(keep(file, 0, length) == (bytes[..length].to_vec(), repeated), "{kind:?} {fault:?}");
            assert!(!keep(file, 0, length).1);
        }
    }
}

#[test]
fn recalls_are_told_once_on_a_connection_and_again_on_the_next() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let kernel = with_kernel(&client);
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, b"kept", 0);
    assert_eq!(pool.seen(Kind::Listen), 0, "nothing is kept yet");
    keep(&file, 0, 4);
    let server = client.map().unwrap().primary(file.inode().slot()).unwrap();
    let numbers = || kernel.recalled.lock().iter().map(|(_, told)| told.number).collect::<Vec<_>>();
    pool.state().data.recalls.push((server, recall(1)));
    eventually("a recall is received", || numbers() == [1]);
    pool.state().data.recalls.push((server, recall(2)));
    eventually("the next one is received alone", || numbers() == [1, 2]);
    pool.fault(Kind::Listen, Fault::LoseRequest);
    pool.state().data.recalls.push((server, recall(3)));
    eventually("all are received again", || numbers() == [1, 2, 1, 2, 3]);
    assert!(kernel.recalled.lock().iter().all(|(told, _)| *told == server));
    client.end_recalls(server, ended(&[1, 3], &[2]));
    assert_eq!(pool.state().data.ended, ended(&[1, 3], &[2]));
    assert!(kernel.forgotten.lock().is_empty());
}

// SEMANTICS 119.1
#[test]
fn a_new_life_of_a_server_is_told_before_what_it_recalls() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let kernel = with_kernel(&client);
    let file = client.open("/file", &striped(1)).unwrap();
    write_all(&file, b"kept", 0);
    keep(&file, 0, 4);
    for life in [9, 4] {
        pool.state().data.life = life;
        eventually("the new life is known", || kernel.forgotten.lock().pop() == Some((ServerId(0), life)));
        // A message about an ended incarnation is not sent.
        client.has_dropped_all(ServerId(0), life + 1);
        assert_ne!(pool.state().data.ended.life, life + 1);
        client.has_dropped_all(ServerId(0), life);
        assert_eq!(pool.state().data.ended.life, life);
    }
    assert!(kernel.recalled.lock().is_empty());
}

// SEMANTICS 119.4
#[test]
fn what_is_kept_of_a_server_goes_when_the_pool_has_forgotten_it() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let kernel = with_kernel(&client);
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, &pattern(4 * UNIT as usize, 1), 0);
    // A listener is notified of each of them.
    keep(&file, 0, 2 * UNIT as usize);
    eventually("both lives are known", || pool.done(Kind::Listen) >= 2);
    {
        let mut state = pool.state();
        state.map.servers[1].forgotten = true;
        let epoch = state.map.epoch.next();
        state.map.epoch = epoch;
        for chain in &mut state.map.chains {
            *chain = Chain { servers: vec![ServerId(0)], complete_since: epoch };
        }
        // Its connection is lost, and no other is made.
        state.faults.push((Kind::Listen, Fault::LoseRequest));
        state.faults.extend(std::iter::repeat_n((Kind::OpenSession, Fault::LoseRequest), 1_000));
        state.data.recalls.push((ServerId(1), recall(1)));
    }
    eventually("it is known that the server is gone", || *kernel.forgotten.lock() == [(ServerId(1), 1)]);
    // There is no server to notify.
    client.has_dropped_all(ServerId(1), 1);
    assert_eq!(pool.state().data.ended, EndRecalls::default());
}

// SEMANTICS 118.5
#[test]
fn what_a_kernel_keeps_of_a_server_that_says_nothing_is_given_up_and_not_of_one_that_answers() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let kernel = with_kernel(&client);
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, &pattern(4 * UNIT as usize, 1), 0);
    assert!(file.is_heard_of(), "nothing of it is kept");
    keep(&file, 0, 4 * UNIT as usize);
    eventually("both are listened to", || file.is_heard_of() && pool.seen(Kind::Listen) >= 4);
    let servers = pool.state().map.servers.len();
    let silent = ServerId(1);
    pool.state().silent.insert(silent);
    eventually("one is given up", || !kernel.unheard.lock().is_empty());
    assert_eq!((kernel.unheard.lock().clone(), servers), (vec![silent], 2));
    assert!(!file.is_heard_of());
    pool.state().silent.clear();
    eventually("it is heard of again", || file.is_heard_of());
    assert!(kernel.unheard.lock().iter().all(|of| *of == silent), "who answers in time is not given up");
    assert!(kernel.forgotten.lock().is_empty());
}

#[test]
fn a_client_that_listens_to_a_server_tells_it_so_that_the_session_lives() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let _kernel = with_kernel(&client);
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, &pattern(4 * UNIT as usize, 1), 0);
    keep(&file, 0, 2 * UNIT as usize);
    // As many as there would be heartbeats, which are sent at the same interval.
    eventually("it says so again and again", || pool.done(Kind::Listen) >= 2 * 4);
    // A heartbeat that is sent because the machine was too busy to listen does no harm.
    assert!(pool.seen(Kind::Heartbeat) * 4 < pool.done(Kind::Listen));
}

#[test]
fn a_newer_map_reaches_a_client_that_asks_for_nothing() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let _kernel = with_kernel(&client);
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, b"kept", 0);
    keep(&file, 0, 4);
    let asked = pool.seen(Kind::GetMap);
    let epoch = pool.state().map.epoch.next();
    pool.state().map.epoch = epoch;
    eventually("the map is known", || client.map().unwrap().epoch == epoch);
    assert_eq!(pool.seen(Kind::GetMap), asked);
}

#[test]
fn what_is_over_is_told_once_more_when_the_connection_was_lost() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    client.open("/file", &striped(1)).unwrap();
    client.end_recalls(ServerId(0), ended(&[1], &[]));
    for fault in [Fault::LoseRequest, Fault::LoseReply] {
        pool.fault(Kind::EndRecalls, fault);
        client.end_recalls(ServerId(0), ended(&[2], &[3]));
    }
    // Neither the first nor the second connection works: then it is sent with the next one, or by the
    // heartbeat thread.
    pool.fault(Kind::EndRecalls, Fault::LoseRequest);
    pool.fault(Kind::EndRecalls, Fault::LoseRequest);
    client.end_recalls(ServerId(0), ended(&[], &[4]));
    client.end_recalls(ServerId(0), ended(&[4], &[]));
    let state = pool.state();
    assert_eq!(state.data.ended.done, [1, 2, 2, 2, 4]);
    assert_eq!(state.data.ended.blocked, [3, 3, 3], "what is done is blocked no more");
}

#[test]
fn many_that_are_over_at_once_are_all_told() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                (0..200).for_each(|at| client.end_recalls(ServerId(0), ended(&[thread * 200 + at], &[])))
            });
        }
    });
    let all = || pool.state().data.ended.done.clone();
    eventually("every one is told", || all().len() == 1600);
    let mut done = all();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..1600));
}

// SEMANTICS 128.3
#[test]
fn bytes_wait_for_others_as_long_as_their_server_lives() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/file", &striped(2)).unwrap();
    let bytes = pattern(4 * UNIT as usize, 1);
    let late = |kind, act: &dyn Fn()| {
        pool.fault(kind, Fault::Late);
        in_haste(&client, SHORT_MILLIS, act);
    };
    late(Kind::WriteInline, &|| write_all(&file, &bytes[..10], 0));
    write_all(&file, &bytes[..5000], 0);
    late(Kind::WriteChunk, &|| write_all(&file, &bytes[..10], 0));
    late(Kind::WriteChunk, &|| write_all(&file, &bytes, 0));
    late(Kind::WaitPublished, &|| client.wait_published(ServerId(1), 5).unwrap());
    assert!(pool.state().data.published.contains(&(ServerId(1), 5)));
    // Calls, and reads for pages, wait for the owner of the bytes.
    for length in [10, bytes.len()] {
        late(Kind::ReadChunk, &|| assert_eq!(super::read(&file, 0, length), bytes[..length]));
        late(Kind::ReadChunk, &|| assert!(keep(&file, 0, length) == (bytes[..length].to_vec(), false)));
    }
    // Requests that are not about bytes wait for no other client.
    late(Kind::MakeDirectory, &|| {
        assert_eq!(client.mkdir("/d", 0o755).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// This many threads read for pages at once, and each of them is answered later than its deadline.
fn read_late(pool: &FakePool, file: &File, threads: usize, read: fn(&File) -> usize) -> Vec<usize> {
    for _ in 0..threads {
        pool.fault(Kind::ReadChunk, Fault::Late);
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| read(file))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    })
}

// SEMANTICS 128.1
#[test]
fn more_reads_than_there_are_connections_for_wait_for_their_turn() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &striped(1)).unwrap();
    write_all(&file, &pattern(2 * UNIT as usize, 1), 0);
    let strictly = |file: &File| file.read_strictly(&mut [0; 10], 0, (true, false), &|_| ()).unwrap();
    let for_pages = |file: &File| file.read_keeping(&mut [0; 10], 0, &|_| ()).unwrap().bytes;
    // All of them have to succeed, on a busy machine too.
    in_haste(&client, 4 * SHORT_MILLIS, || {
        assert_eq!(read_late(&pool, &file, 60, strictly), [10; 60]);
        assert_eq!(read_late(&pool, &file, 40, for_pages), [10; 40]);
    });
}

// SEMANTICS 128.2
#[test]
fn pages_are_written_back_however_many_reads_wait_for_others() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &striped(1)).unwrap();
    write_all(&file, &pattern(2 * UNIT as usize, 1), 0);
    let readers = 40;
    for _ in 0..readers {
        pool.fault(Kind::ReadChunk, Fault::Held);
    }
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| keep(&file, 0, 10));
        }
        // All connections for this are in use by then.
        eventually("reads wait", || pool.seen(Kind::ReadChunk) >= 16);
        let mut made = RecallsMade::default();
        assert_eq!(file.write_back(&[7; 100], 0, &mut made).unwrap(), 100);
        pool.state().releases_held = true;
    });
}

// SEMANTICS 128.6
#[test]
fn nobody_waits_for_other_machines_when_all_waits_are_over() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &striped(1)).unwrap();
    write_all(&file, &pattern(2 * UNIT as usize, 1), 0);
    let readers = 30;
    for _ in 0..readers {
        pool.fault(Kind::ReadChunk, Fault::Held);
    }
    std::thread::scope(|scope| {
        let read = || file.read_strictly(&mut [0; 10], 0, (true, false), &|_| ()).unwrap_err().kind();
        let waiting: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
        eventually("reads wait", || pool.seen(Kind::ReadChunk) >= 24);
        client.end_waits();
        // What is held is never answered.
        waiting.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), ErrorKind::TimedOut));
    });
}

// SEMANTICS 128.6
#[test]
fn what_was_stored_has_its_time_when_all_waits_are_over() {
    let pool = FakePool::start(1);
    let patient = Pool::connect(&ConnectOptions { deadline_millis: 60_000, ..pool.options() }).unwrap();
    let hasty = pool.connect();
    let file = patient.open("/file", &striped(1)).unwrap();
    write_all(&file, &pattern(2 * UNIT as usize, 1), 0);
    patient.end_waits();
    hasty.end_waits();
    pool.fault(Kind::WriteChunk, Fault::Late);
    assert_eq!(file.write_back(&[7; 100], 0, &mut RecallsMade::default()).unwrap(), 100);
    // But no longer than that.
    let file = hasty.open("/file", &striped(1)).unwrap();
    pool.fault(Kind::WriteChunk, Fault::Late);
    let write_back = || file.write_back(&[8; 100], 0, &mut RecallsMade::default());
    let error = in_haste(&hasty, SHORT_MILLIS, write_back).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

// SEMANTICS 128.14
#[test]
fn a_read_for_pages_tells_when_it_waits_for_its_turn_and_nothing_of_its_answer_is_known() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/file", &striped(2)).unwrap();
    let (session, layout) = (client.session().unwrap(), pool.state().layout_of(file.inode()));
    let map = session.map().unwrap();
    let server_of = |slot| session.server_of(&map, slot).unwrap().id;
    // Sizes are asked for at another server, where there are places.
    let is_elsewhere =
        |lane: &u16| server_of(lane_slot(&layout, *lane, map.slots())) != server_of(file.inode().slot());
    let start = u64::from((0..2).find(is_elsewhere).expect("each server has a lane")) * UNIT;
    write_all(&file, &pattern(10_000, 1), start);
    let (whole, beyond) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let read = |told: &Mutex<Vec<Turn>>, length, offset| {
        file.read_strictly(&mut vec![0; length], start + offset, (true, false), &|turn| {
            told.lock().push(turn)
        })
        .unwrap()
    };
    assert_eq!((read(&whole, 4096, 0), read(&beyond, 8192, 4096)), (4096, 10_000 - 4096));
    assert_eq!((&*whole.lock(), &*beyond.lock()), (&vec![], &vec![]), "there was a place");
    let (readers, before) = (24, pool.seen(Kind::ReadChunk));
    (0..readers).for_each(|_| pool.fault(Kind::ReadChunk, Fault::Held));
    std::thread::scope(|scope| {
        (0..readers).for_each(|_| {
            _ = scope.spawn(|| file.read_strictly(&mut [0; 10], start, (false, false), &|_| ()).unwrap())
        });
        eventually("all places are taken", || pool.seen(Kind::ReadChunk) >= before + readers);
        // Where the file ends, this one knows before its turn comes.
        let until_end = scope.spawn(|| read(&beyond, 8192, 4096));
        let until_page = scope.spawn(|| read(&whole, 4096, 4096));
        eventually("it waits", || *whole.lock() == [Turn::Waits]);
        let waiting = || {
            session.server_of(&map, lane_slot(&layout, (start / UNIT) as u16, map.slots())).unwrap().waiting()
        };
        eventually("both wait", || waiting() == 2);
        pool.state().releases_held = true;
        assert_eq!((until_end.join().unwrap(), until_page.join().unwrap()), (10_000 - 4096, 4096));
    });
    assert_eq!((&*whole.lock(), &*beyond.lock()), (&vec![Turn::Waits, Turn::Comes], &vec![]));
}

// SEMANTICS 128.7
#[test]
fn a_strict_read_of_several_lanes_waits_for_nobody() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/file", &striped(2)).unwrap();
    write_all(&file, &pattern(4 * UNIT as usize, 1), 0);
    let length = 2 * UNIT as usize;
    let read = |own| file.read_strictly(&mut vec![0; length], 0, (own, false), &|_| ());
    let reads = |own| move || read(own).is_ok_and(|bytes| bytes == length);
    for own in [false, true] {
        eventually("what nobody has is read at once", reads(own));
        pool.fault(Kind::ReadChunk, Fault::Held);
        assert_eq!(read(own).unwrap_err().kind(), ErrorKind::Busy);
    }
    // Nor does it wait for a place that waiting threads have taken.
    let (readers, before) = (24, pool.seen(Kind::ReadChunk));
    (0..readers).for_each(|_| pool.fault(Kind::ReadChunk, Fault::Held));
    std::thread::scope(|scope| {
        (0..readers).for_each(|_| {
            _ = scope.spawn(|| file.read_strictly(&mut [0; 10], 0, (false, false), &|_| ()).unwrap())
        });
        eventually("reads wait", || pool.seen(Kind::ReadChunk) >= before + readers);
        assert_eq!(read(false).unwrap_err().kind(), ErrorKind::Busy);
        pool.state().releases_held = true;
    });
    eventually("its servers are believed to live", reads(false));
}

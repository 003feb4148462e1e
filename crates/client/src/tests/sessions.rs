//! The end of a session, its replacement, and forked children.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, ServerId};
use ramlace_layout::lane_slot;
use ramlace_wire::Kind;

use super::{UNIT, pattern, read, striped, write_all};
use crate::fake::FakePool;
use crate::{ConnectOptions, File, Pool};

// SEMANTICS 20.1
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

// SEMANTICS 20.2
#[test]
fn a_session_that_has_ended_is_opened_anew_by_no_server_that_never_had_it() {
    let pool = FakePool::start(3);
    let client = pool.connect();
    let file = client.open("/file", &striped(3)).unwrap();
    let session = client.session().unwrap();
    let map = session.map().unwrap();
    let layout = pool.state().layout_of(file.inode());
    let server_of = |lane| session.server_of(&map, lane_slot(&layout, lane, map.slots())).unwrap().id;
    let is_strange = |lane: &u16| !pool.state().has_session(server_of(*lane));
    // This promotes the file: its bytes are in lanes.
    let known = (0..3).find(|lane| !is_strange(lane)).expect("some server has the session");
    write_all(&file, &pattern(UNIT as usize, 1), u64::from(known) * UNIT);
    let strange = (0..3).find(is_strange).expect("some server has never had the session");
    let before = pool.seen(Kind::WriteChunk);
    pool.state().forget_sessions();
    let written = file.write_at(&[7; 10], u64::from(strange) * UNIT);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::Stale);
    assert!(client.is_ended());
    assert_eq!(pool.seen(Kind::WriteChunk), before, "nothing was asked in its name");
}

#[test]
fn a_new_session_follows_one_that_ended_and_its_files_stay_stale() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let clone = client.clone();
    let file = client.open("/old", &striped(2)).unwrap();
    write_all(&file, b"before", 0);
    let gone = ramlace_base::InodeId::new(ramlace_base::Slot(3), 999);
    assert_eq!(client.raw().info(gone).unwrap_err().kind(), ErrorKind::Stale);
    assert!(!client.is_ended() && !client.reconnect().unwrap(), "a deleted inode is no ended session");
    pool.state().forget_sessions();
    // One call that returns Stale is enough.
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::Stale);
    assert!(client.is_ended() && clone.is_ended());
    assert_eq!(clone.stat("/old").unwrap_err().kind(), ErrorKind::Stale);
    std::thread::scope(|scope| {
        let renewals: Vec<_> = (0..4).map(|_| scope.spawn(|| client.reconnect().unwrap())).collect();
        let begun = renewals.into_iter().map(|thread| thread.join().unwrap());
        assert_eq!(begun.filter(|begun| *begun).count(), 1);
    });
    assert!(!client.is_ended() && !clone.is_ended());
    for error in [
        file.read_at(&mut [0; 6], 0).unwrap_err(),
        file.write_at(b"x", 0).unwrap_err(),
        file.append(b"x").unwrap_err(),
        file.truncate(0).unwrap_err(),
        file.size().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Stale);
        assert!(error.message().starts_with("/old: "), "{error}");
    }
    let again = clone.open("/old", &striped(2)).unwrap();
    assert_eq!(read(&again, 0, 10), b"before");
    let closed = pool.done(Kind::Close);
    drop(file);
    assert_eq!(pool.done(Kind::Close), closed);
    write_all(&again, b"after", 0);
    again.close().unwrap();
    assert_eq!(pool.done(Kind::Close), closed + 1);
}

#[test]
fn whoever_asks_a_silent_server_about_an_ended_session_hears_of_the_end() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    client.mkdir("/d", 0o755).unwrap();
    let session = client.session().unwrap();
    let server = session.server(ServerId(0)).unwrap();
    pool.state().silent.insert(ServerId(0));
    assert!(session.confirm(&server).is_ok(), "silence says nothing of the session");
    let ended = session.end(&Error::new(ErrorKind::Stale, "it has expired"));
    let error = session.confirm(&server).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Stale, ended.message()));
    pool.state().silent.clear();
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

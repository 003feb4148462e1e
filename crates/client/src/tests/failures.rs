//! Replies that get lost, servers that do not answer, pools that are gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId, Result, ServerId, Slot};
use ramlace_sync::Mutex;
use ramlace_wire::{Kind, LayoutHints};

use super::{SHORT_MILLIS, in_haste, pattern, read, striped, write_all};
use crate::fake::{FakePool, Fault};
use crate::{ConnectOptions, Doubt, File, OpenOptions, Pool, RenameMode, Rights};

// SEMANTICS 13
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
        let before = pool.done(Kind::WriteInline);
        pool.fault(Kind::WriteInline, fault);
        assert_eq!(file.append(b"once").unwrap(), 0);
        assert_eq!(pool.done(Kind::WriteInline), before + 1);
        let before = pool.done(Kind::ReserveAppend);
        pool.fault(Kind::Promote, fault);
        pool.fault(Kind::ReserveAppend, fault);
        assert_eq!(file.append(&[7; 5000]).unwrap(), 4);
        assert_eq!(pool.done(Kind::ReserveAppend), before + 1);
        if fault != Fault::Moved {
            // A write that gets Retry begins anew: it must not be counted, its bytes must. Which of
            // the two is sent depends on where the home is.
            pool.fault(Kind::WriteChunk, fault);
            pool.fault(Kind::ExtendChunk, fault);
        }
        write_all(&file, b"twice?", 5004);
        pool.state().faults.clear();
        pool.fault(Kind::Extend, fault);
        write_all(&file, b"!", 5010);
        pool.state().faults.clear();
        assert_eq!(
            (read(&file, 0, 5), read(&file, 5003, 20)),
            (b"once\x07".to_vec(), b"\x07twice?!".to_vec())
        );
        pool.fault(Kind::Rename, fault);
        client.rename(format!("{dir}/file"), format!("{dir}/moved"), RenameMode::Replace).unwrap();
        pool.fault(Kind::Link, fault);
        client.link(format!("{dir}/moved"), format!("{dir}/file")).unwrap();
        client.unlink(format!("{dir}/moved")).unwrap();
        pool.fault(Kind::Unlink, fault);
        client.unlink(format!("{dir}/file")).unwrap();
        pool.fault(Kind::RemoveDirectory, fault);
        client.rmdir(&dir).unwrap();
    }
}

// SEMANTICS 7.4
#[test]
fn an_append_that_is_cut_off_is_done_behind_the_cut_at_once() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/log", &striped(2)).unwrap();
    for kind in [Kind::WriteChunk, Kind::FinishAppend] {
        write_all(&file, &[1; 5000], 0);
        let before = pool.done(Kind::ReserveAppend);
        pool.fault(kind, Fault::Truncated);
        assert_eq!(file.append(&[7; 3000]).unwrap(), 0, "{kind:?}");
        assert_eq!(pool.done(Kind::ReserveAppend), before + 2);
        assert_eq!(read(&file, 0, 10_000), [7; 3000]);
    }
    // A transient Retry is no truncation: nothing is written twice.
    let before = pool.done(Kind::ReserveAppend);
    pool.fault(Kind::FinishAppend, Fault::Retry);
    pool.fault(Kind::FinishAppend, Fault::LoseReply);
    assert_eq!(file.append(&[8; 3000]).unwrap(), 3000);
    assert_eq!(pool.done(Kind::ReserveAppend), before + 1);
    assert_eq!(file.append(&[9; 10]).unwrap(), 6000);
    assert_eq!(file.size().unwrap(), 6010);
}

// SEMANTICS 82.2
#[test]
fn a_lost_reply_changes_a_cell_once() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Retry, Fault::Moved] {
        let file = client.open(format!("/{fault:?}"), &striped(2)).unwrap();
        write_all(&file, &[0; 16], 0);
        for (kind, before) in [(Kind::ChangeInlineCell, 0), (Kind::ChangeCell, 12)] {
            pool.fault(kind, fault);
            assert_eq!(file.fetch_add(8, 5).unwrap(), before, "{kind:?} {fault:?}");
            pool.fault(kind, fault);
            assert_eq!(
                file.compare_swap(8, before + 5, before + 12).unwrap(),
                before + 5,
                "{kind:?} {fault:?}"
            );
            assert_eq!(file.fetch_add(8, 0).unwrap(), before + 12, "{kind:?} {fault:?}");
            assert!(pool.state().faults.is_empty());
            // Promotes it to its lanes.
            write_all(&file, &[1; 5000], 16);
        }
    }
}

// SEMANTICS 82.2
#[test]
fn a_cell_whose_answer_was_lost_is_changed_once_also_if_the_file_is_cut_before_it_is_asked_again() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/cut", &striped(2)).unwrap();
    write_all(&file, &[0; 10_000], 0);
    pool.fault(Kind::ChangeCell, Fault::LoseReplyAndCut);
    assert_eq!(file.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(file.fetch_add(8, 0).unwrap(), 5);
    pool.fault(Kind::ChangeCell, Fault::LoseReplyAndCut);
    assert_eq!(file.compare_swap(8, 5, 7).unwrap(), 5, "it has won");
    assert_eq!(file.fetch_add(8, 0).unwrap(), 7);
    assert!(pool.state().faults.is_empty());
}

// SEMANTICS 7.3
#[test]
fn an_append_whose_end_nobody_acknowledged_keeps_nothing_back() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/log", &striped(2)).unwrap();
    write_all(&file, &[1; 5000], 0);
    let lost = std::iter::repeat_n((Kind::FinishAppend, Fault::LoseRequest), 100_000);
    pool.state().faults.extend(lost);
    in_haste(&client, SHORT_MILLIS, || file.append(&[2; 3000]).unwrap_err());
    pool.state().faults.clear();
    // The next append of this client may lie in the same place: it waits until the home knows.
    assert_eq!(file.append(&[3; 1000]).unwrap(), 8000);
    assert_eq!(file.size().unwrap(), 9000);
    let lost = std::iter::repeat_n((Kind::FinishAppend, Fault::LoseRequest), 100_000);
    pool.state().faults.extend(lost);
    in_haste(&client, SHORT_MILLIS, || file.append(&[4; 1000]).unwrap_err());
    pool.state().faults.clear();
    let other = pool.connect().open("/log", &OpenOptions::reading()).unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    while other.size().unwrap() < 10_000 {
        assert!(Instant::now() < late, "the client has never told the home");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// SEMANTICS 113.2
#[test]
fn a_server_that_keeps_too_many_answers_is_told_that_they_have_come() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    for directory in ["/a", "/b"] {
        client.mkdir(directory, 0o755).unwrap();
        for file in 0..3 {
            drop(client.open(format!("{directory}/{file}"), &striped(1)).unwrap());
        }
    }
    client.remove_tree("/a").unwrap();
    let cancelled = pool.done(Kind::CancelChange);
    pool.fault(Kind::ChangeMany, Fault::TooMany);
    client.remove_tree("/b").unwrap();
    assert!(pool.done(Kind::CancelChange) > cancelled);
    // Where nothing can be acknowledged it is an error.
    client.mkdir("/c", 0o755).unwrap();
    pool.fault(Kind::MakeDirectory, Fault::TooMany);
    pool.fault(Kind::MakeDirectory, Fault::TooMany);
    assert_eq!(client.mkdir("/d", 0o755).unwrap_err().kind(), ErrorKind::TooMany);
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
    let client = pool.connect();
    let one = LayoutHints { width: Some(1), ..striped(1).hints };
    let files: Vec<File> = (0..8)
        .map(|index| client.open(format!("/f{index}"), &OpenOptions { hints: one, ..striped(1) }).unwrap())
        .collect();
    let wide = client.open("/wide", &striped(2)).unwrap();
    write_all(&wide, &pattern(1 << 20, 0), 0);
    files.iter().for_each(|file| write_all(file, &[1; 5000], 0));
    let silent = ServerId(1);
    pool.state().silent.insert(silent);
    let (mut answered, mut failed) = (0, 0);
    for file in &files {
        match in_haste(&client, SHORT_MILLIS, || file.read_at(&mut [0; 4], 0)) {
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
    let error = in_haste(&client, SHORT_MILLIS, || wide.read_at(&mut vec![0; 1 << 20], 0).unwrap_err());
    assert!(error.message().contains("server 1"), "{error}");
    pool.state().silent.clear();
}

/// Milliseconds: far longer than anything may take that does not wait for this deadline.
const PATIENT: u32 = 100_000;

#[test]
fn nobody_waits_for_a_pool_that_is_gone() {
    let pool = FakePool::start(3);
    let options = ConnectOptions { deadline_millis: PATIENT, ..pool.options() };
    let client = Pool::connect(&options).unwrap();
    let files: Vec<File> =
        (0..20).map(|index| client.open(format!("/f{index}"), &striped(3)).unwrap()).collect();
    files.iter().for_each(|file| write_all(file, &pattern(1 << 20, 1), 0));
    let (secret, addresses) = (pool.copy_of_secret(), options.addresses.clone());
    drop(pool);
    let begun = Instant::now();
    for error in [
        client.stat("/f1").unwrap_err(),
        client.mkdir("/new", 0o755).unwrap_err(),
        files[0].read_at(&mut [0; 10], 0).unwrap_err(),
        files[1].read_at(&mut vec![0; 1 << 20], 0).unwrap_err(),
        files[2].write_at(&[1; 10], 5).unwrap_err(),
        files[3].write_at(&vec![1; 1 << 20], 5).unwrap_err(),
        files[4].append(b"x").unwrap_err(),
        client.server_status(ServerId(1)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::HostDown, "{error}");
        assert!(error.message().contains("server ") && error.message().contains("ramlace status"), "{error}");
    }
    assert_eq!(client.statfs().unwrap().silent_servers, 3);
    let again = ConnectOptions { addresses, secret_file: Some(secret.path().join("secret")), ..options };
    assert_eq!(Pool::connect(&again).err().unwrap().kind(), ErrorKind::HostDown);
    drop(files);
    drop(client);
    assert!(begun.elapsed() < Duration::from_millis(PATIENT.into()) / 2);
}

#[test]
fn files_are_closed_without_waiting_and_their_homes_hear_of_it_later() {
    let pool = FakePool::start(2);
    let options = ConnectOptions { deadline_millis: 2_000, ..pool.options() };
    let client = Pool::connect(&options).unwrap();
    // Several directories, so that both servers are homes.
    for index in 0..8 {
        client.mkdir(format!("/d{index}"), 0o755).unwrap();
    }
    let open = |index: usize| client.open(format!("/d{}/f{index}", index % 8), &striped(2)).unwrap();
    let files: Vec<File> = (0..200).map(open).collect();
    files.iter().for_each(|file| write_all(file, b"written", 0));
    let home = |file: &File| pool.state().map.primary(file.inode().slot()).unwrap();
    let theirs = files.iter().filter(|file| home(file) == ServerId(1)).count();
    assert!(theirs > 10 && theirs < 190, "{theirs}");
    let kept = files.iter().position(|file| home(file) == ServerId(1)).unwrap();
    let kept_inode = files[kept].inode();
    pool.state().silent.insert(ServerId(1));
    let begun = Instant::now();
    drop(files);
    // At most one wait for the first of them.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(pool.state().open.len(), theirs);
    let pending = client.pending_by_server().unwrap();
    assert_eq!(pending.keys().collect::<Vec<_>>(), [&ServerId(1)], "the other has received it all");
    assert_eq!(pending.values().sum::<usize>(), client.pending().unwrap());
    assert!(pending[&ServerId(1)] >= theirs);
    pool.state().silent.clear();
    // Opened again before its home was notified that it was closed: it stays open.
    let again = open(kept);
    await_nothing_pending(&client);
    let left: Vec<_> = pool.state().open.iter().map(|(_, inode)| *inode).collect();
    assert_eq!(left, [kept_inode]);
    write_all(&again, b"still open", 0);
    again.close().unwrap();
    assert!(pool.state().open.is_empty());
}

/// Waits until the outbox is empty.
fn await_nothing_pending(client: &Pool) {
    await_that("all is told", || client.pending().unwrap() == 0);
}

fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to it that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// SEMANTICS 30.4
#[test]
fn a_home_that_does_not_answer_keeps_the_times_of_no_other_homes_files_back() {
    let pool = FakePool::start(2);
    let client = Pool::connect(&ConnectOptions { deadline_millis: 2_000, ..pool.options() }).unwrap();
    for index in 0..16 {
        client.mkdir(format!("/d{index}"), 0o755).unwrap();
    }
    let open = |index: usize| client.open(format!("/d{index}/f"), &striped(1)).unwrap();
    let files: Vec<File> = (0..16).map(open).collect();
    files.iter().for_each(|file| write_all(file, &[1; 8192], 0));
    await_nothing_pending(&client);
    let session = client.session().unwrap();
    let home = |file: &File| pool.state().map.primary(file.inode().slot()).unwrap();
    let of = |server| files.iter().filter(move |file| home(file) == ServerId(server));
    let is_told = |file: &File| session.inodes.find(file.inode()).unwrap().written() == 0;
    assert!(of(0).count() > 1 && of(1).count() > 1);
    // The size stays the same, so that their homes do not learn of it from that.
    files.iter().for_each(|file| write_all(file, &[2; 10], 0));
    pool.state().silent.insert(ServerId(1));
    await_that("the home that answers is told", || of(0).all(is_told));
    pool.state().silent.clear();
    await_nothing_pending(&client);
    assert!(files.iter().all(is_told));
    files.into_iter().for_each(|file| file.close().unwrap());
}

#[test]
fn a_server_that_was_silent_is_asked_for_a_sign_of_life_first() {
    let pool = FakePool::start(2);
    let options = ConnectOptions { deadline_millis: 1_500, ..pool.options() };
    let client = Pool::connect(&options).unwrap();
    let file = client.open("/wide", &striped(2)).unwrap();
    write_all(&file, &pattern(1 << 20, 0), 0);
    pool.state().silent.insert(ServerId(1));
    let read_all = || file.read_at(&mut vec![0; 1 << 20], 0);
    assert!(read_all().unwrap_err().message().contains("server 1"));
    let heartbeats = || pool.seen(Kind::Heartbeat);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let error = read_all().unwrap_err();
                assert!(error.message().contains("server 1"), "{error}");
                assert!(error.message().contains("sign of life"), "{error}");
            });
        }
    });
    let before = heartbeats();
    pool.state().silent.clear();
    assert_eq!(read_all().unwrap(), 1 << 20);
    assert!(heartbeats() > before);
}

#[test]
fn what_a_silent_home_may_have_opened_is_closed_when_it_answers_again() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let inode = client.open("/file", &OpenOptions::creating()).unwrap().inode();
    type Open<'a> = &'a dyn Fn() -> Result<File>;
    let by_name = || client.open("/file", &OpenOptions::reading());
    let by_inode = || client.raw().open(inode, Rights { read: true, write: false }).map(|opened| opened.0);
    let new = || client.open("/new", &OpenOptions::creating());
    for (kind, open) in
        [(Kind::OpenEntry, &by_name as Open<'_>), (Kind::Open, &by_inode), (Kind::Create, &new)]
    {
        // Done, but the reply does not arrive in time.
        pool.fault(kind, Fault::LoseReply);
        for _ in 0..10_000 {
            pool.fault(kind, Fault::LoseRequest);
        }
        let refused = in_haste(&client, SHORT_MILLIS, || open().err().unwrap());
        assert!(matches!(refused.kind(), ErrorKind::HostDown | ErrorKind::TimedOut), "{refused}");
        assert_eq!(pool.state().open.len(), 1);
        pool.state().faults.clear();
        let end = Instant::now() + Duration::from_secs(20);
        while !pool.state().open.is_empty() {
            assert!(Instant::now() < end, "it stays open");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // A file that is open here stays open.
    let kept = client.open("/file", &OpenOptions::reading()).unwrap();
    assert_eq!(pool.state().open.len(), 1);
    kept.close().unwrap();
    assert!(pool.state().open.is_empty());
}

#[test]
fn a_close_whose_answer_does_not_come_is_told_once_more() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let file = client.open("/file", &OpenOptions::creating()).unwrap();
    pool.fault(Kind::Close, Fault::Held);
    let late = in_haste(&client, SHORT_MILLIS, || file.close().unwrap_err());
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    // The home answers that it was closed already; nothing is pending any more.
    let end = Instant::now() + Duration::from_secs(60);
    while client.pending().unwrap() > 0 {
        assert!(Instant::now() < end, "{} messages are still pending", client.pending().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((pool.seen(Kind::Close), pool.done(Kind::Close)), (2, 1));
    pool.state().releases_held = true;
    client.open("/file", &OpenOptions::reading()).unwrap().close().unwrap();
}

// SEMANTICS 138.4
#[test]
fn a_change_that_is_not_answered_in_time_is_in_doubt_until_its_slot_knows() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let doubts: Arc<Mutex<Vec<(Slot, Doubt)>>> = Arc::default();
    let seen = doubts.clone();
    client.on_doubts(Box::new(move |slot, doubt| seen.lock().push((slot, doubt))));
    let file = client.open("/file", &striped(1)).unwrap();
    write_all(&file, &[1; 5000], 0);
    let lose_all = |kind| (0..10_000).for_each(|_| pool.fault(kind, Fault::LoseRequest));
    lose_all(Kind::WriteChunk);
    in_haste(&client, SHORT_MILLIS, || file.write_at(&[2], 0).unwrap_err());
    pool.state().faults.clear();
    assert_eq!(*doubts.lock(), [], "nobody keeps what a lane says of names");
    (0..10_000).for_each(|_| pool.fault(Kind::MakeDirectory, Fault::Retry));
    in_haste(&client, SHORT_MILLIS, || client.mkdir("/none", 0o755).unwrap_err());
    pool.state().faults.clear();
    assert_eq!(*doubts.lock(), [], "a slot that says so has not done it");
    lose_all(Kind::MakeDirectory);
    let slot = InodeId::ROOT.slot();
    in_haste(&client, SHORT_MILLIS, || client.mkdir("/one", 0o755).unwrap_err());
    assert_eq!(doubts.lock().first(), Some(&(slot, Doubt::Begins)));
    pool.state().faults.clear();
    // Before any other change there.
    client.mkdir("/two", 0o755).unwrap();
    assert_eq!(*doubts.lock(), [(slot, Doubt::Begins), (slot, Doubt::Ends)]);
    assert_eq!(pool.done(Kind::CancelChange), 1);
    client.stat("/two").unwrap();
}

// SEMANTICS 138.2
#[test]
fn a_renewal_that_comes_too_late_leaves_the_connections_to_others() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    client.mkdir("/d", 0o755).unwrap();
    let session = client.session().unwrap();
    let server = session.server(ServerId(0)).unwrap();
    let two = || {
        let line =
            || session.line(&server, session.deadline()).map_err(|unanswered| unanswered.error).unwrap().0;
        [line(), line()]
    };
    drop(two());
    let opened = pool.seen(Kind::OpenSession);
    pool.state().silent.insert(server.id);
    assert_eq!(client.raw().renew_leases(InodeId::ROOT, true), None);
    pool.state().silent.clear();
    drop(two());
    assert_eq!(pool.seen(Kind::OpenSession), opened + 1, "its own alone is closed");
}

//! Servers that keep too many answers, and what is told them nevertheless.

use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId, Sequence, Slot};
use ramlace_wire::Kind;

use super::{SHORT_MILLIS, in_haste, striped, write_all};
use crate::fake::{FakePool, Fault};

/// A slot of server 0 of two, and one of server 1.
const OF_FIRST: Slot = Slot(2);
const OF_SECOND: Slot = Slot(3);

fn too_many(pool: &FakePool, kind: Kind, times: usize) {
    (0..times).for_each(|_| pool.fault(kind, Fault::TooMany));
}

fn until_nothing_is_open(pool: &FakePool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !pool.state().open.is_empty() {
        assert!(Instant::now() < late, "an inode that a cancelled change has opened is never closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// SEMANTICS 113.2
#[test]
fn a_call_that_is_refused_for_kept_answers_goes_on_when_any_slot_of_its_server_has_heard() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    client.mkdir("/a", 0o755).unwrap();
    let session = client.session().unwrap();
    let server_of = |slot| pool.state().map.primary(slot);
    assert_eq!(server_of(OF_FIRST), server_of(InodeId::ROOT.slot()));
    // The first slot keeps so little that even this is refused; the next one is told, and the call goes on.
    session.unacknowledged.note(OF_FIRST, Sequence(1));
    session.unacknowledged.note(Slot(OF_FIRST.0 + 2), Sequence(1));
    too_many(&pool, Kind::CancelChange, 1);
    too_many(&pool, Kind::MakeDirectory, 1);
    client.mkdir("/b", 0o755).unwrap();
    // Nothing is noted any more: the refusal stands, and is the call's own.
    let seen = pool.seen(Kind::CancelChange);
    too_many(&pool, Kind::MakeDirectory, 1);
    let refused = client.mkdir("/c", 0o755).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooMany);
    assert_eq!(pool.seen(Kind::CancelChange), seen);
    // Whatever else the slot answers, the call does not fail for it.
    session.unacknowledged.note(OF_FIRST, Sequence(1));
    pool.fault(Kind::CancelChange, Fault::Spread);
    too_many(&pool, Kind::MakeDirectory, 1);
    assert_eq!(client.mkdir("/c", 0o755).unwrap_err().kind(), ErrorKind::TooMany);
    too_many(&pool, Kind::MakeDirectory, 1);
    client.mkdir("/c", 0o755).unwrap();
    assert!(pool.state().faults.is_empty());
}

// SEMANTICS 113.2
#[test]
fn a_call_that_is_refused_for_kept_answers_waits_for_no_other_server() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    client.mkdir("/a", 0o755).unwrap();
    let session = client.session().unwrap();
    session.unacknowledged.note(OF_SECOND, Sequence(1));
    session.unacknowledged.note(Slot(OF_SECOND.0 + 1), Sequence(1));
    let silent = pool.state().map.primary(OF_SECOND).unwrap();
    pool.state().silent.insert(silent);
    too_many(&pool, Kind::MakeDirectory, 1);
    client.mkdir("/b", 0o755).unwrap();
    assert!(session.unacknowledged.take(None, |slot| slot == OF_SECOND).is_some(), "it is told later");
    pool.state().silent.clear();
}

// SEMANTICS 7.3
#[test]
fn an_append_that_failed_is_told_again_where_a_server_keeps_too_many_answers() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let file = client.open("/log", &striped(2)).unwrap();
    write_all(&file, &[1; 5000], 0);
    too_many(&pool, Kind::FinishAppend, 2);
    assert_eq!(file.append(&[2; 3000]).unwrap_err().kind(), ErrorKind::TooMany);
    // By then the outbox may have told it itself.
    let _ = file.append(&[2; 3000]);
    file.append(&[3; 1000]).unwrap();
    assert!(pool.state().faults.is_empty());
    let size = file.size().unwrap();
    assert!(size == 9000 || size == 12_000, "{size}: nothing keeps back what lies behind");
}

// SEMANTICS 138.4
#[test]
fn a_change_is_cancelled_again_where_a_server_keeps_too_many_answers() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    // It is done, and no repetition is answered.
    let lose = |kind| {
        pool.fault(kind, Fault::LoseReply);
        (0..10_000).for_each(|_| pool.fault(kind, Fault::LoseRequest));
    };
    lose(Kind::Create);
    in_haste(&client, SHORT_MILLIS, || client.open("/file", &striped(1)).unwrap_err());
    pool.state().faults.clear();
    assert_eq!(pool.state().open.len(), 1);
    // Others are told first, and then this is sent again at once.
    client.session().unwrap().unacknowledged.note(OF_SECOND, Sequence(1));
    too_many(&pool, Kind::CancelChange, 1);
    client.mkdir("/a", 0o755).unwrap();
    assert_eq!(pool.done(Kind::CancelChange), 2);
    until_nothing_is_open(&pool);
    // Where there are no others, a change of that slot is refused, and the next one tries again.
    lose(Kind::Create);
    in_haste(&client, SHORT_MILLIS, || client.open("/other", &striped(1)).unwrap_err());
    pool.state().faults.clear();
    too_many(&pool, Kind::CancelChange, 1);
    assert_eq!(client.mkdir("/b", 0o755).unwrap_err().kind(), ErrorKind::TooMany);
    client.mkdir("/b", 0o755).unwrap();
    assert_eq!(pool.done(Kind::CancelChange), 3);
    until_nothing_is_open(&pool);
}

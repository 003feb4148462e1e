//! Closes that a session defers, as a mount's: files that were only read.

use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId};
use ramlace_wire::leases::{Leased, Recall};
use ramlace_wire::{Attributes, Kind};

use super::{read, striped, write_all};
use crate::fake::{FakePool, Fault};
use crate::session::pending::Subject;
use crate::{File, OpenAnswer, OpenOptions, Pool, Rights};

const READS: Rights = Rights { read: true, write: false };
const WRITES: Rights = Rights { read: true, write: true };

/// A pool with some files, and a client that closes what it has read later, as a mount does.
struct Mounted {
    pool: FakePool,
    client: Pool,
    files: Vec<InodeId>,
}

impl Mounted {
    fn new(files: usize) -> Mounted {
        let pool = FakePool::start(1);
        let maker = pool.connect();
        let make = |number| {
            let file = maker.open(format!("/file{number}"), &striped(1)).unwrap();
            write_all(&file, b"content", 0);
            file.inode()
        };
        let files = (0..files).map(make).collect();
        drop(maker);
        let client = pool.connect();
        Mounted { pool, client, files }
    }

    fn open(&self, inode: InodeId, rights: Rights) -> (File, OpenAnswer) {
        let asked = Instant::now();
        let (file, opened) = self.client.raw().open(inode, rights).unwrap();
        (file, OpenAnswer { opened, asked })
    }

    /// Opens a file for reading and closes it later; returns its attributes, and since when they are leased.
    fn read_and_defer(&self, inode: InodeId) -> (Attributes, Instant) {
        let leased = Instant::now();
        let (file, answer) = self.open(inode, READS);
        let attributes = answer.opened.info.attributes.clone();
        assert!(file.defer_close(answer));
        (attributes, leased)
    }

    fn reopens(&self, now: &(Attributes, Instant)) -> Option<(File, OpenAnswer)> {
        self.client.raw().reopen(now.0.inode, || Some(now.clone()))
    }

    fn is_open_at_home(&self, inode: InodeId) -> bool {
        self.pool.state().open.iter().any(|(_, open)| *open == inode)
    }

    /// Waits for less than a close is deferred.
    fn until(&self, what: impl Fn() -> bool) {
        let late = Instant::now() + Duration::from_secs(9);
        while !what() {
            assert!(Instant::now() < late, "it does not come before its time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn awaits_close(&self, inode: InodeId) {
        self.until(|| !self.is_open_at_home(inode));
    }

    fn hastens(&self, inode: InodeId) {
        let recall = Recall { number: 1, inode, what: Leased::Attributes };
        self.client.session().unwrap().hasten_recalled(&[recall]);
    }

    fn hastens_all(&self) {
        let session = self.client.session().unwrap();
        assert!(session.inodes.hasten_closes());
        session.heart.wake();
    }
}

// SEMANTICS 138.7
#[test]
fn a_file_that_was_just_read_is_opened_again_without_a_request() {
    let mounted = Mounted::new(1);
    let inode = mounted.files[0];
    let now = mounted.read_and_defer(inode);
    let asked = || (mounted.pool.seen(Kind::Open), mounted.pool.seen(Kind::Close));
    let before = asked();
    for _ in 0..3 {
        let (file, answer) = mounted.reopens(&now).expect("it is open at its home still");
        assert_eq!(read(&file, 0, 9), b"content");
        assert!(mounted.reopens(&now).is_none(), "it is open here, and the home is asked");
        assert!(file.defer_close(answer));
    }
    assert_eq!(asked(), before);
    let longer = Attributes { size: now.0.size + 1, ..now.0 };
    assert!(mounted.reopens(&(longer, now.1)).is_none(), "it has changed since");
    let leased_later = (now.0.clone(), Instant::now());
    assert!(
        mounted.reopens(&leased_later).is_none(),
        "what was changed before the lease was recalled from nobody"
    );
    mounted.hastens(inode);
    mounted.awaits_close(inode);
    assert!(mounted.reopens(&now).is_none());
    drop(mounted.open(inode, READS));
    assert!(!mounted.is_open_at_home(inode));
}

// SEMANTICS 138.7
#[test]
fn what_is_recalled_or_removed_here_is_closed_at_once() {
    let mounted = Mounted::new(4);
    let [recalled, removed, removed_too, kept] = mounted.files[..] else { panic!("there are four") };
    mounted.files.iter().for_each(|inode| _ = mounted.read_and_defer(*inode));
    mounted.hastens(recalled);
    mounted.awaits_close(recalled);
    // What is removed here makes room at once.
    mounted.client.unlink("/file1").unwrap();
    assert!(!mounted.is_open_at_home(removed));
    mounted.read_and_defer(removed_too);
    mounted.client.unlink_many(&["/file2"]).pop().unwrap().unwrap();
    assert!(!mounted.is_open_at_home(removed_too));
    mounted.read_and_defer(kept);
    // It is not known what a removal has removed whose first answer was lost.
    mounted.client.session().unwrap().close_removed(&[None]);
    mounted.awaits_close(kept);
}

// SEMANTICS 138.7
#[test]
fn files_that_are_removed_after_they_were_read_are_closed_by_few_messages() {
    let mounted = Mounted::new(40);
    mounted.files.iter().for_each(|inode| _ = mounted.read_and_defer(*inode));
    for (number, inode) in mounted.files.iter().enumerate() {
        mounted.client.unlink(format!("/file{number}")).unwrap();
        assert!(!mounted.is_open_at_home(*inode));
    }
    let slots: std::collections::BTreeSet<_> = mounted.files.iter().map(|inode| inode.slot()).collect();
    assert_eq!(mounted.pool.seen(Kind::ChangeMany), slots.len());
}

// SEMANTICS 138.7
#[test]
fn only_what_was_only_read_is_closed_later() {
    let mounted = Mounted::new(1);
    let inode = mounted.files[0];
    let (writer, answer) = mounted.open(inode, WRITES);
    let (reader, _) = mounted.open(inode, READS);
    assert!(!reader.defer_close(answer.clone()), "another file is open here");
    drop(writer);
    assert!(!reader.defer_close(answer), "it was open for writing");
    drop(reader);
    assert!(!mounted.is_open_at_home(inode));
    // An open for writing takes the reference over, and what is closed then is not closed by what was deferred before.
    mounted.read_and_defer(inode);
    let (writer, _) = mounted.open(inode, WRITES);
    let session = mounted.client.session().unwrap();
    assert!(!session.inodes.hasten_closes());
    write_all(&writer, b"another", 0);
    mounted.pool.fault(Kind::Close, Fault::LoseRequest);
    drop(writer);
    mounted.awaits_close(inode);
}

// SEMANTICS 138.7
#[test]
fn many_that_are_due_are_closed_by_few_messages_also_if_one_is_not_answered() {
    for fault in [None, Some(Fault::LoseReply), Some(Fault::LoseRequest), Some(Fault::Moved)] {
        let mounted = Mounted::new(40);
        let before: Vec<_> = mounted.files.iter().map(|inode| mounted.read_and_defer(*inode)).collect();
        if let Some(fault) = fault {
            mounted.pool.fault(Kind::ChangeMany, fault);
        }
        let slots: std::collections::BTreeSet<_> = mounted.files.iter().map(|inode| inode.slot()).collect();
        mounted.hastens_all();
        mounted.files.iter().for_each(|inode| mounted.awaits_close(*inode));
        assert!(mounted.pool.seen(Kind::ChangeMany) <= 2 * slots.len() + 2);
        assert!(before.iter().all(|now| mounted.reopens(now).is_none()));
    }
}

// SEMANTICS 138.7
#[test]
fn a_file_that_is_opened_while_its_close_is_under_way_is_opened_at_its_home() {
    let mounted = Mounted::new(2);
    let now = mounted.read_and_defer(mounted.files[0]);
    mounted.read_and_defer(mounted.files[1]);
    mounted.pool.fault(Kind::ChangeMany, Fault::Late);
    mounted.hastens_all();
    mounted.until(|| mounted.pool.seen(Kind::ChangeMany) > 0);
    assert!(mounted.reopens(&now).is_none(), "its close is under way, or was answered");
    let (file, _) = mounted.open(mounted.files[0], READS);
    assert_eq!(read(&file, 0, 9), b"content");
    mounted.awaits_close(mounted.files[1]);
    assert!(mounted.is_open_at_home(mounted.files[0]), "that reference is the new open's");
    drop(file);
    assert!(!mounted.is_open_at_home(mounted.files[0]));
}

#[test]
fn what_was_opened_by_name_without_room_here_is_closed_at_its_home_when_there_is_room() {
    let pool = FakePool::start(1);
    let (client, options) = (pool.connect(), OpenOptions::creating());
    drop(client.open("/other", &options).unwrap());
    let session = client.session().unwrap();
    session.inodes.make_full(true);
    assert_eq!(client.open("/file", &options).unwrap_err().kind(), ErrorKind::TooMany);
    let (_, inode) = pool.state().open.first().copied().expect("its home has opened it");
    let tells = || session.send_pending(Subject::Open(inode), session.deadline());
    // That is not its home's fault.
    tells().unwrap();
    assert!(!pool.state().open.is_empty());
    session.inodes.make_full(false);
    tells().unwrap();
    assert!(pool.state().open.is_empty());
}

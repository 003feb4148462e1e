//! A session counts as knowing its own change only as long as it waits for the reply; and the attributes of a
//! directory in a reply hold only together with the name in that reply.

use std::cell::Cell;
use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Name, Sequence, ServerId, Slot, Timestamp};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::leases::{LeaseAttributes, LeaseName, Recall};
use ramlace_wire::listen::Listen;
use ramlace_wire::namespace::{
    BeginPassthrough, CancelChange, Link, Made, MakeNode, Open, SetLayout, Unlink, Unlinked,
};
use ramlace_wire::peer::Prepared;
use ramlace_wire::{Attributes, FileKind, Kind, LayoutHints, Mode, encode_body};

use crate::data_leases_tests::lane_of_a_file;
use crate::delivery_tests::false_server;
use crate::testing::{Client, TestServer, run};

const HOLDER: u8 = 1;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Asks for leases until one is given: the server has to know that the session listens.
async fn absence_known(client: &mut Client, text: &str) {
    let lease = LeaseName { parent: InodeId::ROOT, name: name(text), names: true, neighbours_max: 0 };
    loop {
        let leased = client.ask(&lease).await.unwrap();
        assert!(leased.found.is_none(), "'{text}' is there");
        if leased.directory.is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// The first recalls that the session gets.
fn listen(mut listener: Client) -> tokio::task::JoinHandle<Vec<Recall>> {
    tokio::task::spawn_local(async move {
        listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap().recalls
    })
}

fn file_elsewhere(inode: InodeId) -> Attributes {
    let now = Timestamp { nanos: 1 };
    Attributes {
        inode,
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 2,
        size: 0,
        device: 0,
        generation: Generation::FIRST,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        xattrs: false,
        allocated: Some(0),
    }
}

/// A link whose second participant is held up is not answered; `abandon` is what its session does then.
/// Returns whether it is notified of the directory when the link is made after all.
fn hears_of_late_link(abandon: impl AsyncFnOnce(Client, Client, Link) -> Client) -> bool {
    let server = TestServer::start(2);
    run(async {
        let held = Rc::new(Cell::new(true));
        let inode = Rc::new(Cell::new(InodeId::ROOT));
        let says = {
            let (held, inode) = (held.clone(), inode.clone());
            move |kind| match kind {
                Kind::Prepare if held.get() => Some(Err(Error::new(ErrorKind::Retry, "not yet"))),
                Kind::Prepare => Some(Ok(encode_body(&Prepared::Linked(file_elsewhere(inode.get()))))),
                _ => Some(Ok(encode_body(&()))),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, HOLDER).await;
        let map = client.ask(&GetMap {}).await.unwrap();
        let elsewhere = (0..).map(Slot).find(|slot| map.primary(*slot) == Some(ServerId(1))).unwrap();
        inode.set(InodeId::new(elsewhere, 9));
        let told = listen(client.another(&server.address).await);
        let asker = client.another(&server.address).await;
        let link = Link { parent: InodeId::ROOT, name: name("x"), inode: inode.get() };
        let _asker = abandon(asker, client.another(&server.address).await, link).await;
        absence_known(&mut client, "x").await;
        held.set(false);
        let told = told.await.unwrap();
        peer.abort();
        told.iter().any(|recall| recall.inode == InodeId::ROOT)
    })
}

/// Asks for a link and abandons it while it waits for the file's slot.
async fn cancel_waiting(asker: &mut Client, other: &mut Client, link: &Link) {
    let header = asker.header(Kind::Link, 1, 0);
    asker.connection.queue_reply(header, &encode_body(link), &[]);
    asker.connection.flush().await.unwrap();
    // It has arrived once its name is claimed: then to remove the name gets Retry.
    let remove = Unlink { parent: link.parent, name: link.name.clone() };
    let mut sequence = 2;
    while other.change(sequence, sequence as u32 - 1, &remove).await.unwrap_err().kind()
        == ErrorKind::NotFound
    {
        sequence += 1;
    }
    other.change(sequence + 1, sequence as u32, &CancelChange { sequence: Sequence(1) }).await.unwrap();
}

// SEMANTICS 138.4
#[test]
fn a_session_that_cancelled_a_change_is_told_when_it_is_done_after_all() {
    let cancelled = async |mut asker: Client, mut other: Client, link: Link| {
        cancel_waiting(&mut asker, &mut other, &link).await;
        // Its connection stays.
        asker
    };
    assert!(hears_of_late_link(cancelled));
}

// SEMANTICS 138.4
#[test]
fn a_late_copy_of_what_was_cancelled_is_refused_and_makes_nobody_know_of_it() {
    let copied = async |mut asker: Client, mut other: Client, link: Link| {
        cancel_waiting(&mut asker, &mut other, &link).await;
        assert_eq!(other.change(1, 0, &link).await.unwrap_err().kind(), ErrorKind::Stale);
        asker
    };
    assert!(hears_of_late_link(copied));
}

// SEMANTICS 138.4
#[test]
fn a_session_that_waits_no_more_for_a_change_is_told_when_it_is_done_after_all() {
    let timed_out = async |mut asker: Client, _: Client, link: Link| {
        let mut header = asker.header(Kind::Link, 1, 0);
        header.deadline_millis = 20;
        asker.begin_write(header, &link, &[]).await;
        assert_eq!(asker.answer::<Made>().await.unwrap_err().kind(), ErrorKind::TimedOut);
        asker
    };
    assert!(hears_of_late_link(timed_out));
}

// SEMANTICS 138.3
#[test]
fn a_directory_comes_along_only_while_the_name_is_as_it_was_told() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, HOLDER).await;
        let mut again = client.another(&server.address).await;
        let mut other = Client::user(&server.address, 2).await;
        let told = listen(client.another(&server.address).await);
        absence_known(&mut client, "x").await;
        let parent = InodeId::ROOT;
        let make = move |text: &str| MakeNode {
            parent,
            name: name(text),
            kind: FileKind::Fifo,
            mode: 0o644.into(),
            device: 0,
        };
        let remove = Unlink { parent, name: name("x") };
        let made: Made = client.change(1, 0, &make("x")).await.unwrap();
        assert!(made.parent.is_some(), "the directory is leased");
        let removed: Unlinked = client.change(2, 1, &remove).await.unwrap();
        assert!(removed.parent.is_some());
        // The reply was lost; meanwhile another session has made the name again, and no session holds a lease
        // any more.
        client.change(3, 2, &make("y")).await.unwrap();
        let other_made =
            tokio::task::spawn_local(async move { other.change(1, 0, &make("x")).await.unwrap() });
        let recalls = told.await.unwrap();
        let mut listener = client.another(&server.address).await;
        let acknowledged = recalls.iter().map(|recall| recall.number).max().unwrap();
        let _listening = tokio::task::spawn_local(async move {
            listener.ask(&Listen { leases: true, acknowledged, received: 0, life: 0 }).await.unwrap()
        });
        other_made.await.unwrap();
        loop {
            // Repeats until leases are given again.
            let lease = LeaseName { parent, name: name("none"), names: true, neighbours_max: 0 };
            if client.ask(&lease).await.unwrap().directory.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let removed: Unlinked = again.change(2, 1, &remove).await.unwrap();
        assert_eq!(removed.parent, None, "'x' is there");
    });
}

// SEMANTICS 138.7
#[test]
fn who_keeps_a_files_attributes_hears_of_what_needs_it_closed_or_may_change_it_unnoticed() {
    let server = TestServer::start(1);
    run(async {
        let mut changer = Client::user(&server.address, 2).await;
        let inode = lane_of_a_file(&mut changer, InodeId::ROOT, Slot(0)).await.lane.inode;
        let mut holder = Client::user(&server.address, HOLDER).await;
        holder.change(1, 0, &Open { inode, read: true, write: false, run: false }).await.unwrap();
        for unnoticed in [false, true] {
            let told = listen(holder.another(&server.address).await);
            let lease = LeaseAttributes { inode, names: false };
            while !holder.ask(&lease).await.unwrap().attributes {
                tokio::task::yield_now().await;
            }
            if unnoticed {
                changer.change(11, 1, &BeginPassthrough { inode, write: true, over: false }).await.unwrap();
            } else {
                let hints = LayoutHints::of_mode(Some(Mode::Relaxed));
                let refused = changer.change(10, 1, &SetLayout { inode, hints }).await;
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
            }
            let told = told.await.unwrap();
            assert!(told.iter().any(|recall| recall.inode == inode), "{unnoticed}: {told:?}");
            // It has dropped them.
            let acknowledged = told.iter().map(|recall| recall.number).max().unwrap();
            let mut listener = holder.another(&server.address).await;
            let listens = Listen { leases: true, acknowledged, received: 0, life: u64::MAX };
            listener.ask(&listens).await.unwrap();
        }
    });
}

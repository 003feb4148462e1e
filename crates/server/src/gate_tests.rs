//! Answers wait for holders of leases; the connection on which they are sent does not.

use ramlace_base::{Epoch, InodeId, LaneId, Name, Slot};
use ramlace_wire::chunk::{ChunkRead, Keep, LaneTarget, ReadChunk};
use ramlace_wire::leases::LeaseAttributes;
use ramlace_wire::listen::Listen;
use ramlace_wire::namespace::{Create, EntryLeased, LayoutWish, Opened, SetAttributes, Truncate};
use ramlace_wire::session::SessionKind;
use ramlace_wire::{Attributes, Kind, Layout, Request, encode_body};

use crate::server::Server;
use crate::testing::{Client, TestServer, run};

/// Where the root directory's files live, and their lanes.
const SLOT: Slot = Slot(0);

fn create(name: &str) -> Create {
    let layout =
        Layout { stripe_unit: 64 << 10, width: 1, base_slot: SLOT, stride: 1, copies: 1, created: Epoch(1) };
    Create {
        parent: InodeId::ROOT,
        name: Name::new(name).unwrap(),
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    }
}

/// The number of inodes, and whether a recall is pending.
fn state(server: &Server) -> (u64, bool) {
    (server.durable.borrow().inodes(), !server.leases.recalled([SLOT].into_iter(), true).is_empty())
}

async fn another(client: &Client, address: &str) -> Client {
    let mut other = Client::connect(address, client.session, SessionKind::User).await;
    other.epoch = client.epoch;
    other
}

#[test]
fn a_connection_goes_on_while_its_answers_wait_and_they_leave_in_order() {
    // On a busy machine a holder's time may be over before this check.
    assert!(
        (0..5).any(|_| is_seen_to_wait()),
        "no answer was ever seen to wait while its connection went on"
    );
}

/// Whether everything was observed while the holder had not acknowledged.
fn is_seen_to_wait() -> bool {
    let server = TestServer::start(1);
    run(async {
        let mut holder = Client::user(&server.address, 1).await;
        let mut listener = another(&holder, &server.address).await;
        let mut changer = Client::user(&server.address, 2).await;
        let mut reader = another(&changer, &server.address).await;
        let file: Opened = changer.change(1, 0, &create("file")).await.unwrap();
        let inode = file.info.attributes.inode;
        assert_eq!(inode.slot(), SLOT);

        // A session that does not listen gets no lease.
        let listening = tokio::task::spawn_local(async move {
            let told =
                listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap();
            (listener, told)
        });
        let lease = LeaseAttributes { inode, names: false };
        while !holder.ask(&lease).await.unwrap().attributes {
            tokio::task::yield_now().await;
        }
        let (inodes, waits) = server.look(state).await;
        assert!(!waits);

        // A change that others do not know yet, and what comes after it.
        let header = changer.header(Kind::Truncate, 2, 0);
        changer.connection.queue_reply(
            header,
            &encode_body(&Truncate { inode, size: 1, allocated: None }),
            &[],
        );
        changer.connection.queue_reply(
            changer.header(Kind::Create, 3, 1),
            &encode_body(&create("next")),
            &[],
        );
        changer.connection.flush().await.unwrap();
        loop {
            let (now, waits) = server.look(state).await;
            if now > inodes {
                if !waits {
                    return false;
                }
                break;
            }
        }

        // Bytes of the same slot wait, too.
        let lane = LaneId { inode, lane: 0 };
        let generation = file.info.attributes.generation;
        let target = LaneTarget { lane, slot: SLOT, generation, created: Epoch(1), permit: None };
        let read = ReadChunk { target, offset: 0, length: 4, keep: Keep::No, take: false };
        let served = server.look(|server| server.status().requests).await;
        reader.connection.queue_reply(reader.header(Kind::ReadChunk, 0, 0), &encode_body(&read), &[]);
        reader.connection.flush().await.unwrap();
        let arrived = async {
            // Once it was received, the server has done everything with it that comes before the wait.
            while server.look(|server| server.status().requests).await == served {}
            server.look(state).await.1
        };
        tokio::select! {
            biased;
            _ = reader.answer::<ChunkRead>() => return false,
            waits = arrived => if !waits {
                return false;
            },
        }

        let (mut listener, told) = listening.await.unwrap();
        let acknowledged =
            told.recalls.iter().map(|recall| recall.number).max().expect("something was recalled");
        tokio::task::spawn_local(async move {
            listener.ask(&Listen { leases: true, acknowledged, received: 0, life: 0 }).await
        });
        changer.answer::<Attributes>().await.unwrap();
        assert!(changer.answer::<Opened>().await.is_ok(), "the second answer comes second");
        assert!(reader.answer::<ChunkRead>().await.unwrap().0.hole);
        true
    })
}

// SEMANTICS 137.1
#[test]
fn what_a_session_makes_is_leased_to_it_where_it_hears_of_recalls() {
    let server = TestServer::start(1);
    run(async {
        let mut maker = Client::user(&server.address, 1).await;
        let mut listener = another(&maker, &server.address).await;
        let mut changer = Client::user(&server.address, 2).await;
        let unleased: Opened = maker.change(1, 0, &create("unleased")).await.unwrap();
        assert_eq!(unleased.leased, EntryLeased::default(), "nobody would hear of a recall");

        let listening = tokio::task::spawn_local(async move {
            listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap()
        });
        let mut sequence = 1;
        let made = loop {
            sequence += 1;
            let made: Opened = maker.change(sequence, 0, &create(&format!("file{sequence}"))).await.unwrap();
            if made.leased.attributes {
                break made;
            }
        };
        assert!(made.leased.names, "the root directory's names are all here");
        let inode = made.info.attributes.inode;
        let change = SetAttributes { mode: Some(0o600), ..SetAttributes::nothing(inode) };
        let header = changer.header(SetAttributes::KIND, 1, 0);
        changer.connection.queue_reply(header, &encode_body(&change), &[]);
        changer.connection.flush().await.unwrap();
        let told = listening.await.unwrap();
        assert!(told.recalls.iter().any(|recall| recall.inode == inode), "{told:?}");

        // A repeated number gets the same answer, and no lease on what has changed since.
        let again: Opened = maker.change(sequence, 0, &create(&format!("file{sequence}"))).await.unwrap();
        assert_eq!(again.info, made.info);
        assert!(!again.leased.attributes, "{again:?}");
    });
}

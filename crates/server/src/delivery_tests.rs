//! Deliveries to a server that refuses connections, hangs, refuses deliveries, or is forgotten.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, LaneId, Name, ServerId, SessionId, Slot};
use ramlace_transport::Address;
use ramlace_transport::nonblocking::{Connection, Listener, Newcomers};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::cluster::{ForgetServer, GetMap, JoinPool};
use ramlace_wire::inline::{Bytes, BytesPlace};
use ramlace_wire::namespace::{Close, Create, Extend, MakeDirectory, Truncate, Unlink};
use ramlace_wire::peer::{BeginLane, FillLane, InodeAnswer, LaneCut};
use ramlace_wire::session::{CloseSession, GetServerStatus, SessionKind, SessionOpened};
use ramlace_wire::{Credentials, ErrorBody, HostId, Kind, Layout, PoolId, ServerEntry, encode_body, flags};

use crate::testing::{Client, LONG, TestServer, run, secret};

/// The body with which a fake server answers; `None`: it does not answer.
pub(crate) type Says = dyn Fn(Kind) -> Option<Result<Vec<u8>, Error>>;

/// Answers every request as done.
pub(crate) fn done(kind: Kind) -> Option<Result<Vec<u8>, Error>> {
    Some(Ok(match kind {
        Kind::CutLane => encode_body(&LaneCut::default()),
        _ => encode_body(&()),
    }))
}

/// A fake second server of a pool: it has joined, and answers deliveries as its test says.
pub(crate) async fn false_server(server: &TestServer, says: Rc<Says>) -> tokio::task::JoinHandle<()> {
    let mut listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).unwrap();
    let Address::Tcp(tcp) = listener.local_address().unwrap() else { unreachable!() };
    let entry = ServerEntry {
        server: ServerId(1),
        host: HostId([2; 16]),
        tcp,
        unix: "/nowhere".into(),
        store_bytes: 1 << 30,
        forgotten: false,
    };
    let mut peer = Client::connect(&server.address, SessionId([99; 16]), SessionKind::Peer).await;
    let join = JoinPool { entry, keeps_store: false };
    while let Err(error) = peer.ask(&join).await {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    }
    tokio::task::spawn_local(async move {
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let incoming = listener.accept().await.unwrap();
            let says = says.clone();
            tasks.spawn_local(async move {
                let (keys, newcomers) = (secret().server_keys(ServerId(1)), Newcomers::new(1));
                if let Ok((connection, _)) = Connection::accept(incoming, &keys, &newcomers).await {
                    answer_falsely(connection, says).await;
                }
            });
        }
    })
}

async fn answer_falsely(mut connection: Connection, says: Rc<Says>) {
    let opened = SessionOpened {
        pool: PoolId([0x11; 16]),
        server: ServerId(1),
        host: HostId([2; 16]),
        epoch: Epoch(1),
        credentials: Credentials::new(0, 0),
        expiry_millis: 10_000,
    };
    while let Ok(Some((header, _))) = connection.read_request().await {
        let mut reply = header.reply(Epoch(1));
        let body = match (header.kind, says(header.kind)) {
            (Kind::OpenSession, _) => encode_body(&opened),
            (_, Some(Ok(body))) => body,
            (_, Some(Err(error))) => {
                reply.flags |= flags::ERROR;
                encode_body(&ErrorBody::new(&error))
            }
            (_, None) => std::future::pending().await,
        };
        connection.queue_reply(reply, &body, &[]);
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Creates a file with a lane on each server, truncates it, and removes it. Uses five numbers from
/// `sequence`.
async fn create_cut_remove(client: &mut Client, sequence: u64, name: Name) -> Result<(), Error> {
    let parent = InodeId::ROOT;
    let inode = create(client, sequence, name.clone()).await?;
    extend_and_cut(client, sequence + 1, inode, Generation::FIRST).await?;
    client.change(sequence + 3, 0, &Unlink { parent, name }).await?;
    client.change(sequence + 4, 0, &Close { inode, modified: None, leases: false }).await.map(drop)
}

pub(crate) async fn extend_and_cut(
    client: &mut Client,
    sequence: u64,
    inode: InodeId,
    generation: Generation,
) -> Result<Generation, Error> {
    client.change(sequence, 0, &Extend { inode, generation, size: 1 << 20, from: 0 }).await?;
    Ok(client.change(sequence + 1, 0, &Truncate { inode, size: 0, allocated: None }).await?.generation)
}

/// Creates a file with a lane on each server.
pub(crate) async fn create(client: &mut Client, sequence: u64, name: Name) -> Result<InodeId, Error> {
    let layout = Layout {
        stripe_unit: 1 << 16,
        width: 2,
        base_slot: Slot(0),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    };
    let create = Create {
        parent: InodeId::ROOT,
        name,
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: ramlace_wire::namespace::LayoutWish::default(),
        named: Vec::new(),
    };
    let inode = client.change(sequence, 0, &create).await?.info.attributes.inode;
    client.promote(sequence, inode).await?;
    Ok(inode)
}

#[test]
fn the_heir_of_a_forgotten_server_gets_what_was_pending_for_it() {
    let server = TestServer::start(2);
    run(async {
        let says = |_| None;
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let mut other = Client::user(&server.address, 1).await;
        let cut = tokio::task::spawn_local(async move { create_cut_remove(&mut client, 1, name("a")).await });
        // The delivery to the unresponsive server is in flight.
        while other.ask(&GetServerStatus {}).await.unwrap().inodes < 2 {}
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        other.ask(&ForgetServer { server: ServerId(1) }).await.unwrap();
        cut.await.unwrap().unwrap();
        create_cut_remove(&mut other, 101, name("b")).await.unwrap();
        peer.abort();
    });
}

#[test]
fn a_delivery_that_is_refused_stays_pending() {
    let server = TestServer::start(2);
    run(async {
        let received = Rc::new(RefCell::new(Vec::new()));
        let drops = Rc::new(Cell::new(0));
        let says = {
            let (received, drops) = (received.clone(), drops.clone());
            move |kind| {
                received.borrow_mut().push(kind);
                if kind == Kind::DropLane {
                    drops.set(drops.get() + 1);
                    if drops.get() < 3 {
                        return Some(Err(Error::new(ErrorKind::NoSpace, "not now")));
                    }
                }
                done(kind)
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut home = Client::connect(&server.address, SessionId([98; 16]), SessionKind::Peer).await;
        let mut client = Client::user(&server.address, 1).await;
        // Others do not wait for it.
        for (sequence, name) in [(1, name("a")), (11, name("b"))] {
            let inode = create(&mut client, sequence, name.clone()).await.unwrap();
            let lane = LaneId { inode, lane: 1 };
            home.ask(&BeginLane { lane, by: SessionId::NONE }).await.unwrap();
            extend_and_cut(&mut client, sequence + 1, inode, Generation::FIRST).await.unwrap();
            client.change(sequence + 3, 0, &Unlink { parent: InodeId::ROOT, name }).await.unwrap();
            client.change(sequence + 4, 0, &Close { inode, modified: None, leases: false }).await.unwrap();
        }
        while drops.get() < 4 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        peer.abort();
    });
}

#[test]
fn directories_are_made_where_servers_answer() {
    let server = TestServer::start(2);
    run(async {
        let says = done;
        let peer = false_server(&server, Rc::new(says)).await;
        peer.abort();
        let _ = peer.await;
        let mut client = Client::user(&server.address, 1).await;
        let mut failed = 0;
        for number in 1..=40 {
            let name = name(&format!("d{number}"));
            let request = MakeDirectory { parent: InodeId::ROOT, name, mode: 0o755.into() };
            match client.change(number, 0, &request).await {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::HostDown, "{error}");
                    failed += 1;
                }
            }
        }
        assert!(failed <= 1, "{failed} of 40 failed, though one of two servers answers");
    });
}

#[test]
fn a_session_that_ends_waits_for_nothing() {
    let server = TestServer::start(2);
    run(async {
        let says = |_| None;
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let mut other = Client::user(&server.address, 1).await;
        let cut = tokio::task::spawn_local(async move { create_cut_remove(&mut client, 1, name("a")).await });
        while other.ask(&GetServerStatus {}).await.unwrap().inodes < 2 {}
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        other.ask(&CloseSession {}).await.unwrap();
        assert_eq!(cut.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
        peer.abort();
    });
}

#[test]
fn for_a_server_that_is_down_the_last_truncation_of_a_file_alone_is_pending() {
    let server = TestServer::start(2);
    run(async {
        let peer = false_server(&server, Rc::new(done)).await;
        let mut client = Client::user(&server.address, 1).await;
        let first = create(&mut client, 1, name("first")).await.unwrap();
        let other = create(&mut client, 2, name("other")).await.unwrap();
        peer.abort();
        let _ = peer.await;
        let mut generation = Generation::FIRST;
        extend_and_cut(&mut client, 3, first, generation).await.unwrap();
        for number in 0..50 {
            generation = extend_and_cut(&mut client, 5 + 2 * number, other, generation).await.unwrap();
        }
        let queued = || server.look(|server| server.deliveries.queued(ServerId(1)));
        let end = Instant::now() + LONG;
        while queued().await > 2 {
            assert!(Instant::now() < end, "{} are queued for a server that is down", queued().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(queued().await > 0, "the last ones are pending still");
    });
}

#[test]
fn bytes_that_come_late_or_twice_to_a_lane_overwrite_nothing() {
    let server = TestServer::start(2);
    run(async {
        // The fake server is the home of the file, whose lane is here.
        let says: Rc<RefCell<Vec<u8>>> = Rc::default();
        let home = says.clone();
        let peer = false_server(&server, Rc::new(move |_| Some(Ok(home.borrow().clone())))).await;
        let mut client = Client::user(&server.address, 1).await;
        let map = client.ask(&GetMap {}).await.unwrap();
        let slot_of =
            |server| (0..).map(Slot).find(|slot| map.primary(*slot) == Some(ServerId(server))).unwrap();
        let (lane, slot) = (LaneId { inode: InodeId::new(slot_of(1), 9), lane: 0 }, slot_of(0));
        let layout = Layout {
            stripe_unit: 1 << 16,
            width: 1,
            base_slot: slot,
            stride: 1,
            copies: 1,
            created: map.epoch,
        };
        let set_home = |place, generation| {
            let (generation, smallest_size) = (Generation(generation), None);
            let kept_by = Vec::new();
            *says.borrow_mut() =
                encode_body(&InodeAnswer { generation, size: 5, smallest_size, layout, place, kept_by });
        };
        let generation = Generation(2);
        let fill = FillLane { lane, slot, generation, bytes: Bytes(b"bytes".to_vec()) };
        let mut sender = Client::connect(&server.address, SessionId([98; 16]), SessionKind::Peer).await;
        // Refused before, at the lane that it went to, and of an earlier attempt.
        for (place, generation) in [(BytesPlace::Inode, 2), (BytesPlace::Lanes, 2), (BytesPlace::Leaving, 3)]
        {
            set_home(place, generation);
            sender.ask(&fill).await.unwrap();
            assert_eq!(client.ask(&GetServerStatus {}).await.unwrap().lanes, 0, "{place:?} {generation}");
        }
        set_home(BytesPlace::Leaving, 2);
        sender.ask(&fill).await.unwrap();
        let target = LaneTarget { lane, slot, generation, created: map.epoch, permit: None };
        assert_eq!(client.read(target, 0, 5).await.unwrap(), b"bytes");
        // Written since; the home's answer may be older.
        client.write(1, 0, target, 0, b"new").await.unwrap();
        sender.ask(&fill).await.unwrap();
        assert_eq!(client.read(target, 0, 5).await.unwrap(), b"newes");
        peer.abort();
    });
}

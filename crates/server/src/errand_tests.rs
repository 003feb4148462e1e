//! What a server owes to another that refuses connections, hangs, refuses errands, or is forgotten.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Name, ServerId, SessionId, Slot};
use ramlace_transport::Address;
use ramlace_transport::nonblocking::{Connection, Listener};
use ramlace_wire::cluster::{ForgetServer, JoinPool};
use ramlace_wire::namespace::{Close, Create, Extend, MakeDirectory, Truncate, Unlink};
use ramlace_wire::session::{CloseSession, GetServerStatus, SessionKind, SessionOpened};
use ramlace_wire::{Credentials, ErrorBody, HostId, Kind, Layout, PoolId, ServerEntry, encode_body, flags};

use crate::testing::{Client, TestServer, run, secret};

/// What a false server says to an errand; `None`: nothing.
type Says = dyn Fn(Kind) -> Option<Result<(), Error>>;

/// The second server of a pool, false: it has joined, and answers errands as it is told to.
async fn false_server(server: &TestServer, says: Rc<Says>) -> tokio::task::JoinHandle<()> {
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
                if let Ok(connection) = Connection::accept(incoming, &secret()).await {
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
            (_, Some(Ok(()))) => encode_body(&()),
            (_, Some(Err(error))) => {
                reply.flags |= flags::ERROR;
                encode_body(&ErrorBody::new(&error))
            }
            (_, None) => std::future::pending().await,
        };
        connection.queue_reply(reply, &body, &[]);
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Makes a file with a lane on each server, cuts it, and removes it. Five numbers from `sequence`.
async fn create_cut_remove(client: &mut Client, sequence: u64, name: Name) -> Result<(), Error> {
    let layout = Layout {
        stripe_unit: 1 << 16,
        width: 2,
        base_slot: Slot(0),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    };
    let parent = InodeId::ROOT;
    let create = Create {
        parent,
        name: name.clone(),
        mode: 0o644,
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: ramlace_wire::namespace::LayoutWish::default(),
        named: Vec::new(),
    };
    let attributes = client.change(sequence, 0, &create).await?.info.attributes;
    let inode = attributes.inode;
    client.spill(sequence, inode).await?;
    let extend = Extend { inode, generation: attributes.generation, size: 1 << 20 };
    client.change(sequence + 1, 0, &extend).await?;
    client.change(sequence + 2, 0, &Truncate { inode, size: 0, allocated: None }).await?;
    client.change(sequence + 3, 0, &Unlink { parent, name }).await?;
    client.change(sequence + 4, 0, &Close { inode, modified: None }).await
}

#[test]
fn the_heir_of_a_forgotten_server_gets_what_it_was_owed() {
    let server = TestServer::start(2);
    run(async {
        let says = |_| None;
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let mut other = Client::user(&server.address, 1).await;
        let cut = tokio::task::spawn_local(async move { create_cut_remove(&mut client, 1, name("a")).await });
        // The errand to the silent server is on its way.
        while other.ask(&GetServerStatus {}).await.unwrap().inodes < 2 {}
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        other.ask(&ForgetServer { server: ServerId(1) }).await.unwrap();
        cut.await.unwrap().unwrap();
        create_cut_remove(&mut other, 101, name("b")).await.unwrap();
        peer.abort();
    });
}

#[test]
fn an_errand_that_is_refused_is_owed_all_the_same() {
    let server = TestServer::start(2);
    run(async {
        let heard = Rc::new(RefCell::new(Vec::new()));
        let drops = Rc::new(Cell::new(0));
        let says = {
            let (heard, drops) = (heard.clone(), drops.clone());
            move |kind| {
                heard.borrow_mut().push(kind);
                if kind == Kind::DropLane {
                    drops.set(drops.get() + 1);
                    if drops.get() < 3 {
                        return Some(Err(Error::new(ErrorKind::NoSpace, "not now")));
                    }
                }
                Some(Ok(()))
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        create_cut_remove(&mut client, 1, name("a")).await.unwrap();
        // Others do not wait behind it.
        create_cut_remove(&mut client, 11, name("b")).await.unwrap();
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
        let says = |_| Some(Ok(()));
        let peer = false_server(&server, Rc::new(says)).await;
        peer.abort();
        let _ = peer.await;
        let mut client = Client::user(&server.address, 1).await;
        let mut failed = 0;
        for number in 1..=40 {
            let name = name(&format!("d{number}"));
            let request = MakeDirectory { parent: InodeId::ROOT, name, mode: 0o755 };
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

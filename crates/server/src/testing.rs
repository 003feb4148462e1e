//! What the tests of this crate share: a store of their own, and numbers from a seed.

use std::cell::Cell;
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Sequence, SessionId};
use ramlace_store::{Backing, Store, StoreOptions, StoreRoot};
use ramlace_transport::nonblocking::{Connection, Listener};
use ramlace_transport::{Address, Secret};
use ramlace_wire::chunk::{
    ChunkExtended, ChunkRead, ChunkWritten, ExtendChunk, Keep, LaneTarget, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::inline::{FirstPage, Promote};
use ramlace_wire::namespace::GetAttributes;
use ramlace_wire::runs::{LaneRuns, ReadRuns, RunsRead, WriteRuns};
use ramlace_wire::session::{OpenSession, SessionKind};
use ramlace_wire::{ErrorBody, Header, Kind, Request, decode_body, encode_body};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener as Doors, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::config::{ChildConfig, ServeOptions};
use crate::process;
use crate::server::Server;

/// A store that gives its memory back when the test ends, also by a panic.
pub struct TestStore(Option<Store>);

impl TestStore {
    pub fn new() -> TestStore {
        let size_bytes = ramlace_base::limits::STORE_BYTES_MIN;
        let options = StoreOptions { size_bytes, backing: Backing::Auto, name: "test".into() };
        TestStore(Some(Store::open(StoreRoot::create(&options).unwrap()).unwrap()))
    }

    /// As a process finds it that begins anew.
    pub fn reopen(&mut self) {
        let root = self.0.take().expect("the store is there until drop").into_root();
        self.0 = Some(Store::open(root).unwrap());
    }
}

impl Deref for TestStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        self.0.as_ref().expect("the store is there until drop")
    }
}

impl DerefMut for TestStore {
    fn deref_mut(&mut self) -> &mut Store {
        self.0.as_mut().expect("the store is there until drop")
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Some(store) = self.0.take() {
            store.into_root().remove().expect("removing a test's store");
        }
    }
}

/// Numbers that are the same for the same seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// The memory of a test's server; unused memory is not allocated.
pub const STORE_BYTES: u64 = 96 << 20;
/// Slots of a test's pool.
pub const SLOTS: u32 = 32;
/// Long enough for anything that happens at all.
pub const LONG: Duration = Duration::from_secs(20);

/// A server of a test's pool: a thread that can be killed at any of its waits, and restarted with the same
/// memory and the same listening socket, as the supervisor does it.
pub struct TestServer {
    pub address: String,
    config: ChildConfig,
    listener: TcpListener,
    directory: PathBuf,
    root: Option<StoreRoot>,
    life: Option<(oneshot::Sender<()>, JoinHandle<StoreRoot>)>,
    looks: mpsc::UnboundedSender<Look>,
}

/// A test's query to a server, run in the server's thread.
type Look = Box<dyn FnOnce(&Rc<Server>) + Send>;

impl TestServer {
    /// The first of `servers` servers, which has the coordinator.
    pub fn start(servers: u16) -> TestServer {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let directory = std::env::temp_dir().join(format!("ramlace-server-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let secret_file = directory.join("secret");
        std::fs::write(&secret_file, "07".repeat(32)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let options = ServeOptions {
            pool_name: "test".into(),
            pool_id: "11".repeat(16),
            server: 0,
            servers,
            slots: SLOTS,
            coordinator: None,
            listen: address.clone(),
            advertise: None,
            unix: directory.join("socket"),
            secret_file,
            store_bytes: STORE_BYTES,
            inodes_max: u64::MAX,
            backing: "auto".into(),
            reserve: false,
            root_squash: true,
            trust_network: false,
            metrics: None,
        };
        let store = StoreOptions { size_bytes: STORE_BYTES, backing: Backing::Auto, name: "test".into() };
        let config = ChildConfig {
            options,
            tcp_fd: -1,
            tcp_address: address.clone(),
            unix_fd: -1,
            store_fd: -1,
            store_arguments: String::new(),
            store_notes: Vec::new(),
            stop_fd: -1,
            ready_fd: None,
            restarts: 0,
            supervisor_pid: 0,
        };
        let root = Some(StoreRoot::create(&store).unwrap());
        let looks = mpsc::unbounded_channel().0;
        let mut server = TestServer { address, config, listener, directory, root, life: None, looks };
        server.revive();
        server
    }

    /// Starts it, or restarts it.
    pub fn revive(&mut self) {
        let root = self.root.take().expect("it is dead");
        let (stop, stopped) = oneshot::channel();
        let (looks, looked) = mpsc::unbounded_channel();
        let (config, listener) = (self.config.clone(), self.listener.try_clone().unwrap());
        self.looks = looks;
        self.life = Some((stop, std::thread::spawn(|| live(config, root, listener, stopped, looked))));
    }

    /// Queries a server that has joined its pool.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Server) -> T + Send + 'static) -> T {
        self.within(|server| look(server)).await
    }

    /// Makes it do something.
    pub async fn within<T: Send + 'static>(&self, look: impl FnOnce(&Rc<Server>) -> T + Send + 'static) -> T {
        let (tell, told) = oneshot::channel();
        let look: Look = Box::new(|server| drop(tell.send(look(server))));
        self.looks.send(look).expect("it lives");
        told.await.expect("it lives")
    }

    /// Ends it where it is; its memory stays.
    pub fn kill(&mut self) {
        let (stop, thread) = self.life.take().expect("it lives");
        let _ = stop.send(());
        self.root = Some(thread.join().expect("the server's thread ended well"));
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.life.take() {
            let _ = stop.send(());
            self.root = thread.join().ok();
        }
        if let Some(root) = self.root.take() {
            root.remove().expect("removing a test's store");
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn live(
    config: ChildConfig,
    root: StoreRoot,
    listener: TcpListener,
    mut stopped: oneshot::Receiver<()>,
    mut looked: mpsc::UnboundedReceiver<Look>,
) -> StoreRoot {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let server = local.block_on(&runtime, async move {
        let server = Rc::new(Server::load(config, Store::open(root).unwrap()).unwrap());
        server.resume_deliveries();
        let listener = Listener::from_owned_fd(listener.into()).unwrap();
        tokio::task::spawn_local(process::accept_all(server.clone(), listener));
        tokio::task::spawn_local(process::end_silent_sessions(server.clone()));
        tokio::task::spawn_local(process::step_snapshots(server.clone()));
        tokio::select! {
            joined = server.join_pool() => joined.unwrap(),
            _ = &mut stopped => return server,
        }
        loop {
            tokio::select! {
                Some(look) = looked.recv() => look(&server),
                _ = &mut stopped => return server,
            }
        }
    });
    drop(local);
    drop(runtime);
    let server = Rc::try_unwrap(server).ok().expect("no task is left");
    server.store.into_inner().into_root()
}

/// The pool's secret, as the servers of tests read it.
pub fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

/// Runs a test's own tasks.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut result = None;
    run_boxed(Box::pin(async { result = Some(test.await) }));
    result.unwrap()
}

/// One type of future for all tests: tokio's runtime is compiled once, and not once for each of them.
fn run_boxed(test: Pin<Box<dyn Future<Output = ()> + '_>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// One connection of a session.
pub struct Client {
    pub connection: Connection,
    pub session: SessionId,
    pub epoch: Epoch,
}

/// The result of a request.
pub type Answered<T> = std::result::Result<T, Error>;

impl Client {
    /// Connects; waits for the pool's map.
    pub async fn connect(address: &str, session: SessionId, kind: SessionKind) -> Client {
        let key = match kind {
            SessionKind::User => secret().owner_key(),
            SessionKind::Host => secret().shared_host_key().client_key(),
            SessionKind::Peer => secret().peer_key(),
        };
        let mut connection = Connection::connect(&Address::Tcp(address.into()), &key, None).await.unwrap();
        let hello = OpenSession { kind, resume: false, label: "test".into() };
        let header = Header { session, ..Header::request(OpenSession::KIND) };
        connection.call(header, &hello, LONG).await.unwrap();
        Client { connection, session, epoch: Epoch(0) }
    }

    pub async fn user(address: &str, session: u8) -> Client {
        let mut client = Client::connect(address, SessionId([session; 16]), SessionKind::User).await;
        loop {
            match client.ask(&GetMap {}).await {
                Ok(map) => {
                    client.epoch = map.epoch;
                    return client;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Another connection of the same session.
    pub async fn another(&self, address: &str) -> Client {
        let mut other = Client::connect(address, self.session, SessionKind::User).await;
        other.epoch = self.epoch;
        other
    }

    pub fn header(&self, kind: Kind, sequence: u64, outstanding: u32) -> Header {
        Header {
            session: self.session,
            sequence: Sequence(sequence),
            outstanding,
            epoch: self.epoch,
            ..Header::request(kind)
        }
    }

    pub async fn ask<R: Request>(&mut self, request: &R) -> Answered<R::Reply> {
        self.change(0, 0, request).await
    }

    pub async fn change<R: Request>(
        &mut self,
        sequence: u64,
        outstanding: u32,
        request: &R,
    ) -> Answered<R::Reply> {
        let header = self.header(R::KIND, sequence, outstanding);
        self.connection.call(header, request, LONG).await.map_err(|failure| failure.error)
    }

    /// Promotes an empty file, by a number far above `sequence` that acknowledges nothing from it on.
    pub async fn promote(&mut self, sequence: u64, inode: InodeId) -> Answered<()> {
        const ABOVE: u32 = 1_000_000;
        self.change(sequence + u64::from(ABOVE), ABOVE, &Promote { inode, first_page: FirstPage::Locked })
            .await
            .map(drop)
    }

    /// Sends a write; [`Client::answer`] takes its answer. If the server has closed the connection, that
    /// shows with the answer.
    pub async fn begin_write<R: Request>(&mut self, header: Header, request: &R, data: &[u8]) {
        self.connection.queue_reply(header, &encode_body(request), data);
        let _ = self.connection.flush().await;
    }

    pub async fn answer<T: serde::de::DeserializeOwned>(&mut self) -> Answered<(T, Vec<u8>)> {
        let closed = || Error::new(ErrorKind::HostDown, "the connection was closed");
        let (header, body) = self.connection.read_request().await?.ok_or_else(closed)?;
        assert!(header.is_reply());
        if header.is_error() {
            return Err(decode_body::<ErrorBody>(header.kind, &body)?.into_error());
        }
        let mut data = Vec::new();
        self.connection.read_data_staged(header.data_bytes as usize, &mut data).await?;
        Ok((decode_body(header.kind, &body)?, data))
    }

    pub async fn write(
        &mut self,
        sequence: u64,
        outstanding: u32,
        target: LaneTarget,
        offset: u64,
        data: &[u8],
    ) -> Answered<()> {
        let header = self.header(Kind::WriteChunk, sequence, outstanding);
        self.begin_write(header, &WriteChunk { target, offset, origin: WriteOrigin::Program }, data).await;
        self.answer::<ChunkWritten>().await.map(drop)
    }

    pub async fn extend_chunk(
        &mut self,
        sequence: u64,
        request: &ExtendChunk,
        data: &[u8],
    ) -> Answered<ChunkExtended> {
        let header = self.header(Kind::ExtendChunk, sequence, 0);
        self.begin_write(header, request, data).await;
        self.answer::<ChunkExtended>().await.map(|(extended, _)| extended)
    }

    pub async fn size_of(&mut self, inode: InodeId) -> u64 {
        self.ask(&GetAttributes { inode }).await.unwrap().attributes.size
    }

    pub async fn write_runs(
        &mut self,
        sequence: u64,
        target: LaneTarget,
        runs: LaneRuns,
        data: &[u8],
    ) -> Answered<()> {
        let header = self.header(Kind::WriteRuns, sequence, 0);
        self.begin_write(header, &WriteRuns { target, runs }, data).await;
        self.answer::<()>().await.map(drop)
    }

    pub async fn read_runs(&mut self, target: LaneTarget, runs: LaneRuns) -> Answered<Vec<u8>> {
        let bytes = runs.reach().bytes as usize;
        let header = self.header(Kind::ReadRuns, 0, 0);
        self.begin_write(header, &ReadRuns { target, runs }, &[]).await;
        let (read, data) = self.answer::<RunsRead>().await?;
        Ok(if read.hole { vec![0; bytes] } else { data })
    }

    pub async fn read(&mut self, target: LaneTarget, offset: u64, length: u32) -> Answered<Vec<u8>> {
        let request = ReadChunk { target, offset, length, keep: Keep::No, take: false };
        self.connection.queue_reply(self.header(Kind::ReadChunk, 0, 0), &encode_body(&request), &[]);
        self.connection.flush().await?;
        let (read, data) = self.answer::<ChunkRead>().await?;
        Ok(if read.hole { vec![0; length as usize] } else { data })
    }
}

/// Passes bytes on between a client and a server, but only as many of the client's as its test says.
pub struct Gate {
    pub address: String,
    passed: Rc<Cell<usize>>,
    limit: Rc<Cell<usize>>,
    moved: Rc<Notify>,
}

impl Gate {
    /// Listens for one connection to the server. Needs the test's own event loop.
    pub async fn before(server: &str) -> Gate {
        let doors = Doors::bind("127.0.0.1:0").await.unwrap();
        let gate = Gate {
            address: doors.local_addr().unwrap().to_string(),
            passed: Rc::default(),
            limit: Rc::new(Cell::new(usize::MAX)),
            moved: Rc::default(),
        };
        let (passed, limit, moved) = (gate.passed.clone(), gate.limit.clone(), gate.moved.clone());
        let server = server.to_owned();
        tokio::task::spawn_local(async move {
            let (client, _) = doors.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
            tokio::task::spawn_local(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let mut buffer = vec![0; 64 << 10];
            loop {
                let room = limit.get().saturating_sub(passed.get()).min(buffer.len());
                if room == 0 {
                    moved.notified().await;
                    continue;
                }
                let Ok(count @ 1..) = from_client.read(&mut buffer[..room]).await else { return };
                if to_server.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
                passed.set(passed.get() + count);
                moved.notify_waiters();
            }
        });
        gate
    }

    /// Lets this many more bytes pass.
    pub fn let_pass(&self, bytes: usize) {
        self.limit.set(self.passed.get().saturating_add(bytes));
        self.moved.notify_waiters();
        self.moved.notify_one();
    }

    /// Waits until everything that may pass has passed.
    pub async fn drained(&self) {
        while self.passed.get() < self.limit.get() {
            self.moved.notified().await;
        }
    }
}

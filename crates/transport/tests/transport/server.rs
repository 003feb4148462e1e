//! A small server: chunk reads and writes over one memory, and what else the tests need.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ramlace_base::{
    Epoch, Error, ErrorKind, Generation, InodeId, LaneId, Redirect, Result, ServerId, Slot, limits,
};
use ramlace_sync::Mutex;
use ramlace_transport::blocking;
use ramlace_transport::nonblocking::{Canceller, Connection, Incoming, Listener, Newcomers};
use ramlace_transport::{Address, ClientKey, Secret, ServerKeys};
use ramlace_wire::chunk::{
    ChunkRead, ChunkWritten, Keep, LaneGranted, LaneTarget, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::{Chain, ClusterMap, ErrorBody, Header, Kind, PoolId, decode_body, encode_body, flags};
use tokio::sync::oneshot;

use crate::memory::Memory;

pub const MEMORY_BYTES: usize = 16 << 20;

pub fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

/// What the pool's owner proves.
pub fn owner() -> ClientKey {
    secret().owner_key()
}

/// The number of the server.
pub const THIS: ServerId = ServerId(3);

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// How a test's server differs from others.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    pub stall: Option<Duration>,
    /// A write's task is cancelled by another task as soon as it waits for its data.
    pub cancels_writes: bool,
    pub trusts_network: bool,
}

impl Setup {
    fn keys(self) -> ServerKeys {
        secret().server_keys(THIS).trusting_the_network(self.trusts_network)
    }
}

struct Shared {
    memory: Memory,
    setup: Setup,
    /// How connections ended: `None` is a clean end.
    ends: Mutex<Vec<Option<Error>>>,
    open: AtomicUsize,
    served: AtomicUsize,
}

pub struct TestServer {
    pub address: Address,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The kernel's number of it.
    number: i32,
    directory: Option<PathBuf>,
}

/// A directory of this test's own.
pub fn scratch_directory() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::SeqCst);
    let path = std::env::temp_dir().join(format!("ramlace-transport-{}-{number}", std::process::id()));
    std::fs::create_dir(&path).unwrap();
    path
}

impl TestServer {
    pub fn tcp() -> TestServer {
        TestServer::start(Address::Tcp("127.0.0.1:0".into()), None, Setup::default())
    }

    pub fn unix() -> TestServer {
        TestServer::unix_with(Setup::default())
    }

    pub fn unix_with(setup: Setup) -> TestServer {
        let directory = scratch_directory();
        TestServer::start(Address::Unix(directory.join("socket")), Some(directory), setup)
    }

    pub fn tcp_with(setup: Setup) -> TestServer {
        TestServer::start(Address::Tcp("127.0.0.1:0".into()), None, setup)
    }

    pub fn both() -> [TestServer; 2] {
        [TestServer::tcp(), TestServer::unix()]
    }

    /// One for each way in which frames are protected.
    pub fn all() -> [TestServer; 3] {
        let trusting = TestServer::tcp_with(Setup { trusts_network: true, ..Setup::default() });
        [TestServer::tcp(), TestServer::unix(), trusting]
    }

    fn start(address: Address, directory: Option<PathBuf>, setup: Setup) -> TestServer {
        let shared = Arc::new(Shared {
            memory: Memory::new(MEMORY_BYTES),
            setup,
            ends: Mutex::default(),
            open: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let (ready, listening) = mpsc::channel();
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                let mut listener = Listener::bind(&address).unwrap();
                let number = rustix::thread::gettid().as_raw_nonzero().get();
                ready.send((listener.local_address().unwrap(), number)).unwrap();
                let newcomers = Newcomers::new(7);
                let accept = async {
                    loop {
                        let incoming = listener.accept().await.unwrap();
                        tokio::task::spawn_local(serve(of_thread.clone(), incoming, newcomers.clone()));
                    }
                };
                tokio::select! { () = accept => {}, _ = stopped => {} }
            });
        });
        let (address, number) = listening.recv().unwrap();
        TestServer { address, shared, stop: Some(stop), thread: Some(thread), number, directory }
    }

    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    pub fn connect(&self) -> blocking::Connection {
        blocking::Connection::connect(&self.address, &owner(), None, soon()).unwrap()
    }

    /// How often its thread has gone to sleep.
    pub fn sleeps(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", self.number)).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    /// Requests that were answered so far.
    pub fn served(&self) -> usize {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// Waits until so many connections have ended, and takes how.
    pub fn wait_for_ends(&self, count: usize) -> Vec<Option<Error>> {
        let deadline = soon();
        loop {
            let mut ends = self.shared.ends.lock();
            if ends.len() >= count {
                return std::mem::take(&mut *ends);
            }
            assert!(Instant::now() < deadline, "only {} of {count} connections have ended", ends.len());
            drop(ends);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The error with which the next connection ends.
    pub fn wait_for_error(&self) -> Error {
        self.wait_for_ends(1).remove(0).expect("the connection ended cleanly")
    }

    /// Shows that the server still serves.
    pub fn assert_alive(&self) {
        let mut connection = self.connect();
        write(&mut connection, 1, 5, b"alive").unwrap();
        assert_eq!(read(&mut connection, 2, 5, 5).unwrap(), b"alive");
        drop(connection);
        self.wait_for_ends(1);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        let joined = self.thread.take().unwrap().join();
        if let Some(directory) = &self.directory {
            std::fs::remove_dir_all(directory).unwrap();
        }
        if !std::thread::panicking() {
            joined.unwrap();
        }
    }
}

async fn serve(shared: Arc<Shared>, incoming: Incoming, newcomers: Newcomers) {
    shared.open.fetch_add(1, Ordering::SeqCst);
    let end = match Connection::accept(incoming, &shared.setup.keys(), &newcomers).await {
        Ok((mut connection, _)) => {
            if let Some(stall) = shared.setup.stall {
                connection.set_stall_limit(stall);
            }
            serve_requests(&shared, &mut connection).await.err()
        }
        Err(error) => Some(error),
    };
    shared.open.fetch_sub(1, Ordering::SeqCst);
    shared.ends.lock().push(end);
}

async fn serve_requests(shared: &Arc<Shared>, connection: &mut Connection) -> Result<()> {
    loop {
        if !connection.has_buffered_request() {
            connection.flush().await?;
        }
        let Some((header, body)) = connection.read_request().await? else { return connection.flush().await };
        match serve_request(shared, connection, &header, &body).await {
            Err(error) if connection.is_usable() => refuse(connection, &header, &error, None),
            other => other?,
        }
        shared.served.fetch_add(1, Ordering::SeqCst);
    }
}

async fn serve_request(
    shared: &Arc<Shared>,
    connection: &mut Connection,
    header: &Header,
    body: &[u8],
) -> Result<()> {
    let reply = header.reply(Epoch(9));
    match header.kind {
        Kind::ReadChunk => {
            let request: ReadChunk = decode_body(header.kind, body)?;
            let (offset, length) = (request.offset as usize, request.length as usize);
            let body = encode_body(&ChunkRead { hole: length == 0, kept: false });
            if length <= limits::STAGED_BYTES_MAX {
                connection.queue_reply(reply, &body, &shared.memory.read(offset, length));
                return Ok(());
            }
            let segments = shared.memory.segments(offset, length);
            // SAFETY: the memory outlives the server's thread.
            unsafe { connection.send_in_place(reply, &body, &segments, None).await }
        }
        Kind::WriteChunk => {
            let request: WriteChunk = decode_body(header.kind, body)?;
            take_data(shared, connection, request.offset as usize, header.data_bytes as usize).await?;
            connection.queue_reply(reply, &encode_body(&ChunkWritten { recall: 0 }), &[]);
            Ok(())
        }
        Kind::GrantLane => {
            let body = encode_body(&LaneGranted { length: MEMORY_BYTES as u64 });
            connection.send_descriptor(reply, &body, shared.memory.file()).await
        }
        Kind::GetMap => {
            refuse(
                connection,
                header,
                &Error::new(ErrorKind::Redirect(Redirect::Moved), "the slot has moved"),
                Some(map()),
            );
            Ok(())
        }
        Kind::Heartbeat => {
            connection.queue_reply(reply, &encode_body(&()), &[]);
            Ok(())
        }
        // Its body may be as long as one may be.
        Kind::ReadLink => {
            connection.queue_reply(reply, body, &[]);
            Ok(())
        }
        other => Err(Error::new(ErrorKind::Unsupported, format!("{other:?} is not tested"))),
    }
}

async fn take_data(
    shared: &Arc<Shared>,
    connection: &mut Connection,
    offset: usize,
    length: usize,
) -> Result<()> {
    if offset == usize::MAX {
        // Left where they are: the next read skips them.
        return Ok(());
    }
    if length <= limits::STAGED_BYTES_MAX {
        let mut bytes = Vec::new();
        connection.read_data_staged(length, &mut bytes).await?;
        shared.memory.write(offset, &bytes);
        return Ok(());
    }
    if shared.setup.cancels_writes {
        let canceller: Rc<Canceller> = Rc::new(connection.canceller());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            canceller.cancel();
        });
    }
    // SAFETY: the memory outlives the server's thread.
    unsafe { connection.read_data_in_place(&shared.memory.segments(offset, length)).await }
}

fn refuse(connection: &mut Connection, header: &Header, error: &Error, map: Option<ClusterMap>) {
    let mut reply = header.reply(Epoch(9));
    reply.flags |= flags::ERROR;
    connection.queue_reply(reply, &encode_body(&ErrorBody { map, ..ErrorBody::new(error) }), &[]);
}

pub fn map() -> ClusterMap {
    ClusterMap {
        pool: PoolId([3; 16]),
        epoch: Epoch(10),
        hash_seed: 4,
        coordinator: ServerId(0),
        servers: Vec::new(),
        chains: vec![Chain { servers: vec![ServerId(0)], complete_since: Epoch(1) }; 16],
    }
}

pub fn target() -> LaneTarget {
    let lane = LaneId { inode: InodeId::ROOT, lane: 0 };
    LaneTarget { lane, slot: Slot(0), generation: Generation::FIRST, created: Epoch(1), permit: None }
}

pub fn header(kind: Kind, call: u32) -> Header {
    Header { call, ..Header::request(kind) }
}

pub type Outcome<T> = std::result::Result<T, ramlace_transport::Failure>;

/// Writes in one call.
pub fn write(connection: &mut blocking::Connection, call: u32, offset: u64, data: &[u8]) -> Outcome<()> {
    let request = WriteChunk { target: target(), offset, origin: WriteOrigin::Program };
    connection.send(header(Kind::WriteChunk, call), &request, &[std::io::IoSlice::new(data)], soon())?;
    connection.receive::<WriteChunk>(call, soon()).map(drop)
}

/// Reads in one call, into two buffers.
pub fn read(
    connection: &mut blocking::Connection,
    call: u32,
    offset: u64,
    length: usize,
) -> Outcome<Vec<u8>> {
    let request = ReadChunk { target: target(), offset, length: length as u32, take: false, keep: Keep::No };
    connection.send(header(Kind::ReadChunk, call), &request, &[], soon())?;
    let received = connection.receive::<ReadChunk>(call, soon())?;
    assert_eq!(received.data_bytes as usize, length);
    assert_eq!(received.epoch, Epoch(9));
    let mut bytes = vec![0; length];
    let (first, second) = bytes.split_at_mut(length / 3);
    let mut empty = [];
    let mut into = [first, &mut empty[..], second].map(std::io::IoSliceMut::new);
    connection.receive_data(&mut into, soon())?;
    Ok(bytes)
}

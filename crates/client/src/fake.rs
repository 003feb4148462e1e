//! A pool in one process for tests: real sockets and the real protocol in front of plain collections, with
//! faults on demand.

mod lanes;
mod locks;
mod names;
mod sizes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ramlace_base::{
    Epoch, Error, ErrorKind, Generation, InodeId, LaneId, Redirect, Sequence, ServerId, SessionId, Slot,
    Timestamp, limits,
};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_transport::nonblocking::{Connection, Listener, Newcomers};
use ramlace_transport::{Address, Secret};
use ramlace_wire::chunk::{AllocateLane, LaneTarget, WriteOrigin};
use ramlace_wire::leases::{DataRecall, EndRecalls, WaitPublished};
use ramlace_wire::listen::{Listen, News};
use ramlace_wire::locks::SetLock;
use ramlace_wire::namespace::{CancelChange, ChangeCancelled, InodeInfo, Opened};
use ramlace_wire::permit::GetPermit;
use ramlace_wire::session::{OpenSession, SessionOpened};
use ramlace_wire::{
    Attributes, Chain, ClusterMap, Credentials, ErrorBody, FileKind, Header, HostId, Kind, LayoutHints,
    Permit, PoolId, ServerEntry, decode_body, decode_path, encode_body, flags,
};

use self::lanes::target_of;
use crate::scratch::Scratch;
use crate::{ConnectOptions, Pool};

/// A fault for the next request of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answered with Retry.
    Retry,
    /// Answered with TooMany.
    TooMany,
    /// It is processed, and answered a second later.
    Late,
    /// It is processed, and answered when [`State::releases_held`] is set.
    Held,
    /// The connection ends before the request is processed.
    LoseRequest,
    /// It is processed, and the connection ends.
    LoseReply,
    /// The same, and from then on lanes take another permit than before.
    LoseReplyAndRenew,
    /// The same, and then another client takes the last byte of all files away.
    LoseReplyAndCut,
    /// Answered with Moved, without a map.
    Moved,
    /// Answered with Spread: this part of the directory is not known here.
    Spread,
    /// Before it is processed, another client truncates all files to nothing.
    Truncated,
}

pub(crate) struct Inode {
    pub(crate) info: InodeInfo,
    target: Vec<u8>,
    /// Bytes of an inline file.
    bytes: Vec<u8>,
    reserved_to: u64,
    /// Where they begin, by the numbers of their changes.
    reservations: BTreeMap<(SessionId, Sequence), u64>,
}

/// Everything the pool knows.
pub(crate) struct State {
    pub(crate) map: ClusterMap,
    lanes: HashMap<LaneId, Vec<u8>>,
    pub(crate) inodes: HashMap<InodeId, Inode>,
    entries: BTreeMap<(InodeId, Vec<u8>), InodeId>,
    counter: u64,
    replies: HashMap<(SessionId, Sequence), Vec<u8>>,
    /// Changes that were cancelled and must not be processed any more.
    cancelled: HashSet<(SessionId, Sequence)>,
    sessions: HashSet<(ServerId, SessionId)>,
    /// The permit that lanes require, if they require any.
    pub(crate) permit: Option<Permit>,
    pub(crate) faults: Vec<(Kind, Fault)>,
    /// Requests that were processed, by kind.
    pub(crate) done: HashMap<Kind, usize>,
    /// Requests that were received, by kind.
    pub(crate) seen: HashMap<Kind, usize>,
    /// Bytes that all lanes of a server may have together.
    pub(crate) lane_bytes_max: usize,
    /// Locks that are held, by the session's number; each is granted.
    pub(crate) locks: BTreeMap<u64, SetLock>,
    /// Those who may wait are told that they do.
    pub(crate) locks_queue: bool,
    /// Requests to take memory.
    pub(crate) allocated: Vec<AllocateLane>,
    /// The number of changes of bytes so far.
    pub(crate) changes: u64,
    /// Open references: one for each session and inode.
    pub(crate) open: BTreeSet<(SessionId, InodeId)>,
    /// The sequence numbers of processed `Close`s.
    closes: HashMap<(SessionId, Sequence), InodeId>,
    /// What a session has opened or closed by a change that it has cancelled. It was notified of the open, but does
    /// not know of the close: so it may close what it has not open.
    open_in_doubt: HashSet<(SessionId, InodeId)>,
    /// Requests that no client sends that got honest replies. A test that ends with any fails.
    misuses: Vec<String>,
    pub(crate) silent: HashSet<ServerId>,
    /// Replaces the bodies of replies.
    pub(crate) liar: Option<Liar>,
    /// It has replaced one: the client may believe false things since then, and ask for anything.
    has_lied: bool,
    /// What was held is answered, and nothing is held any more.
    pub(crate) releases_held: bool,
    /// The state of leases on bytes.
    pub(crate) data: Data,
}

/// Leases on bytes, as far as tests check them. All servers have the same incarnation.
#[derive(Default)]
pub(crate) struct Data {
    pub(crate) life: u64,
    /// For how long the request has waited that is being answered.
    waited_millis: u32,
    pub(crate) recalls: Vec<(ServerId, DataRecall)>,
    pub(crate) ended: EndRecalls,
    /// By server: up to which recall it was asked whether all see it.
    pub(crate) published: Vec<(ServerId, u64)>,
    /// Of each write and each read, in their order.
    pub(crate) origins: Vec<WriteOrigin>,
    pub(crate) keeps: Vec<bool>,
    /// Lanes that were read by sessions that cache them.
    kept: HashSet<LaneId>,
    /// The newest recall; each write-back makes one.
    pub(crate) made: u64,
}

impl Data {
    /// The recalls of leases on bytes for a listening session, and whether there are any.
    fn news(&self, server: ServerId, poll: &Listen) -> (News, bool) {
        let here = self.recalls.iter().filter(|(id, recall)| *id == server && recall.number > poll.received);
        let data: Vec<DataRecall> = here.map(|(_, recall)| *recall).collect();
        let is_some = !data.is_empty() || poll.life != self.life;
        (News { data, life: self.life, waited_millis: self.waited_millis, ..News::default() }, is_some)
    }

    fn write(&mut self, origin: WriteOrigin) -> u64 {
        self.origins.push(origin);
        if origin != WriteOrigin::Back {
            return 0;
        }
        self.made += 1;
        self.made
    }
}

/// Returns the body with which a request is answered; it is given the honest one, if there is one.
pub(crate) type Liar = Box<dyn FnMut(Kind, Option<&[u8]>) -> Option<Vec<u8>> + Send>;

enum Answer {
    Reply(Vec<u8>, Vec<u8>),
    Refused(Error, Option<ClusterMap>),
    Gone,
    Late(Vec<u8>, Vec<u8>),
    Held(Vec<u8>, Vec<u8>),
}

/// A running pool; stops when it is dropped.
pub(crate) struct FakePool {
    pub(crate) state: Arc<Mutex<State>>,
    scratch: Scratch,
    stop: tokio::sync::watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

const SLOTS: u16 = 64;

impl FakePool {
    pub(crate) fn start(servers: u16) -> FakePool {
        let scratch = Scratch::new();
        let directory = crate::PoolDirectory::within(scratch.path(), "fake").unwrap();
        directory.create().unwrap();
        let (secret, stop) = (directory.read_secret().unwrap(), tokio::sync::watch::Sender::new(false));
        let state = Arc::new(Mutex::new(State::new(servers)));
        let threads = (0..servers).map(|id| serve(ServerId(id), &state, &secret, stop.subscribe())).collect();
        FakePool { state, scratch, stop, threads }
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        let addresses = self.state().map.servers.iter().map(|entry| entry.tcp.clone()).collect();
        ConnectOptions {
            addresses,
            secret_file: Some(self.scratch.path().join("fake/secret")),
            local: false,
            label: "test".into(),
            ..ConnectOptions::default()
        }
    }

    /// A copy of the secret, in a directory that outlives the pool.
    pub(crate) fn copy_of_secret(&self) -> Scratch {
        let scratch = Scratch::new();
        std::fs::copy(self.scratch.path().join("fake/secret"), scratch.path().join("secret")).unwrap();
        scratch
    }

    pub(crate) fn connect(&self) -> Pool {
        Pool::connect(&self.options()).unwrap()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn fault(&self, kind: Kind, fault: Fault) {
        self.state().faults.push((kind, fault));
    }

    pub(crate) fn done(&self, kind: Kind) -> usize {
        self.state().done.get(&kind).copied().unwrap_or(0)
    }

    pub(crate) fn seen(&self, kind: Kind) -> usize {
        self.state().seen.get(&kind).copied().unwrap_or(0)
    }
}

impl Drop for FakePool {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        let misuses = &self.state().misuses;
        assert!(
            std::thread::panicking() || misuses.is_empty(),
            "the pool was asked what nobody asks: {misuses:?}"
        );
    }
}

fn serve(
    id: ServerId,
    state: &Arc<Mutex<State>>,
    secret: &Secret,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> JoinHandle<()> {
    let (state, secret) = (state.clone(), secret.clone());
    let (ready, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let mut listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).unwrap();
            let Address::Tcp(address) = listener.local_address().unwrap() else { unreachable!() };
            state.lock().map.servers[usize::from(id.0)].tcp = address;
            ready.send(()).unwrap();
            let newcomers = Newcomers::new(1);
            loop {
                tokio::select! {
                    incoming = listener.accept() => {
                        let (incoming, state, secret) = (incoming.unwrap(), state.clone(), secret.clone());
                        let newcomers = newcomers.clone();
                        tokio::task::spawn_local(async move {
                            let keys = secret.server_keys(id);
                            if let Ok((connection, _)) = Connection::accept(incoming, &keys, &newcomers).await {
                                talk(id, connection, &state).await;
                            }
                        });
                    }
                    _ = stop.changed() => return,
                }
            }
        });
    });
    wait.recv().unwrap();
    thread
}

async fn talk(id: ServerId, mut connection: Connection, state: &Mutex<State>) {
    while let Ok(Some((header, body))) = connection.read_request().await {
        let mut data = Vec::new();
        if connection.read_data_staged(header.data_bytes as usize, &mut data).await.is_err() {
            return;
        }
        if state.lock().silent.contains(&id) {
            std::future::pending::<()>().await;
        }
        let received = Instant::now();
        if header.kind == Kind::Listen {
            let poll: Listen = decode_body(header.kind, &body).unwrap();
            let over = received + Duration::from_millis(limits::LISTEN_MILLIS_MAX);
            while Instant::now() < over && !state.lock().news(id, &header, &poll).1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let answer = {
            let mut state = state.lock();
            state.data.waited_millis = received.elapsed().as_millis() as u32;
            let answering = AssertUnwindSafe(|| state.answer(id, &header, &body, &data));
            let answer = catch_unwind(answering).unwrap_or_else(|_| {
                state.misuse(format!("{:?} makes no sense to plain collections", header.kind));
                Answer::Gone
            });
            state.lie(header.kind, answer)
        };
        let reply = header.reply(Epoch(1));
        match answer {
            Answer::Reply(body, data) => connection.queue_reply(reply, &body, &data),
            Answer::Refused(error, map) => {
                let body = ErrorBody { map, ..ErrorBody::new(&error) };
                let reply = Header { flags: flags::REPLY | flags::ERROR, ..reply };
                connection.queue_reply(reply, &encode_body(&body), &[]);
            }
            Answer::Gone => return,
            Answer::Held(body, data) => {
                while !state.lock().releases_held {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                connection.queue_reply(reply, &body, &data);
            }
            Answer::Late(body, data) => {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                connection.queue_reply(reply, &body, &data);
            }
        }
        if connection.flush().await.is_err() {
            return;
        }
    }
}

type Done = Result<(Vec<u8>, Vec<u8>), Error>;

fn body<T: serde::Serialize>(reply: &T) -> Done {
    Ok((encode_body(reply), Vec::new()))
}

fn error<T>(kind: ErrorKind, text: &str) -> Result<T, Error> {
    Err(Error::new(kind, text))
}

impl State {
    /// The news for a listening session, and whether there are any.
    fn news(&self, id: ServerId, header: &Header, poll: &Listen) -> (News, bool) {
        let (news, is_some) = self.data.news(id, poll);
        let map = (self.map.epoch > header.epoch).then(|| self.map.clone());
        let is_some = is_some || map.is_some();
        (News { map, ..news }, is_some)
    }

    fn new(servers: u16) -> State {
        let pool = PoolId([7; 16]);
        let entry = |id| ServerEntry {
            server: ServerId(id),
            host: HostId([1; 16]),
            tcp: String::new(),
            unix: String::new(),
            store_bytes: 1 << 30,
            forgotten: false,
        };
        let chain = |slot: u16| Chain { servers: vec![ServerId(slot % servers)], complete_since: Epoch(1) };
        let map = ClusterMap {
            pool,
            epoch: Epoch(1),
            hash_seed: 1,
            coordinator: ServerId(0),
            servers: (0..servers).map(entry).collect(),
            chains: (0..SLOTS).map(chain).collect(),
        };
        let mut state = State {
            map,
            lanes: HashMap::new(),
            inodes: HashMap::new(),
            entries: BTreeMap::new(),
            counter: 1,
            replies: HashMap::new(),
            cancelled: HashSet::new(),
            sessions: HashSet::new(),
            permit: None,
            faults: Vec::new(),
            done: HashMap::new(),
            seen: HashMap::new(),
            lane_bytes_max: usize::MAX,
            locks: BTreeMap::new(),
            locks_queue: false,
            allocated: Vec::new(),
            changes: 0,
            open: BTreeSet::new(),
            closes: HashMap::new(),
            open_in_doubt: HashSet::new(),
            misuses: Vec::new(),
            silent: HashSet::new(),
            liar: None,
            has_lied: false,
            releases_held: false,
            data: Data { life: 1, ..Data::default() },
        };
        state.inodes.insert(InodeId::ROOT, new_inode(InodeId::ROOT, FileKind::Directory));
        state
    }

    /// Passes a reply through the pool's liar, if there is one.
    fn lie(&mut self, kind: Kind, answer: Answer) -> Answer {
        let Some(liar) = &mut self.liar else { return answer };
        self.has_lied = true;
        match answer {
            Answer::Reply(body, data) => match liar(kind, Some(&body)) {
                Some(body) => Answer::Reply(body, data),
                None => Answer::Reply(body, data),
            },
            refused => liar(kind, None).map_or(refused, |body| Answer::Reply(body, Vec::new())),
        }
    }

    /// Notes a request that no client sends that got honest replies.
    fn misuse(&mut self, what: String) {
        if !self.has_lied {
            self.misuses.push(what);
        }
    }

    /// Whether a session is open there.
    pub(crate) fn has_session(&self, server: ServerId) -> bool {
        self.sessions.iter().any(|(id, _)| *id == server)
    }

    pub(crate) fn layout_of(&self, inode: InodeId) -> ramlace_wire::Layout {
        self.inodes[&inode].info.layout.unwrap()
    }

    pub(crate) fn forget_sessions(&mut self) {
        self.sessions.clear();
    }

    /// The file's bytes, put together from its lanes.
    pub(crate) fn content(&self, inode: InodeId) -> Vec<u8> {
        let info = &self.inodes[&inode].info;
        let layout = info.layout.unwrap();
        let range = ramlace_base::ByteRange { start: 0, end: info.attributes.size };
        let mut bytes = vec![0; info.attributes.size as usize];
        for piece in ramlace_layout::pieces(&layout, range) {
            let Some(lane) = self.lanes.get(&LaneId { inode, lane: piece.lane }) else { continue };
            let start = (piece.lane_offset as usize).min(lane.len());
            let end = ((piece.lane_offset + piece.length) as usize).min(lane.len());
            bytes[piece.file_offset as usize..][..end - start].copy_from_slice(&lane[start..end]);
        }
        bytes
    }

    fn answer(&mut self, id: ServerId, header: &Header, body: &[u8], data: &[u8]) -> Answer {
        *self.seen.entry(header.kind).or_default() += 1;
        let at = self.faults.iter().position(|(kind, _)| *kind == header.kind);
        let fault = at.map(|at| self.faults.remove(at).1);
        match fault {
            Some(Fault::Retry) => return Answer::Refused(Error::new(ErrorKind::Retry, "again"), None),
            Some(Fault::TooMany) => {
                return Answer::Refused(Error::new(ErrorKind::TooMany, "answers are kept"), None);
            }
            Some(Fault::Moved) => {
                return Answer::Refused(Error::new(ErrorKind::Redirect(Redirect::Moved), "elsewhere"), None);
            }
            Some(Fault::Spread) => {
                return Answer::Refused(Error::new(ErrorKind::Redirect(Redirect::Spread), "none here"), None);
            }
            Some(Fault::LoseRequest) => return Answer::Gone,
            Some(Fault::Truncated) => self.truncate_all(),
            _ => {}
        }
        let target = target_of(header.kind, body);
        if target.is_some_and(|target| self.permit.is_some() && target.permit != self.permit) {
            return Answer::Refused(Error::new(ErrorKind::Denied, "by no permit of now"), None);
        }
        // As a server does before it checks whether it has processed the request already.
        if target.is_some_and(|target| self.was_truncated_since(&target)) {
            return Answer::Refused(Error::new(ErrorKind::Retry, "truncated meanwhile"), None);
        }
        let key = (header.session, header.sequence);
        if header.sequence != Sequence(0)
            && let Some(reply) = self.replies.get(&key)
        {
            return Answer::Reply(reply.clone(), Vec::new());
        }
        if self.cancelled.contains(&key) {
            return Answer::Refused(Error::new(ErrorKind::Stale, "given up"), None);
        }
        if header.kind != Kind::OpenSession && !self.sessions.contains(&(id, header.session)) {
            return Answer::Refused(Error::new(ErrorKind::Stale, "no such session"), None);
        }
        let done = self.run(id, header, body, data);
        if let Err(error) = &done
            && error.kind() == ErrorKind::Redirect(Redirect::Moved)
        {
            return Answer::Refused(error.clone(), Some(self.map.clone()));
        }
        match done {
            Ok((reply, data)) => {
                *self.done.entry(header.kind).or_default() += 1;
                if header.sequence != Sequence(0) {
                    self.replies.insert(key, reply.clone());
                }
                match fault {
                    Some(Fault::LoseReply) => Answer::Gone,
                    Some(Fault::LoseReplyAndRenew) => {
                        self.renew_permit();
                        Answer::Gone
                    }
                    Some(Fault::LoseReplyAndCut) => {
                        self.cut_all();
                        Answer::Gone
                    }
                    Some(Fault::Late) => Answer::Late(reply, data),
                    Some(Fault::Held) => Answer::Held(reply, data),
                    _ => Answer::Reply(reply, data),
                }
            }
            Err(error) => Answer::Refused(error, None),
        }
    }

    /// From now on lanes take only this permit, as after a change of the pool's secret.
    pub(crate) fn renew_permit(&mut self) {
        let number = self.permit.map_or(1, |permit| permit.read[0] + 1);
        self.permit = Some(Permit { read: [number; 8], write: [number; 8] });
    }

    fn home(&mut self, id: ServerId, slot: Slot) -> Result<(), Error> {
        if self.map.primary(slot) == Some(id) {
            Ok(())
        } else {
            error(ErrorKind::Redirect(Redirect::Moved), "not here")
        }
    }

    fn inode(&mut self, id: ServerId, inode: InodeId) -> Result<&mut Inode, Error> {
        self.home(id, inode.slot())?;
        self.inodes.get_mut(&inode).ok_or_else(|| Error::new(ErrorKind::Stale, "no such inode"))
    }

    fn lane(&mut self, id: ServerId, target: &LaneTarget) -> Result<&mut Vec<u8>, Error> {
        self.home(id, target.slot)?;
        let known = self.inodes.get(&target.lane.inode).map(|inode| inode.info.attributes.generation);
        if known.is_none_or(|known| target.generation < known) {
            return error(ErrorKind::Retry, "an older generation");
        }
        Ok(self.lanes.entry(target.lane).or_default())
    }

    /// The body behind the path that precedes it, which has to lead somewhere.
    fn behind_path<'a>(&self, header: &Header, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        if header.flags & flags::BY_PATH == 0 {
            return Ok(bytes);
        }
        let (path, bytes) = decode_path(header.kind, bytes)?;
        let led = path.into_iter().try_fold(InodeId::ROOT, |here, name| {
            self.entries.get(&(here, name.as_bytes().to_vec())).copied()
        });
        led.map(|_| bytes)
            .ok_or_else(|| Error::new(ErrorKind::Redirect(Redirect::Astray), "the path leads elsewhere"))
    }

    fn run(&mut self, id: ServerId, header: &Header, bytes: &[u8], data: &[u8]) -> Done {
        let kind = header.kind;
        let bytes = self.behind_path(header, bytes)?;
        match kind {
            Kind::OpenSession => {
                let known = !self.sessions.insert((id, header.session));
                if decode_body::<OpenSession>(kind, bytes)?.resume && !known {
                    self.forget_sessions();
                    return error(ErrorKind::Stale, "no such session");
                }
                body(&SessionOpened {
                    pool: self.map.pool,
                    server: id,
                    host: HostId([1; 16]),
                    epoch: self.map.epoch,
                    credentials: Credentials::new(0, 0),
                    expiry_millis: 10_000,
                })
            }
            Kind::Heartbeat => body(&()),
            Kind::CloseSession => {
                self.sessions.remove(&(id, header.session));
                self.open.retain(|(session, _)| *session != header.session);
                body(&())
            }
            Kind::GetMap => body(&self.map),
            Kind::GetPermit => {
                self.home(id, decode_body::<GetPermit>(kind, bytes)?.inode.slot())?;
                body(&self.permit)
            }
            Kind::CancelChange => {
                let CancelChange { sequence } = decode_body::<CancelChange>(kind, bytes)?;
                let key = (header.session, sequence);
                let reply = self.replies.get(&key);
                if reply.is_none() {
                    self.cancelled.insert(key);
                }
                let opened = reply.and_then(|reply| decode_body::<Opened>(Kind::Open, reply).ok());
                let opened = opened.map(|opened| opened.info.attributes.inode);
                let in_doubt = opened.or(self.closes.get(&key).copied());
                self.open_in_doubt.extend(in_doubt.map(|inode| (header.session, inode)));
                body(&ChangeCancelled { opened })
            }
            Kind::Listen => body(&self.news(id, header, &decode_body::<Listen>(kind, bytes)?).0),
            Kind::EndRecalls => {
                let EndRecalls { done, blocked, relaxed, life } = decode_body::<EndRecalls>(kind, bytes)?;
                self.data.recalls.retain(|(_, recall)| !done.contains(&recall.number));
                self.data.ended.done.extend(done);
                self.data.ended.blocked.extend(blocked);
                self.data.ended.relaxed.extend(relaxed);
                self.data.ended.life = life;
                body(&())
            }
            Kind::WaitPublished => {
                self.data.published.push((id, decode_body::<WaitPublished>(kind, bytes)?.recall));
                body(&())
            }
            _ => self.names(id, header, bytes, data),
        }
    }
}

fn new_inode(inode: InodeId, kind: FileKind) -> Inode {
    let now = Timestamp { nanos: 1 };
    let attributes = Attributes {
        inode,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        size: 0,
        device: 0,
        generation: Generation::FIRST,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        xattrs: false,
        allocated: Some(0),
    };
    Inode {
        info: InodeInfo {
            attributes,
            layout: None,
            hints: LayoutHints::default(),
            named: Vec::new(),
            partitions: Vec::new(),
            inline: kind == FileKind::File,
            may_change_unnoticed: false,
        },
        target: Vec::new(),
        bytes: Vec::new(),
        reserved_to: 0,
        reservations: BTreeMap::new(),
    }
}

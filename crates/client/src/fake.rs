//! A pool in one process for tests: real sockets and the real protocol in front of plain
//! collections, with faults on demand. What it stores it stores in the simplest way there is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ramlace_base::{
    Epoch, Error, ErrorKind, Generation, InodeId, LaneId, Name, Sequence, ServerId, SessionId, Slot,
    Timestamp,
};
use ramlace_transport::nonblocking::{Connection, Listener, Newcomers};
use ramlace_transport::{Address, Secret};
use ramlace_wire::chunk::{
    AllocateLane, ChunkRead, ChunkWritten, Keep, LaneTarget, PunchChunk, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::coordination::{
    CellChange, CellChanged, ChangeCell, ChangeInlineCell, InlineCellChanged, NoteChange,
};
use ramlace_wire::inline::{
    Bytes, InlineMode, InlineOutcome, InlineRead, InlineWritten, ReadInline, Spill, Spilled, WriteInline,
};
use ramlace_wire::leases::{DataRecall, EndRecalls, Recalls, WaitPublished, WaitRecalls};
use ramlace_wire::namespace::{
    AppendReserved, Close, Create, DirectoryEntry, DirectoryPage, Extend, FinishAppend, Found, GetAttributes,
    GiveUp, GivenUp, InodeInfo, Link, Lookup, MakeDirectory, Open, OpenEntry, Opened, ReadDirectory,
    ReadLink, RemoveDirectory, Rename, ReserveAppend, SetAttributes, SizeInfo, Symlink, Truncate, Unlink,
};
use ramlace_wire::permit::GetPermit;
use ramlace_wire::runs::{ReadRuns, RunsRead, WriteRuns};
use ramlace_wire::session::{OpenSession, SessionOpened};
use ramlace_wire::walk::{Walk, Walked};
use ramlace_wire::{
    Attributes, Chain, ClusterMap, Credentials, ErrorBody, FileKind, Header, HostId, Kind, LayoutHints,
    Permit, PoolId, ServerEntry, decode_body, decode_way, encode_body, flags,
};

use crate::scratch::Scratch;
use crate::{ConnectOptions, Pool};

/// What is done to the next request of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answered with Retry.
    Retry,
    /// It is done, and answered a second later.
    Late,
    /// It is done, and answered when [`State::releases_held`] says so.
    Held,
    /// The connection ends before it is looked at.
    LoseRequest,
    /// It is done, and the connection ends.
    LoseReply,
    /// The same, and from then on lanes take another permit than before.
    LoseReplyAndRenew,
    /// Answered with Moved, without a map.
    Moved,
    /// Answered with Spread: it knows nothing of this part of a directory.
    Spread,
}

struct Inode {
    info: InodeInfo,
    target: Vec<u8>,
    /// Bytes of an inline file.
    bytes: Vec<u8>,
    reserved_to: u64,
    reservations: BTreeSet<u64>,
}

/// Everything the pool knows.
pub(crate) struct State {
    pub(crate) map: ClusterMap,
    lanes: HashMap<LaneId, Vec<u8>>,
    inodes: HashMap<InodeId, Inode>,
    entries: BTreeMap<(InodeId, Vec<u8>), InodeId>,
    counter: u64,
    replies: HashMap<(SessionId, Sequence), Vec<u8>>,
    /// Changes that are not done any more.
    given_up: HashSet<(SessionId, Sequence)>,
    sessions: HashSet<(ServerId, SessionId)>,
    /// What lanes ask for, where they ask for any.
    pub(crate) permit: Option<Permit>,
    pub(crate) faults: Vec<(Kind, Fault)>,
    /// Requests that were carried out, by kind.
    pub(crate) done: HashMap<Kind, usize>,
    /// Requests that came in, by kind.
    pub(crate) seen: HashMap<Kind, usize>,
    /// Bytes that all lanes of a server may have together.
    pub(crate) lane_bytes_max: usize,
    /// Open references: one for each session and inode.
    pub(crate) open: BTreeSet<(SessionId, InodeId)>,
    pub(crate) silent: HashSet<ServerId>,
    /// Puts other bodies in the place of replies.
    pub(crate) liar: Option<Liar>,
    /// What was held is answered, and nothing is held any more.
    pub(crate) releases_held: bool,
    /// What leases on bytes are about.
    pub(crate) data: Data,
}

/// Leases on bytes, as far as tests look at them. All servers have one life.
#[derive(Default)]
pub(crate) struct Data {
    pub(crate) life: u64,
    pub(crate) recalls: Vec<(ServerId, DataRecall)>,
    pub(crate) ended: EndRecalls,
    /// Up to where it was asked whether all see it.
    pub(crate) published: Vec<(ServerId, u64)>,
    /// Of each write and each read, in their order.
    pub(crate) origins: Vec<WriteOrigin>,
    pub(crate) keeps: Vec<bool>,
    /// Lanes that were read by who keeps them.
    kept: HashSet<LaneId>,
    /// The newest recall; each write-back makes one.
    pub(crate) made: u64,
}

impl Data {
    /// The answer to a question for recalls, unless it waits.
    fn told(&self, server: ServerId, question: &WaitRecalls) -> Option<Recalls> {
        let here = self.recalls.iter().filter(|(id, recall)| *id == server && recall.number > question.told);
        let data: Vec<DataRecall> = here.map(|(_, recall)| *recall).collect();
        let due = !data.is_empty() || question.life != self.life;
        due.then(|| Recalls { recalls: Vec::new(), data, life: self.life })
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

/// The body with which a request is answered, told what the honest one is, if there is one.
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

    /// The secret in a directory that outlives the pool.
    pub(crate) fn copy_of_secret(&self) -> Scratch {
        let scratch = Scratch::new();
        std::fs::copy(self.scratch.path().join("fake/secret"), scratch.path().join("secret")).unwrap();
        scratch
    }

    pub(crate) fn connect(&self) -> Pool {
        Pool::connect(&self.options()).unwrap()
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
            state.lock().unwrap().map.servers[usize::from(id.0)].tcp = address;
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
        if state.lock().unwrap().silent.contains(&id) {
            std::future::pending::<()>().await;
        }
        if header.kind == Kind::WaitRecalls {
            let question: WaitRecalls = decode_body(header.kind, &body).unwrap();
            while state.lock().unwrap().data.told(id, &question).is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        let answer = {
            let mut state = state.lock().unwrap();
            if state.liar.is_none() {
                state.answer(id, &header, &body, &data)
            } else {
                // Of what a client comes to believe it may ask what makes no sense to plain collections.
                let answering = AssertUnwindSafe(|| state.answer(id, &header, &body, &data));
                let answer = catch_unwind(answering).unwrap_or(Answer::Gone);
                state.lie(header.kind, answer)
            }
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
                while !state.lock().unwrap().releases_held {
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
            given_up: HashSet::new(),
            sessions: HashSet::new(),
            permit: None,
            faults: Vec::new(),
            done: HashMap::new(),
            seen: HashMap::new(),
            lane_bytes_max: usize::MAX,
            open: BTreeSet::new(),
            silent: HashSet::new(),
            liar: None,
            releases_held: false,
            data: Data { life: 1, ..Data::default() },
        };
        state.inodes.insert(InodeId::ROOT, new_inode(InodeId::ROOT, FileKind::Directory));
        state
    }

    /// What the pool's liar makes of an answer, if there is one.
    fn lie(&mut self, kind: Kind, answer: Answer) -> Answer {
        let Some(liar) = &mut self.liar else { return answer };
        match answer {
            Answer::Reply(body, data) => match liar(kind, Some(&body)) {
                Some(body) => Answer::Reply(body, data),
                None => Answer::Reply(body, data),
            },
            refused => liar(kind, None).map_or(refused, |body| Answer::Reply(body, Vec::new())),
        }
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
            Some(Fault::Moved) => return Answer::Refused(Error::new(ErrorKind::Moved, "elsewhere"), None),
            Some(Fault::Spread) => return Answer::Refused(Error::new(ErrorKind::Spread, "none here"), None),
            Some(Fault::LoseRequest) => return Answer::Gone,
            _ => {}
        }
        if !self.permits(header.kind, body) {
            return Answer::Refused(Error::new(ErrorKind::Denied, "by no permit of now"), None);
        }
        let key = (header.session, header.sequence);
        if header.sequence != Sequence(0)
            && let Some(reply) = self.replies.get(&key)
        {
            return Answer::Reply(reply.clone(), Vec::new());
        }
        if self.given_up.contains(&key) {
            return Answer::Refused(Error::new(ErrorKind::Stale, "given up"), None);
        }
        if header.kind != Kind::OpenSession && !self.sessions.contains(&(id, header.session)) {
            return Answer::Refused(Error::new(ErrorKind::Stale, "no such session"), None);
        }
        let done = self.run(id, header, body, data);
        if let Err(error) = &done
            && error.kind() == ErrorKind::Moved
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
                    Some(Fault::Late) => Answer::Late(reply, data),
                    Some(Fault::Held) => Answer::Held(reply, data),
                    _ => Answer::Reply(reply, data),
                }
            }
            Err(error) => Answer::Refused(error, None),
        }
    }

    /// From now on lanes take this permit alone, as when the pool's secret was another one.
    pub(crate) fn renew_permit(&mut self) {
        let number = self.permit.map_or(1, |permit| permit.read[0] + 1);
        self.permit = Some(Permit { read: [number; 8], write: [number; 8] });
    }

    /// As a server does, before it looks whether it has done the request already.
    fn permits(&self, kind: Kind, body: &[u8]) -> bool {
        let target = match kind {
            Kind::ReadChunk => decode_body::<ReadChunk>(kind, body).map(|request| request.target),
            Kind::WriteChunk => decode_body::<WriteChunk>(kind, body).map(|request| request.target),
            Kind::ReadRuns => decode_body::<ReadRuns>(kind, body).map(|request| request.target),
            Kind::WriteRuns => decode_body::<WriteRuns>(kind, body).map(|request| request.target),
            Kind::PunchChunk => decode_body::<PunchChunk>(kind, body).map(|request| request.target),
            Kind::ChangeCell => decode_body::<ChangeCell>(kind, body).map(|request| request.target),
            Kind::NoteChange => decode_body::<NoteChange>(kind, body).map(|request| request.target),
            _ => return true,
        };
        self.permit.is_none() || target.is_ok_and(|target| target.permit == self.permit)
    }

    fn home(&mut self, id: ServerId, slot: Slot) -> Result<(), Error> {
        if self.map.primary(slot) == Some(id) { Ok(()) } else { error(ErrorKind::Moved, "not here") }
    }

    fn inode(&mut self, id: ServerId, inode: InodeId) -> Result<&mut Inode, Error> {
        self.home(id, inode.slot())?;
        self.inodes.get_mut(&inode).ok_or_else(|| Error::new(ErrorKind::Stale, "no such inode"))
    }

    fn look(&mut self, id: ServerId, parent: InodeId, name: &Name) -> Result<Found, Error> {
        self.inode(id, parent)?;
        let found = self.entries.get(&(parent, name.as_bytes().to_vec())).copied();
        let Some(inode) = found else { return error(ErrorKind::NotFound, "none") };
        let attributes = self.inodes[&inode].info.attributes.clone();
        Ok(Found { inode, kind: attributes.kind, attributes: Some(attributes) })
    }

    fn add(
        &mut self,
        id: ServerId,
        parent: InodeId,
        name: &Name,
        kind: FileKind,
    ) -> Result<&mut Inode, Error> {
        self.inode(id, parent)?;
        let key = (parent, name.as_bytes().to_vec());
        if self.entries.contains_key(&key) {
            return error(ErrorKind::Exists, "taken");
        }
        self.counter += 1;
        // Directories go to other slots, as they do in a pool.
        let slot = if kind == FileKind::Directory {
            Slot((self.counter % u64::from(SLOTS)) as u16)
        } else {
            parent.slot()
        };
        let inode = InodeId::new(slot, self.counter);
        self.entries.insert(key, inode);
        Ok(self.inodes.entry(inode).or_insert_with(|| new_inode(inode, kind)))
    }

    fn remove(&mut self, id: ServerId, parent: InodeId, name: &Name, directory: bool) -> Done {
        self.inode(id, parent)?;
        let key = (parent, name.as_bytes().to_vec());
        let Some(inode) = self.entries.get(&key).copied() else { return error(ErrorKind::NotFound, "none") };
        let kind = self.inodes[&inode].info.attributes.kind;
        match (kind == FileKind::Directory, directory) {
            (true, false) => return error(ErrorKind::IsDirectory, "a directory"),
            (false, true) => return error(ErrorKind::NotDirectory, "no directory"),
            _ => {}
        }
        if self.entries.keys().any(|(parent, _)| *parent == inode) {
            return error(ErrorKind::NotEmpty, "not empty");
        }
        self.entries.remove(&key);
        body(&())
    }

    fn lane(&mut self, id: ServerId, target: &LaneTarget) -> Result<&mut Vec<u8>, Error> {
        self.home(id, target.slot)?;
        let known = self.inodes.get(&target.lane.inode).map(|inode| inode.info.attributes.generation);
        if known.is_none_or(|known| target.generation < known) {
            return error(ErrorKind::Retry, "an older generation");
        }
        Ok(self.lanes.entry(target.lane).or_default())
    }

    /// A body without the path in front of it, which has to lead somewhere.
    fn behind_way<'a>(&self, header: &Header, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        if header.flags & flags::BY_PATH == 0 {
            return Ok(bytes);
        }
        let (way, bytes) = decode_way(header.kind, bytes)?;
        let led = way.into_iter().try_fold(InodeId::ROOT, |here, name| {
            self.entries.get(&(here, name.as_bytes().to_vec())).copied()
        });
        led.map(|_| bytes).ok_or_else(|| Error::new(ErrorKind::Astray, "the path leads elsewhere"))
    }

    fn run(&mut self, id: ServerId, header: &Header, bytes: &[u8], data: &[u8]) -> Done {
        let kind = header.kind;
        let bytes = self.behind_way(header, bytes)?;
        macro_rules! decode {
            ($type:ty) => {
                decode_body::<$type>(kind, bytes)?
            };
        }
        match kind {
            Kind::OpenSession => {
                let known = !self.sessions.insert((id, header.session));
                if decode!(OpenSession).resume && !known {
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
                self.home(id, decode!(GetPermit).inode.slot())?;
                body(&self.permit)
            }
            Kind::NoteChange => {
                let NoteChange { target, .. } = decode!(NoteChange);
                self.lane(id, &target)?;
                body(&())
            }
            Kind::Lookup => {
                let Lookup { parent, name } = decode!(Lookup);
                body(&self.look(id, parent, &name)?)
            }
            // One step at a time: whoever walks must come again.
            Kind::Walk => {
                let Walk { from, names, .. } = decode!(Walk);
                let steps = vec![self.look(id, from, &names[0])?];
                body(&Walked { steps, stopped: None, info: None, bytes: None })
            }
            Kind::GetAttributes => body(&self.inode(id, decode!(GetAttributes).inode)?.info),
            Kind::SetAttributes => {
                let change = decode!(SetAttributes);
                let inode = self.inode(id, change.inode)?;
                if let Some(modified) = change.modified {
                    inode.info.attributes.modified = modified;
                }
                if let Some(mode) = change.mode {
                    inode.info.attributes.mode = mode;
                }
                body(&inode.info.attributes)
            }
            Kind::Truncate => {
                let Truncate { inode, size, .. } = decode!(Truncate);
                let found = self.inode(id, inode)?;
                found.reserved_to = 0;
                found.bytes.truncate(size as usize);
                let info = &mut found.info;
                info.attributes.size = size;
                info.attributes.generation = info.attributes.generation.next();
                let (attributes, layout) = (info.attributes.clone(), info.layout.unwrap());
                for (lane, bytes) in self.lanes.iter_mut().filter(|(lane, _)| lane.inode == inode) {
                    bytes.truncate(ramlace_layout::lane_length(&layout, lane.lane, size) as usize);
                }
                body(&attributes)
            }
            Kind::Create => {
                let request = decode!(Create);
                let key = (request.parent, request.name.as_bytes().to_vec());
                let old = self.entries.get(&key).copied().filter(|_| !request.exclusive);
                let info = match old {
                    Some(inode) if self.inodes[&inode].info.attributes.kind == FileKind::Symlink => {
                        return error(ErrorKind::Loop, "a symbolic link");
                    }
                    Some(inode) if self.inodes[&inode].info.attributes.kind == FileKind::Directory => {
                        return error(ErrorKind::IsDirectory, "a directory");
                    }
                    Some(inode) => self.inode(id, inode)?.info.clone(),
                    None => {
                        let silent = |server| request.wish.silent.contains(&server);
                        let key = ramlace_layout::name_key(request.parent, request.name.as_bytes());
                        let hints = request.wish.hints;
                        let mut layout = ramlace_layout::choose(hints, &self.map, |id| !silent(id), key)?;
                        layout.stripe_unit = layout.stripe_unit.max(request.wish.stripe_unit_min);
                        let inode = self.add(id, request.parent, &request.name, FileKind::File)?;
                        inode.info.layout = Some(layout);
                        inode.info.named = request.named;
                        inode.info.clone()
                    }
                };
                self.open.insert((header.session, info.attributes.inode));
                body(&Opened { info, created: old.is_none(), permit: self.permit })
            }
            Kind::Open => {
                let Open { inode, .. } = decode!(Open);
                let info = self.inode(id, inode)?.info.clone();
                self.open.insert((header.session, inode));
                body(&Opened { info, created: false, permit: self.permit })
            }
            Kind::OpenEntry => {
                let OpenEntry { parent, name, .. } = decode!(OpenEntry);
                let Some(inode) = self.entries.get(&(parent, name.as_bytes().to_vec())).copied() else {
                    return error(ErrorKind::NotFound, "no such name");
                };
                let info = self.inode(id, inode)?.info.clone();
                match info.attributes.kind {
                    FileKind::Symlink => return error(ErrorKind::Loop, "a symbolic link"),
                    FileKind::Directory => return error(ErrorKind::IsDirectory, "a directory"),
                    _ => self.open.insert((header.session, inode)),
                };
                body(&Opened { info, created: false, permit: self.permit })
            }
            Kind::GiveUp => {
                let GiveUp { sequence } = decode!(GiveUp);
                let key = (header.session, sequence);
                let reply = self.replies.get(&key);
                if reply.is_none() {
                    self.given_up.insert(key);
                }
                let opened = reply.and_then(|reply| decode_body::<Opened>(Kind::Open, reply).ok());
                let opened = opened.map(|opened| opened.info.attributes.inode);
                body(&GivenUp { opened })
            }
            Kind::Close => {
                let Close { inode, modified } = decode!(Close);
                if let Some(modified) = modified {
                    self.inode(id, inode)?.info.attributes.modified = modified;
                }
                assert!(self.open.remove(&(header.session, inode)), "closed twice");
                body(&())
            }
            Kind::Symlink => {
                let Symlink { parent, name, target } = decode!(Symlink);
                let inode = self.add(id, parent, &name, FileKind::Symlink)?;
                inode.target = target;
                body(&inode.info.attributes)
            }
            Kind::ReadLink => body(&self.inode(id, decode!(ReadLink).inode)?.target),
            Kind::MakeDirectory => {
                let MakeDirectory { parent, name, .. } = decode!(MakeDirectory);
                body(&self.add(id, parent, &name, FileKind::Directory)?.info.attributes)
            }
            Kind::RemoveDirectory => {
                let RemoveDirectory { parent, name } = decode!(RemoveDirectory);
                self.remove(id, parent, &name, true)
            }
            Kind::Unlink => {
                let Unlink { parent, name } = decode!(Unlink);
                self.remove(id, parent, &name, false)
            }
            Kind::Rename => {
                let Rename { parent, name, new_parent, new_name, .. } = decode!(Rename);
                self.inode(id, parent)?;
                let Some(inode) = self.entries.remove(&(parent, name.as_bytes().to_vec())) else {
                    return error(ErrorKind::NotFound, "none");
                };
                self.entries.insert((new_parent, new_name.as_bytes().to_vec()), inode);
                body(&())
            }
            Kind::Link => {
                let Link { parent, name, inode } = decode!(Link);
                self.inode(id, parent)?;
                let before = self.entries.insert((parent, name.as_bytes().to_vec()), inode);
                if before.is_some() {
                    return error(ErrorKind::Exists, "taken");
                }
                body(&self.inodes[&inode].info.attributes)
            }
            Kind::ReadDirectory => {
                let ReadDirectory { inode, after, .. } = decode!(ReadDirectory);
                self.inode(id, inode)?;
                let all = self.entries.iter().filter(|((parent, _), _)| *parent == inode);
                let entry = |((key, inode), cookie): ((&(InodeId, Vec<u8>), &InodeId), u64)| DirectoryEntry {
                    cookie,
                    name: Name::new(key.1.clone()).unwrap(),
                    inode: *inode,
                    kind: self.inodes[inode].info.attributes.kind,
                    attributes: None,
                };
                // The place in the directory is good enough as a cookie while nothing changes.
                let entries: Vec<_> =
                    all.zip(1..).map(entry).filter(|entry| entry.cookie > after).take(3).collect();
                let end = entries.len() < 3;
                let next = entries.last().map_or(after, |entry| entry.cookie);
                body(&DirectoryPage { entries, end, next })
            }
            Kind::ReadInline => {
                let ReadInline { inode, offset, length, keep } = decode!(ReadInline);
                self.data.keeps.push(keep);
                let inode = self.inode(id, inode)?;
                let start = inode.bytes.len().min(offset as usize);
                let end = inode.bytes.len().min(start + length as usize);
                let bytes = inode.info.inline.then(|| Bytes(inode.bytes[start..end].to_vec()));
                body(&InlineRead { size: size_of(inode), bytes, since: Epoch(1) })
            }
            Kind::WriteInline => {
                let WriteInline { inode, mode, offset, bytes: Bytes(bytes), origin } = decode!(WriteInline);
                let recall = self.data.write(origin);
                let inode = self.inode(id, inode)?;
                let size = inode.info.attributes.size;
                let start = if mode == InlineMode::End { size } else { offset };
                let mut end = start + bytes.len() as u64;
                if mode == InlineMode::Within {
                    end = end.min(size.max(start));
                }
                let outcome = match end {
                    _ if !inode.info.inline => InlineOutcome::InLanes,
                    end if end > 4096 => InlineOutcome::Full,
                    _ => InlineOutcome::Written,
                };
                if outcome == InlineOutcome::Written && end > start {
                    let (start, end) = (start as usize, end as usize);
                    inode.bytes.resize(inode.bytes.len().max(end), 0);
                    inode.bytes[start..end].copy_from_slice(&bytes[..end - start]);
                    inode.info.attributes.size = size.max(end as u64);
                    inode.info.attributes.modified.nanos += 1;
                }
                let size = size_of(inode);
                body(&InlineWritten { outcome, offset: start, size, since: Epoch(1), recall })
            }
            Kind::ChangeInlineCell => {
                let ChangeInlineCell { inode, offset, change } = decode!(ChangeInlineCell);
                let inode = self.inode(id, inode)?;
                let (outcome, cell) = if inode.info.inline {
                    (InlineOutcome::Written, change_cell(&mut inode.bytes, offset, change))
                } else {
                    (InlineOutcome::InLanes, CellChanged { before: 0, changed: false })
                };
                body(&InlineCellChanged { outcome, cell, size: size_of(inode) })
            }
            Kind::ChangeCell => {
                let ChangeCell { target, offset, change } = decode!(ChangeCell);
                body(&change_cell(self.lane(id, &target)?, offset, change))
            }
            Kind::Spill => {
                let Spill { inode } = decode!(Spill);
                let lane_bytes_max = self.lane_bytes_max;
                let found = self.inode(id, inode)?;
                if found.info.inline && found.bytes.len() > lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                found.info.inline = false;
                let (bytes, size) = (std::mem::take(&mut found.bytes), size_of(found));
                if !bytes.is_empty() {
                    self.lanes.insert(LaneId { inode, lane: 0 }, bytes);
                }
                body(&Spilled { size, since: Epoch(1) })
            }
            Kind::Extend => {
                let Extend { inode, generation, size, .. } = decode!(Extend);
                let attributes = &mut self.inode(id, inode)?.info.attributes;
                if generation < attributes.generation {
                    return error(ErrorKind::Retry, "truncated");
                }
                attributes.size = attributes.size.max(size);
                body(&SizeInfo { size: attributes.size, generation: attributes.generation })
            }
            Kind::NoteMemory => body(&()),
            Kind::ReserveAppend => {
                let ReserveAppend { inode, length } = decode!(ReserveAppend);
                let inode = self.inode(id, inode)?;
                let offset = inode.info.attributes.size.max(inode.reserved_to);
                inode.reserved_to = offset + length;
                inode.reservations.insert(offset);
                body(&AppendReserved { offset, generation: inode.info.attributes.generation })
            }
            Kind::FinishAppend => {
                let FinishAppend { inode, offset, .. } = decode!(FinishAppend);
                let inode = self.inode(id, inode)?;
                inode.reservations.remove(&offset);
                let published = inode.reservations.first().copied().unwrap_or(inode.reserved_to);
                let attributes = &mut inode.info.attributes;
                attributes.size = attributes.size.max(published);
                body(&SizeInfo { size: attributes.size, generation: attributes.generation })
            }
            Kind::ReadChunk => {
                let ReadChunk { target, offset, length, keep, .. } = decode!(ReadChunk);
                let keep = keep != Keep::No;
                self.data.keeps.push(keep);
                let kept = keep && !self.data.kept.insert(target.lane);
                let lane = self.lane(id, &target)?;
                let start = (offset as usize).min(lane.len());
                let end = (offset as usize + length as usize).min(lane.len());
                let mut found = lane[start..end].to_vec();
                if found.iter().all(|byte| *byte == 0) {
                    return body(&ChunkRead { hole: true, kept });
                }
                found.resize(length as usize, 0);
                Ok((encode_body(&ChunkRead { hole: false, kept }), found))
            }
            Kind::WriteChunk => {
                let WriteChunk { target, offset, origin } = decode!(WriteChunk);
                let end = offset as usize + data.len();
                if end > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                let lane = self.lane(id, &target)?;
                lane.resize(lane.len().max(end), 0);
                lane[offset as usize..end].copy_from_slice(data);
                body(&ChunkWritten { recall: self.data.write(origin) })
            }
            Kind::ReadRuns => {
                let ReadRuns { target, runs } = decode!(ReadRuns);
                let lane = self.lane(id, &target)?;
                let byte = |at: u64| lane.get(at as usize).copied().unwrap_or(0);
                let found: Vec<u8> = runs.iter().flat_map(|run| run.start..run.end).map(byte).collect();
                match found.iter().all(|byte| *byte == 0) {
                    true => body(&RunsRead { hole: true }),
                    false => Ok((encode_body(&RunsRead { hole: false }), found)),
                }
            }
            Kind::WriteRuns => {
                let WriteRuns { target, runs } = decode!(WriteRuns);
                if runs.reach().hull.end as usize > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                let lane = self.lane(id, &target)?;
                lane.resize(lane.len().max(runs.reach().hull.end as usize), 0);
                let mut bytes = data.iter();
                for at in runs.iter().flat_map(|run| run.start..run.end) {
                    lane[at as usize] = *bytes.next().unwrap();
                }
                body(&())
            }
            Kind::PunchChunk => {
                let PunchChunk { target, offset, length } = decode!(PunchChunk);
                let lane = self.lane(id, &target)?;
                let end = ((offset + length) as usize).min(lane.len());
                lane[(offset as usize).min(end)..end].fill(0);
                body(&())
            }
            Kind::AllocateLane => {
                let AllocateLane { target, offset, length, .. } = decode!(AllocateLane);
                let end = (offset + length) as usize;
                if end > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                let lane = self.lane(id, &target)?;
                lane.resize(lane.len().max(end), 0);
                body(&())
            }
            Kind::WaitRecalls => body(&self.data.told(id, &decode!(WaitRecalls)).unwrap_or_default()),
            Kind::EndRecalls => {
                let EndRecalls { done, blocked } = decode!(EndRecalls);
                self.data.recalls.retain(|(_, recall)| !done.contains(&recall.number));
                self.data.ended.done.extend(done);
                self.data.ended.blocked.extend(blocked);
                body(&())
            }
            Kind::WaitPublished => {
                self.data.published.push((id, decode!(WaitPublished).recall));
                body(&())
            }
            _ => error(ErrorKind::Unsupported, "not in a fake"),
        }
    }
}

fn change_cell(bytes: &mut Vec<u8>, offset: u64, change: CellChange) -> CellChanged {
    let (start, end) = (offset as usize, offset as usize + 8);
    bytes.resize(bytes.len().max(end), 0);
    let before = u64::from_le_bytes(bytes[start..end].try_into().unwrap());
    let after = change.after(before);
    bytes[start..end].copy_from_slice(&after.unwrap_or(before).to_le_bytes());
    CellChanged { before, changed: after.is_some() }
}

fn size_of(inode: &Inode) -> SizeInfo {
    let attributes = &inode.info.attributes;
    SizeInfo { size: attributes.size, generation: attributes.generation }
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
            handed: false,
        },
        target: Vec::new(),
        bytes: Vec::new(),
        reserved_to: 0,
        reservations: BTreeSet::new(),
    }
}

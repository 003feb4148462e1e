//! One process's session with a pool: its map, its servers, and calls that survive a lost
//! connection with one effect.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, ServerId, SessionId, Slot, limits};
use ramlace_transport::Address;
use ramlace_transport::blocking::{Connection, Received};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::session::{CloseSession, Heartbeat, OpenSession, SessionKind, SessionOpened};
use ramlace_wire::{ClusterMap, Header, HostId, Layout, LayoutHints, Request, ServerEntry};

use crate::descriptors::Descriptors;
use crate::file::deadline_in;
use crate::heart::Heart;
use crate::inodes::Inodes;
use crate::lines::{Line, Link, Server, Unanswered, roundtrip};
use crate::options::Settings;
use crate::sequences::{Sequences, Ticket};

/// Longest wait for one server when several could answer the same question.
const ANY_SERVER_MILLIS_MAX: u64 = 500;
/// How long the end of a session may wait for all servers together; expiry does the rest.
const CLOSE_MILLIS_MAX: u64 = 500;

/// One process's session. Connections are made when they are needed.
pub(crate) struct Session {
    settings: Arc<Settings>,
    id: SessionId,
    host: Option<HostId>,
    map: RwLock<Option<Arc<ClusterMap>>>,
    /// Held while the first map is fetched.
    beginning: Mutex<()>,
    servers: RwLock<Vec<Arc<Server>>>,
    pub(crate) sequences: Sequences,
    calls: AtomicU32,
    /// Why the session is over, once it is.
    ended: OnceLock<Error>,
    descriptors: Arc<Descriptors>,
    pub(crate) inodes: Inodes,
    pub(crate) heart: Arc<Heart>,
}

/// What to do when a server answers Retry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnRetry {
    /// Ask again after a pause.
    Repeat,
    /// Tell the caller: what it believes of the file is outdated.
    Tell,
}

/// A request with all that goes with it.
pub(crate) struct Call<'a, R> {
    pub(crate) slot: Slot,
    pub(crate) request: &'a R,
    pub(crate) ticket: Option<&'a Ticket<'a>>,
    pub(crate) data: &'a [IoSlice<'a>],
    pub(crate) on_retry: OnRetry,
    /// Only a connection on which descriptors travel will do.
    pub(crate) local_only: bool,
    pub(crate) deadline: Instant,
}

/// Growing pauses up to a deadline: 1 to 20 ms.
pub(crate) struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new(deadline: Instant) -> Backoff {
        Backoff { deadline, pause: Duration::from_millis(1) }
    }

    /// Sleeps, or fails when the deadline would pass.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.pause_after(Error::new(ErrorKind::TimedOut, "the deadline passed"))
    }

    /// The same with the error to fail with.
    pub(crate) fn pause_after(&mut self, error: Error) -> Result<()> {
        if Instant::now() + self.pause >= self.deadline {
            return Err(error);
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(20));
        Ok(())
    }
}

impl Session {
    /// A session that nobody has heard of yet.
    pub(crate) fn new(settings: Arc<Settings>) -> Result<Arc<Session>> {
        let mut id = [0; 16];
        crate::entropy::fill(&mut id)?;
        Ok(Arc::new(Session {
            id: SessionId(id),
            host: this_host(),
            settings,
            map: RwLock::new(None),
            beginning: Mutex::new(()),
            servers: RwLock::default(),
            sequences: Sequences::default(),
            calls: AtomicU32::new(1),
            ended: OnceLock::new(),
            descriptors: Arc::default(),
            inodes: Inodes::default(),
            heart: Arc::default(),
        }))
    }

    /// The deadline of an operation that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        deadline_in(self.settings.deadline_millis)
    }

    /// Whether local shortcuts may be used.
    pub(crate) fn local(&self) -> bool {
        self.settings.local
    }

    /// In a forked child: gives up the parent's sockets, of which this process has copies.
    pub(crate) fn close_inherited_sockets(&self) {
        self.descriptors.close_inherited();
    }

    /// The map; fetches the first one.
    pub(crate) fn map(self: &Arc<Session>) -> Result<Arc<ClusterMap>> {
        if let Some(error) = self.ended.get() {
            return Err(error.clone());
        }
        if let Some(map) = &*self.map.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(map.clone());
        }
        self.begin()
    }

    fn known_map(&self) -> Option<Arc<ClusterMap>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reaches any server of the pool, gets the map, and starts the heart.
    fn begin(self: &Arc<Session>) -> Result<Arc<ClusterMap>> {
        let _beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = self.known_map() {
            return Ok(map);
        }
        let deadline = self.deadline();
        let mut backoff = Backoff::new(deadline);
        let (link, opened, map) = loop {
            match self.reach_any(deadline) {
                Err(error) if matches!(error.kind(), ErrorKind::Retry | ErrorKind::HostDown) => {
                    backoff.pause_after(error)?;
                }
                other => break other?,
            }
        };
        if self.settings.pool.as_ref().is_some_and(|pool| *pool != map.pool.to_string()) {
            return Err(Error::new(
                ErrorKind::Stale,
                "another pool than the one in pool.json answers; 'ramlace down' and 'ramlace up' begin anew",
            ));
        }
        let map = self.adopt_map(map)?;
        if let Ok(server) = self.server(opened.server) {
            server.opened.store(true, Ordering::Release);
            // An address given by hand is TCP; where a shorter way exists, the next call takes it.
            if link.is_local() || self.socket_path(&server.entry()).is_none() {
                server.adopt(link);
            }
        }
        Heart::start(self)?;
        Ok(map)
    }

    fn reach_any(&self, deadline: Instant) -> Result<(Link, SessionOpened, ClusterMap)> {
        let mut last = Error::new(ErrorKind::Invalid, "the pool names no server");
        for seed in &self.settings.seeds {
            let here = seed.unix.iter().filter(|path| self.settings.local && path.exists());
            let addresses = here.cloned().map(Address::Unix).chain([Address::Tcp(seed.tcp.clone())]);
            for address in addresses {
                match self.reach(&address, &seed.tcp, deadline) {
                    Ok(reached) => return Ok(reached),
                    // A refusal says more than silence.
                    Err(error) if last.kind() != ErrorKind::Denied => last = error,
                    Err(_) => {}
                }
            }
        }
        match last.kind() {
            ErrorKind::HostDown | ErrorKind::TimedOut => {
                Err(last.context("no server of the pool answers ('ramlace status' shows them)"))
            }
            _ => Err(last),
        }
    }

    fn reach(
        &self,
        address: &Address,
        name: &str,
        deadline: Instant,
    ) -> Result<(Link, SessionOpened, ClusterMap)> {
        let tell = |error: Error| error.context(format!("the server at {name}"));
        let connection = Connection::connect(address, &self.settings.secret, handshake_deadline(deadline))
            .map_err(tell)?;
        let mut link = Link::new(connection, &self.descriptors);
        let opened = self.open_session(&mut link, false, deadline).map_err(tell)?;
        let header = self.header(GetMap::KIND, None, deadline, ramlace_base::Epoch(0));
        let map = roundtrip(&mut link, header, &GetMap {}, deadline).map_err(tell)?;
        Ok((link, opened, map))
    }

    fn open_session(&self, link: &mut Link, resume: bool, deadline: Instant) -> Result<SessionOpened> {
        let request = OpenSession { kind: SessionKind::User, resume, label: self.label() };
        let header = self.header(OpenSession::KIND, None, deadline, ramlace_base::Epoch(0));
        roundtrip(link, header, &request, deadline).map_err(|error| match error.kind() {
            ErrorKind::Stale => self.end(&error),
            _ => error,
        })
    }

    /// Who this is, for people. A forked child is another process.
    fn label(&self) -> String {
        format!("{} (process {})", self.settings.label, std::process::id())
    }

    /// Whether the session is over.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// The session is over: files that were open are closed, and locks are gone, so that going
    /// on in a new session would hide a loss.
    fn end(&self, error: &Error) -> Error {
        let told = Error::new(
            ErrorKind::Stale,
            format!(
                "this session with the pool has ended ({}); its open files are closed: connect again",
                error.message()
            ),
        );
        self.ended.get_or_init(|| told).clone()
    }

    /// Takes a map in, unless a newer one is known; returns the newest.
    pub(crate) fn adopt_map(&self, map: ClusterMap) -> Result<Arc<ClusterMap>> {
        ramlace_cluster::validate(&map)?;
        let mut known = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && (known.pool != map.pool || known.epoch > map.epoch)
        {
            return Ok(known.clone());
        }
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        for entry in &map.servers {
            match servers.get(usize::from(entry.server.0)) {
                Some(server) => server.update(entry),
                None => servers.push(Arc::new(Server::new(entry))),
            }
        }
        Ok(known.insert(Arc::new(map)).clone())
    }

    /// Asks for the newest map: the coordinator first, then whoever answers.
    pub(crate) fn refresh_map(self: &Arc<Session>, deadline: Instant) -> Result<Arc<ClusterMap>> {
        let known = self.map()?;
        let others =
            known.servers.iter().map(|entry| entry.server).filter(|server| *server != known.coordinator);
        for id in std::iter::once(known.coordinator).chain(others) {
            let Ok(server) = self.server(id) else { continue };
            if known.server(id).is_none_or(|entry| entry.forgotten)
                || (server.is_failing() && id != known.coordinator)
            {
                continue;
            }
            let soon = deadline.min(Instant::now() + Duration::from_millis(ANY_SERVER_MILLIS_MAX));
            if let Ok(map) = self.try_server(&server, &GetMap {}, None, soon) {
                return self.adopt_map(map);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(known)
    }

    /// The server with this number.
    pub(crate) fn server(&self, id: ServerId) -> Result<Arc<Server>> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        servers.get(usize::from(id.0)).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("the pool has no {id}; 'ramlace status' shows its servers"),
            )
        })
    }

    /// The server that answers for a slot.
    pub(crate) fn server_of(&self, map: &ClusterMap, slot: Slot) -> Result<Arc<Server>> {
        self.server(ramlace_cluster::route(map, slot)?.server)
    }

    /// A connection to a server for the calling thread.
    pub(crate) fn line(&self, server: &Arc<Server>, deadline: Instant) -> Result<Line> {
        server.line(deadline, || self.connect(server, deadline))
    }

    /// The Unix socket of a server on this machine, when it may be used.
    fn socket_path(&self, entry: &ServerEntry) -> Option<PathBuf> {
        let here = self.settings.local && self.host == Some(entry.host);
        Some(PathBuf::from(&entry.unix)).filter(|path| here && path.exists())
    }

    fn connect(&self, server: &Arc<Server>, deadline: Instant) -> Result<Link> {
        let entry = server.entry();
        let shaking = handshake_deadline(deadline);
        let unix = self.socket_path(&entry).map(Address::Unix);
        let mut connected = Err(Error::new(ErrorKind::HostDown, "it has no address"));
        for address in unix.into_iter().chain([Address::Tcp(entry.tcp.clone())]) {
            connected = Connection::connect(&address, &self.settings.secret, shaking);
            if connected.is_ok() {
                break;
            }
        }
        let silent = |error: Error| match error.kind() {
            // The operation may have time left, even when the handshake has not.
            ErrorKind::TimedOut => Error::new(ErrorKind::HostDown, error.message()),
            _ => error,
        };
        let mut link = Link::new(connected.map_err(silent)?, &self.descriptors);
        let opened =
            self.open_session(&mut link, server.opened.load(Ordering::Acquire), shaking).map_err(silent)?;
        let wrong_pool = self.known_map().is_some_and(|map| map.pool != opened.pool);
        if wrong_pool || opened.server != server.id {
            return Err(Error::new(
                ErrorKind::HostDown,
                format!("{} of pool {} answers at its address {}", opened.server, opened.pool, entry.tcp),
            ));
        }
        server.opened.store(true, Ordering::Release);
        Ok(link)
    }

    /// A request's header.
    pub(crate) fn header(
        &self,
        kind: ramlace_wire::Kind,
        ticket: Option<&Ticket<'_>>,
        deadline: Instant,
        epoch: ramlace_base::Epoch,
    ) -> Header {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let mut header = Header::request(kind);
        header.deadline_millis = (left as u32).clamp(1, limits::DEADLINE_MILLIS_MAX);
        header.session = self.id;
        header.epoch = epoch;
        header.call = self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(ticket) = ticket {
            header.sequence = ticket.sequence();
            header.outstanding = ticket.outstanding();
        }
        header
    }

    /// Asks the server of a slot; nothing is changed.
    pub(crate) fn ask<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, None, OnRetry::Repeat, deadline)
    }

    /// Changes something in a slot, exactly once.
    pub(crate) fn change<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.sequences.take(slot, deadline)?;
        self.plain_call(slot, request, Some(&ticket), OnRetry::Repeat, deadline)
    }

    /// The same for a change that depends on the file's generation: Retry goes to the caller.
    pub(crate) fn change_lane<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.sequences.take(slot, deadline)?;
        self.plain_call(slot, request, Some(&ticket), OnRetry::Tell, deadline)
    }

    fn plain_call<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        ticket: Option<&Ticket<'_>>,
        on_retry: OnRetry,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let call = Call { slot, request, ticket, data: &[], on_retry, local_only: false, deadline };
        self.call(&call, |_, received| reply_without_data(received))
    }

    /// Sends a request until it is answered or its deadline has passed; `finish` takes the
    /// reply, and its data from the line.
    pub(crate) fn call<R: Request, T>(
        self: &Arc<Session>,
        call: &Call<'_, R>,
        mut finish: impl FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
    ) -> Result<T> {
        let mut backoff = Backoff::new(call.deadline);
        loop {
            let map = self.map()?;
            let server = self.server_of(&map, call.slot)?;
            let unanswered = match self.attempt(&server, &map, call, &mut finish) {
                Ok(reply) => return Ok(reply),
                Err(unanswered) => unanswered,
            };
            if unanswered.error.kind() == ErrorKind::Retry && call.on_retry == OnRetry::Tell {
                return Err(unanswered.error);
            }
            let error = self.settle_failure(&server, unanswered, call.deadline)?;
            backoff.pause_after(error)?;
        }
    }

    fn attempt<R: Request, T>(
        &self,
        server: &Arc<Server>,
        map: &ClusterMap,
        call: &Call<'_, R>,
        finish: &mut impl FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
    ) -> std::result::Result<T, Unanswered> {
        let mut line = self.line(server, call.deadline).map_err(Unanswered::lost)?;
        if call.local_only && !line.is_local() {
            return Err(Unanswered::told(Error::new(
                ErrorKind::Unsupported,
                format!("{} is not reached through this machine's memory", server.id),
            )));
        }
        let header = self.header(R::KIND, call.ticket, call.deadline, map.epoch);
        line.send(header, call.request, call.data, call.deadline).map_err(Unanswered::lost)?;
        let received = match call.ticket {
            Some(_) => line.receive_change::<R>(header.call, call.deadline)?,
            None => line.receive::<R>(header.call, call.deadline)?,
        };
        let finished = finish(&mut line, received)?;
        server.note_answer(true);
        Ok(finished)
    }

    /// Says whether a failure is worth another attempt, and does what makes one promising: `Ok`
    /// brings the error to fail with when there is no time for it.
    pub(crate) fn settle_failure(
        self: &Arc<Session>,
        server: &Arc<Server>,
        unanswered: Unanswered,
        deadline: Instant,
    ) -> Result<Error> {
        let Unanswered { error, map, told } = unanswered;
        if let Some(map) = map {
            self.adopt_map(*map)?;
        } else if error.kind() == ErrorKind::Moved {
            self.refresh_map(deadline)?;
        }
        if !told {
            server.note_answer(false);
            server.drop_idle();
            if error.kind() == ErrorKind::HostDown {
                // Its slots may have gone to others, or it may have come back elsewhere.
                self.refresh_map(deadline)?;
            }
        }
        let named = if told { error } else { name_server(server, &error) };
        match named.kind() {
            ErrorKind::HostDown | ErrorKind::Retry | ErrorKind::Moved => Ok(named),
            _ => Err(named),
        }
    }

    /// Asks one server, whatever its slots.
    pub(crate) fn ask_server<R: Request>(
        self: &Arc<Session>,
        server: ServerId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.map()?;
        let server = self.server(server)?;
        let mut backoff = Backoff::new(deadline);
        let mut silences = 0;
        loop {
            match self.try_server(&server, request, None, deadline) {
                Err(error) if error.kind() == ErrorKind::Retry => backoff.pause_after(error)?,
                // The idle connections may all be of its last life: the second try is new.
                Err(error) if error.kind() == ErrorKind::HostDown && silences == 0 => silences += 1,
                Err(error) if error.kind() == ErrorKind::HostDown => {
                    return Err(name_server(&server, &error));
                }
                other => return other,
            }
        }
    }

    fn try_server<R: Request>(
        &self,
        server: &Arc<Server>,
        request: &R,
        ticket: Option<&Ticket<'_>>,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let call = Call {
            slot: Slot(0),
            request,
            ticket,
            data: &[],
            on_retry: OnRetry::Tell,
            local_only: false,
            deadline,
        };
        let nothing_known = ramlace_base::Epoch(0);
        let epoch = self.known_map().map_or(nothing_known, |map| map.epoch);
        let mut line = self.line(server, deadline)?;
        let header = self.header(R::KIND, call.ticket, deadline, epoch);
        let asked = line
            .send(header, request, &[], deadline)
            .map_err(Unanswered::lost)
            .and_then(|()| line.receive::<R>(header.call, deadline))
            .and_then(reply_without_data);
        if asked.as_ref().is_err_and(|unanswered| !unanswered.told) {
            server.drop_idle();
        }
        asked.map_err(|unanswered| unanswered.error)
    }

    /// The layout of a new file; the servers that do not answer at present get no lane.
    pub(crate) fn choose_layout(
        self: &Arc<Session>,
        parent: InodeId,
        name: &Name,
        hints: LayoutHints,
    ) -> Result<Layout> {
        let map = self.map()?;
        let answers = |id| self.server(id).is_ok_and(|server| !server.is_failing());
        let key = ramlace_layout::name_key(parent, name.as_bytes());
        ramlace_layout::choose(hints, &map, answers, key)
    }

    /// Tells every server that knows the session that it lives.
    pub(crate) fn beat(&self, deadline: Instant) {
        let mut servers = self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        servers.retain(|server| server.opened.load(Ordering::Acquire));
        // Those that answer must not wait for those that do not.
        servers.sort_by_key(|server| server.is_failing());
        for server in servers {
            let soon = deadline.min(Instant::now() + Duration::from_millis(ANY_SERVER_MILLIS_MAX));
            let answered = self.beat_one(&server, soon);
            server.note_answer(answered.is_ok());
            if answered.is_err_and(|error| error.kind() == ErrorKind::Stale) || Instant::now() >= deadline {
                return;
            }
        }
    }

    fn beat_one(&self, server: &Arc<Server>, deadline: Instant) -> Result<()> {
        let mut control = server.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut link = match control.take() {
            Some(link) => link,
            None => self.connect(server, deadline)?,
        };
        let header = self.header(Heartbeat::KIND, None, deadline, ramlace_base::Epoch(0));
        match roundtrip(&mut link, header, &Heartbeat {}, deadline) {
            Ok(()) => {
                *control = Some(link);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Stale => Err(self.end(&error)),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.heart.stop();
        let deadline = Instant::now() + Duration::from_millis(CLOSE_MILLIS_MAX);
        let servers = std::mem::take(self.servers.get_mut().unwrap_or_else(PoisonError::into_inner));
        for server in servers.iter().filter(|server| server.opened.load(Ordering::Acquire)) {
            let Some(mut line) = server.idle_line() else { continue };
            let header = self.header(CloseSession::KIND, None, deadline, ramlace_base::Epoch(0));
            if line.send(header, &CloseSession {}, &[], deadline).is_ok() {
                let _ = line.receive::<CloseSession>(header.call, deadline);
            }
            line.close();
        }
    }
}

fn reply_without_data<T>(received: Received<T>) -> std::result::Result<T, Unanswered> {
    if received.data_bytes > 0 {
        let error = Error::new(ErrorKind::Protocol, "a reply brought bytes that nobody asked for");
        return Err(Unanswered::lost(error));
    }
    Ok(received.reply)
}

/// Tells a failure with the server's number and address, and what to do next.
pub(crate) fn name_server(server: &Server, error: &Error) -> Error {
    let entry = server.entry();
    let next = match error.kind() {
        ErrorKind::HostDown | ErrorKind::TimedOut => "; 'ramlace status' shows which servers answer",
        _ => "",
    };
    Error::new(
        error.kind(),
        format!("{} at {} does not answer: {}{next}", server.id, entry.tcp, error.message()),
    )
}

fn handshake_deadline(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX))
}

/// The machine's boot id, which servers on it tell as their host.
fn this_host() -> Option<HostId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(HostId(id))
}

//! Connections to one server: as many as there are places for ([`crate::session::places`]). Each is used by
//! one thread at a time, and closed when a call on it did not end cleanly.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId, limits};
use ramlace_sync::{Mutex, MutexGuard, RwLock};
use ramlace_transport::blocking::{Connection, Received};
use ramlace_transport::trace::RequestName;
use ramlace_transport::{ConnectFailure, Failure, TakeBody, decoding};
use ramlace_wire::{
    ClusterMap, Front, Header, Kind, Request, ServerEntry, decode_body, decode_reply, encode_body,
};

use crate::session::descriptors::{Descriptors, Noted};
use crate::session::heard::Heard;
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;
use crate::session::places::{OnTurn, Places, Purpose, Turn};

thread_local! {
    static PURPOSE: Cell<Purpose> = const { Cell::new(Purpose::Usual) };
}

/// Reads bytes for a kernel's pages.
pub(crate) fn of_pages<T>(work: impl FnOnce() -> T) -> T {
    with_purpose(Purpose::Pages, work)
}

/// Reads for the pages of a strict mount.
pub(crate) fn of_strict_reads<T>(work: impl FnOnce() -> T) -> T {
    with_purpose(Purpose::StrictReads, work)
}

/// Writes back what programs have stored into a kernel's pages: drops of pages wait for it, and with them
/// every client that wants these pages.
pub(crate) fn of_write_backs<T>(work: impl FnOnce() -> T) -> T {
    with_purpose(Purpose::WritesBack, work)
}

fn with_purpose<T>(purpose: Purpose, work: impl FnOnce() -> T) -> T {
    /// Restores the purpose, also when the work panics.
    struct Back(Purpose);
    impl Drop for Back {
        fn drop(&mut self) {
            PURPOSE.set(self.0);
        }
    }
    let _back = Back(PURPOSE.replace(purpose));
    work()
}

/// A connection whose descriptor is noted for forked children. The note is dropped first.
pub(crate) struct Link {
    _noted: Noted,
    connection: Connection,
}

impl Link {
    pub(crate) fn new(connection: Connection, descriptors: &Arc<Descriptors>) -> Link {
        Link {
            _noted: descriptors.note(connection.descriptor().map_or(-1, |descriptor| descriptor.as_raw_fd())),
            connection,
        }
    }
}

impl Link {
    /// Whether the other side is on this machine and of this user, according to the kernel.
    pub(crate) fn is_local(&self) -> bool {
        self.connection.is_local()
    }
}

/// One server of the pool, as this client uses it.
///
/// Lock order: `control` before any other, also before the session's, since it is held while a heartbeat is
/// under way; meanwhile another server's is only tried. `lines`, `entry`, `listened` and `heard` are held for a short
/// time, with no other inside, but for what [`OnTurn`] locks under `lines`: it comes last, and asks nothing of this crate.
pub(crate) struct Server {
    pub(crate) id: ServerId,
    entry: RwLock<Arc<ServerEntry>>,
    lines: Mutex<Lines>,
    /// The session was opened here: if this server does not know it later, it has ended.
    pub(crate) opened: AtomicBool,
    /// Its last call failed because no answer came.
    failing: AtomicBool,
    /// It left a call unanswered up to its deadline, and has not answered since.
    suspect: AtomicBool,
    /// When it was last notified, by a long poll, that the session lives; `None`: no thread listens to it.
    listened: Mutex<Option<Instant>>,
    /// What these polls have brought.
    heard: Mutex<Heard>,
    /// Checks for signs of life, and heartbeats while no thread listens to it.
    pub(crate) control: Mutex<Control>,
}

/// The connection for heartbeats.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) link: Option<Link>,
    /// When a check for a sign of life last failed.
    pub(crate) silent: Option<Instant>,
    /// What the last check for a call that waits has shown, and when.
    pub(crate) looked: Option<(bool, Instant)>,
}

#[derive(Default)]
struct Lines {
    idle: Vec<Link>,
    places: Places,
}

impl Server {
    pub(crate) fn new(entry: &ServerEntry) -> Server {
        Server {
            id: entry.server,
            entry: RwLock::new(Arc::new(entry.clone())),
            lines: Mutex::default(),
            opened: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            listened: Mutex::default(),
            heard: Mutex::default(),
            control: Mutex::default(),
        }
    }

    pub(crate) fn entry(&self) -> Arc<ServerEntry> {
        self.entry.read().clone()
    }

    /// Takes the addresses from a newer map.
    pub(crate) fn update(&self, entry: &ServerEntry) {
        let mut known = self.entry.write();
        if **known != *entry {
            *known = Arc::new(entry.clone());
        }
    }

    /// Whether its last call failed because no answer came.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    pub(crate) fn note_answer(&self, answered: bool) {
        let failing = self.is_failing();
        if failing == answered {
            self.failing.store(!answered, Ordering::Relaxed);
        }
        if answered && self.is_suspect() {
            self.suspect.store(false, Ordering::Relaxed);
        }
    }

    /// A thread listens to it, and sent a long poll at this time; `None`: no thread does any more.
    pub(crate) fn note_poll(&self, at: Option<Instant>) {
        *self.listened.lock() = at;
    }

    /// Whether it needs no heartbeat: a long poll notified it recently that the session lives, and the next will.
    pub(crate) fn has_recent_poll(&self, now: Instant) -> bool {
        let again = Duration::from_millis(limits::LISTEN_MILLIS_MAX + SIGN_OF_LIFE_MILLIS_MAX);
        self.listened.lock().is_some_and(|at| now < at + again)
    }

    /// What was heard of its recalls.
    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock()
    }

    /// Whether it has to show a sign of life before any other request.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// It left a call unanswered up to its deadline.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// A connection for the calling thread; if all are in use, it waits its turn, of which `on_turn` is told. `connect`
    /// makes a new one. At the deadline, `longer` is asked until when the wait may go on.
    pub(crate) fn line(
        self: &Arc<Server>,
        deadline: Instant,
        on_turn: Option<OnTurn<'_>>,
        longer: impl FnMut() -> Option<Instant>,
        connect: impl FnOnce() -> std::result::Result<Link, Unanswered>,
    ) -> std::result::Result<Line, Unanswered> {
        let purpose = PURPOSE.get();
        let mut lines = self.lock();
        if !lines.places.take(purpose) {
            let tell = |turn| on_turn.into_iter().for_each(|tell| tell(turn));
            tell(Turn::Waits);
            let waited = self.await_place(lines, purpose, deadline, longer);
            tell(Turn::Comes);
            lines = waited?;
        }
        let link = lines.idle.pop();
        drop(lines);
        // If connecting fails, its drop frees the place.
        let mut line = Line::new(self.clone(), link, purpose);
        if line.link.is_none() {
            line.link = Some(connect()?);
        }
        Ok(line)
    }

    fn await_place<'a>(
        &'a self,
        mut lines: MutexGuard<'a, Lines>,
        purpose: Purpose,
        deadline: Instant,
        mut longer: impl FnMut() -> Option<Instant>,
    ) -> std::result::Result<MutexGuard<'a, Lines>, Unanswered> {
        let waiter = lines.places.wait(purpose);
        let mut until = Some(deadline);
        while !lines.places.take_in_turn(purpose, &waiter) {
            let Some(at) = until else {
                lines.places.leave(purpose, &waiter);
                let text = "all connections to it stayed in use";
                return Err(Unanswered::lost(Error::new(ErrorKind::TimedOut, text)));
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(lines);
                until = longer();
                lines = self.lock();
            } else {
                lines = waiter.turn.wait_timeout(lines, left);
            }
        }
        Ok(lines)
    }

    /// Adds a connection that was made before the server was known to its pool.
    pub(crate) fn adopt(&self, link: Link) {
        let mut lines = self.lock();
        if lines.idle.len() + lines.places.used() < limits::CONNECTIONS_PER_SERVER_MAX {
            lines.idle.push(link);
        }
    }

    /// A connection that is idle now.
    pub(crate) fn idle_line(self: &Arc<Server>) -> Option<Line> {
        let mut lines = self.lock();
        if lines.idle.is_empty() || !lines.places.take(Purpose::Usual) {
            return None;
        }
        let link = lines.idle.pop();
        drop(lines);
        Some(Line::new(self.clone(), link, Purpose::Usual))
    }

    /// Closes the idle connections: they belong to the server's last incarnation, or soon will.
    pub(crate) fn drop_idle(&self) {
        let dropped = std::mem::take(&mut self.lock().idle);
        drop(dropped);
    }

    /// The threads that wait for a place.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().places.waiting()
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }
}

/// A connection while one thread uses it. If it is dropped in the middle of a call, it is closed, so that a
/// late reply is not taken for that of another call.
pub(crate) struct Line {
    server: Arc<Server>,
    link: Option<Link>,
    calls_under_way: usize,
    /// The session of its calls, for the log.
    session: SessionId,
    purpose: Purpose,
}

/// Why a call has no reply.
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    pub(crate) map: Option<Box<ClusterMap>>,
    /// The server has answered with this error, and the connection stays usable.
    pub(crate) from_server: bool,
    /// To ask this server again at once is useless: it refuses connections, or shows no sign of life.
    pub(crate) refused_or_silent: bool,
}

impl From<ConnectFailure> for Unanswered {
    fn from(failure: ConnectFailure) -> Unanswered {
        Unanswered { refused_or_silent: failure.refused, ..Unanswered::lost(failure.error) }
    }
}

impl Unanswered {
    /// The reply, or the connection, was lost.
    pub(crate) fn lost(error: Error) -> Unanswered {
        Unanswered { error, map: None, from_server: false, refused_or_silent: false }
    }

    /// The server has answered with an error.
    pub(crate) fn from_server(error: Error) -> Unanswered {
        Unanswered { error, map: None, from_server: true, refused_or_silent: false }
    }

    /// A limit of the server's was reached.
    pub(crate) fn is_too_many(&self) -> bool {
        self.from_server && self.error.kind() == ErrorKind::TooMany
    }
}

impl Line {
    fn new(server: Arc<Server>, link: Option<Link>, purpose: Purpose) -> Line {
        Line { server, link, calls_under_way: 0, session: SessionId::NONE, purpose }
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        match &mut self.link {
            Some(link) => Ok(&mut link.connection),
            None => Err(Error::new(ErrorKind::HostDown, "the connection was lost")),
        }
    }

    /// Whether the other side is on this machine and of this user, according to the kernel.
    pub(crate) fn is_local(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_local)
    }

    pub(crate) fn send<R: Request>(
        &mut self,
        header: Header,
        request: &R,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Result<()> {
        let header = Header { kind: R::KIND, ..header };
        self.send_body(Front::default(), header, &encode_body(request), data, deadline)
    }

    /// The same for any message, with something in front of its body.
    pub(crate) fn send_body(
        &mut self,
        front: Front<'_>,
        header: Header,
        body: &[u8],
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Result<()> {
        self.session = header.session;
        let (request_name, server) = (RequestName::of(&header), self.server.id.0);
        tracing::debug!(target: "ramlace::client", request = %request_name, kind = ?header.kind, server, "asks");
        let sent = self.connection()?.send_body(front, header, body, data, deadline);
        self.calls_under_way += 1;
        sent.map_err(|failure| {
            self.link = None;
            failure.error
        })
    }

    /// The reply to a change; a test may inject its loss.
    pub(crate) fn receive_change<R: Request>(
        &mut self,
        call: u32,
        deadline: Instant,
    ) -> std::result::Result<Received<R::Reply>, Unanswered> {
        let received = self.receive::<R>(call, deadline)?;
        self.loses_reply()?;
        Ok(received)
    }

    /// A test may lose the reply to a change.
    pub(crate) fn loses_reply(&mut self) -> std::result::Result<(), Unanswered> {
        if !crate::fault::drops_reply() {
            return Ok(());
        }
        self.close();
        Err(Unanswered::lost(Error::new(ErrorKind::HostDown, "a test lost this reply")))
    }

    /// Whether a reply begins to arrive until then.
    pub(crate) fn is_answered_by(&mut self, until: Instant) -> std::result::Result<bool, Unanswered> {
        let begun = self.connection().map_err(Unanswered::lost)?.await_reply(until);
        begun.map_err(|failure| {
            self.link = None;
            Unanswered { map: failure.map, ..Unanswered::lost(failure.error) }
        })
    }

    /// The reply to a call. When it brings data, [`Line::receive_data`] must follow.
    pub(crate) fn receive<R: Request>(
        &mut self,
        call: u32,
        deadline: Instant,
    ) -> std::result::Result<Received<R::Reply>, Unanswered> {
        let receive = |take: &mut TakeBody<'_>| self.receive_body(R::KIND, call, deadline, take);
        let (received, reply) = decoding(|body| decode_body(R::KIND, body), receive)?;
        Ok(received.with(reply))
    }

    /// The same for any message: `take` gets the body.
    pub(crate) fn receive_body(
        &mut self,
        kind: Kind,
        call: u32,
        deadline: Instant,
        take: &mut TakeBody<'_>,
    ) -> std::result::Result<Received<()>, Unanswered> {
        let received = self.connection().map_err(Unanswered::lost)?.receive_body(kind, call, deadline, take);
        self.trace_answer(kind, call, received.as_ref().err());
        match received {
            Ok(received) => {
                if received.data_bytes == 0 {
                    self.calls_under_way -= 1;
                }
                Ok(received)
            }
            Err(Failure { error, map, fatal: false }) => {
                self.calls_under_way -= 1;
                Err(Unanswered { error, map, from_server: true, refused_or_silent: false })
            }
            Err(Failure { error, map, fatal: true }) => {
                self.link = None;
                Err(Unanswered { error, map, from_server: false, refused_or_silent: false })
            }
        }
    }

    fn trace_answer(&self, kind: Kind, call: u32, failure: Option<&Failure>) {
        let header = Header { session: self.session, call, ..Header::request(kind) };
        let (request, server) = (RequestName::of(&header), self.server.id.0);
        match failure {
            None => {
                tracing::debug!(target: "ramlace::client", %request, kind = ?kind, server, "is answered")
            }
            Some(Failure { error, fatal, .. }) => {
                tracing::debug!(target: "ramlace::client", %request, kind = ?kind, server, %error, fatal, "fails");
            }
        }
    }

    pub(crate) fn receive_data(&mut self, data: &mut [IoSliceMut<'_>], deadline: Instant) -> Result<()> {
        let received = self.connection()?.receive_data(data, deadline);
        match received {
            Ok(()) => {
                self.calls_under_way -= 1;
                Ok(())
            }
            Err(failure) => {
                self.link = None;
                Err(failure.error)
            }
        }
    }

    /// The purpose for which it is used.
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The server to which it leads.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The same by its number.
    pub(crate) fn server_id(&self) -> ServerId {
        self.server.id
    }

    /// Closes the connection instead of keeping it.
    pub(crate) fn close(&mut self) {
        self.link = None;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let link = self.link.take().filter(|_| self.calls_under_way == 0);
        let mut lines = self.server.lock();
        lines.idle.extend(link);
        lines.places.give_back(self.purpose);
    }
}

/// One request and its reply on a connection that no other thread uses.
pub(crate) fn roundtrip<R: Request>(
    link: &mut Link,
    header: Header,
    request: &R,
    deadline: Instant,
) -> Result<R::Reply> {
    link.connection.send(header, request, &[], deadline).map_err(|failure| failure.error)?;
    receive(link, header, request, deadline)
}

fn receive<R: Request>(link: &mut Link, header: Header, request: &R, deadline: Instant) -> Result<R::Reply> {
    let receive =
        |take: &mut TakeBody<'_>| link.connection.receive_body(R::KIND, header.call, deadline, take);
    let received = decoding(|body| decode_reply(request, body), receive);
    let (received, reply) = received.map_err(|failure| failure.error)?;
    without_data(received.with(reply))
}

/// The same for a request whose reply may be late: each of these is called once if the reply has not begun by its
/// time. One that has begun has to be there by the last of them.
pub(crate) fn roundtrip_unless_late<R: Request>(
    link: &mut Link,
    header: Header,
    request: &R,
    late: &mut [(Instant, &mut dyn FnMut())],
    deadline: Instant,
) -> Result<R::Reply> {
    late.sort_by_key(|(at, _)| *at);
    let first = late.first().map_or(deadline, |(at, _)| *at);
    let last = late.last().map_or(deadline, |(at, _)| *at);
    link.connection.send(header, request, &[], first).map_err(|failure| failure.error)?;
    for (at, call) in late {
        if link.connection.await_reply(*at).map_err(|failure| failure.error)? {
            return receive(link, header, request, last.min(deadline));
        }
        call();
    }
    receive(link, header, request, deadline)
}

/// The descriptor that a reply brought.
pub(crate) fn descriptor_of<T>(received: Received<T>) -> Result<(T, OwnedFd)> {
    match received.descriptor {
        Some(descriptor) => Ok((received.reply, descriptor)),
        None => Err(Error::new(ErrorKind::Protocol, "the server granted a lane without its descriptor")),
    }
}

pub(crate) fn without_data<T>(received: Received<T>) -> Result<T> {
    if received.data_bytes > 0 {
        return Err(Error::new(ErrorKind::Protocol, "a reply brought bytes that nobody asked for"));
    }
    Ok(received.reply)
}

/// The same as what a call returns: such a reply counts as lost, and closes the connection.
pub(crate) fn reply_without_data<T>(received: Received<T>) -> std::result::Result<T, Unanswered> {
    without_data(received).map_err(Unanswered::lost)
}

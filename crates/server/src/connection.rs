//! One connection from its handshake to its end: whose session it is, and one request after
//! another. Connections share nothing but the server; one that never reads delays nobody.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_transport::nonblocking::{Connection, Incoming};
use ramlace_wire::chunk::{AllocateLane, GrantLane, PunchChunk, ReadChunk, WriteChunk};
use ramlace_wire::cluster::{ForgetServer, Forgotten, JoinPool};
use ramlace_wire::session::{OpenSession, SessionKind, SessionOpened};
use ramlace_wire::{Credentials, Header, Kind, decode_body, encode_body};
use tokio::time::timeout;

use crate::clock;
use crate::record::Record;
use crate::requests;
use crate::server::{Outcome, Refusal, Server};
use crate::sessions::SessionRecord;
use crate::stop::BugEndsProcess;

/// Whose connection it is.
#[derive(Clone, Copy)]
enum Bound {
    /// Nobody's yet.
    Nobody,
    /// A client's session.
    Client(SessionId),
    /// Another server's.
    Peer(SessionId),
}

/// Serves a connection until it ends.
pub async fn serve(server: Rc<Server>, incoming: Incoming) {
    let _bug = BugEndsProcess;
    let counted = Counted::new(&server);
    // Why a stranger was refused, the stranger was told; there is nothing to do here.
    if let Ok(mut connection) = Connection::accept(incoming, &server.secret).await {
        let _ = serve_requests(&server, &mut connection).await;
    }
    drop(counted);
}

struct Counted(Rc<Server>);

impl Counted {
    fn new(server: &Rc<Server>) -> Counted {
        let connections = &server.counters.connections;
        connections.set(connections.get() + 1);
        Counted(server.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let connections = &self.0.counters.connections;
        connections.set(connections.get() - 1);
    }
}

async fn serve_requests(server: &Rc<Server>, connection: &mut Connection) -> Result<()> {
    let mut bound = Bound::Nobody;
    loop {
        // Replies leave before this waits for the next request; data that nobody took is skipped.
        let Some((header, body)) = connection.read_request().await? else { return Ok(()) };
        server.counters.request();
        if header.is_reply() {
            return Err(Error::new(ErrorKind::Protocol, "a client sent a reply"));
        }
        if header.data_bytes > 0 && header.kind != Kind::WriteChunk {
            return Err(Error::new(ErrorKind::Protocol, format!("{:?} carries no data", header.kind)));
        }
        serve_request(server, connection, &mut bound, &header, &body).await?;
    }
}

/// Answers one request. Only errors of the connection are returned.
async fn serve_request(
    server: &Rc<Server>,
    connection: &mut Connection,
    bound: &mut Bound,
    header: &Header,
    body: &[u8],
) -> Result<()> {
    let who = match identify(server, *bound, header) {
        Ok(who) => who,
        Err(error) => {
            server.refuse(connection, header, &Refusal::from(error));
            return Ok(());
        }
    };
    match header.kind {
        Kind::OpenSession => {
            let outcome = open_session(server, bound, header, body);
            answer(server, connection, header, outcome);
        }
        Kind::ReadChunk => {
            let request: ReadChunk = decode_body(header.kind, body)?;
            server.read_chunk(connection, header, request).await?;
        }
        Kind::WriteChunk => {
            let request: WriteChunk = decode_body(header.kind, body)?;
            server.write_chunk(connection, header, request).await?;
        }
        Kind::GrantLane => {
            let request: GrantLane = decode_body(header.kind, body)?;
            server.grant_lane(connection, header, request).await?;
        }
        _ => {
            let limit = Duration::from_millis(u64::from(header.deadline_millis));
            let served = timeout(limit, serve_small(server, *bound, header, body, who)).await;
            answer(server, connection, header, served.unwrap_or_else(|_| Err(too_late(header))));
        }
    }
    Ok(())
}

fn answer(server: &Server, connection: &mut Connection, header: &Header, outcome: Outcome<Vec<u8>>) {
    match outcome {
        Ok(body) => connection.queue_reply(header.reply(server.membership.epoch()), &body, &[]),
        Err(refusal) => server.refuse(connection, header, &refusal),
    }
}

/// What was begun goes on; a retry of it finds its answer.
fn too_late(header: &Header) -> Refusal {
    let text = format!("{:?} was not done within its {} ms", header.kind, header.deadline_millis);
    Error::new(ErrorKind::TimedOut, text).into()
}

/// As whom the request is made. Identity belongs to the session that this connection has proved,
/// never to what a header says.
fn identify(server: &Server, bound: Bound, header: &Header) -> Result<Credentials> {
    let foreign = || {
        Error::new(
            ErrorKind::Denied,
            format!("{:?} names a session that is not this connection's", header.kind),
        )
    };
    match bound {
        _ if header.kind == Kind::OpenSession => Ok(server.owner.clone()),
        // What a newcomer may ask: the map, to find the other servers, and how things are.
        Bound::Nobody if matches!(header.kind, Kind::GetMap | Kind::ServerStatus | Kind::StopServer) => {
            Ok(server.owner.clone())
        }
        Bound::Nobody => {
            Err(Error::new(ErrorKind::Denied, format!("{:?} needs a session; open one first", header.kind)))
        }
        Bound::Client(session) | Bound::Peer(session) if session != header.session => Err(foreign()),
        Bound::Peer(_) => Ok(server.owner.clone()),
        Bound::Client(session) => server.durable.borrow_mut().sessions.heard(session, clock::instant()),
    }
}

/// Requests whose answer is a body alone.
async fn serve_small(
    server: &Rc<Server>,
    bound: Bound,
    header: &Header,
    body: &[u8],
    who: Credentials,
) -> Outcome<Vec<u8>> {
    let kind = header.kind;
    let peer = matches!(bound, Bound::Peer(_));
    match kind {
        Kind::Heartbeat => Ok(encode_body(&())),
        Kind::CloseSession => {
            end_session(server, header.session)?;
            Ok(encode_body(&()))
        }
        Kind::ServerStatus => Ok(encode_body(&server.status())),
        Kind::StopServer => {
            server.stopping.notify_one();
            Ok(encode_body(&()))
        }
        Kind::GetMap => Ok(encode_body(&*server.membership.map()?)),
        Kind::JoinPool if peer => {
            let request: JoinPool = decode_body(kind, body)?;
            Ok(encode_body(&server.join(request).await?))
        }
        Kind::ForgetServer => {
            let request: ForgetServer = decode_body(kind, body)?;
            Ok(encode_body(&Forgotten { epoch: server.forget(request)? }))
        }
        Kind::PunchChunk => {
            let request: PunchChunk = decode_body(kind, body)?;
            server.punch_chunk(header, request).await.map(|()| encode_body(&()))
        }
        Kind::AllocateLane => {
            let request: AllocateLane = decode_body(kind, body)?;
            server.allocate_lane(header, request).await.map(|()| encode_body(&()))
        }
        _ if let Some(page) = server.serve_check(&who, kind, body) => page,
        _ => match requests::parse(kind, body)? {
            Some(request) if peer || !request.is_peers_own() => server.serve_slot(header, who, request).await,
            _ => {
                Err(Error::new(ErrorKind::Denied, format!("{kind:?} is for servers of the pool alone"))
                    .into())
            }
        },
    }
}

/// Begins a session, or joins this connection to it.
fn open_session(server: &Rc<Server>, bound: &mut Bound, header: &Header, body: &[u8]) -> Outcome<Vec<u8>> {
    let request: OpenSession = decode_body(header.kind, body)?;
    let session = header.session;
    if session == SessionId::NONE {
        return Err(Error::new(ErrorKind::Invalid, "a session id is 128 random bits, not zero").into());
    }
    if !matches!(bound, Bound::Nobody) {
        return Err(Error::new(ErrorKind::Invalid, "this connection has a session already").into());
    }
    match request.kind {
        SessionKind::Peer => *bound = Bound::Peer(session),
        SessionKind::User => {
            begin_or_resume(server, session, &request)?;
            *bound = Bound::Client(session);
        }
        SessionKind::Host => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "sessions that act for several users are reserved for a later version",
            )
            .into());
        }
    }
    Ok(encode_body(&SessionOpened {
        pool: server.pool,
        server: server.me,
        host: server.host,
        epoch: server.membership.epoch(),
        credentials: server.owner.clone(),
        expiry_millis: limits::SESSION_EXPIRY_MILLIS,
    }))
}

fn begin_or_resume(server: &Rc<Server>, session: SessionId, request: &OpenSession) -> Result<()> {
    let known = server.durable.borrow().sessions.contains(session);
    if known || request.resume {
        return server.durable.borrow_mut().sessions.heard(session, clock::instant()).map(drop);
    }
    server.durable.borrow().sessions.has_room()?;
    let label = request.label.chars().take(64).collect();
    server.commit(Record::SessionOpened(SessionRecord { session, who: server.owner.clone(), label }))?;
    server.session_began.notify_one();
    Ok(())
}

/// Ends a session: its open files are closed, its reservations become holes.
pub fn end_session(server: &Rc<Server>, session: SessionId) -> Result<()> {
    if server.durable.borrow().sessions.contains(session) {
        server.commit(Record::SessionEnded { session, now: clock::now() })?;
        server.session_ended(session);
    }
    Ok(())
}

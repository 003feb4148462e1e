//! Serves one connection, from its handshake to its end: finds the session that it belongs to, and handles one
//! request after another. Connections share nothing but the server; a client that never reads delays no other.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, SessionId, limits};
use ramlace_transport::Proved;
use ramlace_transport::nonblocking::{Connection, Incoming};
use ramlace_wire::chunk::{AllocateLane, CountLane, PunchChunk, SeekLane};
use ramlace_wire::cluster::{ForgetServer, Forgotten, JoinPool};
use ramlace_wire::coordination::{ChangeCell, NoteChange, WatchChange};
use ramlace_wire::delegation::ChangeMany;
use ramlace_wire::keys::{AdoptKeyBook, ChangeKeys, HostKeyId, RotateSecret};
use ramlace_wire::leases::{LeaseAttributes, LeaseName, RenewLeases};
use ramlace_wire::listen::Listen;
use ramlace_wire::locks::{EndLockWait, FindDeadlock, ListLockWaits};
use ramlace_wire::mend::{Mend, MendLanes};
use ramlace_wire::namespace::GetAttributesMany;
use ramlace_wire::permit::GetPermit;
use ramlace_wire::session::{OpenSession, SessionKind, SessionOpened};
use ramlace_wire::walk::Walk;
use ramlace_wire::{Credentials, Header, Kind, decode_body, encode_body};
use tokio::time::timeout_at;

use crate::callers::Seat;
use crate::cause;
use crate::clock;
use crate::gate::{Answer, Call, Gate, too_late};
use crate::identity::{Bound, Identity, check_may_open};
use crate::record::Record;
use crate::requests;
use crate::requests::possible;
use crate::server::counts::SessionCounts;
use crate::server::{Outcome, Server};
use crate::sessions::SessionRecord;
use crate::stop::BugEndsProcess;

/// Serves a connection until it ends.
pub async fn serve(server: Rc<Server>, incoming: Incoming) {
    let _bug = BugEndsProcess;
    let counted = Counted::new(&server);
    // A stranger was sent the reason why it was refused; there is nothing to do here.
    let keys = server.keys.keys();
    if let Ok((mut connection, proved)) = Connection::accept(incoming, &keys, &server.newcomers).await {
        // One connection too many is closed at once: its client sees the end of the connection.
        if let Ok(seat) = server.callers.enter(&proved, &connection) {
            connection.set_meter(seat.meter());
            // A client whose key was revoked meanwhile learns it at the next handshake.
            if server.keys.admit(&proved).await.is_ok() {
                let _ = serve_requests(&server, &mut connection, proved, seat).await;
            }
        }
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

/// The client of a connection.
struct Caller {
    proved: Proved,
    seat: Seat,
    bound: Bound,
    /// The label that it gives itself, for people.
    label: String,
    /// The counters of its session.
    counts: Option<Rc<SessionCounts>>,
}

impl Caller {
    /// A peer server whose message is impossible is not trusted: its connection is closed, and the log names
    /// it.
    fn check_believed<T>(&self, connection: &Connection, outcome: &Outcome<T>) -> Result<()> {
        match outcome {
            Err(refusal)
                if matches!(self.bound, Bound::Peer(_)) && refusal.error.kind() == ErrorKind::Protocol =>
            {
                let (label, address) = (&self.label, connection.peer());
                eprintln!(
                    "ramlace: {label} at {address} is not believed, its connection ends: {}",
                    refusal.error
                );
                Err(refusal.error.clone())
            }
            _ => Ok(()),
        }
    }
}

/// A client's label, shortened and without characters that move a reader's cursor.
fn shown_label(label: &str) -> String {
    let cut = (0..=limits::LABEL_BYTES_MAX.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
    label[..cut.unwrap_or(0)].chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

async fn serve_requests(
    server: &Rc<Server>,
    connection: &mut Connection,
    proved: Proved,
    seat: Seat,
) -> Result<()> {
    let mut caller = Caller { proved, seat, bound: Bound::Nobody, label: String::new(), counts: None };
    let mut gate = Gate::default();
    loop {
        let Some((header, body)) = next_request(server, connection, &mut gate).await? else {
            return gate.drain(server, connection).await;
        };
        server.counters.request();
        if header.is_reply() {
            return Err(Error::new(ErrorKind::Protocol, "a client sent a reply"));
        }
        let row = header.kind.row();
        if header.data_bytes > 0 && !row.carries_data {
            return Err(Error::new(ErrorKind::Protocol, format!("{:?} carries no data", header.kind)));
        }
        // Late bytes of a program that has died must not land on what its successor writes.
        if row.changes || row.carries_data {
            connection.check_sender().await?;
        }
        let timed = server.counts.begin(&header, caller.counts.as_ref());
        let call = Call::new(&header);
        let limit = Duration::from_millis(u64::from(header.deadline_millis));
        let until = (!row.own_deadline).then(|| clock::instant() + limit);
        let served = serve_request(server, connection, &mut caller, &call, &body, until);
        let outcome = cause::within(Some(timed.request()), pin!(served)).await?;
        caller.check_believed(connection, &outcome)?;
        let is_over = header.kind == Kind::CloseSession && outcome.is_ok();
        gate.answer(server, connection, &call, timed, outcome, until).await?;
        if is_over {
            return gate.drain(server, connection).await;
        }
    }
}

/// The next request; meanwhile replies that wait at the gate are sent. Replies are sent before this waits for
/// the peer; data that was not read is skipped.
async fn next_request(
    server: &Rc<Server>,
    connection: &mut Connection,
    gate: &mut Gate,
) -> Result<Option<(Header, Vec<u8>)>> {
    while !gate.is_empty() {
        if gate.is_full() {
            gate.wait(server).await;
        } else {
            tokio::select! {
                biased;
                () = gate.wait(server) => {}
                request = connection.read_request() => return request,
            }
        }
        gate.release(server, connection).await?;
    }
    connection.read_request().await
}

/// Serves one request. Only errors of the connection are returned.
async fn serve_request(
    server: &Rc<Server>,
    connection: &mut Connection,
    caller: &mut Caller,
    call: &Call,
    body: &[u8],
    until: Option<Instant>,
) -> Result<Outcome<Answer>> {
    let (identity, body) = match server.identify(caller.proved.role, caller.bound, call, body) {
        Ok(identified) => identified,
        Err(error) => return Ok(Err(error.into())),
    };
    let kind = call.kind;
    Ok(match kind {
        Kind::CloseSession => {
            // This connection still gets a reply; the session's other connections are closed with it.
            caller.seat.leave();
            end_session(server, call.session)?;
            Ok(Answer::Body(encode_body(&())))
        }
        Kind::OpenSession => open_session(server, caller, call, body).map(Answer::Body),
        Kind::ReadChunk => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => server.read_chunk(call, request).await,
            Err(refusal) => Err(refusal),
        },
        Kind::WriteChunk => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => {
                let written = server.write_chunk(connection, call, request).await?;
                written.map(|written| Answer::Body(encode_body(&written)))
            }
            Err(refusal) => Err(refusal),
        },
        Kind::ExtendChunk => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => {
                let extended = server.extend_chunk(connection, call, identity, request).await?;
                extended.map(|extended| Answer::Body(encode_body(&extended)))
            }
            Err(refusal) => Err(refusal),
        },
        Kind::GrantLane => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => server.grant_lane(connection.peer_uid(), call, request).await,
            Err(refusal) => Err(refusal),
        },
        Kind::GrantPassthrough => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => server.grant_passthrough(connection.peer_uid(), call, request).await,
            Err(refusal) => Err(refusal),
        },
        Kind::ReadRuns => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => server.read_runs(call, request).await,
            Err(refusal) => Err(refusal),
        },
        Kind::WriteRuns => match server.lane_request(call, &caller.proved, body)? {
            Ok(request) => {
                let written = server.write_runs(connection, call, request).await?;
                written.map(|()| Answer::Body(encode_body(&())))
            }
            Err(refusal) => Err(refusal),
        },
        _ => {
            let until = until.expect("a small request has a deadline");
            // Pinned here, it is not copied into the time limit: it has room for any of a hundred requests.
            let served = pin!(serve_small(server, call, &caller.proved, body, identity));
            let served = timeout_at(until.into(), served).await;
            served.unwrap_or_else(|_| Err(too_late(call))).map(Answer::Body)
        }
    })
}

/// Requests whose reply is only a body.
async fn serve_small(
    server: &Rc<Server>,
    header: &Call,
    proved: &Proved,
    body: &[u8],
    identity: Identity,
) -> Outcome<Vec<u8>> {
    let kind = header.kind;
    match kind {
        Kind::Heartbeat => Ok(encode_body(&())),
        Kind::Listen => {
            let request: Listen = decode_body(kind, body)?;
            Ok(encode_body(&server.listen(header, request).await?))
        }
        Kind::ServerStatus => Ok(encode_body(&server.status())),
        Kind::GetMetrics => Ok(encode_body(&server.metrics())),
        Kind::StopServer => {
            server.stopping.notify_one();
            Ok(encode_body(&()))
        }
        Kind::GetMap => Ok(encode_body(&*server.membership.map()?)),
        Kind::JoinPool => {
            let request: JoinPool = decode_body(kind, body)?;
            Ok(encode_body(&server.join(request, header.session).await?))
        }
        Kind::ForgetServer => {
            let request: ForgetServer = decode_body(kind, body)?;
            Ok(encode_body(&Forgotten { epoch: server.forget(request)? }))
        }
        Kind::ChangeKeys => {
            let request: ChangeKeys = decode_body(kind, body)?;
            server.change_keys(request).await.map(|changed| encode_body(&changed))
        }
        Kind::RotateSecret => {
            let request: RotateSecret = decode_body(kind, body)?;
            server.rotate_secret(request, proved).await.map(|rotated| encode_body(&rotated))
        }
        Kind::ListKeys => Ok(encode_body(&server.list_keys())),
        Kind::GetKeyBook => Ok(encode_body(server.keys.keys().book())),
        Kind::AdoptKeyBook => {
            let request: AdoptKeyBook = decode_body(kind, body)?;
            server.adopt_key_book(request.book, proved).map(|()| encode_body(&()))
        }
        Kind::PunchChunk => {
            let request: PunchChunk = server.lane_request(header, proved, body)??;
            server.punch_chunk(header, request).await.map(|()| encode_body(&()))
        }
        Kind::AllocateLane => {
            let request: AllocateLane = server.lane_request(header, proved, body)??;
            server.allocate_lane(header, request).await.map(|()| encode_body(&()))
        }
        Kind::CountLane => {
            let request: CountLane = server.lane_request(header, proved, body)??;
            server.count_lane(header, request).await.map(|reply| encode_body(&reply))
        }
        Kind::SeekLane => {
            let request: SeekLane = server.lane_request(header, proved, body)??;
            server.seek_lane(header, request).await.map(|reply| encode_body(&reply))
        }
        Kind::GetAttributesMany => {
            let request: GetAttributesMany = decode_body(kind, body)?;
            let asked = server.attributes_of_many(header, &identity.who, &request).await;
            asked.map(|reply| encode_body(&reply))
        }
        Kind::LeaseName => {
            let request: LeaseName = decode_body(kind, body)?;
            server.lease_name(header, &identity.who, request).await.map(|leased| encode_body(&leased))
        }
        Kind::LeaseAttributes => {
            let request: LeaseAttributes = decode_body(kind, body)?;
            server.lease_attributes(header, &identity.who, &request).await.map(|leased| encode_body(&leased))
        }
        Kind::RenewLeases => {
            let RenewLeases {} = decode_body(kind, body)?;
            Ok(encode_body(&server.renew_leases(header.session)))
        }
        Kind::EndRecalls => {
            server.end_recalls(header.session, &decode_body(kind, body)?)?;
            Ok(encode_body(&()))
        }
        Kind::WaitPublished => {
            server.wait_published(header.session, decode_body(kind, body)?).await;
            Ok(encode_body(&()))
        }
        Kind::ListHolders => Ok(encode_body(&server.holders(decode_body(kind, body)?))),
        Kind::ChangeCell => {
            let request: ChangeCell = server.lane_request(header, proved, body)??;
            server.change_cell(header, request).await.map(|reply| encode_body(&reply))
        }
        Kind::WatchChange => {
            let request: WatchChange = server.lane_request(header, proved, body)??;
            server.watch_change(header, request).await.map(|reply| encode_body(&reply))
        }
        Kind::EndWatch => {
            server.end_watch(header.session, decode_body(kind, body)?);
            Ok(encode_body(&()))
        }
        Kind::NoteChange => {
            let request: NoteChange = server.lane_request(header, proved, body)??;
            server.note_stores(header, request).await.map(|()| encode_body(&()))
        }
        Kind::GetPermit => {
            let GetPermit { inode } = decode_body(kind, body)?;
            server.admit_slot(header, inode.slot()).await?;
            Ok(encode_body(&server.permit(proved, header.session, inode)))
        }
        Kind::FindDeadlock => {
            let request: FindDeadlock = decode_body(kind, body)?;
            let map = server.admit_slot(header, InodeId::ROOT.slot()).await?;
            let found = server.find_deadlock(&map, header.session, request).await;
            found.map(|found| encode_body(&found))
        }
        Kind::QueryRecalls => Ok(encode_body(&server.query_recalls(&possible(decode_body(kind, body)?)?)?)),
        Kind::ListLockWaits => {
            let request: ListLockWaits = decode_body(kind, body)?;
            Ok(encode_body(&server.lock_waits(&request)))
        }
        Kind::EndLockWait => {
            let request: EndLockWait = decode_body(kind, body)?;
            server.admit_slot(header, request.inode.slot()).await?;
            Ok(encode_body(&server.end_lock_wait(request)?))
        }
        Kind::Walk => {
            let request: Walk = decode_body(kind, body)?;
            server.walk(header, &identity.who, request).await.map(|walked| encode_body(&walked))
        }
        Kind::ChangeMany => {
            let request: ChangeMany = decode_body(kind, body)?;
            let changed = server.change_many(header, proved, &identity, request).await;
            changed.map(|changed| encode_body(&changed))
        }
        Kind::Mend => {
            server.check_is_owner(&identity.who, kind)?;
            let request = requests::possible(decode_body::<Mend>(kind, body)?)?;
            server.learn_map(header).await?;
            server.mend(request).await.map(|mended| encode_body(&mended))
        }
        Kind::MendLanes => {
            server.check_is_owner(&identity.who, kind)?;
            let request = requests::possible(decode_body::<MendLanes>(kind, body)?)?;
            server.learn_map(header).await?;
            server.mend_lanes(request).await.map(|mended| encode_body(&mended))
        }
        _ if let Some(page) = server.serve_check(&identity.who, kind, body) => page,
        _ => server.serve_slot(header, proved, identity, body).await,
    }
}

/// Begins a session, or joins this connection to it.
fn open_session(server: &Rc<Server>, caller: &mut Caller, header: &Header, body: &[u8]) -> Outcome<Vec<u8>> {
    let request: OpenSession = decode_body(header.kind, body)?;
    let session = header.session;
    if session == SessionId::NONE {
        return Err(Error::new(ErrorKind::Invalid, "a session id is 128 random bits, not zero").into());
    }
    if !matches!(caller.bound, Bound::Nobody) {
        return Err(Error::new(ErrorKind::Invalid, "this connection has a session already").into());
    }
    check_may_open(caller.proved.role, request.kind)?;
    // Requests between servers are not those of a single client.
    if request.kind != SessionKind::Peer {
        caller.seat.join(session)?;
    }
    if let Err(error) = enter_session(server, caller, session, &request) {
        caller.seat.leave();
        return Err(error.into());
    }
    caller.label = shown_label(&request.label);
    // Servers are not clients: their requests are counted by message only.
    caller.counts = (request.kind != SessionKind::Peer).then(|| server.counts.of_session(session));
    let credentials = match request.kind {
        SessionKind::Host => Credentials::NOBODY,
        _ => server.owner.clone(),
    };
    Ok(encode_body(&SessionOpened {
        pool: server.pool,
        server: server.me,
        host: server.host,
        epoch: server.membership.epoch(),
        credentials,
        expiry_millis: limits::SESSION_EXPIRY_MILLIS,
    }))
}

/// Begins or resumes the session that a connection is to belong to.
fn enter_session(
    server: &Rc<Server>,
    caller: &mut Caller,
    session: SessionId,
    request: &OpenSession,
) -> Result<()> {
    match request.kind {
        SessionKind::Peer => caller.bound = Bound::Peer(session),
        SessionKind::User => {
            begin_or_resume(server, session, request, &server.owner, None)?;
            caller.bound = Bound::Client(session);
        }
        SessionKind::Host => {
            begin_or_resume(server, session, request, &Credentials::NOBODY, caller.proved.host.as_ref())?;
            caller.bound = Bound::Host(session);
        }
    }
    Ok(())
}

fn begin_or_resume(
    server: &Rc<Server>,
    session: SessionId,
    request: &OpenSession,
    who: &Credentials,
    host: Option<&HostKeyId>,
) -> Result<()> {
    let known = server.durable.borrow().sessions.contains(session);
    if known && server.durable.borrow().sessions.host_of(session) != host {
        let text = "the session is there already, and was opened with another key";
        return Err(Error::new(ErrorKind::Denied, text));
    }
    if known || request.resume {
        return server.durable.borrow_mut().sessions.note_alive(session, clock::instant()).map(drop);
    }
    server.durable.borrow().sessions.has_room(host.is_some())?;
    let label = shown_label(&request.label);
    let (who, host) = (who.clone(), host.cloned());
    server.commit(&Record::SessionOpened(SessionRecord { session, who, host, label }))?;
    server.session_began.notify_one();
    Ok(())
}

/// Ends a session: its open files are closed, its reservations become holes.
pub fn end_session(server: &Rc<Server>, session: SessionId) -> Result<()> {
    if server.durable.borrow().sessions.contains(session) {
        server.commit_session_end(session)?;
        server.session_ended(session);
    }
    Ok(())
}

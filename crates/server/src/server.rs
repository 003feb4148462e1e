//! What a server holds. The files of this folder are its parts; none of them knows about requests.
//! [`crate::commit`] describes how the state changes.
//!
//! Everything runs on one thread: state is in cells that are never borrowed across an await.

pub mod acknowledged;
pub mod counts;
pub mod data_desk;
pub mod delegation_desk;
pub mod delivery_queues;
pub mod event_queues;
pub mod kept_files;
pub mod key_desk;
pub mod known_map;
pub mod known_waits;
pub mod lane_desk;
pub mod lease_desk;
pub mod outgoing;
pub mod spreading;
pub mod staging_room;
pub mod watched;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Redirect, Result, ServerId, SessionId, Slot};
use ramlace_cluster::CoordinatorConfig;
use ramlace_namespace::{AskedBy, Query, Reply};
use ramlace_store::Store;
use ramlace_transport::nonblocking::{Connection, Newcomers};
use ramlace_transport::{Failure, this_host};
use ramlace_wire::peer::{InodeAnswer, QueryInode, Token};
use ramlace_wire::session::ServerStatus;
use ramlace_wire::{ClusterMap, Credentials, ErrorBody, Header, HostId, PoolId, encode_body, flags};
use tokio::sync::{Notify, oneshot};

use crate::callers::Callers;
use crate::clock;
use crate::config::ChildConfig;
use crate::durable::Durable;
use crate::peers::Peers;
use crate::server::counts::Counts;
use crate::server::data_desk::DataDesk;
use crate::server::delegation_desk::DelegationDesk;
use crate::server::delivery_queues::Deliveries;
use crate::server::event_queues::EventQueues;
use crate::server::key_desk::KeyDesk;
use crate::server::known_map::Membership;
use crate::server::known_waits::KnownWaits;
use crate::server::lane_desk::LaneDesk;
use crate::server::lease_desk::LeaseDesk;
use crate::server::spreading::Spreading;

/// Why a request cannot be done; for Moved, with the newer map.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub error: Error,
    /// The newer map.
    pub map: Option<Rc<ClusterMap>>,
}

/// The result of a request.
pub type Outcome<T> = std::result::Result<T, Refusal>;

impl Refusal {
    /// Another server has the slot.
    pub fn moved(message: String, map: Rc<ClusterMap>) -> Refusal {
        Refusal { error: Error::new(ErrorKind::Redirect(Redirect::Moved), message), map: Some(map) }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { error, map: None }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal { error: failure.error, map: failure.map.map(|map| Rc::new(*map)) }
    }
}

/// The counters of a server since it started.
#[derive(Default)]
pub struct Counters {
    read_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
    requests: Cell<u64>,
    /// Connections open now.
    pub connections: Cell<u32>,
}

impl Counters {
    /// Counts bytes sent.
    pub fn read_bytes(&self, bytes: u64) {
        self.read_bytes.set(self.read_bytes.get() + bytes);
    }

    /// Counts bytes received.
    pub fn written_bytes(&self, bytes: u64) {
        self.written_bytes.set(self.written_bytes.get() + bytes);
    }

    /// Counts a request.
    pub fn request(&self) {
        self.requests.set(self.requests.get() + 1);
    }
}

/// One server.
pub struct Server {
    /// Its options.
    pub config: ChildConfig,
    /// Its number.
    pub me: ServerId,
    /// The machine it runs on.
    pub host: HostId,
    /// The pool.
    pub pool: PoolId,
    /// The owner of the pool: the user of this process.
    pub owner: Credentials,
    /// The keys that it accepts.
    pub keys: KeyDesk,
    /// The connected clients.
    pub callers: Rc<Callers>,
    /// Connections that have not proved a key yet.
    pub newcomers: Newcomers,
    /// The other servers.
    pub peers: Peers,
    /// The memory.
    pub store: RefCell<Store>,
    /// What outlives the process.
    pub durable: RefCell<Durable>,
    /// The map.
    pub membership: Membership,
    /// The slots' pending deliveries.
    pub deliveries: Deliveries,
    /// Attempts to spread directories.
    pub spreading: Spreading,
    /// Events that are not sent to their sessions yet.
    pub events: EventQueues,
    /// Writes under way in lanes, and waits for changes of their bytes.
    pub lane_desk: LaneDesk,
    /// Leases on names and attributes.
    pub leases: LeaseDesk,
    /// Leases on bytes.
    pub data: DataDesk,
    /// Delegations of slots.
    pub delegations: DelegationDesk,
    /// Held while a cycle of waits is searched for.
    pub deadlocks: tokio::sync::Mutex<KnownWaits>,
    /// Its counters.
    pub counters: Counters,
    /// The counters by message and by session.
    pub counts: Counts,
    /// Notified when the server shall end.
    pub stopping: Notify,
    /// Notified when a session begins, so that its expiry is watched.
    pub session_began: Notify,
    /// Notified when a snapshot is under way.
    pub snapshot_began: Notify,
    /// Requests that wait for answers that depend on other slots.
    pub waiting: RefCell<HashMap<Token, oneshot::Sender<Result<Reply>>>>,
    /// The epoch of the last map whose lost slots were handled.
    pub noticed: Cell<Epoch>,
    /// When slots that were lost are handled again, if a record found no room.
    pub notices_again: Cell<Option<Instant>>,
    started: Instant,
}

impl Server {
    /// Rebuilds a server from its store.
    pub fn load(config: ChildConfig, mut store: Store) -> Result<Server> {
        let options = &config.options;
        let pool = PoolId(parse_hex(&options.pool_id)?);
        let mut random = [0; 44];
        clock::entropy(&mut random)?;
        let session = SessionId(random[..16].try_into().expect("16 bytes"));
        let hash_seed = u64::from_le_bytes(random[16..24].try_into().expect("8 bytes"));
        let home_seed = u32::from_le_bytes(random[24..28].try_into().expect("4 bytes"));
        let newcomers = u64::from_le_bytes(random[28..36].try_into().expect("8 bytes"));
        let coordinator = options.coordinator.is_none().then_some(CoordinatorConfig {
            pool,
            hash_seed,
            slots: options.slots,
            servers_expected: options.servers,
            coordinator: ServerId(options.server),
        });
        let life = u64::from_le_bytes(random[36..].try_into().expect("8 bytes"));
        let now = clock::instant();
        let durable = Durable::load(&mut store, now)?;
        let leases = LeaseDesk::new(durable.gives_leases, now);
        let made_before = durable.all_names().map(|names| (names.slot(), names.next_counter()));
        let data = DataDesk::new(durable.pages.leases_after().made_before(made_before), life, now);
        let keys = KeyDesk::load(&mut store, options)?;
        let membership = Membership::load(&mut store, coordinator, home_seed)?;
        let label = format!("server {} (pid {})", options.server, std::process::id());
        let server = Server {
            me: ServerId(options.server),
            host: this_host()?,
            pool,
            owner: Credentials::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            peers: Peers::new(keys.secret().peer_key(), session, label),
            keys,
            callers: Rc::new(Callers::new()),
            newcomers: Newcomers::new(newcomers),
            store: RefCell::new(store),
            durable: RefCell::new(durable),
            membership,
            deliveries: Deliveries::default(),
            spreading: Spreading::default(),
            events: EventQueues::default(),
            lane_desk: LaneDesk::default(),
            leases,
            data,
            delegations: DelegationDesk::default(),
            deadlocks: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            counts: Counts::default(),
            stopping: Notify::new(),
            session_began: Notify::new(),
            snapshot_began: Notify::new(),
            waiting: RefCell::default(),
            noticed: Cell::default(),
            notices_again: Cell::default(),
            started: now,
            config,
        };
        server.count_delegations();
        Ok(server)
    }

    /// Refuses a request whose session ended while it waited: the session's traces are gone from the slots,
    /// and nothing would remove new ones.
    pub fn check_session(&self, session: SessionId) -> Result<()> {
        if self.durable.borrow().sessions.contains(session) {
            return Ok(());
        }
        Err(session_over())
    }

    /// Notifies every waiting request of a session that there will be no answer.
    pub fn session_ended(&self, session: SessionId) {
        self.callers.end_session(session);
        self.counts.forget(session);
        self.events.end(session);
        self.lane_desk.traffic.borrow_mut().end_session(session);
        self.lane_desk.acknowledged.borrow_mut().end_session(session);
        self.leases.end_session(session);
        self.data.end_session(session);
        self.delegations.end_session(session);
        self.count_delegations();
        self.waiting.borrow_mut().retain(|token, sender| {
            let stays = token.session != session && !sender.is_closed();
            if !stays {
                // Sending consumes the sender; its entry in the table goes as well.
                let _ = std::mem::replace(sender, oneshot::channel().0).send(Err(session_over()));
            }
            stays
        });
    }

    /// Whether a slot has an answer for a mutation already, or will have.
    pub fn has_met(&self, slot: Slot, token: Token) -> bool {
        self.durable.borrow().names(slot).is_some_and(|names| names.has_met(token))
    }

    /// Queries a slot.
    pub fn query<'a, Q: Query>(
        self: &Rc<Self>,
        by: impl Into<AskedBy<'a>>,
        slot: Slot,
        query: &Q,
    ) -> Result<Q::Reply> {
        self.ensure_slot(slot)?;
        let durable = self.durable.borrow();
        durable.names(slot).expect("the slot was made sure of").query(by, query)
    }

    /// Queries this server's own slot about a file.
    pub fn query_inode(self: &Rc<Self>, request: QueryInode) -> Outcome<InodeAnswer> {
        let mut answer = self.query(&self.owner, request.inode.slot(), &request)?;
        answer.kept_by = self.late_with_inline(request.inode, answer.place);
        Ok(answer)
    }

    /// Answers a request with an error.
    pub fn refuse(&self, connection: &mut Connection, header: &Header, refusal: &Refusal) {
        let mut body = ErrorBody::new(&refusal.error);
        body.map = refusal.map.as_deref().cloned();
        let mut reply = header.reply(self.membership.epoch());
        reply.flags |= flags::ERROR;
        connection.queue_reply(reply, &encode_body(&body), &[]);
    }

    /// The status of this server.
    pub fn status(&self) -> ServerStatus {
        let usage = self.store.borrow().usage();
        let durable = self.durable.borrow();
        ServerStatus {
            server: self.me,
            pid: std::process::id(),
            supervisor_pid: self.config.supervisor_pid,
            restarts: self.config.restarts,
            uptime_millis: self.started.elapsed().as_millis() as u64,
            epoch: self.epoch(),
            trusts_network: self.config.options.trust_network,
            store_bytes: usage.size_bytes,
            used_bytes: usage.used_bytes,
            meta_bytes: usage.meta_bytes,
            files_free_bytes: usage.free_for_lanes_bytes,
            reserved_bytes: usage.reserved_bytes,
            inodes: durable.inodes(),
            inodes_max: self.config.options.inodes_max,
            lanes: durable.all_lanes().map(|table| table.len() as u64).sum(),
            locks: durable.all_names().map(|state| state.locks_held()).sum(),
            lock_waits: durable.all_names().map(|state| state.locks_awaited()).sum(),
            barrier_waits: durable.all_names().map(|state| state.barrier_waits()).sum(),
            change_waits: self.lane_desk.traffic.borrow().waits(),
            sessions: durable.sessions.len() as u32,
            connections: self.counters.connections.get(),
            read_bytes: self.counters.read_bytes.get(),
            written_bytes: self.counters.written_bytes.get(),
            requests: self.counters.requests.get(),
            notes: self.config.store_notes.clone(),
        }
    }

    fn epoch(&self) -> Epoch {
        self.membership.epoch()
    }
}

fn session_over() -> Error {
    Error::new(ErrorKind::Stale, "the session has ended while this request was under way")
}

fn parse_hex(text: &str) -> Result<[u8; 16]> {
    let refuse = || Error::new(ErrorKind::Invalid, format!("'{text}' is not 32 hex digits"));
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return Err(refuse());
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| refuse())?;
    }
    Ok(bytes)
}

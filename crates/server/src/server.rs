//! The server's state and its one way of changing it.
//!
//! Everything runs on one thread: state is in cells that are never borrowed across an await.
//!
//! Invariant: a client hears of a mutation only after its record is in the log.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Redirect, Result, ServerId, SessionId, Slot};
use ramlace_cluster::CoordinatorConfig;
use ramlace_namespace::{Command, DeliveryAnswer, Effect, Op, Origin, Query, Reply, Room};
use ramlace_slot::{SlotBirth, SlotChange};
use ramlace_store::Store;
use ramlace_transport::Failure;
use ramlace_transport::nonblocking::{Connection, Newcomers};
use ramlace_wire::locks::Event;
use ramlace_wire::peer::{InodeAnswer, QueryInode, Token};
use ramlace_wire::session::ServerStatus;
use ramlace_wire::{ClusterMap, Credentials, ErrorBody, Header, HostId, PoolId, encode_body, flags};
use tokio::sync::{Notify, oneshot};

use crate::callers::Callers;
use crate::clock;
use crate::config::ChildConfig;
use crate::coordination::Watched;
use crate::data_leases::DataDesk;
use crate::deliveries::{Deliveries, owe_deliveries};
use crate::durable::{Durable, Effects};
use crate::events::EventQueues;
use crate::keys::KeyDesk;
use crate::lanes::LaneDesk;
use crate::leases::LeaseDesk;
use crate::membership::Membership;
use crate::metrics::Counts;
use crate::peers::Peers;
use crate::record::Record;
use crate::spread::Spreading;

/// A request that cannot be done: why, and with Moved the newer map.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub error: Error,
    /// The newer map.
    pub map: Option<Rc<ClusterMap>>,
}

/// What becomes of a request.
pub type Outcome<T> = std::result::Result<T, Refusal>;

impl Refusal {
    /// The slot is somebody else's.
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

/// What a server has done since it started.
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
    /// What it was told.
    pub config: ChildConfig,
    /// Its number.
    pub me: ServerId,
    /// The machine it runs on.
    pub host: HostId,
    /// The pool.
    pub pool: PoolId,
    /// The user whose pool this is: the one whose process this is.
    pub owner: Credentials,
    /// Whom it lets in.
    pub keys: KeyDesk,
    /// Who is connected.
    pub callers: Rc<Callers>,
    /// Who has not proved anything yet.
    pub newcomers: Newcomers,
    /// The other servers.
    pub peers: Peers,
    /// The memory.
    pub store: RefCell<Store>,
    /// What outlives the process.
    pub durable: RefCell<Durable>,
    /// The map.
    pub membership: Membership,
    /// What slots owe each other.
    pub deliveries: Deliveries,
    /// Directories that it spreads over slots.
    pub spreading: Spreading,
    /// What sessions wait to hear.
    pub events: EventQueues,
    /// Writes under way in lanes, and who waits for changes of their bytes.
    pub lane_desk: LaneDesk,
    /// What mounts may believe without asking.
    pub leases: LeaseDesk,
    /// Whose kernels have pages of which bytes.
    pub data: DataDesk,
    /// Held while a cycle of waits is looked for.
    pub deadlocks: tokio::sync::Mutex<()>,
    /// What it has done.
    pub counters: Counters,
    /// The same, message by message and session by session.
    pub counts: Counts,
    /// Told when the server shall end.
    pub stopping: Notify,
    /// Told when a session begins, so that its silence is noticed.
    pub session_began: Notify,
    /// Told when a snapshot is under way.
    pub snapshot_began: Notify,
    waiting: RefCell<HashMap<Token, oneshot::Sender<Result<Reply>>>>,
    /// The map whose lost slots were noticed last.
    noticed: Cell<Epoch>,
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
        Ok(Server {
            me: ServerId(options.server),
            host: host_id()?,
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
            deadlocks: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            counts: Counts::default(),
            stopping: Notify::new(),
            session_began: Notify::new(),
            snapshot_began: Notify::new(),
            waiting: RefCell::default(),
            noticed: Cell::default(),
            started: now,
            config,
        })
    }

    /// Logs a record, applies it, and sets going what follows from it.
    pub fn commit(self: &Rc<Self>, record: &Record) -> Result<Vec<Effect>> {
        let watched = self.watched_by(record);
        let (_, effects) = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().commit(&mut store, record, clock::instant())?
        };
        Ok(self.follow(&watched, effects))
    }

    /// Logs something about the server alone: nothing follows from it.
    pub fn commit_own(&self, record: &Record) -> Result<()> {
        let committed = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().commit(&mut store, record, clock::instant())
        };
        committed.map_err(|error| error.context(self.me))?;
        if self.durable.borrow().snapshot.is_some() {
            self.snapshot_began.notify_one();
        }
        Ok(())
    }

    /// Logs the end of a session, and sets going what follows from it.
    pub fn commit_session_end(self: &Rc<Self>, session: SessionId) -> Result<()> {
        let watched = self.watched_by_all();
        let effects = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().end_session(&mut store, session, clock::now(), clock::instant())?
        };
        self.follow(&watched, effects);
        Ok(())
    }

    /// Sets going what follows from records; what nobody here cares for comes back.
    fn follow(self: &Rc<Self>, watched: &Watched, effects: Effects) -> Vec<Effect> {
        if self.durable.borrow().snapshot.is_some() {
            self.snapshot_began.notify_one();
        }
        self.note_homes(watched);
        for (slot, effect) in effects.lanes {
            self.note_effect(slot, effect);
        }
        let mut others = owe_deliveries(self, effects.names);
        others.retain(|effect| {
            !self.leases.note(effect) && !self.answer_waiting(effect) && !self.tell_event(effect)
        });
        others
    }

    /// Gives a slot a command. A peer's command is answered at once; a client's answer goes to
    /// whoever waits for its token.
    pub fn submit(self: &Rc<Self>, slot: Slot, command: Command) -> Result<Option<Result<DeliveryAnswer>>> {
        self.ensure_slot(slot)?;
        let full = self.durable.borrow().inodes() >= self.config.options.inodes_max;
        let room = if full { Room::None } else { Room::ForInodes };
        let effects = self.commit(&Record::command(slot, command, room))?;
        Ok(effects.into_iter().find_map(|effect| match effect {
            Effect::PeerReply(outcome) => Some(outcome),
            _ => None,
        }))
    }

    /// Gives a slot a client's command and waits for its answer, which may depend on other slots.
    pub async fn mutate(self: &Rc<Self>, slot: Slot, token: Token, command: Command) -> Result<Reply> {
        self.check_session(token.session)?;
        self.check_kept(slot, token, &command)?;
        let (sender, receiver) = oneshot::channel();
        // A retry takes the place of its first attempt, whose connection is gone.
        self.waiting.borrow_mut().insert(token, sender);
        if let Err(error) = self.submit(slot, command) {
            self.waiting.borrow_mut().remove(&token);
            return Err(error);
        }
        let superseded = || Error::new(ErrorKind::Retry, "a later attempt of the same request took over");
        receiver.await.unwrap_or_else(|_| Err(superseded()))
    }

    /// Refuses one more mutation of a session that keeps too much by acknowledging too little.
    fn check_kept(&self, slot: Slot, token: Token, command: &Command) -> Result<()> {
        let Origin::Client { acknowledged_below, .. } = command.origin else { return Ok(()) };
        let durable = self.durable.borrow();
        match durable.names(slot) {
            // It is answered from what is kept.
            Some(state) if state.has_met(token) => Ok(()),
            Some(state) => {
                durable.kept.check(token.session, state.kept_below(token.session, acknowledged_below))
            }
            None => durable.kept.check(token.session, 0),
        }
    }

    /// Refuses what a session asked for whose end came while the request waited: its traces are
    /// gone from the slots, and nobody would remove new ones.
    pub fn check_session(&self, session: SessionId) -> Result<()> {
        if self.durable.borrow().sessions.contains(session) {
            return Ok(());
        }
        Err(session_over())
    }

    /// Tells every request of a session that waits for an answer that there will be none.
    pub fn session_ended(&self, session: SessionId) {
        self.callers.end_session(session);
        self.counts.forget(session);
        self.events.end(session);
        self.lane_desk.traffic.borrow_mut().end_session(session);
        self.leases.end_session(session);
        self.data.end_session(session);
        self.waiting.borrow_mut().retain(|token, sender| {
            let stays = token.session != session && !sender.is_closed();
            if !stays {
                // Sending takes the sender itself; this place in the table goes with it.
                let _ = std::mem::replace(sender, oneshot::channel().0).send(Err(session_over()));
            }
            stays
        });
    }

    fn answer_waiting(&self, effect: &Effect) -> bool {
        let Effect::Reply { token, outcome } = effect else { return false };
        if let Some(sender) = self.waiting.borrow_mut().remove(token) {
            // The requester may have gone; a retry finds the answer in the slot's reply cache.
            let _ = sender.send(outcome.clone());
        }
        true
    }

    fn tell_event(&self, effect: &Effect) -> bool {
        let (session, event) = match *effect {
            Effect::LockGranted { session, inode, wait, file } => {
                (session, Event::LockGranted { inode, wait, file })
            }
            Effect::BarrierPassed { session, wait, round } => (session, Event::BarrierPassed { wait, round }),
            _ => return false,
        };
        self.events.push(session, event);
        true
    }

    /// Whether a slot has an answer for a mutation already, or will have.
    pub fn has_met(&self, slot: Slot, token: Token) -> bool {
        self.durable.borrow().names(slot).is_some_and(|names| names.has_met(token))
    }

    /// Asks a slot something.
    pub fn query(
        self: &Rc<Self>,
        who: &Credentials,
        slot: Slot,
        query: &Query,
    ) -> Result<ramlace_namespace::Answer> {
        self.ensure_slot(slot)?;
        let durable = self.durable.borrow();
        durable.names(slot).expect("the slot was made sure of").query(who, query)
    }

    /// Asks this server's own slot about a file.
    pub fn query_inode(self: &Rc<Self>, request: QueryInode) -> Outcome<InodeAnswer> {
        match self.query(&self.owner, request.inode.slot(), &Query::QueryInode(request))? {
            ramlace_namespace::Answer::Inode(answer) => Ok(answer),
            _ => unreachable!("a slot answers what it was asked"),
        }
    }

    /// When the map has changed: lets go of what is held for slots that were lost since.
    pub fn notice_lost_slots(self: &Rc<Self>) -> Result<()> {
        let map = self.membership.map()?;
        if self.noticed.replace(map.epoch) == map.epoch {
            return Ok(());
        }
        let began = |slot| map.chain(slot).map_or(map.epoch, |chain| chain.complete_since);
        let lost: Vec<(Slot, Slot, Epoch)> = self
            .durable
            .borrow()
            .all_names()
            .flat_map(|state| {
                state.lost_coordinators(began).into_iter().map(|(lost, began)| (state.slot(), lost, began))
            })
            .collect();
        for (slot, coordinator, began) in lost {
            let op = Op::CoordinatorLost { coordinator, began };
            self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op })?;
        }
        Ok(())
    }

    /// A slot's state begins when something first happens in it.
    fn ensure_slot(self: &Rc<Self>, slot: Slot) -> Result<()> {
        if self.durable.borrow().names(slot).is_some() {
            return Ok(());
        }
        let map = self.membership.map()?;
        let chain = map
            .chain(slot)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("this pool has no {slot}")))?;
        let birth = SlotBirth {
            slots: map.slots(),
            began: chain.complete_since,
            hash_seed: map.hash_seed,
            owner: self.owner.owner(),
            now: clock::now(),
        };
        self.commit(&Record::Slot { slot, change: SlotChange::Born(birth) }).map(drop)
    }

    /// Answers a request with an error.
    pub fn refuse(&self, connection: &mut Connection, header: &Header, refusal: &Refusal) {
        let mut body = ErrorBody::new(&refusal.error);
        body.map = refusal.map.as_deref().cloned();
        let mut reply = header.reply(self.membership.epoch());
        reply.flags |= flags::ERROR;
        connection.queue_reply(reply, &encode_body(&body), &[]);
    }

    /// What this server holds and does.
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

/// The kernel's boot id: the same for every process of this machine, until it restarts.
fn host_id() -> Result<HostId> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|error| Error::from_io(&error, path))?;
    Ok(HostId(parse_hex(&text.trim().replace('-', ""))?))
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

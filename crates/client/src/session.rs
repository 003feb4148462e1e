//! A process's session with a pool: its map of the servers, its connections, and the numbers of its requests.

pub(crate) mod behind;
pub(crate) mod calls;
pub(crate) mod descriptors;
pub(crate) mod exchange;
pub(crate) mod heard;
pub(crate) mod heart;
pub(crate) mod holders;
pub(crate) mod judging;
pub(crate) mod lines;
pub(crate) mod liveness;
pub(crate) mod many;
pub(crate) mod openings;
pub(crate) mod outbox;
pub(crate) mod patience;
pub(crate) mod pending;
pub(crate) mod places;
pub(crate) mod promises;
pub(crate) mod reach;
pub(crate) mod retry;
pub(crate) mod sending;
pub(crate) mod sequences;
pub(crate) mod settings;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, SessionId, Slot, limits};
use ramlace_sync::{Mutex, MutexGuard, RwLock};
use ramlace_transport::this_host;
use ramlace_wire::cluster::GetMap;
use ramlace_wire::namespace::LayoutWish;
use ramlace_wire::{ClusterMap, Header, HostId, LayoutHints, Permit};

use crate::callbacks::Doubt;
use crate::session::behind::{Behind, Kept};
use crate::session::descriptors::Descriptors;
use crate::session::heart::Heart;
use crate::session::lines::Server;
use crate::session::outbox::Outbox;
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;
use crate::session::pending::{Acknowledged, Message};
use crate::session::sequences::{Sequences, Ticket, Unacknowledged};
use crate::session::settings::Settings;

/// The layer above a session: it sends the session's pending messages, and gets its notifications.
pub(crate) trait OnSession: Send + Sync {
    /// Delivers a pending message to its home. A message that the home refuses counts as delivered: the home
    /// does not know its subject any more.
    ///
    /// Errors: it was not delivered.
    fn send(self: Arc<Self>, message: &Message, deadline: Instant) -> Result<Acknowledged>;

    /// A change in this slot was abandoned and may still be done; or that doubt has ended.
    fn doubts(&self, slot: Slot, doubt: Doubt);

    /// A promise was answered, or lost.
    fn is_kept(&self, kept: &Kept<'_>);

    /// A slot was given back: nothing is promised there any more.
    fn is_given_back(&self, slot: Slot);

    /// Closes inodes whose close was deferred and is due, as far as there is time until then; when the next one is due.
    fn close_due(self: Arc<Self>, until: Instant) -> Option<Instant>;

    /// A lane has refused this permit: returns the present one, if it is another.
    ///
    /// Errors: those of the file's home.
    fn renew_permit(self: Arc<Self>, inode: InodeId, refused: Option<Permit>) -> Result<Option<Permit>>;
}

/// One process's session: its identity, its connections and its map. What it means for files, locks and
/// kernels belongs to the layer above. Connections are made when they are needed.
///
/// Lock order: `beginning`, `map`, `servers`, then those of one server ([`lines`]). Of these only
/// `beginning`, and that of a server's heartbeat connection, are held while a request is under way. Those of
/// `sequences`, `outbox`, `behind` and `heart` are taken alone.
pub(crate) struct Session {
    pub(crate) settings: Arc<Settings>,
    id: SessionId,
    pub(crate) host: Option<HostId>,
    map: RwLock<Option<Arc<ClusterMap>>>,
    /// Held while the first map is fetched.
    beginning: Mutex<()>,
    servers: RwLock<Vec<Arc<Server>>>,
    pub(crate) sequences: Sequences,
    /// Answers that servers keep though they have arrived.
    pub(crate) unacknowledged: Unacknowledged,
    calls: AtomicU32,
    /// Why the session is over, once it is.
    pub(crate) ended: OnceLock<Error>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) heart: Arc<Heart>,
    /// Messages that servers have not acknowledged yet.
    pub(crate) outbox: Outbox,
    /// Promised changes that are still to be sent.
    pub(crate) behind: Arc<Behind>,
    /// The layer above, once it is set.
    above: OnceLock<Weak<dyn OnSession>>,
}

impl Session {
    /// A session that no server knows yet.
    pub(crate) fn new(settings: Arc<Settings>, descriptors: &Arc<Descriptors>) -> Result<Arc<Session>> {
        let mut id = [0; 16];
        crate::entropy::fill(&mut id)?;
        Ok(Arc::new(Session {
            id: SessionId(id),
            host: this_host().ok(),
            settings,
            map: RwLock::new(None),
            beginning: Mutex::new(()),
            servers: RwLock::default(),
            sequences: Sequences::default(),
            unacknowledged: Unacknowledged::default(),
            calls: AtomicU32::new(1),
            ended: OnceLock::new(),
            descriptors: descriptors.clone(),
            heart: Arc::default(),
            outbox: Outbox::default(),
            behind: Arc::default(),
            above: OnceLock::new(),
        }))
    }

    /// Sets the layer above, once.
    pub(crate) fn carry(&self, above: Weak<dyn OnSession>) {
        let _ = self.above.set(above);
    }

    /// The layer above, as long as it lives.
    pub(crate) fn above(&self) -> Option<Arc<dyn OnSession>> {
        self.above.get()?.upgrade()
    }

    /// The deadline of an operation that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.patience()
    }

    /// How long a call may take.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.deadline_millis.load(Ordering::Relaxed).into())
    }

    /// Whether calls no longer wait for other machines.
    pub(crate) fn waits_are_over(&self) -> bool {
        self.settings.waits_are_over.load(Ordering::Relaxed)
    }

    /// Whether the session is about to end and to close all its files.
    pub(crate) fn ends(&self) -> bool {
        self.settings.ends.load(Ordering::Relaxed)
    }

    /// Whether local shortcuts may be used.
    pub(crate) fn local(&self) -> bool {
        self.settings.local
    }

    /// The map; fetches the first one.
    pub(crate) fn map(self: &Arc<Session>) -> Result<Arc<ClusterMap>> {
        if let Some(error) = self.ended.get() {
            return Err(error.clone());
        }
        if let Some(map) = &*self.map.read() {
            return Ok(map.clone());
        }
        self.begin()
    }

    pub(crate) fn known_map(&self) -> Option<Arc<ClusterMap>> {
        self.map.read().clone()
    }

    pub(crate) fn lock_beginning(&self) -> MutexGuard<'_, ()> {
        self.beginning.lock()
    }

    /// Stores a map, unless a newer one is known; returns the newest.
    pub(crate) fn adopt_map(&self, map: ClusterMap) -> Result<Arc<ClusterMap>> {
        ramlace_cluster::validate(&map)?;
        let mut known = self.map.write();
        if let Some(known) = &*known
            && (known.pool != map.pool || known.epoch > map.epoch)
        {
            return Ok(known.clone());
        }
        let mut servers = self.servers.write();
        for entry in &map.servers {
            match servers.get(usize::from(entry.server.0)) {
                Some(server) => server.update(entry),
                None => servers.push(Arc::new(Server::new(entry))),
            }
        }
        Ok(known.insert(Arc::new(map)).clone())
    }

    /// Asks for the newest map: the coordinator first, then any server that answers.
    pub(crate) fn refresh_map(self: &Arc<Session>, deadline: Instant) -> Result<Arc<ClusterMap>> {
        self.refresh_map_without(None, deadline)
    }

    /// The same, except for a server that is known not to answer now.
    pub(crate) fn refresh_map_without(
        self: &Arc<Session>,
        silent: Option<ServerId>,
        deadline: Instant,
    ) -> Result<Arc<ClusterMap>> {
        let known = self.map()?;
        let others =
            known.servers.iter().map(|entry| entry.server).filter(|server| *server != known.coordinator);
        for id in std::iter::once(known.coordinator).chain(others) {
            let Ok(server) = self.server(id) else { continue };
            if Some(id) == silent
                || known.server(id).is_none_or(|entry| entry.forgotten)
                || (server.is_failing() && id != known.coordinator)
            {
                continue;
            }
            let soon = deadline.min(Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX));
            if let Ok(map) = self.try_server(&server, &GetMap {}, soon) {
                return self.adopt_map(map);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(known)
    }

    pub(crate) fn all_servers(&self) -> Vec<Arc<Server>> {
        self.servers.read().clone()
    }

    /// The server with this number.
    pub(crate) fn server(&self, id: ServerId) -> Result<Arc<Server>> {
        let servers = self.servers.read();
        servers.get(usize::from(id.0)).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("the pool has no {id}; 'ramlace status' shows its servers"),
            )
        })
    }

    /// The server that holds a slot.
    pub(crate) fn server_of(&self, map: &ClusterMap, slot: Slot) -> Result<Arc<Server>> {
        self.server(ramlace_cluster::route(map, slot)?.server)
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

    /// The layout wish for a new file: servers that do not answer at present get no lane. If `local`, neither
    /// do those of other machines, unless there are none here.
    pub(crate) fn layout_wish(&self, hints: LayoutHints, stripe_unit_min: u64, local: bool) -> LayoutWish {
        let servers = self.servers.read();
        let is_here = |server: &Arc<Server>| self.host == Some(server.entry().host) && !server.is_failing();
        let local = local && servers.iter().any(is_here);
        let gets_none = |server: &&Arc<Server>| server.is_failing() || (local && !is_here(server));
        let silent = servers.iter().filter(gets_none).map(|server| server.id).collect();
        LayoutWish { hints, stripe_unit_min, silent }
    }
}

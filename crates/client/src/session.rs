//! One process's session with a pool: its map, its servers, and what a request says of it.

pub(crate) mod behind;
pub(crate) mod calls;
pub(crate) mod descriptors;
pub(crate) mod heart;
pub(crate) mod holders;
pub(crate) mod host;
pub(crate) mod judging;
pub(crate) mod lines;
pub(crate) mod liveness;
pub(crate) mod openings;
pub(crate) mod outbox;
pub(crate) mod owed;
pub(crate) mod patience;
pub(crate) mod places;
pub(crate) mod promises;
pub(crate) mod reach;
pub(crate) mod retry;
pub(crate) mod sequences;
pub(crate) mod settings;
pub(crate) mod telling;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, SessionId, Slot, limits};
use ramlace_sync::{Mutex, MutexGuard, RwLock};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::namespace::LayoutWish;
use ramlace_wire::{ClusterMap, Header, HostId, LayoutHints, Permit};

use crate::hearers::Doubt;
use crate::session::behind::{Behind, Kept};
use crate::session::descriptors::Descriptors;
use crate::session::heart::Heart;
use crate::session::host::this_host;
use crate::session::lines::Server;
use crate::session::outbox::Outbox;
use crate::session::owed::{Heard, Message};
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;
use crate::session::sequences::{Sequences, Ticket};
use crate::session::settings::Settings;

/// What stands on a session: it tells servers what they are owed, and hears what the session hears.
pub(crate) trait OnSession: Send + Sync {
    /// Tells a home what it is owed. What a home refuses is told: it knows nothing of it any more.
    ///
    /// Errors: it did not hear.
    fn tell(self: Arc<Self>, message: &Message, deadline: Instant) -> Result<Heard>;

    /// A change in this slot was given up, and may be done yet; or that is over.
    fn doubts(&self, slot: Slot, doubt: Doubt);

    /// What has become of a promise.
    fn is_kept(&self, kept: &Kept<'_>);

    /// A lane has refused this permit: the one that there is by now, if it is another.
    ///
    /// Errors: those of the file's home.
    fn renew_permit(self: Arc<Self>, inode: InodeId, refused: Option<Permit>) -> Result<Option<Permit>>;
}

/// One process's session: who it is, its connections and its map. What it means for files, locks and kernels is
/// the matter of who stands on it. Connections are made when they are needed.
///
/// Order of its locks: `beginning`, `map`, `servers`, then those of one server ([`lines`]). Of these only `beginning`, and the connection of a server's
/// heart, are held while a request is under way. Those of `sequences`, `outbox`, `behind` and `heart` are taken alone.
pub(crate) struct Session {
    pub(crate) settings: Arc<Settings>,
    id: SessionId,
    pub(crate) host: Option<HostId>,
    map: RwLock<Option<Arc<ClusterMap>>>,
    /// Held while the first map is fetched.
    beginning: Mutex<()>,
    servers: RwLock<Vec<Arc<Server>>>,
    pub(crate) sequences: Sequences,
    calls: AtomicU32,
    /// Why the session is over, once it is.
    pub(crate) ended: OnceLock<Error>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) heart: Arc<Heart>,
    /// What servers have yet to hear.
    pub(crate) outbox: Outbox,
    /// What was promised, and is yet to be sent.
    pub(crate) behind: Arc<Behind>,
    /// What stands on it, once it is there.
    above: OnceLock<Weak<dyn OnSession>>,
}

impl Session {
    /// A session that nobody has heard of yet.
    pub(crate) fn new(settings: Arc<Settings>, descriptors: &Arc<Descriptors>) -> Result<Arc<Session>> {
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
            descriptors: descriptors.clone(),
            heart: Arc::default(),
            outbox: Outbox::default(),
            behind: Arc::default(),
            above: OnceLock::new(),
        }))
    }

    /// Says once who stands on it.
    pub(crate) fn carry(&self, above: Weak<dyn OnSession>) {
        let _ = self.above.set(above);
    }

    /// Who stands on it, as long as somebody does.
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

    /// Whether no call waits for other machines any more.
    pub(crate) fn waits_are_over(&self) -> bool {
        self.settings.waits_are_over.load(Ordering::Relaxed)
    }

    /// Whether its end closes whatever is open, and follows.
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

    /// Takes a map in, unless a newer one is known; returns the newest.
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

    /// Asks for the newest map: the coordinator first, then whoever answers.
    pub(crate) fn refresh_map(self: &Arc<Session>, deadline: Instant) -> Result<Arc<ClusterMap>> {
        self.refresh_map_without(None, deadline)
    }

    /// The same without a server that is known not to answer now.
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

    /// The server that answers for a slot.
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

    /// What is wished for a new file's layout; servers that do not answer at present get no lane. Nor do those of other
    /// machines, when it shall be `local` and there are any here.
    pub(crate) fn layout_wish(&self, hints: LayoutHints, stripe_unit_min: u64, local: bool) -> LayoutWish {
        let servers = self.servers.read();
        let is_here = |server: &Arc<Server>| self.host == Some(server.entry().host) && !server.is_failing();
        let local = local && servers.iter().any(is_here);
        let gets_none = |server: &&Arc<Server>| server.is_failing() || (local && !is_here(server));
        let silent = servers.iter().filter(gets_none).map(|server| server.id).collect();
        LayoutWish { hints, stripe_unit_min, silent }
    }
}

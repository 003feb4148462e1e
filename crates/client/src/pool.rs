//! A connected pool: what every other call starts from.

pub(crate) mod connecting;
pub(crate) mod directory;
pub(crate) mod key_source;
pub(crate) mod keys;
pub(crate) mod locator;
pub(crate) mod options;
pub(crate) mod reached;
pub(crate) mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, InodeId, Name, Result, ServerId};
use ramlace_wire::cluster::ForgetServer;
use ramlace_wire::holders::{Holders, ListHolders};
use ramlace_wire::metrics::{GetMetrics, Metrics};
use ramlace_wire::session::{GetServerStatus, ServerStatus, StopServer};
use ramlace_wire::{ClusterMap, Request, ServerEntry};

use crate::bytes::keeping::ReadCache;
use crate::callbacks::Callbacks;
use crate::client::Client;
use crate::fork::PerFork;
use crate::names::raw::Raw;
use crate::pool::locator::PoolName;
use crate::pool::options::ConnectOptions;
use crate::pool::sessions::Sessions;
use crate::session::judging::STATUS_ADVICE;
use crate::session::pending::Home;
use crate::session::settings::Settings;

/// A connected pool. Clones share one session; the session ends with the last of them and of the files opened
/// through them. After a fork the child uses a session of its own.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    /// How the pool was named: by its name or an address; a default is resolved.
    reached: PoolName,
    callbacks: Arc<Callbacks>,
    sessions: PerFork<Sessions>,
    cache: Option<Arc<dyn ReadCache>>,
}

/// The status of one server, or why there is none.
#[derive(Debug)]
pub struct ServerReport {
    /// The server as the map knows it.
    pub entry: ramlace_wire::ServerEntry,
    /// What it answered.
    pub status: Result<ServerStatus>,
}

/// What each server says, or why it says nothing.
pub type OfEach<T> = Vec<(ServerEntry, Result<T>)>;

/// An answer, and when it came.
#[derive(Clone, Debug)]
pub struct Timed<T> {
    /// The answer.
    pub reply: T,
    /// When it came.
    pub at: Instant,
}

/// What a pool holds, over all servers that answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes lent.
    pub total_bytes: u64,
    /// Bytes taken by files and by the namespace.
    pub used_bytes: u64,
    /// Bytes not taken.
    pub free_bytes: u64,
    /// Bytes that one more file can have if its lanes lie on all servers, as they usually do: its lanes are
    /// equally long, so the server with the least room counts for each. Memory reserved for the servers' logs
    /// is not in it.
    pub file_bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// The limit of inodes.
    pub inodes_max: u64,
    /// Files that one more directory can have at least: they live with the server that has the directory,
    /// until it is large and is spread.
    pub directory_inodes: u64,
    /// Servers that did not answer; their bytes are not in these sums.
    pub silent_servers: u32,
}

/// The failure of one server in a report of all, without the advice to look at all servers.
fn without_advice(error: Error) -> Error {
    match error.message().strip_suffix(STATUS_ADVICE) {
        Some(text) => Error::new(error.kind(), text),
        None => error,
    }
}

impl Pool {
    /// A pool without a session that any server knows yet.
    pub(crate) fn new(options: &ConnectOptions, cache: Option<Arc<dyn ReadCache>>) -> Result<Pool> {
        let (settings, reached) = options.resolve()?;
        let (settings, callbacks) = (Arc::new(settings), Arc::default());
        let sessions = PerFork::with(Sessions::new(&settings, &callbacks)?);
        Ok(Pool { shared: Arc::new(Shared { settings, reached, callbacks, sessions, cache }) })
    }

    /// Whether this process's session with the pool has ended: the servers received nothing from it for 10
    /// seconds, for example because the machine was suspended. From then on every call through it, and
    /// through the files opened in it, is Stale, until [`Pool::reconnect`]. Sends no request: a session that
    /// the servers have ended counts as ended once a call, or a heartbeat, has returned Stale.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.sessions.get().is_some_and(|sessions| sessions.current().is_ended())
    }

    /// Begins a new session when this process's has ended, for this pool and all its clones, and returns
    /// whether it did. Files opened before stay Stale: what they held is gone. Calls by path, by inode and
    /// new opens use the new session.
    ///
    /// Errors: as [`Pool::connect`]; the old session stays then, and this may be tried again.
    pub fn reconnect(&self) -> Result<bool> {
        self.sessions()?.renew()
    }

    /// What does not change while the pool is connected.
    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The read cache, if one was asked for.
    pub(crate) fn cache(&self) -> Option<&dyn ReadCache> {
        self.shared.cache.as_deref()
    }

    /// Pending messages of this process's session to servers, such as that files were written or closed: they
    /// are sent a second later, or when their home answers again.
    ///
    /// Errors: those of beginning a session.
    pub fn pending(&self) -> Result<usize> {
        Ok(self.session()?.outbox.by_home().values().sum())
    }

    /// The same by the server that each is for, as far as the map known here shows.
    ///
    /// Errors: those of beginning a session.
    pub fn pending_by_server(&self) -> Result<BTreeMap<ServerId, usize>> {
        let session = self.session()?;
        let map = session.known_map();
        let mut counts = BTreeMap::new();
        for (home, messages) in session.outbox.by_home() {
            let server = match home {
                Home::Server(server) => Some(server),
                Home::Slot(slot) => map.as_ref().and_then(|map| map.primary(slot)),
            };
            if let Some(server) = server {
                *counts.entry(server).or_default() += messages;
            }
        }
        Ok(counts)
    }

    /// The callbacks for what servers recall.
    pub(crate) fn callbacks(&self) -> &Callbacks {
        &self.shared.callbacks
    }

    /// How the pool was named when it was connected: by its name or an address; a default is resolved.
    #[must_use]
    pub fn reached(&self) -> &PoolName {
        &self.shared.reached
    }

    /// This process's session.
    pub(crate) fn session(&self) -> Result<Arc<Client>> {
        Ok(self.sessions()?.current())
    }

    /// This process's sessions; a forked child opens its own, and closes what it inherited.
    fn sessions(&self) -> Result<&Sessions> {
        if let Some(sessions) = self.shared.sessions.get() {
            return Ok(sessions);
        }
        let Shared { settings, callbacks, sessions, .. } = &*self.shared;
        let sessions = sessions.get_or_make(|| Sessions::new(settings, callbacks))?;
        self.shared.sessions.inherited().for_each(Sessions::close_inherited_sockets);
        Ok(sessions)
    }

    /// Operations by inode, for callers that resolve paths themselves (the mount).
    #[must_use]
    pub fn raw(&self) -> Raw<'_> {
        self.raw_by(&[])
    }

    /// The same by a path: a change of an entry is done only while the path leads to its directory.
    pub(crate) fn raw_by<'a>(&'a self, by_path: &'a [Name]) -> Raw<'a> {
        Raw { pool: self, by_path }
    }

    /// The cluster map as this client knows it.
    pub fn map(&self) -> Result<Arc<ClusterMap>> {
        self.session()?.map()
    }

    /// Asks the servers for the newest cluster map.
    pub fn refresh_map(&self) -> Result<Arc<ClusterMap>> {
        let session = self.session()?;
        session.refresh_map(session.deadline())
    }

    /// Sends a request to one server, whatever its slots: for requests about servers and not about files,
    /// which no other method covers. May send it more than once until there is a reply.
    ///
    /// Errors: `HostDown` when it does not answer by the deadline; those of its reply.
    pub fn ask_server<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        let session = self.session()?;
        session.ask_server(server, request, session.deadline())
    }

    /// The status of one server.
    pub fn server_status(&self, server: ServerId) -> Result<ServerStatus> {
        self.ask_server(server, &GetServerStatus {})
    }

    /// The status of every server that is not forgotten, ordered by number.
    pub fn status(&self) -> Result<Vec<ServerReport>> {
        let asked = self.ask_all(&GetServerStatus {})?;
        Ok(asked.into_iter().map(|(entry, status)| ServerReport { entry, status }).collect())
    }

    /// The metrics of every server that is not forgotten, counted since its process began, and when they came: servers
    /// answer at different times, and one that does not answer delays this. Ordered by number.
    pub fn metrics(&self) -> Result<OfEach<Timed<Metrics>>> {
        self.ask_all_noting_times(&GetMetrics {})
    }

    /// Which clients' kernels have which bytes, and which clients wait for which, for one file or for all;
    /// ordered by number.
    pub fn holders(&self, inode: Option<InodeId>) -> Result<OfEach<Holders>> {
        self.ask_all(&ListHolders { inode })
    }

    /// Sends every server the same request.
    fn ask_all<R>(&self, request: &R) -> Result<OfEach<R::Reply>>
    where
        R: Request + Sync,
        R::Reply: Send,
    {
        let answers = self.ask_all_noting_times(request)?;
        Ok(answers.into_iter().map(|(entry, answer)| (entry, answer.map(|timed| timed.reply))).collect())
    }

    /// The same, and when each answer came.
    fn ask_all_noting_times<R>(&self, request: &R) -> Result<OfEach<Timed<R::Reply>>>
    where
        R: Request + Sync,
        R::Reply: Send,
    {
        let map = self.refresh_map()?;
        let session = self.session()?;
        let ask = |entry: &ServerEntry| {
            let answer = session.ask_server(entry.server, request, session.deadline());
            answer.map(|reply| Timed { reply, at: Instant::now() })
        };
        let entries = map.servers.iter().filter(|entry| !entry.forgotten);
        // One thread for each: dead servers then cost one deadline together, not one each.
        std::thread::scope(|scope| {
            let asked: Vec<_> = entries.map(|entry| (entry.clone(), scope.spawn(|| ask(entry)))).collect();
            let answers = asked.into_iter().map(|(entry, asked)| {
                (entry, asked.join().expect("asking does not panic").map_err(without_advice))
            });
            Ok(answers.collect())
        })
    }

    /// The capacity of the pool: asks every server.
    pub fn statfs(&self) -> Result<Capacity> {
        let mut sum = Capacity { directory_inodes: u64::MAX, ..Capacity::default() };
        let (mut least_bytes, mut answering) = (u64::MAX, 0);
        for report in self.status()? {
            match report.status {
                Ok(status) => {
                    answering += 1;
                    least_bytes = least_bytes.min(status.files_free_bytes);
                    let inodes_left = status.inodes_max.saturating_sub(status.inodes);
                    sum.directory_inodes = sum.directory_inodes.min(inodes_left);
                    sum.total_bytes += status.store_bytes;
                    sum.used_bytes += status.used_bytes;
                    sum.free_bytes += status.store_bytes.saturating_sub(status.used_bytes);
                    sum.inodes += status.inodes;
                    sum.inodes_max = sum.inodes_max.saturating_add(status.inodes_max);
                }
                Err(_) => sum.silent_servers += 1,
            }
        }
        sum.file_bytes = if answering == 0 { 0 } else { least_bytes.saturating_mul(answering) };
        Ok(sum)
    }

    /// Stops a server gracefully; what it holds is lost.
    pub fn stop_server(&self, server: ServerId) -> Result<()> {
        self.ask_server(server, &StopServer {})
    }

    /// Gives a dead server's slots to the others, empty; returns the map's new epoch.
    pub fn forget_server(&self, server: ServerId) -> Result<Epoch> {
        let session = self.session()?;
        let coordinator = session.map()?.coordinator;
        let forgotten = session.ask_server(coordinator, &ForgetServer { server }, session.deadline())?;
        session.refresh_map(session.deadline())?;
        Ok(forgotten.epoch)
    }
}

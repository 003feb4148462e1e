//! How a session reaches servers: addresses, handshakes, and opening the session at each.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_transport::blocking::Connection;
use ramlace_transport::{Address, ClientKey, ConnectFailure};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::session::{OpenSession, SessionKind, SessionOpened};
use ramlace_wire::{ClusterMap, Request, ServerEntry};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::heart::Heart;
use crate::session::lines::{Line, Link, Server, Unanswered, roundtrip};
use crate::session::patience::HOLDERS_WAIT_MAX;
use crate::session::places::OnTurn;
use crate::session::settings::Seed;

/// The error text when no server of the pool could be reached.
pub const NOBODY_ANSWERS: &str = "no server of the pool answers ('ramlace status' shows them)";

type Connected<T> = std::result::Result<T, ConnectFailure>;

impl Session {
    /// Connects to any server of the pool, gets the map, and starts the heartbeat thread.
    pub(crate) fn begin(self: &Arc<Session>) -> Result<Arc<ClusterMap>> {
        let _beginning = self.lock_beginning();
        if let Some(map) = self.known_map() {
            return Ok(map);
        }
        let deadline = self.deadline();
        let mut backoff = Backoff::new(deadline);
        let (link, opened, map) = loop {
            match self.reach_any(deadline) {
                Err(ConnectFailure { error, refused: false })
                    if matches!(error.kind(), ErrorKind::Retry | ErrorKind::HostDown) =>
                {
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
            // An address given by hand is TCP; if there is a Unix socket, the next call uses that.
            if link.is_local() || self.socket_path(&server.entry()).is_none() {
                server.adopt(link);
            }
        }
        Heart::start(&self.heart, Arc::downgrade(self))?;
        Ok(map)
    }

    fn reach_any(&self, deadline: Instant) -> Connected<(Link, SessionOpened, ClusterMap)> {
        let mut last = Error::new(ErrorKind::Invalid, "the pool names no server");
        let mut refused = true;
        for seed in &self.settings.seeds {
            let here = seed.unix.iter().filter(|path| self.settings.local && path.exists());
            let addresses = here.cloned().map(Address::Unix).chain([Address::Tcp(seed.tcp.clone())]);
            for address in addresses {
                match self.reach(&address, seed, deadline) {
                    Ok(reached) => return Ok(reached),
                    Err(failure) => {
                        refused &= failure.refused;
                        // A server's refusal is more informative than another server's silence.
                        if last.kind() != ErrorKind::Denied {
                            last = failure.error;
                        }
                    }
                }
            }
        }
        if matches!(last.kind(), ErrorKind::HostDown | ErrorKind::TimedOut) {
            last = last.context(NOBODY_ANSWERS);
        }
        Err(ConnectFailure { error: last, refused })
    }

    fn reach(
        &self,
        address: &Address,
        seed: &Seed,
        deadline: Instant,
    ) -> Connected<(Link, SessionOpened, ClusterMap)> {
        let place = format!("the server at {}", seed.tcp);
        let tell = |error: Error| error.context(&place);
        let shaking = handshake_deadline(deadline);
        let greet = |key: &ClientKey| Connection::try_connect(address, key, seed.server, shaking);
        let connection = self.settings.key.connect(greet).map_err(|failure| failure.context(&place))?;
        let mut link = Link::new(connection, &self.descriptors);
        let opened = self.open_session(&mut link, false, deadline).map_err(tell)?;
        let header = self.header(GetMap::KIND, None, deadline, ramlace_base::Epoch(0));
        let map = roundtrip(&mut link, header, &GetMap {}, deadline).map_err(tell)?;
        Ok((link, opened, map))
    }

    fn open_session(&self, link: &mut Link, resume: bool, deadline: Instant) -> Result<SessionOpened> {
        let kind = if self.settings.for_users { SessionKind::Host } else { SessionKind::User };
        let request = OpenSession { kind, resume, label: self.label() };
        let header = self.header(OpenSession::KIND, None, deadline, ramlace_base::Epoch(0));
        roundtrip(link, header, &request, deadline).map_err(|error| match error.kind() {
            ErrorKind::Stale => self.end(&error),
            _ => error,
        })
    }

    /// The session's label, for people. A forked child has another process id.
    fn label(&self) -> String {
        format!("{} (process {})", self.settings.label, std::process::id())
    }

    /// A connection to a server for the calling thread, and the deadline for the request on it. A server that
    /// left a call unanswered up to its deadline has to show a sign of life first. If all connections are
    /// used by calls that wait for other machines, the wait for one goes on as long as the server lives, as
    /// it does for those calls' replies.
    pub(crate) fn line(
        &self,
        server: &Arc<Server>,
        deadline: Instant,
    ) -> std::result::Result<(Line, Instant), Unanswered> {
        self.line_in_turn(server, deadline, None)
    }

    /// The same; `on_turn` is told when it has to wait for its turn.
    pub(crate) fn line_in_turn(
        &self,
        server: &Arc<Server>,
        deadline: Instant,
        on_turn: Option<OnTurn<'_>>,
    ) -> std::result::Result<(Line, Instant), Unanswered> {
        if server.is_suspect() {
            self.probe(server, deadline)?;
        }
        let over = Instant::now() + HOLDERS_WAIT_MAX;
        let waits_longer = Cell::new(false);
        let longer = || {
            waits_longer.set(Instant::now() < over && !self.waits_are_over() && self.lives(server));
            waits_longer.get().then(|| self.deadline())
        };
        let begun = || if waits_longer.get() { self.deadline() } else { deadline };
        let line = server.line(deadline, on_turn, longer, || Ok(self.connect(server, begun())?))?;
        Ok((line, begun()))
    }

    /// The same, but nothing is waited for beyond this time.
    pub(crate) fn line_by(
        &self,
        server: &Arc<Server>,
        until: Instant,
    ) -> std::result::Result<Line, Unanswered> {
        if server.is_suspect() {
            self.probe(server, until)?;
        }
        server.line(until, None, || None, || Ok(self.connect(server, until)?))
    }

    /// The Unix socket of a server on this machine, if it may be used.
    fn socket_path(&self, entry: &ServerEntry) -> Option<PathBuf> {
        let here = self.settings.local && self.host == Some(entry.host);
        Some(PathBuf::from(&entry.unix)).filter(|path| here && path.exists())
    }

    /// A new connection to a server, with the session opened on it.
    pub(crate) fn connect(&self, server: &Arc<Server>, deadline: Instant) -> Connected<Link> {
        let entry = server.entry();
        let shaking = handshake_deadline(deadline);
        let silent = |error: Error| match error.kind() {
            // The operation may have time left, even if the handshake has not.
            ErrorKind::TimedOut => Error::new(ErrorKind::HostDown, error.message()),
            _ => error,
        };
        let mut link = Link::new(
            self.connect_somehow(&entry, shaking)
                .map_err(|failure| ConnectFailure { error: silent(failure.error), ..failure })?,
            &self.descriptors,
        );
        let opened =
            self.open_session(&mut link, server.opened.load(Ordering::Acquire), shaking).map_err(silent)?;
        let wrong_pool = self.known_map().is_some_and(|map| map.pool != opened.pool);
        if wrong_pool || opened.server != server.id {
            return Err(Error::new(
                ErrorKind::HostDown,
                format!("{} of pool {} answers at its address {}", opened.server, opened.pool, entry.tcp),
            )
            .into());
        }
        if !server.opened.load(Ordering::Acquire) {
            // That server would begin a session anew that others have ended.
            self.confirm_elsewhere(server)?;
        }
        server.opened.store(true, Ordering::Release);
        Ok(link)
    }

    /// By the Unix socket if there is one, else by TCP.
    fn connect_somehow(&self, entry: &ServerEntry, deadline: Instant) -> Connected<Connection> {
        let connect = |address: &Address| {
            let greet = |key: &ClientKey| Connection::try_connect(address, key, Some(entry.server), deadline);
            self.settings.key.connect(greet)
        };
        let tcp = Address::Tcp(entry.tcp.clone());
        let Some(path) = self.socket_path(entry) else { return connect(&tcp) };
        connect(&Address::Unix(path)).or_else(|first| {
            let by_tcp = connect(&tcp);
            by_tcp.map_err(|second| ConnectFailure { refused: first.refused && second.refused, ..second })
        })
    }
}

fn handshake_deadline(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX))
}

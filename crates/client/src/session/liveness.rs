//! Signs of life: of the session for its servers, by heartbeats, and of the servers for the session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, Slot};
use ramlace_wire::Request;
use ramlace_wire::session::{CloseSession, Heartbeat};

use crate::session::Session;
use crate::session::lines::{Link, Server, Unanswered, roundtrip};
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;

/// How long the end of a session may wait for all servers together; what is not sent by then is done by its
/// expiry.
const CLOSE_MILLIS_MAX: u64 = 500;

impl Session {
    /// Whether the session is over.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// The session is over: its open files are closed and its locks are gone, so to go on in a new session
    /// would hide a loss.
    pub(crate) fn end(&self, error: &Error) -> Error {
        let ended = Error::new(
            ErrorKind::Stale,
            format!(
                "this session with the pool has ended ({}); its open files are closed: connect again",
                error.message()
            ),
        );
        self.ended.get_or_init(|| ended).clone()
    }

    /// Sends a heartbeat to every server that knows the session, except where a long poll has notified it.
    pub(crate) fn beat(&self, deadline: Instant) {
        let mut servers = self.all_servers();
        servers.retain(|server| server.opened.load(Ordering::Acquire) && !self.is_listened_to(server));
        // Servers that answer come first, so as not to wait for those that do not.
        servers.sort_by_key(|server| server.is_failing());
        for server in servers {
            let answered = self.beat_one(&server, deadline);
            server.note_answer(answered.is_ok());
            if answered.is_err_and(|error| error.kind() == ErrorKind::Stale) || Instant::now() >= deadline {
                return;
            }
        }
    }

    /// Whether a server is notified by long polls that the session lives. Then the heartbeat connection is not
    /// kept.
    fn is_listened_to(&self, server: &Server) -> bool {
        let listens = server.has_recent_poll(Instant::now());
        if listens && let Some(mut control) = server.control.try_lock() {
            drop(control.link.take());
        }
        listens
    }

    fn beat_one(&self, server: &Arc<Server>, deadline: Instant) -> Result<()> {
        let mut control = server.control.lock();
        self.beat_on(&mut control.link, server, deadline).map_err(|unanswered| unanswered.error)
    }

    fn beat_on(
        &self,
        control: &mut Option<Link>,
        server: &Arc<Server>,
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        let deadline = deadline.min(Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX));
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
            Err(error) if error.kind() == ErrorKind::Stale => Err(Unanswered::from_server(self.end(&error))),
            Err(error) => Err(Unanswered::lost(error)),
        }
    }

    /// Checks for a sign of life of a server that leaves a call unanswered.
    pub(crate) fn lives(&self, server: &Arc<Server>) -> bool {
        let asked = Instant::now();
        let mut control = server.control.lock();
        // Many threads may ask at once: what one of them has just learned counts for those that waited for it.
        if let Some((lives, _)) = control.looked.filter(|(_, at)| *at >= asked) {
            return lives;
        }
        let soon = Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX);
        let lives = self.beat_on(&mut control.link, server, soon).is_ok();
        control.looked = Some((lives, Instant::now()));
        lives
    }

    /// Whether the server of a slot has answered recently.
    pub(crate) fn answers(&self, slot: Slot) -> bool {
        let home = self.known_map().and_then(|map| self.server_of(&map, slot).ok());
        home.is_some_and(|server| !server.is_failing())
    }

    /// Asks a server that answered Stale whether it meant the session.
    ///
    /// Errors: the session's own end.
    pub(crate) fn confirm(&self, server: &Arc<Server>) -> Result<()> {
        let soon = Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX);
        let answered = self.beat_one(server, soon);
        match self.ended.get() {
            // Also if another thread has learned that it has ended, and this server does not answer.
            Some(ended) if answered.is_err() => Err(ended.clone()),
            _ => Ok(()),
        }
    }

    /// Before the first request in the session to a server that has never known it: asks a server that knows
    /// the session whether it still lives. If none answers, the session is assumed to live.
    ///
    /// Errors: the session's own end.
    pub(crate) fn confirm_elsewhere(&self, new: &Arc<Server>) -> Result<()> {
        let knows = |server: &&Arc<Server>| server.id != new.id && server.opened.load(Ordering::Acquire);
        let servers = self.all_servers();
        for server in servers.iter().filter(knows).filter(|server| !server.is_failing()) {
            let soon = Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX);
            let answered = match server.control.try_lock() {
                Some(mut control) => self.beat_on(&mut control.link, server, soon),
                // A thread is asking it, which may wait for `new`: opening the session there on another
                // connection answers the same.
                None => self.connect(server, soon).map(drop).map_err(Unanswered::from),
            };
            if let Some(ended) = self.ended.get() {
                return Err(ended.clone());
            }
            if answered.is_ok() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Checks for a sign of life of a server that left a call unanswered. Threads that wait here at the same
    /// time share the answer, so that each waits about as long as if it were alone.
    pub(crate) fn probe(
        &self,
        server: &Arc<Server>,
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        let asked = Instant::now();
        let mut control = server.control.lock();
        if !server.is_suspect() {
            return Ok(());
        }
        if control.silent.is_none_or(|silent| silent < asked) {
            let had_connection = control.link.is_some();
            let mut answered = self.beat_on(&mut control.link, server, deadline);
            let lost = answered.as_ref().is_err_and(|failure| failure.error.kind() == ErrorKind::HostDown);
            if had_connection && lost {
                // The connection was to the server's last incarnation.
                answered = self.beat_on(&mut control.link, server, deadline);
            }
            match answered {
                Ok(()) => {
                    server.note_answer(true);
                    return Ok(());
                }
                Err(unanswered) if unanswered.from_server => return Err(unanswered),
                Err(_) => control.silent = Some(Instant::now()),
            }
        }
        let error =
            Error::new(ErrorKind::HostDown, "it left a call unanswered, and shows no sign of life since");
        Err(Unanswered { refused_or_silent: true, ..Unanswered::lost(error) })
    }

    /// Frees what an ended session no longer needs.
    pub(crate) fn disconnect(&self) {
        for server in self.all_servers() {
            server.drop_idle();
            drop(server.control.lock().link.take());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.heart.stop();
        let deadline = Instant::now() + Duration::from_millis(CLOSE_MILLIS_MAX);
        for server in self.all_servers().iter().filter(|server| server.opened.load(Ordering::Acquire)) {
            let Some(mut line) = server.idle_line() else { continue };
            let header = self.header(CloseSession::KIND, None, deadline, ramlace_base::Epoch(0));
            if line.send(header, &CloseSession {}, &[], deadline).is_ok() {
                let _ = line.receive::<CloseSession>(header.call, deadline);
            }
            line.close();
        }
    }
}

//! Who is connected: sessions, their rights and their end.
//!
//! A session begins with OpenSession, lives by its heartbeats and ends when it says so or has
//! not been heard for [`limits::SESSION_EXPIRY_MILLIS`]. What it says afterwards is Stale.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::Credentials;
use ramlace_wire::keys::HostKeyId;
use serde::{Deserialize, Serialize};

/// What of a session outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Chosen by the client.
    pub session: SessionId,
    /// As whom it acts; a host's: where it names no user.
    pub who: Credentials,
    /// It acts for the users of a machine: whose key has opened it.
    pub host: Option<HostKeyId>,
    /// Program and process, for people.
    pub label: String,
}

struct Session {
    record: SessionRecord,
    last_heard: Instant,
}

/// The sessions of one server.
#[derive(Default)]
pub struct Sessions {
    open: HashMap<SessionId, Session>,
}

impl Sessions {
    /// Takes a session in; the caller has logged it.
    pub fn insert(&mut self, record: SessionRecord, now: Instant) {
        self.open.insert(record.session, Session { record, last_heard: now });
    }

    /// Whether one more session, of a host or of the owner, may be opened.
    pub fn has_room(&self, host: bool) -> Result<()> {
        let of_hosts = self.open.values().filter(|open| open.record.host.is_some()).count();
        let refused = |count, whose| {
            let text = format!("the server holds {count} sessions{whose} already, its limit");
            Err(Error::new(ErrorKind::TooMany, text))
        };
        if host && of_hosts >= limits::SESSIONS_OF_HOSTS_MAX {
            return refused(of_hosts, " of hosts");
        }
        if self.open.len() >= limits::SESSIONS_MAX {
            return refused(self.open.len(), "");
        }
        Ok(())
    }

    /// Notes that the session was heard, and tells as whom it acts; Stale when it has ended.
    pub fn heard(&mut self, session: SessionId, now: Instant) -> Result<Credentials> {
        match self.open.get_mut(&session) {
            Some(open) => {
                open.last_heard = now;
                Ok(open.record.who.clone())
            }
            None => Err(Error::new(
                ErrorKind::Stale,
                "the session has ended: it was closed, or not heard for too long; connect again",
            )),
        }
    }

    /// Gives every session a fresh time to be heard.
    pub fn heard_all(&mut self, now: Instant) {
        self.open.values_mut().for_each(|open| open.last_heard = now);
    }

    /// Whether the session is open.
    pub fn contains(&self, session: SessionId) -> bool {
        self.open.contains_key(&session)
    }

    /// Whose key has opened a session that acts for the users of a machine.
    pub fn host_of(&self, session: SessionId) -> Option<&HostKeyId> {
        self.open.get(&session)?.record.host.as_ref()
    }

    /// What a session calls itself.
    pub fn label_of(&self, session: SessionId) -> Option<&str> {
        Some(&self.open.get(&session)?.record.label)
    }

    /// Forgets a session; whether it was open.
    pub fn remove(&mut self, session: SessionId) -> bool {
        self.open.remove(&session).is_some()
    }

    /// Sessions that have not been heard for too long.
    pub fn expired(&self, now: Instant) -> Vec<SessionId> {
        let silent = |open: &Session| now.duration_since(open.last_heard) >= Self::expiry();
        self.open.iter().filter(|(_, open)| silent(open)).map(|(id, _)| *id).collect()
    }

    /// When the next session will have been silent too long; `None` without sessions.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.open.values().map(|open| open.last_heard + Self::expiry()).min()
    }

    /// What outlives the process, for snapshots.
    pub fn records(&self) -> impl Iterator<Item = &SessionRecord> {
        self.open.values().map(|open| &open.record)
    }

    /// Number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    fn expiry() -> Duration {
        Duration::from_millis(limits::SESSION_EXPIRY_MILLIS)
    }
}

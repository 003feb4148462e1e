//! Sessions: which clients are connected, with which rights, and until when.
//!
//! A session begins with OpenSession, is kept alive by heartbeats, and ends when its client ends it or sends
//! nothing for [`limits::SESSION_EXPIRY_MILLIS`]. After that, requests in its name are Stale.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::Credentials;
use ramlace_wire::keys::HostKeyId;
use serde::{Deserialize, Serialize};

/// The part of a session that is kept over a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Chosen by the client.
    pub session: SessionId,
    /// The user as whom it acts; for a host's session, when it names no user.
    pub who: Credentials,
    /// For a session that acts for the users of a machine: the host key that opened it.
    pub host: Option<HostKeyId>,
    /// Program and process, for people.
    pub label: String,
}

struct Session {
    record: SessionRecord,
    last_seen: Instant,
}

/// The sessions of one server.
#[derive(Default)]
pub struct Sessions {
    open: HashMap<SessionId, Session>,
}

impl Sessions {
    /// Adds a session; the caller has logged it.
    pub fn insert(&mut self, record: SessionRecord, now: Instant) {
        self.open.insert(record.session, Session { record, last_seen: now });
    }

    /// Checks whether one more session, of a host or of the owner, may be opened.
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

    /// Notes that the session has sent something, and returns the user as whom it acts; Stale when it has
    /// ended.
    pub fn note_alive(&mut self, session: SessionId, now: Instant) -> Result<Credentials> {
        match self.open.get_mut(&session) {
            Some(open) => {
                open.last_seen = now;
                Ok(open.record.who.clone())
            }
            None => Err(Error::new(
                ErrorKind::Stale,
                "the session has ended: it was closed, or showed no sign of life for too long; connect again",
            )),
        }
    }

    /// Starts the expiry of every session anew.
    pub fn note_all_alive(&mut self, now: Instant) {
        self.open.values_mut().for_each(|open| open.last_seen = now);
    }

    /// Whether the session is open.
    pub fn contains(&self, session: SessionId) -> bool {
        self.open.contains_key(&session)
    }

    /// The host key that opened a session that acts for the users of a machine.
    pub fn host_of(&self, session: SessionId) -> Option<&HostKeyId> {
        self.open.get(&session)?.record.host.as_ref()
    }

    /// A session's label.
    pub fn label_of(&self, session: SessionId) -> Option<&str> {
        Some(&self.open.get(&session)?.record.label)
    }

    /// Removes a session; returns whether it was open.
    pub fn remove(&mut self, session: SessionId) -> bool {
        self.open.remove(&session).is_some()
    }

    /// Sessions that have sent nothing for too long.
    pub fn expired(&self, now: Instant) -> Vec<SessionId> {
        let silent = |open: &Session| now.duration_since(open.last_seen) >= Self::expiry();
        self.open.iter().filter(|(_, open)| silent(open)).map(|(id, _)| *id).collect()
    }

    /// When the next session expires if it sends nothing; `None` without sessions.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.open.values().map(|open| open.last_seen + Self::expiry()).min()
    }

    /// What is kept over a restart, for snapshots.
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

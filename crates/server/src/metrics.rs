//! What a server counts: for each message how often, how long, how many bytes and errors; for each session how many
//! requests and bytes. The rows of messages ([`Kind::ALL`]) are the fixed set: nothing that comes from outside adds one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{Error, SessionId};
use ramlace_transport::trace::RequestName;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, Metrics, SessionMetrics, latency_class};
use ramlace_wire::{Header, Kind};

use crate::clock;
use crate::server::Server;

/// An exact count that one thread keeps.
fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get().wrapping_add(more));
}

#[derive(Default)]
struct MessageCounts {
    errors: Cell<u64>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
    micros: Cell<u64>,
    classes: [Cell<u64>; LATENCY_CLASSES],
}

/// What one session has asked.
#[derive(Default)]
pub struct SessionCounts {
    requests: Cell<u64>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
}

/// The counts of a server's process.
pub struct Counts {
    messages: Box<[MessageCounts]>,
    sessions: RefCell<HashMap<SessionId, Rc<SessionCounts>>>,
}

impl Default for Counts {
    fn default() -> Counts {
        let messages = Kind::ALL.iter().map(|_| MessageCounts::default()).collect();
        Counts { messages, sessions: RefCell::default() }
    }
}

/// A request that came, until its answer leaves.
pub struct Timed {
    kind: Kind,
    request: RequestName,
    began: Instant,
    session: Option<Rc<SessionCounts>>,
}

impl Counts {
    /// A whole request has come, of a session or of nobody's.
    pub fn begin(&self, header: &Header, session: Option<&Rc<SessionCounts>>) -> Timed {
        let received = u64::from(header.body_bytes) + u64::from(header.data_bytes);
        add(&self.messages[header.kind.index()].received_bytes, received);
        if let Some(session) = session {
            add(&session.requests, 1);
            add(&session.received_bytes, received);
        }
        let request = RequestName::of(header);
        tracing::trace!(target: "ramlace::server", %request, kind = ?header.kind, bytes = received, "comes");
        Timed { kind: header.kind, request, began: clock::instant(), session: session.cloned() }
    }

    /// Its answer, of so many bytes or an error, leaves.
    pub fn end(&self, timed: &Timed, sent: std::result::Result<u64, &Error>) {
        let (sent_bytes, failed) = (*sent.as_ref().unwrap_or(&0), sent.is_err());
        let counts = &self.messages[timed.kind.index()];
        let took = clock::instant().saturating_duration_since(timed.began);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&counts.classes[latency_class(micros)], 1);
        add(&counts.micros, micros);
        add(&counts.sent_bytes, sent_bytes);
        add(&counts.errors, u64::from(failed));
        if let Some(session) = &timed.session {
            add(&session.sent_bytes, sent_bytes);
        }
        let (request, kind) = (timed.request, timed.kind);
        match sent {
            Ok(bytes) => {
                tracing::debug!(target: "ramlace::server", %request, kind = ?kind, micros, bytes, "is answered");
            }
            Err(error) => {
                tracing::debug!(target: "ramlace::server", %request, kind = ?kind, micros, %error, "is refused");
            }
        }
    }

    /// The counts of a session that a connection has joined.
    pub fn of_session(&self, session: SessionId) -> Rc<SessionCounts> {
        self.sessions.borrow_mut().entry(session).or_default().clone()
    }

    /// The session has ended.
    pub fn forget(&self, session: SessionId) {
        self.sessions.borrow_mut().remove(&session);
    }

    fn messages(&self) -> Vec<MessageMetrics> {
        let came = Kind::ALL.iter().zip(&self.messages).filter(|(_, counts)| counts.received());
        came.map(|(kind, counts)| counts.shown(*kind)).collect()
    }
}

impl MessageCounts {
    fn received(&self) -> bool {
        self.classes.iter().any(|count| count.get() > 0)
    }

    fn shown(&self, kind: Kind) -> MessageMetrics {
        MessageMetrics {
            kind: kind.number(),
            errors: self.errors.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            micros: self.micros.get(),
            classes: std::array::from_fn(|class| self.classes[class].get()),
        }
    }
}

impl Server {
    /// What this server has counted; sessions in the order of their numbers.
    pub fn metrics(&self) -> Metrics {
        let durable = self.durable.borrow();
        let counted = self.counts.sessions.borrow();
        let none = Rc::default();
        let shown = |record: &crate::sessions::SessionRecord| {
            let counts: &Rc<SessionCounts> = counted.get(&record.session).unwrap_or(&none);
            SessionMetrics {
                session: record.session.short(),
                label: record.label.clone(),
                host: record.host.is_some(),
                requests: counts.requests.get(),
                received_bytes: counts.received_bytes.get(),
                sent_bytes: counts.sent_bytes.get(),
            }
        };
        let mut sessions: Vec<SessionMetrics> = durable.sessions.records().map(shown).collect();
        sessions.sort_by_key(|session| session.session);
        Metrics { messages: self.counts.messages(), sessions }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::limits;

    use super::*;

    #[test]
    fn what_is_counted_of_as_many_sessions_as_there_may_be_fits_an_answer() {
        let most = u64::MAX;
        let session = SessionMetrics {
            session: u32::MAX,
            label: "x".repeat(limits::LABEL_BYTES_MAX),
            host: true,
            requests: most,
            received_bytes: most,
            sent_bytes: most,
        };
        let message = MessageMetrics {
            kind: u16::MAX,
            errors: most,
            received_bytes: most,
            sent_bytes: most,
            micros: most,
            classes: [most; LATENCY_CLASSES],
        };
        let told = Metrics {
            messages: vec![message; Kind::ALL.len()],
            sessions: vec![session; limits::SESSIONS_MAX],
        };
        assert!(ramlace_wire::encode_body(&told).len() <= limits::BODY_BYTES_MAX as usize);
    }
}

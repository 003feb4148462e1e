//! The counters of a server, by message and by session: see [`crate::metrics`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{Error, SessionId};
use ramlace_transport::trace::RequestName;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, latency_class};
use ramlace_wire::{Header, Kind};

use crate::clock;

/// Adds to an exact counter of a single thread.
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

/// The counters of one session.
#[derive(Default)]
pub struct SessionCounts {
    pub requests: Cell<u64>,
    pub received_bytes: Cell<u64>,
    pub sent_bytes: Cell<u64>,
}

/// The counters of a server's process.
pub struct Counts {
    messages: Box<[MessageCounts]>,
    pub sessions: RefCell<HashMap<SessionId, Rc<SessionCounts>>>,
}

impl Default for Counts {
    fn default() -> Counts {
        let messages = Kind::ALL.iter().map(|_| MessageCounts::default()).collect();
        Counts { messages, sessions: RefCell::default() }
    }
}

/// A request that was received, until its reply is sent. The time in which its data comes is part of this: data is received
/// when its lane is free, and to wait for that is the server's time.
pub struct Timed {
    kind: Kind,
    request: RequestName,
    began: Instant,
    session: Option<Rc<SessionCounts>>,
}

impl Timed {
    /// Its name in logs.
    pub fn request(&self) -> RequestName {
        self.request
    }
}

impl Counts {
    /// A request was received, but for its data, of a session or of none.
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

    /// Its reply is sent: this many bytes, or an error.
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

    pub fn messages(&self) -> Vec<MessageMetrics> {
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

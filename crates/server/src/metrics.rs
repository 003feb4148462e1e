//! The server's counters: by message, how often, how long, how many bytes and errors; by session, how many
//! requests and bytes. The rows of messages ([`Kind::ALL`](ramlace_wire::Kind::ALL)) are fixed: no input from
//! outside adds one.

use std::rc::Rc;

use ramlace_wire::metrics::{Metrics, SessionMetrics};

use crate::server::Server;
use crate::server::counts::SessionCounts;

impl Server {
    /// The counters of this server; sessions are ordered by number.
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
    use ramlace_wire::Kind;
    use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics};

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
        let metrics = Metrics {
            messages: vec![message; Kind::ALL.len()],
            sessions: vec![session; limits::SESSIONS_MAX],
        };
        assert!(ramlace_wire::encode_body(&metrics).len() <= limits::BODY_BYTES_MAX as usize);
    }
}

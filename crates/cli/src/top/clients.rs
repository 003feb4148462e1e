//! Which clients move how many bytes: the sessions of a pool over all its servers, and how fast their counts
//! grow. Pure.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_wire::metrics::{Metrics, SessionMetrics};
use serde_json::{Value, json};

use crate::show::{escaped, table};

/// What a session has done at all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests.
    pub requests: u64,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
    /// Bytes that it was sent.
    pub received_bytes: u64,
}

/// A session, as all servers together know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The first bytes of its number.
    pub session: u32,
    /// Program and process, as they call themselves.
    pub label: String,
    /// It acts for the users of a machine.
    pub host: bool,
    /// Servers where it is open.
    pub servers: usize,
    /// Since the servers' processes began.
    pub done: Done,
    /// In a second, between the last two samples; `None` before the second.
    pub rates: Option<Done>,
}

/// By what clients are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortClients {
    /// Bytes a second, both ways; then bytes in all.
    #[default]
    Bytes,
    /// Requests a second; then requests in all.
    Requests,
    /// Label.
    Label,
}

impl SortClients {
    /// The next way to sort.
    pub fn next(self) -> SortClients {
        match self {
            SortClients::Bytes => SortClients::Requests,
            SortClients::Requests => SortClients::Label,
            SortClients::Label => SortClients::Bytes,
        }
    }

    /// For the footer.
    pub fn name(self) -> &'static str {
        match self {
            SortClients::Bytes => "bytes",
            SortClients::Requests => "calls",
            SortClients::Label => "client",
        }
    }
}

/// The last two samples of all servers.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    /// Each session at each server: a server that began anew counts from 0, and gives no rate once.
    counts: BTreeMap<(u32, u16), Done>,
    shown: Vec<Client>,
    looked_millis: Option<u64>,
}

impl Clients {
    /// Takes in what the servers that answered have counted, at a moment in milliseconds.
    pub fn look(&mut self, answers: &[(u16, Metrics)], at_millis: u64) {
        let millis =
            self.looked_millis.map(|before| at_millis.saturating_sub(before)).filter(|millis| *millis > 0);
        let before = std::mem::take(&mut self.counts);
        let mut clients: BTreeMap<u32, Client> = BTreeMap::new();
        for (server, metrics) in answers {
            for session in &metrics.sessions {
                let done = done(session);
                self.counts.insert((session.session, *server), done);
                let client = clients.entry(session.session).or_insert_with(|| Client {
                    session: session.session,
                    label: session.label.clone(),
                    host: session.host,
                    servers: 0,
                    done: Done::default(),
                    rates: millis.map(|_| Done::default()),
                });
                client.servers += 1;
                client.done = client.done.and(done, u64::saturating_add);
                if let (Some(rates), Some(millis)) = (&mut client.rates, millis) {
                    let old = before.get(&(session.session, *server)).copied().unwrap_or_default();
                    let rate =
                        done.and(old, |now, old| now.saturating_sub(old).saturating_mul(1000) / millis);
                    *rates = rates.and(rate, u64::saturating_add);
                }
            }
        }
        self.shown = clients.into_values().collect();
        self.looked_millis = Some(at_millis);
    }

    /// How many clients there are.
    pub fn count(&self) -> usize {
        self.shown.len()
    }

    /// The clients that are there, the busiest first.
    pub fn sorted(&self, sort: SortClients) -> Vec<Client> {
        let mut clients = self.shown.clone();
        let busy = |client: &Client| {
            let (rates, done) = (client.rates.unwrap_or_default(), client.done);
            match sort {
                SortClients::Bytes => (rates.bytes(), done.bytes()),
                SortClients::Requests => (rates.requests, done.requests),
                SortClients::Label => (0, 0),
            }
        };
        clients.sort_by(|one, other| {
            busy(other)
                .cmp(&busy(one))
                .then_with(|| one.label.cmp(&other.label))
                .then(one.session.cmp(&other.session))
        });
        clients
    }
}

impl Done {
    fn and(self, other: Done, with: impl Fn(u64, u64) -> u64) -> Done {
        Done {
            requests: with(self.requests, other.requests),
            sent_bytes: with(self.sent_bytes, other.sent_bytes),
            received_bytes: with(self.received_bytes, other.received_bytes),
        }
    }

    fn bytes(self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }
}

/// As the client sees it: what a server received, the client has sent.
fn done(session: &SessionMetrics) -> Done {
    Done {
        requests: session.requests,
        sent_bytes: session.received_bytes,
        received_bytes: session.sent_bytes,
    }
}

/// The table: its head and a line for each client.
pub fn client_table(clients: &[Client]) -> Vec<String> {
    let head = [
        "SESSION",
        "CLIENT",
        "FOR",
        "SERVERS",
        "SENT/S",
        "RECEIVED/S",
        "CALLS/S",
        "SENT",
        "RECEIVED",
        "CALLS",
    ];
    let cells = |client: &Client| {
        let rate = |of: fn(Done) -> String| client.rates.map_or_else(|| "-".to_owned(), of);
        vec![
            format!("{:08x}", client.session),
            escaped(client.label.as_bytes()),
            if client.host { "users" } else { "owner" }.to_owned(),
            client.servers.to_string(),
            rate(|rates| format_bytes(rates.sent_bytes)),
            rate(|rates| format_bytes(rates.received_bytes)),
            rate(|rates| rates.requests.to_string()),
            format_bytes(client.done.sent_bytes),
            format_bytes(client.done.received_bytes),
            client.done.requests.to_string(),
        ]
    };
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    lines.extend(clients.iter().map(cells));
    table(&lines, &[3, 4, 5, 6, 7, 8, 9])
}

/// For programs.
pub fn clients_json(clients: &[Client]) -> Value {
    let one = |client: &Client| {
        json!({
            "session": format!("{:08x}", client.session), "client": client.label, "for_users": client.host,
            "servers": client.servers, "sent_bytes": client.done.sent_bytes,
            "received_bytes": client.done.received_bytes, "calls": client.done.requests,
            "sent_bytes_per_second": client.rates.map(|rates| rates.sent_bytes),
            "received_bytes_per_second": client.rates.map(|rates| rates.received_bytes),
            "calls_per_second": client.rates.map(|rates| rates.requests),
        })
    };
    json!({"clients": clients.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(sessions: &[(u32, &str, u64)]) -> Metrics {
        let session = |(session, label, count): &(u32, &str, u64)| SessionMetrics {
            session: *session,
            label: (*label).to_owned(),
            host: false,
            requests: *count,
            received_bytes: count * 1024,
            sent_bytes: count * 2048,
        };
        Metrics { messages: Vec::new(), sessions: sessions.iter().map(session).collect() }
    }

    #[test]
    fn a_session_is_one_client_whatever_number_of_servers_it_asks() {
        let mut clients = Clients::default();
        clients.look(&[(0, metrics(&[(1, "a", 10), (2, "b\x1b", 1)])), (1, metrics(&[(1, "a", 5)]))], 1000);
        let first = clients.sorted(SortClients::Bytes);
        assert_eq!(first[0].done, Done { requests: 15, sent_bytes: 15 << 10, received_bytes: 30 << 10 });
        assert_eq!((first[0].servers, first[0].rates), (2, None));
        clients.look(&[(0, metrics(&[(1, "a", 10), (2, "b\x1b", 7)])), (1, metrics(&[(1, "a", 1)]))], 3000);
        let second = clients.sorted(SortClients::Requests);
        // The client that did something last comes first; a server that began anew gives no rate below 0.
        assert_eq!((second[0].label.as_str(), second[0].rates.unwrap().requests), ("b\x1b", 3));
        assert_eq!(second[1].rates.unwrap().requests, 0);
        assert!(client_table(&second).iter().all(|line| !line.contains(char::is_control)));
    }
}

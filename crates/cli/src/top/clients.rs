//! Which clients move how many bytes: the sessions of a pool over all its servers, and how fast their counts
//! grow. Pure.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_wire::metrics::SessionMetrics;
use serde_json::{Value, json};

use super::samples::CountedBy;
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
    /// In a second, between the last two answers of each server; `None` where no server of it has answered twice.
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
    /// What each server said last.
    before: BTreeMap<u16, Sample>,
    shown: Vec<Client>,
}

/// What a server said, and when.
#[derive(Clone, Debug, Default)]
struct Sample {
    at_millis: u64,
    /// By session.
    counts: BTreeMap<u32, Done>,
}

impl Sample {
    /// What a session has done in a second since then. A session that was not there began meanwhile; a server that began
    /// anew counts from 0, and gives no rate once.
    fn rate(&self, session: u32, done: Done, at_millis: u64) -> Done {
        let millis = at_millis.saturating_sub(self.at_millis).max(1);
        let old = self.counts.get(&session).copied().unwrap_or_default();
        done.and(old, |now, old| now.saturating_sub(old).saturating_mul(1000) / millis)
    }
}

impl Clients {
    /// Takes in what the servers that answered have counted. One that was silent the last time gives no rate.
    pub fn look(&mut self, answers: &[CountedBy]) {
        let before = std::mem::take(&mut self.before);
        let mut clients: BTreeMap<u32, Client> = BTreeMap::new();
        for CountedBy { server, at_millis, metrics } in answers {
            let last = before.get(server);
            for session in &metrics.sessions {
                let done = done(session);
                let client = clients.entry(session.session).or_insert_with(|| new_client(session));
                client.servers += 1;
                client.done = client.done.and(done, u64::saturating_add);
                if let Some(last) = last {
                    let rate = last.rate(session.session, done, *at_millis);
                    client.rates = Some(client.rates.unwrap_or_default().and(rate, u64::saturating_add));
                }
            }
            let counts = metrics.sessions.iter().map(|session| (session.session, done(session))).collect();
            self.before.insert(*server, Sample { at_millis: *at_millis, counts });
        }
        self.shown = clients.into_values().collect();
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

fn new_client(session: &SessionMetrics) -> Client {
    let SessionMetrics { session, label, host, .. } = session;
    let (label, servers, done, rates) = (label.clone(), 0, Done::default(), None);
    Client { session: *session, label, host: *host, servers, done, rates }
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
    use ramlace_wire::metrics::Metrics;

    use super::*;

    fn counted(server: u16, at_millis: u64, sessions: &[(u32, &str, u64)]) -> CountedBy {
        let session = |(session, label, count): &(u32, &str, u64)| SessionMetrics {
            session: *session,
            label: (*label).to_owned(),
            host: false,
            requests: *count,
            received_bytes: count * 1024,
            sent_bytes: count * 2048,
        };
        let metrics = Metrics { messages: Vec::new(), sessions: sessions.iter().map(session).collect() };
        CountedBy { server, at_millis, metrics }
    }

    fn calls(clients: &Clients) -> Vec<Option<u64>> {
        let sorted = clients.sorted(SortClients::Label);
        sorted.iter().map(|client| client.rates.map(|rates| rates.requests)).collect()
    }

    #[test]
    fn a_session_is_one_client_whatever_number_of_servers_it_asks() {
        let mut clients = Clients::default();
        clients.look(&[counted(0, 1000, &[(1, "a", 10), (2, "b\x1b", 1)]), counted(1, 1000, &[(1, "a", 5)])]);
        let first = clients.sorted(SortClients::Bytes);
        assert_eq!(first[0].done, Done { requests: 15, sent_bytes: 15 << 10, received_bytes: 30 << 10 });
        assert_eq!((first[0].servers, first[0].rates), (2, None));
        clients.look(&[counted(0, 3000, &[(1, "a", 10), (2, "b\x1b", 7)]), counted(1, 3000, &[(1, "a", 1)])]);
        let second = clients.sorted(SortClients::Requests);
        // The client that did something last comes first; a server that began anew gives no rate below 0.
        assert_eq!((second[0].label.as_str(), second[0].rates.unwrap().requests), ("b\x1b", 3));
        assert_eq!(second[1].rates.unwrap().requests, 0);
        assert!(client_table(&second).iter().all(|line| !line.contains(char::is_control)));
    }

    #[test]
    fn a_server_that_was_silent_gives_no_rate_once_and_each_has_its_own_times() {
        let mut clients = Clients::default();
        clients.look(&[counted(0, 1000, &[(1, "a", 100)]), counted(1, 1000, &[(1, "a", 70_000)])]);
        // Server 1 is silent, and the answer of server 0 waits for that: it came after a second all the same.
        clients.look(&[counted(0, 2000, &[(1, "a", 150)])]);
        assert_eq!(calls(&clients), [Some(50)]);
        clients.look(&[counted(0, 5000, &[(1, "a", 300)]), counted(1, 5100, &[(1, "a", 90_000)])]);
        assert_eq!(calls(&clients), [Some(50)]);
        clients.look(&[counted(0, 6000, &[(1, "a", 350)]), counted(1, 7100, &[(1, "a", 90_200)])]);
        assert_eq!(calls(&clients), [Some(150)]);
        // One that began between two answers.
        clients.look(&[counted(0, 7000, &[(1, "a", 350), (2, "b", 40)])]);
        assert_eq!(calls(&clients), [Some(0), Some(40)]);
    }
}

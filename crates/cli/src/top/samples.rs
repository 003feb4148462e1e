//! What the servers have said last, and how fast their counters grow.

use std::collections::BTreeMap;

use ramlace_wire::metrics::Metrics;
use ramlace_wire::session::ServerStatus;

/// Something that has arrived, or has not.
#[derive(Clone, Debug)]
pub enum Event {
    /// The map: its epoch, and the servers that are not forgotten with their addresses.
    Map {
        /// Raised by every change.
        epoch: u64,
        /// Number and address.
        servers: Vec<(u16, String)>,
    },
    /// A server's answer, or why there is none.
    Answer {
        /// The server.
        server: u16,
        /// When it arrived, in milliseconds since the view began.
        at_millis: u64,
        /// What it said.
        status: Result<Box<ServerStatus>, String>,
    },
}

/// What a server has counted since its process began.
#[derive(Clone, Debug)]
pub struct CountedBy {
    /// The server's number.
    pub server: u16,
    /// When it answered, in milliseconds since the view began.
    pub at_millis: u64,
    /// Its counters.
    pub metrics: Metrics,
}

/// How fast a server works.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes a second.
    pub read: f64,
    /// Bytes a second.
    pub written: f64,
    /// Requests answered in a second.
    pub operations: f64,
}

/// What is known of one server.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Where it listens.
    pub address: String,
    /// Its last answer and when that was.
    pub status: Option<(u64, Box<ServerStatus>)>,
    /// Between its last two answers; `None` before the second, and after a restart.
    pub rates: Option<Rates>,
    /// Since when it has not answered, and why.
    pub silent: Option<(u64, String)>,
}

/// What is known of all servers.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// The map's epoch.
    pub epoch: u64,
    /// By number.
    pub servers: BTreeMap<u16, Server>,
}

impl Samples {
    /// Takes in what has arrived.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Map { epoch, servers } => self.take_map(epoch, servers),
            Event::Answer { server, at_millis, status } => {
                // A forgotten server may have answered a moment ago.
                if let Some(known) = self.servers.get_mut(&server) {
                    known.take(at_millis, status);
                }
            }
        }
    }

    fn take_map(&mut self, epoch: u64, servers: Vec<(u16, String)>) {
        self.epoch = epoch;
        let mut before = std::mem::take(&mut self.servers);
        for (number, address) in servers {
            let known = before.remove(&number).unwrap_or_default();
            self.servers.insert(number, Server { address, ..known });
        }
    }
}

impl Server {
    fn take(&mut self, at_millis: u64, status: Result<Box<ServerStatus>, String>) {
        match status {
            Ok(status) => {
                self.rates = self
                    .status
                    .as_ref()
                    .and_then(|(before, old)| rates(old, &status, at_millis.saturating_sub(*before)));
                self.status = Some((at_millis, status));
                self.silent = None;
            }
            Err(why) => {
                self.rates = None;
                let since = self.silent.take().map_or(at_millis, |(since, _)| since);
                self.silent = Some((since, why));
            }
        }
    }
}

/// `None` when no time has passed or the counters began anew.
fn rates(before: &ServerStatus, now: &ServerStatus, millis: u64) -> Option<Rates> {
    if millis == 0 || before.pid != now.pid {
        return None;
    }
    let rate = |before: u64, now: u64| Some(now.checked_sub(before)? as f64 * 1000.0 / millis as f64);
    Some(Rates {
        read: rate(before.read_bytes, now.read_bytes)?,
        written: rate(before.written_bytes, now.written_bytes)?,
        operations: rate(before.requests, now.requests)?,
    })
}

#[cfg(test)]
pub mod tests {
    use ramlace_base::{Epoch, ServerId};

    use super::*;

    /// A server of 1 GiB that has read `work` MiB, written twice and answered a hundred times as much.
    pub fn status(server: u16, pid: u32, work: u64) -> Box<ServerStatus> {
        Box::new(ServerStatus {
            trusts_network: false,
            server: ServerId(server),
            pid,
            supervisor_pid: 1,
            restarts: 0,
            uptime_millis: 5000,
            epoch: Epoch(3),
            store_bytes: 1 << 30,
            used_bytes: u64::from(server + 1) << 28,
            meta_bytes: 1 << 20,
            files_free_bytes: 1 << 20,
            reserved_bytes: 0,
            inodes: 10,
            inodes_max: 1000,
            lanes: 4,
            locks: 0,
            lock_waits: 0,
            barrier_waits: 0,
            change_waits: 0,
            sessions: 2,
            connections: 3,
            read_bytes: work << 20,
            written_bytes: work << 21,
            requests: work * 100,
            notes: Vec::new(),
        })
    }

    pub fn answer(server: u16, at_millis: u64, status: Box<ServerStatus>) -> Event {
        Event::Answer { server, at_millis, status: Ok(status) }
    }

    pub fn silence(server: u16, at_millis: u64) -> Event {
        Event::Answer { server, at_millis, status: Err("connection refused".into()) }
    }

    pub fn map(epoch: u64, servers: &[u16]) -> Event {
        Event::Map { epoch, servers: servers.iter().map(|server| (*server, format!("h:{server}"))).collect() }
    }

    #[test]
    fn rates_are_those_between_two_answers() {
        let mut samples = Samples::default();
        samples.take(map(3, &[0]));
        samples.take(answer(0, 1000, status(0, 7, 10)));
        assert_eq!(samples.servers[&0].rates, None);
        samples.take(answer(0, 3000, status(0, 7, 14)));
        let expected = Rates { read: f64::from(2 << 20), written: f64::from(4 << 20), operations: 200.0 };
        assert_eq!(samples.servers[&0].rates, Some(expected));
        // The same moment, another process, counters that went back: no rate, rather than a wrong one.
        for (at_millis, next) in [(3000, status(0, 7, 15)), (4000, status(0, 8, 15)), (5000, status(0, 8, 1))]
        {
            samples.take(answer(0, at_millis, next));
            assert_eq!(samples.servers[&0].rates, None, "{at_millis}");
        }
        samples.take(answer(0, 6000, status(0, 8, 1)));
        assert_eq!(samples.servers[&0].rates, Some(Rates::default()));
    }

    #[test]
    fn silence_is_counted_from_its_beginning() {
        let mut samples = Samples::default();
        samples.take(map(3, &[0]));
        samples.take(answer(0, 1000, status(0, 7, 10)));
        samples.take(silence(0, 2000));
        samples.take(silence(0, 5000));
        let server = &samples.servers[&0];
        assert_eq!((server.silent.as_ref().unwrap().0, server.rates), (2000, None));
        assert!(server.status.is_some(), "what it said last is kept");
        samples.take(answer(0, 6000, status(0, 7, 20)));
        assert!(samples.servers[&0].silent.is_none());
    }

    #[test]
    fn the_map_decides_who_is_shown() {
        let mut samples = Samples::default();
        samples.take(answer(5, 0, status(5, 7, 0)));
        assert!(samples.servers.is_empty());
        samples.take(map(3, &[0, 1]));
        samples.take(answer(1, 0, status(1, 7, 0)));
        samples.take(map(4, &[1, 2]));
        assert_eq!((samples.epoch, samples.servers.keys().copied().collect::<Vec<_>>()), (4, vec![1, 2]));
        assert!(samples.servers[&1].status.is_some() && samples.servers[&2].status.is_none());
    }
}

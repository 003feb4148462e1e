//! Asks every server what it does, again and again; one that does not answer delays no other.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ramlace_base::Result;
use ramlace_client::{Pool, ServerReport};
use ramlace_wire::ClusterMap;

use super::samples::Event;

/// Threads that ask, at most; in a larger pool each asks several servers, one after the other.
const ASKERS_MAX: usize = 64;
/// How long ending waits for threads that are asking at this moment: their waits end with the process.
const ENDING_PATIENCE: Duration = Duration::from_millis(300);

/// The threads that ask. They end when this is dropped.
pub struct Asking {
    events: Receiver<Event>,
    /// Dropping them is the word to end.
    stops: Vec<Sender<()>>,
    ended: Receiver<()>,
}

impl Asking {
    /// Begins: each server is asked every `interval`, and the map as often.
    pub fn begin(pool: &Pool, interval: Duration) -> Result<Asking> {
        let began = Instant::now();
        let (tell, events) = channel();
        let (end, ended) = channel();
        let map = pool.map()?;
        // The view of the events may be gone already; then there is no receiver.
        let _ = tell.send(map_event(&map));
        let askers = map.servers.len().clamp(1, ASKERS_MAX);
        let mut stops = Vec::new();
        for asker in 0..=askers {
            let (stop, stopped) = channel();
            stops.push(stop);
            let (pool, tell, end) = (pool.clone(), tell.clone(), end.clone());
            std::thread::spawn(move || {
                repeat(interval, &stopped, || {
                    if asker == askers {
                        ask_map(&pool, &tell);
                    } else {
                        ask_servers(&pool, asker, askers, began, &tell);
                    }
                });
                // The session ends with its last pool, before the process does.
                drop(pool);
                drop(end);
            });
        }
        Ok(Asking { events, stops, ended })
    }

    /// What has arrived since it was asked last.
    pub fn heard(&self) -> impl Iterator<Item = Event> + '_ {
        self.events.try_iter()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.stops.clear();
        // Nothing is ever sent: it ends when all of them have.
        let _ = self.ended.recv_timeout(ENDING_PATIENCE);
    }
}

fn repeat(interval: Duration, stopped: &Receiver<()>, mut work: impl FnMut()) {
    loop {
        let next = Instant::now() + interval;
        work();
        let pause = next.saturating_duration_since(Instant::now());
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn ask_map(pool: &Pool, tell: &Sender<Event>) {
    // A machine that was suspended finds its session over.
    if pool.is_ended() {
        let _ = pool.reconnect();
    }
    if let Ok(map) = pool.refresh_map() {
        let _ = tell.send(map_event(&map));
    }
}

fn ask_servers(pool: &Pool, asker: usize, askers: usize, began: Instant, tell: &Sender<Event>) {
    let Ok(map) = pool.map() else { return };
    let mine = |number: usize| number % askers == asker;
    for entry in map.servers.iter().filter(|entry| !entry.forgotten && mine(entry.server.0.into())) {
        let status =
            pool.server_status(entry.server).map(Box::new).map_err(|error| error.message().to_owned());
        let at_millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let _ = tell.send(Event::Answer { server: entry.server.0, at_millis, status });
    }
}

fn map_event(map: &ClusterMap) -> Event {
    let servers = map.servers.iter().filter(|entry| !entry.forgotten);
    Event::Map {
        epoch: map.epoch.0.into(),
        servers: servers.map(|entry| (entry.server.0, entry.tcp.clone())).collect(),
    }
}

/// One round of answers as events.
pub fn events_of(pool: &Pool, at_millis: u64) -> Result<Vec<Event>> {
    let reports = pool.status()?;
    let mut events = vec![map_event(pool.map()?.as_ref())];
    events.extend(reports.into_iter().map(|ServerReport { entry, status }| Event::Answer {
        server: entry.server.0,
        at_millis,
        status: status.map(Box::new).map_err(|error| error.message().to_owned()),
    }));
    Ok(events)
}

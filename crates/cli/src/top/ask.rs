//! Asks every server what it does, again and again; one that does not answer delays no other.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ramlace_base::Result;
use ramlace_client::{Pool, ServerReport, Timed};
use ramlace_wire::ClusterMap;

use super::samples::{CountedBy, Event};

/// Threads that ask, at most; in a larger pool each asks several servers, one after the other.
const ASKERS_MAX: usize = 64;
/// How long ending waits for threads that are asking at this moment: their waits end with the process.
const ENDING_PATIENCE: Duration = Duration::from_millis(300);

/// What the servers that answer have counted.
pub struct Counted {
    /// Ordered by number.
    pub answers: Vec<CountedBy>,
    /// Whether all have answered.
    pub complete: bool,
}

/// The threads that ask. They end when this is dropped.
pub struct Asking<E> {
    events: Receiver<E>,
    /// Dropping them is the word to end.
    stops: Vec<Sender<()>>,
    /// The threads' side of `ended`, for those to come.
    end: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl Asking<Event> {
    /// Begins: each server is asked every `interval`, and the map as often.
    pub fn servers(pool: &Pool, interval: Duration) -> Result<Asking<Event>> {
        let began = Instant::now();
        let (tell, events) = channel();
        let map = pool.map()?;
        // The view of the events may be gone already; then there is no receiver.
        let _ = tell.send(map_event(&map));
        let askers = map.servers.len().clamp(1, ASKERS_MAX);
        let mut asking = Asking::new(events);
        for asker in 0..askers {
            let tell = tell.clone();
            asking.every(interval, pool, move |pool| ask_servers(pool, asker, askers, began, &tell));
        }
        asking.every(interval, pool, move |pool| ask_map(pool, &tell));
        Ok(asking)
    }
}

impl Asking<Result<Counted>> {
    /// Begins: every `interval` all servers are asked at once what they have counted.
    pub fn counts(pool: &Pool, interval: Duration) -> Asking<Result<Counted>> {
        let began = Instant::now();
        let (tell, events) = channel();
        let mut asking = Asking::new(events);
        asking.every(interval, pool, move |pool| {
            reconnect_ended(pool);
            let _ = tell.send(counted_of(pool, began));
        });
        asking
    }
}

impl<E> Asking<E> {
    fn new(events: Receiver<E>) -> Asking<E> {
        let (end, ended) = channel();
        Asking { events, stops: Vec::new(), end: Some(end), ended }
    }

    /// Starts a thread that does this every `interval`.
    fn every(&mut self, interval: Duration, pool: &Pool, mut ask: impl FnMut(&Pool) + Send + 'static) {
        let (stop, stopped) = channel();
        self.stops.push(stop);
        let (pool, end) = (pool.clone(), self.end.clone());
        std::thread::spawn(move || {
            repeat(interval, &stopped, || ask(&pool));
            // The session ends with its last pool, before the process does.
            drop(pool);
            drop(end);
        });
    }

    /// What has arrived since it was asked last.
    pub fn arrived(&self) -> impl Iterator<Item = E> + '_ {
        self.events.try_iter()
    }
}

impl<E> Drop for Asking<E> {
    fn drop(&mut self) {
        self.stops.clear();
        self.end = None;
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

/// A machine that was suspended finds its session over.
fn reconnect_ended(pool: &Pool) {
    if pool.is_ended() {
        let _ = pool.reconnect();
    }
}

fn ask_map(pool: &Pool, tell: &Sender<Event>) {
    reconnect_ended(pool);
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
        let _ = tell.send(Event::Answer { server: entry.server.0, at_millis: millis_since(began), status });
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

/// What all servers have counted.
pub fn counted_of(pool: &Pool, began: Instant) -> Result<Counted> {
    let told = pool.metrics()?;
    let complete = told.iter().all(|(_, metrics)| metrics.is_ok());
    let answered = told.into_iter().filter_map(|(entry, answer)| {
        let Timed { reply: metrics, at } = answer.ok()?;
        let at_millis = as_millis(at.saturating_duration_since(began));
        Some(CountedBy { server: entry.server.0, at_millis, metrics })
    });
    Ok(Counted { answers: answered.collect(), complete })
}

/// How long ago that was.
pub fn millis_since(began: Instant) -> u64 {
    as_millis(began.elapsed())
}

fn as_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

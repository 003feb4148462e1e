//! One thread for each server from which this session expects unsolicited news: recalls of leases and of
//! delegated slots, events that are waited for, and newer maps. It sends long polls (`Listen`) on a
//! connection of its own; these also show the server that the session lives.
//!
//! The next request acknowledges the news of the last reply. So this thread waits for no other reply of a
//! server while there is a connection: a thread of its own asks about the waits for which events may have
//! been lost, and ends when it has.
//!
//! The session is held only between two requests, so that the drop of the last file still ends it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Error, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_sync::Mutex;
use ramlace_wire::listen::{Listen, News};
use ramlace_wire::{Header, Kind};

use crate::client::Client;
use crate::session::heart::block_signals;
use crate::session::lines::{Link, Server, roundtrip_unless_late};
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;

/// When a reply has not come so long after its request, the server counts as not answering calls either.
const LATE_MILLIS: u64 = limits::LISTEN_MILLIS_MAX + SIGN_OF_LIFE_MILLIS_MAX;
/// When there is no reply for this long, the request counts as lost.
const LOST_MILLIS: u64 = limits::LISTEN_MILLIS_MAX + 3_000;
/// The time limit for a new connection.
const CONNECT_MILLIS_MAX: u64 = 2_000;
/// An incarnation that no server has: asked with it, each server answers at once with its own.
const NO_LIFE: u64 = u64::MAX;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);
/// The same while some thread waits for events of the server.
const PAUSE_OF_WAITS: Duration = Duration::from_millis(100);
/// After so many failures the map is refreshed, to find out whether the server was forgotten. While a thread
/// waits for its events, this is done after each failure.
const FAILURES_PER_LOOK: u32 = 4;

/// The servers for which a listening thread runs. Lock order: this one, then that of the session's waits.
#[derive(Default)]
pub(crate) struct Listening {
    servers: Mutex<HashSet<ServerId>>,
}

impl Client {
    /// Makes sure that a thread listens to the server of a slot.
    pub(crate) fn listen_to(self: &Arc<Client>, slot: Slot) -> Result<()> {
        let map = self.map()?;
        let server = self.server_of(&map, slot)?.id;
        self.listen_to_server(server)
    }

    pub(crate) fn listen_to_server(self: &Arc<Client>, server: ServerId) -> Result<()> {
        if !self.listening.servers.lock().insert(server) {
            return Ok(());
        }
        let listener = Listener { client: Arc::downgrade(self), server };
        let started = std::thread::Builder::new().name("ramlace-listens".into()).spawn(move || {
            block_signals();
            listener.run();
        });
        started.map(drop).map_err(|error| {
            self.listening.servers.lock().remove(&server);
            Error::from_io(&error, "starting a thread that listens to a server")
        })
    }

    /// Whether this process uses leases.
    fn has_leases(&self) -> bool {
        self.callbacks.on_recall.get().is_some() || self.callbacks.data_leases.get().is_some()
    }

    /// Whether some thread waits for events of this server.
    fn waits_at(&self, server: ServerId) -> bool {
        self.waits.slots().into_iter().any(|slot| self.is_home(server, slot))
    }

    /// Whether a slot belongs to a server, as far as is known.
    fn is_home(&self, server: ServerId, slot: Slot) -> bool {
        self.known_map().is_some_and(|map| map.primary(slot) == Some(server))
    }
}

struct Listener {
    client: Weak<Client>,
    server: ServerId,
}

/// A connection, and its next request.
struct Stream {
    link: Link,
    next: Listen,
    /// There was no reply on it yet.
    is_new: bool,
}

/// What the thread does next.
enum Step {
    Ask(Box<Stream>, Arc<Server>, Header),
    Pause(Duration),
    End,
}

impl Listener {
    fn run(&self) {
        let (mut stream, mut failures) = (None, 0);
        loop {
            match self.prepare(stream.take(), &mut failures) {
                Step::Ask(mut asked, server, header) => {
                    let begun = Instant::now();
                    let late = begun + Duration::from_millis(LATE_MILLIS);
                    let lost = begun + Duration::from_millis(LOST_MILLIS);
                    server.note_poll(Some(begun));
                    let unheard = server.heard().ends_at().map_or(lost, |at| at.min(lost));
                    let mut note_late = || server.note_answer(false);
                    let mut give_up = || self.give_up_when_unheard(&server);
                    let late: &mut [(Instant, &mut dyn FnMut())] =
                        &mut [(late, &mut note_late), (unheard, &mut give_up)];
                    let news = roundtrip_unless_late(&mut asked.link, header, &asked.next, late, lost);
                    stream = self.receive(*asked, &server, (begun, header.epoch), news);
                    if stream.is_none() {
                        server.note_poll(None);
                    }
                }
                Step::Pause(pause) => std::thread::sleep(pause),
                Step::End => return,
            }
        }
    }

    /// A connection on which the next request can be sent, unless the thread is to end.
    fn prepare(&self, stream: Option<Stream>, failures: &mut u32) -> Step {
        let Some(client) = self.client.upgrade() else { return Step::End };
        if let Some(error) = client.ended.get() {
            // No new wait begins in an ended session, but those that are being ended may still be in the
            // table.
            client.waits.fail_all(error);
            client.waits.wake_all(|_| true);
            if client.server(self.server).is_ok_and(|server| server.heard().end()) {
                self.give_up(&client);
            }
            return if client.waits.slots().is_empty() { Step::End } else { Step::Pause(PAUSE_OF_WAITS) };
        }
        if self.is_forgotten(&client) {
            // It will not come back, and no thread is started for it again.
            self.move_waits(&client);
            client.stop_listening_to(self.server);
            return Step::End;
        }
        if let Ok(server) = client.server(self.server) {
            self.give_up_when_unheard(&server);
        }
        let stream = match stream {
            Some(stream) => stream,
            None => {
                if self.ends(&client) {
                    self.move_waits(&client);
                    return Step::End;
                }
                match self.begin(&client) {
                    Ok(stream) => {
                        *failures = 0;
                        stream
                    }
                    Err(_) => {
                        *failures += 1;
                        return self.after_failure(&client, *failures);
                    }
                }
            }
        };
        let Ok(server) = client.server(self.server) else { return Step::Pause(PAUSE) };
        let lost = Instant::now() + Duration::from_millis(LOST_MILLIS);
        let epoch = client.known_map().map_or(Epoch(0), |map| map.epoch);
        Step::Ask(Box::new(stream), server, client.header(Kind::Listen, None, lost, epoch))
    }

    /// Whether there is nothing left to listen for; then the next caller starts another thread.
    fn ends(&self, client: &Client) -> bool {
        let mut servers = client.listening.servers.lock();
        let ends = !client.has_leases() && !client.waits_at(self.server);
        if ends {
            servers.remove(&self.server);
        }
        ends
    }

    /// Connects. The server may have restarted, so nothing of before is acknowledged. The first request is
    /// answered at once: it displaces older ones, and what is asked afterwards misses no event.
    fn begin(&self, client: &Arc<Client>) -> Result<Stream> {
        let server = client.server(self.server)?;
        let deadline = connects_until(&server);
        let link = client.connect(&server, deadline).map_err(|failure| failure.error)?;
        let next = Listen { leases: client.has_leases(), acknowledged: 0, received: 0, life: NO_LIFE };
        Ok(Stream { link, next, is_new: true })
    }

    /// The server does not answer: its slots may have moved to others.
    fn after_failure(&self, client: &Arc<Client>, failures: u32) -> Step {
        let (waits, server) = (client.waits_at(self.server), client.server(self.server));
        if waits || failures.is_multiple_of(FAILURES_PER_LOOK) {
            let deadline = server.as_ref().map_or_else(|_| usual_deadline(), |server| connects_until(server));
            let _ = client.refresh_map_without(Some(self.server), deadline);
        }
        self.move_waits(client);
        let pause = if waits { PAUSE_OF_WAITS } else { PAUSE };
        let Ok(server) = server else { return Step::Pause(pause) };
        self.give_up_when_unheard(&server);
        let left = server.heard().ends_at().map(|at| at.saturating_duration_since(Instant::now()));
        Step::Pause(left.map_or(pause, |left| left.min(pause)))
    }

    /// Whether the server was forgotten: its slots belong to others for good.
    fn is_forgotten(&self, client: &Client) -> bool {
        let map = client.known_map();
        map.and_then(|map| Some(map.server(self.server)?.forgotten)).unwrap_or_default()
    }

    /// Drops what is cached of the server's bytes, if nothing was heard of it for so long that it may have stopped
    /// waiting for this process.
    fn give_up_when_unheard(&self, server: &Server) {
        if server.heard().gives_up(Instant::now())
            && let Some(client) = self.client.upgrade()
        {
            self.give_up(&client);
        }
    }

    fn give_up(&self, client: &Client) {
        if let Some(leases) = client.callbacks.data_leases.get() {
            leases.unheard(self.server);
        }
    }

    /// Handles a reply to a request that was sent after `begun`; returns the connection with the next request, if
    /// there is to be one.
    fn receive(
        &self,
        stream: Stream,
        server: &Server,
        (begun, epoch): (Instant, Epoch),
        news: Result<News>,
    ) -> Option<Stream> {
        let client = self.client.upgrade()?;
        let news = match news {
            Ok(news) => news,
            Err(error) => {
                if error.kind() == ErrorKind::Stale {
                    client.end(&error);
                }
                return None;
            }
        };
        server.note_answer(true);
        // This thread may have been stopped since it sent the request.
        self.give_up_when_unheard(server);
        let heard = heard_as_of(begun, &news);
        let (Stream { link, next, is_new }, life) = (stream, news.life);
        if is_new && self.ask_for_waits(&client).is_err() {
            return None;
        }
        let newest = news.recalls.iter().map(|recall| recall.number).max();
        let newest_data = news.data.iter().map(|recall| recall.number).max();
        // There is nothing to listen for: the next caller starts another thread.
        let is_idle = !is_new && !client.has_leases() && !client.waits_at(self.server);
        if is_idle && news.events.is_empty() {
            return None;
        }
        // First, since it takes no time.
        client.deliver_events(&news.events);
        // Before the recalls of bytes: a cache of bytes uses none without the leased size, so recalls of that
        // have to end first.
        if newest.is_some()
            && let Some(on_recall) = client.callbacks.on_recall.get()
        {
            on_recall(&news.recalls);
            client.hasten_recalled(&news.recalls);
        }
        client.want_back(&news.delegations);
        if next.leases {
            client.pass_on_data_recalls(self.server, life, &news.data);
            if let Some(as_of) = heard {
                server.heard().note(as_of);
            }
            client.renewals.note_done(self.server, (life, epoch), newest);
        }
        if let Some(map) = news.map {
            client.adopt_map(map).ok()?;
            self.move_waits(&client);
        }
        let (acknowledged, received) =
            (newest.unwrap_or(next.acknowledged), newest_data.unwrap_or(next.received));
        Some(Stream {
            link,
            next: Listen { leases: client.has_leases(), acknowledged, received, life },
            is_new: false,
        })
    }

    /// Events may have been lost: a new thread asks about every wait.
    ///
    /// Errors: that thread cannot be started.
    fn ask_for_waits(&self, client: &Arc<Client>) -> Result<()> {
        let (server, here) = (self.server, |slot| client.is_home(self.server, slot));
        client.waits.wake_all(here);
        let mut waits = client.waits.to_ask(here);
        if waits.is_empty() {
            return Ok(());
        }
        let weak = self.client.clone();
        let asks = move || {
            block_signals();
            while let Some(client) = weak.upgrade() {
                if client.ask_for_all(waits) || client.is_ended() {
                    return;
                }
                drop(client);
                std::thread::sleep(PAUSE_OF_WAITS);
                let Some(client) = weak.upgrade() else { return };
                waits = client.waits.to_ask(|slot| client.is_home(server, slot));
            }
        };
        let started = std::thread::Builder::new().name("ramlace-asks".into()).spawn(asks);
        started.map(drop).map_err(|error| Error::from_io(&error, "starting a thread that asks about waits"))
    }

    /// Waits that belong to another server now: makes sure that a thread listens to that one.
    fn move_waits(&self, client: &Arc<Client>) {
        for slot in client.waits.slots() {
            if !client.is_home(self.server, slot) {
                // If the thread cannot be started now, the next wait starts it.
                let _ = client.listen_to(slot);
            }
        }
    }
}

/// The moment up to which no recall of bytes is missing in an answer, if that has room for all.
fn heard_as_of(begun: Instant, news: &News) -> Option<Instant> {
    let is_all = news.data.len() < limits::EVENTS_PER_ANSWER_MAX;
    let waited = Duration::from_millis(u64::from(news.waited_millis));
    is_all.then(|| begun + waited.min(begun.elapsed()))
}

fn usual_deadline() -> Instant {
    Instant::now() + Duration::from_millis(CONNECT_MILLIS_MAX)
}

/// Until when to wait for a connection: not beyond the time at which what is cached has to go.
fn connects_until(server: &Server) -> Instant {
    let usual = usual_deadline();
    server.heard().ends_at().map_or(usual, |at| at.min(usual))
}

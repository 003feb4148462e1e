//! One thread for each server at which something is waited for: it keeps a question for events open, on a
//! connection of its own, as long as somebody waits.
//!
//! It holds the session only between two questions, so that the last file's drop still ends the session. Whenever it
//! has a new connection it asks about every wait: what was told on the old one may be lost.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_wire::Header;
use ramlace_wire::locks::{Event, Events, WaitEvents};

use crate::client::Client;
use crate::coordination::parked::Wake;
use crate::session::heart::block_signals;
use crate::session::lines::{Link, roundtrip};

/// A question that is not answered for so long was lost.
const QUESTION_MILLIS_MAX: u64 = limits::EVENTS_MILLIS_MAX + 3_000;
/// How long a new connection may take.
const CONNECT_MILLIS_MAX: u64 = 2_000;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(100);

impl Client {
    /// Makes sure that somebody hears of the events of a slot.
    pub(crate) fn listen_to(self: &Arc<Client>, slot: Slot) -> Result<()> {
        let map = self.map()?;
        let server = self.server_of(&map, slot)?.id;
        if !self.waits.begin_listening(server) {
            return Ok(());
        }
        let listener = Listener { session: Arc::downgrade(self), server };
        let started = std::thread::Builder::new().name("ramlace-events".into()).spawn(move || {
            block_signals();
            listener.run();
        });
        started.map(drop).map_err(|error| {
            self.waits.end_listening(server, |_| false);
            Error::from_io(&error, "starting a thread that hears of events")
        })
    }

    /// Whether a slot is a server's, as far as is known.
    fn is_home(&self, server: ServerId, slot: Slot) -> bool {
        self.known_map().is_some_and(|map| map.primary(slot) == Some(server))
    }
}

struct Listener {
    session: Weak<Client>,
    server: ServerId,
}

/// What follows from a step.
enum Next {
    Ask(Box<(Link, Header)>),
    Pause,
    End,
}

impl Listener {
    fn run(&self) {
        let mut link = None;
        loop {
            match self.prepare(link.take()) {
                Next::Ask(asked) => {
                    let (mut asked, header) = *asked;
                    let deadline = Instant::now() + Duration::from_millis(QUESTION_MILLIS_MAX);
                    let heard = roundtrip(&mut asked, header, &WaitEvents { begins: false }, deadline);
                    if self.hear(heard) {
                        link = Some(asked);
                    }
                }
                Next::Pause => std::thread::sleep(PAUSE),
                Next::End => return,
            }
        }
    }

    /// A connection on which the next question can be asked, unless it is all over.
    fn prepare(&self, link: Option<Link>) -> Next {
        let Some(session) = self.session.upgrade() else { return Next::End };
        if let Some(error) = session.ended.get() {
            // Nobody begins to wait in it any more, but for those who are just being told.
            session.waits.fail_all(error);
            session.waits.wake_all(|_| true);
            return if session.waits.slots().is_empty() { Next::End } else { Next::Pause };
        }
        let here = |slot| session.is_home(self.server, slot);
        let link = match link {
            Some(link) => link,
            None => {
                if session.waits.end_listening(self.server, here) {
                    self.hand_over(&session);
                    return Next::End;
                }
                let Ok(link) = self.connect(&session) else {
                    self.look_for_new_homes(&session);
                    return Next::Pause;
                };
                session.waits.wake_all(here);
                if !session.ask_for_all(session.waits.begin_asking(here)) {
                    return Next::Pause;
                }
                link
            }
        };
        let deadline = Instant::now() + Duration::from_millis(QUESTION_MILLIS_MAX);
        let epoch = session.known_map().map_or(ramlace_base::Epoch(0), |map| map.epoch);
        let header = session.header(ramlace_wire::Kind::WaitEvents, None, deadline, epoch);
        Next::Ask(Box::new((link, header)))
    }

    /// Connects, and makes older questions of this session give way.
    fn connect(&self, session: &Arc<Client>) -> Result<Link> {
        let deadline = Instant::now() + Duration::from_millis(CONNECT_MILLIS_MAX);
        let server = session.server(self.server)?;
        let mut link = session.connect(&server, deadline).map_err(|failure| failure.error)?;
        let header = session.header(ramlace_wire::Kind::WaitEvents, None, deadline, ramlace_base::Epoch(0));
        let events = roundtrip(&mut link, header, &WaitEvents { begins: true }, deadline)?;
        tell(session, events);
        Ok(link)
    }

    /// Takes in an answer; whether the connection can be used again.
    fn hear(&self, heard: Result<Events>) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        match heard {
            Ok(events) if events.events.is_empty() => {
                let here = |slot| session.is_home(self.server, slot);
                // Where nobody waits the next step ends the thread, unless somebody comes.
                session.waits.slots().into_iter().any(here)
            }
            Ok(events) => {
                tell(&session, events);
                true
            }
            Err(error) => {
                if error.kind() == ErrorKind::Stale {
                    session.end(&error);
                }
                false
            }
        }
    }

    /// The server does not answer: its slots may have gone to others.
    fn look_for_new_homes(&self, session: &Arc<Client>) {
        let deadline = Instant::now() + Duration::from_millis(CONNECT_MILLIS_MAX);
        let _ = session.refresh_map_without(Some(self.server), deadline);
        self.hand_over(session);
    }

    /// Who waits at another server hears of that one's events.
    fn hand_over(&self, session: &Arc<Client>) {
        for slot in session.waits.slots() {
            if !session.is_home(self.server, slot) {
                // A thread that cannot be started now is started by the next wait.
                let _ = session.listen_to(slot);
            }
        }
    }
}

fn tell(session: &Client, events: Events) {
    for event in events.events {
        match event {
            Event::LockGranted { wait, file, .. } => session.waits.granted(wait, file),
            Event::BarrierPassed { wait, round } => session.waits.wake(wait, Wake::Passed(round)),
            Event::Changed { wait, lane, number } => session.waits.wake(wait, Wake::Changed(lane, number)),
        }
    }
}

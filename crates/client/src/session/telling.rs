//! Telling servers what they are owed ([`crate::session::outbox`]): by the heart when it is time, and by whoever must not say anything new before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::outbox::{Teller, Told};
use crate::session::owed::{Heard, Home, Message, Owes, Subject};
use crate::session::retry::is_unheard;

/// How long the heart waits for one answer: with it and all heartbeats there is time left until a session expires.
const PATIENCE_MILLIS_MAX: u64 = 1_000;

impl Session {
    /// A server has yet to hear this; false when too much of its kind is owed already: then it ends with the session.
    pub(crate) fn owe(&self, message: Message) -> bool {
        match self.outbox.owe(message, Instant::now()) {
            Owes::TooMuch => return false,
            Owes::Later => {}
            Owes::Sooner => self.heart.wake(),
        }
        true
    }

    /// Returns when the home has heard all that is owed about a subject; whoever comes while another tells it has the same answer.
    ///
    /// Errors: it did not hear.
    pub(crate) fn tell(self: &Arc<Session>, subject: Subject, deadline: Instant) -> Result<()> {
        while let Some(teller) = self.outbox.teller(subject) {
            match teller {
                Teller::Me(told) => {
                    let outcome = self.tell_all_of(&told, None, || Some(deadline));
                    // Those who wait hear it, too, but for an end of this thread's time: others have more, perhaps.
                    let late = |error: &Error| {
                        error.kind() == ErrorKind::TimedOut || Backoff::is_over(Instant::now(), deadline)
                    };
                    told.end(&outcome, !outcome.as_ref().is_err_and(late));
                    return outcome;
                }
                Teller::Another(telling) => {
                    if let Some(Err(error)) = telling.wait(subject.home(), deadline) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells the homes whose time has come, and whose servers answer; what is not begun until then is left to the next round.
    pub(crate) fn tell_due(self: &Arc<Session>, until: Instant) {
        let round = self.outbox.begin_round();
        loop {
            let now = Instant::now();
            if now >= until || self.is_ended() {
                return;
            }
            let Some(told) = self.outbox.take_up_next(round, now, |home| self.is_silent(home)) else {
                return;
            };
            let in_time = || {
                let now = Instant::now();
                (now < until).then(|| now + Duration::from_millis(PATIENCE_MILLIS_MAX))
            };
            let outcome = self.tell_all_of(&told, Some(round), in_time);
            if let Err(error) = &outcome {
                tracing::debug!(target: "ramlace::client", %error, "a home did not hear what it is owed");
            }
            told.end(&outcome, false);
        }
    }

    /// Tells what is owed about one subject; `by` gives each message its deadline, as long as there is time for more.
    fn tell_all_of(
        self: &Arc<Session>,
        told: &Told<'_>,
        round: Option<u64>,
        by: impl Fn() -> Option<Instant>,
    ) -> Result<()> {
        while let (Some(message), Some(deadline)) = (told.message(round), by()) {
            match self.tell_one(&message, deadline)? {
                Heard::Yes => told.is_told(),
                Heard::NotYet => break,
            }
        }
        Ok(())
    }

    fn tell_one(self: &Arc<Session>, message: &Message, deadline: Instant) -> Result<Heard> {
        if let Message::GiveUp(kept) = message {
            return self.tell_given_up(*kept, deadline);
        }
        let nobody = || Error::new(ErrorKind::Stale, "nobody stands on this session any more");
        self.above().ok_or_else(nobody)?.tell(message, deadline)
    }

    /// What became of telling: a home that says no knows nothing of it any more, and neither does one of an ended session.
    pub(crate) fn unless_unheard(&self, told: Result<()>) -> Result<Heard> {
        match told {
            Err(error) if is_unheard(&error) && !self.is_ended() => Err(error),
            _ => Ok(Heard::Yes),
        }
    }

    /// Whether nothing is to be told to a home before its server has answered a heartbeat. One that never knew the session has none.
    fn is_silent(&self, home: Home) -> bool {
        let map = self.known_map();
        let server = match home {
            Home::Slot(slot) => map.and_then(|map| self.server_of(&map, slot).ok()),
            Home::Server(server) => self.server(server).ok(),
        };
        server.is_some_and(|server| server.is_failing() && server.opened.load(Ordering::Acquire))
    }
}

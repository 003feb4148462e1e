//! Sends pending messages ([`crate::session::outbox`]): by the heartbeat thread when they are due, and by
//! threads that must not send anything newer before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::outbox::{Sending, SentBy};
use crate::session::pending::{Acknowledged, Added, Home, Message, Subject};
use crate::session::retry::{is_unacknowledged, lacks_room};

/// How long the heartbeat thread waits for one answer: together with all heartbeats that is less than the
/// expiry of a session.
const PATIENCE_MILLIS_MAX: u64 = 1_000;

impl Session {
    /// Adds a message to the outbox; false when its limit is reached: then the end of the session takes care
    /// of it.
    pub(crate) fn send_later(&self, message: Message) -> bool {
        match self.outbox.add(message, Instant::now()) {
            Added::TooMuch => return false,
            Added::Later => {}
            Added::Sooner => self.heart.wake(),
        }
        true
    }

    /// Returns when the home has acknowledged all messages about a subject; threads that come while another
    /// sends them share its outcome.
    ///
    /// Errors: the home did not answer.
    pub(crate) fn send_pending(self: &Arc<Session>, subject: Subject, deadline: Instant) -> Result<()> {
        while let Some(by) = self.outbox.sent_by(subject) {
            match by {
                SentBy::Me(sending) => {
                    let outcome = self.send_all_of(&sending, None, || Some(deadline));
                    // Waiting threads get the error too, unless it means that this thread's time is over:
                    // they may have more.
                    let late = |error: &Error| {
                        error.kind() == ErrorKind::TimedOut || Backoff::is_over(Instant::now(), deadline)
                    };
                    sending.end(&outcome, !outcome.as_ref().is_err_and(late));
                    return outcome;
                }
                SentBy::Another(shared) => {
                    if let Some(Err(error)) = shared.wait(subject.home(), deadline) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends messages to the homes that are due and whose servers answer; what has not begun by `until` is
    /// left to the next round.
    pub(crate) fn send_due(self: &Arc<Session>, until: Instant) {
        let round = self.outbox.begin_round();
        loop {
            let now = Instant::now();
            if now >= until || self.is_ended() {
                return;
            }
            let Some(sending) = self.outbox.take_up_next(round, now, |home| self.is_silent(home)) else {
                return;
            };
            let in_time = || {
                let now = Instant::now();
                (now < until).then(|| now + Duration::from_millis(PATIENCE_MILLIS_MAX))
            };
            let outcome = self.send_all_of(&sending, Some(round), in_time);
            if let Err(error) = &outcome {
                tracing::debug!(target: "ramlace::client", %error, "a home did not acknowledge what is pending for it");
            }
            sending.end(&outcome, false);
        }
    }

    /// Sends the messages about one subject; `by` gives each its deadline, as long as there is time.
    fn send_all_of(
        self: &Arc<Session>,
        sending: &Sending<'_>,
        round: Option<u64>,
        by: impl Fn() -> Option<Instant>,
    ) -> Result<()> {
        while let (Some(message), Some(deadline)) = (sending.message(round), by()) {
            match self.send_one(&message, deadline)? {
                Acknowledged::Yes => sending.acknowledged(),
                Acknowledged::NotYet => break,
            }
        }
        Ok(())
    }

    fn send_one(self: &Arc<Session>, message: &Message, deadline: Instant) -> Result<Acknowledged> {
        if let Message::CancelChange(kept) = message {
            return self.tell_cancelled_change(*kept, deadline);
        }
        let nobody = || Error::new(ErrorKind::Stale, "nobody stands on this session any more");
        self.above().ok_or_else(nobody)?.send(message, deadline)
    }

    /// The outcome of a message: one that the home refuses counts as delivered, and so does one of an ended
    /// session. A home without room will be sent it again.
    pub(crate) fn unless_unacknowledged(&self, outcome: Result<()>) -> Result<Acknowledged> {
        match outcome {
            Err(error) if (is_unacknowledged(&error) || lacks_room(&error)) && !self.is_ended() => Err(error),
            _ => Ok(Acknowledged::Yes),
        }
    }

    /// Whether a home gets no message before its server has answered a heartbeat. A server that never knew
    /// the session gets no heartbeats.
    fn is_silent(&self, home: Home) -> bool {
        let map = self.known_map();
        let server = match home {
            Home::Slot(slot) => map.and_then(|map| self.server_of(&map, slot).ok()),
            Home::Server(server) => self.server(server).ok(),
        };
        server.is_some_and(|server| server.is_failing() && server.opened.load(Ordering::Acquire))
    }
}

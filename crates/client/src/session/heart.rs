//! One thread for each session that sends heartbeats, the session's pending messages and its deferred closes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, Result, limits};
use ramlace_sync::{Condvar, Mutex};

use crate::session::Session;

/// How long the heartbeats to all servers may take together: several rounds fit into a session's expiry.
const BEAT_MILLIS_MAX: u64 = 3_000;
/// The time for pending messages between two rounds of heartbeats, even where silent servers make these long.
const TELL: Duration = Duration::from_millis(500);

/// What the thread waits for.
#[derive(Default)]
pub(crate) struct Heart {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// It shall compute anew how long to sleep.
    woken: bool,
}

impl Heart {
    /// A pending message is due before the thread would wake by itself.
    pub(crate) fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Sleeps until `until`, or until it is woken; false when the thread is to end.
    fn sleep(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.stopped {
            let left = until.saturating_duration_since(Instant::now());
            if std::mem::take(&mut state.woken) || left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left);
        }
        false
    }

    /// Starts the thread; it holds the session only while it works.
    pub(crate) fn start(heart: &Arc<Heart>, session: Weak<Session>) -> Result<()> {
        let heart = heart.clone();
        let started = std::thread::Builder::new().name("ramlace-heart".into()).spawn(move || {
            block_signals();
            heart.run(&session);
        });
        started
            .map(drop)
            .map_err(|error| Error::from_io(&error, "starting the thread that keeps the session alive"))
    }

    fn run(&self, session: &Weak<Session>) {
        let mut beat_at = Instant::now() + Duration::from_millis(limits::HEARTBEAT_MILLIS);
        let mut tell_at: Option<Instant> = None;
        loop {
            if !self.sleep(tell_at.map_or(beat_at, |tell_at| tell_at.min(beat_at))) {
                return;
            }
            let Some(session) = session.upgrade() else { return };
            if session.is_ended() {
                return session.disconnect();
            }
            let now = Instant::now();
            if now >= beat_at {
                session.beat(now + Duration::from_millis(BEAT_MILLIS_MAX));
                session.outbox.note_signs_of_life(now);
                beat_at = now + Duration::from_millis(limits::HEARTBEAT_MILLIS);
            }
            if session.outbox.wake_at().is_some_and(|tell_at| now >= tell_at) {
                session.send_due(beat_at.max(Instant::now() + TELL));
            }
            let closes_at =
                session.above().and_then(|above| above.close_due(beat_at.max(Instant::now() + TELL)));
            tell_at = [session.outbox.wake_at(), closes_at].into_iter().flatten().min();
        }
    }
}

/// Signals are for the program to handle: none is delivered to this thread.
pub(crate) fn block_signals() {
    // SAFETY: the set is a local that `sigfillset` initialises; only this thread's mask changes.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

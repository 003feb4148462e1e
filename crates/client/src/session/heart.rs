//! One thread for each session that says "still alive" and tells homes when files were written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, Result, limits};
use ramlace_sync::{Condvar, Mutex};

use crate::session::Session;

/// Times of written files reach their homes after so long at the latest (`docs/records/generations.md`).
const PUSH_MILLIS: u64 = 1_000;
/// How long one beat may take for all servers together: several fit into a session's expiry.
const BEAT_MILLIS_MAX: u64 = 3_000;

/// What the thread waits for.
#[derive(Default)]
pub(crate) struct Heart {
    state: Mutex<State>,
    changed: Condvar,
    times_changed: AtomicBool,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// It is to look anew until when it sleeps.
    woken: bool,
}

impl Heart {
    /// Some open file was written without its home.
    pub(crate) fn times_changed(&self) {
        if !self.times_changed.swap(true, Ordering::AcqRel) {
            // Under the lock, so that the thread cannot miss it between looking and waiting.
            drop(self.state.lock());
            self.changed.notify_one();
        }
    }

    /// Something is owed that has to be told before it would wake by itself.
    pub(crate) fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Sleeps until `until`, or until it is woken or times change for the first time; false when it is over.
    fn sleep(&self, until: Instant, watch_times: bool) -> bool {
        let mut state = self.state.lock();
        while !state.stopped {
            let left = until.saturating_duration_since(Instant::now());
            let woken = std::mem::take(&mut state.woken);
            if woken || left.is_zero() || (watch_times && self.times_changed.load(Ordering::Acquire)) {
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
        let mut push_at: Option<Instant> = None;
        let mut tell_at: Option<Instant> = None;
        loop {
            let wake_at = [push_at, tell_at].into_iter().flatten().fold(beat_at, Instant::min);
            if !self.sleep(wake_at, push_at.is_none()) {
                return;
            }
            let Some(session) = session.upgrade() else { return };
            if session.is_ended() {
                return session.disconnect();
            }
            let now = Instant::now();
            if now >= beat_at {
                session.beat(now + Duration::from_millis(BEAT_MILLIS_MAX));
                session.outbox.hear_of_life(now);
                beat_at = now + Duration::from_millis(limits::HEARTBEAT_MILLIS);
            }
            if session.outbox.wake_at().is_some_and(|tell_at| now >= tell_at) {
                session.tell_due(beat_at);
            }
            tell_at = session.outbox.wake_at();
            if push_at.is_some_and(|push_at| now >= push_at) {
                push_at = None;
                self.times_changed.store(false, Ordering::Release);
                if !session.tell_times(now + Duration::from_millis(PUSH_MILLIS)) {
                    self.times_changed.store(true, Ordering::Release);
                }
            }
            if push_at.is_none() && self.times_changed.load(Ordering::Acquire) {
                push_at = Some(now + Duration::from_millis(PUSH_MILLIS));
            }
        }
    }
}

/// Signals are the program's business: none is delivered to this thread.
pub(crate) fn block_signals() {
    // SAFETY: the set is a local that `sigfillset` initialises; only this thread's mask changes.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

//! The outbox of a session ([`crate::session::pending`]), shared by the threads that add messages and those that
//! send them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::{Condvar, Mutex};

use crate::session::pending::{Added, Home, Message, PendingMessages, Subject, TakenUp};

#[derive(Default)]
struct State {
    pending: PendingMessages,
    in_flight: HashMap<Subject, Arc<SharedOutcome>>,
}

/// A session's pending messages. Its lock and that of a [`SharedOutcome`] are never held together, and no message
/// is sent under either.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The number of messages: nearly always 0.
    count: AtomicUsize,
    state: Mutex<State>,
}

/// A thread is sending the messages about a subject.
#[derive(Default)]
pub(crate) struct SharedOutcome {
    /// `None` inside: others are to try themselves.
    outcome: Mutex<Option<Option<Result<()>>>>,
    over: Condvar,
}

/// The thread that sends.
pub(crate) enum SentBy<'a> {
    /// The caller, which then reports the outcome.
    Me(Sending<'a>),
    /// Another thread.
    Another(Arc<SharedOutcome>),
}

/// A subject that this thread has taken up; when dropped, it puts the subject down and reports the outcome.
pub(crate) struct Sending<'a> {
    outbox: &'a Outbox,
    subject: Subject,
    shared: Arc<SharedOutcome>,
    unacknowledged: bool,
    outcome: Option<Result<()>>,
}

impl Outbox {
    /// The number of messages that are not acknowledged yet.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The number of them for each home.
    pub(crate) fn by_home(&self) -> HashMap<Home, usize> {
        if self.count() == 0 { HashMap::new() } else { self.with(|state| state.pending.by_home()) }
    }

    pub(crate) fn add(&self, message: Message, now: Instant) -> Added {
        self.with(|state| state.pending.add(message, now))
    }

    /// When the next message is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        if self.count() == 0 { None } else { self.with(|state| state.pending.wake_at()) }
    }

    /// Servers have shown signs of life.
    pub(crate) fn note_signs_of_life(&self, now: Instant) {
        if self.count() > 0 {
            self.with(|state| state.pending.note_signs_of_life(now));
        }
    }

    pub(crate) fn begin_round(&self) -> u64 {
        self.with(|state| state.pending.begin_round())
    }

    /// Takes up the subject that is due next in a round.
    pub(crate) fn take_up_next(
        &self,
        round: u64,
        now: Instant,
        silent: impl Fn(Home) -> bool,
    ) -> Option<Sending<'_>> {
        let (subject, shared) = self.with(|state| {
            let subject = state.pending.take_up_next(round, now, silent)?;
            Some((subject, state.begin_sending(subject)))
        })?;
        Some(Sending { outbox: self, subject, shared, unacknowledged: false, outcome: None })
    }

    /// The thread that sends the messages about a subject; `None`: there are none.
    pub(crate) fn sent_by(&self, subject: Subject) -> Option<SentBy<'_>> {
        if self.count() == 0 {
            return None;
        }
        self.with(|state| match state.pending.take_up(subject) {
            TakenUp::Nothing => None,
            TakenUp::ByAnother => Some(SentBy::Another(state.in_flight.get(&subject)?.clone())),
            TakenUp::ByCaller => {
                let shared = state.begin_sending(subject);
                Some(SentBy::Me(Sending {
                    outbox: self,
                    subject,
                    shared,
                    unacknowledged: false,
                    outcome: None,
                }))
            }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = work(&mut state);
        self.count.store(state.pending.count(), Ordering::Release);
        done
    }
}

impl State {
    fn begin_sending(&mut self, subject: Subject) -> Arc<SharedOutcome> {
        let shared = Arc::<SharedOutcome>::default();
        self.in_flight.insert(subject, shared.clone());
        shared
    }
}

impl Sending<'_> {
    /// The next message to send. With `round`: only if it was added before that round.
    pub(crate) fn message(&self, round: Option<u64>) -> Option<Message> {
        self.outbox.with(|state| state.pending.next_of(self.subject, round))
    }

    /// That message was acknowledged, or is void.
    pub(crate) fn acknowledged(&self) {
        self.outbox.with(|state| state.pending.acknowledged(self.subject));
    }

    /// Reports the final outcome. `shared`: waiting threads get it too.
    pub(crate) fn end(mut self, outcome: &Result<()>, shared: bool) {
        self.unacknowledged = outcome.is_err();
        self.outcome = shared.then(|| outcome.clone());
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.outbox.with(|state| {
            state.in_flight.remove(&self.subject);
            state.pending.put_down(self.subject, self.unacknowledged, Instant::now());
        });
        *self.shared.outcome.lock() = Some(self.outcome.take());
        self.shared.over.notify_all();
    }
}

impl SharedOutcome {
    /// Waits for the outcome; `None`: the caller is to try itself.
    pub(crate) fn wait(&self, home: Home, deadline: Instant) -> Option<Result<()>> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("{home} did not acknowledge in time what it must receive before this");
                return Some(Err(Error::new(ErrorKind::TimedOut, text)));
            }
            outcome = self.over.wait_timeout(outcome, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ramlace_base::{Sequence, Slot};

    use super::*;
    use crate::session::sequences::Kept;

    fn outbox_of(slots: [u16; 2]) -> (Outbox, [Subject; 2]) {
        let outbox = Outbox::default();
        for slot in slots {
            outbox
                .add(Message::CancelChange(Kept { slot: Slot(slot), sequence: Sequence(1) }), Instant::now());
        }
        (outbox, slots.map(|slot| Subject::CancelledChanges(Slot(slot))))
    }

    fn mine(by: Option<SentBy<'_>>) -> Sending<'_> {
        let Some(SentBy::Me(sending)) = by else { panic!("it is for nobody, or sending already") };
        sending
    }

    fn another(by: Option<SentBy<'_>>) -> Arc<SharedOutcome> {
        let Some(SentBy::Another(shared)) = by else { panic!("nobody sends it") };
        shared
    }

    // SEMANTICS 138.4
    #[test]
    fn one_thread_tells_a_slot_and_nobody_waits_for_another_slot() {
        let (outbox, [first, second]) = outbox_of([1, 2]);
        let sending = mine(outbox.sent_by(first));
        mine(outbox.sent_by(second));
        let waits = another(outbox.sent_by(first));
        let late = waits.wait(first.home(), Instant::now()).unwrap().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        sending.end(&Err(Error::new(ErrorKind::HostDown, "it says nothing")), true);
        let soon = Instant::now() + Duration::from_secs(10);
        assert_eq!(waits.wait(first.home(), soon).unwrap().unwrap_err().kind(), ErrorKind::HostDown);
        let sending = mine(outbox.sent_by(first));
        let waits = another(outbox.sent_by(first));
        sending.end(&Err(Error::new(ErrorKind::TimedOut, "it had a second")), false);
        assert!(waits.wait(first.home(), soon).is_none(), "others have more time, perhaps");
        let sending = mine(outbox.sent_by(first));
        assert!(sending.message(None).is_some());
        sending.acknowledged();
        assert_eq!(sending.message(None), None);
        sending.end(&Ok(()), true);
        assert!(outbox.sent_by(first).is_none());
        assert_eq!(outbox.count(), 1);
    }
}

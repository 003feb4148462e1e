//! The outbox of a session ([`crate::session::owed`]), shared by the threads that add messages and those that
//! send them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::{Condvar, Mutex};

use crate::session::owed::{Home, Message, Owed, Owes, Subject, TakenUp};

#[derive(Default)]
struct State {
    owed: Owed,
    telling: HashMap<Subject, Arc<Telling>>,
}

/// A session's pending messages. Its lock and that of a [`Telling`] are never held together, and no message
/// is sent under either.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The number of messages: nearly always 0.
    count: AtomicUsize,
    state: Mutex<State>,
}

/// A thread is sending the messages about a subject.
#[derive(Default)]
pub(crate) struct Telling {
    /// `None` inside: others are to try themselves.
    outcome: Mutex<Option<Option<Result<()>>>>,
    over: Condvar,
}

/// The thread that sends.
pub(crate) enum Teller<'a> {
    /// The caller, which then reports the outcome.
    Me(Sending<'a>),
    /// Another thread.
    Another(Arc<Telling>),
}

/// A subject that this thread has taken up; when dropped, it puts the subject down and reports the outcome.
pub(crate) struct Sending<'a> {
    outbox: &'a Outbox,
    subject: Subject,
    telling: Arc<Telling>,
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
        if self.count() == 0 { HashMap::new() } else { self.with(|state| state.owed.by_home()) }
    }

    pub(crate) fn owe(&self, message: Message, now: Instant) -> Owes {
        self.with(|state| state.owed.owe(message, now))
    }

    /// When the next message is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        if self.count() == 0 { None } else { self.with(|state| state.owed.wake_at()) }
    }

    /// Servers have shown signs of life.
    pub(crate) fn note_signs_of_life(&self, now: Instant) {
        if self.count() > 0 {
            self.with(|state| state.owed.note_signs_of_life(now));
        }
    }

    pub(crate) fn begin_round(&self) -> u64 {
        self.with(|state| state.owed.begin_round())
    }

    /// Takes up the subject that is due next in a round.
    pub(crate) fn take_up_next(
        &self,
        round: u64,
        now: Instant,
        silent: impl Fn(Home) -> bool,
    ) -> Option<Sending<'_>> {
        let (subject, telling) = self.with(|state| {
            let subject = state.owed.take_up_next(round, now, silent)?;
            Some((subject, state.begin_telling(subject)))
        })?;
        Some(Sending { outbox: self, subject, telling, unacknowledged: false, outcome: None })
    }

    /// The thread that sends the messages about a subject; `None`: there are none.
    pub(crate) fn teller(&self, subject: Subject) -> Option<Teller<'_>> {
        if self.count() == 0 {
            return None;
        }
        self.with(|state| match state.owed.take_up(subject) {
            TakenUp::Nothing => None,
            TakenUp::ByAnother => Some(Teller::Another(state.telling.get(&subject)?.clone())),
            TakenUp::ByCaller => {
                let telling = state.begin_telling(subject);
                Some(Teller::Me(Sending {
                    outbox: self,
                    subject,
                    telling,
                    unacknowledged: false,
                    outcome: None,
                }))
            }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = work(&mut state);
        self.count.store(state.owed.count(), Ordering::Release);
        done
    }
}

impl State {
    fn begin_telling(&mut self, subject: Subject) -> Arc<Telling> {
        let telling = Arc::<Telling>::default();
        self.telling.insert(subject, telling.clone());
        telling
    }
}

impl Sending<'_> {
    /// The next message to send. With `round`: only if it was added before that round.
    pub(crate) fn message(&self, round: Option<u64>) -> Option<Message> {
        self.outbox.with(|state| state.owed.next_of(self.subject, round))
    }

    /// That message was acknowledged, or is void.
    pub(crate) fn acknowledged(&self) {
        self.outbox.with(|state| state.owed.acknowledged(self.subject));
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
            state.telling.remove(&self.subject);
            state.owed.put_down(self.subject, self.unacknowledged, Instant::now());
        });
        *self.telling.outcome.lock() = Some(self.outcome.take());
        self.telling.over.notify_all();
    }
}

impl Telling {
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

    fn owing(slots: [u16; 2]) -> (Outbox, [Subject; 2]) {
        let outbox = Outbox::default();
        for slot in slots {
            outbox
                .owe(Message::CancelChange(Kept { slot: Slot(slot), sequence: Sequence(1) }), Instant::now());
        }
        (outbox, slots.map(|slot| Subject::CancelledChanges(Slot(slot))))
    }

    fn mine(teller: Option<Teller<'_>>) -> Sending<'_> {
        let Some(Teller::Me(sending)) = teller else { panic!("it is for nobody, or sending already") };
        sending
    }

    fn another(teller: Option<Teller<'_>>) -> Arc<Telling> {
        let Some(Teller::Another(telling)) = teller else { panic!("nobody tells it") };
        telling
    }

    // SEMANTICS 138.4
    #[test]
    fn one_thread_tells_a_slot_and_nobody_waits_for_another_slot() {
        let (outbox, [first, second]) = owing([1, 2]);
        let sending = mine(outbox.teller(first));
        mine(outbox.teller(second));
        let waits = another(outbox.teller(first));
        let late = waits.wait(first.home(), Instant::now()).unwrap().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        sending.end(&Err(Error::new(ErrorKind::HostDown, "it says nothing")), true);
        let soon = Instant::now() + Duration::from_secs(10);
        assert_eq!(waits.wait(first.home(), soon).unwrap().unwrap_err().kind(), ErrorKind::HostDown);
        let sending = mine(outbox.teller(first));
        let waits = another(outbox.teller(first));
        sending.end(&Err(Error::new(ErrorKind::TimedOut, "it had a second")), false);
        assert!(waits.wait(first.home(), soon).is_none(), "others have more time, perhaps");
        let sending = mine(outbox.teller(first));
        assert!(sending.message(None).is_some());
        sending.acknowledged();
        assert_eq!(sending.message(None), None);
        sending.end(&Ok(()), true);
        assert!(outbox.teller(first).is_none());
        assert_eq!(outbox.count(), 1);
    }
}

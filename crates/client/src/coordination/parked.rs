//! Threads of this process that wait for something other than a lock: at a barrier, or for a change of bytes.
//!
//! Each of them asks the servers itself, also once more when events may have been lost; the threads that
//! receive events only wake it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, Slot, limits};

use crate::coordination::waits::Waits;

/// The interval at which a waiting thread is asked whether to go on.
const STEP: Duration = Duration::from_millis(100);
/// The pause after a request that was not answered.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a thread is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The barrier's round is complete, with this number.
    Passed(u64),
    /// Bytes were changed: the lane, and its number afterwards.
    Changed(Option<u16>, u64),
    /// Something may have happened: ask again.
    AskAgain,
}

/// A member of a barrier: the barrier's name and the member's number.
type Member = (Vec<u8>, u32);

struct Entry {
    /// The slots whose servers report its events.
    slots: Vec<Slot>,
    member: Option<Member>,
    wake: SyncSender<Wake>,
}

/// The waiting threads.
#[derive(Default)]
pub(crate) struct Parked {
    last: u64,
    entries: HashMap<u64, Entry>,
}

impl Parked {
    /// The slots whose events some thread waits for.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.entries.values().flat_map(|entry| entry.slots.iter().copied())
    }
}

/// One thread's wait; ends when this is dropped.
pub(crate) struct Waiter<'a> {
    waits: &'a Waits,
    /// Its number in the session.
    pub(crate) wait: u64,
    receiver: Receiver<Wake>,
    /// When a request that was not answered is to be repeated.
    ask_at: Option<Instant>,
}

/// Why a sleep has ended.
pub(crate) enum Slept {
    /// An event, or a reason to ask again.
    Woken(Wake),
    /// The time limit has passed.
    Over,
}

impl Waits {
    /// Begins a wait for events of these slots.
    pub(crate) fn park(&self, slots: Vec<Slot>, member: Option<Member>) -> Result<Waiter<'_>> {
        let mut state = self.lock();
        let parked = &mut state.parked;
        if parked.entries.len() >= limits::PARKED_PER_PROCESS_MAX {
            let text =
                format!("{} threads of this process wait at barriers or for changes", parked.entries.len());
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        if let Some((_, number)) = &member
            && parked.entries.values().any(|entry| entry.member == member)
        {
            let text = format!("member {number} waits there already, in another thread of this process");
            return Err(Error::new(ErrorKind::Exists, text));
        }
        parked.last += 1;
        let wait = parked.last;
        // One message is enough: a thread that is woken checks for itself whether more has happened.
        let (wake, receiver) = sync_channel(1);
        parked.entries.insert(wait, Entry { slots, member, wake });
        Ok(Waiter { waits: self, wait, receiver, ask_at: None })
    }

    /// Delivers an event.
    pub(crate) fn wake(&self, wait: u64, wake: Wake) {
        if let Some(entry) = self.lock().parked.entries.get(&wait) {
            let _ = entry.wake.try_send(wake);
        }
    }

    /// Events of these slots may have been lost: their waiting threads are to ask again.
    pub(crate) fn wake_all(&self, is_here: impl Fn(Slot) -> bool) {
        for entry in self.lock().parked.entries.values() {
            if entry.slots.iter().any(|slot| is_here(*slot)) {
                let _ = entry.wake.try_send(Wake::AskAgain);
            }
        }
    }
}

impl Waiter<'_> {
    /// A request was not answered: it is repeated after a pause.
    pub(crate) fn ask_later(&mut self) {
        self.ask_at = Some(Instant::now() + PAUSE);
    }

    /// Sleeps until something happens, but no longer than `until`; `pause` is called several times a second
    /// and says whether to go on.
    pub(crate) fn sleep(
        &mut self,
        until: Option<Instant>,
        pause: &mut impl FnMut() -> Result<()>,
    ) -> Result<Slept> {
        loop {
            let now = Instant::now();
            let left = until.map_or(STEP, |until| until.saturating_duration_since(now).min(STEP));
            match self.receiver.recv_timeout(left) {
                Ok(wake) => return Ok(Slept::Woken(wake)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Stale, "the session has ended"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(Slept::Over);
            }
            pause()?;
            if self.ask_at.is_some_and(|ask_at| now >= ask_at) {
                self.ask_at = None;
                return Ok(Slept::Woken(Wake::AskAgain));
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waits.lock().parked.entries.remove(&self.wait);
    }
}

/// The end of a timeout that begins now; `None` if there is none.
pub(crate) fn end_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

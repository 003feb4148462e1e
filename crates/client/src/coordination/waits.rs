//! The locks that a session waits for: which thread waits, which asks the home, and what it learns.
//!
//! A wait has a number. It stays in the table until it is granted, refused or cancelled; the thread that
//! takes it out reports its end, so that each wait ends exactly once. Only one thread at a time asks the home
//! about a wait, and an event that arrives meanwhile is kept until the reply is there: otherwise a delayed
//! request could lock again what was granted and unlocked meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, Slot, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::locks::{LockedFile, SetLock};

use crate::coordination::parked::Parked;

/// Called with the end of a wait, by whichever thread learns of it. It must not wait itself.
pub(crate) type OnEnd = Box<dyn FnOnce(Result<LockedFile>) + Send>;

/// A wait that lasts longer than this may be part of a deadlock; most are over sooner.
const SEARCH_AFTER: Duration = Duration::from_secs(1);
/// The longest pause before the search for a deadlock is repeated. The server that searches may have
/// restarted, and have lost the waits that it knew: so it is asked again, after growing pauses.
const SEARCH_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Owners of library locks have this bit set; a mount's owners are the kernel's.
const LIBRARY_OWNER: u64 = 1 << 63;

struct Wait {
    request: SetLock,
    on_end: OnEnd,
    /// A thread is asking its home about it.
    asking: bool,
    /// The asking thread shall ask once more: an event may have been lost.
    again: bool,
    /// It was granted while a thread was asking.
    granted: Option<LockedFile>,
    /// When a server shall search for a cycle that it closes, and the pause before the next search.
    search_at: Instant,
    search_pause: Duration,
}

#[derive(Default)]
pub(crate) struct State {
    last_wait: u64,
    last_owner: u64,
    waiting: HashMap<u64, Wait>,
    /// Threads that wait for something other than a lock.
    pub(crate) parked: Parked,
}

impl State {
    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let locks = self.waiting.values().map(|entry| entry.request.inode.slot());
        locks.chain(self.parked.slots())
    }
}

/// All waits of a session. No other lock is taken under its lock, and ends are reported without it;
/// `crate::listening` takes it under its own lock.
#[derive(Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    answered: Condvar,
}

/// The result of asking a home.
pub(crate) enum Asked {
    /// The wait is over, and its end is reported to the asking thread.
    Ended(Result<LockedFile>),
    /// The wait goes on.
    Waits,
    /// The wait goes on, and its home is to be asked once more.
    Again(SetLock),
}

/// Whether to search now for a cycle that a wait closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The wait is over.
    Over,
    /// It has not lasted long enough, or a thread asks about it.
    Later,
    Now(SetLock),
}

impl Waits {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A new number for an owner of library locks.
    pub(crate) fn new_owner(&self) -> u64 {
        let mut state = self.lock();
        state.last_owner += 1;
        state.last_owner | LIBRARY_OWNER
    }

    /// Begins a wait, and a request about it; the request gets the wait's number.
    pub(crate) fn begin(&self, mut request: SetLock, on_end: OnEnd) -> Result<SetLock> {
        let mut state = self.lock();
        if state.waiting.len() >= limits::LOCK_WAITS_PER_PROCESS_MAX {
            let text = format!("this process waits for {} locks already", state.waiting.len());
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        state.last_wait += 1;
        request.wait = state.last_wait;
        let wait = Wait {
            request,
            on_end,
            asking: true,
            again: false,
            granted: None,
            search_at: Instant::now() + SEARCH_AFTER,
            search_pause: SEARCH_AFTER,
        };
        state.waiting.insert(request.wait, wait);
        Ok(request)
    }

    /// The asking thread has a reply: `ended`, or the wait goes on.
    pub(crate) fn asked(&self, wait: u64, ended: Option<Result<LockedFile>>) -> Asked {
        let mut state = self.lock();
        let Some(entry) = state.waiting.get_mut(&wait) else {
            let text = "the wait for a lock is over";
            return Asked::Ended(ended.unwrap_or_else(|| Err(Error::new(ErrorKind::Stale, text))));
        };
        let ended = entry.granted.map(Ok).or(ended);
        if let Some(ended) = ended {
            state.waiting.remove(&wait);
            self.answered.notify_all();
            return Asked::Ended(ended);
        }
        if std::mem::take(&mut entry.again) {
            return Asked::Again(entry.request);
        }
        entry.asking = false;
        self.answered.notify_all();
        Asked::Waits
    }

    /// The same for a thread that asks on behalf of the waiting one, which is notified of the end. Returns the
    /// request if the home is to be asked once more.
    pub(crate) fn asked_for(&self, wait: u64, ended: Option<Result<LockedFile>>) -> Option<SetLock> {
        let mut state = self.lock();
        let entry = state.waiting.get_mut(&wait)?;
        let Some(ended) = entry.granted.map(Ok).or(ended) else {
            entry.asking = std::mem::take(&mut entry.again);
            let again = entry.asking.then_some(entry.request);
            self.answered.notify_all();
            return again;
        };
        let entry = state.waiting.remove(&wait);
        self.answered.notify_all();
        drop(state);
        if let Some(entry) = entry {
            (entry.on_end)(ended);
        }
        None
    }

    /// The request was not answered: the wait goes on, and the thread with the next new connection asks
    /// again.
    pub(crate) fn not_answered(&self, wait: u64) {
        while self.asked_for(wait, None).is_some() {}
    }

    /// Whether a server shall search now for a cycle that this wait closes; if so, no other thread asks about
    /// the wait meanwhile.
    pub(crate) fn begin_search(&self, wait: u64, now: Instant) -> Search {
        let mut state = self.lock();
        let Some(entry) = state.waiting.get_mut(&wait) else { return Search::Over };
        if entry.asking || now < entry.search_at {
            return Search::Later;
        }
        entry.asking = true;
        entry.search_pause = (entry.search_pause * 2).min(SEARCH_PAUSE_MAX);
        entry.search_at = now + entry.search_pause;
        Search::Now(entry.request)
    }

    /// An event: the lock is granted. If the wait is not in the table, it was cancelled, and its home is notified
    /// of that.
    pub(crate) fn granted(&self, wait: u64, file: LockedFile) {
        let mut state = self.lock();
        let Some(entry) = state.waiting.get_mut(&wait) else { return };
        if entry.asking {
            entry.granted = Some(file);
            return;
        }
        let entry = state.waiting.remove(&wait);
        drop(state);
        if let Some(entry) = entry {
            (entry.on_end)(Ok(file));
        }
    }

    /// Takes out a wait that is cancelled: its request, unless it has ended already.
    pub(crate) fn cancel(&self, wait: u64) -> Option<SetLock> {
        let mut state = self.lock();
        while state.waiting.get(&wait)?.asking {
            state = self.answered.wait(state);
        }
        state.waiting.remove(&wait).map(|entry| entry.request)
    }

    /// Ends every wait: the session has ended.
    pub(crate) fn fail_all(&self, error: &Error) {
        let ended: Vec<Wait> = {
            let mut state = self.lock();
            let over: Vec<u64> =
                state.waiting.iter().filter(|(_, entry)| !entry.asking).map(|(wait, _)| *wait).collect();
            over.iter().filter_map(|wait| state.waiting.remove(wait)).collect()
        };
        ended.into_iter().for_each(|entry| (entry.on_end)(Err(error.clone())));
    }

    /// Waits about which their home shall be asked now; `is_here` selects the home. A thread that is already
    /// asking about one will ask once more.
    pub(crate) fn begin_asking(&self, is_here: impl Fn(Slot) -> bool) -> Vec<SetLock> {
        let mut state = self.lock();
        let mut requests = Vec::new();
        for entry in state.waiting.values_mut().filter(|entry| is_here(entry.request.inode.slot())) {
            if entry.asking {
                entry.again = true;
            } else {
                entry.asking = true;
                requests.push(entry.request);
            }
        }
        // The oldest first: they keep their order where their home has forgotten it.
        requests.sort_by_key(|request| request.wait);
        requests
    }

    /// The slots whose events some thread waits for.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let state = self.lock();
        state.slots().collect()
    }
}

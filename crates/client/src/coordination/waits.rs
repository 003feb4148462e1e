//! The locks that a session waits for: which thread waits, which asks the home, and what it learns.
//!
//! A wait has a number. It stays in the table until it is granted, refused or cancelled; the thread that
//! takes it out reports its end, so that each wait ends exactly once. Only one thread at a time asks the home
//! about a wait, and an event that arrives meanwhile is kept until the reply is there: otherwise a delayed
//! request could lock again what was granted and unlocked meanwhile.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Slot, limits};
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
    /// Its number is settled when it ends with a lock.
    settles: bool,
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
    last_number: u64,
    last_owner: u64,
    waiting: HashMap<u64, Wait>,
    /// Requests of which it is not known whether they gave a lock, or that may be taken back all the same: whose, of which file.
    unsettled: BTreeMap<u64, (InodeId, u64)>,
    /// The same by file and owner.
    unsettled_of: BTreeMap<(InodeId, u64), BTreeSet<u64>>,
    /// Threads that wait for something other than a lock.
    pub(crate) parked: Parked,
}

impl State {
    /// A number for a request, not settled.
    fn number(&mut self, request: &SetLock) -> u64 {
        self.last_number += 1;
        let of = (request.inode, request.owner);
        self.unsettled.insert(self.last_number, of);
        self.unsettled_of.entry(of).or_default().insert(self.last_number);
        self.last_number
    }

    fn settle(&mut self, number: u64) {
        let Some(of) = self.unsettled.remove(&number) else { return };
        if let Entry::Occupied(mut numbers) = self.unsettled_of.entry(of) {
            numbers.get_mut().remove(&number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }

    /// A wait has ended.
    fn end(&mut self, wait: u64, granted: bool) -> Option<Wait> {
        let entry = self.waiting.remove(&wait)?;
        if entry.settles && granted {
            self.settle(wait);
        }
        Some(entry)
    }

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
    Again,
}

/// The same for a thread that asks on behalf of the waiting one.
pub(crate) enum AskedFor {
    /// The wait is over, with a lock or otherwise; the waiting thread was notified.
    Granted,
    Failed,
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

    /// A number for a request that does not wait. Until it is settled the request can be taken back.
    pub(crate) fn new_number(&self, request: &SetLock) -> u64 {
        self.lock().number(request)
    }

    /// What became of a request is known, and it is not taken back.
    pub(crate) fn settle(&self, number: u64) {
        self.lock().settle(number);
    }

    /// All requests of this owner for locks of this file below this number are settled.
    pub(crate) fn settled_below(&self, request: &SetLock) -> u64 {
        let state = self.lock();
        let first = state.unsettled_of.get(&(request.inode, request.owner)).and_then(BTreeSet::first);
        first.copied().unwrap_or(state.last_number + 1)
    }

    /// Begins a wait, and a request about it; the request gets the wait's number. `settles`: the
    /// number is settled when the wait ends with a lock.
    pub(crate) fn begin(&self, mut request: SetLock, on_end: OnEnd, settles: bool) -> Result<SetLock> {
        let mut state = self.lock();
        if state.waiting.len() >= limits::LOCK_WAITS_PER_PROCESS_MAX {
            let text = format!("this process waits for {} locks already", state.waiting.len());
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        request.number = state.number(&request);
        let wait = Wait {
            request,
            on_end,
            settles,
            asking: true,
            again: false,
            granted: None,
            search_at: Instant::now() + SEARCH_AFTER,
            search_pause: SEARCH_AFTER,
        };
        state.waiting.insert(request.number, wait);
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
            state.end(wait, ended.is_ok());
            self.answered.notify_all();
            return Asked::Ended(ended);
        }
        if std::mem::take(&mut entry.again) {
            return Asked::Again;
        }
        entry.asking = false;
        self.answered.notify_all();
        Asked::Waits
    }

    /// The same for a thread that asks on behalf of the waiting one, which is notified of the end.
    pub(crate) fn asked_for(&self, wait: u64, ended: Option<Result<LockedFile>>) -> AskedFor {
        let mut state = self.lock();
        let Some(entry) = state.waiting.get_mut(&wait) else { return AskedFor::Waits };
        let Some(ended) = entry.granted.map(Ok).or(ended) else {
            entry.asking = std::mem::take(&mut entry.again);
            let again = entry.asking.then_some(entry.request);
            self.answered.notify_all();
            return again.map_or(AskedFor::Waits, AskedFor::Again);
        };
        let entry = state.end(wait, ended.is_ok());
        self.answered.notify_all();
        drop(state);
        let told = if ended.is_ok() { AskedFor::Granted } else { AskedFor::Failed };
        if let Some(entry) = entry {
            (entry.on_end)(ended);
        }
        told
    }

    /// The request was not answered: the wait goes on, and the thread with the next new connection asks
    /// again.
    pub(crate) fn not_answered(&self, wait: u64) {
        while matches!(self.asked_for(wait, None), AskedFor::Again(_)) {}
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
        let entry = state.end(wait, true);
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

    /// Waits about which their home shall be asked; `is_here` selects the home. The oldest first: they keep their order where
    /// their home has forgotten it.
    pub(crate) fn to_ask(&self, is_here: impl Fn(Slot) -> bool) -> Vec<u64> {
        let state = self.lock();
        let waiting = state.waiting.iter().filter(|(_, entry)| is_here(entry.request.inode.slot()));
        let mut numbers: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Begins to ask about one of them, unless it is over. A thread that is asking about it already will ask once more.
    /// Until it is answered the wait cannot be cancelled, so only one is asked about at a time.
    pub(crate) fn begin_asking(&self, wait: u64) -> Option<SetLock> {
        let mut state = self.lock();
        let entry = state.waiting.get_mut(&wait)?;
        if std::mem::replace(&mut entry.asking, true) {
            entry.again = true;
            return None;
        }
        Some(entry.request)
    }

    /// The slots whose events some thread waits for.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let state = self.lock();
        state.slots().collect()
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Generation, InodeId, Timestamp};
    use ramlace_wire::locks::{LockKind, LockTable};

    use super::*;

    const FILE: LockedFile = LockedFile {
        size: 0,
        generation: Generation::FIRST,
        changed: Timestamp { nanos: 1 },
        may_change_unnoticed: false,
    };

    fn request(owner: u64) -> SetLock {
        let (inode, table, kind) = (InodeId::new(Slot(3), 7), LockTable::Fcntl, Some(LockKind::Shared));
        let (start, end, pid, number, waits, settled_below, detects) = (0, 1, 1, 0, true, 0, false);
        SetLock { inode, table, owner, kind, start, end, pid, number, waits, settled_below, detects }
    }

    fn begin(waits: &Waits, settles: bool) -> u64 {
        waits.begin(request(1), Box::new(|_| ()), settles).unwrap().number
    }

    // SEMANTICS 69.3
    #[test]
    fn a_wait_is_cancelled_while_others_are_asked_about() {
        let waits = Waits::default();
        let numbers = [begin(&waits, true), begin(&waits, true)];
        for number in numbers {
            assert!(matches!(waits.asked(number, None), Asked::Waits));
        }
        assert_eq!(waits.to_ask(|_| true), numbers);
        assert!(waits.begin_asking(numbers[0]).is_some());
        assert!(waits.cancel(numbers[1]).is_some(), "nobody asks about this one yet");
        assert!(waits.begin_asking(numbers[1]).is_none());
        // An event may be lost while one is being asked about: then it is asked about once more.
        assert!(waits.begin_asking(numbers[0]).is_none());
        assert!(matches!(waits.asked_for(numbers[0], None), AskedFor::Again(_)));
        assert!(matches!(waits.asked_for(numbers[0], None), AskedFor::Waits));
    }

    // SEMANTICS 69.4
    #[test]
    fn a_request_is_settled_when_its_outcome_is_known_and_it_is_not_taken_back() {
        let waits = Waits::default();
        let settled_below = || waits.settled_below(&request(1));
        let [lost, waiting, kept] =
            [waits.new_number(&request(1)), begin(&waits, true), begin(&waits, false)];
        assert_eq!(settled_below(), lost);
        // Others may wait for as long as they like.
        assert_eq!(waits.settled_below(&request(2)), kept + 1);
        waits.settle(lost);
        assert_eq!(settled_below(), waiting);
        assert!(matches!(waits.asked(waiting, Some(Ok(FILE))), Asked::Ended(Ok(_))));
        assert_eq!(settled_below(), kept);
        // Its owner may have to take it back.
        assert!(matches!(waits.asked(kept, None), Asked::Waits));
        waits.granted(kept, FILE);
        assert_eq!(settled_below(), kept);
        // One that has failed is told to its home first.
        let failed = begin(&waits, true);
        waits.settle(kept);
        let error = Error::new(ErrorKind::NoSpace, "no room for the record");
        assert!(matches!(waits.asked(failed, Some(Err(error))), Asked::Ended(Err(_))));
        assert_eq!(settled_below(), failed);
        waits.settle(failed);
        assert_eq!(settled_below(), failed + 1);
        assert!(waits.lock().unsettled_of.is_empty() && waits.lock().unsettled.is_empty());
    }
}

//! Locks at their homes: requests, waits and their cancellation. What a home that does not answer still has to
//! receive is added to the outbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::locks::{
    CancelLock, FindDeadlock, GetLock, HeldLock, LOCK_END, LockAnswer, LockOutcome, LockTable, LockedFile,
    SetLock,
};

use crate::client::Client;
use crate::coordination::waits::{Asked, AskedFor, OnEnd, Search};
use crate::session::pending::{Acknowledged, Message, Subject};
use crate::session::retry::{is_unacknowledged, lacks_room};

/// Errors of a request for a lock with which its home says that nothing has happened, and nothing waits.
const REFUSALS: [ErrorKind; 5] = [
    ErrorKind::Invalid,
    ErrorKind::BadHandle,
    ErrorKind::TooManyLocks,
    ErrorKind::NotFound,
    ErrorKind::Stale,
];

/// How long the end of a wait or of an owner may take before it is left to the outbox.
const PATIENCE_MILLIS_MAX: u64 = 1_000;

/// The outcome of a lock request that may wait.
pub enum Waited {
    /// The lock is held.
    Granted(LockedFile),
    /// The request waits; its end will be reported. The number identifies the wait.
    Waiting(u64),
}

/// The outcome of cancelling a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The wait has ended without a lock.
    Cancelled,
    /// The lock is held: it was granted before it could be cancelled.
    Granted(LockedFile),
    /// The wait's end has been reported already, or is being reported.
    Ended,
}

impl Client {
    /// Locks or unlocks without waiting; `None` when another lock conflicts. A lock of which the home's answer is lost is taken
    /// back.
    pub(crate) fn set_lock(self: &Arc<Client>, request: SetLock) -> Result<Option<LockedFile>> {
        let (locked, request) = self.begin_set_lock(request)?;
        self.waits.settle(request.number);
        Ok(locked)
    }

    /// The same. The request that is returned has a number: its lock can be taken back until that is settled
    /// ([`crate::coordination::waits::Waits::settle`]).
    pub(crate) fn begin_set_lock(
        self: &Arc<Client>,
        request: SetLock,
    ) -> Result<(Option<LockedFile>, SetLock)> {
        self.send_pending(Subject::Locks(request.inode), self.deadline())?;
        if request.kind.is_none() {
            return Ok((granted(self.send_lock(&request, self.deadline())?), request));
        }
        let request = SetLock { number: self.waits.new_number(&request), ..request };
        match self.send_lock(&request, self.deadline()) {
            Ok(answer) => Ok((granted(answer), request)),
            Err(error) => {
                self.take_back_later(request, &error);
                Err(error)
            }
        }
    }

    /// Locks, and waits if another lock conflicts: then `on_end` is called with the end of the wait. The request that is
    /// returned has the wait's number. Unless it `settles`, its lock can be taken back until that is settled
    /// ([`crate::coordination::waits::Waits::settle`]).
    pub(crate) fn set_lock_later(
        self: &Arc<Client>,
        request: SetLock,
        on_end: OnEnd,
        settles: bool,
    ) -> Result<(Waited, SetLock)> {
        self.send_pending(Subject::Locks(request.inode), self.deadline())?;
        let request = self.waits.begin(SetLock { waits: true, ..request }, on_end, settles)?;
        loop {
            let ended = self.ask_for(&request, self.deadline());
            match self.waits.asked(request.number, ended) {
                Asked::Ended(Ok(file)) => return Ok((Waited::Granted(file), request)),
                Asked::Ended(Err(error)) => {
                    self.take_back_later(request, &error);
                    return Err(error);
                }
                Asked::Waits => break,
                Asked::Again => {}
            }
        }
        if request.detects {
            self.send_later(Message::FindCycle(request.number));
        }
        let waited = match self.listen_to(request.inode.slot()) {
            Ok(()) => Waited::Waiting(request.number),
            Err(error) => match self.cancel_wait(request.number) {
                Cancellation::Granted(file) => {
                    if settles {
                        self.waits.settle(request.number);
                    }
                    Waited::Granted(file)
                }
                Cancellation::Cancelled => return Err(error),
                Cancellation::Ended => Waited::Waiting(request.number),
            },
        };
        Ok((waited, request))
    }

    /// A request for a lock has failed, so its owner is told that it has none: whatever its home has done, it takes it back.
    fn take_back_later(self: &Arc<Client>, request: SetLock, error: &Error) {
        let is_refused = REFUSALS.contains(&error.kind());
        if is_refused || self.is_ended() || !self.send_later(Message::CancelLock(request)) {
            self.waits.settle(request.number);
        }
    }

    /// Takes a lock back that its owner does not want any more: what it held before it holds again.
    pub(crate) fn take_back(self: &Arc<Client>, request: SetLock) {
        match self.cancel(&request, true, soon()) {
            Ok(_) => self.waits.settle(request.number),
            Err(error) => self.take_back_later(request, &error),
        }
    }

    fn send_lock(self: &Arc<Client>, request: &SetLock, deadline: Instant) -> Result<LockAnswer> {
        let request = SetLock { settled_below: self.waits.settled_below(request), ..*request };
        self.change(request.inode.slot(), &request, deadline)
    }

    /// Asks a home for a lock, or about the wait for it; returns the end of the wait, if it has ended.
    fn ask_for(self: &Arc<Client>, request: &SetLock, deadline: Instant) -> Option<Result<LockedFile>> {
        match self.send_lock(request, deadline) {
            Err(error) => Some(Err(error)),
            Ok(LockAnswer { outcome: LockOutcome::Granted, file }) => Some(Ok(file)),
            Ok(_) => None,
        }
    }

    /// A wait has lasted for long: asks whether it closes a cycle (a deadlock). Of several waits that close
    /// the same cycle only the one that is asked about first is refused.
    pub(crate) fn find_cycle(self: &Arc<Client>, wait: u64, deadline: Instant) -> Result<Acknowledged> {
        let request = match self.waits.begin_search(wait, Instant::now()) {
            Search::Over => return Ok(Acknowledged::Yes),
            Search::Later => return Ok(Acknowledged::NotYet),
            Search::Now(request) => request,
        };
        let SetLock { inode, owner, .. } = request;
        let answer = self.ask(InodeId::ROOT.slot(), &FindDeadlock { inode, wait, owner }, deadline);
        match &answer {
            Ok(answer) if answer.found => {
                let text = "waiting for this lock would close a cycle of programs that wait for each other";
                let refused = Error::new(ErrorKind::Deadlock, text);
                if matches!(self.waits.asked_for(wait, Some(Err(refused))), AskedFor::Failed) {
                    self.waits.settle(wait);
                }
            }
            // The home knows no such wait: it was granted, or an earlier reply was lost.
            Ok(answer) if !answer.waits => _ = self.ask_and_tell(request, deadline),
            _ => {
                if let AskedFor::Again(same) = self.waits.asked_for(wait, None) {
                    self.ask_and_tell(same, deadline);
                }
            }
        }
        match answer {
            Err(error) if is_unacknowledged(&error) && !self.is_ended() => Err(error),
            _ => Ok(Acknowledged::NotYet),
        }
    }

    /// Asks homes about waits on behalf of the waiting threads; false when one did not answer: the others of that server would
    /// not be answered either.
    pub(crate) fn ask_for_all(self: &Arc<Client>, waits: Vec<u64>) -> bool {
        waits.into_iter().all(|wait| {
            let request = self.waits.begin_asking(wait);
            request.is_none_or(|request| self.ask_and_tell(request, self.deadline()))
        })
    }

    /// The same about one wait.
    fn ask_and_tell(self: &Arc<Client>, request: SetLock, deadline: Instant) -> bool {
        let mut next = Some(request);
        while let Some(request) = next {
            match self.ask_for(&request, deadline) {
                Some(Err(error)) if is_unacknowledged(&error) => {
                    self.waits.not_answered(request.number);
                    return false;
                }
                ended => {
                    let error = ended.as_ref().and_then(|ended| ended.as_ref().err()).cloned();
                    next = match (self.waits.asked_for(request.number, ended), error) {
                        (AskedFor::Again(same), _) => Some(same),
                        // Its owner waits no more, so it must not be granted any more.
                        (AskedFor::Failed, Some(error)) => {
                            self.take_back_later(request, &error);
                            None
                        }
                        _ => None,
                    }
                }
            }
        }
        true
    }

    /// Cancels a wait.
    pub(crate) fn cancel_wait(self: &Arc<Client>, wait: u64) -> Cancellation {
        let Some(request) = self.waits.cancel(wait) else { return Cancellation::Ended };
        match self.cancel(&request, false, soon()) {
            Ok(Some(file)) => Cancellation::Granted(file),
            Ok(None) => {
                self.waits.settle(wait);
                Cancellation::Cancelled
            }
            Err(error) => {
                self.take_back_later(request, &error);
                Cancellation::Cancelled
            }
        }
    }

    /// Cancels a request; what the file is, if its owner has the lock because of it.
    fn cancel(
        self: &Arc<Client>,
        request: &SetLock,
        take_back: bool,
        deadline: Instant,
    ) -> Result<Option<LockedFile>> {
        let SetLock { inode, number, .. } = *request;
        let cancel = CancelLock { inode, number, take_back };
        self.change(inode.slot(), &cancel, deadline).map(granted)
    }

    /// A lock that conflicts.
    pub(crate) fn get_lock(self: &Arc<Client>, request: &GetLock) -> Result<Option<HeldLock>> {
        Ok(self.ask(request.inode.slot(), request, self.deadline())?.lock)
    }

    /// Releases the locks of an owner that has gone: at once, or when its home answers again.
    pub(crate) fn release_locks(self: &Arc<Client>, request: SetLock) {
        let outcome = self
            .send_pending(Subject::Locks(request.inode), soon())
            .and_then(|()| self.send_lock(&request, soon()));
        if outcome.is_err_and(|error| is_unacknowledged(&error) || lacks_room(&error)) {
            self.send_later(Message::Unlock(request));
        }
    }

    /// Notifies a home that a request for a lock is cancelled, from the outbox. A lock that was granted is taken back.
    pub(crate) fn tell_cancelled(
        self: &Arc<Client>,
        request: &SetLock,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let told = self.unless_unacknowledged(self.cancel(request, true, deadline).map(drop));
        told.inspect(|_| self.waits.settle(request.number))
    }

    /// Notifies a home that the owner of locks has gone, from the outbox.
    pub(crate) fn tell_unlocked(
        self: &Arc<Client>,
        request: &SetLock,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let outcome = self.send_lock(request, deadline).map(drop);
        self.unless_unacknowledged(outcome)
    }
}

/// The deadline of a message that may as well be sent later.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_millis(PATIENCE_MILLIS_MAX)
}

fn granted(answer: LockAnswer) -> Option<LockedFile> {
    (answer.outcome == LockOutcome::Granted).then_some(answer.file)
}

/// The request to unlock all that an owner holds of a file.
pub(crate) fn whole_unlock(inode: InodeId, table: LockTable, owner: u64) -> SetLock {
    let (kind, start, end, pid, number) = (None, 0, LOCK_END, 0, 0);
    let (waits, settled_below, detects) = (false, 0, false);
    SetLock { inode, table, owner, kind, start, end, pid, number, waits, settled_below, detects }
}

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
use crate::coordination::waits::{Asked, OnEnd, Search};
use crate::session::pending::{Acknowledged, Message, Subject};
use crate::session::retry::is_unacknowledged;

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
    /// Locks or unlocks without waiting; `None` when another lock conflicts.
    pub(crate) fn set_lock(self: &Arc<Client>, request: &SetLock) -> Result<Option<LockedFile>> {
        self.send_pending(Subject::Locks(request.inode), self.deadline())?;
        let answer = self.change(request.inode.slot(), request, self.deadline())?;
        Ok(granted(answer))
    }

    /// Locks, and waits if another lock conflicts: then `on_end` is called with the end of the wait.
    pub(crate) fn set_lock_later(self: &Arc<Client>, request: SetLock, on_end: OnEnd) -> Result<Waited> {
        self.send_pending(Subject::Locks(request.inode), self.deadline())?;
        let mut request = self.waits.begin(request, on_end)?;
        loop {
            let ended = self.ask_for(&request, self.deadline());
            match self.waits.asked(request.wait, ended) {
                Asked::Ended(Ok(file)) => return Ok(Waited::Granted(file)),
                Asked::Ended(Err(error)) => {
                    if is_unacknowledged(&error) {
                        self.send_later(Message::CancelLock(request));
                    }
                    return Err(error);
                }
                Asked::Waits => break,
                Asked::Again(same) => request = same,
            }
        }
        if request.detects {
            self.send_later(Message::FindCycle(request.wait));
        }
        match self.listen_to(request.inode.slot()) {
            Ok(()) => Ok(Waited::Waiting(request.wait)),
            Err(error) => match self.cancel_wait(request.wait) {
                Cancellation::Granted(file) => Ok(Waited::Granted(file)),
                Cancellation::Cancelled => Err(error),
                Cancellation::Ended => Ok(Waited::Waiting(request.wait)),
            },
        }
    }

    /// Asks a home for a lock, or about the wait for it; returns the end of the wait, if it has ended.
    fn ask_for(self: &Arc<Client>, request: &SetLock, deadline: Instant) -> Option<Result<LockedFile>> {
        match self.change(request.inode.slot(), request, deadline) {
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
                self.waits.asked_for(wait, Some(Err(Error::new(ErrorKind::Deadlock, text))));
            }
            // The home knows no such wait: it was granted, or an earlier reply was lost.
            Ok(answer) if !answer.waits => _ = self.ask_and_tell(request, deadline),
            _ => {
                if let Some(again) = self.waits.asked_for(wait, None) {
                    self.ask_and_tell(again, deadline);
                }
            }
        }
        match answer {
            Err(error) if is_unacknowledged(&error) && !self.is_ended() => Err(error),
            _ => Ok(Acknowledged::NotYet),
        }
    }

    /// Asks homes about waits on behalf of the waiting threads; false when one did not answer.
    pub(crate) fn ask_for_all(self: &Arc<Client>, requests: Vec<SetLock>) -> bool {
        let mut answered = true;
        // All of them, also after a failure: no other thread asks about these.
        for request in requests {
            answered &= self.ask_and_tell(request, self.deadline());
        }
        answered
    }

    /// The same about one wait.
    fn ask_and_tell(self: &Arc<Client>, request: SetLock, deadline: Instant) -> bool {
        let mut next = Some(request);
        while let Some(request) = next {
            match self.ask_for(&request, deadline) {
                Some(Err(error)) if is_unacknowledged(&error) => {
                    self.waits.not_answered(request.wait);
                    return false;
                }
                ended => next = self.waits.asked_for(request.wait, ended),
            }
        }
        true
    }

    /// Cancels a wait.
    pub(crate) fn cancel_wait(self: &Arc<Client>, wait: u64) -> Cancellation {
        let Some(request) = self.waits.cancel(wait) else { return Cancellation::Ended };
        match self.cancel(&request, soon()) {
            Ok(Some(file)) => Cancellation::Granted(file),
            Ok(None) => Cancellation::Cancelled,
            Err(error) => {
                if is_unacknowledged(&error) {
                    self.send_later(Message::CancelLock(request));
                }
                Cancellation::Cancelled
            }
        }
    }

    fn cancel(self: &Arc<Client>, request: &SetLock, deadline: Instant) -> Result<Option<LockedFile>> {
        let SetLock { inode, wait, .. } = *request;
        self.change(inode.slot(), &CancelLock { inode, wait }, deadline).map(granted)
    }

    /// A lock that conflicts.
    pub(crate) fn get_lock(self: &Arc<Client>, request: &GetLock) -> Result<Option<HeldLock>> {
        Ok(self.ask(request.inode.slot(), request, self.deadline())?.lock)
    }

    /// Releases the locks of an owner that has gone: at once, or when its home answers again.
    pub(crate) fn release_locks(self: &Arc<Client>, request: SetLock) {
        let outcome = self
            .send_pending(Subject::Locks(request.inode), soon())
            .and_then(|()| self.change(request.inode.slot(), &request, soon()));
        if outcome.is_err_and(|error| is_unacknowledged(&error)) {
            self.send_later(Message::Unlock(request));
        }
    }

    /// Notifies a home that a wait is cancelled, from the outbox. If the lock was granted meanwhile, it is
    /// unlocked.
    pub(crate) fn tell_cancelled(
        self: &Arc<Client>,
        request: &SetLock,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let outcome = self.cancel(request, deadline).and_then(|held| match held {
            Some(_) => {
                let unlock = SetLock { kind: None, wait: 0, ..*request };
                self.change(request.inode.slot(), &unlock, deadline).map(drop)
            }
            None => Ok(()),
        });
        self.unless_unacknowledged(outcome)
    }

    /// Notifies a home that the owner of locks has gone, from the outbox.
    pub(crate) fn tell_unlocked(
        self: &Arc<Client>,
        request: &SetLock,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let outcome = self.change(request.inode.slot(), request, deadline).map(drop);
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
    SetLock { inode, table, owner, kind: None, start: 0, end: LOCK_END, pid: 0, wait: 0, detects: false }
}

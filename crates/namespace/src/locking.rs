//! Locks as operations of a slot: which callers may lock, which sessions are notified, and when locks end.

use ramlace_base::{Error, ErrorKind, InodeId, Result, SessionId, limits};
use ramlace_wire::OpenedFor;
use ramlace_wire::locks::{
    CancelLock, ConflictingLock, EndLockWait, GetLock, LOCK_END, LockAnswer, LockKind, LockOutcome,
    LockOwner, LockTable, LockWait, LockedFile, SetLock,
};

use crate::command::{Effect, Reply};
use crate::query::{AskedBy, Query};
use crate::state::locks::{Asked, FileLocks, Known, Lock, LockCount, Waiter, shown};
use crate::state::{Caller, SlotState, Step};

impl Query for GetLock {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<ConflictingLock> {
        check_range(self.table, self.start, self.end)?;
        slot.inode(self.inode)?;
        slot.check_has_open(by.session, self.inode)?;
        let GetLock { table, kind, start, end, .. } = *self;
        let owner = LockOwner { session: by.session, owner: self.owner };
        let wanted = Lock { owner, kind, start, end, pid: 0 };
        let lock = slot.locks.get(&self.inode).and_then(|locks| locks.table(table).conflicting(&wanted));
        Ok(ConflictingLock { lock: lock.map(|lock| shown(lock, by.session)) })
    }
}

impl SlotState {
    pub(crate) fn set_lock(&mut self, caller: Caller, request: SetLock, effects: &mut Vec<Effect>) -> Step {
        let session = caller.token.session;
        check_range(request.table, request.start, request.end)?;
        self.check_may_lock(caller, &request)?;
        let owner = LockOwner { session, owner: request.owner };
        let SetLock { table, start, end, pid, number, detects, .. } = request;
        let asked = self.with_locks(request.inode, effects, |locks| {
            locks.settle(owner, request.settled_below);
            match request.kind {
                Some(kind) => {
                    let lock = Lock { owner, kind, start, end, pid };
                    locks.ask(table, Waiter { lock, number, detects }, request.waits)
                }
                None => locks.unlock(table, owner, start, end).map(|()| Asked::Granted),
            }
        })?;
        let outcome = match asked {
            Asked::Granted => LockOutcome::Granted,
            Asked::Queued => LockOutcome::Queued,
            Asked::Refused => LockOutcome::Refused,
        };
        Ok(Some(Reply::Locked(LockAnswer { outcome, file: self.locked_file(request.inode)? })))
    }

    pub(crate) fn cancel_lock(
        &mut self,
        caller: Caller,
        request: CancelLock,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let session = caller.token.session;
        let CancelLock { inode, number, take_back } = request;
        let file = self.locked_file(inode)?;
        let outcome = self.with_locks(inode, effects, |locks| {
            match locks.known(session, number) {
                Some(Known::Granted) if !take_back => return LockOutcome::Granted,
                Some(Known::Granted) => locks.take_back(session, number),
                Some(Known::Waits) => _ = locks.end_wait(session, number),
                None => {}
            }
            LockOutcome::Refused
        });
        Ok(Some(Reply::Locked(LockAnswer { outcome, file })))
    }

    /// Ends a wait that closes a cycle of waits. The effect says whether it still waited.
    pub(crate) fn end_lock_wait(&mut self, request: EndLockWait, effects: &mut Vec<Effect>) {
        let EndLockWait { inode, session, wait } = request;
        self.assert_mine(inode);
        let ended = self.with_locks(inode, effects, |locks| locks.end_wait(session, wait));
        effects.push(Effect::LockWaitEnded { ended });
    }

    /// The waits of these owners for POSIX locks in this slot, with the owners that block each: for the search for
    /// cycles.
    #[must_use]
    pub fn lock_waits(&self, owners: &[LockOwner]) -> Vec<LockWait> {
        let mut found = Vec::new();
        for owner in owners {
            let Some(session) = self.sessions.get(&owner.session) else { continue };
            for (inode, _) in session.locked.iter().filter(|(_, count)| count.waiting > 0) {
                let table = &self.locks[inode].fcntl;
                for (at, waiter) in table.waiting.iter().enumerate() {
                    let is_it = waiter.lock.owner == *owner && waiter.detects;
                    if is_it && found.len() < limits::DEADLOCK_WAITS_MAX {
                        let (inode, wait, blockers) = (*inode, waiter.number, table.blockers(at));
                        found.push(LockWait { inode, owner: *owner, wait, blockers });
                    }
                }
            }
        }
        found
    }

    /// Locks that are held here.
    #[must_use]
    pub fn locks_held(&self) -> u64 {
        self.locks.values().map(|locks| locks.held_count()).sum()
    }

    /// Requests that wait for locks here.
    #[must_use]
    pub fn locks_awaited(&self) -> u64 {
        self.locks.values().map(|locks| locks.waiting_count()).sum()
    }

    /// The session releases its locks on an inode.
    pub(crate) fn drop_locks(&mut self, session: SessionId, inode: InodeId, effects: &mut Vec<Effect>) {
        if self.locks.contains_key(&inode) {
            self.with_locks(inode, effects, |locks| locks.forget(session));
        }
    }

    /// Runs `work` on the locks of an inode, then grants locks that have become free and counts anew.
    fn with_locks<T>(
        &mut self,
        inode: InodeId,
        effects: &mut Vec<Effect>,
        work: impl FnOnce(&mut FileLocks) -> T,
    ) -> T {
        let mut locks = self.locks.remove(&inode).unwrap_or_default();
        let before = locks.counts();
        let result = work(&mut locks);
        let granted = locks.grant_free();
        locks.drop_idle_grants();
        let after = locks.counts();
        if !locks.is_empty() {
            self.locks.insert(inode, locks);
        }
        for session in before.keys().filter(|session| !after.contains_key(session)) {
            self.count_locks(*session, inode, LockCount::default());
        }
        for (session, count) in after {
            self.count_locks(session, inode, count);
        }
        for waiter in granted {
            // A session that holds or waits has the inode open: it is here.
            if let Ok(file) = self.locked_file(inode) {
                let (session, wait) = (waiter.lock.owner.session, waiter.number);
                effects.push(Effect::LockGranted { session, inode, wait, file });
            }
        }
        result
    }

    fn count_locks(&mut self, session: SessionId, inode: InodeId, count: LockCount) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let before = if count == LockCount::default() {
            session.locked.remove(&inode)
        } else {
            session.locked.insert(inode, count)
        };
        let before = before.unwrap_or_default();
        session.locks.held = session.locks.held + count.held - before.held;
        session.locks.waiting = session.locks.waiting + count.waiting - before.waiting;
    }

    fn check_may_lock(&self, caller: Caller, request: &SetLock) -> Result<()> {
        self.inode(request.inode)?;
        self.check_has_open(caller.token.session, request.inode)?;
        let session = &self.sessions[&caller.token.session];
        let OpenedFor { write, .. } = self.opened_for(caller.token.session, request.inode);
        let Some(kind) = request.kind else { return Ok(()) };
        if request.number == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a request for a lock needs a number, from 1"));
        }
        let asks_again = |locks: &FileLocks| locks.known(caller.token.session, request.number).is_some();
        if self.locks.get(&request.inode).is_some_and(asks_again) {
            return Ok(());
        }
        if kind == LockKind::Exclusive && request.table == LockTable::Fcntl && !write {
            let text = format!("inode {} is not open for writing: no exclusive lock", request.inode);
            return Err(Error::new(ErrorKind::BadHandle, text));
        }
        let LockCount { held, waiting } = session.locks;
        if held + waiting >= limits::LOCKS_PER_SESSION_MAX {
            let text = format!("the session has {} locks in {} already", held + waiting, self.slot);
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        if request.waits && waiting >= limits::LOCK_WAITS_PER_SESSION_MAX {
            let text = format!("the session waits for {waiting} locks in {} already", self.slot);
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        Ok(())
    }

    /// Locks are between sessions that have the file open, and shown to them.
    fn check_has_open(&self, session: SessionId, inode: InodeId) -> Result<()> {
        if self.has_open(session, inode) {
            return Ok(());
        }
        let text = format!("the session does not have inode {inode} open");
        Err(Error::new(ErrorKind::BadHandle, text))
    }

    fn locked_file(&self, inode: InodeId) -> Result<LockedFile> {
        let attributes = self.inode(inode)?.attributes(inode);
        let (size, generation, changed) = (attributes.size, attributes.generation, attributes.changed);
        Ok(LockedFile { size, generation, changed, may_change_unnoticed: self.may_change_unnoticed(inode) })
    }

    /// The session has ended: everything that it had locked is free.
    pub(crate) fn end_locks(&mut self, session: SessionId, locked: Vec<InodeId>, effects: &mut Vec<Effect>) {
        for inode in locked {
            self.drop_locks(session, inode, effects);
        }
    }
}

fn check_range(table: LockTable, start: u64, end: u64) -> Result<()> {
    let whole = (start, end) == (0, LOCK_END);
    if start >= end || end > LOCK_END || (table == LockTable::Flock && !whole) {
        let text = format!("bytes {start} to {end} cannot be locked");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

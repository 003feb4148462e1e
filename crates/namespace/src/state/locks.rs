//! The locks of one file, and their waiters: a table for `fcntl` and one for `flock`.
//!
//! Waiters are served in the order in which they came: none overtakes an earlier one with which it conflicts.
//! There is one exception, without which fairness itself would close cycles: an owner for which an earlier
//! waiter waits, directly or through others of the same file that hold what it wants or wait before it, need not wait
//! behind that waiter.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::locks::{HeldLock, LOCK_END, LockKind, LockOwner, LockTable};
use serde::{Deserialize, Serialize};

use super::lock_grants::Grant;

/// Bytes of a file that an owner has locked, or wants to lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lock {
    pub owner: LockOwner,
    pub kind: LockKind,
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    pub pid: u32,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The part of it that lies in a range.
    pub(crate) fn within(&self, start: u64, end: u64) -> Option<Lock> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        (start < end).then_some(Lock { start, end, ..*self })
    }

    /// Whether the two cannot be held at once.
    pub(crate) fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && self.overlaps(other)
            && (self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
    }
}

/// A request that waits its turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub lock: Lock,
    /// The session's number for the request.
    pub number: u64,
    /// Cycles with it are deadlocks.
    pub detects: bool,
}

/// Locks that know of each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// In the order of owner and first byte; those of one owner neither overlap nor, where their kinds
    /// are the same, touch.
    pub held: Vec<Lock>,
    /// In the order in which they came.
    pub waiting: Vec<Waiter>,
    /// What can be taken back, in the order in which it was granted.
    pub grants: Vec<Grant>,
}

impl Table {
    /// The conflicting held lock with the lowest first byte.
    pub(crate) fn conflicting(&self, wanted: &Lock) -> Option<&Lock> {
        self.held.iter().filter(|held| held.conflicts(wanted)).min_by_key(|held| held.start)
    }

    /// Whether it can be held now, behind the first `ahead` waiters.
    fn is_free(&self, wanted: &Lock, ahead: usize) -> bool {
        self.conflicting(wanted).is_none() && self.conflicting_waiter(wanted, ahead).is_none()
    }

    pub(crate) fn is_free_now(&self, wanted: &Lock) -> bool {
        self.is_free(wanted, self.waiting.len())
    }

    /// The first of the `ahead` waiters before it for which the wanted lock has to wait.
    fn conflicting_waiter(&self, wanted: &Lock, ahead: usize) -> Option<&Waiter> {
        let mut conflicting = (0..ahead).filter(|at| self.waiting[*at].lock.conflicts(wanted));
        let first = conflicting.next()?;
        if self.held_by(wanted.owner).is_empty() || !self.waits_for(first, wanted.owner) {
            return Some(&self.waiting[first]);
        }
        let for_owner = self.all_that_wait_for(wanted.owner);
        conflicting.find(|at| !for_owner[*at]).map(|at| &self.waiting[at])
    }

    /// What an owner holds, in the order of its bytes.
    pub(super) fn held_by(&self, owner: LockOwner) -> &[Lock] {
        let first = self.held.partition_point(|held| held.owner < owner);
        let count = self.held[first..].partition_point(|held| held.owner == owner);
        &self.held[first..first + count]
    }

    /// Whether a waiter waits for this owner: for what it holds, behind another that does, or for what the owner of such a one
    /// holds.
    fn waits_for(&self, at: usize, owner: LockOwner) -> bool {
        let mut seen = vec![false; self.waiting.len()];
        seen[at] = true;
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            let wanted = &self.waiting[at].lock;
            let mut news: Vec<usize> = Vec::new();
            for held in self.held.iter().filter(|held| held.conflicts(wanted)) {
                if held.owner == owner {
                    return true;
                }
                news.extend(self.waits_of(held.owner));
            }
            news.extend((0..at).filter(|ahead| self.waiting[*ahead].lock.conflicts(wanted)));
            open.extend(news.into_iter().filter(|at| !std::mem::replace(&mut seen[*at], true)));
        }
        false
    }

    /// The same of all waiters at once, searched from the owner: for those that ask about many. From a waiter the way to an
    /// answer is short where few hold what it wants.
    fn all_that_wait_for(&self, owner: LockOwner) -> Vec<bool> {
        let mut found = vec![false; self.waiting.len()];
        let (mut owners, mut known) = (vec![owner], BTreeSet::from([owner]));
        while let Some(owner) = owners.pop() {
            let theirs = self.held_by(owner);
            if theirs.is_empty() {
                continue;
            }
            let waits = |at: &usize| theirs.iter().any(|held| held.conflicts(&self.waiting[*at].lock));
            let mut news: Vec<usize> = (0..found.len()).filter(|at| !found[*at]).filter(waits).collect();
            while let Some(at) = news.pop() {
                if std::mem::replace(&mut found[at], true) {
                    continue;
                }
                let lock = &self.waiting[at].lock;
                if known.insert(lock.owner) {
                    owners.push(lock.owner);
                }
                let behind = (at + 1..found.len()).filter(|behind| !found[*behind]);
                news.extend(behind.filter(|behind| lock.conflicts(&self.waiting[*behind].lock)));
            }
        }
        found
    }

    fn waits_of(&self, owner: LockOwner) -> impl Iterator<Item = usize> + '_ {
        let waiting = self.waiting.iter().enumerate();
        waiting.filter(move |(_, waiter)| waiter.lock.owner == owner).map(|(at, _)| at)
    }

    /// The owners that block a waiter: those of conflicting locks, then those before it in the queue.
    pub(crate) fn blockers(&self, at: usize) -> Vec<LockOwner> {
        let wanted = &self.waiting[at].lock;
        let held = self.held.iter().filter(|held| held.conflicts(wanted)).map(|held| held.owner);
        let for_owner = self.all_that_wait_for(wanted.owner);
        let queued = (0..at).rev().filter(|ahead| !for_owner[*ahead]);
        let queued = queued.map(|ahead| &self.waiting[ahead].lock).filter(|lock| lock.conflicts(wanted));
        let mut owners: Vec<LockOwner> = Vec::new();
        for owner in held.chain(queued.map(|lock| lock.owner)) {
            if owners.len() == limits::DEADLOCK_BLOCKERS_MAX {
                break;
            }
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        owners
    }

    /// Removes the owner's locks from the range; a lock across its border keeps its part outside.
    pub(crate) fn unlock(&mut self, owner: LockOwner, start: u64, end: u64) {
        let mut rest = Vec::new();
        self.held.retain(|held| {
            if held.owner != owner || held.end <= start || end <= held.start {
                return true;
            }
            if held.start < start {
                rest.push(Lock { end: start, ..*held });
            }
            if end < held.end {
                rest.push(Lock { start: end, ..*held });
            }
            false
        });
        self.held.extend(rest);
        self.sort();
    }

    /// Replaces what its owner held there by a lock.
    pub(crate) fn hold(&mut self, lock: Lock) {
        self.unlock(lock.owner, lock.start, lock.end);
        let mut joined = lock;
        self.held.retain(|held| {
            let joins = held.owner == lock.owner
                && held.kind == lock.kind
                && (held.end == lock.start || held.start == lock.end);
            if joins {
                joined.start = joined.start.min(held.start);
                joined.end = joined.end.max(held.end);
            }
            !joins
        });
        self.held.push(joined);
        self.sort();
    }

    fn sort(&mut self) {
        self.held.sort_by_key(|held| (held.owner, held.start));
    }

    /// Grants locks that have become free; returns the waiters that got one, in the order of their turns.
    pub(crate) fn grant_free(&mut self) -> Vec<Waiter> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            if !self.is_free(&self.waiting[at].lock, at) {
                at += 1;
                continue;
            }
            let waiter = self.waiting.remove(at);
            self.grant(waiter.number, waiter.lock);
            granted.push(waiter);
            // A waiter that has its lock no longer blocks others as a waiter, and a shared lock in the place of
            // an exclusive one frees bytes: those before it may have their turn.
            at = 0;
        }
        granted
    }

    fn forget(&mut self, session: SessionId) {
        self.held.retain(|held| held.owner.session != session);
        self.waiting.retain(|waiter| waiter.lock.owner.session != session);
        self.grants.retain(|grant| grant.lock.owner.session != session);
    }
}

/// The locks of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileLocks {
    pub fcntl: Table,
    pub flock: Table,
}

/// What became of an earlier request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Waits,
    Granted,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Granted,
    Queued,
    Refused,
}

impl FileLocks {
    pub(crate) fn table(&self, table: LockTable) -> &Table {
        match table {
            LockTable::Fcntl => &self.fcntl,
            LockTable::Flock => &self.flock,
        }
    }

    pub(crate) fn table_mut(&mut self, table: LockTable) -> &mut Table {
        match table {
            LockTable::Fcntl => &mut self.fcntl,
            LockTable::Flock => &mut self.flock,
        }
    }

    fn tables(&self) -> [&Table; 2] {
        [&self.fcntl, &self.flock]
    }

    fn tables_mut(&mut self) -> [&mut Table; 2] {
        [&mut self.fcntl, &mut self.flock]
    }

    /// Asks for a lock. A request that waits already stays where it is, and one that was granted has its lock.
    pub(crate) fn ask(&mut self, table: LockTable, request: Waiter, waits: bool) -> Result<Asked> {
        let Waiter { lock: wanted, number, .. } = request;
        match self.known(wanted.owner.session, number) {
            Some(Known::Waits) => return Ok(Asked::Queued),
            Some(Known::Granted) => return Ok(Asked::Granted),
            None => {}
        }
        let entries = self.table_mut(table);
        if entries.is_free_now(&wanted) {
            entries.check_room_for_grant(wanted.owner.session)?;
            let before = entries.held.clone();
            entries.grant(number, wanted);
            return entries
                .check_room(before)
                .map(|()| Asked::Granted)
                .inspect_err(|_| _ = entries.grants.pop());
        }
        if !waits {
            return Ok(Asked::Refused);
        }
        if entries.waiting.len() >= limits::LOCK_WAITERS_PER_INODE_MAX {
            let text = format!("{} requests wait for locks of this file already", entries.waiting.len());
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        if table == LockTable::Flock {
            // As in Linux: an owner that waits for another kind of lock releases the one it has, or two owners
            // that want more than a shared lock would wait for each other.
            entries.unlock(wanted.owner, 0, LOCK_END);
        }
        entries.waiting.push(request);
        Ok(Asked::Queued)
    }

    /// Takes the owner's locks off a range.
    pub(crate) fn unlock(&mut self, table: LockTable, owner: LockOwner, start: u64, end: u64) -> Result<()> {
        let entries = self.table_mut(table);
        let before = entries.held.clone();
        entries.unlock(owner, start, end);
        entries.check_room(before)
    }

    /// What is known of a request that a session may take back.
    pub(crate) fn known(&self, session: SessionId, number: u64) -> Option<Known> {
        self.tables().into_iter().find_map(|table| {
            if table.wait_of(session, number).is_some() {
                return Some(Known::Waits);
            }
            table.grant_of(session, number).map(|_| Known::Granted)
        })
    }

    /// Ends a wait; whether it was one.
    pub(crate) fn end_wait(&mut self, session: SessionId, number: u64) -> bool {
        self.tables_mut().into_iter().any(|table| {
            let found = table.wait_of(session, number);
            found.map(|at| table.waiting.remove(at)).is_some()
        })
    }

    /// Takes a granted lock back.
    pub(crate) fn take_back(&mut self, session: SessionId, number: u64) {
        self.tables_mut().into_iter().for_each(|table| table.take_back(session, number));
    }

    /// The owner takes back none of its requests below this number.
    pub(crate) fn settle(&mut self, owner: LockOwner, below: u64) {
        self.tables_mut().into_iter().for_each(|table| table.settle(owner, below));
    }

    /// Where an owner holds nothing any more it has nothing to take back.
    pub(crate) fn drop_idle_grants(&mut self) {
        self.tables_mut().into_iter().for_each(Table::drop_idle_grants);
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.fcntl.forget(session);
        self.flock.forget(session);
    }

    /// Grants the next lock in turn.
    pub(crate) fn grant_free(&mut self) -> Vec<Waiter> {
        let mut granted = self.fcntl.grant_free();
        granted.extend(self.flock.grant_free());
        granted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tables().iter().all(|table| table.held.is_empty() && table.waiting.is_empty())
    }

    /// Locks that are held.
    pub(crate) fn held_count(&self) -> u64 {
        self.tables().iter().map(|table| table.held.len() as u64).sum()
    }

    /// Requests that wait.
    pub(crate) fn waiting_count(&self) -> u64 {
        self.tables().iter().map(|table| table.waiting.len() as u64).sum()
    }

    /// The number of locks and waits of each session.
    pub(crate) fn counts(&self) -> BTreeMap<SessionId, LockCount> {
        let mut counts: BTreeMap<SessionId, LockCount> = BTreeMap::new();
        for table in self.tables() {
            for held in &table.held {
                counts.entry(held.owner.session).or_default().held += 1;
            }
            for waiter in &table.waiting {
                counts.entry(waiter.lock.owner.session).or_default().waiting += 1;
            }
        }
        counts
    }
}

impl Table {
    /// Puts everything back as it was when there are more locks than there may be.
    fn check_room(&mut self, before: Vec<Lock>) -> Result<()> {
        if self.held.len() <= limits::LOCKS_PER_INODE_MAX || self.held.len() <= before.len() {
            return Ok(());
        }
        let text = format!("{} locks are held on this file already", before.len());
        self.held = before;
        Err(Error::new(ErrorKind::TooManyLocks, text))
    }
}

/// How many locks a session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LockCount {
    pub held: u64,
    pub waiting: u64,
}

/// A held lock as it is reported to a session.
pub(crate) fn shown(lock: &Lock, to: SessionId) -> HeldLock {
    let pid = if lock.owner.session == to { lock.pid } else { 0 };
    HeldLock { kind: lock.kind, start: lock.start, end: lock.end, pid }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;

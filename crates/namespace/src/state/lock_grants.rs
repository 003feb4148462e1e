//! Locks that were granted and may be taken back: a session that was not answered does not know whether it has a lock. Then
//! it cancels the request, and its owner holds again what it held before.
//!
//! A grant is kept until its session says that it knows the outcome, or holds none of its bytes any more.

use std::collections::BTreeSet;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::locks::LockOwner;
use serde::{Deserialize, Serialize};

use super::locks::{Lock, Table, Waiter};

/// A lock that was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The session's number for the request.
    pub number: u64,
    pub lock: Lock,
    /// What its owner held of these bytes before.
    pub replaced: Vec<Lock>,
}

impl Grant {
    fn is_of(&self, session: SessionId, number: u64) -> bool {
        self.lock.owner.session == session && self.number == number
    }

    /// Locks that it consists of, for limits.
    fn locks(&self) -> usize {
        1 + self.replaced.len()
    }
}

impl Table {
    /// Gives a lock; the session can take it back by the request's number.
    pub(super) fn grant(&mut self, number: u64, lock: Lock) {
        let mine = self.held_by(lock.owner).iter();
        let replaced = mine.filter_map(|held| held.within(lock.start, lock.end)).collect();
        self.hold(lock);
        self.grants.push(Grant { number, lock, replaced });
    }

    /// The place of a wait.
    pub(super) fn wait_of(&self, session: SessionId, number: u64) -> Option<usize> {
        let is_it = |waiter: &Waiter| waiter.lock.owner.session == session && waiter.number == number;
        self.waiting.iter().position(is_it)
    }

    /// The place of a grant.
    pub(super) fn grant_of(&self, session: SessionId, number: u64) -> Option<usize> {
        self.grants.iter().position(|grant| grant.is_of(session, number))
    }

    /// Refuses a lock to a session that has too many to take back: it tells of none that it knows what became of it.
    pub(super) fn check_room_for_grant(&self, session: SessionId) -> Result<()> {
        // The newest of each owner does not count: its session can settle it by that owner's next request alone.
        let mut owners = BTreeSet::new();
        let its = self.grants.iter().rev().filter(|grant| grant.lock.owner.session == session);
        let older = its.filter(|grant| !owners.insert(grant.lock.owner));
        let locks: usize = older.map(Grant::locks).sum();
        if locks < limits::LOCKS_PER_INODE_MAX {
            return Ok(());
        }
        let text = format!("the outcome of requests for {locks} locks of this file is not acknowledged");
        Err(Error::new(ErrorKind::TooManyLocks, text))
    }

    /// The owner's session knows what became of its requests below this number. One that was granted behind a request of which
    /// it does not know that is kept: where both are of the same bytes, that one's undoing has to know of it.
    pub(super) fn settle(&mut self, owner: LockOwner, below: u64) {
        let mut all = true;
        self.grants.retain(|grant| {
            if grant.lock.owner != owner {
                return true;
            }
            all &= grant.number < below;
            !all
        });
    }

    /// Drops grants of bytes of which their owner holds none any more: to take them back would change nothing, nor would it
    /// what later ones have replaced, for of these bytes they have nothing to give back either.
    pub(super) fn drop_idle_grants(&mut self) {
        let mut grants = std::mem::take(&mut self.grants);
        grants.retain(|grant| {
            let Lock { owner, start, end, .. } = grant.lock;
            self.held_by(owner).iter().any(|held| held.within(start, end).is_some())
        });
        self.grants = grants;
    }

    /// Takes a lock back: its owner holds again what it held before.
    pub(super) fn take_back(&mut self, session: SessionId, number: u64) {
        let Some(at) = self.grant_of(session, number) else { return };
        let Grant { lock, replaced, .. } = self.grants.remove(at);
        // Bytes that the owner was granted again since: their later request has replaced what this one had given.
        let mut uncovered = vec![(lock.start, lock.end)];
        for later in self.grants[at..].iter_mut().filter(|later| later.lock.owner == lock.owner) {
            let (start, end) = (later.lock.start, later.lock.end);
            let mut left = Vec::new();
            for part in uncovered {
                let shared = (part.0.max(start), part.1.min(end));
                if shared.0 >= shared.1 {
                    left.push(part);
                    continue;
                }
                for (given, before) in undone(&later.replaced, &lock, shared, &replaced) {
                    put_in_place(&mut later.replaced, given, before);
                }
                left.extend(
                    [(part.0, shared.0), (shared.1, part.1)].into_iter().filter(|part| part.0 < part.1),
                );
            }
            uncovered = left;
        }
        for part in uncovered {
            for (given, before) in undone(&self.held, &lock, part, &replaced) {
                self.unlock(lock.owner, given.start, given.end);
                before.into_iter().for_each(|old| self.hold_again(old, given));
            }
        }
    }

    /// Gives a lock that was replaced by `given`, but for bytes of which others have got a shared lock since.
    fn hold_again(&mut self, old: Lock, given: Lock) {
        let mut free = vec![old];
        for held in self.held.iter().filter(|held| held.conflicts(&old)) {
            let around = |part: Lock| [part.within(0, held.start), part.within(held.end, u64::MAX)];
            free = free.into_iter().flat_map(around).flatten().collect();
        }
        self.hold(Lock { start: old.start, end: old.end, ..given });
        free.into_iter().for_each(|part| self.hold(part));
    }
}

/// Parts of what the owner holds in a range because of a lock that is taken back, each with what was there before.
fn undone(held: &[Lock], lock: &Lock, range: (u64, u64), replaced: &[Lock]) -> Vec<(Lock, Vec<Lock>)> {
    let is_given = |held: &&Lock| held.owner == lock.owner && held.kind == lock.kind;
    let given = held.iter().filter(is_given).filter_map(|held| held.within(range.0, range.1));
    let before =
        |given: &Lock| replaced.iter().filter_map(|old| old.within(given.start, given.end)).collect();
    given.map(|given| (given, before(&given))).collect()
}

/// Puts what was there before in the place of a part of what a later grant has replaced.
fn put_in_place(replaced: &mut Vec<Lock>, given: Lock, before: Vec<Lock>) {
    let mut kept = before;
    for old in replaced.drain(..) {
        kept.extend(old.within(0, given.start));
        kept.extend(old.within(given.end, u64::MAX));
    }
    *replaced = kept;
}

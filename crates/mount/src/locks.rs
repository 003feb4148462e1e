//! Locks of programs: turns the kernel's requests into locks at the files' homes.
//!
//! A lock that has to wait is parked: its reply stays in a table until an event, a signal or the end of the
//! session answers it, and no worker waits. The kernel identifies the owner of a lock by a number: of the
//! process for POSIX locks, of the open file for `flock` and OFD locks. It reports with the close of a
//! descriptor that a process's POSIX locks end, and with the end of an open file that its `flock` ends; OFD
//! locks that are left then have to be found here.
//!
//! A granted lock shows what others wrote before they unlocked: if the file has another version than the
//! kernel's pages, they are dropped before the program continues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ramlace_base::{Error, InodeId, Result};
use ramlace_client::{Cancellation, File, LockKind, LockRequest, LockTable, LockedFile, Waited};
use ramlace_fuse::{Porter, Reply};
use ramlace_sync::{Mutex, MutexGuard};

use crate::droppers::PendingDrops;
use crate::handles::{Handles, OpenFile};
use crate::nodes::Nodes;
use crate::refresh::Refresher;
use crate::versions::{Version, Versions};

/// A program that waits for a lock.
struct Parked {
    reply: Reply,
    file: Arc<OpenFile>,
    holder: Holder,
    /// Identifies the wait, once its home has queued it.
    wait: Option<u64>,
}

/// The owner of a lock, and the open file through which it locks.
#[derive(Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) inode: InodeId,
    pub(crate) handle: u64,
    pub(crate) request: LockRequest,
}

/// The locks that programs hold and wait for through this mount.
pub(crate) struct Locks {
    /// False: every lock is refused.
    pub(crate) enabled: bool,
    /// Waiting requests by number.
    parked: Mutex<HashMap<u64, Parked>>,
    /// Knows the owners of each file.
    nodes: Arc<Nodes>,
    versions: Arc<Versions>,
    handles: Arc<Handles>,
    /// Drops of relaxed files are not waited for, so a write elsewhere may be over before its time is known
    /// here.
    drops: PendingDrops,
    refresher: Arc<Refresher>,
    /// Finds out in which system call a program waits.
    porter: Arc<Porter>,
}

impl Locks {
    pub(crate) fn new(
        enabled: bool,
        nodes: &Arc<Nodes>,
        (versions, handles): (&Arc<Versions>, &Arc<Handles>),
        drops: PendingDrops,
        refresher: &Arc<Refresher>,
        porter: &Arc<Porter>,
    ) -> Arc<Locks> {
        Arc::new(Locks {
            enabled,
            parked: Mutex::default(),
            nodes: nodes.clone(),
            versions: versions.clone(),
            handles: handles.clone(),
            drops,
            refresher: refresher.clone(),
            porter: porter.clone(),
        })
    }

    fn parked(&self) -> MutexGuard<'_, HashMap<u64, Parked>> {
        self.parked.lock()
    }

    /// The owner may have locks from now on.
    fn note(&self, holder: Holder) {
        if holder.request.table == LockTable::Fcntl && holder.request.kind.is_some() {
            let (owner, handle) = (holder.request.owner, holder.handle);
            self.nodes.change(holder.inode, |node| node.owners.note(owner, handle));
        }
    }

    fn may_hold(&self, inode: InodeId, owner: u64) -> bool {
        self.nodes.read(inode, |node| node.owners.may_hold(owner)).unwrap_or(false)
    }

    /// An owner of `fcntl` locks is gone; returns whether it was known. Closing a file without locks costs one
    /// lookup.
    pub(crate) fn end_owner(&self, inode: InodeId, owner: u64) -> bool {
        self.nodes.find(inode, |node| node.owners.end(owner)).unwrap_or(false)
    }

    /// An open file is gone; returns the owners that may have locked through it alone.
    pub(crate) fn end_file(&self, inode: InodeId, handle: u64) -> Vec<u64> {
        self.nodes.find(inode, |node| node.owners.end_file(handle)).unwrap_or_default()
    }

    /// Takes a parked reply and answers it.
    fn finish(&self, unique: u64, ended: Result<LockedFile>) {
        let Some(parked) = self.parked().remove(&unique) else { return };
        match ended {
            Ok(locked) => self.answer_granted((parked.holder, &parked.file), locked, parked.reply),
            Err(error) => _ = parked.reply.error(lock_errno(&error)),
        }
    }

    /// The lock is held: the program continues once it cannot see older pages.
    fn answer_granted(&self, (holder, open): (Holder, &Arc<OpenFile>), locked: LockedFile, reply: Reply) {
        self.note(holder);
        let version = Version::of_locked(&locked);
        let is_written = || self.handles.is_written_here(holder.inode);
        if holder.request.kind.is_none() || self.pages_are_of(&open.file, version, is_written()) {
            reply.ok();
        } else {
            let open = open.clone();
            let then = move |dropped| answer_after_drop(holder, &open, dropped, reply);
            self.refresher.bring_to(holder.inode, version, Box::new(then));
        }
    }

    /// Asks the home of a file to lock, or to unlock.
    pub(crate) fn set(self: &Arc<Locks>, holder: Holder, file: &Arc<OpenFile>, wait: bool, reply: Reply) {
        self.note(holder);
        if wait && holder.request.kind.is_some() {
            return self.set_later(holder, file, reply);
        }
        match file.file.set_lock(&holder.request) {
            Ok(Some(locked)) => self.answer_granted((holder, file), locked, reply),
            Ok(None) => _ = reply.error(libc::EAGAIN),
            Err(error) => _ = reply.error(lock_errno(&error)),
        }
    }

    fn set_later(self: &Arc<Locks>, holder: Holder, file: &Arc<OpenFile>, reply: Reply) {
        let unique = reply.unique();
        self.parked().insert(unique, Parked { reply, file: file.clone(), holder, wait: None });
        let locks = self.clone();
        let on_end = Box::new(move |ended| locks.finish(unique, ended));
        match file.file.set_lock_later(&holder.request, on_end) {
            Ok(Waited::Granted(locked)) => self.finish(unique, Ok(locked)),
            Err(error) => self.finish(unique, Err(error)),
            Ok(Waited::Waiting(wait)) => {
                let interrupted = {
                    let mut parked = self.parked();
                    match parked.entry(unique) {
                        Entry::Vacant(_) => false,
                        Entry::Occupied(mut parked) => {
                            parked.get_mut().wait = Some(wait);
                            parked.get().reply.interrupted()
                        }
                    }
                };
                if interrupted {
                    self.cancel_wait(unique, file, wait);
                }
            }
        }
    }

    /// Whether other owners may get bytes that this owner has locked exclusively: because of an unlock, or a
    /// shared lock instead.
    pub(crate) fn may_give_away(&self, holder: Holder) -> bool {
        let LockRequest { table, owner, kind, .. } = holder.request;
        match kind {
            Some(LockKind::Exclusive) => false,
            // Owners of a `flock` are not noted.
            Some(LockKind::Shared) => table == LockTable::Flock || self.may_hold(holder.inode, owner),
            None => true,
        }
    }

    /// Whether the kernel's pages of a file are of this version, no drop of them is pending that matters, and all
    /// servers still wait for the kernel before they change bytes; but what programs here may have stored (`is_written`) is
    /// not dropped for that.
    pub(crate) fn pages_are_of(&self, file: &File, version: Version, is_written: bool) -> bool {
        let inode = file.inode();
        let is_heard_of = || is_written || file.is_heard_of();
        self.versions.are_of(inode, version) && !self.drops.has(inode) && is_heard_of()
    }

    /// A waiting program has a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        let wait = self.parked().get(&unique).and_then(|parked| Some((parked.file.clone(), parked.wait?)));
        // A request that has no wait yet checks for the signal when it has one.
        if let Some((file, wait)) = wait {
            self.cancel_wait(unique, &file, wait);
        }
    }

    /// Ends a wait: with EINTR, or with the lock if it was granted before.
    fn cancel_wait(&self, unique: u64, file: &Arc<OpenFile>, wait: u64) {
        let cancelled = file.file.cancel_wait(wait);
        if matches!(cancelled, Ok(Cancellation::Ended)) {
            return;
        }
        let Some(parked) = self.parked().remove(&unique) else { return };
        match cancelled {
            // The program continues with the lock, as if the signal had come a moment later.
            Ok(Cancellation::Granted(locked)) => {
                self.answer_granted((parked.holder, file), locked, parked.reply);
            }
            _ => _ = parked.reply.error(libc::EINTR),
        }
    }

    /// The mount has ended: all waits end.
    pub(crate) fn end(&self) {
        let parked: Vec<Parked> = self.parked().drain().map(|(_, parked)| parked).collect();
        parked.into_iter().for_each(|parked| _ = parked.reply.error(libc::ENOTCONN));
    }
}

/// Answers a lock whose program could see older pages until now. After an error it takes the bytes for not locked, and unlocks
/// nothing: so they are unlocked before.
fn answer_after_drop(holder: Holder, open: &OpenFile, dropped: Result<()>, reply: Reply) {
    match dropped {
        Ok(()) => _ = reply.ok(),
        Err(error) => {
            let unlock = LockRequest { kind: None, detects: false, ..holder.request };
            // A home that does not answer unlocks them with the file's close.
            let _ = open.file.set_lock(&unlock);
            reply.error(lock_errno(&error));
        }
    }
}

/// A full server has no room for the record of a lock either.
pub(crate) fn lock_errno(error: &Error) -> i32 {
    match error.errno() {
        libc::ENOSPC => libc::ENOLCK,
        other => other,
    }
}

impl Locks {
    /// Whether the thread asks for an OFD lock: for those, cycles are not deadlocks, since another thread may
    /// unlock. The kernel's request does not say so, but the thread's system call can be read while it waits
    /// for the answer.
    pub(crate) fn waits_for_ofd_lock(&self, thread: u32) -> bool {
        self.porter.system_call_of(thread).is_ok_and(|call| is_ofd_call(&call))
    }
}

/// `number argument argument ...`: fcntl's second argument is its command.
fn is_ofd_call(call: &str) -> bool {
    let command = call.split_ascii_whitespace().nth(2).and_then(|word| word.strip_prefix("0x"));
    command.and_then(|digits| i64::from_str_radix(digits, 16).ok()) == Some(libc::F_OFD_SETLKW.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_an_ofd_call_is_known() {
        assert!(is_ofd_call("72 0x3 0x26 0x7ffd1c5b2e80 0x0 0x0 0x0 0x7ffd1c5b2e58 0x7f2b1c3a1d3f\n"));
        assert!(!is_ofd_call("72 0x3 0x7 0x7ffd1c5b2e80 0x0 0x0 0x0 0x7ffd1c5b2e58 0x7f2b1c3a1d3f\n"));
        assert!(!is_ofd_call("running\n"));
    }
}

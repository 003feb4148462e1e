//! Locks of programs: the kernel's requests as locks at the files' homes.
//!
//! A lock that has to wait is parked: its reply lies in a table until an event, a signal or the end of the session
//! answers it, and no worker waits. The kernel tells whose lock it is by a number: of the process for POSIX
//! locks, of the open file for `flock` and OFD locks. It says with the close of a descriptor that a process gives up its POSIX
//! locks, and with the end of an open file that its `flock` goes; OFD locks that are left then are for this to find.
//!
//! A granted lock shows what others wrote before they unlocked: where the file is another than the kernel's pages
//! are of, they are dropped before the program goes on.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ramlace_base::{ByteRange, Error, InodeId, Result};
use ramlace_client::{GivenUp, LOCK_END, LockKind, LockRequest, LockTable, LockedFile, Waited};
use ramlace_fuse::{FileLock, LockKind as KernelKind, Operation, Porter, Reply, Request};
use ramlace_sync::{Mutex, MutexGuard};

use crate::data::await_published;
use crate::droppers::Owed;
use crate::filesystem::PoolFileSystem;
use crate::handles::OpenFile;
use crate::refresh::Refresher;
use crate::versions::{Version, Versions};

/// A program that waits for a lock.
struct Parked {
    reply: Reply,
    file: Arc<OpenFile>,
    holder: Holder,
    /// Names the wait, once its home has queued it.
    wait: Option<u64>,
}

/// The locks that programs hold and wait for through this mount.
pub(crate) struct Locks {
    /// False: every lock is refused.
    enabled: bool,
    /// By the number of the request.
    parked: Mutex<HashMap<u64, Parked>>,
    owners: Mutex<Owners>,
    versions: Arc<Versions>,
    /// On a relaxed mount: nobody waits for drops, so that a write elsewhere may be over and its time not be told yet.
    owed: Option<Owed>,
    refresher: Arc<Refresher>,
    /// Sees in which call a program waits.
    porter: Arc<Porter>,
}

/// Owners of `fcntl` locks by file, and the open files by which they may have locked. A file without locks costs its
/// closes one look.
#[derive(Default)]
struct Owners(HashMap<InodeId, HashMap<u64, HashSet<u64>>>);

impl Owners {
    fn note(&mut self, inode: InodeId, owner: u64, handle: u64) {
        self.0.entry(inode).or_default().entry(owner).or_default().insert(handle);
    }

    fn may_hold(&self, inode: InodeId, owner: u64) -> bool {
        self.0.get(&inode).is_some_and(|owners| owners.contains_key(&owner))
    }

    /// An owner is gone; whether it was known.
    fn end(&mut self, inode: InodeId, owner: u64) -> bool {
        let Entry::Occupied(mut owners) = self.0.entry(inode) else { return false };
        let known = owners.get_mut().remove(&owner).is_some();
        if owners.get().is_empty() {
            owners.remove();
        }
        known
    }

    /// An open file is gone; the owners who may have locked by that alone.
    fn end_file(&mut self, inode: InodeId, handle: u64) -> Vec<u64> {
        let Entry::Occupied(mut owners) = self.0.entry(inode) else { return Vec::new() };
        let left = owners.get_mut().extract_if(|_, handles| handles.remove(&handle) && handles.is_empty());
        let left = left.map(|(owner, _)| owner).collect();
        if owners.get().is_empty() {
            owners.remove();
        }
        left
    }
}

/// Whose lock, by which open file.
#[derive(Clone, Copy)]
struct Holder {
    inode: InodeId,
    handle: u64,
    request: LockRequest,
}

impl Locks {
    pub(crate) fn new(
        enabled: bool,
        versions: &Arc<Versions>,
        owed: Option<Owed>,
        refresher: &Arc<Refresher>,
        porter: &Arc<Porter>,
    ) -> Arc<Locks> {
        Arc::new(Locks {
            enabled,
            parked: Mutex::default(),
            owners: Mutex::default(),
            versions: versions.clone(),
            owed,
            refresher: refresher.clone(),
            porter: porter.clone(),
        })
    }

    fn parked(&self) -> MutexGuard<'_, HashMap<u64, Parked>> {
        self.parked.lock()
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }

    /// The owner may hold something from now on.
    fn note(&self, holder: Holder) {
        if holder.request.table == LockTable::Fcntl && holder.request.kind.is_some() {
            self.owners().note(holder.inode, holder.request.owner, holder.handle);
        }
    }

    /// Takes a parked reply and answers it.
    fn finish(&self, unique: u64, ended: Result<LockedFile>) {
        let Some(parked) = self.parked().remove(&unique) else { return };
        match ended {
            Ok(locked) => self.answer_granted(parked.holder, locked, parked.reply),
            Err(error) => _ = parked.reply.error(lock_errno(&error)),
        }
    }

    /// The lock is held: the program goes on when it cannot see pages from before.
    fn answer_granted(&self, holder: Holder, file: LockedFile, reply: Reply) {
        self.note(holder);
        let version = Version::of_locked(&file);
        if holder.request.kind.is_none() || self.pages_are_of(holder.inode, version) {
            reply.ok();
        } else {
            self.refresher.bring_to(holder.inode, version, reply);
        }
    }

    /// Asks the home of a file for a lock, or to let go of one.
    fn set(self: &Arc<Locks>, holder: Holder, file: &Arc<OpenFile>, wait: bool, reply: Reply) {
        self.note(holder);
        if wait && holder.request.kind.is_some() {
            return self.set_later(holder, file, reply);
        }
        match file.file.set_lock(&holder.request) {
            Ok(Some(locked)) => self.answer_granted(holder, locked, reply),
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
                    self.give_up(unique, file, wait);
                }
            }
        }
    }

    /// Whether others may get bytes that the owner has locked for itself: by an unlock, or by a shared lock instead.
    fn may_give_away(&self, holder: Holder) -> bool {
        let LockRequest { table, owner, kind, .. } = holder.request;
        match kind {
            Some(LockKind::Exclusive) => false,
            // Who holds a `flock` is not noted.
            Some(LockKind::Shared) => {
                table == LockTable::Flock || self.owners().may_hold(holder.inode, owner)
            }
            None => true,
        }
    }

    /// Whether the kernel's pages of a file are of this version, and no drop of them is owed.
    pub(crate) fn pages_are_of(&self, inode: InodeId, version: Version) -> bool {
        self.versions.are_of(inode, version) && !self.owed.as_ref().is_some_and(|owed| owed.has(inode))
    }

    /// A program that waits has a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        let wait = self.parked().get(&unique).and_then(|parked| Some((parked.file.clone(), parked.wait?)));
        // Who has no wait yet looks for the signal when he has one.
        if let Some((file, wait)) = wait {
            self.give_up(unique, &file, wait);
        }
    }

    /// Ends a wait: with EINTR, or with the lock if it was granted before.
    fn give_up(&self, unique: u64, file: &OpenFile, wait: u64) {
        let given_up = file.file.give_up_lock(wait);
        if matches!(given_up, Ok(GivenUp::Told)) {
            return;
        }
        let Some(parked) = self.parked().remove(&unique) else { return };
        match given_up {
            // The program goes on with the lock as if the signal had come a moment later.
            Ok(GivenUp::Granted(locked)) => self.answer_granted(parked.holder, locked, parked.reply),
            _ => _ = parked.reply.error(libc::EINTR),
        }
    }

    /// The mount is gone: nobody waits any more.
    pub(crate) fn end(&self) {
        let parked: Vec<Parked> = self.parked().drain().map(|(_, parked)| parked).collect();
        parked.into_iter().for_each(|parked| _ = parked.reply.error(libc::ENOTCONN));
    }
}

impl PoolFileSystem {
    pub(crate) fn handle_lock(&self, request: &Request<'_>, reply: Reply) {
        if !self.locks.enabled {
            reply.error(libc::ENOSYS);
            return;
        }
        let inode = self.nodes.inode(request.node);
        match request.operation {
            Operation::GetLock { handle, owner, lock, is_flock } => {
                match self.get_lock(handle, &lock_request(owner, &lock, is_flock)) {
                    Ok(found) => reply.lock(&found),
                    Err(error) => reply.error(lock_errno(&error)),
                };
            }
            Operation::SetLock { handle, owner, lock, wait, is_flock } => {
                let mut wanted = lock_request(owner, &lock, is_flock);
                wanted.detects = wait && !is_flock && !self.locks.waits_for_ofd_lock(request.caller.pid);
                self.set_lock(Holder { inode, handle, request: wanted }, wait, reply);
            }
            _ => _ = reply.error(libc::ENOSYS),
        }
    }

    fn get_lock(&self, handle: u64, wanted: &LockRequest) -> Result<FileLock> {
        let found = self.handles.get(handle)?.file.get_lock(wanted)?;
        Ok(match found {
            None => FileLock { start: 0, end: 0, kind: KernelKind::Unlock, pid: 0 },
            Some(held) => FileLock {
                start: held.start,
                end: held.end - 1,
                kind: match held.kind {
                    LockKind::Shared => KernelKind::Read,
                    LockKind::Exclusive => KernelKind::Write,
                },
                pid: held.pid,
            },
        })
    }

    fn set_lock(&self, holder: Holder, wait: bool, reply: Reply) {
        let file = match self.handles.get(holder.handle) {
            Ok(file) => file,
            Err(error) => {
                reply.error(error.errno());
                return;
            }
        };
        file.settle(&self.versions);
        let publishes = self.relaxed && !file.handed && self.handles.is_written_here(holder.inode);
        if publishes && self.locks.may_give_away(holder) {
            return self.publish_and_give_away(holder, file, wait, reply);
        }
        if holder.request.kind.is_none() {
            // Whoever has the lock next sees what was written back. What that was not, the next sync tells.
            let _ = self.await_published(holder.inode);
        }
        self.locks.set(holder, &file, wait, reply);
    }

    /// What was stored into the locked bytes is published before somebody else gets the lock. Where that cannot be done the lock stays.
    fn publish_and_give_away(&self, holder: Holder, file: Arc<OpenFile>, wait: bool, reply: Reply) {
        let LockRequest { start, end, .. } = holder.request;
        let (pool, pages, locks) = (self.pool.clone(), self.pages.clone(), self.locks.clone());
        let errors = self.write_errors.clone();
        let give_away = move |written: Result<()>| {
            // The kernel drops what it could not write back, now or before, and says nothing of it.
            let written = written.and_then(|()| errors.tell(holder.inode, &file.errors_unlocks_heard));
            match written.and_then(|()| await_published(&pool, &pages, holder.inode)) {
                Ok(()) => locks.set(holder, &file, wait, reply),
                Err(error) => _ = reply.error(lock_errno(&error)),
            }
        };
        self.refresher.after_writing_back_part(holder.inode, ByteRange { start, end }, Box::new(give_away));
    }

    /// A process closes a descriptor: its POSIX locks of the file go, by whatever descriptor it has locked.
    pub(crate) fn release_process_locks(&self, inode: InodeId, handle: u64, owner: u64) {
        if self.locks.owners().end(inode, owner)
            && let Ok(file) = self.handles.get(handle)
        {
            file.file.release_locks(LockTable::Fcntl, owner);
        }
    }

    /// An open file is gone: its `flock`, and its OFD locks, which nobody else can have left behind.
    pub(crate) fn release_file_locks(&self, inode: InodeId, handle: u64, flock_owner: Option<u64>) {
        let left = self.locks.owners().end_file(inode, handle);
        if left.is_empty() && flock_owner.is_none() {
            return;
        }
        let Ok(file) = self.handles.get(handle) else { return };
        left.into_iter().for_each(|owner| file.file.release_locks(LockTable::Fcntl, owner));
        if let Some(owner) = flock_owner {
            file.file.release_locks(LockTable::Flock, owner);
        }
    }
}

/// The kernel's range has a last byte, and the largest offset for "all that follow".
fn lock_request(owner: u64, lock: &FileLock, is_flock: bool) -> LockRequest {
    let table = if is_flock { LockTable::Flock } else { LockTable::Fcntl };
    let (start, end) =
        if is_flock { (0, LOCK_END) } else { (lock.start, lock.end.saturating_add(1).min(LOCK_END)) };
    let kind = match lock.kind {
        KernelKind::Read => Some(LockKind::Shared),
        KernelKind::Write => Some(LockKind::Exclusive),
        KernelKind::Unlock => None,
    };
    LockRequest { table, owner, kind, start, end, pid: lock.pid, detects: false }
}

/// A full server has no room for the record of a lock either.
fn lock_errno(error: &Error) -> i32 {
    match error.errno() {
        libc::ENOSPC => libc::ENOLCK,
        other => other,
    }
}

impl Locks {
    /// Whether the thread asks for an OFD lock: for those, cycles are no deadlocks, since another thread may unlock. The
    /// kernel does not say; while the thread waits for the answer, its system call can be read.
    fn waits_for_ofd_lock(&self, thread: u32) -> bool {
        self.porter.system_call_of(thread).is_ok_and(|call| is_ofd_call(&call))
    }
}

/// `number argument argument ...`: fcntl's second argument is what it shall do.
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

    #[test]
    fn owners_end_with_the_last_file_by_which_they_have_locked() {
        let mut owners = Owners::default();
        let (inode, other) = (InodeId::ROOT, InodeId::new(ramlace_base::Slot(1), 2));
        for (owner, handle) in [(1, 10), (1, 11), (2, 10)] {
            owners.note(inode, owner, handle);
        }
        owners.note(other, 1, 20);
        assert!(owners.end_file(inode, 12).is_empty());
        assert_eq!(owners.end_file(inode, 10), [2]);
        assert!(!owners.end(inode, 2) && owners.end(other, 1));
        assert_eq!(owners.end_file(inode, 11), [1]);
        assert!(owners.0.is_empty());
    }

    #[test]
    fn ranges_are_the_kernels() {
        let lock = |start, end| FileLock { start, end, kind: KernelKind::Write, pid: 1 };
        let all = lock_request(7, &lock(10, i64::MAX as u64), false);
        assert_eq!((all.start, all.end), (10, LOCK_END));
        let some = lock_request(7, &lock(10, 19), false);
        assert_eq!((some.start, some.end), (10, 20));
        let flock = lock_request(7, &lock(10, 19), true);
        assert_eq!((flock.table, flock.start, flock.end), (LockTable::Flock, 0, LOCK_END));
    }
}

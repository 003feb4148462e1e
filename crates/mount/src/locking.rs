//! The kernel's requests about locks: see [`crate::locks`].

use std::sync::Arc;

use ramlace_base::{ByteRange, InodeId, Result};
use ramlace_client::{LOCK_END, LockKind, LockRequest, LockTable};
use ramlace_fuse::{FileLock, LockKind as KernelKind, Operation, Reply, Request};
use ramlace_wire::Mode;

use crate::data::await_published;
use crate::handles::OpenFile;
use crate::locks::{Holder, lock_errno};
use crate::mounted::PoolFileSystem;

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
        file.finish_open(&self.versions, &self.handles);
        // The close ends what is left of its locks.
        let _ = file.take_answer();
        let publishes =
            file.mode == Mode::Relaxed && !file.passthrough && self.handles.is_written_here(holder.inode);
        if publishes && self.locks.may_give_away(holder) {
            return self.publish_and_give_away(holder, file, wait, reply);
        }
        if holder.request.kind.is_none() {
            // The next owner of the lock sees what was written back. What was not is reported by the next
            // sync.
            let _ = self.await_published(holder.inode);
        }
        self.locks.set(holder, &file, wait, reply);
    }

    /// Publishes stores into the locked bytes before another program gets the lock. If that fails, the lock
    /// stays.
    fn publish_and_give_away(&self, holder: Holder, file: Arc<OpenFile>, wait: bool, reply: Reply) {
        let LockRequest { start, end, .. } = holder.request;
        let (pool, pages, locks) = (self.pool.clone(), self.pages.clone(), self.locks.clone());
        let errors = self.write_errors.clone();
        let give_away = move |written: Result<()>| {
            // The kernel drops what it could not write back, now or before, without a report.
            let written = written.and_then(|()| errors.tell(holder.inode, &file.errors_unlocks_reported));
            match written.and_then(|()| await_published(&pool, &pages, holder.inode)) {
                Ok(()) => locks.set(holder, &file, wait, reply),
                Err(error) => _ = reply.error(lock_errno(&error)),
            }
        };
        self.refresher.before_giving_away(holder.inode, ByteRange { start, end }, Box::new(give_away));
    }

    /// A process closes a descriptor: its POSIX locks of the file end, whichever descriptor it has used to
    /// lock.
    pub(crate) fn release_process_locks(&self, inode: InodeId, handle: u64, owner: u64) {
        if self.locks.end_owner(inode, owner)
            && let Ok(file) = self.handles.get(handle)
        {
            file.file.release_locks(LockTable::Fcntl, owner);
        }
    }

    /// An open file is gone: its `flock` ends, and so do its OFD locks, which nothing else can have ended.
    pub(crate) fn release_file_locks(&self, inode: InodeId, handle: u64, flock_owner: Option<u64>) {
        let left = self.locks.end_file(inode, handle);
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

/// The kernel's range has a last byte, and the largest offset stands for "all that follow".
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

#[cfg(test)]
mod tests {
    use super::*;

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

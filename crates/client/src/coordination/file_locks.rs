//! Locks of an open file: ranges of bytes that this file holds against all other open files, processes and
//! machines.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_wire::locks::{GetLock, HeldLock, LOCK_END, LockKind, LockTable, LockedFile, SetLock};

use crate::bytes::file::File;
use crate::client::Client;
use crate::coordination::locking::{Cancellation, Waited, whole_unlock};
use crate::coordination::waits::OnEnd;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;

/// A lock on behalf of one of several owners, for callers that distinguish owners themselves (the mount).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock table of the file in which the lock is.
    pub table: LockTable,
    /// The owner of the lock.
    pub owner: u64,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// The first byte.
    pub start: u64,
    /// Behind the last byte; [`LOCK_END`]: to the end of any file.
    pub end: u64,
    /// The owner's process id.
    pub pid: u32,
    /// The owner waits for nothing else meanwhile, so a cycle of waits is a deadlock.
    pub detects: bool,
}

impl File {
    /// Locks a range of bytes, shared with others or exclusively for this file, and waits for it for at most
    /// `timeout` (for ever without one). What this file held there before is replaced. An empty range goes as
    /// far as any file may.
    ///
    /// The lock is this open file's: it conflicts with those of every other open file, also of this process,
    /// and of programs that lock by `fcntl` on a mount. It ends by [`File::unlock`], with the file, and with
    /// the process.
    ///
    /// Where this file is open in relaxed mode ([`crate::OpenOptions::sharing`]), its reads of these bytes
    /// see from then on what was published before the lock was granted.
    ///
    /// Errors: `TimedOut` when it was not granted in time; `BadHandle` for an exclusive lock of a file that
    /// is not open for writing.
    pub fn lock(&self, range: ByteRange, kind: LockKind, timeout: Option<Duration>) -> Result<()> {
        self.lock_with(range, kind, timeout, || Ok(()))
    }

    /// The same; `pause` is called several times a second and says whether to go on waiting. When it says no, a lock
    /// that was granted all the same is unlocked.
    #[doc(hidden)]
    pub fn lock_with(
        &self,
        range: ByteRange,
        kind: LockKind,
        timeout: Option<Duration>,
        mut pause: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let client = self.handle()?.session.clone();
        let mut stopped = None;
        let request = self.wait_for_lock(range, kind, timeout, || {
            pause().inspect_err(|error| stopped = Some(error.clone()))
        })?;
        self.confirm(&client, range, request, stopped.map_or_else(pause, Err))
    }

    /// A lock was granted: it stays if its caller still wants it and its bytes are refreshed. Otherwise its caller does not know
    /// of it, and would never unlock it.
    fn confirm(
        &self,
        client: &Arc<Client>,
        range: ByteRange,
        request: SetLock,
        wanted: Result<()>,
    ) -> Result<()> {
        let end = if range.start >= range.end { LOCK_END } else { range.end };
        let confirmed = wanted.and_then(|()| self.refresh_range(ByteRange { end, ..range }));
        match &confirmed {
            Ok(()) => client.waits.settle(request.number),
            Err(_) => client.take_back(request),
        }
        confirmed.map_err(|error| self.tell(error))
    }

    fn wait_for_lock(
        &self,
        range: ByteRange,
        kind: LockKind,
        timeout: Option<Duration>,
        mut pause: impl FnMut() -> Result<()>,
    ) -> Result<SetLock> {
        const STEP: Duration = Duration::from_millis(100);
        let request = self.own_lock(range, Some(kind))?;
        let (sender, receiver) = sync_channel(1);
        let on_end: OnEnd = Box::new(move |ended| _ = sender.send(ended));
        let (wait, request) = match self.begin_lock(&request, on_end, false)? {
            (Waited::Granted(_), request) => return Ok(request),
            (Waited::Waiting(wait), request) => (wait, request),
        };
        let received = |ended: Result<LockedFile>| ended.map(|_| request).map_err(|error| self.tell(error));
        let began = std::time::Instant::now();
        loop {
            let left = timeout.map_or(STEP, |timeout| timeout.saturating_sub(began.elapsed()).min(STEP));
            let ended = match receiver.recv_timeout(left) {
                Ok(ended) => return received(ended),
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Error::new(ErrorKind::Stale, "the session has ended"))
                }
                Err(RecvTimeoutError::Timeout) => match timeout {
                    Some(timeout) if began.elapsed() >= timeout => {
                        let text = format!("others hold these bytes locked; waited {timeout:?}");
                        Err(Error::new(ErrorKind::TimedOut, text))
                    }
                    _ => pause(),
                },
            };
            let Err(error) = ended else { continue };
            return match self.end_wait(wait)? {
                Cancellation::Cancelled => Err(self.tell(error)),
                Cancellation::Granted(_) => Ok(request),
                Cancellation::Ended => received(receiver.recv().unwrap_or(Err(error))),
            };
        }
    }

    /// Locks a range if no other lock conflicts; returns whether it did.
    pub fn try_lock(&self, range: ByteRange, kind: LockKind) -> Result<bool> {
        self.try_lock_with(range, kind, || Ok(()))
    }

    /// The same; `wanted` is asked when the lock is there, and says whether it is to stay.
    #[doc(hidden)]
    pub fn try_lock_with(
        &self,
        range: ByteRange,
        kind: LockKind,
        wanted: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let request = self.own_lock(range, Some(kind))?;
        let handle = self.handle()?;
        self.push_times_before(handle, kind)?;
        let asked = handle.session.begin_set_lock(self.lock_request(&request));
        let (locked, request) = asked.map_err(|error| self.tell(error))?;
        match locked {
            Some(file) => {
                learn(handle, file);
                self.confirm(&handle.session, range, request, wanted()).map(|()| true)
            }
            None => {
                handle.session.waits.settle(request.number);
                Ok(false)
            }
        }
    }

    /// Unlocks a range. Bytes that are not locked are ignored.
    pub fn unlock(&self, range: ByteRange) -> Result<()> {
        self.set_lock(&self.own_lock(range, None)?).map(drop)
    }

    fn own_lock(&self, range: ByteRange, kind: Option<LockKind>) -> Result<LockRequest> {
        // The rights that fcntl requires. They are checked here, since the home knows only those of the session.
        match kind {
            Some(LockKind::Exclusive) => self.needs_writing()?,
            Some(LockKind::Shared) => self.needs(self.rights().read, "reading")?,
            None => {}
        }
        let handle = self.handle()?;
        let end = if range.start >= range.end { LOCK_END } else { range.end };
        let (table, owner, pid) = (LockTable::Fcntl, handle.lock_owner(), std::process::id());
        Ok(LockRequest { table, owner, kind, start: range.start, end, pid, detects: false })
    }

    /// Locks or unlocks without waiting; `None` when another lock conflicts.
    pub fn set_lock(&self, request: &LockRequest) -> Result<Option<LockedFile>> {
        let handle = self.handle()?;
        let pushed = match request.kind {
            Some(kind) => {
                self.push_times_before(handle, kind)?;
                Ok(())
            }
            // What is to be unlocked is, whatever becomes of the times.
            None => self.push_times(handle),
        };
        let locked = handle.session.set_lock(self.lock_request(request)).map_err(|error| self.tell(error))?;
        if let Some(file) = locked {
            learn(handle, file);
        }
        pushed.map(|()| locked)
    }

    /// A lock that others may share gives away what its owner has written under an exclusive one.
    fn push_times_before(&self, handle: &Handle, kind: LockKind) -> Result<()> {
        match kind {
            LockKind::Exclusive => Ok(()),
            LockKind::Shared => self.push_times(handle),
        }
    }

    /// The next owner of a lock on these bytes shall see when they were written.
    fn push_times(&self, handle: &Handle) -> Result<()> {
        match handle.session.push_times(self.inode()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.tell(error)),
            _ => Ok(()),
        }
    }

    /// Locks, and waits if another lock conflicts: then `on_end` is called with the end of the wait, on a
    /// thread that must not wait.
    pub fn set_lock_later(&self, request: &LockRequest, on_end: OnEnd) -> Result<Waited> {
        self.begin_lock(request, on_end, true).map(|(waited, _)| waited)
    }

    fn begin_lock(&self, request: &LockRequest, on_end: OnEnd, settles: bool) -> Result<(Waited, SetLock)> {
        let handle = self.handle()?;
        let open = handle.open.clone();
        let on_end: OnEnd = Box::new(move |ended| {
            if let Ok(LockedFile { size, generation, .. }) = ended {
                open.learn(Size { generation, size });
            }
            on_end(ended);
        });
        let waited = handle.session.set_lock_later(self.lock_request(request), on_end, settles);
        if let Ok((Waited::Granted(file), _)) = waited {
            learn(handle, file);
        }
        waited.map_err(|error| self.tell(error))
    }

    /// Cancels a wait.
    pub fn cancel_wait(&self, wait: u64) -> Result<Cancellation> {
        let cancelled = self.end_wait(wait)?;
        if matches!(cancelled, Cancellation::Granted(_)) {
            self.handle()?.session.waits.settle(wait);
        }
        Ok(cancelled)
    }

    /// The same; a lock that was granted can be taken back.
    fn end_wait(&self, wait: u64) -> Result<Cancellation> {
        let handle = self.handle()?;
        let cancelled = handle.session.cancel_wait(wait);
        if let Cancellation::Granted(file) = cancelled {
            learn(handle, file);
        }
        Ok(cancelled)
    }

    /// A lock that conflicts with one like this, if there is one. Its process id is known when it is one of
    /// this session.
    pub fn get_lock(&self, request: &LockRequest) -> Result<Option<HeldLock>> {
        let LockRequest { table, owner, start, end, .. } = *request;
        let Some(kind) = request.kind else { return Ok(None) };
        let query = GetLock { inode: self.inode(), table, owner, kind, start, end };
        self.handle()?.session.get_lock(&query).map_err(|error| self.tell(error))
    }

    /// Releases all locks of an owner that has gone: at once, or when the file's home answers again.
    pub fn release_locks(&self, table: LockTable, owner: u64) {
        if let Ok(handle) = self.handle() {
            handle.session.release_locks(whole_unlock(self.inode(), table, owner));
        }
    }

    fn lock_request(&self, request: &LockRequest) -> SetLock {
        let LockRequest { table, owner, kind, start, end, pid, detects } = *request;
        let (inode, number, waits, settled_below) = (self.inode(), 0, false, 0);
        SetLock { inode, table, owner, kind, start, end, pid, number, waits, settled_below, detects }
    }
}

fn learn(handle: &Handle, file: LockedFile) {
    handle.open.learn(Size { generation: file.generation, size: file.size });
}

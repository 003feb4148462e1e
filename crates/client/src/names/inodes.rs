//! Opens and closes inodes at their homes, and reports to homes when their inodes were written
//! ([`crate::names::gates`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Result, Timestamp};
use ramlace_sync::Mutex;
use ramlace_wire::locks::LockTable;
use ramlace_wire::namespace::{Close, InodeInfo, Open, Opened, SetAttributes, TimeReason};
use ramlace_wire::permit::GetPermit;
use ramlace_wire::{Attributes, FileKind, Permit};

use crate::acting::for_nobody;
use crate::client::Client;
use crate::coordination::locking::whole_unlock;
use crate::names::gates::{GateState, OpenAnswer, OpenByName};
use crate::names::open_inode::{OpenInode, Size};
use crate::names::rights::Rights;
use crate::session::pending::{Acknowledged, Message};
use crate::session::retry::{is_unacknowledged, is_unanswered, lacks_room};

/// How long the drop of a file may wait for its home; after that the heartbeat thread notifies it.
const DROP_MILLIS_MAX: u64 = 250;

/// Whether the home may have been asked already to close an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Repeated,
}

/// One open file's share of its inode, released when it is dropped.
pub(crate) struct Handle {
    pub(crate) session: Arc<Client>,
    pub(crate) open: Arc<OpenInode>,
    closed: Mutex<bool>,
    /// The owner number of its locks; 0: it never had any.
    lock_owner: AtomicU64,
}

impl Handle {
    /// Releases the share; the last one sends `Close`. What was not reported to the home by the deadline, the
    /// heartbeat thread reports.
    pub(crate) fn close(&self) -> Result<()> {
        self.close_by(self.session.deadline()).map(drop)
    }

    /// What a drop does. Returns the attributes of a file that may have been written, if its home has sent them with
    /// a lease.
    pub(crate) fn let_go(&self) -> Option<Attributes> {
        // The end of the session closes every inode that was not written and that no kernel maps.
        let nothing_to_tell = self.open.written() == 0 && !self.open.with_kernel.load(Ordering::Acquire);
        let matters = !(self.session.ends() && nothing_to_tell);
        let answers = matters && self.session.answers(self.open.inode.slot());
        let patience = if answers { DROP_MILLIS_MAX } else { 0 };
        // Errors are reported to nobody, and the thread that drops a file (a garbage collector, say) must not
        // wait for long.
        self.close_by(Instant::now() + Duration::from_millis(patience)).ok().flatten()
    }

    /// Releases the share, and leaves the close at the home for later: where the file was only read, by a session that
    /// keeps attributes. `false`: it is to be let go of as usual.
    pub(crate) fn defer_close(&self, answer: OpenAnswer) -> bool {
        let mut closed = self.closed.lock();
        let has_locks = self.lock_owner.load(Ordering::Acquire) != 0;
        if !*closed && !has_locks {
            *closed = self.session.defer_close(&self.open, answer);
        }
        *closed
    }

    /// The owner number of its locks.
    pub(crate) fn lock_owner(&self) -> u64 {
        let known = self.lock_owner.load(Ordering::Acquire);
        if known != 0 {
            return known;
        }
        let new = self.session.waits.new_owner();
        let set = self.lock_owner.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(|other| other, |_| new)
    }

    fn close_by(&self, deadline: Instant) -> Result<Option<Attributes>> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            Ok(None)
        } else {
            let owner = self.lock_owner.load(Ordering::Acquire);
            if owner != 0 {
                let unlock = whole_unlock(self.open.inode, LockTable::Fcntl, owner);
                self.session.release_locks(unlock);
            }
            self.session.release(&self.open, deadline)
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Client {
    /// Opens an inode at its home.
    pub(crate) fn open_inode(self: &Arc<Client>, request: &Open) -> Result<(Handle, Opened)> {
        let open = || {
            self.inodes.with_gate(request.inode, |gate| {
                let opened =
                    self.change(request.inode.slot(), request, self.deadline()).inspect_err(|error| {
                        self.note_unanswered_open(gate, request.inode, error);
                    })?;
                check_file(&opened.info)?;
                Ok((self.enter(gate, &opened, request.write), opened))
            })
        };
        let (open, opened) = self.with_room_to_open(open)?;
        Ok((self.handle(open), opened))
    }

    /// Opens a file once more whose close is deferred, without a request. `now`: its attributes, and when their lease was asked
    /// for.
    pub(crate) fn reopen(
        self: &Arc<Client>,
        inode: InodeId,
        (now, leased): (&Attributes, Instant),
    ) -> Option<(Handle, OpenAnswer)> {
        let (open, answer) = self.inodes.reopen(inode, now, leased)?;
        Some((self.handle(open), answer))
    }

    fn enter(&self, gate: &mut GateState, opened: &Opened, writes: bool) -> Arc<OpenInode> {
        self.inodes.cancel_deferred_close(opened.info.attributes.inode);
        gate.note_rights(writes);
        gate.enter(opened)
    }

    /// Enters an inode that was opened at its home by its name. Returns the home's answer, as it holds while the inode is
    /// open here.
    pub(crate) fn adopt(
        self: &Arc<Client>,
        opened: Opened,
        rights: Rights,
        by_name: &OpenByName<'_>,
    ) -> Result<(Handle, Opened)> {
        check_file(&opened.info)?;
        let inode = opened.info.attributes.inode;
        let enter = || {
            self.inodes.with_gate(inode, |gate| {
                if !by_name.may_be_closed(inode, opened.created) {
                    return Ok((self.enter(gate, &opened, rights.write), None));
                }
                // Another thread of this process had it open, and may have closed it after this open, also where this one has
                // created it: meanwhile its mode may have changed.
                let request = Open { inode, read: rights.read, write: rights.write, run: false };
                let again = self.change(inode.slot(), &request, self.deadline()).inspect_err(|error| {
                    self.note_unanswered_open(gate, inode, error);
                })?;
                check_file(&again.info)?;
                Ok((self.enter(gate, &again, rights.write), Some(again)))
            })
        };
        let entered = self.with_room_to_open(enter).inspect_err(|error| {
            // Its home has opened it, and nobody here will close it.
            if !is_unanswered(error) {
                self.send_later(Message::CloseOpened(inode));
            }
        });
        let (open, again) = entered?;
        Ok((self.handle(open), again.unwrap_or(opened)))
    }

    fn handle(self: &Arc<Client>, open: Arc<OpenInode>) -> Handle {
        Handle { session: self.clone(), open, closed: Mutex::new(false), lock_owner: AtomicU64::new(0) }
    }

    fn release(self: &Arc<Client>, open: &OpenInode, deadline: Instant) -> Result<Option<Attributes>> {
        self.inodes.with_gate(open.inode, |gate| {
            gate.files -= 1;
            if gate.files > 0 {
                return Ok(None);
            }
            let closed = self.close_last(gate, open, deadline, Attempt::First);
            self.send_pending_close(gate, open.inode);
            closed
        })
    }

    /// The home is to be notified of a close later, unless it is to be notified now.
    fn send_pending_close(&self, gate: &GateState, inode: InodeId) {
        if gate.close_pending {
            self.send_later(Message::Close(inode));
        }
    }

    /// Notifies the home that the inode's last file here was closed, or leaves that to the outbox. A repeated close is
    /// not promised: the home may have done the first one, would refuse the promise, and be told again for ever.
    fn close_last(
        self: &Arc<Client>,
        gate: &mut GateState,
        open: &OpenInode,
        deadline: Instant,
        attempt: Attempt,
    ) -> Result<Option<Attributes>> {
        let _telling = open.telling.lock();
        self.inodes.note_close(open.inode);
        let modified = open.take_written();
        let request = Close { inode: open.inode, modified, leases: false };
        let closed = if attempt == Attempt::First && self.close_behind(&request).is_some() {
            Ok(None)
        } else if deadline <= Instant::now() {
            Err(Error::new(ErrorKind::TimedOut, "its home did not answer a moment ago"))
        } else {
            // A `Close` that is abandoned here is done before the next change of the slot, or never.
            self.inodes.close_begins();
            // What a session that keeps attributes knew of a file that it has only read still holds.
            let leases = open.may_write() && self.callbacks.on_recall.get().is_some();
            let closed = self.change(open.inode.slot(), &Close { leases, ..request }, deadline);
            self.inodes.close_is_over();
            closed.map(|closed| closed.attributes)
        };
        if modified.is_some() {
            self.inodes.note_times_reported();
        }
        let is_pending = |error: &Error| is_unanswered(error) || lacks_room(error);
        gate.close_pending = closed.as_ref().is_err_and(is_pending) && !self.is_ended();
        if !gate.close_pending {
            gate.open = None;
        } else if let Some(modified) = modified {
            open.put_back(modified);
        }
        closed
    }

    /// An open was not answered: the home may have opened the inode, or may open it yet. It is notified of the
    /// close when it answers again.
    fn note_unanswered_open(&self, gate: &mut GateState, inode: InodeId, error: &Error) {
        if is_unanswered(error) {
            gate.set_close_pending(inode);
            self.send_pending_close(gate, inode);
        }
    }

    /// Notifies a home that an inode was closed, unless it was opened again. `opened`: that the session has it
    /// open there because of an abandoned request, while no file may be open here.
    pub(crate) fn tell_closed(
        self: &Arc<Client>,
        inode: InodeId,
        opened: bool,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let mut had_room = false;
        let closed = self.inodes.try_with_gate(inode, |gate| {
            had_room = true;
            if opened {
                gate.set_close_pending(inode);
            }
            match gate.open.clone() {
                // A close that is deferred is made when it is due.
                Some(open) if gate.close_pending && !gate.is_deferred() => {
                    let closed = self.close_last(gate, &open, deadline, Attempt::Repeated);
                    // A refusal means that it was closed already.
                    if gate.close_pending { closed.map(drop) } else { Ok(()) }
                }
                _ => Ok(()),
            }
        });
        match closed {
            None => Ok(Acknowledged::NotYet),
            // Without room here its home was not asked, and is not silent.
            Some(Err(_)) if !had_room => Ok(Acknowledged::NotYet),
            Some(closed) => closed.map(|()| Acknowledged::Yes),
        }
    }

    /// Learns the size of an inode that may be open here.
    pub(crate) fn learn_size(&self, inode: InodeId, generation: Generation, size: u64) {
        if let Some(open) = self.inodes.find(inode) {
            open.learn(Size { generation, size });
        }
    }

    /// A lane has refused this permit: asks the home for another one, which there is if the pool's secret has
    /// changed.
    ///
    /// Errors: those of the home. While the home is down, it is not known whether the permit is outdated.
    pub(crate) fn renew_permit(
        self: &Arc<Client>,
        inode: InodeId,
        refused: Option<Permit>,
    ) -> Result<Option<Permit>> {
        let Some(open) = self.inodes.find(inode).filter(|_| refused.is_some()) else { return Ok(None) };
        if open.permit() == refused {
            let permit = self.ask(inode.slot(), &GetPermit { inode }, self.deadline());
            open.permit.learn(permit?);
        }
        Ok(open.permit().filter(|permit| Some(*permit) != refused))
    }

    /// The permit that proves to lanes that the session has an inode open for writing, if there is one.
    pub(crate) fn permit_to_write(&self, inode: InodeId) -> Option<Permit> {
        let permit = self.inodes.find(inode)?.permit()?;
        (permit.write != Permit::default().write).then_some(permit)
    }

    /// The inode was written without its home: the heartbeat thread notifies it within a second.
    pub(crate) fn touch(&self, open: &OpenInode) {
        open.written.fetch_max(now().nanos, Ordering::AcqRel);
        self.keep_times_pending(open);
    }

    /// Leaves it to the outbox to report to the home when the inode was written.
    fn keep_times_pending(&self, open: &OpenInode) {
        if !open.times_in_outbox.swap(true, Ordering::AcqRel) {
            self.send_later(Message::Times(open.inode));
        }
    }

    /// Forgets when this process wrote to an inode, because its times are being set explicitly.
    pub(crate) fn forget_times(&self, inode: InodeId) {
        if let Some(open) = self.inodes.find(inode) {
            open.clean();
        }
    }

    /// How often it was reported to homes when this process wrote.
    pub(crate) fn times_reported(&self) -> u64 {
        self.inodes.times_reported()
    }

    /// Whether a home may not know yet when this process last wrote to an inode. This includes the case that
    /// it was notified after `reported`: what it answered in between lacks that time.
    pub(crate) fn has_unreported_times(&self, inode: InodeId, reported: u64) -> bool {
        let unreported = |open: Arc<OpenInode>| open.written() != 0 || open.telling.try_lock().is_none();
        self.inodes.find(inode).is_some_and(unreported) || self.times_reported() != reported
    }

    /// Reports to the home when this process last wrote to an inode, unless it knows.
    pub(crate) fn push_times(self: &Arc<Client>, inode: InodeId) -> Result<()> {
        match self.inodes.find(inode) {
            Some(open) => self.push_times_of(&open, self.deadline()),
            None => Ok(()),
        }
    }

    /// The same for the heartbeat thread, which does not wait for a thread that is notifying the home, or opens
    /// or closes the inode.
    pub(crate) fn tell_times(self: &Arc<Client>, inode: InodeId, deadline: Instant) -> Result<Acknowledged> {
        let open = match self.inodes.try_find(inode) {
            None => return Ok(Acknowledged::NotYet),
            Some(None) => return Ok(Acknowledged::Yes),
            Some(Some(open)) => open,
        };
        let Some(_telling) = open.telling.try_lock() else { return Ok(Acknowledged::NotYet) };
        // Later writes make a new message.
        open.times_in_outbox.swap(false, Ordering::AcqRel);
        match self.tell_written(&open, deadline) {
            Ok(()) => Ok(Acknowledged::Yes),
            Err(_) if self.is_ended() => Ok(Acknowledged::Yes),
            Err(error) => {
                open.times_in_outbox.store(true, Ordering::Release);
                // A home that refuses this must not delay the messages of other files.
                if is_unacknowledged(&error) { Err(error) } else { Ok(Acknowledged::NotYet) }
            }
        }
    }

    fn push_times_of(self: &Arc<Client>, open: &OpenInode, deadline: Instant) -> Result<()> {
        // If another thread is notifying the home, waits until it has.
        let _telling = open.telling.lock();
        self.tell_written(open, deadline).inspect_err(|_| self.keep_times_pending(open))
    }

    /// Reports to a home when its inode was written, unless it knows. The caller holds `telling`.
    fn tell_written(self: &Arc<Client>, open: &OpenInode, deadline: Instant) -> Result<()> {
        let Some(written) = open.take_written() else { return Ok(()) };
        let request = SetAttributes {
            modified: Some(written),
            times: TimeReason::Wrote,
            ..SetAttributes::nothing(open.inode)
        };
        // For no user: that the session has it open for writing is enough.
        let outcome = for_nobody(|| self.change(open.inode.slot(), &request, deadline));
        self.inodes.note_times_reported();
        outcome.map(drop).inspect_err(|_| open.put_back(written))
    }
}

fn check_file(info: &InodeInfo) -> Result<()> {
    match info.attributes.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Error::new(ErrorKind::IsDirectory, "it is a directory")),
        FileKind::Symlink => Err(Error::new(ErrorKind::Loop, "it is a symbolic link")),
        kind => Err(Error::new(
            ErrorKind::Unsupported,
            format!("it is {}, which has no bytes in the pool; open it through a mount", kind.described()),
        )),
    }
}

/// The present time, which is after 1970.
pub(crate) fn now() -> Timestamp {
    // By the C library: rustix looks for the vDSO itself, and crashes where valgrind has hidden it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { nanos: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX).max(1) }
}

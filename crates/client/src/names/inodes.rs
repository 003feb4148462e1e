//! The inodes that this process holds open, and what it knows of their sizes and times.
//!
//! A session has one reference to an inode at its home, however many files are open here. So
//! opening and closing the same inode must not overtake each other: each inode has a gate,
//! held while its `Open` or `Close` is under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, Result, Timestamp, limits};
use ramlace_sync::Mutex;
use ramlace_wire::locks::LockTable;
use ramlace_wire::namespace::{Close, InodeInfo, Open, Opened, SetAttributes, TimeReason};
use ramlace_wire::permit::GetPermit;
use ramlace_wire::{FileKind, Permit};

use crate::acting::for_nobody;
use crate::bytes::near::NearLanes;
use crate::bytes::permits::HeldPermit;
use crate::client::Client;
use crate::coordination::locking::whole_unlock;
use crate::names::rights::Rights;
use crate::session::calls::is_unanswered;

/// How long dropping a file may wait for its home to hear of it; the heart does the rest.
const DROP_MILLIS_MAX: u64 = 250;

/// A size that is a lower bound as long as the generation holds (`docs/records/generations.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) generation: Generation,
    pub(crate) size: u64,
}

/// An inode that this process holds open.
pub(crate) struct OpenInode {
    pub(crate) inode: InodeId,
    size: Mutex<Size>,
    /// Its bytes live with it as far as is known; when they do not any more, they never will again.
    inline: AtomicBool,
    /// The epoch since which its lanes have what they were given; later where it went there later.
    since: AtomicU32,
    /// When it was last written without the home hearing of it, in nanoseconds; 0: never.
    written: AtomicI64,
    /// Held while the home is told of that.
    telling: Mutex<()>,
    /// What proves to its lanes for what the session of a host has it open.
    permit: HeldPermit,
    /// Lanes whose files servers of this machine have handed out.
    pub(crate) near: NearLanes,
}

impl OpenInode {
    fn new(info: &InodeInfo) -> OpenInode {
        let attributes = &info.attributes;
        let size = Size { generation: attributes.generation, size: attributes.size };
        OpenInode::of_size(attributes.inode, size, info.inline, lanes_since(info))
    }

    fn of_size(inode: InodeId, size: Size, inline: bool, since: Epoch) -> OpenInode {
        OpenInode {
            inode,
            size: Mutex::new(size),
            inline: AtomicBool::new(inline),
            since: AtomicU32::new(since.0),
            written: AtomicI64::new(0),
            telling: Mutex::new(()),
            permit: HeldPermit::default(),
            near: NearLanes::default(),
        }
    }

    pub(crate) fn size(&self) -> Size {
        *self.size.lock()
    }

    /// Whether its bytes live with it, as far as is known here.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.load(Ordering::Acquire)
    }

    /// Its bytes are in its lanes, for ever.
    pub(crate) fn goes_to_lanes(&self, since: Epoch) {
        self.since.fetch_max(since.0, Ordering::AcqRel);
        self.inline.store(false, Ordering::Release);
    }

    /// The epoch since which its lanes have what they were given.
    pub(crate) fn lanes_since(&self) -> Epoch {
        Epoch(self.since.load(Ordering::Acquire))
    }

    /// Takes in everything that the home said.
    pub(crate) fn learn_info(&self, info: &InodeInfo) {
        if !info.inline {
            self.goes_to_lanes(lanes_since(info));
        }
        self.learn(Size { generation: info.attributes.generation, size: info.attributes.size });
    }

    /// Takes in what the home said of the size. Answers overtake each other: the newest generation wins,
    /// and within one a size only grows.
    pub(crate) fn learn(&self, told: Size) {
        let mut known = self.size.lock();
        if told.generation > known.generation {
            *known = told;
        } else if told.generation == known.generation {
            known.size = known.size.max(told.size);
        }
    }

    /// Whether this session may write to it: by its permit, or because it needs none.
    pub(crate) fn may_write(&self) -> bool {
        self.permit.allows_writing()
    }

    /// What requests about its lanes bring along.
    pub(crate) fn permit(&self) -> Option<Permit> {
        self.permit.get()
    }

    /// The home knows of every write up to now, or need not know.
    pub(crate) fn clean(&self) {
        self.written.store(0, Ordering::Release);
    }

    /// When it was written, if the home has not heard; whoever takes it tells the home.
    pub(crate) fn take_written(&self) -> Option<Timestamp> {
        match self.written.swap(0, Ordering::AcqRel) {
            0 => None,
            nanos => Some(Timestamp { nanos }),
        }
    }

    /// The home did not hear: puts the time back unless there is a later one.
    pub(crate) fn put_back(&self, written: Timestamp) {
        self.written.fetch_max(written.nanos, Ordering::AcqRel);
    }

    pub(crate) fn written(&self) -> i64 {
        self.written.load(Ordering::Acquire)
    }

    /// The home heard of a write that began after `before` was read.
    pub(crate) fn clean_if(&self, before: i64) {
        let _ = self.written.compare_exchange(before, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// One inode's gate: how many files hold it open here.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    open: Option<Arc<OpenInode>>,
    files: usize,
    /// The last file here was closed, and the home could not be told yet.
    owes_close: bool,
    /// The gate has left the table; look there again.
    removed: bool,
}

/// All open inodes of one session.
#[derive(Default)]
pub(crate) struct Inodes {
    gates: Mutex<HashMap<InodeId, Arc<Gate>>>,
    /// How often a home was told when its inode was written, whatever it said.
    times_told: AtomicU64,
    /// `Close`s that were begun, and those that are over.
    closes_begun: AtomicU64,
    closes_over: AtomicU64,
}

/// A moment at which no `Close` was under way.
#[derive(Clone, Copy)]
pub(crate) struct Quiet(Option<u64>);

/// One open file's share of its inode; gives it back when it is dropped.
pub(crate) struct Handle {
    pub(crate) session: Arc<Client>,
    pub(crate) open: Arc<OpenInode>,
    closed: Mutex<bool>,
    /// The number by which it holds locks; 0: it never did.
    lock_owner: AtomicU64,
}

impl Handle {
    /// Gives the share back; the last one sends `Close`. What the home has not heard of by the
    /// deadline it hears from the heart.
    pub(crate) fn close(&self) -> Result<()> {
        self.close_by(self.session.deadline())
    }

    /// The number by which it holds locks.
    pub(crate) fn lock_owner(&self) -> u64 {
        let known = self.lock_owner.load(Ordering::Acquire);
        if known != 0 {
            return known;
        }
        let new = self.session.waits.new_owner();
        let set = self.lock_owner.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(|other| other, |_| new)
    }

    fn close_by(&self, deadline: Instant) -> Result<()> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            Ok(())
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
        let patience = if self.session.answers(self.open.inode.slot()) { DROP_MILLIS_MAX } else { 0 };
        // There is nobody to tell, and whoever drops a file (a collector of garbage, say) must not wait.
        let _ = self.close_by(Instant::now() + Duration::from_millis(patience));
    }
}

impl Inodes {
    /// Runs `work` with the inode's gate held; drops the gate afterwards when nobody has it open.
    fn with_gate<T>(&self, inode: InodeId, work: impl FnOnce(&mut GateState) -> Result<T>) -> Result<T> {
        loop {
            let gate = {
                let mut gates = self.gates.lock();
                if gates.len() >= limits::OPEN_INODES_PER_SESSION_MAX && !gates.contains_key(&inode) {
                    return Err(Error::new(
                        ErrorKind::TooMany,
                        format!("this process holds {} files open already", gates.len()),
                    ));
                }
                gates.entry(inode).or_default().clone()
            };
            let mut state = gate.state.lock();
            if state.removed {
                continue;
            }
            let result = work(&mut state);
            if state.files == 0 && !state.owes_close {
                state.removed = true;
                self.gates.lock().remove(&inode);
            }
            return result;
        }
    }

    /// Whether no `Close` is under way now.
    pub(crate) fn quiet(&self) -> Quiet {
        let over = self.closes_over.load(Ordering::SeqCst);
        let begun = self.closes_begun.load(Ordering::SeqCst);
        Quiet((over == begun).then_some(begun))
    }

    /// Whether none has been under way since.
    fn quiet_since(&self, quiet: Quiet) -> bool {
        quiet.0 == Some(self.closes_begun.load(Ordering::SeqCst))
    }

    fn opened(&self) -> Vec<Arc<OpenInode>> {
        let gates: Vec<Arc<Gate>> = self.gates.lock().values().cloned().collect();
        // A gate that is held is being opened or closed: closing tells the time itself.
        gates.iter().filter_map(|gate| gate.state.try_lock()?.open.clone()).collect()
    }

    /// Inodes whose homes have not heard yet that they were closed.
    fn owing(&self) -> Vec<InodeId> {
        let gates: Vec<(InodeId, Arc<Gate>)> =
            self.gates.lock().iter().map(|(inode, gate)| (*inode, gate.clone())).collect();
        // A gate that is held is being opened or closed: it is looked at the next time.
        let owes = |gate: &Gate| gate.state.try_lock().is_some_and(|state| state.owes_close);
        gates.into_iter().filter(|(_, gate)| owes(gate)).map(|(inode, _)| inode).collect()
    }

    fn find(&self, inode: InodeId) -> Option<Arc<OpenInode>> {
        let gate = self.gates.lock().get(&inode).cloned()?;
        let state = gate.state.lock();
        state.open.clone()
    }
}

impl Client {
    /// Opens an inode at its home.
    pub(crate) fn open_inode(self: &Arc<Client>, request: &Open) -> Result<(Handle, Opened)> {
        let (open, opened) = self.inodes.with_gate(request.inode, |gate| {
            let opened =
                self.change(request.inode.slot(), request, self.deadline()).inspect_err(|error| {
                    note_unanswered_open(gate, request.inode, error);
                })?;
            check_file(&opened.info)?;
            Ok((enter(gate, &opened), opened))
        })?;
        Ok((self.handle(open), opened))
    }

    /// Takes in an inode that was opened at its home by its name; `quiet` is of before.
    pub(crate) fn adopt(self: &Arc<Client>, opened: &Opened, rights: Rights, quiet: Quiet) -> Result<Handle> {
        check_file(&opened.info)?;
        let inode = opened.info.attributes.inode;
        let open = self.inodes.with_gate(inode, |gate| {
            if !opened.created && gate.files == 0 && !self.inodes.quiet_since(quiet) {
                // It was there before, and this process may have closed it after it was opened.
                let request = Open { inode, read: rights.read, write: rights.write, run: false };
                let again = self.change(inode.slot(), &request, self.deadline()).inspect_err(|error| {
                    note_unanswered_open(gate, inode, error);
                })?;
                return Ok(enter(gate, &again));
            }
            Ok(enter(gate, opened))
        })?;
        Ok(self.handle(open))
    }

    fn handle(self: &Arc<Client>, open: Arc<OpenInode>) -> Handle {
        Handle { session: self.clone(), open, closed: Mutex::new(false), lock_owner: AtomicU64::new(0) }
    }

    fn release(self: &Arc<Client>, open: &OpenInode, deadline: Instant) -> Result<()> {
        self.inodes.with_gate(open.inode, |gate| {
            gate.files -= 1;
            if gate.files > 0 { Ok(()) } else { self.close_last(gate, open, deadline) }
        })
    }

    /// Tells the home that the inode's last file here was closed, or notes that this is to be done.
    fn close_last(
        self: &Arc<Client>,
        gate: &mut GateState,
        open: &OpenInode,
        deadline: Instant,
    ) -> Result<()> {
        let _telling = open.telling.lock();
        let modified = open.take_written();
        let request = Close { inode: open.inode, modified };
        let closed = if deadline <= Instant::now() {
            Err(Error::new(ErrorKind::TimedOut, "its home did not answer a moment ago"))
        } else {
            // One that is given up here is done before the next change of the slot, or never.
            self.inodes.closes_begun.fetch_add(1, Ordering::SeqCst);
            let closed = self.change(open.inode.slot(), &request, deadline);
            self.inodes.closes_over.fetch_add(1, Ordering::SeqCst);
            closed
        };
        if modified.is_some() {
            self.inodes.times_told.fetch_add(1, Ordering::AcqRel);
        }
        gate.owes_close = closed.as_ref().is_err_and(is_unanswered) && !self.is_ended();
        if !gate.owes_close {
            gate.open = None;
        } else if let Some(modified) = modified {
            open.put_back(modified);
        }
        closed
    }

    /// The session has an inode open at its home, by which no file may be open here.
    pub(crate) fn owe_close(&self, inode: InodeId) {
        // As many gates as there may be are in use: then it stays open until the session ends.
        let _ = self.inodes.with_gate(inode, |gate| {
            owe_close(gate, inode);
            Ok(())
        });
    }

    /// Tells homes that answer again of files that were closed meanwhile.
    pub(crate) fn close_owed(self: &Arc<Client>) {
        for inode in self.inodes.owing().into_iter().filter(|inode| self.answers(inode.slot())) {
            // What fails is owed still; an answer that says no means that it was closed already.
            let _ = self.inodes.with_gate(inode, |gate| match gate.open.clone() {
                Some(open) if gate.owes_close => {
                    self.close_last(gate, &open, Instant::now() + Duration::from_millis(DROP_MILLIS_MAX))
                }
                _ => Ok(()),
            });
        }
    }

    /// Takes in a size that was learned for an inode that may be open here.
    pub(crate) fn learn_size(&self, inode: InodeId, generation: Generation, size: u64) {
        if let Some(open) = self.inodes.find(inode) {
            open.learn(Size { generation, size });
        }
    }

    /// A lane has refused this permit: another one, if the home has one by now, because the pool's secret has changed.
    ///
    /// Errors: those of the home. While it is down nobody knows whether the permit is an old one.
    pub(crate) fn renew_permit(
        self: &Arc<Client>,
        inode: InodeId,
        refused: Option<Permit>,
    ) -> Result<Option<Permit>> {
        let Some(open) = self.inodes.find(inode).filter(|_| refused.is_some()) else { return Ok(None) };
        if open.permit() == refused {
            let told = self.ask(inode.slot(), &GetPermit { inode }, self.deadline());
            open.permit.learn(told?);
        }
        Ok(open.permit().filter(|permit| Some(*permit) != refused))
    }

    /// What proves to lanes that the session has an inode open for writing, if it has.
    pub(crate) fn permit_to_write(&self, inode: InodeId) -> Option<Permit> {
        let permit = self.inodes.find(inode)?.permit()?;
        (permit.write != Permit::default().write).then_some(permit)
    }

    /// The inode was written without its home: the heart tells it within a second.
    pub(crate) fn touch(&self, open: &OpenInode) {
        open.written.fetch_max(now().nanos, Ordering::AcqRel);
        self.heart.times_changed();
    }

    /// Forgets when this process wrote to an inode: its times are being set by hand.
    pub(crate) fn forget_times(&self, inode: InodeId) {
        if let Some(open) = self.inodes.find(inode) {
            open.clean();
        }
    }

    /// How often homes were told when this process wrote.
    pub(crate) fn times_told(&self) -> u64 {
        self.inodes.times_told.load(Ordering::Acquire)
    }

    /// Whether a home has yet to hear when this process last wrote to an inode. What a home said since
    /// `told` lacks it also when it has heard meanwhile.
    pub(crate) fn owes_times(&self, inode: InodeId, told: u64) -> bool {
        let owes = |open: Arc<OpenInode>| open.written() != 0 || open.telling.try_lock().is_none();
        self.inodes.find(inode).is_some_and(owes) || self.times_told() != told
    }

    /// Tells the home when this process last wrote to an inode, if it has not heard yet.
    pub(crate) fn push_times(self: &Arc<Client>, inode: InodeId) -> Result<()> {
        match self.inodes.find(inode) {
            Some(open) => self.push_times_of(&open, self.deadline()),
            None => Ok(()),
        }
    }

    /// The same for every open inode; what fails is tried again a second later.
    pub(crate) fn push_all_times(self: &Arc<Client>, deadline: Instant) -> bool {
        let results = self.inodes.opened();
        results
            .iter()
            .filter(|open| open.written() != 0)
            .all(|open| self.push_times_of(open, deadline).is_ok())
    }

    fn push_times_of(self: &Arc<Client>, open: &OpenInode, deadline: Instant) -> Result<()> {
        // Who comes while another is telling it waits until the home has heard.
        let _telling = open.telling.lock();
        let Some(written) = open.take_written() else { return Ok(()) };
        let request = SetAttributes {
            modified: Some(written),
            times: TimeReason::Wrote,
            ..SetAttributes::nothing(open.inode)
        };
        // Whoever wrote: the session has it open for writing.
        let told = for_nobody(|| self.change(open.inode.slot(), &request, deadline));
        self.inodes.times_told.fetch_add(1, Ordering::AcqRel);
        match told {
            Err(error) => {
                open.put_back(written);
                Err(error)
            }
            Ok(_) => Ok(()),
        }
    }
}

fn enter(gate: &mut GateState, opened: &Opened) -> Arc<OpenInode> {
    let info = &opened.info;
    gate.files += 1;
    // The home holds one reference, and now it is this one's.
    gate.owes_close = false;
    let open = match &gate.open {
        Some(open) => {
            open.learn_info(info);
            open.clone()
        }
        None => gate.open.insert(Arc::new(OpenInode::new(info))).clone(),
    };
    open.permit.learn(opened.permit);
    open
}

/// The home may have opened the inode, or may open it yet: it is told of the close when it answers again.
fn note_unanswered_open(gate: &mut GateState, inode: InodeId, error: &Error) {
    if is_unanswered(error) {
        owe_close(gate, inode);
    }
}

fn owe_close(gate: &mut GateState, inode: InodeId) {
    if gate.files == 0 {
        gate.owes_close = true;
        let unknown = Size { generation: Generation(0), size: 0 };
        gate.open.get_or_insert_with(|| Arc::new(OpenInode::of_size(inode, unknown, true, Epoch(0))));
    }
}

pub(crate) fn lanes_since(info: &InodeInfo) -> Epoch {
    info.layout.map_or(Epoch(0), |layout| layout.created)
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

/// The present moment, after 1970.
pub(crate) fn now() -> Timestamp {
    // By the C library: rustix looks for the vDSO itself, and crashes where valgrind has hidden it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { nanos: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_within_a_generation_and_follow_a_newer_one() {
        let size = |generation, size| Size { generation: Generation(generation), size };
        let open = OpenInode::of_size(InodeId::ROOT, size(2, 100), false, Epoch(1));
        open.learn(size(2, 50));
        assert_eq!(open.size(), size(2, 100));
        open.learn(size(2, 150));
        open.learn(size(1, 900));
        assert_eq!(open.size(), size(2, 150));
        open.learn(size(3, 10));
        assert_eq!(open.size(), size(3, 10));
    }

    #[test]
    fn a_time_that_could_not_be_told_is_kept_unless_a_later_one_came() {
        let open =
            OpenInode::of_size(InodeId::ROOT, Size { generation: Generation(1), size: 0 }, false, Epoch(1));
        open.written.store(5, Ordering::Release);
        let taken = open.take_written().unwrap();
        assert_eq!(open.take_written(), None);
        open.written.store(9, Ordering::Release);
        open.put_back(taken);
        assert_eq!(open.take_written(), Some(Timestamp { nanos: 9 }));
    }
}

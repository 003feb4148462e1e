//! The inodes that this process holds open, by number, each with a gate.
//!
//! A session has one reference to an inode at its home, however many files are open here. So opening and
//! closing the same inode must not overtake each other: each inode has a gate, a lock that is held while its
//! `Open` or `Close` is under way.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, Result, limits};
use ramlace_sync::Mutex;
use ramlace_wire::Attributes;
use ramlace_wire::namespace::Opened;

use crate::names::deferred::DeferredCloses;
use crate::names::open_inode::{OpenInode, Size};

/// The pause before a deferred close is tried again whose inode another thread looked at.
const AGAIN: Duration = Duration::from_millis(50);

/// The gate of one inode, with the number of files that hold it open here.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
}

/// What a home has answered to an open for reading, and when it was asked.
#[derive(Clone, Debug)]
pub struct OpenAnswer {
    /// The answer.
    pub opened: Opened,
    /// A moment before the request was sent.
    pub asked: Instant,
}

/// What is open of an inode while its gate is held.
#[derive(Default)]
pub(crate) struct GateState {
    pub(crate) open: Option<Arc<OpenInode>>,
    pub(crate) files: usize,
    /// The last file here was closed, and the home has not acknowledged that yet: a `Close` is pending in the
    /// outbox, or deferred.
    pub(crate) close_pending: bool,
    /// The close is deferred: this answers the next open.
    deferred: Option<OpenAnswer>,
    /// It was opened for writing since the session has it open.
    for_writing: bool,
    /// The gate has left the table; look it up again.
    removed: bool,
}

/// All open inodes of one session. Lock order: a gate's `state`, which is held while its home is asked, and
/// then the table of gates, `crossing` or `deferred`, for a short time. A thread that looks for a gate releases the table
/// before it waits for the gate; one that holds a gate waits for no other.
#[derive(Default)]
pub(crate) struct Inodes {
    gates: Mutex<HashMap<InodeId, Arc<Gate>>>,
    /// How often it was reported to any home when its inode was written, whatever the home answered.
    times_reported: AtomicU64,
    /// `Close`s that were begun, and those that have ended.
    closes_begun: AtomicU64,
    closes_over: AtomicU64,
    crossing: Mutex<Crossing>,
    deferred: Mutex<DeferredCloses>,
}

/// An open by name, whose inode is known by its answer: another thread may close the session's reference between that
/// and [`GateState::enter`].
pub(crate) struct OpenByName<'a> {
    inodes: &'a Inodes,
    /// See [`Crossing::last`].
    began: u64,
    /// The `Close`s begun by then, if all were over.
    closes: Option<u64>,
}

/// Which inodes were closed while opens by name are under way.
#[derive(Default)]
struct Crossing {
    /// Counts the opens by name.
    last: u64,
    /// Those under way.
    opens: BTreeSet<u64>,
    /// Which inode was closed after how many opens had begun; ascending.
    closed: VecDeque<(u64, InodeId)>,
    /// There were too many: what was closed after so many opens, or fewer, is not known any more.
    forgotten: u64,
}

impl Crossing {
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.opens.insert(self.last);
        self.last
    }

    fn end(&mut self, began: u64) {
        self.opens.remove(&began);
        let oldest = self.opens.first().copied().unwrap_or(u64::MAX);
        while self.closed.front().is_some_and(|(after, _)| *after < oldest) {
            self.closed.pop_front();
        }
    }

    fn close(&mut self, inode: InodeId) {
        if self.opens.is_empty() {
            return;
        }
        self.closed.push_back((self.last, inode));
        if self.closed.len() > limits::OPEN_INODES_PER_SESSION_MAX
            && let Some((after, _)) = self.closed.pop_front()
        {
            self.forgotten = after;
        }
    }

    fn is_closed_since(&self, began: u64, inode: InodeId) -> bool {
        let since = self.closed.iter().rev().take_while(|(after, _)| *after >= began);
        self.forgotten >= began || since.into_iter().any(|(_, closed)| *closed == inode)
    }
}

impl OpenByName<'_> {
    /// Whether the session's reference that this open got may be closed by now; `created`: there was none before.
    pub(crate) fn may_be_closed(&self, inode: InodeId, created: bool) -> bool {
        let closes = self.inodes.closes_begun.load(Ordering::SeqCst);
        // Closes that are promised are known by their inodes alone.
        (!created && self.closes != Some(closes))
            || self.inodes.crossing.lock().is_closed_since(self.began, inode)
    }
}

impl Drop for OpenByName<'_> {
    fn drop(&mut self) {
        self.inodes.crossing.lock().end(self.began);
    }
}

impl GateState {
    /// One more file holds it open, as its home has answered.
    pub(crate) fn enter(&mut self, opened: &Opened) -> Arc<OpenInode> {
        let info = &opened.info;
        self.files += 1;
        // The home still holds one reference for this session; it belongs to this file now.
        (self.close_pending, self.deferred) = (false, None);
        let open = match &self.open {
            Some(open) => {
                open.learn_info(info);
                open.clone()
            }
            None => self.open.insert(Arc::new(OpenInode::new(info))).clone(),
        };
        open.permit.learn(opened.permit);
        open
    }

    /// Whether the inode's close is deferred.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// The session has it open for this as well.
    pub(crate) fn note_rights(&mut self, writes: bool) {
        self.for_writing |= writes;
    }

    /// The file is opened once more while its close is deferred. `now`: its present attributes, by a lease that was asked for
    /// at that moment. `None`: the home has to be asked. It would give the same answer as to the last open if the attributes
    /// are the same and were leased all the time since: whatever changes its answer recalls them.
    pub(crate) fn reenter(
        &mut self,
        now: &Attributes,
        leased: Instant,
    ) -> Option<(Arc<OpenInode>, OpenAnswer)> {
        let (open, before) = (self.open.clone()?, self.deferred.as_ref()?);
        let (accessed, allocated) = (now.accessed, now.allocated);
        let known = Attributes { accessed, allocated, ..before.opened.info.attributes.clone() };
        if known != *now || leased > before.asked {
            return None;
        }
        let mut answer = self.deferred.take()?;
        answer.opened.info.attributes = now.clone();
        (self.files, self.close_pending) = (1, false);
        Some((open, answer))
    }

    /// The home may have it open for this session, or may open it yet: it is to be asked to close it, unless a
    /// file is open here.
    pub(crate) fn set_close_pending(&mut self, inode: InodeId) {
        if self.files == 0 {
            self.close_pending = true;
            let unknown = Size { generation: Generation(0), size: 0 };
            self.open.get_or_insert_with(|| Arc::new(OpenInode::of_size(inode, unknown, true, Epoch(0))));
        }
    }
}

impl Inodes {
    /// Runs `work` with the inode's gate held; drops the gate afterwards when no file has the inode open.
    pub(crate) fn with_gate<T>(
        &self,
        inode: InodeId,
        work: impl FnOnce(&mut GateState) -> Result<T>,
    ) -> Result<T> {
        loop {
            let gate = self.gate(inode)?;
            let mut state = gate.state.lock();
            if !state.removed {
                return self.work(inode, &mut state, work);
            }
        }
    }

    /// The same, unless another thread holds the gate: then `None`.
    pub(crate) fn try_with_gate<T>(
        &self,
        inode: InodeId,
        work: impl FnOnce(&mut GateState) -> Result<T>,
    ) -> Option<Result<T>> {
        loop {
            let gate = match self.gate(inode) {
                Ok(gate) => gate,
                Err(error) => return Some(Err(error)),
            };
            let mut state = gate.state.try_lock()?;
            if !state.removed {
                return Some(self.work(inode, &mut state, work));
            }
        }
    }

    /// Leaves the close of an inode's last file here for later, if it was never open for writing. `false`: it is to be closed now.
    pub(crate) fn defer_close(&self, inode: InodeId, answer: OpenAnswer, now: Instant) -> bool {
        let deferred = self.with_gate(inode, |gate| {
            let may = gate.files == 1 && !gate.for_writing;
            let deferred = may && self.deferred.lock().defer(inode, now);
            if deferred {
                (gate.files, gate.close_pending, gate.deferred) = (0, true, Some(answer));
            }
            Ok(deferred)
        });
        deferred.unwrap_or(false)
    }

    /// Whether an inode's close is deferred.
    pub(crate) fn has_deferred_close(&self, inode: InodeId) -> bool {
        self.deferred.lock().has(inode)
    }

    /// Opens a file once more whose close is deferred, without its home ([`GateState::reenter`]).
    pub(crate) fn reopen(
        &self,
        inode: InodeId,
        now: &Attributes,
        leased: Instant,
    ) -> Option<(Arc<OpenInode>, OpenAnswer)> {
        let reopened = self.with_gate(inode, |gate| {
            let reopened = gate.reenter(now, leased);
            if reopened.is_some() {
                self.deferred.lock().cancel(inode);
            }
            Ok(reopened)
        });
        reopened.ok().flatten()
    }

    /// An inode is open here again: its close is not deferred.
    pub(crate) fn cancel_deferred_close(&self, inode: InodeId) {
        self.deferred.lock().cancel(inode);
    }

    /// Makes the close of an inode due now, if it is deferred. Returns whether it is.
    pub(crate) fn hasten_close(&self, inode: InodeId) -> bool {
        self.deferred.lock().hasten(inode, Instant::now())
    }

    /// The same for all inodes. Returns whether there are any.
    pub(crate) fn hasten_closes(&self) -> bool {
        self.deferred.lock().hasten_all(Instant::now())
    }

    /// When the next deferred close is due.
    pub(crate) fn closes_due_at(&self) -> Option<Instant> {
        self.deferred.lock().due_at()
    }

    /// Takes deferred closes that are due, or will be in a moment.
    pub(crate) fn take_due_closes(&self, now: Instant, most: usize) -> Vec<InodeId> {
        self.deferred.lock().take_due(now, most)
    }

    /// Takes the deferred closes of an inode and of others of its slot, whenever they are due; none if its own is not deferred. If
    /// its close is under way, this waits for that.
    pub(crate) fn take_close_with_others(&self, inode: InodeId, most: usize) -> Vec<InodeId> {
        let gate = self.gates.lock().get(&inode).cloned();
        if !gate.is_some_and(|gate| gate.state.lock().is_deferred()) {
            return Vec::new();
        }
        let mut taken = self.deferred.lock().take_from(inode, most);
        if taken.first() != Some(&inode) {
            // Another thread has taken it, and not come to it yet.
            taken.insert(0, inode);
        }
        taken
    }

    /// These closes could not be made now.
    pub(crate) fn defer_again(&self, inodes: &[InodeId], pause: Duration) {
        let (mut deferred, until) = (self.deferred.lock(), Instant::now() + pause);
        inodes.iter().for_each(|inode| deferred.defer_until(*inode, until));
    }

    /// Closes several inodes whose closes were deferred. `close` asks their home, and returns those whose close it has not
    /// answered: they stay pending. None of them is opened meanwhile.
    pub(crate) fn close_deferred(
        &self,
        inodes: &[InodeId],
        close: impl FnOnce(&[InodeId]) -> BTreeSet<InodeId>,
    ) {
        let gates: Vec<(InodeId, Arc<Gate>)> = {
            let gates = self.gates.lock();
            inodes.iter().filter_map(|inode| Some((*inode, gates.get(inode)?.clone()))).collect()
        };
        let mut held = Vec::new();
        for (inode, gate) in &gates {
            match gate.state.try_lock() {
                Some(state) if !state.removed && state.deferred.is_some() => held.push((*inode, state)),
                Some(_) => {}
                // Another thread looks at it, or opens it, perhaps in vain.
                None => self.defer_again(&[*inode], AGAIN),
            }
        }
        let which: Vec<InodeId> = held.iter().map(|(inode, _)| *inode).collect();
        if which.is_empty() {
            return;
        }
        which.iter().for_each(|inode| self.note_close(*inode));
        self.close_begins();
        let unanswered = close(&which);
        self.close_is_over();
        for (inode, mut state) in held {
            state.deferred = None;
            self.deferred.lock().cancel(inode);
            if !unanswered.contains(&inode) {
                (state.open, state.close_pending, state.removed) = (None, false, true);
                self.gates.lock().remove(&inode);
            }
        }
    }

    /// As if the process held as many files open as it may, or no longer.
    #[cfg(test)]
    pub(crate) fn make_full(&self, full: bool) {
        let mut gates = self.gates.lock();
        let last = u64::MAX - limits::OPEN_INODES_PER_SESSION_MAX as u64;
        let others = (last + 1..=u64::MAX).map(InodeId);
        match full {
            true => gates.extend(others.map(|inode| (inode, Arc::default()))),
            false => others.for_each(|inode| _ = gates.remove(&inode)),
        }
    }

    fn gate(&self, inode: InodeId) -> Result<Arc<Gate>> {
        let mut gates = self.gates.lock();
        if gates.len() >= limits::OPEN_INODES_PER_SESSION_MAX && !gates.contains_key(&inode) {
            let text = format!("this process holds {} files open already", gates.len());
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        Ok(gates.entry(inode).or_default().clone())
    }

    fn work<T>(
        &self,
        inode: InodeId,
        state: &mut GateState,
        work: impl FnOnce(&mut GateState) -> Result<T>,
    ) -> Result<T> {
        let result = work(state);
        if state.files == 0 && !state.close_pending {
            state.removed = true;
            self.gates.lock().remove(&inode);
        }
        result
    }

    /// The session's reference to an inode is about to be closed, now or by the outbox.
    pub(crate) fn note_close(&self, inode: InodeId) {
        self.crossing.lock().close(inode);
    }

    /// A `Close` is about to be sent.
    pub(crate) fn close_begins(&self) {
        self.closes_begun.fetch_add(1, Ordering::SeqCst);
    }

    /// The `Close` was answered or abandoned.
    pub(crate) fn close_is_over(&self) {
        self.closes_over.fetch_add(1, Ordering::SeqCst);
    }

    /// It was reported to a home when its inode was written, whatever the home answered.
    pub(crate) fn note_times_reported(&self) {
        self.times_reported.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of calls of `note_times_reported`.
    pub(crate) fn times_reported(&self) -> u64 {
        self.times_reported.load(Ordering::Acquire)
    }

    /// An open by name begins.
    pub(crate) fn open_by_name(&self) -> OpenByName<'_> {
        let began = self.crossing.lock().begin();
        let over = self.closes_over.load(Ordering::SeqCst);
        let begun = self.closes_begun.load(Ordering::SeqCst);
        OpenByName { inodes: self, began, closes: (over == begun).then_some(begun) }
    }

    /// What is known of an inode, if it is open here.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<OpenInode>> {
        let gate = self.gates.lock().get(&inode).cloned()?;
        let state = gate.state.lock();
        state.open.clone()
    }

    /// The same, unless another thread opens or closes the inode at the moment: then `None`.
    pub(crate) fn try_find(&self, inode: InodeId) -> Option<Option<Arc<OpenInode>>> {
        let Some(gate) = self.gates.lock().get(&inode).cloned() else { return Some(None) };
        let state = gate.state.try_lock()?;
        Some(state.open.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_closed_is_known_as_long_as_an_open_of_then_is_under_way() {
        let inodes = Inodes::default();
        let (one, two) = (InodeId(1), InodeId(2));
        inodes.note_close(one);
        let first = inodes.open_by_name();
        assert!(!first.may_be_closed(one, true), "it was closed before");
        inodes.note_close(one);
        let second = inodes.open_by_name();
        inodes.note_close(two);
        let closed = |open: &OpenByName<'_>| [one, two].map(|inode| open.may_be_closed(inode, true));
        assert_eq!((closed(&first), closed(&second)), ([true, true], [false, true]));
        drop(first);
        assert_eq!(closed(&second), [false, true]);
        assert_eq!(inodes.crossing.lock().closed.len(), 1);
        for _ in 0..=limits::OPEN_INODES_PER_SESSION_MAX {
            inodes.note_close(one);
        }
        assert_eq!(closed(&second), [true, true]);
        let third = inodes.open_by_name();
        assert!(second.may_be_closed(InodeId(3), true) && !third.may_be_closed(InodeId(3), true));
        drop((second, third));
        assert!(inodes.crossing.lock().closed.is_empty());
    }

    #[test]
    fn an_open_of_what_was_there_is_sure_only_where_nothing_is_closed() {
        let inodes = Inodes::default();
        let quiet = inodes.open_by_name();
        assert!(!quiet.may_be_closed(InodeId(1), false));
        inodes.close_begins();
        assert!(quiet.may_be_closed(InodeId(1), false));
        let loud = inodes.open_by_name();
        inodes.close_is_over();
        assert!(loud.may_be_closed(InodeId(1), false), "one was under way when it began");
        assert!(!inodes.open_by_name().may_be_closed(InodeId(1), false));
    }
}

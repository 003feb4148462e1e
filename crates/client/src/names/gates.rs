//! The inodes that this process holds open, by number, each with a gate.
//!
//! A session has one reference to an inode at its home, however many files are open here. So opening and
//! closing the same inode must not overtake each other: each inode has a gate, a lock that is held while its
//! `Open` or `Close` is under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, Result, limits};
use ramlace_sync::Mutex;
use ramlace_wire::namespace::Opened;

use crate::names::open_inode::{OpenInode, Size};

/// The gate of one inode, with the number of files that hold it open here.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
}

/// What is open of an inode while its gate is held.
#[derive(Default)]
pub(crate) struct GateState {
    pub(crate) open: Option<Arc<OpenInode>>,
    pub(crate) files: usize,
    /// The last file here was closed, and the home has not acknowledged that yet: a `Close` is pending in the
    /// outbox.
    pub(crate) close_pending: bool,
    /// The gate has left the table; look it up again.
    removed: bool,
}

/// All open inodes of one session. Lock order: a gate's `state`, which is held while its home is asked, and
/// then the table of gates, for a short time. A thread that looks for a gate releases the table before it
/// waits for the gate.
#[derive(Default)]
pub(crate) struct Inodes {
    gates: Mutex<HashMap<InodeId, Arc<Gate>>>,
    /// How often it was reported to any home when its inode was written, whatever the home answered.
    times_reported: AtomicU64,
    /// `Close`s that were begun, and those that have ended.
    closes_begun: AtomicU64,
    closes_over: AtomicU64,
}

/// A point in time at which no `Close` was under way.
#[derive(Clone, Copy)]
pub(crate) struct Quiet(Option<u64>);

impl GateState {
    /// One more file holds it open, as its home has answered.
    pub(crate) fn enter(&mut self, opened: &Opened) -> Arc<OpenInode> {
        let info = &opened.info;
        self.files += 1;
        // The home still holds one reference for this session; it belongs to this file now.
        self.close_pending = false;
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

    /// Whether no `Close` is under way now.
    pub(crate) fn quiet(&self) -> Quiet {
        let over = self.closes_over.load(Ordering::SeqCst);
        let begun = self.closes_begun.load(Ordering::SeqCst);
        Quiet((over == begun).then_some(begun))
    }

    /// Whether none has been under way since.
    pub(crate) fn quiet_since(&self, quiet: Quiet) -> bool {
        quiet.0 == Some(self.closes_begun.load(Ordering::SeqCst))
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

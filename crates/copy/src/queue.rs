//! What waits to be copied: files from the walker, and shares of big files.

use std::collections::VecDeque;
use std::sync::Arc;

use ramlace_sync::{Condvar, Mutex, MutexGuard};

use crate::transfer::{FileTask, Transfer};

/// Files that wait; the walker waits when there are more.
const QUEUE_FILES_MAX: usize = 1024;

/// What a worker does next.
pub enum Task {
    /// Begin a file.
    File(Box<FileTask>),
    /// Help with a big one. The thread that holds the last share finishes it.
    Share(Arc<Transfer>),
}

/// The queue between the walker and the workers.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct State {
    files: VecDeque<Box<FileTask>>,
    /// At most one for each worker and file under way.
    shares: Vec<Arc<Transfer>>,
    /// Workers that may still add shares.
    busy: usize,
    closed: bool,
    aborted: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a file; waits for room. False when the copy was cancelled.
    pub fn push(&self, task: FileTask) -> bool {
        let mut state = self.lock();
        while state.files.len() >= QUEUE_FILES_MAX && !state.aborted {
            state = self.room.wait(state);
        }
        if !state.aborted {
            state.files.push_back(Box::new(task));
            self.work.notify_one();
        }
        !state.aborted
    }

    /// Nothing more comes from the walker.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Cancels what was not begun.
    pub fn abort(&self) {
        let mut state = self.lock();
        state.aborted = true;
        state.files.clear();
        self.room.notify_all();
        self.work.notify_all();
    }

    /// Whether the copy was cancelled.
    pub fn is_aborted(&self) -> bool {
        self.lock().aborted
    }

    /// Offers shares of a big file to other workers.
    pub fn share(&self, transfer: &Arc<Transfer>, shares: usize) {
        let mut state = self.lock();
        state.shares.extend(std::iter::repeat_n(transfer.clone(), shares));
        self.work.notify_all();
    }

    /// The next task, and the sign that a worker is busy with it; `None` when all is done.
    pub fn take(&self) -> Option<(Task, Busy<'_>)> {
        let mut state = self.lock();
        loop {
            let task = match state.shares.pop() {
                Some(transfer) => Some(Task::Share(transfer)),
                None => state.files.pop_front().map(Task::File),
            };
            if let Some(task) = task {
                state.busy += 1;
                self.room.notify_one();
                return Some((task, Busy(self)));
            }
            if (state.closed || state.aborted) && state.busy == 0 {
                return None;
            }
            state = self.work.wait(state);
        }
    }
}

/// A worker is busy as long as this lives, and may share what it works on.
pub struct Busy<'a>(&'a Queue);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.0.work.notify_all();
        }
    }
}

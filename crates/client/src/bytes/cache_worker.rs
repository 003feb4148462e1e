//! A thread that sends requests for a cache where neither a read nor the thread that handles recalls may wait
//! for a reply.

use std::collections::BTreeSet;
use std::sync::Arc;

use ramlace_base::{Error, Result, ServerId};
use ramlace_sync::{Condvar, Mutex};

use crate::session::heart::block_signals;

/// Work to do; each kind is queued once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Begin a session.
    Begin,
    /// Report to a server which recalls are done.
    TellEnded(ServerId),
}

/// The thread; it runs as long as this lives.
pub(crate) struct Worker {
    jobs: Arc<Jobs>,
}

#[derive(Default)]
struct Jobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    work: BTreeSet<Work>,
    over: bool,
}

impl Worker {
    /// Starts the thread. `does` returns whether the thread goes on.
    pub(crate) fn start(does: impl Fn(Work) -> bool + Send + 'static) -> Result<Worker> {
        let jobs = Arc::new(Jobs::default());
        let there = jobs.clone();
        let started = std::thread::Builder::new().name("ramlace-cache".into()).spawn(move || {
            block_signals();
            while there.next().is_some_and(&does) {}
        });
        started
            .map(|_| Worker { jobs })
            .map_err(|error| Error::from_io(&error, "starting the thread that speaks for a cache"))
    }

    /// Queues work; does not wait.
    pub(crate) fn wants(&self, work: Work) {
        self.jobs.waiting.lock().work.insert(work);
        self.jobs.changed.notify_one();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs.waiting.lock().over = true;
        self.jobs.changed.notify_one();
    }
}

impl Jobs {
    fn next(&self) -> Option<Work> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.over {
                return None;
            }
            // Ended recalls first: other clients wait for those, and nobody waits for a session.
            if let Some(work) = waiting.work.pop_last() {
                return Some(work);
            }
            waiting = self.changed.wait(waiting);
        }
    }
}

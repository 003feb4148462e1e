//! A thread that speaks for a cache where neither a read nor the thread that hears of recalls may wait for an answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use ramlace_base::{Error, Result, ServerId};
use ramlace_sync::{Condvar, Mutex};

use crate::session::heart::block_signals;

/// What is to be done, each thing once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// A session is to be begun.
    Begin,
    /// A server is to be told what is over.
    TellEnded(ServerId),
}

/// The thread, as long as this lives.
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
    /// Starts the thread. `does` says whether it goes on.
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

    /// Waits for nothing.
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
            // Others wait for what is over, and nobody for a session.
            if let Some(work) = waiting.work.pop_last() {
                return Some(work);
            }
            waiting = self.changed.wait(waiting);
        }
    }
}

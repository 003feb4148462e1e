//! What has happened to sessions and was not told yet: see [`crate::listen`].

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use ramlace_base::{SessionId, limits};
use ramlace_wire::locks::Event;
use tokio::sync::Notify;

/// As many as a process can wait for.
const UNTOLD_MAX: usize = limits::LOCK_WAITS_PER_PROCESS_MAX + limits::PARKED_PER_PROCESS_MAX;

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    changed: Rc<Notify>,
    /// The newest question: older ones are of connections that were lost.
    newest: u64,
}

/// Events that were not told yet, by session.
#[derive(Default)]
pub struct EventQueues {
    queues: RefCell<HashMap<SessionId, Queue>>,
}

impl EventQueues {
    /// Something has happened. A session that leaves so many untold is not told: it does not ask.
    pub fn push(&self, session: SessionId, event: Event) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(session).or_default();
        if queue.events.len() < UNTOLD_MAX {
            queue.events.push_back(event);
            queue.changed.notify_waiters();
        }
    }

    /// The session has ended.
    pub fn end(&self, session: SessionId) {
        if let Some(queue) = self.queues.borrow_mut().remove(&session) {
            queue.changed.notify_waiters();
        }
    }

    /// A request takes the place of those before it.
    pub fn begin(&self, session: SessionId) -> u64 {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(session).or_default();
        queue.newest += 1;
        queue.changed.notify_waiters();
        queue.newest
    }

    /// What tells of more, as long as this question is the session's newest.
    pub fn changed(&self, session: SessionId, question: u64) -> Option<Rc<Notify>> {
        let queues = self.queues.borrow();
        queues.get(&session).filter(|queue| queue.newest == question).map(|queue| queue.changed.clone())
    }

    /// What has happened, as much as one answer tells: it is told.
    pub fn take(&self, session: SessionId) -> Vec<Event> {
        let mut queues = self.queues.borrow_mut();
        let Some(queue) = queues.get_mut(&session) else { return Vec::new() };
        let count = queue.events.len().min(limits::EVENTS_PER_ANSWER_MAX);
        queue.events.drain(..count).collect()
    }
}

//! Events that are not sent to their sessions yet: see [`crate::listen`].

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use ramlace_base::{SessionId, limits};
use ramlace_wire::locks::Event;
use tokio::sync::Notify;

/// As many as a process can wait for.
const QUEUED_MAX: usize = limits::LOCK_WAITS_PER_PROCESS_MAX + limits::PARKED_PER_PROCESS_MAX;

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    changed: Rc<Notify>,
    /// The newest long poll: older ones belong to lost connections.
    newest: u64,
}

/// Events that are not sent yet, by session.
#[derive(Default)]
pub struct EventQueues {
    queues: RefCell<HashMap<SessionId, Queue>>,
}

impl EventQueues {
    /// Queues an event. If a session has too many unsent events, it gets no more: it does not ask for them.
    pub fn push(&self, session: SessionId, event: Event) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(session).or_default();
        if queue.events.len() < QUEUED_MAX {
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

    /// A long poll replaces those before it.
    pub fn begin(&self, session: SessionId) -> u64 {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(session).or_default();
        queue.newest += 1;
        queue.changed.notify_waiters();
        queue.newest
    }

    /// Whether a session has asked for what happens.
    pub fn listens(&self, session: SessionId) -> bool {
        self.queues.borrow().get(&session).is_some_and(|queue| queue.newest > 0)
    }

    /// Notifies of more events, as long as this is the session's newest long poll.
    pub fn changed(&self, session: SessionId, poll: u64) -> Option<Rc<Notify>> {
        let queues = self.queues.borrow();
        queues.get(&session).filter(|queue| queue.newest == poll).map(|queue| queue.changed.clone())
    }

    /// Takes the queued events, as many as one answer holds; they count as sent.
    pub fn take(&self, session: SessionId) -> Vec<Event> {
        let mut queues = self.queues.borrow_mut();
        let Some(queue) = queues.get_mut(&session) else { return Vec::new() };
        let count = queue.events.len().min(limits::EVENTS_PER_ANSWER_MAX);
        queue.events.drain(..count).collect()
    }
}

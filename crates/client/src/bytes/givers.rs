//! The servers that have given this session leases on bytes: the incarnation of each, and the recalls that are done
//! and not acknowledged to it yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Result, ServerId, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::leases::EndRecalls;

use crate::session::lines::Link;
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;

/// What is known of the servers that give leases on bytes.
#[derive(Default)]
pub(crate) struct Givers {
    table: Mutex<HashMap<ServerId, Giver>>,
    /// Signalled when the incarnation of a server becomes known.
    known: Condvar,
}

#[derive(Default)]
struct Giver {
    /// The last known incarnation; 0: not known yet.
    life: u64,
    /// Leases were requested before the incarnation was known.
    hasty: bool,
    ended: Arc<Ended>,
}

/// Ended recalls that were not reported to a server yet. Lock order: `link`, which is held while a message is under
/// way, then `waiting`.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) waiting: Mutex<EndRecalls>,
    /// Locked by the thread that sends; it also sends what is added meanwhile.
    pub(crate) link: Mutex<Option<Link>>,
}

impl Givers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Giver>> {
        self.table.lock()
    }

    /// The ended recalls of a server, if there may be any.
    pub(crate) fn known_ended(&self, server: ServerId) -> Option<Arc<Ended>> {
        self.lock().get(&server).map(|giver| giver.ended.clone())
    }

    /// The ended recalls of a server.
    pub(crate) fn ended(&self, server: ServerId) -> Arc<Ended> {
        self.lock().entry(server).or_default().ended.clone()
    }

    /// The same, if this is still the server's incarnation.
    pub(crate) fn ended_in(&self, server: ServerId, life: u64) -> Option<Arc<Ended>> {
        self.lock().get(&server).filter(|giver| giver.life == life).map(|giver| giver.ended.clone())
    }

    /// The server's last known incarnation; 0: not known yet.
    pub(crate) fn life(&self, server: ServerId) -> u64 {
        self.lock().get(&server).map_or(0, |giver| giver.life)
    }

    /// Drops what is to be sent to a server; returns its last known incarnation.
    pub(crate) fn remove(&self, server: ServerId) -> u64 {
        self.lock().remove(&server).map_or(0, |giver| giver.life)
    }

    pub(crate) fn is_known(&self, server: ServerId) -> bool {
        self.life(server) != 0
    }

    /// Waits until a server's incarnation is known, so that a restart is noticed. Only for a bounded time:
    /// after that, all that was cached meanwhile is dropped once it is known.
    pub(crate) fn await_life(&self, server: ServerId) {
        let until = Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX);
        let mut table = self.lock();
        while table.get(&server).is_none_or(|giver| giver.life == 0) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                table.entry(server).or_default().hasty = true;
                return;
            }
            table = self.known.wait_timeout(table, left);
        }
    }

    /// Whether something may be cached under leases that this incarnation of the server does not know. Ended
    /// recalls that were to be sent to the last one are void then: their numbers may be reused.
    pub(crate) fn is_new_life(&self, server: ServerId, life: u64) -> bool {
        let mut table = self.lock();
        let giver = table.entry(server).or_default();
        let new = giver.life != life && (giver.life != 0 || giver.hasty);
        if giver.life != life {
            giver.hasty = false;
            giver.ended = Arc::default();
        }
        new
    }

    pub(crate) fn note_life(&self, server: ServerId, life: u64) {
        self.lock().entry(server).or_default().life = life;
        self.known.notify_all();
    }
}

impl Ended {
    pub(crate) fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        *waiting == EndRecalls::default()
    }

    /// Adds what has ended since: what is done now is not reported as blocked any more.
    pub(crate) fn add(&self, newer: EndRecalls) {
        let EndRecalls { done, blocked, relaxed, life } = newer;
        let mut waiting = self.waiting.lock();
        let of_before = &mut *waiting;
        for undone in [&mut of_before.blocked, &mut of_before.relaxed] {
            undone.retain(|number| !done.contains(number));
        }
        of_before.done.extend(done);
        of_before.blocked.extend(blocked);
        of_before.relaxed.extend(relaxed);
        of_before.life = of_before.life.max(life);
    }

    /// Takes as many as one message may report.
    pub(crate) fn take(&self) -> EndRecalls {
        let mut waiting = self.waiting.lock();
        let mut room = limits::DATA_RECALLS_PER_MESSAGE_MAX;
        let mut first = |all: &mut Vec<u64>| -> Vec<u64> {
            let count = all.len().min(room);
            room -= count;
            all.drain(..count).collect()
        };
        let EndRecalls { done, blocked, relaxed, life } = &mut *waiting;
        EndRecalls {
            done: first(done),
            blocked: first(blocked),
            relaxed: first(relaxed),
            life: std::mem::take(life),
        }
    }

    /// Sends what waits, unless another thread is sending: that thread takes it along, or leaves all of it to the
    /// outbox if it fails. `send` sends one message.
    pub(crate) fn send_all(
        &self,
        mut send: impl FnMut(&mut Option<Link>, &EndRecalls) -> Result<()>,
    ) -> Result<()> {
        while !self.is_empty() {
            let Some(mut link) = self.link.try_lock() else { break };
            let batch = self.take();
            if let Err(error) = send(&mut link, &batch) {
                self.put_back(batch);
                return Err(error);
            }
            // A thread that failed to take the lock has left its entries: they go in the next iteration.
        }
        Ok(())
    }

    /// Puts back a batch that was not delivered.
    fn put_back(&self, batch: EndRecalls) {
        let newer = std::mem::take(&mut *self.waiting.lock());
        self.add(batch);
        self.add(newer);
    }
}

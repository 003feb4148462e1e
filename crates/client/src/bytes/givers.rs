//! The servers that give leases on bytes: the life of each, and the recalls that are over, of which it has yet to hear.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ServerId, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::leases::EndRecalls;

use crate::session::lines::Link;
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;

/// What is known of the servers that give leases on bytes.
#[derive(Default)]
pub(crate) struct Givers {
    table: Mutex<HashMap<ServerId, Giver>>,
    /// The life of one is known.
    known: Condvar,
}

#[derive(Default)]
struct Giver {
    /// As it was told last; 0: not yet.
    life: u64,
    /// Leases were asked for before it was known.
    hasty: bool,
    ended: Arc<Ended>,
}

/// Recalls that are over, of which a server has yet to hear.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) waiting: Mutex<EndRecalls>,
    /// Held by the thread that sends; it sends also what comes meanwhile.
    pub(crate) link: Mutex<Option<Link>>,
}

impl Givers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Giver>> {
        self.table.lock()
    }

    /// What a server has yet to hear, where something may be left of that.
    pub(crate) fn known_ended(&self, server: ServerId) -> Option<Arc<Ended>> {
        self.lock().get(&server).map(|giver| giver.ended.clone())
    }

    /// What a server has yet to hear.
    pub(crate) fn ended(&self, server: ServerId) -> Arc<Ended> {
        self.lock().entry(server).or_default().ended.clone()
    }

    /// The same, if the server has this life still.
    pub(crate) fn ended_in(&self, server: ServerId, life: u64) -> Option<Arc<Ended>> {
        self.lock().get(&server).filter(|giver| giver.life == life).map(|giver| giver.ended.clone())
    }

    /// The server's life as it was told last; 0: not yet.
    pub(crate) fn life(&self, server: ServerId) -> u64 {
        self.lock().get(&server).map_or(0, |giver| giver.life)
    }

    /// Nothing is left to be told to a server; its last life.
    pub(crate) fn remove(&self, server: ServerId) -> u64 {
        self.lock().remove(&server).map_or(0, |giver| giver.life)
    }

    pub(crate) fn is_known(&self, server: ServerId) -> bool {
        self.life(server) != 0
    }

    /// Waits until a server's life is known, so that another one is noticed. Not for long: then all that was kept meanwhile goes when it
    /// is known.
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

    /// Whether something may be kept by leases that this life of the server does not know. What was to be told to the last
    /// one is void then: the numbers of its recalls may be others' now.
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
    pub(crate) fn is_told(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.done.is_empty() && waiting.blocked.is_empty() && waiting.life == 0
    }

    pub(crate) fn take(&self) -> EndRecalls {
        let mut waiting = self.waiting.lock();
        let mut first = |all: fn(&mut EndRecalls) -> &mut Vec<u64>| {
            let all = all(&mut waiting);
            let count = all.len().min(limits::DATA_RECALLS_PER_MESSAGE_MAX);
            all.drain(..count).collect()
        };
        let (done, blocked) = (first(|waiting| &mut waiting.done), first(|waiting| &mut waiting.blocked));
        EndRecalls { done, blocked, life: std::mem::take(&mut waiting.life) }
    }

    /// They were not heard.
    pub(crate) fn put_back(&self, batch: EndRecalls) {
        let mut waiting = self.waiting.lock();
        let blocked = batch.blocked.into_iter().filter(|number| !waiting.done.contains(number));
        let blocked: Vec<u64> = blocked.collect();
        waiting.blocked.extend(blocked);
        waiting.done.extend(batch.done);
        waiting.life = waiting.life.max(batch.life);
    }
}

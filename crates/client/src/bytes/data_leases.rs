//! Leases on bytes that this machine's kernel keeps: who hears that they are recalled, and how servers hear that they are over.
//!
//! A lease has no end of its own, so a page that is kept by one is dropped when a server says so, when that server has a
//! new life, which knows no leases, and when the session ends. Recalls come with the answers of [`crate::names::leases`]. What they
//! wait for may take a while, so they are acknowledged one by one, whenever they are done, on a connection of their own: what waits
//! for them uses the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::Request;
use ramlace_wire::leases::{DataRecall, EndRecalls, WaitPublished};

use crate::Pool;
use crate::bytes::kept::Pages;
use crate::client::Client;
use crate::session::lines::{Link, roundtrip};
use crate::session::liveness::SIGN_OF_LIFE_MILLIS_MAX;

/// Whoever keeps bytes by leases. Its calls come from the threads that hear of recalls, and wait for nothing.
pub trait DataLeases: Send + Sync {
    /// A server has recalled leases on bytes; some may have been told before. Each is to be ended by [`Pool::end_recalls`].
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]);

    /// A server has a new life: it knows of no lease, and what is kept of its bytes must go. Nothing is left to be ended
    /// of what was recalled before. Others wait until [`Pool::has_dropped_all`] is called with this life.
    fn forgotten(&self, server: ServerId, life: u64);
}

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
struct Ended {
    waiting: Mutex<EndRecalls>,
    /// Held by who sends; he sends also what comes meanwhile.
    link: Mutex<Option<Link>>,
}

impl Pool {
    /// From now on reads for pages and writes through them get leases, and `leases` hears when they end. Said once; a
    /// second time changes nothing.
    pub fn hear_data(&self, leases: Arc<dyn DataLeases>) {
        let _ = self.hearers().data_leases.set(leases);
    }

    /// From now on no call waits for other machines that have bytes in their kernels: whoever wanted these is gone.
    pub fn end_waits(&self) {
        self.settings().waits_are_over.store(true, Ordering::Relaxed);
    }

    /// Data recalls of a server are over: those that are `done`, and those that are `blocked` by a write of the same kernel, for which nobody
    /// waits any longer. A server that cannot be reached hears of them when it can.
    pub fn end_recalls(&self, server: ServerId, done: &[u64], blocked: &[u64]) {
        if let Ok(session) = self.session() {
            session.end_recalls(server, done, blocked);
        }
    }

    /// Nothing is left of what was kept of a server before this life of it. It hears of that as of recalls.
    pub fn has_dropped_all(&self, server: ServerId, life: u64) {
        if let Ok(session) = self.session() {
            session.has_dropped_all(server, life);
        }
    }

    /// Waits until everybody sees what write-backs of this process have written: those that have made this recall and earlier ones.
    pub fn wait_published(&self, server: ServerId, recall: u64) -> Result<()> {
        let session = self.session()?;
        session.ask_server(server, &WaitPublished { recall }, session.deadline())
    }
}

impl Client {
    /// Before bytes leave that a kernel keeps: makes sure that somebody hears of what the slot's server recalls.
    pub(crate) fn hear_of_pages(self: &Arc<Client>, slot: Slot, pages: Pages<'_>) -> Result<()> {
        if !pages.are_kept() || self.hearers.data_leases.get().is_none() {
            return Ok(());
        }
        let map = self.map()?;
        let server = self.server_of(&map, slot)?.id;
        if self.givers.is_known(server) {
            return Ok(());
        }
        self.listen_to_recalls_of(server)?;
        self.givers.await_life(server);
        Ok(())
    }

    /// A server has answered: its life, and what it recalls.
    pub(crate) fn hear_data(&self, server: ServerId, life: u64, recalls: &[DataRecall]) {
        let Some(leases) = self.hearers.data_leases.get() else { return };
        let is_new = self.givers.is_new_life(server, life);
        self.givers.note_life(server, life);
        if is_new {
            leases.forgotten(server, life);
        }
        if !recalls.is_empty() {
            leases.recalled(server, recalls);
        }
    }

    fn end_recalls(self: &Arc<Client>, server: ServerId, done: &[u64], blocked: &[u64]) {
        let ended = self.givers.ended(server);
        {
            let mut waiting = ended.waiting.lock();
            waiting.blocked.retain(|number| !done.contains(number));
            waiting.done.extend_from_slice(done);
            waiting.blocked.extend_from_slice(blocked);
        }
        self.tell_ended(server, &ended);
    }

    fn has_dropped_all(self: &Arc<Client>, server: ServerId, life: u64) {
        if let Some(ended) = self.givers.ended_in(server, life) {
            ended.waiting.lock().life = life;
            self.tell_ended(server, &ended);
        }
    }

    /// Tells servers what they could not be told when it was over.
    pub(crate) fn tell_all_ended(self: &Arc<Client>) {
        let all: Vec<_> = self.givers.lock().iter().map(|(id, giver)| (*id, giver.ended.clone())).collect();
        for (server, ended) in all {
            self.tell_ended(server, &ended);
        }
    }

    /// Sends what waits, unless somebody is just sending.
    fn tell_ended(self: &Arc<Client>, server: ServerId, ended: &Ended) {
        while !self.is_ended() && !ended.is_told() {
            let Some(mut link) = ended.link.try_lock() else { return };
            let batch = ended.take();
            if self.send_ended(server, &mut link, &batch).is_err() {
                ended.put_back(batch);
                return;
            }
            // Whoever could not take the lock meanwhile has left his to the next turn.
        }
    }

    fn send_ended(
        self: &Arc<Client>,
        id: ServerId,
        link: &mut Option<Link>,
        batch: &EndRecalls,
    ) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        // A connection may have been closed while it was idle.
        if let Some(on) = link.take()
            && self.send_ended_on(link, on, batch, deadline).is_ok()
        {
            return Ok(());
        }
        let server = self.server(id)?;
        let on = self.connect(&server, deadline).map_err(|failure| failure.error)?;
        self.send_ended_on(link, on, batch, deadline)
    }

    fn send_ended_on(
        &self,
        link: &mut Option<Link>,
        mut on: Link,
        batch: &EndRecalls,
        deadline: Instant,
    ) -> Result<()> {
        let epoch = self.known_map().map_or(Epoch(0), |map| map.epoch);
        let header = self.header(EndRecalls::KIND, None, deadline, epoch);
        roundtrip(&mut on, header, batch, deadline).map_err(|error| match error.kind() {
            ErrorKind::Stale => self.end(&error),
            _ => error,
        })?;
        *link = Some(on);
        Ok(())
    }
}

impl Givers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ServerId, Giver>> {
        self.table.lock()
    }

    fn ended(&self, server: ServerId) -> Arc<Ended> {
        self.lock().entry(server).or_default().ended.clone()
    }

    /// The same, if the server has this life still.
    fn ended_in(&self, server: ServerId, life: u64) -> Option<Arc<Ended>> {
        self.lock().get(&server).filter(|giver| giver.life == life).map(|giver| giver.ended.clone())
    }

    /// The server's life as it was told last; 0: not yet.
    pub(crate) fn life(&self, server: ServerId) -> u64 {
        self.lock().get(&server).map_or(0, |giver| giver.life)
    }

    fn is_known(&self, server: ServerId) -> bool {
        self.life(server) != 0
    }

    /// Waits until a server's life is known, so that another one is noticed. Not for long: then all that was kept meanwhile goes when it
    /// is known.
    fn await_life(&self, server: ServerId) {
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
    fn is_new_life(&self, server: ServerId, life: u64) -> bool {
        let mut table = self.lock();
        let giver = table.entry(server).or_default();
        let new = giver.life != life && (giver.life != 0 || giver.hasty);
        if giver.life != life {
            giver.hasty = false;
            giver.ended = Arc::default();
        }
        new
    }

    fn note_life(&self, server: ServerId, life: u64) {
        self.lock().entry(server).or_default().life = life;
        self.known.notify_all();
    }
}

impl Ended {
    fn is_told(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.done.is_empty() && waiting.blocked.is_empty() && waiting.life == 0
    }

    fn take(&self) -> EndRecalls {
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
    fn put_back(&self, batch: EndRecalls) {
        let mut waiting = self.waiting.lock();
        let blocked = batch.blocked.into_iter().filter(|number| !waiting.done.contains(number));
        let blocked: Vec<u64> = blocked.collect();
        waiting.blocked.extend(blocked);
        waiting.done.extend(batch.done);
        waiting.life = waiting.life.max(batch.life);
    }
}

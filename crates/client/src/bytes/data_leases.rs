//! Leases on bytes that this machine's kernel keeps: who hears that they are recalled, and how servers hear that they are over.
//!
//! A lease has no end of its own, so a page that is kept by one is dropped when a server says so, when that server has a
//! new life, which knows no leases, and when the session ends. Recalls come with the answers of [`crate::names::leases`]. What they
//! wait for may take a while, so they are acknowledged one by one, whenever they are done, on a connection of their own: what waits
//! for them uses the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_wire::Request;
use ramlace_wire::leases::{DataRecall, EndRecalls, WaitPublished};

use crate::Pool;
use crate::bytes::givers::Ended;
use crate::bytes::pages::Pages;
use crate::client::Client;
use crate::hearers::DataLeases;
use crate::session::lines::{Link, roundtrip};
use crate::session::owed::{Heard, Message};

impl Pool {
    /// From now on reads for pages and writes through them get leases, and `leases` hears when they end. Said once; a
    /// second time changes nothing.
    pub fn hear_data(&self, leases: Arc<dyn DataLeases>) {
        let _ = self.hearers().data_leases.set(leases);
    }

    /// From now on no call waits for other machines that have bytes in their kernels, and files that say nothing new when they
    /// are closed are left to the end of the session, which follows: whoever wanted these is gone.
    pub fn end_waits(&self) {
        self.wait_for_nobody();
        self.settings().ends.store(true, Ordering::Relaxed);
    }

    /// No call waits for other machines that have bytes in their kernels.
    pub(crate) fn wait_for_nobody(&self) {
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

    /// Data recalls of a server are done; it hears of that by [`Pool::tell_ended`]. Waits for nobody.
    pub(crate) fn note_ended(&self, server: ServerId, done: &[u64]) {
        if let Ok(session) = self.session() {
            session.note_ended(server, done, &[]);
        }
    }

    /// Nothing is left of what was kept before this life of a server, likewise.
    pub(crate) fn note_dropped_all(&self, server: ServerId, life: u64) {
        if let Ok(session) = self.session() {
            session.note_dropped_all(server, life);
        }
    }

    /// Tells a server what is over. One that cannot be reached hears of it when it can.
    pub(crate) fn tell_ended(&self, server: ServerId) {
        if let Ok(session) = self.session() {
            session.tell_ended(server, &session.givers.ended(server));
        }
    }

    /// Waits until everybody sees what write-backs of this process have written: those that have made this recall and earlier ones.
    pub fn wait_published(&self, server: ServerId, recall: u64) -> Result<()> {
        let session = self.session()?;
        session.ask_server(server, &WaitPublished { recall }, session.deadline())
    }
}

impl Client {
    /// Whether a slot's server has answered of late, and it is heard what it recalls. If not, that begins. Waits for nobody.
    pub(crate) fn hears(self: &Arc<Client>, slot: Slot) -> bool {
        let Some(server) = self.known_map().and_then(|map| self.server_of(&map, slot).ok()) else {
            return false;
        };
        if !self.givers.is_known(server.id) {
            // Where no thread can be started the next read tries it again.
            let _ = self.listen_to_server(server.id);
            return false;
        }
        !server.is_failing()
    }

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
        self.listen_to_server(server)?;
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

    /// A server will not come back, and can recall nothing: what is kept of its bytes goes.
    pub(crate) fn hear_no_more_of(&self, server: ServerId) {
        let life = self.givers.remove(server);
        if let Some(leases) = self.hearers.data_leases.get() {
            leases.forgotten(server, life);
        }
    }

    fn end_recalls(self: &Arc<Client>, server: ServerId, done: &[u64], blocked: &[u64]) {
        let ended = self.note_ended(server, done, blocked);
        self.tell_ended(server, &ended);
    }

    fn note_ended(&self, server: ServerId, done: &[u64], blocked: &[u64]) -> Arc<Ended> {
        let ended = self.givers.ended(server);
        let mut waiting = ended.waiting.lock();
        waiting.blocked.retain(|number| !done.contains(number));
        waiting.done.extend_from_slice(done);
        waiting.blocked.extend_from_slice(blocked);
        drop(waiting);
        ended
    }

    fn has_dropped_all(self: &Arc<Client>, server: ServerId, life: u64) {
        if let Some(ended) = self.note_dropped_all(server, life) {
            self.tell_ended(server, &ended);
        }
    }

    fn note_dropped_all(&self, server: ServerId, life: u64) -> Option<Arc<Ended>> {
        let ended = self.givers.ended_in(server, life)?;
        ended.waiting.lock().life = life;
        Some(ended)
    }

    /// Tells a server what is over, or owes it that.
    fn tell_ended(self: &Arc<Client>, server: ServerId, ended: &Ended) {
        let soon = || Instant::now() + Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        if self.send_all_ended(server, ended, soon).is_err() {
            self.owe(Message::EndRecalls(server));
        }
    }

    /// Tells a server what it could not be told when it was over.
    pub(crate) fn tell_recalls_ended(
        self: &Arc<Client>,
        server: ServerId,
        deadline: Instant,
    ) -> Result<Heard> {
        if let Some(ended) = self.givers.known_ended(server) {
            self.send_all_ended(server, &ended, || deadline)?;
        }
        Ok(Heard::Yes)
    }

    /// Sends what waits, unless somebody is just sending: who fails owes it all.
    fn send_all_ended(
        self: &Arc<Client>,
        server: ServerId,
        ended: &Ended,
        by: impl Fn() -> Instant,
    ) -> Result<()> {
        while !self.is_ended() && !ended.is_told() {
            let Some(mut link) = ended.link.try_lock() else { break };
            let batch = ended.take();
            if let Err(error) = self.send_ended(server, &mut link, &batch, by()) {
                ended.put_back(batch);
                return Err(error);
            }
            // A thread that could not take the lock meanwhile has left its own to the next turn.
        }
        Ok(())
    }

    fn send_ended(
        self: &Arc<Client>,
        id: ServerId,
        link: &mut Option<Link>,
        batch: &EndRecalls,
        deadline: Instant,
    ) -> Result<()> {
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

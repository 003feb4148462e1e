//! Leases on bytes that this machine's kernel caches: how recalls reach their handler, and how servers learn
//! that these are done.
//!
//! A lease has no expiry of its own. A page that is cached under one is dropped when its server recalls the
//! lease, when that server has restarted (then it knows of no leases), when nothing was heard of it for as long as it
//! waits for anybody ([`crate::session::heard`]), and when the session ends. Recalls
//! come in the replies described in [`crate::names::leases`]. The work that they wait for may take a while,
//! so they are acknowledged one by one, when each is done, on a connection of their own: that work uses the
//! other connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, ErrorKind, InodeId, Result, ServerId, Slot, limits};
use ramlace_wire::leases::{DataRecall, EndRecalls, WaitPublished};
use ramlace_wire::{ClusterMap, Layout, Request};

use crate::Pool;
use crate::bytes::file::File;
use crate::bytes::givers::Ended;
use crate::bytes::pages::Pages;
use crate::callbacks::DataLeases;
use crate::client::Client;
use crate::session::lines::{Link, roundtrip};
use crate::session::pending::{Acknowledged, Message};

impl Pool {
    /// From now on reads for pages, and writes through them, get leases, and `leases` is called when they
    /// end. Can be set once; a second call has no effect.
    pub fn on_data_recalls(&self, leases: Arc<dyn DataLeases>) {
        let _ = self.callbacks().data_leases.set(leases);
    }

    /// From now on no call waits for other machines that have bytes in their kernels, and the close of a file
    /// that has nothing new to report is left to the end of the session, which follows: the caller that
    /// wanted these is gone.
    pub fn end_waits(&self) {
        self.wait_for_nobody();
        self.settings().ends.store(true, Ordering::Relaxed);
    }

    /// From now on no call waits for other machines that have bytes in their kernels.
    pub(crate) fn wait_for_nobody(&self) {
        self.settings().waits_are_over.store(true, Ordering::Relaxed);
    }

    /// Data recalls of a server are done, or not to be waited for. A server that cannot be reached is notified when
    /// it can be.
    pub fn end_recalls(&self, server: ServerId, ended: EndRecalls) {
        if let Ok(session) = self.session() {
            session.end_recalls(server, ended);
        }
    }

    /// Nothing is cached any more from before this incarnation of a server. It is notified in the same way as of
    /// recalls.
    pub fn has_dropped_all(&self, server: ServerId, life: u64) {
        if let Ok(session) = self.session() {
            session.has_dropped_all(server, life);
        }
    }

    /// Data recalls of a server are done; [`Pool::tell_ended`] notifies it. Does not wait.
    pub(crate) fn note_ended(&self, server: ServerId, done: &[u64]) {
        if let Ok(session) = self.session() {
            session.note_ended(server, EndRecalls::of_done(done));
        }
    }

    /// The same for: nothing is cached any more from before this incarnation of a server.
    pub(crate) fn note_dropped_all(&self, server: ServerId, life: u64) {
        if let Ok(session) = self.session() {
            session.note_dropped_all(server, life);
        }
    }

    /// Reports to a server which recalls are over. If it cannot be reached, it is notified later.
    pub(crate) fn tell_ended(&self, server: ServerId) {
        if let Ok(session) = self.session() {
            session.tell_ended(server, &session.givers.ended(server));
        }
    }

    /// Whether a server has bytes of a file or its inode, as far as is known.
    #[must_use]
    pub fn may_have_bytes_at(&self, server: ServerId, inode: InodeId, layout: Option<&Layout>) -> bool {
        let map = self.session().ok().and_then(|session| session.known_map());
        let (Some(map), Some(layout)) = (map, layout) else { return true };
        slots_with_bytes(inode, layout, &map).any(|slot| map.primary(slot).is_none_or(|of| of == server))
    }

    /// Waits until all machines see what write-backs of this process have written: those that have caused
    /// this recall or earlier ones.
    pub fn wait_published(&self, server: ServerId, recall: u64) -> Result<()> {
        let session = self.session()?;
        session.ask_server(server, &WaitPublished { recall }, session.deadline())
    }
}

impl File {
    /// Whether all that was recalled of the file has arrived by now, but for what its servers still wait for. If it is
    /// not known, what is cached may be older than what a program may see that has just opened or locked the file.
    #[must_use]
    pub fn is_heard_of(&self) -> bool {
        let Ok(handle) = self.handle() else { return false };
        let session = &handle.session;
        let Some(map) = session.known_map() else { return false };
        let now = Instant::now();
        slots_with_bytes(self.inode(), self.layout(), &map).all(|slot| session.is_waited_for(&map, slot, now))
    }
}

/// The slots that may have bytes of a file: those of its lanes, and of its inode.
fn slots_with_bytes(inode: InodeId, layout: &Layout, map: &ClusterMap) -> impl Iterator<Item = Slot> {
    let slots = map.slots();
    let lanes = (0..layout.width).map(move |lane| ramlace_layout::lane_slot(layout, lane, slots));
    lanes.chain([inode.slot()])
}

impl Client {
    /// Whether a slot's server has answered recently and a thread listens to its recalls. If no thread
    /// listens, one is started. Does not wait.
    pub(crate) fn is_listened_to(self: &Arc<Client>, slot: Slot) -> bool {
        let Some(server) = self.known_map().and_then(|map| self.server_of(&map, slot).ok()) else {
            return false;
        };
        if !self.givers.is_known(server.id) {
            // If no thread can be started, the next read tries again.
            let _ = self.listen_to_server(server.id);
            return false;
        }
        !server.is_failing()
    }

    /// Whether what is cached of a slot's bytes is still waited for by its server, as far as it has said lately. A slot
    /// without one changes no bytes.
    fn is_waited_for(&self, map: &ClusterMap, slot: Slot, now: Instant) -> bool {
        self.server_of(map, slot).map_or(true, |server| server.heard().holds(now))
    }

    /// Before bytes are requested or sent that a kernel caches: makes sure that a thread listens to the
    /// recalls of the slot's server.
    pub(crate) fn listen_for_pages(self: &Arc<Client>, slot: Slot, pages: Pages<'_>) -> Result<()> {
        if !pages.are_kept() || self.callbacks.data_leases.get().is_none() {
            return Ok(());
        }
        let map = self.map()?;
        let server = self.server_of(&map, slot)?;
        if self.givers.is_known(server.id) {
            return Ok(());
        }
        server.heard().begin(Instant::now());
        self.listen_to_server(server.id)?;
        self.givers.await_life(server.id);
        Ok(())
    }

    /// A server has answered: its incarnation, and what it recalls.
    pub(crate) fn pass_on_data_recalls(&self, server: ServerId, life: u64, recalls: &[DataRecall]) {
        let Some(leases) = self.callbacks.data_leases.get() else { return };
        let is_new = self.givers.is_new_life(server, life);
        self.givers.note_life(server, life);
        if is_new {
            leases.forgotten(server, life);
        }
        if !recalls.is_empty() {
            leases.recalled(server, recalls);
        }
    }

    /// A server will not come back, and can recall nothing: what is cached of its bytes goes.
    pub(crate) fn stop_listening_to(&self, server: ServerId) {
        let life = self.givers.remove(server);
        if let Some(leases) = self.callbacks.data_leases.get() {
            leases.forgotten(server, life);
        }
    }

    fn end_recalls(self: &Arc<Client>, server: ServerId, ended: EndRecalls) {
        let ended = self.note_ended(server, ended);
        self.tell_ended(server, &ended);
    }

    fn note_ended(&self, server: ServerId, newer: EndRecalls) -> Arc<Ended> {
        let ended = self.givers.ended(server);
        ended.add(newer);
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

    /// Reports to a server which recalls are over; when that fails, leaves it to the outbox.
    fn tell_ended(self: &Arc<Client>, server: ServerId, ended: &Ended) {
        let soon = || Instant::now() + Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        if self.send_all_ended(server, ended, soon).is_err() {
            self.send_later(Message::EndRecalls(server));
        }
    }

    /// Reports to a server which recalls are over, from the outbox.
    pub(crate) fn tell_recalls_ended(
        self: &Arc<Client>,
        server: ServerId,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        if let Some(ended) = self.givers.known_ended(server) {
            self.send_all_ended(server, &ended, || deadline)?;
        }
        Ok(Acknowledged::Yes)
    }

    fn send_all_ended(
        self: &Arc<Client>,
        server: ServerId,
        ended: &Ended,
        by: impl Fn() -> Instant,
    ) -> Result<()> {
        ended.send_all(|link, batch| match self.is_ended() {
            true => Ok(()),
            false => self.send_ended(server, link, batch, by()),
        })
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

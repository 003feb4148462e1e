//! Applies the rules of `ramlace_lanes` to the lanes of this server, with the bytes of the store.
//!
//! Bytes of lanes change in three ways: by a record ([`Server::commit`]), at once ([`Server::change_bytes`]),
//! or while they arrive ([`InFlight`]). Each ends in [`Server::note_effect`], so every wait for changes is
//! notified.

use std::rc::Rc;

use ramlace_base::{ByteRange, LaneId, Result, ServerId, Slot};
use ramlace_lanes::{LaneChange, LaneEffect, LaneTable, Notified, Writer};
use ramlace_store::Store;
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use tokio::sync::Notify;

use crate::record::Record;
use crate::server::lane_desk::Arriving;
use crate::server::{Outcome, Server};

impl Server {
    /// Queries the lanes of a slot.
    pub fn lanes<T>(&self, slot: Slot, ask: impl FnOnce(&LaneTable, ServerId) -> T) -> T {
        ask(self.durable.borrow().lanes(slot).unwrap_or(&LaneTable::default()), self.me)
    }

    /// Logs a change of a lane, and does what follows from it.
    pub fn commit_lane(self: &Rc<Self>, slot: Slot, change: LaneChange) -> Result<()> {
        self.commit(&Record::lane(slot, change)).map(drop)
    }

    /// Whether a kernel may map the lane (passthrough): then it must have no holes.
    pub fn has_passthrough(&self, slot: Slot, lane: LaneId) -> bool {
        self.lanes(slot, |lanes, _| lanes.has_passthrough(lane))
    }

    /// Whether somebody stores into the lane's memory without asking.
    pub fn is_stored_into(&self, slot: Slot, lane: LaneId) -> bool {
        self.lanes(slot, |lanes, _| lanes.is_stored_into(lane))
    }

    /// Changes bytes of a lane at once. Whatever the result, waits for changes are notified.
    pub fn change_bytes<T>(
        &self,
        target: &LaneTarget,
        range: ByteRange,
        change: impl FnOnce(&mut Store) -> Result<T>,
    ) -> Result<T> {
        let changed = change(&mut self.store.borrow_mut());
        self.note_effect(target.slot, LaneEffect::Changed { lane: target.lane, range });
        changed.map_err(|error| error.context(self.me))
    }

    /// Does what follows from an effect on lanes: the only place where changes of their bytes are reported.
    pub fn note_effect(&self, slot: Slot, effect: LaneEffect) {
        let LaneEffect::Changed { lane, .. } = effect;
        self.forget_time(slot, lane);
        let events = self.lane_desk.traffic.borrow_mut().note(effect);
        self.tell(events);
    }

    /// Queues events for the sessions that wait for them.
    pub fn tell(&self, events: Vec<Notified>) {
        events.into_iter().for_each(|(session, event)| self.events.push(session, event));
    }

    /// Runs a change of a lane exclusively: requests for the lane wait until it is over.
    pub async fn changing_lane<T>(
        self: &Rc<Self>,
        lane: LaneId,
        change: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        let changing = Changing::begin(self, lane);
        let held = changing.lock.lock().await;
        let outcome = change.await;
        drop(held);
        outcome
    }
}

/// A lane's lock, held or waited for. The last of these removes it from the table, however it ends.
struct Changing {
    server: Rc<Server>,
    lane: LaneId,
    lock: Rc<tokio::sync::Mutex<()>>,
}

impl Changing {
    fn begin(server: &Rc<Server>, lane: LaneId) -> Changing {
        let lock = server.lane_desk.changing.borrow_mut().entry(lane).or_default().clone();
        Changing { server: server.clone(), lane, lock }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        // Two owners: the table and this.
        if Rc::strong_count(&self.lock) <= 2 {
            self.server.lane_desk.changing.borrow_mut().remove(&self.lane);
        }
    }
}

/// A write under way, noted until this is dropped.
pub struct InFlight {
    server: Rc<Server>,
    target: LaneTarget,
    writer: Writer,
}

impl InFlight {
    /// The write's bytes begin to arrive on this connection.
    pub fn begin(
        server: &Rc<Server>,
        target: &LaneTarget,
        range: ByteRange,
        (writer, origin): (Writer, WriteOrigin),
        connection: &Connection,
    ) -> InFlight {
        let (canceller, ended) = (connection.canceller(), Notify::new());
        let write = Rc::new(Arriving { range, origin, canceller, ended });
        server.lane_desk.arriving.borrow_mut().insert((target.lane, writer), write);
        server.lane_desk.traffic.borrow_mut().begin(target.lane, writer, range);
        InFlight { server: server.clone(), target: *target, writer }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let (desk, lane) = (&self.server.lane_desk, self.target.lane);
        let effect = desk.traffic.borrow_mut().end(lane, self.writer);
        if let Some(effect) = effect {
            self.server.note_effect(self.target.slot, effect);
        }
        if let Some(write) = desk.arriving.borrow_mut().remove(&(lane, self.writer)) {
            write.ended.notify_waiters();
        }
    }
}

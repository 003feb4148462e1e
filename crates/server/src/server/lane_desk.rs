//! What a server knows of its lanes until it restarts: writes that are arriving, waits, and locks. See
//! [`crate::lanes`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use ramlace_base::{ByteRange, LaneId, Sequence, SessionId};
use ramlace_lanes::{Traffic, Writer};
use ramlace_transport::nonblocking::Canceller;
use ramlace_wire::chunk::WriteOrigin;
use tokio::sync::Notify;

use crate::origin::spared_by;
use crate::server::acknowledged::Acknowledged;
use crate::server::outgoing::Outgoing;

/// A write into a lane's memory whose bytes are still arriving.
pub struct Arriving {
    pub range: ByteRange,
    pub origin: WriteOrigin,
    /// Stops the connection on which it arrives.
    pub canceller: Canceller,
    /// Notified when the write has ended in any way.
    pub ended: Notify,
}

/// What an incarnation of the server knows of its lanes.
#[derive(Default)]
pub struct LaneDesk {
    /// Writes under way, and waits for changes.
    pub traffic: RefCell<Traffic>,
    pub arriving: RefCell<HashMap<(LaneId, Writer), Rc<Arriving>>>,
    /// Bytes that kernels keep and that are being sent.
    pub outgoing: Rc<Outgoing>,
    /// Which changes sessions no longer wait for.
    pub acknowledged: RefCell<Acknowledged>,
    /// The locks under which lanes are begun, cut or dropped; requests wait while there is one.
    pub changing: RefCell<HashMap<LaneId, Rc<tokio::sync::Mutex<()>>>>,
}

impl LaneDesk {
    /// Whether a task is beginning, cutting or dropping the lane now: then the lane's state is only valid
    /// with its lock held.
    pub fn is_changing(&self, lane: LaneId) -> bool {
        self.changing.borrow().contains_key(&lane)
    }

    /// Whether bytes are arriving for a lane.
    pub fn is_written(&self, lane: LaneId) -> bool {
        self.traffic.borrow().first_of(lane).is_some()
    }

    /// Stops a write under way and waits for its end.
    async fn stop(&self, lane: LaneId, writer: Writer) {
        let write = self.arriving.borrow().get(&(lane, writer)).cloned();
        let write = write.expect("a write under way arrives on a connection");
        let ended = write.ended.notified();
        write.canceller.cancel();
        ended.await;
    }

    /// Stops every write under way in a lane.
    pub async fn stop_writes(&self, lane: LaneId) {
        loop {
            let first = self.traffic.borrow().first_of(lane);
            let Some(writer) = first else { return };
            self.stop(lane, writer).await;
        }
    }

    /// Stops write-backs of others that are arriving in a range. Returns whether there were any: then other
    /// requests have run.
    pub async fn stop_write_backs(&self, lane: LaneId, range: ByteRange, session: SessionId) -> bool {
        self.stop_arriving(lane, range, session, |origin| origin == WriteOrigin::Back).await
    }

    /// The same for writes of programs.
    pub async fn stop_programs(&self, lane: LaneId, range: ByteRange, session: SessionId) -> bool {
        self.stop_arriving(lane, range, session, |origin| origin != WriteOrigin::Back).await
    }

    async fn stop_arriving(
        &self,
        lane: LaneId,
        range: ByteRange,
        session: SessionId,
        is_meant: impl Fn(WriteOrigin) -> bool,
    ) -> bool {
        let mut stopped = false;
        loop {
            let first = {
                let arriving = self.arriving.borrow();
                let mut meant = arriving.iter().filter(|((other, writer), arriving)| {
                    let meets = !arriving.range.intersection(range).is_empty();
                    *other == lane && writer.0 != session && is_meant(arriving.origin) && meets
                });
                meant.next().map(|((_, writer), _)| *writer)
            };
            let Some(writer) = first else { return stopped };
            self.stop(lane, writer).await;
            stopped = true;
        }
    }

    /// Writes whose bytes are arriving in a range and will not be in this session's pages: from which session each recalls
    /// nothing ([`spared_by`]), and the part of the range.
    pub fn arriving_in(
        &self,
        lane: LaneId,
        range: ByteRange,
        session: SessionId,
    ) -> Vec<(SessionId, ByteRange)> {
        let arriving = self.arriving.borrow();
        let of_lane = arriving.iter().filter(|((other, _), _)| *other == lane);
        let parts = of_lane.map(|((_, writer), arriving)| {
            (spared_by(writer.0, arriving.origin), arriving.range.intersection(range))
        });
        parts.filter(|(spared, part)| *spared != session && !part.is_empty()).collect()
    }

    /// A retry stops the attempt that it repeats, and those that its session has abandoned, so that late
    /// bytes cannot overwrite newer ones. Returns whether there were any: then other requests have run.
    pub async fn stop_replaced(&self, lane: LaneId, writer: Writer, below: Sequence) -> bool {
        let mut stopped = false;
        loop {
            let replaced = self.traffic.borrow().replaced_by(lane, writer, below);
            let Some(replaced) = replaced else { return stopped };
            self.stop(lane, replaced).await;
            stopped = true;
        }
    }
}

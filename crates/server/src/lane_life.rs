//! The life of a lane on its server: it begins with its first write, is cut when the file is
//! truncated, trimmed when nobody has it open, and dropped when the file goes.
//!
//! Changes of one lane happen one after another, and never beside a write whose bytes are still
//! arriving: late bytes must not land on newer ones.

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, LaneId, Sequence};
use ramlace_cluster::{Absent, is_hole_or_lost};
use ramlace_layout::{lane_length, lane_slot};
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::peer::{CutLane, DropLane, InodeAnswer, QueryInode, TrimLane};
use tokio::sync::Notify;

use crate::lanes::{LaneRecord, Loss, Standing, WriteUnderWay, Writer};
use crate::record::Record;
use crate::server::{Outcome, Server};

/// What a lane is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A lane that has not begun may stay so.
    Read,
    /// The lane must have begun.
    Write,
}

impl Server {
    /// The home says that the file was truncated.
    pub async fn cut_lane(self: &Rc<Self>, request: CutLane) -> Outcome<()> {
        self.changing_lane(request.lane, async {
            let known = self.durable.borrow().lanes.get(request.lane).map(|record| record.generation);
            let Some(known) = known else { return Ok(()) };
            if request.generation <= known {
                return Ok(());
            }
            if request.generation == known.next() {
                return self.cut_now(request.lane, request.generation, Some(request.length)).await;
            }
            // An earlier truncation has not arrived yet: the home knows the smallest size since.
            let answer = self.query_home(QueryInode { inode: request.lane.inode, since: known }).await?;
            self.cut_as_answered(request.lane, &answer).await
        })
        .await
    }

    /// The home says that the file is gone.
    pub async fn drop_lane(self: &Rc<Self>, request: DropLane) -> Outcome<()> {
        self.changing_lane(request.lane, async {
            self.stop_writes(request.lane).await;
            {
                let mut store = self.store.borrow_mut();
                if store.has_lane(request.lane) {
                    store.remove_lane(request.lane)?;
                }
            }
            if self.durable.borrow().lanes.get(request.lane).is_some() {
                self.commit(Record::Lane { lane: request.lane, record: None })?;
            }
            self.note_change(request.lane, ByteRange { start: 0, end: u64::MAX });
            Ok(())
        })
        .await
    }

    /// The home says that nobody has the file open: pages beyond its end are given back. Or that no kernel has it.
    pub fn trim_lane(self: &Rc<Self>, request: TrimLane) -> Outcome<()> {
        self.end_handovers(request.lane, request.handovers_over)?;
        let idle = self.durable.borrow().lanes.writes_under_way(request.lane).is_empty();
        let mut store = self.store.borrow_mut();
        if idle && store.has_lane(request.lane) {
            store.trim(request.lane)?;
        }
        Ok(())
    }

    /// Brings the requester's generation and the lane's together. For a write the lane is known
    /// afterwards; for a read, whether it is.
    pub async fn admit_lane(self: &Rc<Self>, target: &LaneTarget, purpose: Purpose) -> Outcome<bool> {
        let standing = || self.durable.borrow().lanes.standing(target.lane, target.generation);
        loop {
            let standing = if self.durable.borrow().lanes.is_changing(target.lane) {
                // Looked at with the lock in hand: requests that only waited for one another's locks
                // would keep the lane changing for ever.
                self.changing_lane(target.lane, async { Ok(standing()?) }).await?
            } else {
                standing()?
            };
            match standing {
                Standing::Current => return Ok(true),
                Standing::Unknown if purpose == Purpose::Read => return Ok(false),
                Standing::Unknown | Standing::Behind => self.bring_up(target).await?,
            }
        }
    }

    /// Asks the file's home what this lane has missed, and begins the lane or cuts it.
    async fn bring_up(self: &Rc<Self>, target: &LaneTarget) -> Outcome<()> {
        self.changing_lane(target.lane, async {
            let known = self.durable.borrow().lanes.get(target.lane).map(|record| record.generation);
            if known.is_some_and(|known| known >= target.generation) {
                return Ok(());
            }
            let since = known.unwrap_or_default();
            let answer = self.query_home(QueryInode { inode: target.lane.inode, since }).await?;
            self.check_target(target, &answer)?;
            match known {
                Some(_) => self.cut_as_answered(target.lane, &answer).await,
                None => self.begin_lane(target, &answer),
            }
        })
        .await
    }

    /// A lane that is not the file's would never be dropped; a generation that is yet to come would
    /// never be met.
    fn check_target(&self, target: &LaneTarget, answer: &InodeAnswer) -> Outcome<()> {
        let slots = self.membership.map()?.slots();
        let LaneId { inode, lane } = target.lane;
        let text = if answer.place != BytesPlace::Lanes {
            format!("the bytes of file {inode} live with its inode; spill it first")
        } else if lane >= answer.layout.width {
            format!("file {inode} has {} lanes, there is no lane {lane}", answer.layout.width)
        } else if lane_slot(&answer.layout, lane, slots) != target.slot {
            format!("lane {lane} of file {inode} does not lie in {}", target.slot)
        } else if target.generation > answer.generation {
            format!("file {inode} has {}; {} is yet to come", answer.generation, target.generation)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, text).into())
    }

    fn begin_lane(self: &Rc<Self>, target: &LaneTarget, answer: &InodeAnswer) -> Outcome<()> {
        let map = self.membership.map()?;
        let older = lane_length(&answer.layout, target.lane.lane, answer.size);
        let loss = match is_hole_or_lost(&map, target.slot, answer.layout.created) {
            Absent::Lost if older > 0 => Some(Loss::new(answer.layout.stripe_unit, older)),
            _ => None,
        };
        let record = LaneRecord::new(answer.generation, loss);
        self.commit(Record::Lane { lane: target.lane, record: Some(record) })?;
        Ok(())
    }

    async fn cut_as_answered(self: &Rc<Self>, lane: LaneId, answer: &InodeAnswer) -> Outcome<()> {
        let length = answer.smallest_size.map(|size| lane_length(&answer.layout, lane.lane, size));
        self.cut_now(lane, answer.generation, length).await
    }

    /// Cuts a lane whose change lock is held. Writes of the old generation are stopped first:
    /// their bytes must not arrive after the cut.
    async fn cut_now(
        self: &Rc<Self>,
        lane: LaneId,
        generation: Generation,
        length: Option<u64>,
    ) -> Outcome<()> {
        self.stop_writes(lane).await;
        let record = self.durable.borrow().lanes.get(lane).cloned();
        let Some(mut record) = record else { return Ok(()) };
        if let Some(length) = length {
            let mut store = self.store.borrow_mut();
            if store.has_lane(lane) && store.lane_length(lane)? > length {
                store.cut(lane, length)?;
            }
            if let Some(loss) = &mut record.loss {
                loss.cut(length);
            }
        }
        record.generation = generation;
        self.commit(Record::Lane { lane, record: Some(record) })?;
        self.note_change(lane, ByteRange { start: length.unwrap_or(0), end: u64::MAX });
        Ok(())
    }

    async fn stop_writes(&self, lane: LaneId) {
        loop {
            let writes = self.durable.borrow().lanes.writes_under_way(lane);
            let Some(write) = writes.first() else { return };
            let ended = write.ended.notified();
            write.canceller.cancel();
            ended.await;
        }
    }

    /// Runs a change of a lane alone: requests for the lane wait until it is over.
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

    /// A retry stops the attempt it repeats, and those that its session has given up, so that late
    /// bytes cannot overwrite newer ones. Whether there were any: then others had their turn.
    pub async fn stop_replaced(&self, lane: LaneId, writer: Writer, below: Sequence) -> bool {
        let mut stopped = false;
        loop {
            let replaced = self.durable.borrow().lanes.replaced_by(lane, writer, below);
            let Some(write) = replaced else { return stopped };
            let ended = write.ended.notified();
            write.canceller.cancel();
            ended.await;
            stopped = true;
        }
    }
}

/// A lane's lock, held or waited for. It leaves the table with the last of those, however they end.
struct Changing {
    server: Rc<Server>,
    lane: LaneId,
    lock: Rc<tokio::sync::Mutex<()>>,
}

impl Changing {
    fn begin(server: &Rc<Server>, lane: LaneId) -> Changing {
        let lock = server.durable.borrow_mut().lanes.changing(lane);
        Changing { server: server.clone(), lane, lock }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.server.durable.borrow_mut().lanes.changed(self.lane, &self.lock);
    }
}

/// Notes a write under way until it is dropped, whatever ends it.
pub struct UnderWay {
    server: Rc<Server>,
    lane: LaneId,
    writer: Writer,
}

impl UnderWay {
    /// The write's bytes begin to arrive on this connection.
    pub fn begin(server: &Rc<Server>, lane: LaneId, writer: Writer, connection: &Connection) -> UnderWay {
        let write = Rc::new(WriteUnderWay { canceller: connection.canceller(), ended: Notify::new() });
        server.durable.borrow_mut().lanes.begin_write(lane, writer, write);
        UnderWay { server: server.clone(), lane, writer }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.server.durable.borrow_mut().lanes.end_write(self.lane, self.writer);
    }
}

//! The life cycle of a lane on its server: it begins with its first write, is cut when the file is truncated,
//! trimmed when no client has it open, and dropped with the file.
//!
//! Changes of one lane happen one after another, and never during a write whose bytes are still arriving:
//! late bytes must not overwrite newer ones.

use std::rc::Rc;

use ramlace_base::{ByteRange, Generation, LaneId, SessionId, Slot};
use ramlace_cluster::{Absent, has_lost, is_hole_or_lost};
use ramlace_lanes::{CutPlan, LaneChange, LaneEffect, LaneTable, Standing};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::peer::{BeginLane, CutLane, DropLane, LaneCut, QueryInode, TrimLane};

use crate::server::{Outcome, Server};

/// The purpose for which a lane is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A lane that has not begun may stay so.
    Read,
    /// The lane must have begun.
    Write,
    /// The same for bytes that this session writes: an empty file is promoted for them.
    Bytes(SessionId),
}

impl Server {
    /// The home reports a truncation. It waits for the recalls that this has made.
    pub async fn cut_lane(self: &Rc<Self>, request: CutLane) -> Outcome<LaneCut> {
        let CutLane { lane, slot, generation, length, by } = request;
        let recalls = self
            .changing_lane(lane, async {
                match self.lanes(slot, |lanes, _| lanes.cut(lane, generation, length)) {
                    CutPlan::Nothing => Ok(self.recalled_behind(by, lane, length)),
                    CutPlan::BeginIfLost => {
                        let recalls = self.begin_if_lost(lane, slot, generation).await?;
                        // Also its hole was cut off, for those who wait for a change there.
                        let range = ByteRange { start: length, end: u64::MAX };
                        self.note_effect(slot, LaneEffect::Changed { lane, range });
                        Ok(recalls)
                    }
                    CutPlan::Cut(change) => self.cut_now(slot, lane, change, by).await,
                    CutPlan::AskHome(since) => {
                        let answer = self.query_home(QueryInode { inode: lane.inode, since }).await?;
                        let change = LaneTable::cut_as_answered(lane, &answer);
                        self.cut_now(slot, lane, change, SessionId::NONE).await
                    }
                }
            })
            .await?;
        Ok(self.lane_cut(recalls))
    }

    /// Begins a lane that has not begun here, if bytes of it were lost: all below the file's present size
    /// count as lost.
    async fn begin_if_lost(
        self: &Rc<Self>,
        lane: LaneId,
        slot: Slot,
        generation: Generation,
    ) -> Outcome<Vec<u64>> {
        let map = self.membership.map()?;
        if !has_lost(&map, slot) {
            return Ok(Vec::new());
        }
        let answer = self.begin_at_home(BeginLane { lane, by: SessionId::NONE }).await?;
        let created = answer.layout.created;
        let absent = is_hole_or_lost(&map, slot, created);
        if absent == Absent::Hole {
            return Ok(Vec::new());
        }
        let target = LaneTarget { lane, slot, generation, created, permit: None };
        let change = self.lanes(slot, |lanes, _| lanes.bring_up(&target, &answer, map.slots(), absent))?;
        self.cut_now(slot, lane, change, SessionId::NONE).await
    }

    /// The home reports that the file is gone. A lane that has never begun has no record, but may have
    /// memory.
    pub async fn drop_lane(self: &Rc<Self>, request: DropLane) -> Outcome<()> {
        let DropLane { lane, slot } = request;
        self.changing_lane(lane, self.drop_now(lane, slot)).await
    }

    /// Drops a lane whose change lock is held.
    pub(crate) async fn drop_now(self: &Rc<Self>, lane: LaneId, slot: Slot) -> Outcome<()> {
        self.lane_desk.stop_writes(lane).await;
        if self.lanes(slot, |lanes, _| lanes.get(lane).is_some()) || self.store.borrow().has_lane(lane) {
            self.commit_lane(slot, LaneChange::Dropped { lane })?;
            self.forget_leases(lane);
        } else {
            let range = ByteRange { start: 0, end: u64::MAX };
            self.note_effect(slot, LaneEffect::Changed { lane, range });
        }
        Ok(())
    }

    /// The home reports that no client has the file open any more: frees pages beyond its end. Or that passthroughs
    /// of it have ended.
    pub fn trim_lane(self: &Rc<Self>, request: TrimLane) -> Outcome<()> {
        let TrimLane { lane, slot, passthroughs_over } = request;
        if let Some(change) = self.lanes(slot, |lanes, _| lanes.end_passthroughs(lane, passthroughs_over)) {
            self.commit_lane(slot, change)?;
        }
        let idle = !self.lane_desk.is_written(lane);
        let mut store = self.store.borrow_mut();
        if idle && store.has_lane(lane) {
            store.trim(lane)?;
        }
        Ok(())
    }

    /// Reconciles the requester's generation with the lane's. After this the lane is known if the purpose is
    /// a write; for a read, returns whether it is.
    pub async fn admit_lane(self: &Rc<Self>, target: &LaneTarget, purpose: Purpose) -> Outcome<bool> {
        let standing = || self.lanes(target.slot, |lanes, _| lanes.standing(target.lane, target.generation));
        loop {
            let standing = if self.lane_desk.is_changing(target.lane) {
                // Checked with the lock held: otherwise requests that wait only for each other's locks would
                // keep the lane changing for ever.
                self.changing_lane(target.lane, async { Ok(standing()?) }).await?
            } else {
                standing()?
            };
            match standing {
                Standing::Current => return Ok(true),
                Standing::Unknown if purpose == Purpose::Read => return Ok(false),
                Standing::Unknown | Standing::Behind => self.bring_up(target, purpose).await?,
            }
        }
    }

    /// Asks the file's home what this lane has missed, and begins the lane or cuts it.
    async fn bring_up(self: &Rc<Self>, target: &LaneTarget, purpose: Purpose) -> Outcome<()> {
        let LaneTarget { lane, slot, generation, .. } = *target;
        self.changing_lane(lane, async {
            let missed = self.lanes(slot, |lanes, _| lanes.missed_since(lane, generation));
            let Some(since) = missed else { return Ok(()) };
            let by = if let Purpose::Bytes(by) = purpose { by } else { SessionId::NONE };
            let answer = if since == Generation(0) {
                self.begin_at_home(BeginLane { lane, by }).await?
            } else {
                self.query_home(QueryInode { inode: lane.inode, since }).await?
            };
            let map = self.membership.map()?;
            let absent = is_hole_or_lost(&map, slot, answer.layout.created);
            let change = self.lanes(slot, |lanes, _| lanes.bring_up(target, &answer, map.slots(), absent))?;
            self.keep_from_home(lane, &answer)?;
            // The truncation that the lane has missed waits for these recalls, not this request.
            self.cut_now(slot, lane, change, SessionId::NONE).await.map(drop)
        })
        .await
    }

    /// Changes a lane whose change lock is held. Writes of the old generation are stopped first: their bytes
    /// must not arrive after the cut. Returns the recalls that were sent to kernels with pages behind it.
    pub(crate) async fn cut_now(
        self: &Rc<Self>,
        slot: Slot,
        lane: LaneId,
        change: LaneChange,
        by: SessionId,
    ) -> Outcome<Vec<u64>> {
        self.lane_desk.stop_writes(lane).await;
        let recalls = match change {
            LaneChange::Cut { length: Some(length), .. } => self.before_cut(by, lane, length)?,
            _ => Vec::new(),
        };
        self.commit_lane(slot, change)?;
        Ok(recalls)
    }
}

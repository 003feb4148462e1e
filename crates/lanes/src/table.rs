//! The lanes of one slot, and which writes to them are done.

use std::collections::BTreeMap;

use ramlace_base::{
    ByteRange, Error, ErrorKind, Generation, LaneId, Result, Sequence, ServerId, SessionId, limits,
};
use ramlace_cluster::Absent;
use ramlace_layout::{lane_length, lane_slot};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::peer::InodeAnswer;
use serde::{Deserialize, Serialize};

use crate::change::{LaneChange, LaneEffect};
use crate::lane::{Lane, Standing};
use crate::mappings::{Mapping, Mappings};
use crate::residency::{Loss, Residency};
use crate::writes::{WriteId, WritesDone};

/// The lanes of one slot. Serialized, they are their part of the slot's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneTable {
    lanes: BTreeMap<LaneId, Lane>,
    writes: WritesDone,
    mappings: Mappings,
}

/// The effect of a truncation on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutPlan {
    /// It has received it.
    Nothing,
    /// It has not begun, and has no bytes. If older ones were lost it begins with the home's answer
    /// ([`LaneTable::bring_up`]), because what is cut off now is a hole when the file grows again.
    BeginIfLost,
    /// This change happens, once the writes under way have ended.
    Cut(LaneChange),
    /// An earlier truncation has not arrived yet: the home knows the smallest size since this generation.
    AskHome(Generation),
}

impl LaneTable {
    /// A lane, if it has begun.
    #[must_use]
    pub fn get(&self, lane: LaneId) -> Option<&Lane> {
        self.lanes.get(&lane)
    }

    /// All lanes, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        self.lanes.iter().map(|(id, lane)| (*id, lane))
    }

    /// How many have begun.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.writes.is_empty() && self.mappings.is_empty()
    }

    /// The writes that are done.
    #[must_use]
    pub fn writes(&self) -> &WritesDone {
        &self.writes
    }

    /// Whether a session has left something here.
    #[must_use]
    pub fn knows(&self, session: SessionId) -> bool {
        self.writes.knows(session) || self.mappings.sessions().any(|of| of == session)
    }

    /// The sessions that have; some may come twice.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.writes.sessions().chain(self.mappings.sessions())
    }

    /// Whether somebody stores into the lane's memory without asking: a program that maps it, or a kernel.
    #[must_use]
    pub fn is_stored_into(&self, lane: LaneId) -> bool {
        self.mappings.has(lane) || self.get(lane).is_some_and(|lane| lane.passthrough_stores)
    }

    /// The lanes whose memory somebody stores into without asking, and who: the session of a program that maps it, which
    /// may come several times; `None`: a kernel.
    pub fn stored_into(&self) -> impl Iterator<Item = (LaneId, Option<SessionId>)> + '_ {
        let by_kernels = self.iter().filter(|(_, lane)| lane.passthrough_stores).map(|(id, _)| (id, None));
        self.mappings.iter().map(|(id, session)| (id, Some(session))).chain(by_kernels)
    }

    /// Whether a kernel may map the lane.
    #[must_use]
    pub fn has_passthrough(&self, lane: LaneId) -> bool {
        self.get(lane).is_some_and(Lane::has_passthrough)
    }

    /// Compares the requester's generation with the lane's. Retry when the requester is behind.
    pub fn standing(&self, lane: LaneId, generation: Generation) -> Result<Standing> {
        self.get(lane).map_or(Ok(Standing::Unknown), |lane| lane.standing(generation))
    }

    /// The residency of these bytes. `absent`: what the map says of a lane that has never begun here,
    /// `stored`: whether the store has some of them.
    #[must_use]
    pub fn residency(&self, lane: LaneId, range: ByteRange, absent: Absent, stored: bool) -> Residency {
        match (self.get(lane), absent) {
            (Some(lane), _) => lane.residency(range, stored),
            (None, Absent::Hole) => Residency::Hole,
            (None, Absent::Lost) => Residency::Lost,
        }
    }

    /// Refuses a write that would leave a chunk half lost: lost chunks are written whole.
    pub fn check_write(&self, lane: LaneId, range: ByteRange, me: ServerId) -> Result<()> {
        let loss = self.get(lane).and_then(|lane| lane.loss.as_ref());
        if loss.is_none_or(|loss| loss.accepts_write(range)) { Ok(()) } else { Err(lost(lane, me)) }
    }

    /// Refuses an operation that needs lost bytes.
    pub fn check_there(&self, lane: LaneId, range: ByteRange, me: ServerId) -> Result<()> {
        if self.get(lane).is_some_and(|lane| lane.has_lost(range)) { Err(lost(lane, me)) } else { Ok(()) }
    }

    /// Refuses an operation that needs the whole lane, if bytes of it are lost.
    pub fn check_whole(&self, lane: LaneId, me: ServerId) -> Result<()> {
        self.check_there(lane, ByteRange { start: 0, end: u64::MAX }, me)
    }

    /// Whether this change of bytes was made already: see [`WritesDone::is_done`].
    pub fn is_done(&self, session: SessionId, sequence: Sequence, below: Sequence) -> Result<bool> {
        self.writes.is_done(session, sequence, below)
    }

    /// The effect of a truncation that the home sends.
    #[must_use]
    pub fn cut(&self, lane: LaneId, generation: Generation, length: u64) -> CutPlan {
        match self.get(lane).map(|lane| lane.generation) {
            None => CutPlan::BeginIfLost,
            Some(known) if generation <= known => CutPlan::Nothing,
            Some(known) if generation == known.next() => {
                CutPlan::Cut(LaneChange::Cut { lane, generation, length: Some(length) })
            }
            Some(known) => CutPlan::AskHome(known),
        }
    }

    /// The same for an answer of the home.
    #[must_use]
    pub fn cut_as_answered(lane: LaneId, answer: &InodeAnswer) -> LaneChange {
        let length = answer.smallest_size.map(|size| lane_length(&answer.layout, lane.lane, size));
        LaneChange::Cut { lane, generation: answer.generation, length }
    }

    /// Since which generation a lane must ask its home before it serves a request of this one; `None`: it need not.
    #[must_use]
    pub fn missed_since(&self, lane: LaneId, generation: Generation) -> Option<Generation> {
        match self.get(lane).map(|lane| lane.generation) {
            Some(known) if known >= generation => None,
            known => Some(known.unwrap_or_default()),
        }
    }

    /// The effect of the home's answer: the lane begins, or is cut. A lane that is not the file's would never
    /// be dropped, and a generation in the future would never be reached: those are Invalid.
    pub fn bring_up(
        &self,
        target: &LaneTarget,
        answer: &InodeAnswer,
        slots: u32,
        absent: Absent,
    ) -> Result<LaneChange> {
        check_target(target, answer, slots)?;
        let lane = target.lane;
        if self.get(lane).is_some() {
            return Ok(LaneTable::cut_as_answered(lane, answer));
        }
        let older = lane_length(&answer.layout, lane.lane, answer.size);
        let is_lost = absent == Absent::Lost && older > 0;
        let loss = is_lost.then(|| Loss::new(answer.layout.stripe_unit, older));
        Ok(LaneChange::Begun { lane, generation: answer.generation, loss })
    }

    /// Whether the bytes that a file had inline may be new to its lane 0: nothing else begins a lane of an
    /// inline file, so a lane that knows the message's generation has had it.
    #[must_use]
    pub fn wants_promotion(&self, lane: LaneId, generation: Generation) -> bool {
        self.get(lane).is_none_or(|lane| lane.generation < generation)
    }

    /// How the lane begins with these bytes, if the home says that they are still to be moved. If not, the
    /// message is a late duplicate.
    #[must_use]
    pub fn promote(lane: LaneId, generation: Generation, answer: &InodeAnswer) -> Option<LaneChange> {
        let is_leaving = answer.place == BytesPlace::Leaving && answer.generation == generation;
        is_leaving.then_some(LaneChange::Begun { lane, generation, loss: None })
    }

    /// A kernel is to have the lane's file.
    ///
    /// Errors: `Unsupported` when the passthrough has ended already.
    pub fn begin_passthrough(&self, lane: LaneId, number: u64, stores: bool) -> Result<Option<LaneChange>> {
        let Some(known) = self.get(lane) else { return Ok(None) };
        known.check_passthrough(lane, number)?;
        // Of two mounts the later one may be heard first.
        let is_news = number > known.passthrough || (stores && !known.passthrough_stores);
        Ok(is_news.then_some(LaneChange::PassthroughBegun { lane, number, stores }))
    }

    /// A session's program is to have the lane's file, to store into it.
    ///
    /// Errors: `TooMany` beyond the limit of a slot.
    pub fn begin_mapping(&self, lane: LaneId, mapping: Mapping) -> Result<Option<LaneChange>> {
        if self.mappings.knows(lane, mapping) {
            return Ok(None);
        }
        if self.mappings.len() >= limits::MAPPINGS_PER_SLOT_MAX {
            let text = format!("programs map lanes of this slot {} times, the limit", self.mappings.len());
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        Ok(Some(LaneChange::MappingBegun { lane, mapping }))
    }

    /// A mapping has ended.
    #[must_use]
    pub fn end_mapping(&self, lane: LaneId, mapping: Mapping) -> Option<LaneChange> {
        self.mappings.knows(lane, mapping).then_some(LaneChange::MappingOver { lane, mapping })
    }

    /// Passthroughs up to this number have ended.
    #[must_use]
    pub fn end_passthroughs(&self, lane: LaneId, number: u64) -> Option<LaneChange> {
        let known = self.get(lane)?;
        (number > known.passthroughs_over).then_some(LaneChange::PassthroughsOver { lane, number })
    }

    /// A write whose bytes are in their place is done, unless the lane was cut or dropped meanwhile.
    pub fn finish(&self, target: &LaneTarget, range: ByteRange, id: WriteId) -> Result<LaneChange> {
        self.current(target)?;
        Ok(LaneChange::Written { lane: target.lane, range, id })
    }

    /// The same of many runs, joined where they touch.
    pub fn finish_runs(&self, target: &LaneTarget, runs: &[ByteRange], id: WriteId) -> Result<LaneChange> {
        let known = self.current(target)?;
        let found = runs.iter().filter(|run| known.has_lost(**run)).copied().collect();
        Ok(LaneChange::RunsWritten { lane: target.lane, found, id })
    }

    /// A lane, if it is as its writer assumes.
    fn current(&self, target: &LaneTarget) -> Result<&Lane> {
        let Some(known) = self.get(target.lane) else {
            let text = format!("inode {} was deleted meanwhile", target.lane.inode);
            return Err(Error::new(ErrorKind::Stale, text));
        };
        if known.generation != target.generation {
            return Err(Error::new(ErrorKind::Retry, "the file was truncated while it was written"));
        }
        Ok(known)
    }

    /// Forgets the writes and mappings of a session that has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.writes.end_session(session);
        self.mappings.end_session(session);
    }

    /// Takes one step: with the end of a session, the only way the table changes.
    pub fn apply(&mut self, change: &LaneChange) -> Option<LaneEffect> {
        let beyond =
            |lane, start| Some(LaneEffect::Changed { lane, range: ByteRange { start, end: u64::MAX } });
        match *change {
            LaneChange::Begun { lane, generation, ref loss } => {
                self.lanes.insert(lane, Lane::new(generation, loss.clone()));
                None
            }
            LaneChange::Cut { lane, generation, length } => {
                self.lanes.get_mut(&lane)?.cut(generation, length);
                beyond(lane, length.unwrap_or(0))
            }
            LaneChange::Dropped { lane } => {
                self.lanes.remove(&lane);
                self.mappings.end_lane(lane);
                beyond(lane, 0)
            }
            LaneChange::PassthroughBegun { lane, number, stores } => {
                self.lanes.get_mut(&lane)?.begin_passthrough(number, stores);
                None
            }
            LaneChange::PassthroughsOver { lane, number } => {
                self.lanes.get_mut(&lane)?.end_passthroughs(number);
                None
            }
            // Others are notified that its bytes have changed when the write ends, however it ends.
            LaneChange::Written { lane, range, id } => {
                if let Some(loss) = self.lanes.get_mut(&lane).and_then(|lane| lane.loss.as_mut()) {
                    loss.recover(range);
                }
                self.writes.insert(id, None);
                None
            }
            LaneChange::RunsWritten { lane, ref found, id } => {
                if let Some(loss) = self.lanes.get_mut(&lane).and_then(|lane| lane.loss.as_mut()) {
                    found.iter().for_each(|run| _ = loss.recover(*run));
                }
                self.writes.insert(id, None);
                None
            }
            LaneChange::CellChanged { cell, id } => {
                self.writes.insert(id, Some(cell.before));
                let range = ByteRange { start: cell.offset, end: cell.offset + 8 };
                Some(LaneEffect::Changed { lane: cell.lane, range })
            }
            LaneChange::CellStored { .. } => None,
            LaneChange::MappingBegun { lane, mapping } => {
                self.mappings.begin(lane, mapping);
                None
            }
            LaneChange::MappingOver { lane, mapping } => {
                self.mappings.end(lane, mapping);
                None
            }
        }
    }
}

fn check_target(target: &LaneTarget, answer: &InodeAnswer, slots: u32) -> Result<()> {
    let LaneId { inode, lane } = target.lane;
    let text = if answer.place != BytesPlace::Lanes {
        format!("the bytes of file {inode} live with its inode; promote it first")
    } else if lane >= answer.layout.width {
        format!("file {inode} has {} lanes, there is no lane {lane}", answer.layout.width)
    } else if lane_slot(&answer.layout, lane, slots) != target.slot {
        format!("lane {lane} of file {inode} does not lie in {}", target.slot)
    } else if target.generation > answer.generation {
        format!("file {inode} has {}; {} is yet to come", answer.generation, target.generation)
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

/// The error for a request for lost bytes.
#[must_use]
pub fn lost(lane: LaneId, me: ServerId) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!(
            "these bytes of inode {} were lost with the server that held them ({me} has their slot now); \
             write whole chunks anew, or truncate the file",
            lane.inode
        ),
    )
}

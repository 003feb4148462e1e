//! The servers' side: what `crates/server` does by the tables of lanes.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, Epoch, Generation, LaneId, Sequence, ServerId, SessionId, Slot};
use ramlace_cluster::{has_lost, is_hole_or_lost, route};
use ramlace_lanes::{CutPlan, LaneChange, LaneTable, Residency, Standing, StoreStep, WriteId};
use ramlace_layout::lane_slot;
use ramlace_namespace::{Delivery, Op, Origin};
use ramlace_slot::{SlotChange, SlotValue};
use ramlace_wire::ClusterMap;
use ramlace_wire::chunk::LaneTarget;

use super::{CHUNK_BYTES, LossBug, Run, SESSION, SLOTS};

/// What the two halves of a chunk are.
pub(super) type Halves = [u32; 2];

/// What came of a write.
pub(super) enum Written {
    Done,
    /// The server is not there.
    Away,
    Lost,
}

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Is(Halves),
    Away,
    Lost,
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) is_up: bool,
    /// As its process knows it.
    pub(super) map: Option<ClusterMap>,
    slots: BTreeMap<Slot, SlotValue>,
    /// What a process leaves behind.
    kept: Vec<(Slot, Vec<u8>)>,
    pub(super) has_store: bool,
    store: BTreeMap<LaneId, BTreeMap<u64, Halves>>,
}

impl Server {
    pub(super) fn dies(&mut self) {
        self.is_up = false;
        let bytes = |value: &SlotValue| postcard::to_stdvec(value).expect("every slot can be written");
        self.kept = self.slots.iter().map(|(slot, value)| (*slot, bytes(value))).collect();
        self.slots.clear();
    }

    /// A process begins; whether it has the store of the last.
    pub(super) fn begins(&mut self) -> Result<bool, String> {
        for (slot, bytes) in std::mem::take(&mut self.kept) {
            let value = postcard::from_bytes(&bytes).map_err(|error| format!("{slot}: {error}"))?;
            self.slots.insert(slot, value);
        }
        Ok(std::mem::replace(&mut self.has_store, true))
    }

    fn lanes(&mut self, slot: Slot) -> &mut SlotValue {
        self.slots.entry(slot).or_insert_with(|| SlotValue::new(slot))
    }

    fn changes(&mut self, slot: Slot, change: LaneChange) {
        let change = SlotChange::Lane(change);
        let frees = change.frees();
        let effects = self.lanes(slot).apply(&change);
        for step in [frees, effects.store].into_iter().flatten() {
            self.performs(step);
        }
    }

    fn performs(&mut self, step: StoreStep) {
        match step {
            StoreStep::Cut { lane, length } => {
                if let Some(chunks) = self.store.get_mut(&lane) {
                    chunks.retain(|chunk, _| *chunk * CHUNK_BYTES < length);
                }
            }
            StoreStep::Remove { lane } => drop(self.store.remove(&lane)),
            StoreStep::Cell(_) => {}
        }
    }
}

impl Run {
    /// The lane of a chunk, which of its own that is, and the server that has it, if it is there.
    fn place(&self, which: usize, chunk: u64) -> Result<(LaneTarget, u64, Option<ServerId>), String> {
        let file = &self.files[which];
        let lane = LaneId { inode: file.inode, lane: file.lane_of(chunk) };
        let slot = lane_slot(&file.layout, lane.lane, SLOTS);
        let (generation, created) = (file.generation, file.layout.created);
        let target = LaneTarget { lane, slot, generation, created, permit: None };
        let server = route(self.map(), slot).map_err(|error| error.to_string())?.server;
        let is_up = self.servers[usize::from(server.0)].is_up;
        Ok((target, chunk / u64::from(file.layout.width), is_up.then_some(server)))
    }

    /// As `Server::admit_lane` has it: the lane knows the requester's generation afterwards. False for a read of one that has not begun.
    fn admits(&mut self, server: ServerId, target: &LaneTarget, reads: bool) -> Result<bool, String> {
        let me = usize::from(server.0);
        let lanes = self.servers[me].lanes(target.slot).lanes();
        let standing = lanes.standing(target.lane, target.generation).map_err(|error| error.to_string())?;
        match standing {
            Standing::Current => return Ok(true),
            Standing::Unknown if reads => return Ok(false),
            Standing::Unknown | Standing::Behind => {}
        }
        self.brings_up(me, target)?;
        Ok(true)
    }

    fn brings_up(&mut self, me: usize, target: &LaneTarget) -> Result<(), String> {
        let lanes = self.servers[me].lanes(target.slot).lanes();
        let Some(since) = lanes.missed_since(target.lane, target.generation) else { return Ok(()) };
        if since == Generation(0) {
            let op = Op::BeginLane { lane: target.lane, by: SessionId::NONE, epoch: Epoch(1) };
            self.apply(Origin::Server, op);
        }
        let answer = self.ask_home(target.lane.inode, since)?;
        let map = self.servers[me].map.as_ref().ok_or("a server serves without a map")?;
        let absent = is_hole_or_lost(map, target.slot, answer.layout.created);
        let lanes = self.servers[me].slots[&target.slot].lanes();
        let mut change = lanes.bring_up(target, &answer, SLOTS, absent).map_err(|error| error.to_string())?;
        if let LaneChange::Begun { loss, .. } = &mut change
            && self.bug == LossBug::BeginsWithoutItsLoss
        {
            *loss = None;
        }
        self.servers[me].changes(target.slot, change);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        which: usize,
        chunk: u64,
        half: Option<usize>,
        value: u32,
    ) -> Result<Written, String> {
        let (target, own, server) = self.place(which, chunk)?;
        let Some(server) = server else { return Ok(Written::Away) };
        let me = usize::from(server.0);
        self.admits(server, &target, false)?;
        let range = match half {
            None => ByteRange { start: own * CHUNK_BYTES, end: (own + 1) * CHUNK_BYTES },
            Some(half) => {
                let start = own * CHUNK_BYTES + half as u64 * CHUNK_BYTES / 2;
                ByteRange { start, end: start + CHUNK_BYTES / 2 }
            }
        };
        let refused =
            self.servers[me].lanes(target.slot).lanes().check_write(target.lane, range, server).is_err();
        if refused && self.bug != LossBug::WritesHalfOfWhatIsLost {
            return Ok(Written::Lost);
        }
        let of_lane = self.servers[me].store.entry(target.lane).or_default();
        let halves = of_lane.entry(own).or_default();
        match half {
            None => *halves = [value, value],
            Some(half) => halves[half] = value,
        }
        self.sequence += 1;
        let id = WriteId { session: SESSION, sequence: Sequence(self.sequence), outstanding: 0 };
        let lanes = self.servers[me].lanes(target.slot).lanes();
        let change = lanes.finish(&target, range, id).map_err(|error| error.to_string())?;
        self.servers[me].changes(target.slot, change);
        Ok(Written::Done)
    }

    pub(super) fn read(&mut self, which: usize, chunk: u64) -> Result<Read, String> {
        let (target, own, server) = self.place(which, chunk)?;
        let Some(server) = server else { return Ok(Read::Away) };
        let me = usize::from(server.0);
        self.admits(server, &target, true)?;
        let of_server = &mut self.servers[me];
        let map = of_server.map.as_ref().ok_or("a server serves without a map")?;
        let absent = is_hole_or_lost(map, target.slot, target.created);
        let range = ByteRange { start: own * CHUNK_BYTES, end: (own + 1) * CHUNK_BYTES };
        let here = of_server.store.get(&target.lane).and_then(|chunks| chunks.get(&own)).copied();
        let stored = of_server.store.contains_key(&target.lane);
        let lanes = of_server.lanes(target.slot).lanes();
        Ok(match lanes.residency(target.lane, range, absent, stored) {
            Residency::Lost if self.bug != LossBug::ReadsWhatIsLost => Read::Lost,
            Residency::Here | Residency::Lost => Read::Is(here.unwrap_or_default()),
            Residency::Hole => Read::Is([0, 0]),
        })
    }

    /// What the home says to a lane; false where its server is not there.
    pub(super) fn receives(&mut self, message: &Delivery) -> Result<bool, String> {
        let slot = message.slot();
        let server = route(self.map(), slot).map_err(|error| error.to_string())?.server;
        let me = usize::from(server.0);
        if !self.servers[me].is_up {
            return Ok(false);
        }
        match message {
            Delivery::CutLane(cut) => {
                let plan = self.servers[me].lanes(slot).lanes().cut(cut.lane, cut.generation, cut.length);
                match plan {
                    CutPlan::Nothing => {}
                    CutPlan::BeginIfLost => self.begins_if_lost(me, cut.lane, slot, cut.generation)?,
                    CutPlan::Cut(change) if self.bug == LossBug::KeepsBytesBehindTheEnd => {
                        self.servers[me].lanes(slot).apply(&SlotChange::Lane(change));
                    }
                    CutPlan::Cut(change) => self.servers[me].changes(slot, change),
                    CutPlan::AskHome(since) => {
                        let answer = self.ask_home(cut.lane.inode, since)?;
                        self.servers[me].changes(slot, LaneTable::cut_as_answered(cut.lane, &answer));
                    }
                }
            }
            Delivery::TrimLane(trim) => {
                let change =
                    self.servers[me].lanes(slot).lanes().end_passthroughs(trim.lane, trim.passthroughs_over);
                change.into_iter().for_each(|change| self.servers[me].changes(slot, change));
            }
            other => return Err(format!("{other:?} is never pending here")),
        }
        Ok(true)
    }

    fn begins_if_lost(
        &mut self,
        me: usize,
        lane: LaneId,
        slot: Slot,
        generation: Generation,
    ) -> Result<(), String> {
        let map = self.servers[me].map.as_ref().ok_or("a server serves without a map")?;
        if !has_lost(map, slot) {
            return Ok(());
        }
        let answer = self.ask_home(lane.inode, Generation::default())?;
        let created = answer.layout.created;
        if is_hole_or_lost(map, slot, created) == ramlace_cluster::Absent::Hole {
            return Ok(());
        }
        self.brings_up(me, &LaneTarget { lane, slot, generation, created, permit: None })
    }
}

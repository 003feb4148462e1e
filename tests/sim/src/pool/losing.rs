//! A store that goes with its server: the last server has lanes and no names, and comes back at times with nothing.

use ramlace_base::{ByteRange, Epoch, LaneId, ServerId, Slot};
use ramlace_cluster::{Absent, has_lost, is_hole_or_lost};
use ramlace_lanes::Residency;
use ramlace_slot::{SlotBirth, SlotChange};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::peer::QueryInode;
use ramlace_wire::{Chain, ClusterMap, PoolId};

use super::client::{Doing, File, Loss};
use super::{Bug, SLOTS, WHO, World};

/// The map of a pool in which nothing was lost.
pub(super) fn first_map(servers: usize) -> ClusterMap {
    let chain = |slot: u16| {
        let servers = vec![ServerId((usize::from(slot) % servers) as u16)];
        Chain { servers, complete_since: Epoch(1) }
    };
    ClusterMap {
        pool: PoolId::default(),
        epoch: Epoch(1),
        hash_seed: 42,
        coordinator: ServerId(0),
        servers: Vec::new(),
        chains: (0..SLOTS).map(chain).collect(),
    }
}

impl World {
    /// The server whose store may be lost.
    pub(super) fn lender(&self) -> usize {
        self.servers.len() - 1
    }

    /// A machine ends with its store: its slots are complete since now.
    pub(super) fn loses_store(&mut self, server: usize) {
        self.tally.stores_lost += 1;
        self.servers[server].lose_store();
        if self.bug != Bug::SaysThatItKeptItsStore {
            let epoch = self.map.epoch.next();
            self.map.epoch = epoch;
            let me = ServerId(server as u16);
            let chains = self.map.chains.iter_mut().filter(|chain| chain.servers[0] == me);
            chains.for_each(|chain| chain.complete_since = epoch);
        }
        let all = self.servers.len();
        let is_there = |slot: Slot| usize::from(slot.0) % all == server;
        for client in &mut self.clients {
            client.loses(is_there);
        }
    }

    /// Slots that have begun to exist, or do so again.
    pub(super) fn bear(&mut self, slot: Slot) -> Result<(), String> {
        let (began, owner) = (self.map.epoch, WHO.owner());
        let birth = SlotBirth { slots: SLOTS.into(), began, hash_seed: 42, owner, now: self.stamp() };
        self.commit(slot, &SlotChange::Born(birth)).map(drop)
    }

    pub(super) fn absent(&self, slot: Slot, created: Epoch) -> Absent {
        is_hole_or_lost(&self.map, slot, created)
    }

    /// A lane is cut that is not there: it begins with its loss, if it has one.
    pub(super) fn begins_if_lost(&mut self, lane: LaneId, slot: Slot) -> Result<(), String> {
        if !has_lost(&self.map, slot) {
            return Ok(());
        }
        let request = QueryInode { inode: lane.inode, since: Default::default() };
        let Ok(answer) = self.ask_home(request) else { return Ok(()) };
        let created = answer.layout.created;
        if self.absent(slot, created) == Absent::Lost {
            let target = LaneTarget { lane, slot, generation: answer.generation, created, permit: None };
            self.brings_up(&target, &answer).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Bytes of a file in its lane, as a reader gets them; `None`: an error, since they are lost.
    pub(super) fn read_lane(&self, file: &File, target: &LaneTarget) -> Option<Vec<u8>> {
        let server = &self.servers[self.home(target.slot)];
        let stored = server.store.get(&target.lane);
        let range = ByteRange { start: 0, end: file.bytes.len() as u64 };
        let absent = self.absent(target.slot, target.created);
        let residency = server.value(target.slot).map_or(Residency::Hole, |value| {
            value.lanes().residency(target.lane, range, absent, stored.is_some())
        });
        if residency == Residency::Lost && self.bug != Bug::ReadsWhatIsLost {
            return None;
        }
        let mut bytes = stored.cloned().unwrap_or_default();
        bytes.resize(file.bytes.len(), 0);
        Some(bytes)
    }
}

impl super::client::Client {
    /// What lanes in these slots had is lost; of what is just going there nobody knows.
    fn loses(&mut self, is_there: impl Fn(Slot) -> bool) {
        for file in &mut self.files {
            if file.lane.is_some_and(|target| is_there(target.slot)) && !file.bytes.is_empty() {
                file.loss = Loss::Is;
            }
        }
        let doubted = self.doubts.iter().map(|doubt| &doubt.doing);
        let going = self.doing.iter().chain(doubted).filter_map(|doing| match doing {
            Doing::Promote { file } => Some(*file),
            _ => None,
        });
        for file in going.collect::<Vec<_>>() {
            self.files[file].loss = Loss::Maybe;
        }
    }
}

//! Spreads a directory that has grown over several slots: chooses them, and begins the change.
//!
//! A pool of one server spreads nothing: its one thread would serve no entry sooner, and a rename within the
//! directory would take messages between slots.

use std::collections::HashMap;
use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, Slot, limits};
use ramlace_namespace::{Command, Op, Origin};
use ramlace_wire::namespace::{GetAttributes, GetPartitions, PartitionsInfo};
use ramlace_wire::{Attributes, ClusterMap, Credentials};

use crate::clock;
use crate::gate::Call;
use crate::server::Server;

/// Slots that are tried for one directory.
const DRAWS_MAX: usize = 4096;

impl Server {
    /// A directory of this server has many entries.
    pub fn spread(self: &Rc<Self>, directory: InodeId) {
        let Ok(map) = self.membership.map() else { return };
        let live = self.live_servers(&map);
        // The holder of the slot's delegation may have promised entries of the whole directory.
        if self.delegation(directory.slot()).is_some() {
            return;
        }
        if live.len() < 2 || !self.spreading.may_try(directory, clock::instant()) {
            return;
        }
        let home = directory.slot();
        let partitions =
            choose_partitions(&map, self.me, home, &live, || self.membership.next_home(map.slots()));
        let op = Op::Spread { directory, partitions };
        let command = Command { now: clock::now(), origin: Origin::Server, op };
        match self.submit(home, command) {
            // It stays whole; a later entry tries again.
            Err(error) if error.kind() != ErrorKind::NoSpace => crate::durable::fatal(&error),
            _ => {}
        }
    }

    /// The sum over the partitions that are here; the first of the slots is here.
    pub fn partitions(
        self: &Rc<Self>,
        call: &Call,
        who: &Credentials,
        map: &ClusterMap,
        request: &GetPartitions,
    ) -> Result<PartitionsInfo> {
        let inode = request.inode;
        let mut slots = request.slots.clone();
        slots.retain(|slot| map.primary(*slot) == Some(self.me));
        let mut whole: Option<Attributes> = None;
        for slot in &slots {
            call.saw(*slot);
            let part = self.query(who, *slot, &GetAttributes { inode })?;
            match &mut whole {
                Some(whole) => whole.add_partition(&part.attributes),
                None => whole = Some(part.attributes),
            }
        }
        let attributes =
            whole.ok_or_else(|| Error::new(ErrorKind::Fatal, "no slot was asked; this is a bug"))?;
        Ok(PartitionsInfo { attributes, slots })
    }

    fn live_servers(&self, map: &ClusterMap) -> Vec<ServerId> {
        let lives = |server: ServerId| server == self.me || !self.is_unreachable(server);
        map.servers
            .iter()
            .filter(|entry| !entry.forgotten && lives(entry.server))
            .map(|entry| entry.server)
            .collect()
    }
}

/// A slot for each partition: as far as possible the same number on each live server. The home keeps one
/// partition.
fn choose_partitions(
    map: &ClusterMap,
    me: ServerId,
    home: Slot,
    live: &[ServerId],
    mut draw: impl FnMut() -> Slot,
) -> Vec<Slot> {
    let each_max = limits::DIRECTORY_PARTITIONS.div_ceil(live.len());
    let (mut partitions, mut taken) = (vec![home], HashMap::from([(me, 1)]));
    for _ in 0..DRAWS_MAX {
        if partitions.len() == limits::DIRECTORY_PARTITIONS {
            break;
        }
        let slot = draw();
        let Some(primary) = map.primary(slot).filter(|primary| live.contains(primary)) else { continue };
        let count = taken.entry(primary).or_insert(0);
        if *count < each_max && !partitions.contains(&slot) {
            *count += 1;
            partitions.push(slot);
        }
    }
    // A small pool has fewer slots: some take several partitions.
    let found = partitions.len();
    partitions
        .extend((found..limits::DIRECTORY_PARTITIONS).map(|at| partitions[at % found]).collect::<Vec<_>>());
    partitions
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ramlace_base::Epoch;
    use ramlace_wire::{Chain, HostId, PoolId, ServerEntry};

    use super::*;

    fn map(servers: u16, slots: u16) -> ClusterMap {
        let entry = |server| ServerEntry {
            server: ServerId(server),
            host: HostId([0; 16]),
            tcp: String::new(),
            unix: String::new(),
            store_bytes: 1 << 20,
            forgotten: false,
        };
        let chain = |slot| Chain { servers: vec![ServerId(slot % servers)], complete_since: Epoch(1) };
        ClusterMap {
            pool: PoolId([0; 16]),
            epoch: Epoch(1),
            hash_seed: 1,
            coordinator: ServerId(0),
            servers: (0..servers).map(entry).collect(),
            chains: (0..slots).map(chain).collect(),
        }
    }

    fn chosen(servers: u16, slots: u16, live: &[u16]) -> Vec<Slot> {
        let (map, mut next) = (map(servers, slots), 0_u16);
        let live: Vec<ServerId> = live.iter().copied().map(ServerId).collect();
        choose_partitions(&map, ServerId(0), Slot(0), &live, || {
            next = (next + 7) % slots;
            Slot(next)
        })
    }

    #[test]
    fn partitions_lie_on_all_live_servers_evenly() {
        for (servers, live) in [(3, vec![0, 1, 2]), (3, vec![0, 2]), (40, (0..40).collect())] {
            let slots = chosen(servers, 4096, &live);
            assert_eq!(slots.len(), limits::DIRECTORY_PARTITIONS);
            assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len(), "{slots:?}");
            assert!(slots.contains(&Slot(0)), "the home keeps one");
            let on = |server: u16| slots.iter().filter(|slot| slot.0 % servers == server).count();
            let even = limits::DIRECTORY_PARTITIONS.div_ceil(live.len());
            assert!((0..servers).all(|server| on(server) <= if live.contains(&server) { even } else { 0 }));
        }
    }

    #[test]
    fn a_small_pool_gives_a_slot_several_partitions() {
        let slots = chosen(2, 4, &[0, 1]);
        assert_eq!(slots.len(), limits::DIRECTORY_PARTITIONS);
        assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 4);
    }
}

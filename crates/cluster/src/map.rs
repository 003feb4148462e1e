//! What a cluster map must be, and what is read from it.

use ramlace_base::{Epoch, Error, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_wire::{Chain, ClusterMap, ServerEntry};

/// Checks a map that came from outside. Fails with `Corrupt` and the first thing that is wrong.
///
/// Afterwards every slot has a primary that is in the map and not forgotten.
pub fn validate(map: &ClusterMap) -> Result<()> {
    if map.epoch == Epoch(0) {
        return refuse("it has epoch 0, which means no map");
    }
    let slots = map.chains.len();
    if slots == 0 || slots > limits::SLOTS_MAX as usize {
        return refuse(&format!("it has {slots} slots; a pool has 1 to {}", limits::SLOTS_MAX));
    }
    let servers = map.servers.len();
    if servers == 0 || servers > limits::SERVERS_MAX as usize {
        return refuse(&format!("it has {servers} servers; a pool has 1 to {}", limits::SERVERS_MAX));
    }
    if let Some((index, entry)) =
        map.servers.iter().enumerate().find(|(index, entry)| usize::from(entry.server.0) != *index)
    {
        return refuse(&format!("{} stands in place {index}", entry.server));
    }
    check_member(map, map.coordinator).or_else(|why| refuse(&format!("its coordinator {why}")))?;
    map.chains.iter().enumerate().try_for_each(|(slot, chain)| {
        check_chain(map, chain).or_else(|why| refuse(&format!("the chain of slot {slot} {why}")))
    })
}

fn check_chain(map: &ClusterMap, chain: &Chain) -> std::result::Result<(), String> {
    if chain.servers.is_empty() || chain.servers.len() > limits::CHAIN_SERVERS_MAX {
        let most = limits::CHAIN_SERVERS_MAX;
        return Err(format!("has {} servers; a chain has 1 to {most}", chain.servers.len()));
    }
    if chain.complete_since > map.epoch {
        return Err(format!("is complete since {}, the map has {}", chain.complete_since, map.epoch));
    }
    for (place, server) in chain.servers.iter().enumerate() {
        check_member(map, *server)?;
        if chain.servers[..place].contains(server) {
            return Err(format!("names {server} twice"));
        }
    }
    Ok(())
}

fn check_member(map: &ClusterMap, server: ServerId) -> std::result::Result<(), String> {
    match map.server(server) {
        None => Err(format!("is {server}, which is not in the map")),
        Some(entry) if entry.forgotten => Err(format!("is {server}, which is forgotten")),
        Some(_) => Ok(()),
    }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, format!("the cluster map makes no sense: {why}")))
}

/// The server to ask about a slot: its primary.
///
/// Fails with `Invalid` when the pool has fewer slots, with `HostDown` when the slot has no server.
pub fn route(map: &ClusterMap, slot: Slot) -> Result<&ServerEntry> {
    let Some(chain) = map.chain(slot) else {
        let text = format!("the pool has {} slots, there is no {slot}", map.slots());
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    let primary = chain.servers.first().and_then(|server| map.server(*server));
    primary.filter(|entry| !entry.forgotten).ok_or_else(|| {
        let text = format!("{slot} has no server in the map of {}; fetch a newer map", map.epoch);
        Error::new(ErrorKind::HostDown, text)
    })
}

/// The slots whose primary is this server, in order.
pub fn slots_of(map: &ClusterMap, server: ServerId) -> impl Iterator<Item = Slot> + '_ {
    numbered(map).filter(move |(_, chain)| chain.servers.first() == Some(&server)).map(|(slot, _)| slot)
}

/// What it means that a server has no byte of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It was never written: zeros.
    Hole,
    /// It was written before the slot lost its bytes, or may have been: a read fails and says so.
    Lost,
}

/// Whether an absent chunk of a file created at epoch `created` is a hole or a loss.
///
/// The slot is complete for files created at its epoch `complete_since` or later. A slot that the
/// map does not have is complete for nothing.
#[must_use]
pub fn is_hole_or_lost(map: &ClusterMap, slot: Slot, created: Epoch) -> Absent {
    match map.chain(slot) {
        Some(chain) if created >= chain.complete_since => Absent::Hole,
        _ => Absent::Lost,
    }
}

/// Whether a slot may have lost bytes of some file: it is complete since later than the slot that is so for longest.
#[must_use]
pub fn has_lost(map: &ClusterMap, slot: Slot) -> bool {
    let oldest = map.chains.iter().map(|chain| chain.complete_since).min();
    map.chain(slot).map(|chain| chain.complete_since) != oldest
}

/// The slots whose chain differs between the two maps, in order: other servers, or bytes lost.
pub fn slots_changed<'maps>(
    old: &'maps ClusterMap,
    new: &'maps ClusterMap,
) -> impl Iterator<Item = Slot> + 'maps {
    let longer = if old.slots() > new.slots() { old } else { new };
    numbered(longer).map(|(slot, _)| slot).filter(|slot| old.chain(*slot) != new.chain(*slot))
}

/// The chains with their slots; those beyond 16 bits have no number and are no slots.
fn numbered(map: &ClusterMap) -> impl Iterator<Item = (Slot, &Chain)> {
    (0..=u16::MAX).map(Slot).zip(&map.chains)
}

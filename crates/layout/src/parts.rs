//! Which slots a new file's lanes take when its parts are wanted on certain machines.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, Result, ServerId, Slot, limits};
use ramlace_wire::{ClusterMap, HostId, Layout, LayoutHints};

use crate::choose::{Checked, Lanes, SEARCH_STEPS_MAX, Search};

/// Lanes tried for one stripe unit and one number of lanes: a millisecond of a create, in pools of a hundred
/// servers.
const STEPS_MAX: usize = 2 * SEARCH_STEPS_MAX;
/// A larger unit, which leaves some servers without bytes, must bring this part of the file nearer.
const GAIN_MIN: u64 = 16;

/// Bytes of a new file, from where the part before ends, and the machine that they shall lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How many.
    pub bytes: u64,
    /// The machine whose servers are to have them.
    pub host: HostId,
}

/// Chooses the layout of a new file whose parts are wanted on certain machines; `None` where no server of these is live.
///
/// As [`crate::choose()`], but lane by lane: of the stripe units that hold the largest part whole (only the one
/// that the hints name, if they do), and of the walks through the slots, those are taken that bring the most
/// bytes where they are wanted. The bytes of a file after its parts continue on the same lanes. Where one walk
/// brings all there that another does, `key` decides.
///
/// Fails with `Invalid` for more than [`limits::PARTS_MAX`] parts, or parts that end beyond 64 bits.
pub fn choose_for_parts(
    hints: LayoutHints,
    map: &ClusterMap,
    is_live: impl Fn(ServerId) -> bool,
    parts: &[Part],
    key: u64,
) -> Result<Option<Layout>> {
    let checked = Checked::new(hints)?;
    let total = total_bytes(parts)?;
    let mut search = Search::new(map, is_live, checked.copies);
    let hosts: Vec<HostId> = map.servers.iter().map(|entry| entry.host).collect();
    let mut best: Option<(u64, u64, Lanes)> = None;
    for unit in units(hints.stripe_unit, parts, total) {
        let chunks = usize::try_from(total.div_ceil(unit)).unwrap_or(usize::MAX);
        let widest = checked.lanes_max().min(search.live_servers).min(chunks);
        // As many lanes as there may be; where no walk meets so many live servers, half as many, which some walk does.
        for width in
            std::iter::successors(Some(widest), |width| Some(width / 2)).take_while(|width| *width > 0)
        {
            let wanted = wanted_by_lanes(parts, unit, width);
            let Some((near, lanes)) = nearest(&mut search, &hosts, &wanted, key) else { continue };
            if near > best.map_or(0, |(most, ..)| most + total / GAIN_MIN) {
                best = Some((near, unit, lanes));
            }
            break;
        }
        if best.is_some_and(|(near, ..)| near == total) {
            break;
        }
    }
    Ok(best.map(|(_, unit, lanes)| checked.layout(unit, lanes, map.epoch)))
}

fn total_bytes(parts: &[Part]) -> Result<u64> {
    let refuse = |text: String| Error::new(ErrorKind::Invalid, text);
    if parts.len() > limits::PARTS_MAX {
        let text = format!("{} parts of a new file; there may be {}", parts.len(), limits::PARTS_MAX);
        return Err(refuse(text));
    }
    let add = |sum: u64, part: &Part| sum.checked_add(part.bytes);
    let total = parts.iter().try_fold(0, add);
    total.ok_or_else(|| refuse("the parts of a new file end beyond the last offset".to_owned()))
}

/// The stripe units to try, the best one first.
fn units(asked: Option<u64>, parts: &[Part], total: u64) -> impl Iterator<Item = u64> {
    let largest = parts.iter().map(|part| part.bytes).max().unwrap_or(0);
    let whole = largest.checked_next_power_of_two().unwrap_or(u64::MAX);
    let first = whole.clamp(limits::STRIPE_UNIT_BYTES_MIN, limits::STRIPE_UNIT_BYTES_MAX);
    let all = std::iter::successors(Some(asked.unwrap_or(first)), move |unit| {
        let next = 2 * unit;
        (asked.is_none() && next <= limits::STRIPE_UNIT_BYTES_MAX && *unit < total).then_some(next)
    });
    all.filter(move |_| total > 0)
}

/// Of each lane, the bytes that are wanted on each machine. Chunks beyond the first [`limits::PARTS_MAX`] count nothing.
fn wanted_by_lanes(parts: &[Part], unit: u64, width: usize) -> Vec<BTreeMap<HostId, u64>> {
    let mut wanted = vec![BTreeMap::new(); width];
    let (mut at, mut steps) = (0, 0);
    for part in parts {
        let end = at + part.bytes;
        while at < end && steps < 2 * limits::PARTS_MAX {
            let chunk = at / unit;
            let bytes = (end - at).min(unit - at % unit);
            *wanted[(chunk % width as u64) as usize].entry(part.host).or_insert(0) += bytes;
            at += bytes;
            steps += 1;
        }
        at = end;
    }
    wanted
}

/// The walk over distinct live servers that brings the most bytes near, and how many; `None` where there is no such walk.
fn nearest(
    search: &mut Search<'_>,
    hosts: &[HostId],
    wanted: &[BTreeMap<HostId, u64>],
    key: u64,
) -> Option<(u64, Lanes)> {
    let most = |lane: &BTreeMap<HostId, u64>| lane.values().max().copied().unwrap_or(0);
    // Of the lanes from this one on, what they bring at the most.
    let mut ahead: Vec<u64> = wanted
        .iter()
        .rev()
        .scan(0, |sum, lane| {
            *sum += most(lane);
            Some(*sum)
        })
        .collect();
    ahead.reverse();
    let mut best: Option<(u64, Lanes)> = None;
    let steps_max = search.steps + STEPS_MAX;
    for stride in 1..=search.strides_max() {
        for base in bases(search.map, key) {
            let least = best.map_or(0, |(near, _)| near + 1);
            let bytes = |lane: usize, server: ServerId| {
                hosts.get(usize::from(server.0)).and_then(|host| wanted[lane].get(host)).copied().unwrap_or(0)
            };
            let near = search.weigh((base, stride), least, &ahead, bytes);
            if let Some(near) = near {
                best = Some((near, Lanes { base, stride, width: wanted.len() as u16 }));
            }
            if best.is_some_and(|(near, _)| Some(&near) == ahead.first()) || search.steps >= steps_max {
                return best;
            }
        }
    }
    best
}

/// A slot of each server, twice: among those that follow each other by servers' numbers, and by machines.
fn bases(map: &ClusterMap, key: u64) -> impl Iterator<Item = Slot> + use<> {
    let servers = map.servers.len().max(1) as u64;
    let by_machines = ClusterMap::slots_by_machines(map.slots(), servers as u32);
    let starts = [0, u64::from(by_machines.start)];
    let turned = (0..servers).map(move |step| (key % servers + step) % servers);
    turned.flat_map(move |step| starts.map(|start| Slot((start + step) as u16)))
}

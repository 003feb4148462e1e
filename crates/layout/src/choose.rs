//! Which slots a new file's lanes take.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Result, ServerId, Slot, limits};
use ramlace_wire::{ClusterMap, Layout, LayoutHints};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::arithmetic::slot_at;
use crate::validate::{check_copies, check_unit, check_width};

/// Lanes tried before the widest layout found so far is taken: some 0.1 ms of a create.
///
/// A fresh pool needs `width` of them. After servers were forgotten, the slots of a server are no
/// longer one in `n`, and the chance that a pair fits falls with every one of them.
pub const SEARCH_STEPS_MAX: usize = 65_536;

/// Lanes tried from one base: some bases fit with no stride, so that others get their turn.
const BASE_STEPS_MAX: usize = SEARCH_STEPS_MAX / 8;

/// Bases drawn from the key before the slots are walked in order.
const BASES_DRAWN: u64 = 16;
/// Separates the names of barriers from those of files.
const BARRIER_SEED: u64 = 0x6261_7272_6965_7273;

/// The key from which [`choose`] draws for the file `name` in the directory `parent`.
#[must_use]
pub fn name_key(parent: InodeId, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, parent.0)
}

/// The slot that keeps the barrier with this name, in a pool of `slots` slots (more than 0).
#[must_use]
pub fn barrier_slot(name: &[u8], slots: u32) -> Slot {
    Slot((xxh3_64_with_seed(name, BARRIER_SEED) % u64::from(slots)) as u16)
}

/// Hints that are possible.
pub(crate) struct Checked {
    hints: LayoutHints,
    pub(crate) copies: u8,
}

impl Checked {
    pub(crate) fn new(hints: LayoutHints) -> Result<Checked> {
        if let Some(unit) = hints.stripe_unit {
            check_unit(unit)?;
        }
        let copies = hints.copies.unwrap_or(1);
        check_copies(copies)?;
        if let Some(width) = hints.width {
            check_width(width)?;
        }
        Ok(Checked { hints, copies })
    }

    pub(crate) fn lanes_max(&self) -> usize {
        self.hints.width.unwrap_or(limits::WIDTH_LANES_MAX).into()
    }

    pub(crate) fn layout(&self, stripe_unit: u64, lanes: Lanes, created: Epoch) -> Layout {
        Layout {
            stripe_unit,
            width: lanes.width,
            base_slot: lanes.base,
            stride: lanes.stride,
            copies: self.copies,
            created,
        }
    }
}

/// Chooses the layout of a new file.
///
/// What the hints leave open is as usual: a stripe unit of 2 MiB, one lane on every live server
/// (in the map, not forgotten, and `is_live`), one copy. The lanes lie on distinct live servers;
/// a width that no (base, stride) gives is narrowed, also one that a hint asks for. `key` decides
/// where lane 0 is: evenly spread keys fill the servers evenly.
///
/// Fails with `Invalid` when a hint is out of range, with `Unsupported` when the pool does not keep
/// as many copies, with `HostDown` when no server is live.
pub fn choose(
    hints: LayoutHints,
    map: &ClusterMap,
    is_live: impl Fn(ServerId) -> bool,
    key: u64,
) -> Result<Layout> {
    choose_from(None, hints, map, is_live, key)
}

/// The server on which lane 0 of a new file is to be: that of its home, in a directory with few entries; `None`:
/// wherever its key leads, as for files whose width or stripe unit somebody has chosen.
///
/// Most files are shorter than a stripe unit, and most directories small. Such a file is with one server then:
/// its growth goes along with its bytes, and it ends where its name ends. A directory of many files, or files of
/// a width of one lane, would fill one server before the others.
#[must_use]
pub fn first_server(hints: LayoutHints, map: &ClusterMap, home: Slot, entries: u64) -> Option<ServerId> {
    let is_usual = hints.width.is_none() && hints.stripe_unit.is_none();
    if is_usual && entries < limits::FILES_BEGIN_AT_HOME_MAX { map.primary(home) } else { None }
}

/// The same as [`choose`] with lane 0 on a certain server, with fewer lanes where no more go with that; as usual where it is not live.
pub fn choose_from(
    first: Option<ServerId>,
    hints: LayoutHints,
    map: &ClusterMap,
    is_live: impl Fn(ServerId) -> bool,
    key: u64,
) -> Result<Layout> {
    let checked = Checked::new(hints)?;
    let mut search = Search::new(map, is_live, checked.copies);
    if search.live_servers == 0 {
        let text = "no server of the pool can be reached; `ramlace status` shows them";
        return Err(Error::new(ErrorKind::HostDown, text));
    }
    let begins = |slot| first.is_none() || map.primary(slot) == first;
    let lanes = search
        .run(checked.lanes_max(), key, begins)
        .or_else(|| search.run(checked.lanes_max(), key, |_| true));
    let Some(lanes) = lanes else {
        let copies = checked.copies;
        let text = format!("no server that can be reached keeps {copies} copies of what it holds");
        return Err(Error::new(ErrorKind::Unsupported, text));
    };
    let unit = hints.stripe_unit.unwrap_or(limits::STRIPE_UNIT_BYTES_DEFAULT);
    Ok(checked.layout(unit, lanes, map.epoch))
}

/// Lanes that lie on distinct live servers.
#[derive(Clone, Copy)]
pub(crate) struct Lanes {
    pub(crate) base: Slot,
    pub(crate) stride: u16,
    pub(crate) width: u16,
}

pub(crate) struct Search<'map> {
    pub(crate) map: &'map ClusterMap,
    live: Vec<bool>,
    pub(crate) live_servers: usize,
    copies: usize,
    /// The last walk that met the server.
    met_by_walk: Vec<usize>,
    walks: usize,
    pub(crate) steps: usize,
}

impl<'map> Search<'map> {
    pub(crate) fn new(map: &'map ClusterMap, is_live: impl Fn(ServerId) -> bool, copies: u8) -> Search<'map> {
        let live: Vec<bool> =
            map.servers.iter().map(|entry| !entry.forgotten && is_live(entry.server)).collect();
        Search {
            map,
            live_servers: live.iter().filter(|live| **live).count(),
            copies: copies.into(),
            met_by_walk: vec![0; live.len()],
            live,
            walks: 0,
            steps: 0,
        }
    }

    /// The first lanes as many as asked for and possible, else the most that were found, of those that begin in a
    /// certain slot.
    fn run(&mut self, asked: usize, key: u64, begins: impl Fn(Slot) -> bool) -> Option<Lanes> {
        let wanted = asked.min(self.live_servers).min(limits::WIDTH_LANES_MAX.into()) as u16;
        let modulus = u64::from(self.map.slots().max(1));
        let drawn = (0..BASES_DRAWN).map(|round| draw(key, round) % modulus);
        let in_order = (0..modulus).map(|step| (key % modulus + step) % modulus);
        let mut best: Option<Lanes> = None;
        for base in drawn.chain(in_order).map(|base| Slot(base as u16)).filter(|base| begins(*base)) {
            let found = self.widest_from(base, wanted);
            if found.width > best.map_or(0, |best| best.width) {
                best = Some(found);
            }
            if found.width == wanted || (best.is_some() && self.steps >= SEARCH_STEPS_MAX) {
                break;
            }
        }
        best
    }

    /// The first stride that gives `wanted` lanes, else the best of those tried; no lanes when the base itself
    /// cannot be used.
    fn widest_from(&mut self, base: Slot, wanted: u16) -> Lanes {
        let steps_max = self.steps + BASE_STEPS_MAX;
        let mut best = Lanes { base, stride: 1, width: 0 };
        for stride in 1..self.map.slots().max(2) {
            let lanes = self.walk(base, stride as u16, wanted);
            if lanes.width > best.width {
                best = lanes;
            }
            if [0, wanted].contains(&lanes.width) || self.steps >= steps_max {
                break;
            }
        }
        best
    }

    /// How many lanes lie on distinct live servers before one does not.
    fn walk(&mut self, base: Slot, stride: u16, wanted: u16) -> Lanes {
        self.walks += 1;
        let slots = self.map.slots();
        let width = (0..wanted).take_while(|lane| self.meet(slot_at(base, stride, *lane, slots))).count();
        Lanes { base, stride, width: width as u16 }
    }

    /// Strides that lead from server to server in ways of their own, where slots belong to the servers in turns.
    pub(crate) fn strides_max(&self) -> u16 {
        (self.map.servers.len() as u32).min(self.map.slots().saturating_sub(1)).max(1) as u16
    }

    /// What `width` lanes on distinct live servers bring by `worth` of each; `None` where they are no such lanes, or less than
    /// `least`. `ahead` is the most that the lanes from each one on can bring.
    pub(crate) fn weigh(
        &mut self,
        (base, stride): (Slot, u16),
        least: u64,
        ahead: &[u64],
        worth: impl Fn(usize, ServerId) -> u64,
    ) -> Option<u64> {
        self.walks += 1;
        let mut sum = 0;
        for (lane, most) in ahead.iter().enumerate() {
            let slot = slot_at(base, stride, lane as u16, self.map.slots());
            if sum + most < least || !self.meet(slot) {
                return None;
            }
            sum += worth(lane, self.map.primary(slot)?);
        }
        (sum >= least).then_some(sum)
    }

    fn meet(&mut self, slot: Slot) -> bool {
        self.steps += 1;
        let Some(chain) = self.map.chain(slot) else { return false };
        let Some(primary) = chain.servers.first().map(|server| usize::from(server.0)) else { return false };
        let usable = self.live.get(primary) == Some(&true) && chain.servers.len() >= self.copies;
        usable && std::mem::replace(&mut self.met_by_walk[primary], self.walks) != self.walks
    }
}

fn draw(key: u64, round: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&round.to_le_bytes());
    xxh3_64(&bytes)
}

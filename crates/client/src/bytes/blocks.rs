//! Cached blocks of files, and how long each is valid.
//!
//! A block may answer a read when two things hold. The file's size and generation are leased by its home: the
//! home answers a truncation only when that lease is dropped, and does not wait for leases on bytes. And no
//! change of the block's bytes can have been answered since the block was read: before a server answers a
//! change, it waits for the holder of a lease on bytes, until [`limits::DATA_RECALL_MILLIS`] after it has
//! recalled it. So a server's answer is valid for a little less than that, counted from before the request. A
//! process that was stopped, or cut off, therefore trusts nothing that it has cached.
//!
//! What is no longer valid is asked for by one thread at a time. All other threads read as if there were no
//! cache, and so do all threads for a while after a request that brought nothing.
//!
//! Blocks of files that are open in relaxed mode need no lease and are valid until a refresh
//! ([`crate::bytes::relaxed`]). They share the same limit of bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Generation, InodeId, limits};
use ramlace_wire::Layout;
use ramlace_wire::leases::DataRecall;

use crate::bytes::lane_numbers::LaneNumbers;

/// The unit of caching: the smallest stripe unit, so that a block lies in one lane; and as much as a server
/// reads atomically.
pub(crate) const BLOCK_BYTES: u64 = limits::STAGED_BYTES_MAX as u64;
/// How long a server's answer is valid. The rest is a margin for clocks that run at different rates.
const BELIEVED: Duration = Duration::from_millis(limits::DATA_RECALL_MILLIS - 1_000);

/// The cached blocks of all files.
pub(crate) struct Blocks {
    files: HashMap<InodeId, Known>,
    blocks: BTreeMap<Place, Block>,
    /// The blocks in the order in which they were last used.
    order: BTreeMap<u64, Place>,
    bytes: u64,
    bytes_max: u64,
    uses: u64,
    /// How often everything was dropped.
    clears: u64,
}

/// The owner of a block, and the block's number in the file.
type Place = (Owner, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// All opens of a file in this process, by leases.
    Leased(InodeId),
    /// One open file in relaxed mode, by its number.
    Relaxed(u64),
}

/// What is known of an open file.
struct Known {
    layout: Layout,
    opens: usize,
    /// How often something of it was recalled, or its generation changed.
    recalls: u64,
    size: Option<Leased>,
    /// The generation of all its blocks.
    generation: Generation,
    /// By lane: when its server was asked, if it has answered that nothing of the lane was recalled.
    lanes: BTreeMap<u16, Instant>,
    /// Requests that some thread has under way.
    asked: BTreeSet<Query>,
    /// Until then nothing is asked.
    rests_until: Option<Instant>,
}

/// What the home has said of a file with the lease on its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) generation: Generation,
    pub(crate) size: u64,
    /// The file is inline.
    pub(crate) inline: bool,
    pub(crate) until: Instant,
}

/// A block as it was read.
pub(crate) struct Brought {
    pub(crate) number: u64,
    pub(crate) bytes: Arc<[u8]>,
    /// From before the request was sent.
    pub(crate) asked: Instant,
    /// It was read from the inode, and not from a lane.
    pub(crate) inline: bool,
}

struct Block {
    bytes: Arc<[u8]>,
    asked: Instant,
    lane: Option<u16>,
    used: u64,
    /// For a block without a lease: the oldest state of its lane that it can have.
    numbers: Option<Arc<LaneNumbers>>,
}

/// A state of the counters of recalls: what was read since then is kept only when nothing of the file was
/// recalled meanwhile.
pub(crate) type Moment = (u64, u64);

/// What servers can be asked about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Query {
    /// The home: for a lease on the size.
    Size,
    /// A lane's server: whether it has recalled something of the lane.
    Lane(u16),
    /// A block's server: for its bytes.
    Block(u64),
}

/// A request that this thread has to make now; then it calls [`Blocks::answered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) query: Query,
    pub(crate) moment: Moment,
    /// The file's size, as far as it is known.
    pub(crate) size: u64,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The number of bytes read.
    Read(usize),
    /// Something has to be asked first.
    Ask(Asking),
    /// The read has to go without the cache.
    Nothing,
}

impl Blocks {
    pub(crate) fn new(bytes_max: u64) -> Blocks {
        Blocks {
            files: HashMap::new(),
            blocks: BTreeMap::new(),
            order: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            uses: 0,
            clears: 0,
        }
    }

    pub(crate) fn open(&mut self, inode: InodeId, layout: Layout) {
        let new = || Known {
            layout,
            opens: 0,
            recalls: 0,
            size: None,
            generation: Generation(0),
            lanes: BTreeMap::new(),
            asked: BTreeSet::new(),
            rests_until: None,
        };
        self.files.entry(inode).or_insert_with(new).opens += 1;
    }

    pub(crate) fn close(&mut self, inode: InodeId) {
        let Some(known) = self.files.get_mut(&inode) else { return };
        known.opens -= 1;
        if known.opens == 0 {
            self.files.remove(&inode);
            self.drop_blocks(Owner::Leased(inode), |_, _| true);
        }
    }

    /// Reads bytes of one block.
    pub(crate) fn read(&mut self, inode: InodeId, buffer: &mut [u8], offset: u64, now: Instant) -> Found {
        let Some(known) = self.files.get(&inode) else { return Found::Nothing };
        let Some(leased) = known.size.filter(|leased| now < leased.until) else {
            return self.ask(inode, Query::Size, now);
        };
        let there = leased.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if there == 0 {
            return Found::Read(0);
        }
        let (number, start) = (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize);
        let place = (Owner::Leased(inode), number);
        if let Some(block) = self.blocks.get_mut(&place)
            // When the file has grown, the block that was its last one is too short.
            && let Some(bytes) = block.bytes.get(start..start + there)
        {
            let asked_lane = block.lane.and_then(|lane| known.lanes.get(&lane).copied());
            if now < asked_lane.map_or(block.asked, |asked_lane| asked_lane.max(block.asked)) + BELIEVED {
                buffer[..there].copy_from_slice(bytes);
                self.uses += 1;
                self.order.remove(&block.used);
                block.used = self.uses;
                self.order.insert(block.used, place);
                return Found::Read(there);
            }
            if let Some(lane) = block.lane {
                return self.ask(inode, Query::Lane(lane), now);
            }
        }
        let found = self.ask(inode, Query::Block(number), now);
        if found != Found::Nothing {
            // Then no older block can be found beside the one that is read.
            self.drop_block(place);
        }
        found
    }

    fn ask(&mut self, inode: InodeId, query: Query, now: Instant) -> Found {
        let clears = self.clears;
        let Some(known) = self.files.get_mut(&inode) else { return Found::Nothing };
        if known.rests_until.is_some_and(|until| now < until) || !known.asked.insert(query) {
            return Found::Nothing;
        }
        let size = known.size.map_or(0, |leased| leased.size);
        Found::Ask(Asking { query, moment: (known.recalls, clears), size })
    }

    /// A request has ended, with or without an answer.
    pub(crate) fn answered(&mut self, inode: InodeId, query: Query) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.asked.remove(&query);
        }
    }

    /// Asks nothing about a file until then.
    pub(crate) fn rest(&mut self, inode: InodeId, until: Instant) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.rests_until = Some(until);
        }
    }

    /// Keeps a block, if nothing of the file was recalled since `moment`.
    pub(crate) fn keep(&mut self, inode: InodeId, moment: Moment, brought: Brought) {
        let Some(known) = self.known_at(inode, moment) else { return };
        if brought.inline && known.size.is_some_and(|leased| !leased.inline) {
            // The file was promoted to its lanes meanwhile: changes there recall nothing of the inode.
            return;
        }
        let (layout, number) = (known.layout, brought.number);
        let lane = (number * BLOCK_BYTES / layout.stripe_unit) % u64::from(layout.width);
        let lane = (!brought.inline).then_some(lane as u16);
        let block = Block { bytes: brought.bytes, asked: brought.asked, lane, used: 0, numbers: None };
        self.insert((Owner::Leased(inode), number), block);
    }

    fn insert(&mut self, place: Place, block: Block) {
        self.uses += 1;
        self.drop_block(place);
        self.bytes += block.bytes.len() as u64;
        self.order.insert(self.uses, place);
        self.blocks.insert(place, Block { used: self.uses, ..block });
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.drop_block(oldest);
        }
    }

    /// The home has given a lease on the size. Drops blocks that are outdated: all after a truncation, and
    /// those that were read from the inode after a promotion.
    pub(crate) fn learn_size(&mut self, inode: InodeId, moment: Moment, leased: Leased) {
        let Some(known) = self.known_at(inode, moment) else { return };
        known.size = Some(leased);
        if known.generation != leased.generation {
            known.generation = leased.generation;
            known.recalls += 1;
            self.drop_blocks(Owner::Leased(inode), |_, _| true);
        } else if !leased.inline {
            self.drop_blocks(Owner::Leased(inode), |_, block| block.lane.is_none());
        }
    }

    /// A lane's server was asked whether it has recalled something that this process has leased.
    pub(crate) fn learn_lane(
        &mut self,
        inode: InodeId,
        moment: Moment,
        lane: u16,
        asked: Instant,
        current: bool,
    ) {
        if !current {
            self.drop_blocks(Owner::Leased(inode), |_, block| block.lane == Some(lane));
        } else if let Some(known) = self.known_at(inode, moment) {
            known.lanes.insert(lane, asked);
        }
    }

    /// The lease on a file's size was recalled.
    pub(crate) fn recall_size(&mut self, inode: InodeId) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.recalls += 1;
            known.size = None;
        }
    }

    /// Drops what is recalled; what is being read of the file meanwhile will not be kept.
    pub(crate) fn recall(&mut self, recall: &DataRecall) {
        let DataRecall { inode, lane, start, end, .. } = *recall;
        let Some(known) = self.files.get_mut(&inode) else { return };
        known.recalls += 1;
        let (layout, recalled) = (known.layout, ByteRange { start, end });
        self.drop_blocks(Owner::Leased(inode), |number, _| {
            let block = bytes_of(number);
            lane.is_none_or(|lane| {
                !ramlace_layout::lane_span(&layout, lane, block).intersection(recalled).is_empty()
            })
        });
    }

    /// Reads from the blocks of one open file in relaxed mode; `None` when not all of the bytes are cached.
    pub(crate) fn read_relaxed(&mut self, open: u64, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let place = (Owner::Relaxed(open), offset / BLOCK_BYTES);
        let start = (offset % BLOCK_BYTES) as usize;
        let block = self.blocks.get_mut(&place)?;
        // The file may have grown by now beyond the end that the block has seen.
        buffer.copy_from_slice(block.bytes.get(start..start + buffer.len())?);
        self.uses += 1;
        self.order.remove(&block.used);
        block.used = self.uses;
        self.order.insert(block.used, place);
        Some(buffer.len())
    }

    /// Keeps a block for an open file in relaxed mode; it was read after these numbers were taken.
    pub(crate) fn keep_relaxed(
        &mut self,
        open: u64,
        number: u64,
        bytes: Arc<[u8]>,
        numbers: Option<Arc<LaneNumbers>>,
    ) {
        let block = Block { bytes, asked: Instant::now(), lane: None, used: 0, numbers };
        self.insert((Owner::Relaxed(open), number), block);
    }

    /// The cached blocks of a range, and the numbers known of each.
    pub(crate) fn of_relaxed(
        &self,
        open: u64,
        range: ByteRange,
    ) -> Vec<(ByteRange, Option<Arc<LaneNumbers>>)> {
        let owner = Owner::Relaxed(open);
        let blocks = self.blocks.range((owner, range.start / BLOCK_BYTES)..=(owner, u64::MAX));
        blocks
            .map(|((_, number), block)| (bytes_of(*number), block.numbers.clone()))
            .take_while(|(block, _)| block.start < range.end)
            .collect()
    }

    /// Drops the cached blocks of a range.
    pub(crate) fn drop_relaxed(&mut self, open: u64, range: ByteRange) {
        self.drop_blocks(Owner::Relaxed(open), |number, _| !bytes_of(number).intersection(range).is_empty());
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.clears += 1;
        self.blocks.clear();
        self.order.clear();
        self.bytes = 0;
        for known in self.files.values_mut() {
            known.size = None;
            known.lanes.clear();
        }
    }

    /// The file, if nothing of it was recalled since `moment`.
    fn known_at(&mut self, inode: InodeId, moment: Moment) -> Option<&mut Known> {
        let clears = self.clears;
        self.files.get_mut(&inode).filter(|known| (known.recalls, clears) == moment)
    }

    fn drop_blocks(&mut self, owner: Owner, goes: impl Fn(u64, &Block) -> bool) {
        let all = self.blocks.range((owner, 0)..=(owner, u64::MAX));
        let gone: Vec<_> =
            all.filter(|((_, number), block)| goes(*number, block)).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|at| self.drop_block(at));
    }

    fn drop_block(&mut self, at: Place) {
        if let Some(block) = self.blocks.remove(&at) {
            self.order.remove(&block.used);
            self.bytes -= block.bytes.len() as u64;
        }
    }
}

/// The bytes of the file that a block covers.
fn bytes_of(number: u64) -> ByteRange {
    ByteRange { start: number * BLOCK_BYTES, end: (number + 1) * BLOCK_BYTES }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;

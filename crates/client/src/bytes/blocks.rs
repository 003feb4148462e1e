//! Blocks of files that were read and are kept, and how long each is believed.
//!
//! A block is the answer to a read when two things hold. The file's size and generation are leased by its home: a truncation is answered
//! when that lease is dropped, and waits for no lease on bytes. And no change of the block's bytes can have been answered since: a server
//! waits for who has a lease on bytes until [`limits::DATA_RECALL_MILLIS`] after it has asked him, so what it has said counts for a
//! little less than that, from before it was asked. So a process that was stopped, or cut off, believes nothing of what it has.
//!
//! What is not believed is asked for, by one thread at a time; the others, and all for a while after a question that brought nothing,
//! read as if there were no cache.
//!
//! What files keep that are open in relaxed mode needs no lease and is believed until it is refreshed ([`crate::bytes::relaxed`]). It takes
//! its room from the same bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Generation, InodeId, limits};
use ramlace_wire::Layout;
use ramlace_wire::leases::DataRecall;

use crate::bytes::lane_numbers::LaneNumbers;

/// What is brought and kept as one: the least stripe unit, so that a block lies in one lane; and what a server reads at one moment.
pub(crate) const BLOCK_BYTES: u64 = limits::STAGED_BYTES_MAX as u64;
/// How long a server's word counts. The rest is for clocks that run at different rates.
const BELIEVED: Duration = Duration::from_millis(limits::DATA_RECALL_MILLIS - 1_000);

/// What is kept, of all files.
pub(crate) struct Blocks {
    files: HashMap<InodeId, Known>,
    blocks: BTreeMap<Place, Block>,
    /// The blocks in the order in which they were used.
    order: BTreeMap<u64, Place>,
    bytes: u64,
    bytes_max: u64,
    uses: u64,
    /// How often everything was dropped.
    clears: u64,
}

/// Who keeps a block, and its number in the file.
type Place = (Keeper, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Keeper {
    /// All that have a file open: by leases.
    Leased(InodeId),
    /// One open file in relaxed mode, by its number.
    Relaxed(u64),
}

/// A file that is open.
struct Known {
    layout: Layout,
    opens: usize,
    /// How often something of it was recalled, or found to be another.
    recalls: u64,
    size: Option<Leased>,
    /// The generation of all its blocks.
    generation: Generation,
    /// When servers were asked that have said since that nothing of a lane was recalled.
    lanes: BTreeMap<u16, Instant>,
    /// What some thread is asking.
    asked: BTreeSet<Question>,
    /// Until then nothing is asked.
    rests_until: Option<Instant>,
}

/// What the home said of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) generation: Generation,
    pub(crate) size: u64,
    /// Its bytes live with the inode, and not in lanes.
    pub(crate) inline: bool,
    pub(crate) until: Instant,
}

/// A block as it came.
pub(crate) struct Brought {
    pub(crate) number: u64,
    pub(crate) bytes: Arc<[u8]>,
    /// Before it was asked for.
    pub(crate) asked: Instant,
    /// From the inode, and not from a lane.
    pub(crate) inline: bool,
}

struct Block {
    bytes: Arc<[u8]>,
    asked: Instant,
    lane: Option<u16>,
    used: u64,
    /// Of what is kept without a lease: which state of its lane it has at least.
    numbers: Option<Arc<LaneNumbers>>,
}

/// A moment, of one file: what comes meanwhile is kept only when nothing of it was recalled.
pub(crate) type Moment = (u64, u64);

/// What servers can be asked about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Question {
    /// Its home: for a lease on the size.
    Size,
    /// A lane's server: whether it has recalled something of the lane.
    Lane(u16),
    /// For the bytes of a block.
    Block(u64),
}

/// A question that this thread has to ask now; then it calls [`Blocks::answered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) question: Question,
    pub(crate) moment: Moment,
    /// The file's, as far as it is known.
    pub(crate) size: u64,
}

/// What comes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// So many bytes.
    Read(usize),
    /// Something is to be asked first.
    Ask(Asking),
    /// It is to be read in another way.
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
            self.drop_blocks(Keeper::Leased(inode), |_, _| true);
        }
    }

    /// Reads bytes of one block.
    pub(crate) fn read(&mut self, inode: InodeId, buffer: &mut [u8], offset: u64, now: Instant) -> Found {
        let Some(known) = self.files.get(&inode) else { return Found::Nothing };
        let Some(leased) = known.size.filter(|leased| now < leased.until) else {
            return self.ask(inode, Question::Size, now);
        };
        let there = leased.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if there == 0 {
            return Found::Read(0);
        }
        let (number, start) = (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize);
        let place = (Keeper::Leased(inode), number);
        if let Some(block) = self.blocks.get_mut(&place)
            // A file that has grown has more than its last block.
            && let Some(bytes) = block.bytes.get(start..start + there)
        {
            let told = block.lane.and_then(|lane| known.lanes.get(&lane).copied());
            if now < told.map_or(block.asked, |told| told.max(block.asked)) + BELIEVED {
                buffer[..there].copy_from_slice(bytes);
                self.uses += 1;
                self.order.remove(&block.used);
                block.used = self.uses;
                self.order.insert(block.used, place);
                return Found::Read(there);
            }
            if let Some(lane) = block.lane {
                return self.ask(inode, Question::Lane(lane), now);
            }
        }
        let found = self.ask(inode, Question::Block(number), now);
        if found != Found::Nothing {
            // So that nothing older is found beside what is brought.
            self.drop_block(place);
        }
        found
    }

    fn ask(&mut self, inode: InodeId, question: Question, now: Instant) -> Found {
        let clears = self.clears;
        let Some(known) = self.files.get_mut(&inode) else { return Found::Nothing };
        if known.rests_until.is_some_and(|until| now < until) || !known.asked.insert(question) {
            return Found::Nothing;
        }
        let size = known.size.map_or(0, |leased| leased.size);
        Found::Ask(Asking { question, moment: (known.recalls, clears), size })
    }

    /// A question was answered, or was not.
    pub(crate) fn answered(&mut self, inode: InodeId, question: Question) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.asked.remove(&question);
        }
    }

    /// To ask about a file is of no use until then.
    pub(crate) fn rest(&mut self, inode: InodeId, until: Instant) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.rests_until = Some(until);
        }
    }

    /// What came since a moment is kept, if nothing was recalled meanwhile.
    pub(crate) fn keep(&mut self, inode: InodeId, moment: Moment, brought: Brought) {
        let Some(known) = self.known_at(inode, moment) else { return };
        if brought.inline && known.size.is_some_and(|leased| !leased.inline) {
            // It has gone to its lanes meanwhile: changes there recall nothing of the inode.
            return;
        }
        let (layout, number) = (known.layout, brought.number);
        let lane = (number * BLOCK_BYTES / layout.stripe_unit) % u64::from(layout.width);
        let lane = (!brought.inline).then_some(lane as u16);
        let block = Block { bytes: brought.bytes, asked: brought.asked, lane, used: 0, numbers: None };
        self.insert((Keeper::Leased(inode), number), block);
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

    /// The home has given a lease on the size. What was cut off meanwhile is no more what is kept, nor is what lived with the inode of
    /// a file that has gone to its lanes.
    pub(crate) fn learn_size(&mut self, inode: InodeId, moment: Moment, leased: Leased) {
        let Some(known) = self.known_at(inode, moment) else { return };
        known.size = Some(leased);
        if known.generation != leased.generation {
            known.generation = leased.generation;
            known.recalls += 1;
            self.drop_blocks(Keeper::Leased(inode), |_, _| true);
        } else if !leased.inline {
            self.drop_blocks(Keeper::Leased(inode), |_, block| block.lane.is_none());
        }
    }

    /// A lane's server was asked whether it has recalled something of what this process has a lease on.
    pub(crate) fn learn_lane(
        &mut self,
        inode: InodeId,
        moment: Moment,
        lane: u16,
        asked: Instant,
        current: bool,
    ) {
        if !current {
            self.drop_blocks(Keeper::Leased(inode), |_, block| block.lane == Some(lane));
        } else if let Some(known) = self.known_at(inode, moment) {
            known.lanes.insert(lane, asked);
        }
    }

    /// What the home said of a file counts no more.
    pub(crate) fn recall_size(&mut self, inode: InodeId) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.recalls += 1;
            known.size = None;
        }
    }

    /// What is recalled is not kept any longer, and what is being read of it will not be.
    pub(crate) fn recall(&mut self, recall: &DataRecall) {
        let DataRecall { inode, lane, start, end, .. } = *recall;
        let Some(known) = self.files.get_mut(&inode) else { return };
        known.recalls += 1;
        let (layout, recalled) = (known.layout, ByteRange { start, end });
        self.drop_blocks(Keeper::Leased(inode), |number, _| {
            let block = bytes_of(number);
            lane.is_none_or(|lane| {
                !ramlace_layout::lane_span(&layout, lane, block).intersection(recalled).is_empty()
            })
        });
    }

    /// Reads what a file keeps that is open in relaxed mode; `None`: not all of it.
    pub(crate) fn read_relaxed(&mut self, open: u64, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let place = (Keeper::Relaxed(open), offset / BLOCK_BYTES);
        let start = (offset % BLOCK_BYTES) as usize;
        let block = self.blocks.get_mut(&place)?;
        // Where the file ended it may go on by now.
        buffer.copy_from_slice(block.bytes.get(start..start + buffer.len())?);
        self.uses += 1;
        self.order.remove(&block.used);
        block.used = self.uses;
        self.order.insert(block.used, place);
        Some(buffer.len())
    }

    /// Keeps a block for it, which was read after these numbers were taken.
    pub(crate) fn keep_relaxed(
        &mut self,
        open: u64,
        number: u64,
        bytes: Arc<[u8]>,
        numbers: Option<Arc<LaneNumbers>>,
    ) {
        let block = Block { bytes, asked: Instant::now(), lane: None, used: 0, numbers };
        self.insert((Keeper::Relaxed(open), number), block);
    }

    /// The blocks that it keeps of a range, and what is known of each.
    pub(crate) fn of_relaxed(
        &self,
        open: u64,
        range: ByteRange,
    ) -> Vec<(ByteRange, Option<Arc<LaneNumbers>>)> {
        let keeper = Keeper::Relaxed(open);
        let blocks = self.blocks.range((keeper, range.start / BLOCK_BYTES)..=(keeper, u64::MAX));
        blocks
            .map(|((_, number), block)| (bytes_of(*number), block.numbers.clone()))
            .take_while(|(block, _)| block.start < range.end)
            .collect()
    }

    /// What it keeps of a range goes.
    pub(crate) fn drop_relaxed(&mut self, open: u64, range: ByteRange) {
        self.drop_blocks(Keeper::Relaxed(open), |number, _| !bytes_of(number).intersection(range).is_empty());
    }

    /// All of it is worth nothing.
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

    /// A file of which nothing was recalled since.
    fn known_at(&mut self, inode: InodeId, moment: Moment) -> Option<&mut Known> {
        let clears = self.clears;
        self.files.get_mut(&inode).filter(|known| (known.recalls, clears) == moment)
    }

    fn drop_blocks(&mut self, keeper: Keeper, goes: impl Fn(u64, &Block) -> bool) {
        let all = self.blocks.range((keeper, 0)..=(keeper, u64::MAX));
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

/// Which bytes of the file a block has.
fn bytes_of(number: u64) -> ByteRange {
    ByteRange { start: number * BLOCK_BYTES, end: (number + 1) * BLOCK_BYTES }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;

//! What this process has read, kept for its next reads: optional, bounded, and by leases.
//!
//! The cache is a client of its own beside the pool's, with a session that does nothing else. So whatever changes bytes, a call of
//! this very process as well, is somebody else's change to the server, which recalls them before it answers: no door has to remember the
//! cache. Only reads within one block are answered from here, each from bytes that were read by one request: so they are as whole
//! as those of a server.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use ramlace_base::{ByteRange, ErrorKind, InodeId, Result, ServerId};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Layout;
use ramlace_wire::leases::DataRecall;

use crate::bytes::data_leases::DataLeases;
use crate::fork::PerFork;
use crate::{ConnectOptions, File, Pool, Rights};

/// What is brought and kept as one: the least stripe unit, so that a block lies in one lane.
const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks that one request brings where reads follow each other: below what is copied from a lane's file, which is not read at one moment.
const AHEAD_BLOCKS_MAX: u64 = 3;

/// What this process may keep of a pool's bytes.
pub(crate) struct ByteCache {
    /// It alone reads for the cache.
    pool: Pool,
    /// A forked child begins with nothing: its parent's leases are not its own.
    tables: PerFork<Arc<Table>>,
    bytes_max: u64,
}

/// An open file of which blocks may be kept; they go with it.
pub(crate) struct CachedFile {
    pool: Pool,
    table: Arc<Table>,
    inode: InodeId,
    /// Another one after the cache's session has ended.
    file: Mutex<Arc<File>>,
}

/// What is kept, of all files.
struct Table {
    state: Mutex<State>,
    bytes_max: u64,
}

#[derive(Default)]
struct State {
    files: HashMap<InodeId, Known>,
    blocks: BTreeMap<(InodeId, u64), Block>,
    /// The blocks in the order in which they were used.
    order: BTreeMap<u64, (InodeId, u64)>,
    bytes: u64,
    uses: u64,
    /// How often everything was dropped.
    clears: u64,
}

struct Known {
    layout: Layout,
    opens: usize,
    /// How often something of it was recalled.
    recalls: u64,
    /// The block behind the last one that was brought.
    next: u64,
}

struct Block {
    bytes: Arc<[u8]>,
    used: u64,
}

/// A moment, of one file: what is read meanwhile is kept only when nothing of it was recalled.
type Moment = (u64, u64);

/// Hears what servers recall.
struct Hearer {
    cache: Weak<ByteCache>,
}

impl ByteCache {
    /// An empty one, with a session of its own.
    pub(crate) fn connect(options: &ConnectOptions, bytes_max: u64) -> Result<Arc<ByteCache>> {
        let label = format!("{} (cache)", options.label);
        let pool = Pool::connect(&ConnectOptions { cache_bytes: 0, label, ..options.clone() })?;
        let cache = Arc::new(ByteCache { pool, tables: PerFork::with(Table::empty(bytes_max)), bytes_max });
        cache.pool.hear_data(Arc::new(Hearer { cache: Arc::downgrade(&cache) }));
        Ok(cache)
    }

    /// Begins to keep what is read of a file.
    pub(crate) fn open(&self, inode: InodeId) -> Result<CachedFile> {
        let table = self.tables.get_or_make(|| Ok(Table::empty(self.bytes_max)))?.clone();
        let file = open(&self.pool, inode)?;
        let new = || Known { layout: *file.layout(), opens: 0, recalls: 0, next: 0 };
        table.lock().files.entry(inode).or_insert_with(new).opens += 1;
        Ok(CachedFile { pool: self.pool.clone(), table, inode, file: Mutex::new(Arc::new(file)) })
    }
}

impl CachedFile {
    /// Reads what one block has of a file; `None`: it is to be read without the cache, which has nothing to say of it.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let block = offset / BLOCK_BYTES;
        let start = (offset % BLOCK_BYTES) as usize;
        let bytes = self.block(block)?;
        // Where the file ends its home alone knows.
        buffer.copy_from_slice(bytes.get(start..start + buffer.len())?);
        Some(buffer.len())
    }

    fn block(&self, block: u64) -> Option<Arc<[u8]>> {
        if self.pool.is_ended() {
            self.begin_anew();
            return None;
        }
        let (moment, count) = {
            let mut state = self.table.lock();
            if let Some(bytes) = state.find(self.inode, block) {
                return Some(bytes);
            }
            (state.moment(self.inode)?, state.ahead(self.inode, block))
        };
        let file = self.file.lock().clone();
        let mut bytes = vec![0; (count * BLOCK_BYTES) as usize];
        let read = match file.read_keeping(&mut bytes, block * BLOCK_BYTES) {
            Ok(read) => read,
            Err(error) => {
                if error.kind() == ErrorKind::Stale {
                    self.begin_anew();
                }
                // Without the cache it comes, or is the same error.
                return None;
            }
        };
        let blocks: Vec<Arc<[u8]>> =
            bytes[..read.bytes].chunks(BLOCK_BYTES as usize).map(Arc::from).collect();
        let mut state = self.table.lock();
        if !read.repeated && state.moment(self.inode) == Some(moment) {
            for (number, bytes) in (block..).zip(&blocks) {
                state.keep(self.inode, number, bytes.clone(), self.table.bytes_max);
            }
        }
        blocks.into_iter().next()
    }

    /// The session of before has ended, and its leases with it.
    fn begin_anew(&self) {
        self.table.lock().clear();
        let _ = self.pool.reconnect();
        if let Ok(file) = open(&self.pool, self.inode) {
            *self.file.lock() = Arc::new(file);
        }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.table.lock().close(self.inode);
    }
}

impl Table {
    fn empty(bytes_max: u64) -> Arc<Table> {
        Arc::new(Table { state: Mutex::default(), bytes_max })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn find(&mut self, inode: InodeId, number: u64) -> Option<Arc<[u8]>> {
        self.uses += 1;
        let block = self.blocks.get_mut(&(inode, number))?;
        self.order.remove(&block.used);
        block.used = self.uses;
        self.order.insert(block.used, (inode, number));
        Some(block.bytes.clone())
    }

    /// `None` for a file that is not open.
    fn moment(&self, inode: InodeId) -> Option<Moment> {
        Some((self.files.get(&inode)?.recalls, self.clears))
    }

    /// How many blocks are brought for one that is missing: more where it follows the last one.
    fn ahead(&mut self, inode: InodeId, number: u64) -> u64 {
        let Some(known) = self.files.get_mut(&inode) else { return 1 };
        let count = if number > 0 && known.next == number { AHEAD_BLOCKS_MAX } else { 1 };
        known.next = number + count;
        count
    }

    fn keep(&mut self, inode: InodeId, number: u64, bytes: Arc<[u8]>, bytes_max: u64) {
        self.uses += 1;
        self.drop_block((inode, number));
        self.bytes += bytes.len() as u64;
        self.order.insert(self.uses, (inode, number));
        self.blocks.insert((inode, number), Block { bytes, used: self.uses });
        while self.bytes > bytes_max
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.drop_block(oldest);
        }
    }

    fn drop_block(&mut self, at: (InodeId, u64)) {
        if let Some(block) = self.blocks.remove(&at) {
            self.order.remove(&block.used);
            self.bytes -= block.bytes.len() as u64;
        }
    }

    /// What is recalled is not kept any longer, and what is being read of it will not be.
    fn recall(&mut self, recall: &DataRecall) {
        let DataRecall { inode, lane, start, end, .. } = *recall;
        let Some(known) = self.files.get_mut(&inode) else { return };
        known.recalls += 1;
        let (layout, recalled) = (known.layout, ByteRange { start, end });
        let is_in = |number: u64| {
            let block = ByteRange { start: number * BLOCK_BYTES, end: (number + 1) * BLOCK_BYTES };
            lane.is_none_or(|lane| {
                !ramlace_layout::lane_span(&layout, lane, block).intersection(recalled).is_empty()
            })
        };
        let numbers = self.blocks.range((inode, 0)..=(inode, u64::MAX)).map(|(at, _)| *at);
        let gone: Vec<(InodeId, u64)> = numbers.filter(|(_, number)| is_in(*number)).collect();
        gone.into_iter().for_each(|at| self.drop_block(at));
    }

    fn close(&mut self, inode: InodeId) {
        let Some(known) = self.files.get_mut(&inode) else { return };
        known.opens -= 1;
        if known.opens == 0 {
            self.files.remove(&inode);
            let kept: Vec<_> = self.blocks.range((inode, 0)..=(inode, u64::MAX)).map(|(at, _)| *at).collect();
            kept.into_iter().for_each(|at| self.drop_block(at));
        }
    }

    fn clear(&mut self) {
        self.clears += 1;
        self.blocks.clear();
        self.order.clear();
        self.bytes = 0;
    }
}

impl DataLeases for Hearer {
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]) {
        let Some(cache) = self.cache.upgrade() else { return };
        if let Some(table) = cache.tables.get() {
            let mut state = table.lock();
            recalls.iter().for_each(|recall| state.recall(recall));
        }
        let done: Vec<u64> = recalls.iter().map(|recall| recall.number).collect();
        cache.pool.end_recalls(server, &done, &[]);
    }

    fn forgotten(&self, server: ServerId, life: u64) {
        let Some(cache) = self.cache.upgrade() else { return };
        if let Some(table) = cache.tables.get() {
            table.lock().clear();
        }
        cache.pool.has_dropped_all(server, life);
    }
}

impl File {
    /// Reads from the cache, where there is one and it has these bytes or brings them; `None`: read without it.
    pub(crate) fn read_cached(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let cache = self.pool().cache()?;
        let last = offset.checked_add((buffer.len() as u64).checked_sub(1)?)?;
        if !self.rights().read || offset / BLOCK_BYTES != last / BLOCK_BYTES {
            return None;
        }
        let cached = self.cached.get_or_make(|| cache.open(self.inode()));
        cached.ok()?.read(buffer, offset)
    }
}

fn open(pool: &Pool, inode: InodeId) -> Result<File> {
    pool.raw().open(inode, Rights { read: true, write: false }).map(|(file, _)| file)
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Epoch, Slot};

    use super::*;

    const FILE: InodeId = InodeId(7);

    fn state(width: u16) -> State {
        let layout = Layout {
            stripe_unit: BLOCK_BYTES,
            width,
            base_slot: Slot(0),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        let mut state = State::default();
        state.files.insert(FILE, Known { layout, opens: 1, recalls: 0, next: 0 });
        state
    }

    fn keep(state: &mut State, number: u64, bytes_max: u64) {
        state.keep(FILE, number, Arc::from(vec![1; BLOCK_BYTES as usize]), bytes_max);
    }

    fn kept(state: &State) -> Vec<u64> {
        assert_eq!(state.bytes, state.blocks.len() as u64 * BLOCK_BYTES);
        assert_eq!(state.order.len(), state.blocks.len());
        state.blocks.keys().map(|(_, number)| *number).collect()
    }

    // SEMANTICS 138.2
    #[test]
    fn the_block_that_was_used_longest_ago_goes_first() {
        let mut state = state(1);
        (0..3).for_each(|number| keep(&mut state, number, 3 * BLOCK_BYTES));
        assert!(state.find(FILE, 0).is_some());
        keep(&mut state, 3, 3 * BLOCK_BYTES);
        assert_eq!(kept(&state), [0, 2, 3]);
        keep(&mut state, 3, BLOCK_BYTES);
        assert_eq!(kept(&state), [3]);
        keep(&mut state, 4, 5);
        assert!(kept(&state).is_empty());
    }

    // SEMANTICS 138.3
    #[test]
    fn what_is_recalled_goes_and_nothing_else() {
        let mut state = state(2);
        (0..6).for_each(|number| keep(&mut state, number, u64::MAX));
        let moment = state.moment(FILE);
        let recall = |inode, lane, start, end| DataRecall { number: 1, inode, lane, start, end };
        // The second block of lane 1, and a byte of the third.
        state.recall(&recall(FILE, Some(1), BLOCK_BYTES, 2 * BLOCK_BYTES + 1));
        assert_eq!(kept(&state), [0, 1, 2, 4]);
        assert_ne!(state.moment(FILE), moment);
        state.recall(&recall(InodeId(8), None, 0, u64::MAX));
        state.recall(&recall(FILE, Some(0), 2 * BLOCK_BYTES, u64::MAX));
        assert_eq!(kept(&state), [0, 1, 2]);
        state.recall(&recall(FILE, None, 0, 1));
        assert!(kept(&state).is_empty());
        keep(&mut state, 1, u64::MAX);
        state.close(FILE);
        assert_eq!((kept(&state), state.moment(FILE)), (vec![], None));
    }

    // SEMANTICS 138.1
    #[test]
    fn blocks_that_follow_each_other_are_brought_together() {
        let mut state = state(1);
        let asked = [0, 1, 4, 7, 3, 20, 21];
        assert_eq!(asked.map(|number| state.ahead(FILE, number)), [1, 3, 3, 3, 1, 1, 3]);
    }
}

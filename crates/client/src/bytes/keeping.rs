//! The traits by which a pool and its files use a read cache; the cache itself is built on both of them.

use std::sync::Arc;

use ramlace_base::{ByteRange, InodeId, Result};
use ramlace_wire::Layout;

use crate::bytes::lane_numbers::LaneNumbers;

/// A pool's read cache.
pub(crate) trait ReadCache: Send + Sync {
    /// Begins to cache what is read of a file.
    fn open(&self, inode: InodeId, layout: &Layout) -> Result<Box<dyn CachedReads>>;

    /// The same for one open file in relaxed mode.
    fn open_relaxed(&self) -> Result<Box<dyn RelaxedReads>>;
}

/// The cache of one file, as long as it is open.
pub(crate) trait CachedReads: Send + Sync {
    /// Reads what one block has of the file; `None`: the cache declines, and the read goes without it. `path`
    /// is the file's, for messages.
    fn read(&self, path: &[u8], buffer: &mut [u8], offset: u64) -> Option<usize>;
}

/// The cache of one open file in relaxed mode.
pub(crate) trait RelaxedReads: Send + Sync {
    /// Reads bytes of one block; `None`: not all of them are cached.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize>;
    /// The present state; what was read since it is kept only when nothing was refreshed or dropped
    /// meanwhile.
    fn moment(&self) -> u64;
    /// The number that was taken of a lane since the last refresh, before anything of it was read.
    fn lane_number(&self, lane: u16) -> Option<Arc<LaneNumbers>>;
    /// Stores such a number.
    fn learn_lane(&self, moment: u64, lane: u16, number: Arc<LaneNumbers>);
    /// Keeps a block, by its number.
    fn keep(&self, moment: u64, number: u64, bytes: Arc<[u8]>, numbers: Option<Arc<LaneNumbers>>);
    /// A refresh begins: returns the cached blocks of a range, and the numbers known of each.
    fn begin_refresh(&self, range: ByteRange) -> Vec<(ByteRange, Option<Arc<LaneNumbers>>)>;
    /// Drops all cached blocks of a range.
    fn drop_range(&self, range: ByteRange);
}

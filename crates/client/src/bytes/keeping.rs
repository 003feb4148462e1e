//! What a pool and its files know of a cache of what is read: who keeps bytes stands on both of them.

use std::sync::Arc;

use ramlace_base::{ByteRange, InodeId, Result};
use ramlace_wire::Layout;

use crate::bytes::lane_numbers::LaneNumbers;

/// Keeps what is read of a pool.
pub(crate) trait ReadCache: Send + Sync {
    /// Begins to keep what is read of a file.
    fn open(&self, inode: InodeId, layout: &Layout) -> Result<Box<dyn CachedReads>>;

    /// The same for one open file in relaxed mode.
    fn open_relaxed(&self) -> Result<Box<dyn RelaxedReads>>;
}

/// What is kept of one file, as long as it is open.
pub(crate) trait CachedReads: Send + Sync {
    /// Reads what one block has of the file; `None`: it is to be read without the cache, which has nothing to say of it. `path` is the
    /// file's, for messages.
    fn read(&self, path: &[u8], buffer: &mut [u8], offset: u64) -> Option<usize>;
}

/// What one open file in relaxed mode keeps.
pub(crate) trait RelaxedReads: Send + Sync {
    /// Reads bytes of one block; `None`: not all of them are kept.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize>;
    /// A moment: what was read since is kept only when nothing was refreshed or dropped meanwhile.
    fn moment(&self) -> u64;
    /// What was taken of a lane since the last refresh, before anything of it was read.
    fn lane_number(&self, lane: u16) -> Option<Arc<LaneNumbers>>;
    /// Takes it.
    fn learn_lane(&self, moment: u64, lane: u16, number: Arc<LaneNumbers>);
    /// Keeps a block, by its number.
    fn keep(&self, moment: u64, number: u64, bytes: Arc<[u8]>, numbers: Option<Arc<LaneNumbers>>);
    /// A refresh begins. What is kept of a range, and what is known of it.
    fn begin_refresh(&self, range: ByteRange) -> Vec<(ByteRange, Option<Arc<LaneNumbers>>)>;
    /// Keeps nothing of a range any longer.
    fn drop_range(&self, range: ByteRange);
}

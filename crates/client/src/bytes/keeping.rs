//! What a pool and its files know of a cache of what is read: who keeps bytes stands on both of them.

use ramlace_base::{InodeId, Result};
use ramlace_wire::Layout;

/// Keeps what is read of a pool.
pub(crate) trait ReadCache: Send + Sync {
    /// Begins to keep what is read of a file.
    fn open(&self, inode: InodeId, layout: &Layout) -> Result<Box<dyn CachedReads>>;
}

/// What is kept of one file, as long as it is open.
pub(crate) trait CachedReads: Send + Sync {
    /// Reads what one block has of the file; `None`: it is to be read without the cache, which has nothing to say of it. `path` is the
    /// file's, for messages.
    fn read(&self, path: &[u8], buffer: &mut [u8], offset: u64) -> Option<usize>;
}

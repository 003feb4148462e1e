//! The pool's free and used memory for statfs, asked of the servers at most once a second.

use std::time::{Duration, Instant};

use ramlace_base::{Result, limits};
use ramlace_client::{Capacity, Pool};
use ramlace_fuse::StatFs;
use ramlace_sync::Mutex;

/// How long an answer is reused: `df` and file managers ask often, and every server has to be asked.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// The unit in which room is reported: a page.
const BLOCK_BYTES: u64 = 4096;

/// The last answer.
#[derive(Default)]
pub(crate) struct Space {
    last: Mutex<Option<(Instant, Capacity)>>,
}

impl Space {
    pub(crate) fn statfs(&self, pool: &Pool) -> Result<StatFs> {
        Ok(kernel_space(&self.capacity(pool)?))
    }

    fn capacity(&self, pool: &Pool) -> Result<Capacity> {
        let mut last = self.last.lock();
        if let Some((asked, capacity)) = *last
            && asked.elapsed() < GOOD_FOR
        {
            return Ok(capacity);
        }
        let capacity = pool.statfs()?;
        *last = Some((Instant::now(), capacity));
        Ok(capacity)
    }
}

fn kernel_space(capacity: &Capacity) -> StatFs {
    let free = capacity.free_bytes / BLOCK_BYTES;
    StatFs {
        blocks: capacity.total_bytes / BLOCK_BYTES,
        blocks_free: free,
        // Programs ask this to know whether their file will fit.
        blocks_available: (capacity.file_bytes / BLOCK_BYTES).min(free),
        files: capacity.inodes_max,
        files_free: capacity.inodes_max.saturating_sub(capacity.inodes),
        block_size: BLOCK_BYTES as u32,
        name_bytes_max: limits::NAME_BYTES_MAX as u32,
    }
}

//! Whether the books are right: the counters, the lanes added up, and the kernel, at one moment.

use ramlace_base::Result;

use crate::store::Store;
use crate::sys;

/// One store's memory, counted three times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Memory of lanes, by the counter.
    pub lanes_bytes: u64,
    /// The same, added up lane by lane.
    pub summed_bytes: u64,
    /// All memory, the ballast included, by the counters.
    pub counted_bytes: u64,
    /// The same by the kernel; `None` where it would have to be asked for each file.
    pub kernel_bytes: Option<u64>,
}

impl Store {
    /// Counts everything, while the reservation waits. What a client has changed in a granted file counts once
    /// the store has examined that lane again.
    pub fn audit(&self) -> Result<Audit> {
        // The lock keeps the ballast still; no other code touches lanes and meta files.
        let state = self.pool.lock_at_rest();
        let (lanes_bytes, counted_bytes) = state.counted();
        let kernel_bytes = if self.root.is_private() {
            let stat =
                sys::tell(rustix::fs::fstatvfs(self.root.descriptor()), "asking for the store's fill")?;
            Some((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
        } else {
            None
        };
        let summed_bytes = self.lanes.values().map(|lane| lane.allocated).sum();
        Ok(Audit { lanes_bytes, summed_bytes, counted_bytes, kernel_bytes })
    }
}

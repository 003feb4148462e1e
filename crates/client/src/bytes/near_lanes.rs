//! The files of lanes whose descriptors servers of this machine have given out, for large reads
//! ([`crate::bytes::near`]).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ramlace_base::{Epoch, Error, ErrorKind, Generation, Result};
use ramlace_sync::Mutex;

/// Descriptors of lanes that one process holds for this; further files are read through the socket.
const NEAR_LANES_MAX: usize = 256;
/// After a server could not give out a file, so many reads go through the socket before it is asked again.
const READS_AFTER_REFUSAL: u32 = 64;

static LANES: AtomicUsize = AtomicUsize::new(0);

/// The descriptors of an open inode's lanes, as far as there are any.
#[derive(Default)]
pub(crate) struct NearLanes {
    lanes: Mutex<HashMap<u16, Arc<NearLane>>>,
    /// Reads that still go through the socket before servers are asked again.
    pause: AtomicU32,
}

pub(crate) struct NearLane {
    pub(crate) file: OwnedFd,
    /// The map under which the server was asked.
    epoch: Epoch,
    /// The generation to which the server has brought the lane.
    generation: Generation,
}

impl Drop for NearLane {
    fn drop(&mut self) {
        LANES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NearLanes {
    /// Whether this read is to go through the socket, because a server recently had no file to give out.
    pub(crate) fn is_paused(&self) -> bool {
        let less = |pause: u32| pause.checked_sub(1);
        self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// A server had no file to give out.
    pub(crate) fn pause(&self) {
        self.pause.store(READS_AFTER_REFUSAL, Ordering::Relaxed);
    }

    /// A lane's file, current for this map and the generation that the reader knows; `grant` asks the server for it.
    pub(crate) fn lane(
        &self,
        number: u16,
        epoch: Epoch,
        generation: Generation,
        grant: impl FnOnce() -> Result<OwnedFd>,
    ) -> Result<Arc<NearLane>> {
        let known = self.lanes.lock().get(&number).cloned();
        if let Some(lane) = known
            && lane.epoch == epoch
            && lane.generation == generation
        {
            return Ok(lane);
        }
        if LANES.fetch_add(1, Ordering::Relaxed) >= NEAR_LANES_MAX {
            LANES.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::TooMany, "enough descriptors of lanes are held"));
        }
        let file = grant().inspect_err(|_| {
            LANES.fetch_sub(1, Ordering::Relaxed);
        })?;
        let lane = Arc::new(NearLane { file, epoch, generation });
        self.lanes.lock().insert(number, lane.clone());
        Ok(lane)
    }
}

//! Finding pages that were taken and never written, when no record of them is left.
//!
//! After a restart, or after a client changed a granted file, such pages cannot be distinguished from holes:
//! SEEK_DATA passes over both. But tmpfs zeroes a page that is taken a second time, and SEEK_DATA finds it from
//! then on, while a page taken for the first time stays unseen (`shmem_fallocate`, which undoes a failed call
//! by the same mark). So taking a small piece shows which of its pages were there, and exactly the others are
//! given back.

use std::os::fd::OwnedFd;

use ramlace_base::{ByteRange, LaneId, Result, limits};

use crate::lane;
use crate::pool::Purpose;
use crate::prepare::{punch_all, total};
use crate::store::{Store, split_at};
use crate::sys::{self, PAGE_BYTES};

impl Store {
    /// Bytes of a lane's memory whose place is not known. The caller has scanned its pages.
    pub(crate) fn unplaced_bytes(&self, id: LaneId) -> Result<u64> {
        let lane = self.lane(id)?;
        let present = lane.present.as_ref().expect("scanned by the caller");
        Ok(lane.allocated.saturating_sub(present.total()))
    }

    /// Searches a range for pages that are there and not known. Frees none of them but behind the lane's end, and
    /// searches only while what it may find can make the range fit. Returns whether it found any.
    pub(crate) fn find_unwritten(&mut self, id: LaneId, range: ByteRange) -> Result<bool> {
        let file = self.file(id)?;
        let mut found = self.learn_data(id, &file, range)?;
        let present = self.lane(id)?.present.as_ref().expect("scanned by the caller");
        let missing = present.missing(range.aligned_outward(PAGE_BYTES));
        let room = self.usage().free_for_lanes_bytes;
        if total(&missing) > room.saturating_add(self.unplaced_bytes(id)?) {
            return Ok(found);
        }
        for piece in missing.iter().flat_map(|part| split_at(*part, limits::HUGE_PAGE_BYTES)) {
            let mut at = piece.start;
            while at < piece.end && self.unplaced_bytes(id)? > 0 {
                let Some(tried) = self.promise_some(ByteRange { start: at, end: piece.end }) else {
                    return Ok(found);
                };
                found |= self.find_in(id, &file, tried)?;
                at = tried.end;
            }
        }
        Ok(found)
    }

    /// Has the pool promise the beginning of a piece, for a moment: also memory that the log's
    /// ordinary entries may use, since a full store has no other. `None` when not a page is left.
    fn promise_some(&self, piece: ByteRange) -> Option<ByteRange> {
        let mut bytes = piece.length();
        while self.pool.promise(Purpose::Meta, bytes).is_err() {
            if bytes <= PAGE_BYTES {
                return None;
            }
            bytes = (bytes / 2).next_multiple_of(PAGE_BYTES);
        }
        Some(ByteRange { start: piece.start, end: piece.start + bytes })
    }

    /// Takes a promised piece, learns which pages of it were there before, and gives back the others.
    fn find_in(&mut self, id: LaneId, file: &OwnedFd, piece: ByteRange) -> Result<bool> {
        let taken = sys::allocate(file, piece);
        let learned = self.learn_data(id, file, piece);
        // A call that the kernel refused has undone itself; what it did not reach must stay.
        let given_back = if taken.is_ok() { punch_all(id, file, &[piece], true) } else { Ok(()) };
        self.account(id, file, piece.length())?;
        given_back?;
        learned
    }

    /// Adds a range's pages that hold data to those known. Whether one of them was new.
    fn learn_data(&mut self, id: LaneId, file: &OwnedFd, range: ByteRange) -> Result<bool> {
        let data = lane::scan(file, range.start, range.end)?;
        let present = self.lane_mut(id)?.present.as_mut().expect("scanned by the caller");
        let before = present.total();
        data.iter().for_each(|part| present.insert(*part));
        Ok(present.total() > before)
    }
}

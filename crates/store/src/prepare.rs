//! Taking memory before a write is accepted: a full tmpfs is SIGBUS otherwise.
//!
//! Measured on Linux 6.18, tmpfs of 1 GiB, 4 KiB and 512 MiB files:
//!
//! | mount option | 4 KiB file costs | fallocate + punch of the rest | 512 MiB, taken and first written |
//! |---|---|---|---|
//! | huge=always | 2 MiB; 4 KiB after a punch | 4.5 ms first, 26 us later | 0.022 s |
//! | huge=within_size | 4 KiB | 9 us | 0.022 s, but the length must cover each huge page |
//! | huge=advise, fallocate | 4 KiB | 8 us | 0.25 s, 4 KiB pages |
//! | huge=advise, advised mapping + MADV_POPULATE_WRITE | - | - | 0.041 s, huge pages whatever the length |
//!
//! So the store mounts with huge=advise: fallocate takes exact pages, and populating an advised
//! mapping takes a huge page also where the file ends inside it. The price is that such a page is
//! zeroed before it is written, which a store through a mapping does anyway.

use std::os::fd::OwnedFd;

use ramlace_base::{ByteRange, ErrorKind, LaneId, Result, limits};

use crate::pool::Purpose;
use crate::store::{Store, checked_range, split_at};
use crate::sys::{self, PAGE_BYTES};

impl Store {
    /// Promises the memory of a write and makes the file long enough for it.
    ///
    /// Takes exact pages while the lane stays below `limits::EXACT_PAGES_BYTES_MAX`, whole aligned huge
    /// pages above; exact pages again where only those fit. A repeated call costs no system call
    /// (one for a granted lane).
    ///
    /// Errors: `NotFound`; `NoSpace`, naming the pool's fill: then nothing is kept of this call.
    pub fn prepare_write(&mut self, id: LaneId, offset: u64, length: u64) -> Result<()> {
        let range = checked_range(id, offset, length)?;
        self.refresh(id)?;
        let lane = self.lane(id)?;
        if range.is_empty() {
            return Ok(());
        }
        let pages = range.aligned_outward(PAGE_BYTES);
        if range.end <= lane.length && lane.present.as_ref().is_some_and(|present| present.contains(pages)) {
            return Ok(());
        }
        self.scan_pages(id)?;
        let file = self.file(id)?;
        let (missing, promised) = self.promise(id, range)?;
        let lane = self.lane(id)?;
        let (length, granted) = (lane.length, lane.granted);
        let taken = self.take(id, &file, range, &missing);
        let undone = if taken.is_err() { give_back(id, &file, length, &missing, granted) } else { Ok(()) };
        self.settle(id, &file, promised)?;
        undone?;
        taken?;
        self.tails = true;
        let lane = self.lane_mut(id)?;
        lane.tail = true;
        let present = lane.present.as_mut().expect("scanned above");
        missing.iter().for_each(|part| present.insert(*part));
        Ok(())
    }

    /// Fully allocates the first `length` bytes of a lane, as arrays are. What is there stays.
    ///
    /// It zeroes memory at some 10 to 20 GiB/s: grow a large lane in steps to stay answerable.
    /// Errors: as [`Store::prepare_write`].
    pub fn allocate(&mut self, id: LaneId, length: u64) -> Result<()> {
        self.prepare_write(id, 0, length)
    }

    /// Decides which pages to take and has the pool promise them. Before it refuses, what was taken
    /// ahead is given back, and pages of this lane that an earlier process took and nobody wrote.
    fn promise(&mut self, id: LaneId, range: ByteRange) -> Result<Promise> {
        let refused = |promise: &Result<Promise>| {
            promise.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
        };
        let mut promise = self.try_promise(id, range);
        if refused(&promise) && self.trim_tails()? {
            promise = self.try_promise(id, range);
        }
        if refused(&promise) && self.free_unwritten(id, range)? {
            promise = self.try_promise(id, range);
        }
        promise
    }

    fn try_promise(&self, id: LaneId, range: ByteRange) -> Result<Promise> {
        let lane = self.lane(id)?;
        let present = lane.present.as_ref().expect("scanned by the caller");
        if range.end.max(lane.length) >= limits::EXACT_PAGES_BYTES_MAX {
            let whole = present.missing(range.aligned_outward(limits::HUGE_PAGE_BYTES));
            let bytes = total(&whole);
            if self.pool.promise(Purpose::Lanes, bytes).is_ok() {
                return Ok((whole, bytes));
            }
        }
        let exact = present.missing(range.aligned_outward(PAGE_BYTES));
        let bytes = total(&exact);
        self.pool.promise(Purpose::Lanes, bytes)?;
        Ok((exact, bytes))
    }

    /// Gives back what any lane took ahead. Whether that freed something.
    fn trim_tails(&mut self) -> Result<bool> {
        if !std::mem::take(&mut self.tails) {
            return Ok(false);
        }
        let tails = self.lanes.iter().filter(|(_, lane)| lane.tail && lane.allocated > 0);
        let tails: Vec<LaneId> = tails.map(|(id, _)| *id).collect();
        let before = self.usage().used_bytes;
        for id in tails {
            self.trim(id)?;
        }
        Ok(self.usage().used_bytes < before)
    }

    /// Looks at the lane's pages anew, and frees those of a range that look like holes and yet hold memory:
    /// after a restart, pages that were taken and never written cannot be told from holes, and would be
    /// asked for a second time. Whether that changed anything.
    fn free_unwritten(&mut self, id: LaneId, range: ByteRange) -> Result<bool> {
        let file = self.file(id)?;
        let known = self.lane_mut(id)?.present.take();
        self.scan_pages(id)?;
        let lane = self.lane(id)?;
        let present = lane.present.as_ref().expect("scanned above");
        let learned = known.as_ref() != Some(present);
        let allocated = lane.allocated;
        if allocated <= present.total() {
            return Ok(learned);
        }
        let missing = present.missing(range.aligned_outward(PAGE_BYTES));
        let freed = punch_all(id, &file, &missing, true);
        self.settle(id, &file, 0)?;
        freed?;
        Ok(learned || self.lane(id)?.allocated < allocated)
    }

    /// Makes the file long enough and takes the missing pages.
    fn take(&mut self, id: LaneId, file: &OwnedFd, range: ByteRange, missing: &[ByteRange]) -> Result<()> {
        let length = self.lane(id)?.length.max(range.end);
        if range.end > self.lane(id)?.length {
            sys::tell(rustix::fs::ftruncate(file, length), format_args!("growing lane {id}"))?;
        }
        for part in missing {
            if self.root.has_huge_pages() {
                self.populate(id, *part, length);
            }
            sys::tell(sys::allocate(file, *part), format_args!("taking memory for lane {id}"))?;
        }
        Ok(())
    }

    /// Takes the whole huge pages of a missing part. Only a help: the fallocate that follows decides.
    fn populate(&mut self, id: LaneId, part: ByteRange, length: u64) {
        let huge = limits::HUGE_PAGE_BYTES;
        let whole = ByteRange { start: part.start.next_multiple_of(huge), end: part.end / huge * huge };
        // One page within the file brings the whole huge page; beyond the file's end none may be asked for.
        let inside =
            ByteRange { start: whole.start, end: whole.end.min(length.next_multiple_of(PAGE_BYTES)) };
        for piece in split_at(inside, limits::WINDOW_BYTES) {
            if let Ok(mapping) = self.mapping(id, piece.start / limits::WINDOW_BYTES) {
                let _ = mapping.populate(piece.start % limits::WINDOW_BYTES, piece.length());
            }
        }
    }
}

/// Undoes [`Store::take`]: the pages that were missing, and the length.
fn give_back(id: LaneId, file: &OwnedFd, length: u64, missing: &[ByteRange], granted: bool) -> Result<()> {
    punch_all(id, file, missing, granted)?;
    sys::tell(rustix::fs::ftruncate(file, length), format_args!("restoring the length of lane {id}"))
}

/// Frees parts of a lane; of a granted one only what holds no data at this moment, for a client may
/// have stored there since we looked.
fn punch_all(id: LaneId, file: &OwnedFd, parts: &[ByteRange], holes_only: bool) -> Result<()> {
    let doing = format!("giving memory of lane {id} back");
    for part in parts {
        let mut at = part.start;
        while holes_only && let Some(data) = sys::tell(sys::next_data(file, at, part.end), &doing)? {
            if at < data.start {
                sys::tell(sys::punch(file, ByteRange { start: at, end: data.start }), &doing)?;
            }
            at = data.end;
        }
        if at < part.end {
            sys::tell(sys::punch(file, ByteRange { start: at, end: part.end }), &doing)?;
        }
    }
    Ok(())
}

/// The parts to take, and their bytes as the pool has promised them.
type Promise = (Vec<ByteRange>, u64);

fn total(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.length()).sum()
}

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

use ramlace_base::{ByteRange, Error, ErrorKind, LaneId, Result, limits};

use crate::pool::Purpose;
use crate::store::{Store, checked_range, split_at};
use crate::sys::{self, PAGE_BYTES};

/// What is taken beside the pages that are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// The huge pages that they lie in, in lanes that are large enough.
    HugePages,
    Nothing,
}

impl Store {
    /// Promises the memory of a write and makes the file long enough for it.
    ///
    /// Takes exact pages while the lane stays below `limits::EXACT_PAGES_BYTES_MAX`, whole aligned huge
    /// pages above; exact pages again where only those fit. A repeated call costs no system call
    /// (one for a granted lane).
    ///
    /// Errors: `NotFound`; `NoSpace`, naming the pool's fill: then nothing is kept of this call, and all
    /// that an earlier one took for the lane's bytes, written or not.
    pub fn prepare_write(&mut self, id: LaneId, offset: u64, length: u64) -> Result<()> {
        self.prepare_writes(id, &[checked_range(id, offset, length)?])
    }

    /// The same for ranges that ascend and do not overlap: the memory of all of them, or nothing is kept. What lies between
    /// them takes none of its own.
    pub fn prepare_writes(&mut self, id: LaneId, ranges: &[ByteRange]) -> Result<()> {
        let lane = self.lane_mut(id)?;
        for range in ranges {
            checked_range(id, range.start, range.length())?;
            lane.blank.remove(range.aligned_outward(PAGE_BYTES));
        }
        if self.is_prepared(id, ranges)? {
            Ok(())
        } else {
            self.prepare(id, ranges, Ahead::HugePages).map(drop)
        }
    }

    /// The same for bytes that may be stored into, or not: whether all of them are zeros that were not written
    /// since their memory was taken. `quiet`: no write to the lane is in flight. While little room is left it
    /// takes exact pages, and refuses more than one of them: not all that is asked for ahead is used.
    ///
    /// Errors: as [`Store::prepare_write`].
    pub fn prepare_stores(&mut self, id: LaneId, offset: u64, length: u64, quiet: bool) -> Result<bool> {
        let range = checked_range(id, offset, length)?;
        let taken = self.take_for_stores(id, range)?;
        let lane = self.lane_mut(id)?;
        if quiet && !lane.granted {
            taken.iter().for_each(|part| lane.blank.insert(*part));
        }
        Ok(lane.blank.contains(range.aligned_outward(PAGE_BYTES)))
    }

    /// Returns what was not there before.
    fn take_for_stores(&mut self, id: LaneId, range: ByteRange) -> Result<Vec<ByteRange>> {
        if self.is_prepared(id, &[range])? {
            return Ok(Vec::new());
        }
        let (pages, usage) = (range.aligned_outward(PAGE_BYTES), self.usage());
        let is_ample = usage.free_for_lanes_bytes >= usage.size_bytes / limits::STORES_AHEAD_FRACTION;
        if !is_ample && pages.length() > PAGE_BYTES {
            self.scan_pages(id)?;
            if !self.lane(id)?.present.as_ref().is_some_and(|present| present.contains(pages)) {
                let text =
                    "little room is left: of pages that may not be stored into, one at a time gets memory";
                return Err(Error::new(ErrorKind::NoSpace, text));
            }
        }
        let ahead = if is_ample { Ahead::HugePages } else { Ahead::Nothing };
        self.prepare(id, &[range], ahead)
    }

    /// Whether the lane reaches so far and is known to have these pages.
    pub(crate) fn is_prepared(&mut self, id: LaneId, ranges: &[ByteRange]) -> Result<bool> {
        self.refresh(id)?;
        let lane = self.lane(id)?;
        let has = |pages| lane.present.as_ref().is_some_and(|present| present.contains(pages));
        let mut ranges = ranges.iter().filter(|range| !range.is_empty());
        Ok(ranges.all(|range| range.end <= lane.length && has(range.aligned_outward(PAGE_BYTES))))
    }

    /// Returns what was not there before, as far as that is known.
    fn prepare(&mut self, id: LaneId, ranges: &[ByteRange], ahead: Ahead) -> Result<Vec<ByteRange>> {
        self.scan_pages(id)?;
        let file = self.file(id)?;
        let (missing, promised) = self.promise(id, ranges, ahead)?;
        let taken = self.take_or_undo(id, &file, end_of(ranges), &missing);
        self.account(id, &file, promised)?;
        taken?;
        self.tails = true;
        let lane = self.lane_mut(id)?;
        lane.tail = true;
        let present = lane.present.as_mut().expect("scanned above");
        missing.iter().for_each(|part| present.insert(*part));
        Ok(missing)
    }

    /// Fully allocates the first `length` bytes of a lane, as arrays are. What is there stays.
    ///
    /// It zeroes memory at some 10 to 20 GiB/s: grow a large lane in steps to stay answerable.
    /// Errors: as [`Store::prepare_write`].
    pub fn allocate(&mut self, id: LaneId, length: u64) -> Result<()> {
        self.prepare_write(id, 0, length)
    }

    /// Decides which pages to take and has the pool promise them. Before it refuses, what was taken ahead is
    /// given back, and this lane is searched for pages that it holds and that are not recorded.
    fn promise(&mut self, id: LaneId, ranges: &[ByteRange], ahead: Ahead) -> Result<Promise> {
        let refused = |promise: &Result<Promise>| {
            promise.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
        };
        let mut promise = self.try_promise(id, ranges, ahead);
        if refused(&promise) && self.trim_tails()? {
            promise = self.try_promise(id, ranges, ahead);
        }
        if refused(&promise) {
            let before = self.usage().used_bytes;
            let mut found = false;
            for pages in aligned(ranges, PAGE_BYTES) {
                found |= self.find_unwritten(id, pages)?;
            }
            // What lies behind the lane's end cannot be found, and was given back by the search.
            if found || self.usage().used_bytes < before {
                promise = self.try_promise(id, ranges, ahead);
            }
        }
        promise
    }

    fn try_promise(&self, id: LaneId, ranges: &[ByteRange], ahead: Ahead) -> Result<Promise> {
        let lane = self.lane(id)?;
        let present = lane.present.as_ref().expect("scanned by the caller");
        let missing =
            |unit| aligned(ranges, unit).into_iter().flat_map(|part| present.missing(part)).collect();
        if ahead == Ahead::HugePages && end_of(ranges).max(lane.length) >= limits::EXACT_PAGES_BYTES_MAX {
            let whole: Vec<ByteRange> = missing(limits::HUGE_PAGE_BYTES);
            let bytes = total(&whole);
            if self.pool.promise(Purpose::Lanes, bytes).is_ok() {
                return Ok((whole, bytes));
            }
        }
        let exact: Vec<ByteRange> = missing(PAGE_BYTES);
        let bytes = total(&exact);
        self.pool.promise(Purpose::Lanes, bytes)?;
        Ok((exact, bytes))
    }

    /// Gives back what any lane took ahead. Whether that freed something.
    pub fn trim_tails(&mut self) -> Result<bool> {
        if !std::mem::take(&mut self.tails) {
            return Ok(false);
        }
        let tails = self.lanes.iter().filter(|(_, lane)| lane.tail && lane.allocated > 0);
        let tails: Vec<LaneId> = tails.map(|(id, _)| *id).collect();
        let before = self.usage().used_bytes;
        for id in tails {
            // The others are still to be trimmed.
            self.trim(id).inspect_err(|_| self.tails = true)?;
        }
        Ok(self.usage().used_bytes < before)
    }

    /// Makes the file long enough and takes the missing pages, or leaves all as it was.
    fn take_or_undo(&mut self, id: LaneId, file: &OwnedFd, end: u64, missing: &[ByteRange]) -> Result<()> {
        // Populated pages could not be told from those that were there and are not known.
        let is_known = self.unplaced_bytes(id)? == 0;
        let lane = self.lane(id)?;
        let (old, granted) = (lane.length, lane.granted);
        let new = old.max(end);
        if new > old {
            sys::tell(rustix::fs::ftruncate(file, new), format_args!("growing lane {id}"))?;
        }
        for (index, part) in missing.iter().enumerate() {
            if is_known && self.root.has_huge_pages() {
                self.populate(id, *part, new);
            }
            let taken = sys::tell(sys::allocate(file, *part), format_args!("taking memory for lane {id}"));
            if taken.is_err() {
                // The refused call has undone itself; where all is known, populating it has not.
                let touched = &missing[..index + usize::from(is_known)];
                punch_all(id, file, touched, granted || !is_known)?;
                self.restore_length(id, file, old, new)?;
                return taken;
            }
        }
        Ok(())
    }

    /// Undoes the growth of a file. That also frees what was taken ahead, which is then not known any more.
    fn restore_length(&mut self, id: LaneId, file: &OwnedFd, old: u64, new: u64) -> Result<()> {
        if new > old {
            sys::tell(rustix::fs::ftruncate(file, old), format_args!("restoring the length of lane {id}"))?;
            self.forget_pages(id, ByteRange { start: old.next_multiple_of(PAGE_BYTES), end: u64::MAX });
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

/// Frees parts of a lane; with `holes_only` what holds no data at this moment: in a granted one a client may
/// have stored there since the last scan, and elsewhere pages may have been there before.
pub(crate) fn punch_all(id: LaneId, file: &OwnedFd, parts: &[ByteRange], holes_only: bool) -> Result<()> {
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

/// The end of ascending ranges.
fn end_of(ranges: &[ByteRange]) -> u64 {
    ranges.last().map_or(0, |last| last.end)
}

/// The smallest ranges of whole units that have all bytes of ascending ones.
fn aligned(ranges: &[ByteRange], unit: u64) -> Vec<ByteRange> {
    let mut whole: Vec<ByteRange> = Vec::new();
    for part in ranges.iter().map(|range| range.aligned_outward(unit)) {
        match whole.last_mut() {
            Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
            _ => whole.push(part),
        }
    }
    whole
}

/// The parts to take, and their bytes as the pool has promised them.
type Promise = (Vec<ByteRange>, u64);

/// Bytes of disjoint ranges.
pub(crate) fn total(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.length()).sum()
}

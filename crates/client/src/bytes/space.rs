//! Requests that change a file's size and memory: allocate, free, truncate.

use std::sync::Arc;

use ramlace_base::{ByteRange, ErrorKind, Redirect, Result, limits};
use ramlace_wire::Attributes;
use ramlace_wire::chunk::{AllocateLane, LaneTarget, PunchChunk};
use ramlace_wire::inline::FirstPage;
use ramlace_wire::namespace::{NoteMemory, SetAttributes, TimeReason};

use crate::backoff::Backoff;
use crate::bytes::content::check_range;
use crate::bytes::file::File;
use crate::bytes::transfer::{Direction, Memory};
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;

/// Memory that one request takes: a server zeroes as much within the time that a request has, also where its machine gives
/// the memory for the first time.
const TAKEN_PER_REQUEST_BYTES: u64 = 1 << 30;

impl Client {
    /// Takes the memory of a part of a lane, in as many requests as it needs time for; nothing if it is clear from the
    /// beginning that it does not fit.
    pub(crate) fn take_memory_of_lane(
        self: &Arc<Client>,
        target: LaneTarget,
        span: ByteRange,
        keep_size: bool,
    ) -> Result<()> {
        let mut at = span.start;
        loop {
            let end = span.end.min(at + TAKEN_PER_REQUEST_BYTES);
            let request =
                AllocateLane { target, offset: at, length: end - at, more: span.end - end, keep_size };
            self.change_lane(target.slot, &request, self.deadline())?;
            if end == span.end {
                return Ok(());
            }
            at = end;
        }
    }
}

impl File {
    /// Sets the size. A file that reserves its memory ([`File::reserves`]) gets longer together with the
    /// memory of all that is new, or not at all (`NoSpace`).
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.set_size(size).map(drop)
    }

    /// The same; returns the attributes that the file has now.
    pub fn set_size(&self, size: u64) -> Result<Attributes> {
        self.needs_writing()?;
        let handle = self.handle()?;
        let written = handle.open.written();
        let _changing = self.changing(ByteRange { start: size, end: u64::MAX });
        // A file that is open for writing can be truncated, whatever its mode says now.
        let change = || crate::acting::for_nobody(|| handle.session.truncate(self.inode(), size));
        let mut backoff: Option<Backoff> = None;
        let attributes = loop {
            if self.reserves() {
                // A kernel that truncates writes nothing back, and drops nothing that programs have stored, until it is answered.
                self.reserve_growth(size, FirstPage::Locked)?;
            }
            match change() {
                // It has become shorter in between.
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Reserved) && self.reserves() => {
                    let begin = || Backoff::new(handle.session.deadline());
                    backoff.get_or_insert_with(begin).pause_after(error).map_err(|error| self.tell(error))?;
                    self.refresh(handle).map_err(|error| self.tell(error))?;
                }
                changed => break changed.map_err(|error| self.tell(error))?,
            }
        };
        handle.open.learn(Size { generation: attributes.generation, size: attributes.size });
        handle.open.clean_if(written);
        Ok(attributes)
    }

    /// For a mount whose kernel says that the user who writes through this file may not keep set-id bits:
    /// clears them, and returns the attributes that the file has now. Within [`crate::acting_for`] also the
    /// set-group-id bit of a group that the user is not in, where that group may not run the file.
    pub fn drop_set_id(&self) -> Result<Attributes> {
        self.needs_writing()?;
        let session = &self.handle()?.session;
        let modified = Some(crate::names::inodes::now());
        let times = TimeReason::WroteAndDropsSetId;
        let request = SetAttributes { modified, times, ..SetAttributes::nothing(self.inode()) };
        session.change(self.inode().slot(), &request, session.deadline()).map_err(|error| self.tell(error))
    }

    /// Allocates the memory of the file's first `length` bytes and makes the file at least that long.
    /// `NoSpace` when not all of it fits; what some lanes have allocated by then is freed at the last close.
    pub fn allocate(&self, length: u64) -> Result<()> {
        self.reserve(ByteRange { start: 0, end: length }, false)
    }

    /// Allocates memory for a range of the file, as `fallocate` does: afterwards a write to it cannot fail
    /// with NoSpace. Makes the file reach the range's end unless `keep_size`. Memory beyond the file's end
    /// stays allocated until a truncation or the file's own end.
    ///
    /// Errors: `NoSpace` when not all of it fits. Some lanes may have allocated theirs then; what an earlier
    /// call has allocated stays so.
    pub fn reserve(&self, range: ByteRange, keep_size: bool) -> Result<()> {
        self.reserve_as(range, keep_size, FirstPage::Free)
    }

    /// The same, and what a kernel may have of a small file's first page meanwhile.
    fn reserve_as(&self, range: ByteRange, keep_size: bool, first_page: FirstPage) -> Result<()> {
        self.needs_writing()?;
        check_range(range.start, range.length()).map_err(|error| self.tell(error))?;
        let handle = self.handle()?;
        self.promote_as(handle, first_page).map_err(|error| self.tell(error))?;
        self.with_size(handle, |size| self.reserve_lanes(handle, size, range, keep_size))
            .map_err(|error| self.tell(error))
    }

    /// Makes the file at least `end` bytes long, with memory for all that is new. Sends no request if the
    /// file is known to reach that far. `first_page`: what a kernel may have of it while this lasts.
    ///
    /// Errors: as [`File::reserve`]; the file is not longer then.
    pub fn reserve_growth(&self, end: u64, first_page: FirstPage) -> Result<()> {
        let handle = self.handle()?;
        let size = self.size_for(handle, end)?.size;
        // A file as small as this is inline.
        if end <= size || end <= limits::INLINE_BYTES_MAX as u64 {
            return Ok(());
        }
        self.reserve_as(ByteRange { start: size, end }, false, first_page)
    }

    /// Bytes are about to be written from here on: a file that reserves its memory must have no hole before
    /// them.
    pub(crate) fn reserve_gap(&self, to: u64, first_page: FirstPage) -> Result<()> {
        if self.reserves() { self.reserve_growth(to, first_page) } else { Ok(()) }
    }

    /// Makes a range read as zeros and keeps memory for it, as `FALLOC_FL_ZERO_RANGE` does. Makes the file
    /// reach the range's end unless `keep_size`.
    ///
    /// Not atomic: memory is freed and allocated again, as [`File::punch`] and [`File::reserve`] do. Errors:
    /// `NoSpace` when it cannot be allocated again; then the range reads as zeros too.
    pub fn zero(&self, range: ByteRange, keep_size: bool) -> Result<()> {
        if keep_size && !range.is_empty() {
            // Where a kernel has the file, no memory can be kept behind its end: this is refused before
            // anything has changed.
            self.reserve(ByteRange { start: range.end - 1, end: range.end }, true)?;
        }
        self.punch(range)?;
        self.reserve(range, keep_size)
    }

    /// Frees a range; it reads as zeros afterwards. The size stays.
    pub fn punch(&self, range: ByteRange) -> Result<()> {
        self.needs_writing()?;
        check_range(range.start, range.length()).map_err(|error| self.tell(error))?;
        let handle = self.handle()?;
        self.promote_as(handle, FirstPage::Free).map_err(|error| self.tell(error))?;
        let session = &handle.session;
        let _changing = self.changing(range);
        let punch = |size: Size| {
            self.each_lane(handle, size, range, |target, span| {
                let request = PunchChunk { target, offset: span.start, length: span.length() };
                session.change_lane(target.slot, &request, session.deadline())
            })?;
            session.touch(&handle.open);
            Ok(())
        };
        self.with_size(handle, punch).map_err(|error| self.tell(error))?;
        // Not before the punch: a write in between would reach the home after this, and the home would not
        // know of the hole.
        self.note_memory(handle, handle.open.size(), range, false).map_err(|error| self.tell(error))
    }

    /// Notifies the home of a change of memory that the size does not show.
    fn note_memory(&self, handle: &Handle, size: Size, range: ByteRange, taken: bool) -> Result<()> {
        let (inode, generation) = (self.inode(), size.generation);
        let request = NoteMemory { inode, generation, start: range.start, end: range.end, taken };
        crate::acting::for_nobody(|| handle.session.change(inode.slot(), &request, handle.session.deadline()))
    }

    fn reserve_lanes(&self, handle: &Handle, size: Size, range: ByteRange, keep_size: bool) -> Result<()> {
        let session = &handle.session;
        self.each_lane(handle, size, range, |target, span| {
            session.take_memory_of_lane(target, span, keep_size)
        })?;
        if keep_size || range.end <= size.size {
            return self.note_memory(handle, size, range, true);
        }
        self.extend(handle, size, range)
    }

    /// Calls `each` for every lane with bytes in a range: with the lane, and the range within it.
    fn each_lane(
        &self,
        handle: &Handle,
        size: Size,
        range: ByteRange,
        mut each: impl FnMut(LaneTarget, ByteRange) -> Result<()>,
    ) -> Result<()> {
        let transfer = self.transfer(handle, size, Direction::Write, Memory::none());
        for lane in 0..self.layout().width {
            let span = ramlace_layout::lane_span(self.layout(), lane, range);
            if !span.is_empty() {
                each(transfer.target(lane)?, span)?;
            }
        }
        Ok(())
    }
}

//! Bytes of inline files, which live with their inode until the file grows beyond
//! [`limits::INLINE_BYTES_MAX`].
//!
//! A file is promoted to its lanes once, for ever. So a client that believes a file to be in its lanes is
//! right. One that believes it to be inline learns better from the home when it asks, and then uses the
//! lanes.

use std::cell::Cell;
use std::io::IoSliceMut;

use ramlace_base::{ByteRange, Epoch, ErrorKind, Result, limits};
use ramlace_wire::chunk::{Keep, WriteOrigin};
use ramlace_wire::inline::{
    Bytes, FirstPage, InlineMode, InlineOutcome, InlineWritten, Promote, ReadInline, WriteInline,
};
use ramlace_wire::namespace::SizeInfo;
use ramlace_wire::{Layout, Request};

use crate::bytes::file::File;
use crate::bytes::memory::Memory;
use crate::bytes::pages::Pages;
use crate::bytes::pieces;
use crate::bytes::transfer::Direction;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::session::calls::Call;
use crate::session::lines::reply_without_data;
use crate::session::sequences::NumberFor;

const BYTES_MAX: u64 = limits::INLINE_BYTES_MAX as u64;

impl File {
    /// Reads from an inline file, atomically; `None` when it is in its lanes, or has to be promoted because
    /// memory is needed for what is read.
    pub(crate) fn read_inline(
        &self,
        handle: &Handle,
        direction: Direction,
        memory: &Memory<'_>,
        offset: u64,
        length: u64,
        pages: Pages<'_>,
    ) -> Result<Option<usize>> {
        if !handle.open.is_inline() {
            return Ok(None);
        }
        let session = &handle.session;
        if pages.keep() == Keep::Own {
            // Ownership by page exists only in lanes.
            self.promote_while_reading(handle, pages, offset)?;
            return Ok(None);
        }
        // Behind its bytes an inline file has zeros up to its end.
        let wanted = length.min(BYTES_MAX.saturating_sub(offset)) as u32;
        let slot = self.inode().slot();
        session.listen_for_pages(slot, pages)?;
        let request =
            ReadInline { inode: self.inode(), offset, length: wanted, keep: pages.keep() != Keep::No };
        let call = Call::of_slot(slot, session.deadline());
        let call = Call { repeated: pages.repeated(), ..call };
        let answer = session.call(&request, &call, |_, received| reply_without_data(received))?;
        handle.open.learn(size_of(answer.size));
        let Some(bytes) = answer.bytes else {
            handle.open.goes_to_lanes(answer.since);
            return Ok(None);
        };
        let there = answer.size.size.saturating_sub(offset).min(length);
        if direction == Direction::Fault && (bytes.0.len() as u64) < there {
            // Bytes stored behind the inline ones would have no memory.
            self.promote_while_reading(handle, pages, offset)?;
            return Ok(None);
        }
        let range = ByteRange { start: offset, end: offset + there };
        memory.with_targets(range, |targets| scatter(&bytes.0, targets));
        pages.note_inline();
        Ok(Some(there as usize))
    }

    /// Writes to an inline file; `false` when it is in its lanes: nothing was written, or all will be written
    /// again.
    pub(crate) fn write_inline(
        &self,
        handle: &Handle,
        memory: &Memory<'_>,
        pages: Pages<'_>,
    ) -> Result<bool> {
        if !handle.open.is_inline() {
            return Ok(false);
        }
        if memory.ranges().any(|range| range.end > BYTES_MAX) {
            self.promote_as(handle, pages.first_page())?;
            return Ok(false);
        }
        for range in memory.ranges() {
            let bytes = memory.copied(range);
            if self.change_inline(handle, InlineMode::At, range.start, bytes, pages)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the first bytes of a file straight to its lane when they are more than an inode holds: the
    /// lane's server asks the home to promote the file. `None`: nothing was written, and the file has to be
    /// promoted first, as one that has bytes or has been read here.
    pub(crate) fn begin_lanes(
        &self,
        handle: &Handle,
        memory: &mut Memory<'_>,
        range: ByteRange,
        pages: Pages<'_>,
    ) -> Result<Option<usize>> {
        let created = self.layout().created;
        let is_first = handle.open.is_inline() && handle.open.size().size == 0 && range.end > BYTES_MAX;
        // The epoch of the promotion decides what is a hole. Of several pieces, one might find no room.
        let is_one = || memory.ranges().count() == 1 && is_one_piece(self.layout(), range);
        let can_be = || self.is_current_epoch(handle, created) && is_one();
        if !is_first || !can_be() {
            return Ok(None);
        }
        match self.write_to_lanes(handle, memory, range, pages) {
            Ok(bytes) => {
                // Otherwise the next call asks the home for that epoch.
                if self.is_current_epoch(handle, created) {
                    handle.open.goes_to_lanes(created);
                }
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_current_epoch(&self, handle: &Handle, epoch: Epoch) -> bool {
        handle.session.known_map().is_some_and(|map| map.epoch == epoch)
    }

    /// Writes a part of the memory, given by the memory's own offsets, to an inline file; `false` as for
    /// [`File::write_inline`].
    pub(crate) fn write_run_inline(
        &self,
        handle: &Handle,
        offset: u64,
        memory: &Memory<'_>,
        part: ByteRange,
    ) -> Result<bool> {
        if !handle.open.is_inline() {
            return Ok(false);
        }
        let bytes = memory.copied(part);
        Ok(self.change_inline(handle, InlineMode::At, offset, bytes, Pages::None)?.is_some())
    }

    /// Writes to an inline file up to its end; `false` when it is in its lanes, and nothing was written.
    pub(crate) fn write_inline_within(
        &self,
        handle: &Handle,
        bytes: &[u8],
        offset: u64,
        pages: Pages<'_>,
    ) -> Result<bool> {
        if !handle.open.is_inline() {
            return Ok(false);
        }
        if bytes.is_empty() {
            return Ok(true);
        }
        let end = offset + bytes.len() as u64;
        let mut there = bytes;
        if end > BYTES_MAX {
            // More than one request holds: pages behind the file's end can be left out.
            let size = self.size_for(handle, end)?;
            there = &bytes[..size.size.saturating_sub(offset).min(bytes.len() as u64) as usize];
            if there.is_empty() {
                return Ok(true);
            }
            if offset + there.len() as u64 > BYTES_MAX {
                self.promote_as(handle, pages.first_page())?;
                return Ok(false);
            }
        }
        let written = self.change_inline(handle, InlineMode::Within, offset, there.to_vec(), pages)?;
        Ok(written.is_some())
    }

    /// Appends to an inline file and returns the offset; `None` when it is in its lanes, and nothing was
    /// written.
    pub(crate) fn append_inline(
        &self,
        handle: &Handle,
        bytes: &[u8],
        pages: Pages<'_>,
    ) -> Result<Option<u64>> {
        if !handle.open.is_inline() {
            return Ok(None);
        }
        if bytes.len() as u64 > BYTES_MAX {
            self.promote_as(handle, pages.first_page())?;
            return Ok(None);
        }
        let written = self.change_inline(handle, InlineMode::End, 0, bytes.to_vec(), pages)?;
        Ok(written.map(|written| written.offset))
    }

    /// `None`: the file is in its lanes.
    fn change_inline(
        &self,
        handle: &Handle,
        mode: InlineMode,
        offset: u64,
        bytes: Vec<u8>,
        pages: Pages<'_>,
    ) -> Result<Option<InlineWritten>> {
        let session = &handle.session;
        let before = handle.open.written();
        let (slot, deadline, origin) = (self.inode().slot(), session.deadline(), pages.origin());
        session.listen_for_pages(slot, pages)?;
        let request = WriteInline { inode: self.inode(), mode, offset, bytes: Bytes(bytes), origin };
        // A promise recalls nothing before it is answered.
        if matches!(origin, WriteOrigin::Program | WriteOrigin::Through)
            && let Some(written) = session.write_behind(&request)
        {
            handle.open.learn(size_of(written.size));
            handle.open.clean_if(before);
            return Ok(Some(written));
        }
        let purpose = if origin == WriteOrigin::Back { NumberFor::InlinePages } else { NumberFor::Program };
        let ticket = session.ticket_for(purpose, slot, deadline)?;
        let lost = Cell::new(false);
        let call = Call { ticket: Some(&ticket), repeated: Some(&lost), ..Call::of_slot(slot, deadline) };
        let written = session.call(&request, &call, |line, received| {
            let written = reply_without_data(received)?;
            pages.note_recall(line.server_id(), written.recall);
            Ok(written)
        });
        let written = session.answered(WriteInline::KIND, ticket, lost.get(), written)?;
        handle.open.learn(size_of(written.size));
        match written.outcome {
            InlineOutcome::Written => {
                // The home has set the file's time by its own clock for this change.
                handle.open.clean_if(before);
                Ok(Some(written))
            }
            InlineOutcome::InLanes => {
                handle.open.goes_to_lanes(written.since);
                Ok(None)
            }
            InlineOutcome::Full => self.promote_as(handle, pages.first_page()).map(|()| None),
        }
    }

    /// Makes sure that the file is in its lanes, for operations that need lanes.
    ///
    /// Errors: `NoSpace` when lane 0 has no room; the file stays inline then.
    pub(crate) fn promote(&self, handle: &Handle) -> Result<()> {
        self.promote_as(handle, FirstPage::Locked)
    }

    /// The same for what is read from `offset` on, perhaps for a kernel's pages.
    fn promote_while_reading(&self, handle: &Handle, pages: Pages<'_>, offset: u64) -> Result<()> {
        let reads = pages.keep() != Keep::No && offset == 0;
        self.promote_as(handle, if reads { FirstPage::Read } else { FirstPage::Locked })
    }

    /// The same, and what a kernel may have of the first page meanwhile.
    pub(crate) fn promote_as(&self, handle: &Handle, first_page: FirstPage) -> Result<()> {
        if !handle.open.is_inline() {
            return Ok(());
        }
        let session = &handle.session;
        if first_page != FirstPage::Free {
            self.listen_to_lane_0(handle);
        }
        let request = Promote { inode: self.inode(), first_page };
        if first_page != FirstPage::Free
            && let Some(promoted) = session.promote_behind(request)
        {
            // The lanes will ask the file's home about it.
            session.sync_promises(self.inode().slot(), session.deadline())?;
            handle.open.learn(size_of(promoted.size));
            handle.open.goes_to_lanes(promoted.since);
            return Ok(());
        }
        let promoted = session.change(self.inode().slot(), &request, session.deadline())?;
        handle.open.learn(size_of(promoted.size));
        handle.open.goes_to_lanes(promoted.since);
        Ok(())
    }

    /// A kernel may have the first page of the file still when its bytes are in lane 0: whoever changes them there recalls
    /// it from sessions that listen there. If that server cannot be reached the bytes do not move, either.
    fn listen_to_lane_0(&self, handle: &Handle) {
        let session = &handle.session;
        let _ = session.map().and_then(|map| {
            let slot = ramlace_layout::lane_slot(self.layout(), 0, map.slots());
            session.listen_for_pages(slot, Pages::Through)
        });
    }
}

fn is_one_piece(layout: &Layout, range: ByteRange) -> bool {
    pieces::single(layout, range).is_some()
}

fn size_of(reply: SizeInfo) -> Size {
    Size { generation: reply.generation, size: reply.size }
}

/// Fills the targets with the bytes, one after the other, and the rest with zeros.
fn scatter(mut bytes: &[u8], targets: &mut [IoSliceMut<'_>]) {
    for target in targets {
        let length = bytes.len().min(target.len());
        let (there, behind) = target.split_at_mut(length);
        let (now, later) = bytes.split_at(there.len());
        there.copy_from_slice(now);
        behind.fill(0);
        bytes = later;
    }
}

//! A file's bytes: positional reads and writes, appends, and the size that follows them.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{ByteRange, Error, ErrorKind, Result, limits};
use ramlace_wire::namespace::{AppendReserved, Extend, FinishAppend, ReserveAppend, SizeInfo};

use crate::backoff::Backoff;
use crate::bytes::file::File;
use crate::bytes::growth::Growth;
use crate::bytes::pages::Pages;
use crate::bytes::transfer::{Direction, Memory, Outcome, Transfer};
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::session::pending::{Acknowledged, Message, Subject};

impl File {
    /// Reads at `offset` until the buffer is full or the file ends; returns the bytes read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(read) = self.read_kept_here(buffer, offset) {
            return read;
        }
        self.read_into(&mut Memory::of_slice(buffer, offset), offset)
    }

    /// Reads at `offset` into several buffers, one after the other.
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.read_into(&mut Memory::of_slices_mut(buffers, offset), offset)
    }

    /// Writes at `offset` and returns the bytes written. These are fewer than given only when the pool became
    /// full in the middle; the next call then returns the error.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        if self.append {
            return self.append(bytes).map(|_| bytes.len());
        }
        self.write_from(&mut Memory::of_bytes(bytes, offset), offset)
    }

    /// Writes several buffers, one after the other.
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        if self.append {
            let joined: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            return self.append(&joined).map(|_| joined.len());
        }
        self.write_from(&mut Memory::of_slices(buffers, offset), offset)
    }

    /// Writes what lies below the file's size; see [`File::write_back`].
    pub(crate) fn write_within(&self, bytes: &[u8], offset: u64, pages: Pages<'_>) -> Result<usize> {
        self.needs_writing()?;
        let handle = self.handle()?;
        let length = bytes.len() as u64;
        check_range(offset, length).map_err(|error| self.tell(error))?;
        if self.write_inline_within(handle, bytes, offset, pages).map_err(|error| self.tell(error))? {
            return Ok(bytes.len());
        }
        let mut memory = Memory::of_bytes(bytes, offset);
        let write = |_| {
            let size = self.size_for(handle, offset + length)?;
            let there = size.size.saturating_sub(offset).min(length);
            if there == 0 {
                return Ok(bytes.len());
            }
            let written =
                self.write_once(handle, size, memory.clamped(there as usize), offset, pages, None)?;
            handle.session.touch(&handle.open);
            Ok(if written == there { bytes.len() } else { written as usize })
        };
        self.with_size(handle, write).map_err(|error| self.tell(error))
    }

    /// Writes all bytes at the file's end, which the home chooses, and returns where that was.
    /// Bytes of one append are never mixed with another's; a failed one leaves a hole.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.append_pages(bytes, Pages::None)
    }

    /// The same for bytes that a kernel may cache.
    pub(crate) fn append_pages(&self, bytes: &[u8], pages: Pages<'_>) -> Result<u64> {
        self.needs_writing()?;
        let handle = self.handle()?;
        if bytes.is_empty() {
            return self.size();
        }
        let offset = self.append_all(handle, bytes, pages).map_err(|error| self.tell(error))?;
        // Where it would be was not known before.
        self.forget_kept(ByteRange { start: offset, end: offset + bytes.len() as u64 });
        Ok(offset)
    }

    fn append_all(&self, handle: &Handle, bytes: &[u8], pages: Pages<'_>) -> Result<u64> {
        if let Some(offset) = self.append_inline(handle, bytes, pages)? {
            return Ok(offset);
        }
        let session = &handle.session;
        let mut backoff = Backoff::new(session.deadline());
        // Until then nothing behind those reservations is published.
        session.send_pending(Subject::Appends(self.inode()), session.deadline())?;
        loop {
            let request = ReserveAppend { inode: self.inode(), length: bytes.len() as u64 };
            let reserved = session.change(self.inode().slot(), &request, session.deadline())?;
            let memory = Memory::of_bytes(bytes, reserved.offset);
            let size = Size { generation: reserved.generation, size: reserved.offset };
            let outcome = self.transfer_of(pages, handle, size, Direction::Write, memory).run();
            // Finished even after a failure: an open reservation holds back the published size. So the home is notified for
            // as long as this session lives.
            let failed = !matches!(outcome, Outcome::Done);
            let finished = self.finish_append(handle, &reserved, failed);
            if finished.is_err() {
                session.send_later(Message::FailAppend(reserved));
            }
            match outcome {
                Outcome::Failed { error, .. } => return Err(error),
                Outcome::Outdated(error) => {
                    finished?;
                    backoff.pause_after(error)?;
                }
                Outcome::Done => match finished? {
                    Some(size) => {
                        handle.open.learn(Size { generation: size.generation, size: size.size });
                        return Ok(reserved.offset);
                    }
                    None => backoff.pause_after(cut_off())?,
                },
            }
        }
    }

    /// Reports to the home that the reserved bytes are written, or will not be. `None`: the file was truncated
    /// before the home learned of it, and the reservation is gone.
    fn finish_append(
        &self,
        handle: &Handle,
        reserved: &AppendReserved,
        failed: bool,
    ) -> Result<Option<SizeInfo>> {
        let (session, inode) = (&handle.session, self.inode());
        let AppendReserved { number, generation, .. } = *reserved;
        let request = FinishAppend { inode, number, failed };
        let mut backoff = Backoff::new(session.deadline());
        loop {
            match session.change_lane(inode.slot(), &request, session.deadline()) {
                // The home also answers Retry for transient reasons: then the reservation is still there and
                // must be finished.
                Err(error) if error.kind() == ErrorKind::Retry => {
                    if self.refresh(handle)?.attributes.generation != generation {
                        return Ok(None);
                    }
                    backoff.pause_after(error)?;
                }
                finished => return finished.map(Some),
            }
        }
    }

    pub(crate) fn transfer<'a>(
        &'a self,
        handle: &'a Handle,
        size: Size,
        direction: Direction,
        memory: Memory<'a>,
    ) -> Transfer<'a> {
        self.transfer_of(Pages::None, handle, size, direction, memory)
    }

    /// The same for bytes that a kernel caches.
    pub(crate) fn transfer_of<'a>(
        &'a self,
        pages: Pages<'a>,
        handle: &'a Handle,
        size: Size,
        direction: Direction,
        memory: Memory<'a>,
    ) -> Transfer<'a> {
        Transfer::of((self.inode(), self.layout()), pages, handle, size, direction, memory)
    }

    /// Reads the file's bytes from `offset` on into the caller's memory.
    pub(crate) fn read_into(&self, memory: &mut Memory<'_>, offset: u64) -> Result<usize> {
        self.read_pages(Direction::Read, memory, offset, Pages::None)
    }

    /// The same for pages that a kernel may cache, and that programs may store into.
    pub(crate) fn read_pages(
        &self,
        direction: Direction,
        memory: &mut Memory<'_>,
        offset: u64,
        pages: Pages<'_>,
    ) -> Result<usize> {
        if direction == Direction::Read {
            self.needs(self.rights().read, "reading")?;
        }
        let handle = self.handle()?;
        // The file cannot reach beyond the largest file size.
        let length = (memory.bytes() as u64).min(limits::FILE_BYTES_MAX.saturating_sub(offset));
        if length == 0 {
            return Ok(0);
        }
        let inline = self.read_inline(handle, direction, memory, offset, length, pages);
        if let Some(read) = inline.map_err(|error| self.tell(error))? {
            return Ok(read);
        }
        let mut backoff: Option<Backoff> = None;
        loop {
            let size = self.size_for(handle, offset + length).map_err(|error| self.tell(error))?;
            let there = size.size.saturating_sub(offset).min(length);
            if there == 0 {
                return Ok(0);
            }
            let clamped = memory.clamped(there as usize);
            pages.note_whole(there == length);
            let transfer = self.transfer_of(pages, handle, size, direction, clamped);
            let near = match direction {
                Direction::Read if !pages.are_strict() => self.read_near(handle, &transfer),
                // Only a server can allocate memory, and knows which other kernels have the pages.
                _ => None,
            };
            match near.unwrap_or_else(|| transfer.run()) {
                Outcome::Done if transfer.saw_hole.get() && !self.is_current(handle, size)? => {}
                Outcome::Done => return Ok(there as usize),
                Outcome::Failed { error, .. } => return Err(self.tell(error)),
                Outcome::Outdated(error) => {
                    let backoff = backoff.get_or_insert_with(|| Backoff::new(handle.session.deadline()));
                    backoff.pause_after(error).map_err(|error| self.tell(error))?;
                    self.refresh(handle).map_err(|error| self.tell(error))?;
                }
            }
        }
    }

    /// Asks the home whether the file still has this generation.
    pub(crate) fn is_current(&self, handle: &Handle, size: Size) -> Result<bool> {
        let info = self.refresh(handle).map_err(|error| self.tell(error))?;
        Ok(info.attributes.generation == size.generation)
    }

    /// Writes the file's bytes from the caller's memory, which begins at `offset`; returns the bytes written. Where
    /// the pool becomes full in the middle these are fewer than given. For memory with gaps that is an error: a count
    /// would not say which bytes were written.
    pub(crate) fn write_from(&self, memory: &mut Memory<'_>, offset: u64) -> Result<usize> {
        self.write_pages(memory, offset, Pages::None)
    }

    /// The same for bytes that a kernel may cache.
    pub(crate) fn write_pages(
        &self,
        memory: &mut Memory<'_>,
        offset: u64,
        pages: Pages<'_>,
    ) -> Result<usize> {
        self.needs_writing()?;
        let handle = self.handle()?;
        let length = memory.bytes() as u64;
        check_range(offset, length).map_err(|error| self.tell(error))?;
        if length == 0 {
            return Ok(0);
        }
        let (written, last) = (memory.hull().unwrap_or_default(), memory.last_range());
        check_range(offset, written.length()).map_err(|error| self.tell(error))?;
        self.reserve_gap(last.start, pages.first_page())?;
        let _changing = self.changing(written);
        if let Some(bytes) =
            self.begin_lanes(handle, memory, written, pages).map_err(|error| self.tell(error))?
        {
            return Ok(bytes);
        }
        if self.write_inline(handle, memory, pages).map_err(|error| self.tell(error))? {
            return Ok(memory.bytes());
        }
        self.write_to_lanes(handle, memory, written, pages).map_err(|error| self.tell(error))
    }

    /// Writes bytes into lanes, all of them unless the pool becomes full in the middle, and reports to the home
    /// where the file grew.
    pub(crate) fn write_to_lanes(
        &self,
        handle: &Handle,
        memory: &mut Memory<'_>,
        range: ByteRange,
        pages: Pages<'_>,
    ) -> Result<usize> {
        handle.session.before_lanes(self.inode())?;
        // The home is notified of the last range: what lies before it may be a hole.
        let (last, has_gaps) = (memory.last_range(), memory.bytes() as u64 != range.length());
        let write = |size: Size| {
            let before = handle.open.written();
            let growth = Growth::to(range);
            let grows = (range.end > size.size).then_some(&growth);
            let written = self.write_once(handle, size, memory.whole(), range.start, pages, grows);
            if has_gaps && written.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
                // Some of it may be written.
                handle.session.touch(&handle.open);
            }
            let written = written?;
            let missing = memory.bytes() as u64 - written;
            match growth.answer() {
                Some(answer) => learn_size(handle, answer, before),
                None => self.extend(handle, size, ByteRange { end: last.end - missing, ..last })?,
            }
            Ok(written as usize)
        };
        self.with_size(handle, write)
    }

    /// Writes with one generation and returns the bytes written: fewer than given when the pool became full
    /// in the middle, which is an error for memory with gaps. Retry: the file has another generation.
    fn write_once(
        &self,
        handle: &Handle,
        size: Size,
        memory: Memory<'_>,
        offset: u64,
        pages: Pages<'_>,
        growth: Option<&Growth>,
    ) -> Result<u64> {
        let bytes = memory.bytes() as u64;
        let has_gaps = memory.hull().is_some_and(|hull| hull.length() != bytes);
        let transfer = self.transfer_of(pages, handle, size, Direction::Write, memory);
        match (Transfer { growth, ..transfer }).run() {
            Outcome::Done => Ok(bytes),
            Outcome::Failed { done_to, error }
                if error.kind() == ErrorKind::NoSpace && done_to > offset && !has_gaps =>
            {
                Ok(done_to - offset)
            }
            Outcome::Failed { error, .. } | Outcome::Outdated(error) => Err(error),
        }
    }

    /// Reports to the home the end of what was written, unless the file is known to reach it; marks the file as
    /// written.
    pub(crate) fn extend(&self, handle: &Handle, size: Size, written: ByteRange) -> Result<()> {
        let ByteRange { start: from, end } = written;
        if end <= size.size {
            handle.session.touch(&handle.open);
            return Ok(());
        }
        let written = handle.open.written();
        let request = Extend { inode: self.inode(), generation: size.generation, size: end, from };
        let reply = handle.session.change_lane(self.inode().slot(), &request, handle.session.deadline())?;
        learn_size(handle, reply, written);
        Ok(())
    }
}

impl Client {
    /// Notifies a home that bytes which it has reserved will not be written, from the outbox.
    pub(crate) fn tell_append_failed(
        self: &Arc<Client>,
        reserved: AppendReserved,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        let AppendReserved { inode, number, .. } = reserved;
        let request = FinishAppend { inode, number, failed: true };
        self.unless_unacknowledged(self.change(inode.slot(), &request, deadline).map(drop))
    }
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Retry, "the file was truncated again and again while bytes were appended to it")
}

/// The home has applied a write that began after `before` was read. It has set the file's time by its own
/// clock, which is later than that of any write it did not know of.
fn learn_size(handle: &Handle, reply: SizeInfo, before: i64) {
    handle.open.learn(Size { generation: reply.generation, size: reply.size });
    handle.open.clean_if(before);
}

pub(crate) fn check_range(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
        _ => Err(Error::new(
            ErrorKind::TooBig,
            format!(
                "{length} bytes at offset {offset} reach beyond the largest file, {} bytes",
                limits::FILE_BYTES_MAX
            ),
        )),
    }
}

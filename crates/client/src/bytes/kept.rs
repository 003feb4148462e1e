//! Reads and writes for the pages of this machine's kernel, which a mount requests.
//!
//! Servers give leases on such bytes and recall them when another client changes them
//! ([`crate::names::leases`]). Reads and writes of the library cache nothing and need no lease.

use std::cell::RefCell;

use ramlace_base::{ByteRange, Result};
use ramlace_wire::chunk::{Keep, ReadChunk};

use crate::bytes::file::File;
use crate::bytes::memory::Memory;
use crate::bytes::pages::{KeptRead, Noted, Pages, RecallsMade};
use crate::bytes::transfer::Direction;
use crate::session::lines::{of_pages, of_strict_reads, of_write_backs};
use crate::session::places::OnTurn;

impl File {
    /// As [`File::read_at`], for pages that a kernel will cache until [`crate::DataLeases`] are asked to drop
    /// them.
    ///
    /// `on_turn` is told [`crate::Turn::Waits`] when the request for all of the bytes has to wait for a connection, and
    /// [`crate::Turn::Comes`] before it is sent. In between nothing of the answer is known here: whatever is recalled of
    /// these pages meanwhile, the answer is newer. Not of a read that goes beyond the file's end, as it is known here.
    pub fn read_keeping(&self, buffer: &mut [u8], offset: u64, on_turn: OnTurn<'_>) -> Result<KeptRead> {
        self.read_kept(Direction::Read, Keep::Share, buffer, offset, on_turn)
    }

    /// A kernel will cache pages that lie behind the end of the file, as zeros: others recall them when the file grows
    /// over them. Not for strict mounts, nor for bytes that live with the inode: a read for pages has a lease on all of
    /// them.
    pub fn keep_behind(&self, range: ByteRange) -> Result<()> {
        let handle = self.handle()?;
        let (session, layout, noted) = (&handle.session, self.layout(), Noted::default());
        let pages = Pages::Keep(Keep::BehindEnd, &noted);
        let ask = |size| {
            let transfer = self.transfer_of(pages, handle, size, Direction::Read, Memory::none());
            for lane in (0..layout.width).filter(|_| !handle.open.is_inline()) {
                let span = ramlace_layout::lane_span(layout, lane, range);
                if span.is_empty() {
                    continue;
                }
                // A kernel reads at most as many bytes as a request may ask for.
                let (target, length) = (transfer.target(lane)?, span.length() as u32);
                let request =
                    ReadChunk { target, offset: span.start, length, keep: Keep::BehindEnd, take: false };
                session.listen_for_pages(target.slot, pages)?;
                session.ask_lane(target.slot, &request, session.deadline())?;
            }
            Ok(())
        };
        // The kernel has them locked until this is done: writes wait for their drop.
        of_pages(|| self.with_size(handle, ask)).map_err(|error| self.tell(error))
    }

    /// The same for the library's cache; `noted` records how the bytes were read.
    pub(crate) fn read_block(&self, buffer: &mut [u8], offset: u64, noted: &Noted<'_>) -> Result<usize> {
        let mut memory = Memory::of_slice(buffer, offset);
        let pages = Pages::Keep(Keep::Share, noted);
        of_pages(|| self.read_pages(Direction::Read, &mut memory, offset, pages))
    }

    /// The same for a kernel's pages that programs may store into: memory is allocated first, as if the bytes
    /// were about to be written, so that a page can always be written back.
    ///
    /// Errors: `NoSpace` where there is no memory, or where little is left and more than one page with holes
    /// is asked for: then ask page by page for those that are needed.
    pub fn read_for_stores(&self, buffer: &mut [u8], offset: u64, on_turn: OnTurn<'_>) -> Result<KeptRead> {
        self.read_kept(Direction::Fault, Keep::Share, buffer, offset, on_turn)
    }

    /// The same on a strict mount. `own`: programs may store into these pages, so no other kernel may have
    /// them. `take`: memory is allocated first, as by [`File::read_for_stores`].
    ///
    /// Errors: `Busy` for several pages that other kernels also have, if they are to be owned or lie in
    /// several lanes: ask page by page.
    pub fn read_strictly(
        &self,
        buffer: &mut [u8],
        offset: u64,
        (own, take): (bool, bool),
        on_turn: OnTurn<'_>,
    ) -> Result<usize> {
        let direction = if take { Direction::Fault } else { Direction::Read };
        let keep = if own { Keep::Own } else { Keep::Strict };
        self.read_kept(direction, keep, buffer, offset, on_turn).map(|read| read.bytes)
    }

    fn read_kept(
        &self,
        direction: Direction,
        keep: Keep,
        buffer: &mut [u8],
        offset: u64,
        on_turn: OnTurn<'_>,
    ) -> Result<KeptRead> {
        let noted = Noted { on_turn: Some(on_turn), ..Noted::default() };
        let mut memory = Memory::of_slice(buffer, offset);
        let pages = Pages::Keep(keep, &noted);
        let read = || self.read_pages(direction, &mut memory, offset, pages);
        let read = if pages.are_strict() { of_strict_reads(read) } else { of_pages(read) };
        read.map(|bytes| KeptRead { bytes, repeated: noted.repeated.get() })
    }

    /// As [`File::write_at`], for bytes that a kernel also caches in its pages.
    pub fn write_through(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_pages(&mut Memory::of_bytes(bytes, offset), offset, Pages::Through)
    }

    /// As [`File::write_at`], for bytes that go past the pages of this machine's kernel: what it caches of them is dropped
    /// before this returns, as in other kernels.
    pub fn write_beside(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_pages(&mut Memory::of_bytes(bytes, offset), offset, Pages::Beside)
    }

    /// As [`File::append`], likewise.
    pub fn append_beside(&self, bytes: &[u8]) -> Result<u64> {
        self.append_pages(bytes, Pages::Beside)
    }

    /// Writes back pages into which programs may have stored, as far as they lie below the file's size at its
    /// home: others may truncate the file, and a page never makes it longer. Bytes behind the end are dropped
    /// and count as written, as if they had been stored before the truncation. So the result is the length of
    /// `bytes`, or less when the pool became full in the middle; the next call then returns the error.
    ///
    /// Only what differs from what the kernel was given is written, and the call waits for no other client:
    /// `made` collects the recalls that [`crate::Pool::wait_published`] waits for, so that all others see it.
    pub fn write_back(&self, bytes: &[u8], offset: u64, made: &mut RecallsMade) -> Result<usize> {
        let noted = RefCell::new(std::mem::take(made));
        let written = of_write_backs(|| self.write_within(bytes, offset, Pages::Back(&noted)));
        *made = noted.into_inner();
        written
    }
}

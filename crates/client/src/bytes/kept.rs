//! Bytes that this machine's kernel keeps in its pages: what is read for them, and what is written by way of them.
//!
//! Servers give leases on such bytes and recall them when somebody else changes them ([`crate::names::leases`]). Library calls
//! keep nothing and need none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ramlace_base::{Result, ServerId};
use ramlace_wire::chunk::{Keep, WriteOrigin};

use crate::bytes::file::File;
use crate::bytes::memory::Memory;
use crate::bytes::transfer::Direction;
use crate::session::lines::{of_pages, of_strict_reads, of_write_backs};

/// What a read for pages brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRead {
    /// As [`File::read_at`] returns them.
    pub bytes: usize,
    /// A request was repeated after its connection was lost: a server may still carry the first one out, and believe
    /// of these pages that they are as new as that. So they must not stay.
    pub repeated: bool,
}

/// The newest data recall of each server that write-backs have made, and did not wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecallsMade(BTreeMap<ServerId, u64>);

impl RecallsMade {
    /// A server's answer to a write-back; 0 says that there was none to make.
    pub(crate) fn note(&mut self, server: ServerId, recall: u64) {
        if recall > 0 {
            // Answers come in any order. Another life's numbers are others: to wait for more than one's own does no harm.
            let newest = self.0.entry(server).or_default();
            *newest = recall.max(*newest);
        }
    }

    /// Takes in those of later write-backs.
    pub fn add(&mut self, later: &RecallsMade) {
        later.iter().for_each(|(server, recall)| self.note(server, recall));
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The servers, and the newest recall of each.
    pub fn iter(&self) -> impl Iterator<Item = (ServerId, u64)> + '_ {
        self.0.iter().map(|(server, recall)| (*server, *recall))
    }
}

impl FromIterator<(ServerId, u64)> for RecallsMade {
    fn from_iter<I: IntoIterator<Item = (ServerId, u64)>>(recalls: I) -> RecallsMade {
        RecallsMade(recalls.into_iter().collect())
    }
}

/// How a transfer's bytes meet the pages of this machine's kernel.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    /// Not at all.
    None,
    /// They keep what is read, in this way; set when a request was repeated.
    Keep(Keep, &'a Cell<bool>),
    /// They keep what a program writes.
    Through,
    /// They are written back, as programs stored into them.
    Back(&'a RefCell<RecallsMade>),
}

impl Pages<'_> {
    /// Whether a kernel will keep what is read, and how.
    pub(crate) fn keep(&self) -> Keep {
        match self {
            Pages::Keep(keep, _) => *keep,
            Pages::None | Pages::Through | Pages::Back(_) => Keep::No,
        }
    }

    /// Whether a strict mount reads: then other kernels may have to drop the pages first.
    pub(crate) fn are_strict(&self) -> bool {
        matches!(self.keep(), Keep::Strict | Keep::Own)
    }

    /// Whether a server gives a lease.
    pub(crate) fn are_kept(&self) -> bool {
        matches!(self, Pages::Keep(..) | Pages::Through)
    }

    pub(crate) fn origin(&self) -> WriteOrigin {
        match self {
            Pages::None | Pages::Keep(..) => WriteOrigin::Program,
            Pages::Through => WriteOrigin::Through,
            Pages::Back(_) => WriteOrigin::Back,
        }
    }

    /// A request may be carried out later than the one that takes its place.
    pub(crate) fn note_repeated(&self) {
        if let Pages::Keep(_, repeated) = self {
            repeated.set(true);
        }
    }

    /// A server has answered a write.
    pub(crate) fn note_recall(&self, server: ServerId, recall: u64) {
        if let Pages::Back(made) = self {
            made.borrow_mut().note(server, recall);
        }
    }
}

impl File {
    /// As [`File::read_at`], for pages that a kernel will keep: until [`crate::DataLeases`] hear that they are to be dropped.
    pub fn read_keeping(&self, buffer: &mut [u8], offset: u64) -> Result<KeptRead> {
        self.read_kept(Direction::Read, Keep::Share, buffer, offset)
    }

    /// The same for a kernel's pages that programs may store into: as if the bytes were about to be written, their
    /// memory is taken first, so that a page whose stores come back has its place.
    ///
    /// Errors: `NoSpace` where there is no memory, or little is left and more than a page is asked for that has holes:
    /// then ask page by page for those that are needed.
    pub fn read_for_stores(&self, buffer: &mut [u8], offset: u64) -> Result<KeptRead> {
        self.read_kept(Direction::Fault, Keep::Share, buffer, offset)
    }

    /// The same on a strict mount: `own` where programs may store into these pages, which then no other kernel has.
    /// `take`: their memory is taken first, as by [`File::read_for_stores`].
    ///
    /// Errors: `Busy` for several pages that others have, too, where they are to be owned or lie in several lanes: ask page by page.
    pub fn read_strictly(&self, buffer: &mut [u8], offset: u64, own: bool, take: bool) -> Result<usize> {
        let direction = if take { Direction::Fault } else { Direction::Read };
        let keep = if own { Keep::Own } else { Keep::Strict };
        self.read_kept(direction, keep, buffer, offset).map(|read| read.bytes)
    }

    fn read_kept(
        &self,
        direction: Direction,
        keep: Keep,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<KeptRead> {
        let (mut memory, repeated) = (Memory::of_slice(buffer, offset), Cell::new(false));
        let pages = Pages::Keep(keep, &repeated);
        let read = || self.read_pages(direction, &mut memory, offset, pages);
        let read = if pages.are_strict() { of_strict_reads(read) } else { of_pages(read) };
        read.map(|bytes| KeptRead { bytes, repeated: repeated.get() })
    }

    /// As [`File::write_at`], for bytes that a kernel keeps in its pages as well.
    pub fn write_through(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_pages(&mut Memory::of_bytes(bytes, offset), offset, Pages::Through)
    }

    /// Writes pages back into which programs may have stored, as far as they lie below the file's size as its home has it: others
    /// may truncate the file, and a page never makes it longer. Bytes behind the end are dropped and count as written, as if they had been stored
    /// before the truncation that cut them off. So the result is the length of `bytes`, or less when the
    /// pool filled up in the middle; the next call then says so.
    ///
    /// Only what differs from what the kernel was given is written, and nobody is waited for: `made` says of whom
    /// [`crate::Pool::wait_published`] asks whether all others see it.
    pub fn write_back(&self, bytes: &[u8], offset: u64, made: &mut RecallsMade) -> Result<usize> {
        let noted = RefCell::new(std::mem::take(made));
        let written = of_write_backs(|| self.write_within(bytes, offset, Pages::Back(&noted)));
        *made = noted.into_inner();
        written
    }
}

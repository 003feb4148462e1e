//! Mapped windows of lanes, for system calls that receive into place and send from it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ramlace_base::{Result, limits};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::sys;

/// One shared mapping of a part of a file, aligned so that huge pages can be mapped whole.
///
/// Its bytes are never touched from Rust: only their addresses are handed to system calls.
#[derive(Debug)]
pub(crate) struct Mapping {
    reserved: *mut c_void,
    reserved_bytes: usize,
    start: *mut c_void,
    length: usize,
}

// SAFETY: a mapping is an address range of the whole process, not of a thread, and this type offers
// no access to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods take it by shared reference and change nothing but page tables.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset`, both multiples of the huge page.
    pub(crate) fn new(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Mapping> {
        let doing = "mapping a window of a lane";
        let alignment = limits::HUGE_PAGE_BYTES as usize;
        let length =
            usize::try_from(length).map_err(|_| sys::fatal("a window larger than the address space"))?;
        let reserved_bytes = length + alignment;
        // Reserving one huge page more than needed leaves room to align the address. SAFETY: a new mapping at
        // an address of the kernel's choice touches no memory in use.
        let reserved = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved_bytes, ProtFlags::empty(), flags)
        };
        let reserved = sys::tell(reserved, doing)?;
        let padding = reserved.addr().next_multiple_of(alignment) - reserved.addr();
        let start = reserved.wrapping_byte_add(padding);
        let mapping = Mapping { reserved, reserved_bytes, start, length };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: start..start+length lies inside the range reserved above, which belongs to `mapping`.
        let mapped = unsafe {
            rustix::mm::mmap(start, length, ProtFlags::READ | ProtFlags::WRITE, flags, file, offset)
        };
        sys::tell(mapped, doing)?;
        // Under huge=advise only advised mappings get huge pages. Where there are none the advice
        // is refused or ignored, and 4 KiB pages serve.
        // SAFETY: advice about memory that `mapping` owns; it changes no content.
        let _ = unsafe { rustix::mm::madvise(start, length, Advice::LinuxHugepage) };
        Ok(mapping)
    }

    /// Has the kernel fill in the pages of a part, huge where it can. Never a signal: an error instead.
    pub(crate) fn populate(&self, offset: u64, length: u64) -> rustix::io::Result<()> {
        let (offset, length) = (offset as usize, length as usize);
        assert!(offset + length <= self.length, "populating beyond a window");
        // SAFETY: advice about memory that this mapping owns; it changes no content.
        unsafe {
            rustix::mm::madvise(self.start.wrapping_byte_add(offset), length, Advice::LinuxPopulateWrite)
        }
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole range was reserved by `new` and no reference into it exists.
        let unmapped = unsafe { rustix::mm::munmap(self.reserved, self.reserved_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// One piece of a window: memory for `iovec`s, never for loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub address: *mut u8,
    /// How many bytes.
    pub length: usize,
}

struct Piece {
    mapping: Arc<Mapping>,
    offset: usize,
    length: usize,
}

/// A range of a lane, mapped readable and writable.
///
/// The addresses stay mapped while the window is held, whatever happens to the lane. Hand them to
/// system calls only (`recvmsg`, `writev`): where the file has been cut meanwhile, by this server or
/// by a client, a call gives EFAULT (or a short count) where a load would end the process by SIGBUS.
/// Writing needs [`crate::Store::prepare_write`] first; reading where there is a hole allocates memory,
/// so ask [`crate::Store::extents`] first.
pub struct Window {
    pieces: Vec<Piece>,
}

impl Window {
    pub(crate) fn new() -> Window {
        Window { pieces: Vec::with_capacity(1) }
    }

    pub(crate) fn push(&mut self, mapping: Arc<Mapping>, offset: u64, length: u64) {
        let (offset, length) = (offset as usize, length as usize);
        assert!(offset + length <= mapping.length, "a piece beyond its mapping");
        self.pieces.push(Piece { mapping, offset, length });
    }

    /// How many bytes the window covers.
    #[must_use]
    pub fn length(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    /// The pieces in order, at most one more than `length / limits::WINDOW_BYTES` rounded up.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + '_ {
        self.pieces.iter().map(|piece| Segment {
            address: piece.mapping.start.wrapping_byte_add(piece.offset).cast(),
            length: piece.length,
        })
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.segments()).finish()
    }
}

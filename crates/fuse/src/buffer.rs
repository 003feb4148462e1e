//! Page-aligned memory of a worker.

use std::ptr::NonNull;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::abi;

/// Anonymous pages: zero at first, taken when touched, given back when dropped.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: Pages owns its mapping alone, like a boxed slice of bytes.
unsafe impl Send for Pages {}
// SAFETY: shared references only read plain bytes.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Result<Pages> {
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let start = start.ok().and_then(|start| NonNull::new(start.cast()));
        let refused = || Error::new(ErrorKind::NoSpace, format!("no memory for a buffer of {bytes} bytes"));
        Ok(Pages { start: start.ok_or_else(refused)?, bytes })
    }

    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` is valid for `bytes` initialized bytes as long as self lives, and self is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this address and size, and no borrow outlives self.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// Memory of one worker for the data of replies: reused, page aligned, never cleared between requests.
#[derive(Debug)]
pub struct Scratch {
    pages: Pages,
}

impl Scratch {
    /// Memory of this many bytes, rounded up to pages; the kernel gives it when it is touched.
    ///
    /// # Errors
    /// `NoSpace` when the machine refuses the mapping.
    pub fn new(bytes_max: usize) -> Result<Scratch> {
        Ok(Scratch { pages: Pages::new(bytes_max)? })
    }

    /// The first `bytes` of it, with whatever an earlier request left there.
    ///
    /// # Panics
    /// When `bytes` is more than [`Scratch::bytes_max`]; the kernel never asks for more in one READ.
    pub fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.pages.as_mut()[..bytes]
    }

    /// How much there is; at least the session's largest request.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.pages.bytes
    }
}

/// Memory for one request of the kernel, laid so that the data of a WRITE begin at a page.
#[derive(Debug)]
pub struct RequestBuffer {
    pages: Pages,
    start: usize,
}

impl RequestBuffer {
    /// Room for requests with this much data.
    pub fn new(data_bytes_max: usize) -> Result<RequestBuffer> {
        let page = rustix::param::page_size();
        let data = data_bytes_max.max(abi::READ_BUFFER_BYTES_MIN);
        Ok(RequestBuffer { pages: Pages::new(page + data)?, start: page - abi::WRITE_HEADER_BYTES })
    }

    pub fn as_mut(&mut self) -> &mut [u8] {
        let start = self.start;
        &mut self.pages.as_mut()[start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_write_begin_at_a_page() {
        let mut buffer = RequestBuffer::new(1 << 20).unwrap();
        let bytes = buffer.as_mut();
        assert!(bytes.len() >= abi::WRITE_HEADER_BYTES + (1 << 20));
        let data = bytes[abi::WRITE_HEADER_BYTES..].as_ptr() as usize;
        assert_eq!(data % rustix::param::page_size(), 0);
    }

    #[test]
    fn scratch_keeps_what_was_written() {
        let mut scratch = Scratch::new(5000).unwrap();
        assert!(scratch.bytes_max() >= 5000);
        scratch.bytes(5000)[4999] = 7;
        assert_eq!(scratch.bytes(5000)[4999], 7);
    }
}

//! Bytes that go to many places of a lane by few system calls.
//!
//! A lane that a client may have mapped is written run by run and nowhere else, and each run would be a call of its own: a
//! microsecond for 8 bytes. A read from a file takes a list of places, so the bytes are put into a file of this process first,
//! and the kernel spreads them. Where the lane has been cut meanwhile, the call says so, where a store would end the process.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::sys;
use crate::window::{Segment, Window};

/// Places that one call takes.
const PLACES_MAX: usize = 1024;

/// A file of this process alone, for bytes in transit.
#[derive(Debug)]
pub(crate) struct Spread {
    file: OwnedFd,
}

impl Spread {
    pub(crate) fn new() -> rustix::io::Result<Spread> {
        Ok(Spread { file: rustix::fs::memfd_create("ramlace-spread", MemfdFlags::CLOEXEC)? })
    }

    /// Copies bytes to places of a window: so many from each offset on, one place behind the other in the bytes. They may
    /// stay partly done after an error.
    pub(crate) fn put(
        &self,
        bytes: &[u8],
        window: &Window,
        places: impl Iterator<Item = (usize, usize)>,
    ) -> rustix::io::Result<()> {
        let mut vectors = Vec::new();
        places.for_each(|(offset, length)| push_vectors(window, offset, length, &mut vectors));
        sys::write_all_at(&self.file, bytes, 0)?;
        let mut at = 0;
        for some in vectors.chunks(PLACES_MAX) {
            self.read_into(some, at)?;
            at += some.iter().map(|vector| vector.iov_len).sum::<usize>();
        }
        Ok(())
    }

    fn read_into(&self, vectors: &[libc::iovec], at: usize) -> rustix::io::Result<()> {
        let length: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        loop {
            // SAFETY: the kernel alone writes to these addresses, which are mapped as long as the window is
            // held; no Rust value lies in a shared mapping.
            let read = unsafe {
                libc::preadv(self.file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, at as i64)
            };
            match usize::try_from(read) {
                Ok(read) if read == length => return Ok(()),
                // A place in the middle is not there.
                Ok(_) => return Err(Errno::FAULT),
                Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => {}
                    other => return Err(other.unwrap_or(Errno::IO)),
                },
            }
        }
    }
}

/// Adds where `length` bytes from `offset` of a window on are: in one piece of it, or in two.
fn push_vectors(window: &Window, mut offset: usize, mut length: usize, vectors: &mut Vec<libc::iovec>) {
    for Segment { address, length: there } in window.segments() {
        if offset >= there {
            offset -= there;
            continue;
        }
        let now = length.min(there - offset);
        vectors.push(libc::iovec { iov_base: address.wrapping_byte_add(offset).cast(), iov_len: now });
        (offset, length) = (0, length - now);
        if length == 0 {
            break;
        }
    }
}

//! Moves bytes between sockets and memory that may vanish.
//!
//! The memory of a store can be truncated by a client of the same user at any moment. A load or
//! store by the processor would then end the process (SIGBUS); a system call returns EFAULT. So
//! nothing here touches a segment but the kernel, and no reference to one is ever made.

use std::cell::OnceCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Memory that may only be touched by system calls.
#[derive(Clone, Copy, Debug)]
pub struct RawSegment {
    /// The first byte.
    pub pointer: *mut u8,
    /// How many bytes.
    pub length: usize,
}

/// Segments given to the kernel in one call; it takes at most 1,024.
const PIECES_MAX: usize = 64;

/// A place in a list of segments. Its constructor's caller vouches for their memory, so that the other
/// functions here are safe.
pub(crate) struct Cursor<'a> {
    segments: &'a [RawSegment],
    /// Bytes of the first segment that are done.
    skipped: usize,
    left: usize,
    /// All of their bytes, once they are to be sent from there.
    copy: Option<&'a OnceCell<Vec<u8>>>,
}

impl<'a> Cursor<'a> {
    /// Of no memory at all.
    pub(crate) fn nowhere() -> Cursor<'static> {
        Cursor { segments: &[], skipped: 0, left: 0, copy: None }
    }

    /// The first byte of the segments.
    ///
    /// # Safety
    /// As long as it is used they are mapped, or were and have been replaced by nothing else; there is no
    /// reference to them.
    pub(crate) unsafe fn new(segments: &'a [RawSegment]) -> Cursor<'a> {
        let left = segments.iter().map(|segment| segment.length).sum();
        Cursor { segments, skipped: 0, left, copy: None }
    }

    /// The same; what is left is sent from a copy of all segments once there is one.
    pub(crate) fn or_from(self, copy: Option<&'a OnceCell<Vec<u8>>>) -> Cursor<'a> {
        Cursor { copy, ..self }
    }

    /// Bytes from here to the end.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left);
        self.left -= count;
        while let Some(first) = self.segments.first() {
            let rest = first.length - self.skipped;
            if count < rest {
                self.skipped += count;
                return;
            }
            count -= rest;
            self.skipped = 0;
            self.segments = &self.segments[1..];
        }
    }

    /// Writes the next pieces to `into`, at most `bytes_max` bytes; returns how many bytes.
    fn pieces(&self, into: &mut Pieces, bytes_max: usize) -> usize {
        if let Some(copy) = self.copy.and_then(OnceCell::get) {
            let rest = &copy[copy.len() - self.left..];
            let length = rest.len().min(bytes_max);
            if length > 0 {
                into.push(rest.as_ptr().cast_mut(), length);
            }
            return length;
        }
        let (mut bytes, mut skip) = (0, self.skipped);
        for segment in self.segments {
            if into.count == into.list.len() || bytes == bytes_max {
                break;
            }
            let length = (segment.length - skip).min(bytes_max - bytes);
            if length == 0 {
                continue;
            }
            into.push(segment.pointer.wrapping_add(skip), length);
            bytes += length;
            skip = 0;
        }
        bytes
    }
}

struct Pieces {
    list: [libc::iovec; PIECES_MAX],
    count: usize,
}

impl Pieces {
    fn new() -> Pieces {
        Pieces { list: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX], count: 0 }
    }

    fn push(&mut self, pointer: *mut u8, length: usize) {
        self.list[self.count] = libc::iovec { iov_base: pointer.cast(), iov_len: length };
        self.count += 1;
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a msghdr of zeros is a valid one: no address, no pieces, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.count;
        message
    }
}

fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// One receive into the memory at the cursor; returns the number of bytes, 0 at the end of the stream. If
/// memory is missing, fewer bytes are received, then EFAULT; bytes that were not stored stay in the socket.
pub(crate) fn receive(socket: BorrowedFd<'_>, cursor: &mut Cursor<'_>) -> io::Result<usize> {
    let mut pieces = Pieces::new();
    cursor.pieces(&mut pieces, usize::MAX);
    let mut message = pieces.message();
    // SAFETY: the message and its pieces outlive the call; the kernel writes to the segments only, for
    // which the cursor's maker vouches.
    let count = counted(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })?;
    cursor.advance(count);
    Ok(count)
}

/// One gathered send of `head` and of the memory at the cursor; returns the bytes that were sent, of both
/// together. The cursor is advanced by those beyond the head.
pub(crate) fn send(socket: BorrowedFd<'_>, head: &[u8], cursor: &mut Cursor<'_>) -> io::Result<usize> {
    if cursor.left() == 0 {
        // A cheaper system call.
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        return Ok(rustix::net::send(socket, head, flags)?);
    }
    let mut pieces = Pieces::new();
    if !head.is_empty() {
        pieces.push(head.as_ptr().cast_mut(), head.len());
    }
    cursor.pieces(&mut pieces, usize::MAX);
    let message = pieces.message();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message and its pieces outlive the call; the kernel only reads from them.
    let count = counted(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) })?;
    cursor.advance(count.saturating_sub(head.len()));
    Ok(count)
}

/// Takes a descriptor into the event loop of this thread.
pub(crate) fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same, for as long as its owner lives, and
    // the AsyncFd gives out shared references to it only.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// Copies all of `bytes` to the cursor by one system call, or a few.
pub(crate) fn store(mut bytes: &[u8], cursor: &mut Cursor<'_>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut pieces = Pieces::new();
        let count = cursor.pieces(&mut pieces, bytes.len());
        let copied = between(Mine::ToSegments(&bytes[..count]), &pieces)?;
        bytes = &bytes[copied..];
        cursor.advance(copied);
    }
    Ok(())
}

/// Appends the next `count` bytes at the cursor to `into`, by one system call, or a few.
pub(crate) fn load(cursor: &mut Cursor<'_>, count: usize, into: &mut Vec<u8>) -> io::Result<()> {
    into.reserve(count);
    let end = into.len() + count;
    while into.len() < end {
        let mut pieces = Pieces::new();
        let length = cursor.pieces(&mut pieces, end - into.len());
        let room = &mut into.spare_capacity_mut()[..length];
        let copied = between(Mine::FromSegments(room), &pieces)?;
        // SAFETY: this many bytes were written there, and no more than were reserved.
        unsafe { into.set_len(into.len() + copied) };
        cursor.advance(copied);
    }
    Ok(())
}

enum Mine<'a> {
    ToSegments(&'a [u8]),
    FromSegments(&'a mut [MaybeUninit<u8>]),
}

/// Copies between this process's own memory and segments in it: the kernel's call for the memory of other
/// processes, which answers EFAULT where a load or store would end this one. Never returns 0.
fn between(mine: Mine<'_>, segments: &Pieces) -> io::Result<usize> {
    let me = rustix::process::getpid().as_raw_pid();
    let (theirs, count) = (segments.list.as_ptr(), segments.count as libc::c_ulong);
    // SAFETY: both lists outlive the call; what is read or written here is borrowed for it, and for the
    // segments the cursor's maker vouches.
    let result = unsafe {
        match mine {
            Mine::ToSegments(from) => {
                let mine = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
                libc::process_vm_writev(me, &mine, 1, theirs, count, 0)
            }
            Mine::FromSegments(into) => {
                let mine = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
                libc::process_vm_readv(me, &mine, 1, theirs, count, 0)
            }
        }
    };
    match counted(result)? {
        0 => Err(Errno::FAULT.into()),
        copied => Ok(copied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(buffers: &mut [Vec<u8>]) -> Vec<RawSegment> {
        let segment =
            |buffer: &mut Vec<u8>| RawSegment { pointer: buffer.as_mut_ptr(), length: buffer.len() };
        buffers.iter_mut().map(segment).collect()
    }

    fn begin(segments: &[RawSegment]) -> Cursor<'_> {
        // SAFETY: the segments are buffers of the tests, which nothing else uses meanwhile, or nothing is mapped there.
        unsafe { Cursor::new(segments) }
    }

    #[test]
    fn a_cursor_walks_over_empty_and_many_segments() {
        let mut buffers: Vec<Vec<u8>> = (0..200).map(|index| vec![0; index % 3]).collect();
        let list = segments(&mut buffers);
        let mut cursor = begin(&list);
        let total = cursor.left();
        for _ in 0..total {
            let mut pieces = Pieces::new();
            assert!(cursor.pieces(&mut pieces, usize::MAX) > 0);
            cursor.advance(1);
        }
        assert_eq!(cursor.left(), 0);
    }

    #[test]
    fn segments_are_stored_to_and_loaded_from_in_order() {
        let mut buffers = vec![vec![0u8; 3], vec![], vec![0; 70_000], vec![0; 5]];
        let list = segments(&mut buffers);
        let bytes: Vec<u8> = (0..70_008u32).map(|index| (index % 251) as u8).collect();
        let mut loaded = vec![7];
        store(&bytes, &mut begin(&list)).unwrap();
        load(&mut begin(&list), bytes.len(), &mut loaded).unwrap();
        assert_eq!(loaded[..1], [7], "what was there stays");
        assert_eq!(loaded[1..], bytes);
        assert_eq!(buffers.concat(), bytes);
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        let nowhere = RawSegment { pointer: std::ptr::null_mut::<u8>().wrapping_add(4096), length: 10 };
        let stored = store(&[1; 10], &mut begin(&[nowhere]));
        let loaded = load(&mut begin(&[nowhere]), 10, &mut Vec::new());
        for outcome in [stored, loaded] {
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        }
    }
}

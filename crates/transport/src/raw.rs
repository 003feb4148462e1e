//! Moves bytes between sockets and memory that may vanish.
//!
//! The memory of a store can be truncated by a client of the same user at any moment. A load or
//! store by the processor would then end the process (SIGBUS); a system call returns EFAULT. So
//! nothing here touches a segment but the kernel, and no reference to one is ever made.

use std::io;
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

/// A place in a list of segments.
pub(crate) struct Cursor<'a> {
    segments: &'a [RawSegment],
    /// Bytes of the first segment that are done.
    skipped: usize,
    left: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(segments: &'a [RawSegment]) -> Cursor<'a> {
        let left = segments.iter().map(|segment| segment.length).sum();
        Cursor { segments, skipped: 0, left }
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

/// One receive into the memory at the cursor; returns the bytes that came, 0 at the end of the
/// stream. Where memory is missing, fewer bytes come, then EFAULT; what was not stored stays in
/// the socket.
///
/// # Safety
/// The segments are mapped, or were and have been replaced by nothing else; nobody has a
/// reference to them.
pub(crate) unsafe fn receive(socket: BorrowedFd<'_>, cursor: &mut Cursor<'_>) -> io::Result<usize> {
    let mut pieces = Pieces::new();
    cursor.pieces(&mut pieces, usize::MAX);
    let mut message = pieces.message();
    // SAFETY: the message and its pieces outlive the call; the kernel writes to the caller's
    // segments only, which the caller vouches for.
    let count = counted(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })?;
    cursor.advance(count);
    Ok(count)
}

/// One gathered send of `head` and of the memory at the cursor; returns the bytes that left, of
/// both together. The cursor is advanced by what left beyond the head.
///
/// # Safety
/// As for [`receive`].
pub(crate) unsafe fn send(socket: BorrowedFd<'_>, head: &[u8], cursor: &mut Cursor<'_>) -> io::Result<usize> {
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
///
/// # Safety
/// As for [`receive`].
pub(crate) unsafe fn store(mut bytes: &[u8], cursor: &mut Cursor<'_>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut pieces = Pieces::new();
        let count = cursor.pieces(&mut pieces, bytes.len());
        let mine = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: count };
        // SAFETY: the kernel reads from `bytes` and writes to the caller's segments only, which the caller
        // vouches for.
        let copied = unsafe { between(Direction::ToSegments, &mine, &pieces) }?;
        bytes = &bytes[copied..];
        cursor.advance(copied);
    }
    Ok(())
}

/// Appends the next `count` bytes at the cursor to `into`, by one system call, or a few.
///
/// # Safety
/// As for [`receive`].
pub(crate) unsafe fn load(cursor: &mut Cursor<'_>, count: usize, into: &mut Vec<u8>) -> io::Result<()> {
    into.reserve(count);
    let end = into.len() + count;
    while into.len() < end {
        let mut pieces = Pieces::new();
        let length = cursor.pieces(&mut pieces, end - into.len());
        let room = into.spare_capacity_mut().as_mut_ptr();
        let mine = libc::iovec { iov_base: room.cast(), iov_len: length };
        // SAFETY: the kernel writes to the room behind `into` and reads from the caller's segments only, which the
        // caller vouches for.
        let copied = unsafe { between(Direction::FromSegments, &mine, &pieces) }?;
        // SAFETY: so many bytes were written there, and no more than were reserved.
        unsafe { into.set_len(into.len() + copied) };
        cursor.advance(copied);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Direction {
    ToSegments,
    FromSegments,
}

/// Copies between this process's own memory and segments in it: the kernel's call for the memory of other
/// processes, which answers EFAULT where a load or store would end this one. Never returns 0.
///
/// # Safety
/// `mine` may be read, or written, and as for [`receive`].
unsafe fn between(direction: Direction, mine: &libc::iovec, segments: &Pieces) -> io::Result<usize> {
    // SAFETY: getpid takes nothing and cannot fail.
    let me = unsafe { libc::getpid() };
    let (theirs, count) = (segments.list.as_ptr(), segments.count as libc::c_ulong);
    // SAFETY: both lists outlive the call; the caller vouches for what they name.
    let result = unsafe {
        match direction {
            Direction::ToSegments => libc::process_vm_writev(me, mine, 1, theirs, count, 0),
            Direction::FromSegments => libc::process_vm_readv(me, mine, 1, theirs, count, 0),
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

    #[test]
    fn a_cursor_walks_over_empty_and_many_segments() {
        let mut buffers: Vec<Vec<u8>> = (0..200).map(|index| vec![0; index % 3]).collect();
        let list = segments(&mut buffers);
        let mut cursor = Cursor::new(&list);
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
        // SAFETY: the segments are the buffers above, which nothing else uses meanwhile.
        unsafe {
            store(&bytes, &mut Cursor::new(&list)).unwrap();
            load(&mut Cursor::new(&list), bytes.len(), &mut loaded).unwrap();
        }
        assert_eq!(loaded[..1], [7], "what was there stays");
        assert_eq!(loaded[1..], bytes);
        assert_eq!(buffers.concat(), bytes);
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        let nowhere = RawSegment { pointer: std::ptr::null_mut::<u8>().wrapping_add(4096), length: 10 };
        // SAFETY: nothing is mapped there, and nobody has a reference to it.
        let (stored, loaded) = unsafe {
            (
                store(&[1; 10], &mut Cursor::new(&[nowhere])),
                load(&mut Cursor::new(&[nowhere]), 10, &mut Vec::new()),
            )
        };
        for outcome in [stored, loaded] {
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        }
    }
}

//! A socket whose waits end at a deadline.
//!
//! The socket has a time limit of one [`SLICE`] on each call, set once; a loop checks the clock in between.
//! So a call costs one system call when its bytes are there, and is never late: the last slice waits in
//! `poll` for exactly the rest.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg,
    send, sendmsg,
};

use crate::spin::Spin;

/// Longest wait inside one system call.
const SLICE: Duration = Duration::from_millis(100);
/// Pieces given to the kernel in one call; it takes at most 1,024.
const PIECES_MAX: usize = 64;

pub(super) struct Line {
    socket: OwnedFd,
    /// Unix sockets may bring descriptors.
    is_unix: bool,
    /// How waiting for replies went.
    spin: Spin,
    /// Bytes that wake a thread that waits for some.
    wakes_at: Cell<usize>,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> Result<Line> {
        let prepare = || {
            set_socket_timeout(&socket, Timeout::Recv, Some(SLICE))?;
            set_socket_timeout(&socket, Timeout::Send, Some(SLICE))
        };
        prepare().map_err(|errno| Error::from_io(&errno.into(), "setting a socket's time limit"))?;
        let is_unix = crate::socket::peer_uid(&socket).is_some();
        Ok(Line { socket, is_unix, spin: Spin::default(), wakes_at: Cell::new(1) })
    }

    pub(super) fn is_unix(&self) -> bool {
        self.is_unix
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends everything, gathered.
    pub(super) fn send_all(&self, head: &[u8], data: &[IoSlice<'_>], deadline: Instant) -> Result<()> {
        let mut head = head;
        let mut data = Gather::new(data);
        while !head.is_empty() || !data.is_done() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            if !head.is_empty() {
                pieces[0] = IoSlice::new(head);
                count = 1;
            }
            count += data.pieces(&mut pieces[count..]);
            let sent = self.send_some(&pieces[..count], deadline)?;
            let of_head = sent.min(head.len());
            head = &head[of_head..];
            data.advance(sent - of_head);
        }
        Ok(())
    }

    fn send_some(&self, pieces: &[IoSlice<'_>], deadline: Instant) -> Result<usize> {
        loop {
            let at_once = self.wait(PollFlags::OUT, deadline)?;
            let flags = SendFlags::NOSIGNAL | if at_once { SendFlags::DONTWAIT } else { SendFlags::empty() };
            // What is in one piece goes by the cheaper system call.
            let sent = match pieces {
                [piece] => send(&self.socket, piece, flags),
                pieces => sendmsg(&self.socket, pieces, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(broken(errno)),
                Ok(sent) => return Ok(sent),
            }
        }
    }

    /// From now on a receive wakes only when this many bytes are there that it has not taken. It must be no
    /// more than are sure to come behind whatever a receive takes before it sleeps, and 1 again before
    /// anything else is waited for.
    pub(super) fn wake_at(&self, bytes: usize) -> Result<()> {
        if self.wakes_at.replace(bytes) == bytes {
            return Ok(());
        }
        crate::socket::wake_at(self.as_fd(), bytes)
    }

    /// Fills all buffers.
    pub(super) fn receive_all(&self, into: &mut [IoSliceMut<'_>], deadline: Instant) -> Result<()> {
        let mut pieces = into;
        // Removes empty slices: the kernel would return 0 for them, as at the end of the stream.
        IoSliceMut::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let count = pieces.len().min(PIECES_MAX);
            let received = self.receive_pieces(&mut pieces[..count], deadline)?;
            IoSliceMut::advance_slices(&mut pieces, received);
        }
        Ok(())
    }

    fn receive_pieces(&self, pieces: &mut [IoSliceMut<'_>], deadline: Instant) -> Result<usize> {
        // Without room for them, descriptors that come here are closed by the kernel.
        let mut no_control = RecvAncillaryBuffer::default();
        self.receive(deadline, |flags| {
            recvmsg(&self.socket, pieces, &mut no_control, flags | RecvFlags::WAITALL)
                .map(|received| received.bytes)
        })
    }

    /// Receives the bytes that are there, at least one. Descriptors that come with them are appended to
    /// `descriptors`; without, the kernel closes them.
    pub(super) fn receive_some(
        &self,
        into: &mut [u8],
        descriptors: Option<&mut VecDeque<OwnedFd>>,
        deadline: Instant,
    ) -> Result<usize> {
        let Some(descriptors) = descriptors.filter(|_| self.is_unix) else {
            return self.receive_soon(deadline, |flags| {
                recv(&self.socket, &mut *into, flags).map(|(count, _)| count)
            });
        };
        self.receive_soon(deadline, |flags| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = flags | RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(arrived) = message {
                    descriptors.extend(arrived);
                }
            }
            Ok(received.bytes)
        })
    }

    /// For bytes that are expected at any moment: polls for them before it sleeps.
    fn receive_soon(
        &self,
        deadline: Instant,
        mut receive: impl FnMut(RecvFlags) -> rustix::io::Result<usize>,
    ) -> Result<usize> {
        if let Some(spinning) = self.spin.begin() {
            while spinning.again() {
                if let Ok(received @ 1..) = receive(RecvFlags::DONTWAIT) {
                    spinning.found();
                    return Ok(received);
                }
            }
        }
        self.receive(deadline, receive)
    }

    fn receive(
        &self,
        deadline: Instant,
        mut receive: impl FnMut(RecvFlags) -> rustix::io::Result<usize>,
    ) -> Result<usize> {
        loop {
            let at_once = self.wait(PollFlags::IN, deadline)?;
            match receive(if at_once { RecvFlags::DONTWAIT } else { RecvFlags::empty() }) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(broken(errno)),
                Ok(0) => return Err(Error::new(ErrorKind::HostDown, "the server closed the connection")),
                Ok(received) => return Ok(received),
            }
        }
    }

    /// Checks the clock. `false`: the socket's own time limit is short enough for the next call. `true`: the
    /// next call must not wait; the wait was done here.
    fn wait(&self, event: PollFlags, deadline: Instant) -> Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left > SLICE {
            return Ok(false);
        }
        let left_time = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as _ };
        match poll(&mut [PollFd::new(&self.socket, event)], Some(&left_time)) {
            Ok(0) => Err(Error::new(ErrorKind::TimedOut, "no answer within the deadline")),
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(broken(errno)),
        }
    }
}

fn broken(errno: Errno) -> Error {
    Error::from_io(&errno.into(), "the connection broke")
}

/// A place in a list of buffers that the caller owns.
struct Gather<'a> {
    pieces: &'a [IoSlice<'a>],
    skipped: usize,
}

impl<'a> Gather<'a> {
    fn new(pieces: &'a [IoSlice<'a>]) -> Gather<'a> {
        let mut gather = Gather { pieces, skipped: 0 };
        gather.advance(0);
        gather
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty()
    }

    fn pieces(&self, into: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.skipped;
        let mut count = 0;
        for (slot, piece) in into.iter_mut().zip(self.pieces) {
            let bytes: &'a [u8] = piece;
            *slot = IoSlice::new(&bytes[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.pieces.first() {
            let rest = first.len() - self.skipped;
            if count < rest {
                self.skipped += count;
                return;
            }
            count -= rest;
            self.skipped = 0;
            self.pieces = &self.pieces[1..];
        }
        assert_eq!(count, 0);
    }
}

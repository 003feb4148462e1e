//! A socket in the event loop, and a handle that stops it from another task.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::spin::Spin;

/// Bytes that one connection may move before it lets the others have a turn.
const TURN_BYTES_MAX: usize = 1 << 20;
/// The cost of one step besides its bytes, as the bytes that are transferred in that time: some 5 µs.
const STEP_BYTES: usize = 16 << 10;

/// For calls whose memory may be missing: they may move less than they could, so that fewer bytes
/// do not mean that the socket is drained or full.
pub(super) const UNTIL_WOULD_BLOCK: usize = 0;

/// How a wait goes for a peer that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is its right.
    Endless,
    /// It loses its connection.
    UpTo(Duration),
}

pub(super) struct Socket {
    /// Watched for bytes that come, and for nothing else: a Unix socket reports room for more each time that
    /// the other side takes something, which would wake this thread once more for every answer.
    inner: AsyncFd<OwnedFd>,
    /// Another descriptor of it, watched for room, while that is waited for.
    for_room: Cell<Option<AsyncFd<OwnedFd>>>,
    cancelled: Cell<bool>,
    /// The bytes that were transferred in this turn.
    turn: Cell<usize>,
    /// How waiting for requests went.
    spin: Spin,
}

impl Socket {
    /// Takes a socket into the event loop of this thread; it must not block.
    pub(super) fn new(socket: OwnedFd) -> Result<Socket> {
        let inner = watch(socket, Interest::READABLE)?;
        Ok(Socket {
            inner,
            for_room: Cell::default(),
            cancelled: Cell::new(false),
            turn: Cell::new(0),
            spin: Spin::default(),
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.get_ref().as_fd()
    }

    /// Ends the connection: every call on it, waiting or to come, fails.
    pub(super) fn shut_down(&self) {
        self.cancelled.set(true);
        crate::socket::shut_down(self.as_fd());
    }

    /// Whether the other side has ended its stream, as far as the event loop has observed: what it sent before may
    /// be here still. It is observed together with the bytes that came before it, so whatever has come by another
    /// connection since it ended is not met before.
    pub(super) async fn has_ended(&self) -> bool {
        let ready = poll_fn(|context| Poll::Ready(self.inner.poll_read_ready(context))).await;
        matches!(ready, Poll::Ready(Ok(guard)) if guard.ready().is_read_closed())
    }

    /// The same as the kernel knows it now: a call that receives on and on does not go back to the event loop.
    pub(super) fn has_ended_now(&self) -> bool {
        let flags = PollFlags::RDHUP;
        let mut watched = [PollFd::from_borrowed_fd(self.as_fd(), flags)];
        let polled = rustix::event::poll(&mut watched, Some(&Timespec::default()));
        polled.is_ok() && watched[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// Receives once. `wanted`: bytes that `receive` asks for; fewer mean that no more are there.
    /// 0 at the end of the stream.
    ///
    /// `receive` is not called any more once the connection is cancelled. After it nothing is waited for: whoever
    /// drops this while it waits has lost no byte.
    pub(super) async fn receive(
        &self,
        patience: Patience,
        wanted: usize,
        mut receive: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Result<usize> {
        self.give_turn().await;
        loop {
            let mut guard = match self.readable_soon(patience).await {
                Some(guard) => guard,
                None => wait(patience, self.inner.readable(), "sends nothing").await?,
            };
            self.check_cancelled()?;
            if let Some(count) = transferred(&mut guard, wanted, receive(self.as_fd()), "receiving")? {
                self.count(count);
                return Ok(count);
            }
        }
    }

    /// Polls for the next request for a short time, between the turns of other tasks.
    async fn readable_soon(&self, patience: Patience) -> Option<AsyncFdReadyGuard<'_, OwnedFd>> {
        if patience != Patience::Endless {
            return None;
        }
        let spinning = self.spin.begin()?;
        loop {
            let ready = poll_fn(|context| Poll::Ready(self.inner.poll_read_ready(context))).await;
            if let Poll::Ready(guard) = ready {
                spinning.found();
                return guard.ok();
            }
            if !spinning.again() {
                return None;
            }
            // The event loop checks all descriptors before it comes back.
            tokio::task::yield_now().await;
        }
    }

    /// Sends once; otherwise as [`Socket::receive`].
    pub(super) async fn send(
        &self,
        patience: Patience,
        wanted: usize,
        mut send: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Result<usize> {
        self.give_turn().await;
        let count = loop {
            self.check_cancelled()?;
            match send(self.as_fd()) {
                Ok(count) => {
                    self.for_room.take();
                    break count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    break self.send_when_writable(patience, wanted, send).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::from_io(&error, "sending")),
            }
        };
        self.count(count);
        Ok(count)
    }

    /// The same where there is no room. The descriptor stays watched as long as sends find none.
    async fn send_when_writable(
        &self,
        patience: Patience,
        wanted: usize,
        mut send: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Result<usize> {
        let for_room = match self.for_room.take() {
            Some(watched) => watched,
            None => {
                let another = self.as_fd().try_clone_to_owned();
                let another = another
                    .map_err(|error| Error::from_io(&error, "watching a connection for room to send"))?;
                watch(another, Interest::WRITABLE)?
            }
        };
        loop {
            let mut guard = wait(patience, for_room.writable(), "reads nothing").await?;
            self.check_cancelled()?;
            if let Some(count) = transferred(&mut guard, wanted, send(self.as_fd()), "sending")? {
                drop(guard);
                self.for_room.set(Some(for_room));
                return Ok(count);
            }
        }
    }

    /// Counts a step of work.
    pub(super) fn count(&self, bytes: usize) {
        self.turn.set(self.turn.get() + bytes + STEP_BYTES);
    }

    /// After enough work the other tasks have their turn: before the next step, since what a step has moved would be
    /// forgotten if its caller were dropped between it and the note of it.
    pub(super) async fn give_turn(&self) {
        if self.turn.get() >= TURN_BYTES_MAX {
            self.turn.set(0);
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        if self.cancelled.get() {
            return Err(Error::new(ErrorKind::HostDown, "the connection was closed from this side"));
        }
        Ok(())
    }
}

/// Takes a descriptor into the event loop of this thread.
fn watch(descriptor: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>> {
    crate::raw::watch(descriptor, interest)
        .map_err(|error| Error::from_io(&error, "adding a connection to the event loop"))
}

async fn wait<'a>(
    patience: Patience,
    ready: impl Future<Output = io::Result<AsyncFdReadyGuard<'a, OwnedFd>>>,
    fault: &str,
) -> Result<AsyncFdReadyGuard<'a, OwnedFd>> {
    let guard = match patience {
        Patience::Endless => ready.await,
        Patience::UpTo(limit) => match tokio::time::timeout(limit, ready).await {
            Ok(guard) => guard,
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!("the peer {fault} for {} ms; its connection is closed", limit.as_millis()),
                ));
            }
        },
    };
    guard.map_err(|error| Error::from_io(&error, "waiting for a connection"))
}

/// What the result of a system call means for the readiness that was waited for; `None`: wait again.
fn transferred(
    guard: &mut AsyncFdReadyGuard<'_, OwnedFd>,
    wanted: usize,
    outcome: io::Result<usize>,
    doing: &str,
) -> Result<Option<usize>> {
    match outcome {
        Ok(count) => {
            // The socket is drained or full: the next call would only return `EAGAIN`. With edge-triggered
            // events nothing is missed by not trying.
            if count > 0 && count < wanted {
                guard.clear_ready();
            }
            Ok(Some(count))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            guard.clear_ready();
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(Error::from_io(&error, doing)),
    }
}

/// Ends a connection from another task of the same thread. Cheap to clone; it keeps nothing open.
#[derive(Clone)]
pub struct Canceller(pub(super) Weak<Socket>);

impl Canceller {
    pub(super) fn new(socket: &Rc<Socket>) -> Canceller {
        Canceller(Rc::downgrade(socket))
    }

    /// Ends the connection, if it still exists: no byte is received into any caller's memory after this has
    /// returned, and the task that uses the connection wakes up with an error.
    pub fn cancel(&self) {
        if let Some(socket) = self.0.upgrade() {
            socket.shut_down();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use ramlace_base::ServerId;
    use ramlace_wire::{Header, Kind};
    use rustix::net::{AddressFamily, SocketType, socketpair};

    use super::*;
    use crate::nonblocking::Connection;
    use crate::seal::{FrameKeys, Protection, Seal};

    const FRAMES: u32 = 50;
    /// More than an input buffer holds, and than one record does.
    const DATA_BYTES: usize = 70_000;

    fn pair(protection: Protection) -> [Connection; 2] {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let connection = |socket, send, receive| {
            let keys = FrameKeys { send: [send; 32], receive: [receive; 32] };
            rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4 * DATA_BYTES).unwrap();
            let socket = Rc::new(Socket::new(socket).unwrap());
            Connection::new(socket, "a test".into(), ServerId(0), Seal::new(&keys, protection))
        };
        [connection(one, 1, 2), connection(other, 2, 1)]
    }

    /// Polls once: a future that is not ready is dropped where it waits.
    async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// Sends frames with data, of which each receives as many, from both sides at once. Each call comes to its turn's
    /// end with its next step, and is dropped wherever it waits.
    async fn exchange(protection: Protection) {
        let mut sides = pair(protection);
        let data = vec![7; DATA_BYTES];
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        for _ in 0..100_000 {
            for (side, connection) in sides.iter_mut().enumerate() {
                if sent[side] < FRAMES && sent[side] == received[side] {
                    sent[side] += 1;
                    let header = Header { call: sent[side], ..Header::request(Kind::WriteChunk) };
                    connection.queue_reply(header, &[9; 100], &data);
                }
                for turn in [STEP_BYTES + 1, 2 * STEP_BYTES + 1] {
                    connection.socket.turn.set(TURN_BYTES_MAX - turn);
                    if let Some(request) = at_once(connection.read_request()).await {
                        let (header, body) = request.unwrap().expect("the other side has not ended");
                        received[side] += 1;
                        assert_eq!((header.call, &body[..]), (received[side], &[9; 100][..]));
                    }
                }
            }
            if received == [FRAMES; 2] {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{received:?} frames came of {sent:?}");
    }

    #[test]
    fn a_call_that_is_dropped_at_the_end_of_its_turn_repeats_and_loses_no_byte() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for protection in [Protection::Nothing, Protection::Heads, Protection::Everything] {
                exchange(protection).await;
            }
        });
    }
}

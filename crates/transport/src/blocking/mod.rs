//! The client's side: the thread that asks does the socket work itself.
//!
//! Every wait ends at an absolute deadline. A call that did not end cleanly (deadline, end of the
//! stream, nonsense) closes its connection before it returns, so that no late byte reaches anybody's
//! buffer; from then on every call on it fails with `HostDown`.

mod connect;
mod line;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Result, limits};
use ramlace_wire::{Front, HEADER_BYTES, Header, Request, encode_body, flags};

use crate::frame::{append_head, check_reply, decode_header, decode_reply};
use crate::input::{INPUT_BYTES, Input};
use crate::{Address, ConnectFailure, Failure, Secret};
pub use connect::resolve;
use line::Line;

type Outcome<T> = std::result::Result<T, Failure>;

/// Descriptors received before the frames that announce them were taken apart.
const DESCRIPTORS_MAX: usize = 16;

/// A connection to a server, used by one thread at a time.
///
/// Several calls may be under way at once; replies come in the order of the requests. A server
/// does not read on while its replies are not read, so whoever sends while much is due on the same
/// connection may wait for a server that waits for them: collect bulk replies before sending bulk
/// data, and have at most some 100 small calls under way (a Unix socket holds some 200 frames).
pub struct Connection {
    /// Gone when a call did not end cleanly.
    line: Option<Line>,
    address: Address,
    is_local: bool,
    input: Input,
    /// Data of the latest reply that nobody has taken yet.
    data_left: usize,
    descriptors: VecDeque<OwnedFd>,
    /// Where heads of requests are put together.
    scratch: Vec<u8>,
}

/// A reply. When it has data, [`Connection::receive_data`] or [`Connection::skip_data`] follows.
#[derive(Debug)]
pub struct Received<T> {
    /// The reply's body.
    pub reply: T,
    /// Bulk bytes behind the body.
    pub data_bytes: u32,
    /// The descriptor that travelled with the reply.
    pub descriptor: Option<OwnedFd>,
    /// The map that the server believes in.
    pub epoch: Epoch,
}

impl Connection {
    /// Connects, and proves the secret to each other.
    ///
    /// Errors: `HostDown` or `TimedOut` when nobody answers, `Denied` or `Protocol` with the
    /// server's own line when it refuses. All of them name the address.
    pub fn connect(address: &Address, secret: &Secret, deadline: Instant) -> Result<Connection> {
        Connection::try_connect(address, secret, deadline).map_err(Error::from)
    }

    /// The same, and tells whether nobody listens there.
    pub fn try_connect(
        address: &Address,
        secret: &Secret,
        deadline: Instant,
    ) -> std::result::Result<Connection, ConnectFailure> {
        let name = |failure: ConnectFailure| failure.context(address);
        let line = Line::new(connect::connect(address, deadline).map_err(name)?)?;
        connect::shake_hands(&line, secret, deadline).map_err(|error| name(error.into()))?;
        let is_local = crate::socket::peer_uid(line.as_fd()) == Some(rustix::process::geteuid().as_raw());
        let mut connection = Connection {
            line: Some(line),
            address: address.clone(),
            is_local,
            input: Input::new(),
            data_left: 0,
            descriptors: VecDeque::new(),
            scratch: Vec::new(),
        };
        connection.input.lend_buffer(vec![0; INPUT_BYTES]);
        Ok(connection)
    }

    /// Sends a request: its header (with `kind` and lengths filled in here), its body and its
    /// data, gathered from where they are. `header.call` comes back in the reply.
    ///
    /// Errors: `TooLarge` when the data are too long for one frame (nothing was sent);
    /// `TimedOut` or `HostDown` end the connection.
    pub fn send<R: Request>(
        &mut self,
        header: Header,
        body: &R,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Outcome<()> {
        self.send_behind(Front::default(), header, body, data, deadline)
    }

    /// The same with something in front of the body.
    pub fn send_behind<R: Request>(
        &mut self,
        front: Front<'_>,
        header: Header,
        body: &R,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Outcome<()> {
        let data_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        if data_bytes > limits::DATA_BYTES_MAX as usize {
            return Err(harmless(
                ErrorKind::TooLarge,
                format!("one message carries at most {} bytes, not {data_bytes}", limits::DATA_BYTES_MAX),
            ));
        }
        self.scratch.clear();
        let mut header = Header { kind: R::KIND, ..header };
        let mut bytes = front.encode(&mut header);
        bytes.extend(encode_body(body));
        append_head(&mut self.scratch, header, &bytes, data_bytes);
        let sent = self.line().and_then(|line| line.send_all(&self.scratch, data, deadline));
        sent.map_err(|error| self.fail(error, "sending a request"))
    }

    /// Receives the reply to the request `R` that was sent as `call`. Data of the previous reply
    /// that nobody took is skipped.
    ///
    /// Errors: what the server answers (not fatal), else what ended the connection (fatal).
    pub fn receive<R: Request>(&mut self, call: u32, deadline: Instant) -> Outcome<Received<R::Reply>> {
        let outcome = self.receive_reply::<R>(call, deadline);
        outcome.map_err(|failure| match failure.fatal {
            true => self.fail(failure.error, "waiting for a reply"),
            false => failure,
        })
    }

    /// Receives the data of the latest reply into these buffers, which together must have
    /// exactly the length it announced (else `Invalid`, and nothing is received).
    pub fn receive_data(&mut self, into: &mut [IoSliceMut<'_>], deadline: Instant) -> Outcome<()> {
        let length: usize = into.iter().map(|piece| piece.len()).sum();
        if length != self.data_left {
            return Err(harmless(
                ErrorKind::Invalid,
                format!("buffers for {length} bytes cannot take a reply's {} bytes", self.data_left),
            ));
        }
        let received = self.receive_pieces(into, deadline);
        received.map_err(|error| self.fail(error, "receiving data"))
    }

    /// Receives the data of the latest reply and drops it.
    pub fn skip_data(&mut self, deadline: Instant) -> Outcome<()> {
        let skipped = self.skip(deadline);
        skipped.map_err(|error| self.fail(error, "skipping data"))
    }

    /// Whether the other side is on this machine and of this user, by the kernel's word.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Where this connection goes.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its socket, as long as it is open: what a forked child closes its copy of.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(Line::as_fd)
    }

    /// Whether calls may still succeed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.line.is_some()
    }

    /// Closes it; every later call fails. Also stops whatever a forked process has of it.
    pub fn close(&mut self) {
        if let Some(line) = self.line.take() {
            crate::socket::shut_down(line.as_fd());
        }
        self.descriptors.clear();
    }

    fn line(&self) -> Result<&Line> {
        self.line.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::HostDown, "the connection was closed after an earlier failure")
        })
    }

    /// Closes the connection; the failure names the address and what was being done.
    fn fail(&mut self, error: Error, doing: &str) -> Failure {
        self.close();
        Failure::from(error.context(format_args!("{}: {doing}", self.address)))
    }

    fn receive_reply<R: Request>(&mut self, call: u32, deadline: Instant) -> Outcome<Received<R::Reply>> {
        self.skip(deadline)?;
        self.fill(HEADER_BYTES, deadline)?;
        let header = decode_header(self.input.bytes())?;
        check_reply::<R>(&header, call)?;
        let reply = self.receive_body::<R>(&header, deadline)?;
        self.data_left = header.data_bytes as usize;
        self.input.expect_like(&header);
        let descriptor = self.claim_descriptor(&header)?;
        Ok(Received { reply: reply?, data_bytes: header.data_bytes, descriptor, epoch: header.epoch })
    }

    /// The outer error is the connection's, the inner one the call's.
    fn receive_body<R: Request>(
        &mut self,
        header: &Header,
        deadline: Instant,
    ) -> Result<std::result::Result<R::Reply, Failure>> {
        let body_bytes = header.body_bytes as usize;
        if HEADER_BYTES + body_bytes <= INPUT_BYTES {
            self.fill(HEADER_BYTES + body_bytes, deadline)?;
            let reply = decode_reply::<R>(header, &self.input.bytes()[HEADER_BYTES..][..body_bytes]);
            self.input.consume(HEADER_BYTES + body_bytes);
            return told(reply);
        }
        self.input.consume(HEADER_BYTES);
        let mut body = vec![0; body_bytes];
        let buffered = self.input.take(&mut body);
        self.line()?.receive_all(&mut [IoSliceMut::new(&mut body[buffered..])], deadline)?;
        told(decode_reply::<R>(header, &body))
    }

    /// Makes sure that the buffer holds at least so many bytes.
    fn fill(&mut self, count: usize, deadline: Instant) -> Result<()> {
        while self.input.len() < count {
            let missing = count - self.input.len();
            let Some(line) = &self.line else { return self.line().map(drop) };
            let room = self.input.room(missing);
            let received = line.receive_some(room, &mut self.descriptors, deadline)?;
            self.input.received(received);
            // Nobody announces so many at once.
            self.descriptors.truncate(DESCRIPTORS_MAX);
        }
        Ok(())
    }

    fn claim_descriptor(&mut self, header: &Header) -> Result<Option<OwnedFd>> {
        let announced = header.flags & flags::DESCRIPTOR != 0;
        let descriptor = if announced { self.descriptors.pop_front() } else { None };
        if announced && descriptor.is_none() {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the reply to {:?} came without its descriptor", header.kind),
            ));
        }
        if self.input.len() == 0 {
            // Every frame that could have announced them is done.
            self.descriptors.clear();
        }
        Ok(descriptor)
    }

    fn receive_pieces(&mut self, into: &mut [IoSliceMut<'_>], deadline: Instant) -> Result<()> {
        let mut pieces = into;
        while self.input.len() > 0 && self.data_left > 0 {
            let count = self.input.take(&mut pieces[0]);
            self.data_left -= count;
            IoSliceMut::advance_slices(&mut pieces, count);
        }
        self.line()?.receive_all(pieces, deadline)?;
        self.data_left = 0;
        Ok(())
    }

    fn skip(&mut self, deadline: Instant) -> Result<()> {
        if self.data_left == 0 {
            return Ok(());
        }
        let mut nowhere = [0; INPUT_BYTES];
        while self.data_left > 0 {
            let count = self.data_left.min(INPUT_BYTES);
            let buffered = self.input.take(&mut nowhere[..count]);
            self.line()?.receive_all(&mut [IoSliceMut::new(&mut nowhere[buffered..count])], deadline)?;
            self.data_left -= count;
        }
        Ok(())
    }
}

/// Parts what the server said from what breaks the connection.
fn told<T>(reply: std::result::Result<T, Failure>) -> Result<std::result::Result<T, Failure>> {
    match reply {
        Err(failure) if failure.fatal => Err(failure.error),
        other => Ok(other),
    }
}

/// An error that leaves the connection as it was.
fn harmless(kind: ErrorKind, text: String) -> Failure {
    Failure { fatal: false, ..Failure::from(Error::new(kind, text)) }
}

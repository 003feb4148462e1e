//! The client's side: the calling thread does the socket work itself.
//!
//! Every wait ends at an absolute deadline. A call that did not end cleanly (deadline, end of the stream,
//! nonsense) closes its connection before it returns, so that no late byte reaches the buffer of another call;
//! from then on every call on it fails with `HostDown`.

mod connect;
mod line;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Result, ServerId, limits};
use ramlace_wire::{Front, HEADER_BYTES, Header, Kind, Request, decode_body, encode_body, flags};

use crate::frame::{TakeBody, append_head, check_reply, decode_header, decoding, take_reply};
use crate::input::{INPUT_BYTES, Input};
use crate::seal::{RECORD_BYTES, Record, Seal, tag_bytes};
use crate::{Address, ClientKey, ConnectFailure, Failure};
pub use connect::resolve;
use line::Line;

type Outcome<T> = std::result::Result<T, Failure>;

/// Descriptors received before the frames that announce them were taken apart.
const DESCRIPTORS_MAX: usize = 16;

/// A connection to a server, used by one thread at a time.
///
/// Several calls may be under way at once; replies come in the order of the requests. A server does not read on
/// while its replies are not read, so a caller that sends while many replies are pending on the same connection
/// may wait for a server that waits for that caller: collect bulk replies before sending bulk data, and have at
/// most some 100 small calls under way (a Unix socket holds some 200 frames).
pub struct Connection {
    /// Gone when a call did not end cleanly.
    line: Option<Line>,
    address: Address,
    is_local: bool,
    server: ServerId,
    /// The protection of its frames; `None` on a Unix socket.
    seal: Option<Box<Seal>>,
    /// Sealed data of the latest reply, as far as they have come.
    record: Record,
    input: Input,
    /// Data of the latest reply that the caller has not taken yet.
    data_left: usize,
    descriptors: VecDeque<OwnedFd>,
    /// Calls under way whose replies may bring one. While there is none the plain system call receives: it is cheaper.
    descriptor_calls: usize,
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
    /// The epoch of the server's map.
    pub epoch: Epoch,
}

impl<T> Received<T> {
    /// The same with this reply.
    pub fn with<U>(self, reply: U) -> Received<U> {
        let Received { data_bytes, descriptor, epoch, .. } = self;
        Received { reply, data_bytes, descriptor, epoch }
    }
}

impl Connection {
    /// Connects; both sides prove their keys. `wanted`: the server that is meant, unless any of the pool will do.
    ///
    /// Errors: `HostDown` or `TimedOut` when no server answers, or another one does; `Denied` or `Protocol`
    /// with the server's own line when it refuses. All of them name the address.
    pub fn connect(
        address: &Address,
        key: &ClientKey,
        wanted: Option<ServerId>,
        deadline: Instant,
    ) -> Result<Connection> {
        Connection::try_connect(address, key, wanted, deadline).map_err(Error::from)
    }

    /// The same, and reports whether there is no listener.
    pub fn try_connect(
        address: &Address,
        key: &ClientKey,
        wanted: Option<ServerId>,
        deadline: Instant,
    ) -> std::result::Result<Connection, ConnectFailure> {
        let name = |failure: ConnectFailure| failure.context(address);
        let line = Line::new(connect::connect(address, deadline).map_err(name)?)?;
        let answered =
            connect::shake_hands(&line, key, wanted, deadline).map_err(|error| name(error.into()))?;
        let is_local = crate::socket::peer_uid(line.as_fd()) == Some(rustix::process::geteuid().as_raw());
        let mut connection = Connection {
            line: Some(line),
            address: address.clone(),
            is_local,
            server: answered.server,
            seal: Seal::new(&answered.keys, answered.protection),
            record: Record::default(),
            input: Input::new(),
            data_left: 0,
            descriptors: VecDeque::new(),
            descriptor_calls: 0,
            scratch: Vec::new(),
        };
        connection.input.lend_buffer(vec![0; INPUT_BYTES]);
        Ok(connection)
    }

    /// Sends a request, as [`Connection::send_body`] does, with its kind filled in.
    pub fn send<R: Request>(
        &mut self,
        header: Header,
        request: &R,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Outcome<()> {
        let header = Header { kind: R::KIND, ..header };
        self.send_body(Front::default(), header, &encode_body(request), data, deadline)
    }

    /// Sends a request: its header (with lengths filled in here), what goes in front of its body, the body, and
    /// its data, gathered from where they are. `header.call` comes back in the reply.
    ///
    /// Errors: `TooLarge` when the data are too long for one frame (nothing was sent);
    /// `TimedOut` or `HostDown` end the connection.
    pub fn send_body(
        &mut self,
        front: Front<'_>,
        header: Header,
        body: &[u8],
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
        let mut header = header;
        let mut bytes = front.encode(&mut header);
        bytes.extend_from_slice(body);
        append_head(&mut self.scratch, header, &bytes, data_bytes);
        self.descriptor_calls += usize::from(header.kind.row().brings_descriptor);
        let sent = self.send_frame(data, deadline);
        sent.map_err(|error| self.fail(error, "sending a request"))
    }

    /// Sends the head that was put together, and the data behind it.
    fn send_frame(&mut self, data: &[IoSlice<'_>], deadline: Instant) -> Result<()> {
        let line = self.line.as_ref().ok_or_else(closed)?;
        let Some(seal) = &mut self.seal else { return line.send_all(&self.scratch, data, deadline) };
        seal.seal_head(&mut self.scratch, 0);
        if !seal.covers_data() {
            return line.send_all(&self.scratch, data, deadline);
        }
        let mut begun = self.scratch.len();
        for piece in data {
            let mut piece: &[u8] = piece;
            while !piece.is_empty() {
                let count = piece.len().min(begun + RECORD_BYTES - self.scratch.len());
                self.scratch.extend_from_slice(&piece[..count]);
                piece = &piece[count..];
                if self.scratch.len() == begun + RECORD_BYTES {
                    seal.seal_record(&mut self.scratch, begun);
                    line.send_all(&self.scratch, &[], deadline)?;
                    self.scratch.clear();
                    begun = 0;
                }
            }
        }
        if self.scratch.len() > begun {
            seal.seal_record(&mut self.scratch, begun);
        }
        line.send_all(&self.scratch, &[], deadline)
    }

    /// Receives the reply to the request `R` that was sent as `call`, as [`Connection::receive_body`] does.
    pub fn receive<R: Request>(&mut self, call: u32, deadline: Instant) -> Outcome<Received<R::Reply>> {
        let receive = |take: &mut TakeBody<'_>| self.receive_body(R::KIND, call, deadline, take);
        let (received, reply) = decoding(|body| decode_body(R::KIND, body), receive)?;
        Ok(received.with(reply))
    }

    /// Receives the reply to the request of this kind that was sent as `call`; `take` gets its body, once. Data
    /// of the previous reply that the caller did not take is skipped.
    ///
    /// Errors: the server's answer (not fatal), else the reason why the connection ended (fatal).
    pub fn receive_body(
        &mut self,
        kind: Kind,
        call: u32,
        deadline: Instant,
        take: &mut TakeBody<'_>,
    ) -> Outcome<Received<()>> {
        let outcome = self.receive_reply(kind, call, deadline, take);
        outcome.map_err(|failure| match failure.fatal {
            true => self.fail(failure.error, "waiting for a reply"),
            false => failure,
        })
    }

    /// Waits until the next reply begins to arrive; false when nothing has come until then. Then the
    /// connection is as before, and a caller that knows that the server lives waits once more.
    ///
    /// Errors: the reason why the connection ended.
    pub fn await_reply(&mut self, until: Instant) -> Outcome<bool> {
        let begun = self.skip(until).and_then(|()| self.fill(1, until));
        match begun {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut && self.data_left == 0 => Ok(false),
            Err(error) => Err(self.fail(error, "waiting for a reply")),
        }
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

    /// The server that answers, as it has proved.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Where this connection goes.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its socket, as long as it is open: a forked child closes its copy of it.
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
        self.line.as_ref().ok_or_else(closed)
    }

    /// Closes the connection; the failure names the address and the operation.
    fn fail(&mut self, error: Error, doing: &str) -> Failure {
        self.close();
        Failure::from(error.context(format_args!("{}: {doing}", self.address)))
    }

    fn receive_reply(
        &mut self,
        kind: Kind,
        call: u32,
        deadline: Instant,
        take: &mut TakeBody<'_>,
    ) -> Outcome<Received<()>> {
        self.skip(deadline)?;
        self.fill(HEADER_BYTES, deadline)?;
        let header = decode_header(self.input.bytes())?;
        check_reply(&header, kind, call)?;
        // Its first byte is here, and the descriptor came with that.
        self.descriptor_calls -= usize::from(kind.row().brings_descriptor);
        let reply = self.take_body(&header, deadline, take)?;
        self.data_left = header.data_bytes as usize;
        self.input.expect_like(&header, tag_bytes(self.seal.as_deref()));
        let descriptor = self.claim_descriptor(&header)?;
        reply?;
        Ok(Received { reply: (), data_bytes: header.data_bytes, descriptor, epoch: header.epoch })
    }

    /// The outer error is the connection's, the inner one the call's.
    fn take_body(
        &mut self,
        header: &Header,
        deadline: Instant,
        take: &mut TakeBody<'_>,
    ) -> Result<Outcome<()>> {
        let body_bytes = header.body_bytes as usize + tag_bytes(self.seal.as_deref());
        if HEADER_BYTES + body_bytes <= INPUT_BYTES {
            self.fill(HEADER_BYTES + body_bytes, deadline)?;
            let (head, rest) = self.input.bytes_mut().split_at_mut(HEADER_BYTES);
            let head = (&*head).try_into().expect("it was cut there");
            let reply = take_reply(header, opened(&mut self.seal, head, &mut rest[..body_bytes])?, take);
            self.input.consume(HEADER_BYTES + body_bytes);
            return answered(reply);
        }
        self.input.consume(HEADER_BYTES);
        let mut body = vec![0; body_bytes];
        let buffered = self.input.take(&mut body);
        self.line()?.receive_all(&mut [IoSliceMut::new(&mut body[buffered..])], deadline)?;
        answered(take_reply(header, opened(&mut self.seal, &header.encode(), &mut body)?, take))
    }

    /// Makes sure that the buffer holds at least `count` bytes.
    fn fill(&mut self, count: usize, deadline: Instant) -> Result<()> {
        while self.input.len() < count {
            let missing = count - self.input.len();
            let Some(line) = &self.line else { return self.line().map(drop) };
            let room = self.input.room(missing);
            let descriptors = (self.descriptor_calls > 0).then_some(&mut self.descriptors);
            let received = line.receive_some(room, descriptors, deadline)?;
            self.input.received(received);
            // No valid frame announces this many at once.
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
        if self.data_is_sealed() {
            return self.open_pieces(pieces, deadline);
        }
        while self.input.len() > 0 && self.data_left > 0 {
            let count = self.input.take(&mut pieces[0]);
            self.data_left -= count;
            IoSliceMut::advance_slices(&mut pieces, count);
        }
        self.line()?.receive_all(pieces, deadline)?;
        self.data_left = 0;
        Ok(())
    }

    fn data_is_sealed(&self) -> bool {
        self.seal.as_ref().is_some_and(|seal| seal.covers_data())
    }

    fn open_pieces(&mut self, into: &mut [IoSliceMut<'_>], deadline: Instant) -> Result<()> {
        for piece in into {
            let mut filled = 0;
            while filled < piece.len() {
                self.next_record(deadline)?;
                let count = (piece.len() - filled).min(self.record.left());
                piece[filled..filled + count].copy_from_slice(&self.record.bytes()[..count]);
                self.take_opened(count);
                filled += count;
            }
        }
        Ok(())
    }

    fn take_opened(&mut self, count: usize) {
        self.record.consume(count);
        self.data_left -= count;
    }

    /// Makes sure that opened bytes are there, for data that are left.
    fn next_record(&mut self, deadline: Instant) -> Result<()> {
        if self.record.left() > 0 {
            return Ok(());
        }
        self.record.begin(self.data_left);
        self.record.filled = self.input.take(self.record.room());
        let wakes_at = self.record.wakes_at(self.data_left);
        let line = self.line.as_ref().ok_or_else(closed)?;
        line.wake_at(wakes_at)?;
        line.receive_all(&mut [IoSliceMut::new(self.record.room())], deadline)?;
        self.record.filled = self.record.buffer.len();
        self.record.open(self.seal.as_mut().expect("only sealed data come in records"))
    }

    fn skip(&mut self, deadline: Instant) -> Result<()> {
        if self.data_left == 0 {
            return Ok(());
        }
        if self.data_is_sealed() {
            // Skipped records are decrypted, too: that keeps the count that is the nonce.
            while self.data_left > 0 {
                self.next_record(deadline)?;
                self.take_opened(self.record.left());
            }
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

/// The body, without its tag where there is one.
fn opened<'body>(
    seal: &mut Option<Box<Seal>>,
    header: &[u8; HEADER_BYTES],
    body: &'body mut [u8],
) -> Result<&'body [u8]> {
    match seal {
        Some(seal) => Ok(seal.open_body(header, body)?),
        None => Ok(body),
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::HostDown, "the connection was closed after an earlier failure")
}

/// Separates the server's answers from failures that break the connection.
fn answered(reply: Outcome<()>) -> Result<Outcome<()>> {
    match reply {
        Err(failure) if failure.fatal => Err(failure.error),
        other => Ok(other),
    }
}

/// An error that leaves the connection as it was.
fn harmless(kind: ErrorKind, text: String) -> Failure {
    Failure { fatal: false, ..Failure::from(Error::new(kind, text)) }
}

//! Requests and their data come in.

use std::os::fd::BorrowedFd;

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::{HEADER_BYTES, Header};

use super::buffers;
use super::connection::{Connection, closed_inside_a_frame};
use super::socket::{Patience, UNTIL_WOULD_BLOCK};
use crate::RawSegment;
use crate::frame::decode_header;
use crate::input::INPUT_BYTES;
use crate::raw::{self, Cursor};
use crate::seal::tag_bytes;

/// A long body is given memory in steps of this size, as it arrives.
const BODY_STEP_BYTES: usize = 64 << 10;

impl Connection {
    /// The next request's header and body; `None` at a clean end. Its data is taken with
    /// `read_data_*` and `skip_data`; what is left of it is skipped by the next call.
    ///
    /// Queued replies leave before this waits for the peer, and whenever they are too many. May
    /// be dropped while it waits: nothing is lost.
    ///
    /// Errors: the peer ended inside a frame, sent nonsense, or stopped inside a frame for
    /// longer than the stall limit; the connection is closed.
    pub async fn read_request(&mut self) -> Result<Option<(Header, Vec<u8>)>> {
        self.check_usable()?;
        match self.read_frame().await {
            Ok(frame) => Ok(frame),
            Err(error) => Err(self.fail(error)),
        }
    }

    pub(super) async fn read_frame(&mut self) -> Result<Option<(Header, Vec<u8>)>> {
        self.socket.count(0);
        self.socket.give_turn().await;
        if self.output.len() - self.output_sent > limits::CONNECTION_OUTPUT_BYTES_MAX {
            self.send_output().await?;
        }
        self.skip_left().await?;
        loop {
            if self.partial.is_some() {
                return self.read_long_body().await.map(Some);
            }
            let missing = match self.next_frame()? {
                Next::Whole(header) => return self.take_frame(header).map(Some),
                Next::Long(header) => {
                    self.begin_long_body(header);
                    continue;
                }
                Next::Missing(count) => count,
            };
            let between_frames = self.input.len() == 0;
            let patience = if between_frames { Patience::Endless } else { self.patience() };
            if self.fill(missing, patience).await? == 0 {
                return if between_frames { Ok(None) } else { Err(closed_inside_a_frame()) };
            }
        }
    }

    /// Whether the next request is here already, whole but for its data: then it may be served
    /// before the replies so far are flushed.
    #[must_use]
    pub fn has_buffered_request(&self) -> bool {
        let data_left =
            if self.data_is_sealed() { self.record.wire_bytes_left(self.data_left) } else { self.data_left };
        let Some(bytes) = self.input.bytes().get(data_left..) else { return false };
        // A damaged header is an answer too: the next read reports it.
        bytes.len() >= HEADER_BYTES
            && decode_header(bytes).map_or(true, |header| bytes.len() >= self.head_bytes(&header))
    }

    fn tag_bytes(&self) -> usize {
        tag_bytes(self.seal.as_deref())
    }

    /// Length of a frame's header and body, with the tag behind them.
    fn head_bytes(&self, header: &Header) -> usize {
        HEADER_BYTES + header.body_bytes as usize + self.tag_bytes()
    }

    fn next_frame(&self) -> Result<Next> {
        let bytes = self.input.bytes();
        if bytes.len() < HEADER_BYTES {
            return Ok(Next::Missing(HEADER_BYTES - bytes.len()));
        }
        let header = decode_header(bytes)?;
        let head = self.head_bytes(&header);
        Ok(match head {
            _ if bytes.len() >= head => Next::Whole(header),
            _ if head > INPUT_BYTES => Next::Long(header),
            _ => Next::Missing(head - bytes.len()),
        })
    }

    fn take_frame(&mut self, header: Header) -> Result<(Header, Vec<u8>)> {
        let head = self.head_bytes(&header);
        let body = self.input.bytes()[HEADER_BYTES..head].to_vec();
        self.input.consume(head);
        let body = self.open_body(&header, body)?;
        self.begin_data(&header);
        Ok((header, body))
    }

    /// The body, without its tag where there is one.
    fn open_body(&mut self, header: &Header, mut body: Vec<u8>) -> Result<Vec<u8>> {
        if let Some(seal) = &mut self.seal {
            let length = seal.open_body(&header.encode(), &mut body)?.len();
            body.truncate(length);
        }
        Ok(body)
    }

    fn begin_data(&mut self, header: &Header) {
        self.data_left = header.data_bytes as usize;
        self.input.expect_like(header, self.tag_bytes());
    }

    fn begin_long_body(&mut self, header: Header) {
        self.input.consume(HEADER_BYTES);
        let body = self.input.bytes().to_vec();
        self.input.consume(body.len());
        self.partial = Some((header, body));
    }

    async fn read_long_body(&mut self) -> Result<(Header, Vec<u8>)> {
        let (patience, tag_bytes) = (self.patience(), self.tag_bytes());
        loop {
            self.report_held();
            let (header, body) = self.partial.as_mut().expect("a body is arriving");
            let missing = header.body_bytes as usize + tag_bytes - body.len();
            if missing == 0 {
                let (header, body) = self.partial.take().expect("it was there just now");
                self.report_held();
                let body = self.open_body(&header, body)?;
                self.begin_data(&header);
                return Ok((header, body));
            }
            let step = missing.min(BODY_STEP_BYTES);
            let received = self
                .socket
                .receive(patience, step, |socket| {
                    let begun = body.len();
                    body.resize(begun + step, 0);
                    let outcome = rustix::io::read(socket, &mut body[begun..]);
                    body.truncate(begun + outcome.unwrap_or(0));
                    Ok(outcome?)
                })
                .await?;
            if received == 0 {
                return Err(closed_inside_a_frame());
            }
        }
    }

    /// Receives into the buffer once, at least `missing` bytes' room; 0 at the end of the stream.
    async fn fill(&mut self, missing: usize, patience: Patience) -> Result<usize> {
        self.send_output().await?;
        let input = &mut self.input;
        // All of the room is asked for: less than that means drained, which saves the call that would only
        // return `EAGAIN`.
        let wanted = input.room_bytes(missing);
        let received = self
            .socket
            .receive(patience, wanted, |socket| {
                if !input.has_buffer() {
                    input.lend_buffer(buffers::borrow_input());
                }
                let received = rustix::io::read(socket, input.room(missing));
                input.received(received.unwrap_or(0));
                // A connection that waits does so without a buffer.
                if let Some(buffer) = input.return_buffer() {
                    buffers::return_input(buffer);
                }
                Ok(received?)
            })
            .await?;
        Ok(received)
    }

    /// Takes the next `length` bytes of the request's data into `buffer`, which then holds them
    /// alone. Panics when the request has not so many left.
    ///
    /// Errors: as for [`Connection::read_request`].
    pub async fn read_data_staged(&mut self, length: usize, buffer: &mut Vec<u8>) -> Result<()> {
        self.check_usable()?;
        assert!(length <= self.data_left, "{length} bytes are asked for, {} are left", self.data_left);
        buffer.clear();
        buffer.resize(length, 0);
        match self.stage(buffer).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn stage(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.data_is_sealed() {
            return self.stage_opened(buffer).await;
        }
        let mut filled = self.input.take(buffer);
        self.data_left -= filled;
        self.flush_before_waiting(filled < buffer.len()).await?;
        while filled < buffer.len() {
            let room = &mut buffer[filled..];
            let wanted = room.len();
            let receive = |socket: BorrowedFd<'_>| Ok(rustix::io::read(socket, &mut *room)?);
            let received = self.socket.receive(self.patience(), wanted, receive).await?;
            if received == 0 {
                return Err(closed_inside_a_frame());
            }
            filled += received;
            self.data_left -= received;
        }
        Ok(())
    }

    /// Fails if the other side has ended the connection, though requests of it may be here still: nobody waits
    /// for their answers, and another program may do the same work anew.
    pub async fn check_sender(&self) -> Result<()> {
        if self.socket.has_ended().await { Err(self.has_no_sender()) } else { Ok(()) }
    }

    /// The same by a system call, where it goes unnoticed beside many bytes that are received.
    pub(super) fn check_sender_now(&self) -> Result<()> {
        if self.socket.has_ended_now() { Err(self.has_no_sender()) } else { Ok(()) }
    }

    fn has_no_sender(&self) -> Error {
        self.name(Error::new(ErrorKind::HostDown, "it has ended before its change was done"))
    }

    /// Takes the next bytes of the request's data, as many as the segments have, straight into
    /// them. Only system calls touch the segments. Panics when the request has not so many left.
    ///
    /// Errors: `Fault` when memory of the segments is gone; then the rest of these bytes was skipped, frames
    /// are in step and the connection continues. Otherwise as for [`Connection::read_request`]. When this is
    /// dropped, or fails, some of the bytes may have been stored.
    ///
    /// # Safety
    /// The segments stay mapped (or become memory that faults, never other memory) until this returns or is
    /// dropped, and there is no reference to them.
    pub async unsafe fn read_data_in_place(&mut self, segments: &[RawSegment]) -> Result<()> {
        self.check_usable()?;
        // SAFETY: the caller's promise.
        let mut cursor = unsafe { Cursor::new(segments) };
        assert!(
            cursor.left() <= self.data_left,
            "{} bytes are asked for, {} are left",
            cursor.left(),
            self.data_left
        );
        let data_after = self.data_left - cursor.left();
        match self.place(&mut cursor).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Fault => {
                let rest = self.data_left - data_after;
                self.skip_data(rest).await?;
                Err(self.name(error.context("the memory for these bytes is gone")))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn place(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        if self.data_is_sealed() {
            return self.place_opened(cursor).await;
        }
        let buffered = cursor.left().min(self.input.len());
        if buffered > 0 {
            self.socket.check_cancelled()?;
            self.check_sender_now()?;
            let carried = raw::store(&self.input.bytes()[..buffered], cursor);
            self.input.consume(buffered);
            self.data_left -= buffered;
            carried.map_err(|error| Error::from_io(&error, "storing received bytes"))?;
        }
        self.flush_before_waiting(cursor.left() > 0).await?;
        while cursor.left() > 0 {
            // Not between the look at the sender and the receive.
            self.socket.give_turn().await;
            self.check_sender_now()?;
            let receive = |socket: BorrowedFd<'_>| raw::receive(socket, cursor);
            let received = self.socket.receive(self.patience(), UNTIL_WOULD_BLOCK, receive).await?;
            if received == 0 {
                return Err(closed_inside_a_frame());
            }
            self.data_left -= received;
        }
        Ok(())
    }

    /// Drops the next `length` bytes of the request's data. Panics when it has not so many left.
    ///
    /// Errors: as for [`Connection::read_request`].
    pub async fn skip_data(&mut self, length: usize) -> Result<()> {
        self.check_usable()?;
        assert!(length <= self.data_left, "{length} bytes are skipped, {} are left", self.data_left);
        match self.skip(length).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn skip_left(&mut self) -> Result<()> {
        if self.data_left > 0 { self.skip(self.data_left).await } else { Ok(()) }
    }

    async fn skip(&mut self, mut length: usize) -> Result<()> {
        if self.data_is_sealed() {
            return self.skip_opened(length).await;
        }
        while length > 0 {
            if self.input.len() == 0 && self.fill(length.min(INPUT_BYTES), self.patience()).await? == 0 {
                return Err(closed_inside_a_frame());
            }
            let step = length.min(self.input.len());
            self.input.consume(step);
            self.return_input_buffer();
            self.data_left -= step;
            length -= step;
        }
        Ok(())
    }

    pub(super) fn return_input_buffer(&mut self) {
        if let Some(buffer) = self.input.return_buffer() {
            buffers::return_input(buffer);
        }
    }

    pub(super) async fn flush_before_waiting(&mut self, will_wait: bool) -> Result<()> {
        if will_wait { self.send_output().await } else { Ok(()) }
    }
}

enum Next {
    /// Header and body are here.
    Whole(Header),
    /// The header is here; the body is longer than the buffer.
    Long(Header),
    /// At least this many bytes are missing.
    Missing(usize),
}

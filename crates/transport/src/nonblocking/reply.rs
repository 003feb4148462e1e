//! Replies go out.

use std::cell::OnceCell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::{Header, Kind, Request, decode_body, encode_body, flags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::connection::{Connection, OUTPUT_KEPT_BYTES_MAX, closed_inside_a_frame};
use super::socket::UNTIL_WOULD_BLOCK;
use crate::frame::{TakeBody, append_head, check_reply, take_reply};
use crate::raw::{self, Cursor};
use crate::seal::{RECORD_BYTES, SENT_TOGETHER_BYTES, sealed_bytes};
use crate::{Failure, RawSegment};

impl Connection {
    /// Queues a reply, its lengths filled in, with a copy of its (small) data. It is sent with the next
    /// flush, in-place send, or wait for the peer. Panics if it is too long for a frame.
    pub fn queue_reply(&mut self, header: Header, body: &[u8], data: &[u8]) {
        self.append_head(header, body, data.len());
        match self.seal.as_mut().filter(|seal| seal.covers_data()) {
            None => self.output.extend_from_slice(data),
            Some(seal) => {
                for record in data.chunks(RECORD_BYTES) {
                    let begun = self.output.len();
                    self.output.extend_from_slice(record);
                    seal.seal_record(&mut self.output, begun);
                }
            }
        }
        self.report_held();
    }

    /// Appends a frame's header and body to the queue, sealed if frames are sealed.
    fn append_head(&mut self, header: Header, body: &[u8], data_bytes: usize) {
        let begun = self.output.len();
        append_head(&mut self.output, header, body, data_bytes);
        if let Some(seal) = &mut self.seal {
            seal.seal_head(&mut self.output, begun);
        }
    }

    /// Sends the queue. May be dropped while it waits: the rest is sent next time.
    ///
    /// Errors: the peer is gone, or has read nothing for longer than the stall limit; the connection is
    /// closed.
    pub async fn flush(&mut self) -> Result<()> {
        self.check_usable()?;
        match self.send_output().await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    pub(super) async fn send_output(&mut self) -> Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        self.send_gathered(&mut Cursor::nowhere()).await
    }

    /// Sends the queue, the header with its lengths filled in, the body, and the segments from
    /// where they are, gathered. Only system calls touch the segments. Once there is a `copy` of all of them, the
    /// rest is sent from it.
    ///
    /// Errors: `Fault` when memory of the segments is gone: the frame was announced and cannot be
    /// finished, so the connection is closed, as after every other error of this call. Dropping
    /// it before it has returned leaves the connection closed as well.
    ///
    /// # Safety
    /// The segments stay mapped (or become memory that faults, never other memory) until this returns or is
    /// dropped, and there is no mutable reference to them.
    pub async unsafe fn send_in_place(
        &mut self,
        header: Header,
        body: &[u8],
        segments: &[RawSegment],
        copy: Option<&OnceCell<Vec<u8>>>,
    ) -> Result<()> {
        self.check_usable()?;
        // SAFETY: the caller's promise.
        let mut cursor = unsafe { Cursor::new(segments) }.or_from(copy);
        self.append_head(header, body, cursor.left());
        self.broken = true;
        let sealed = self.data_is_sealed();
        let sent =
            if sealed { self.send_sealed(&mut cursor).await } else { self.send_gathered(&mut cursor).await };
        match sent {
            Ok(()) => {
                self.broken = false;
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn send_gathered(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        self.drain(cursor).await?;
        if self.output.capacity() > OUTPUT_KEPT_BYTES_MAX {
            self.output = Vec::new();
        }
        Ok(())
    }

    /// Sends the queue and the bytes at the cursor. The queue keeps its memory.
    async fn drain(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        while self.output_sent < self.output.len() || cursor.left() > 0 {
            let head = &self.output[self.output_sent..];
            let wanted = if cursor.left() > 0 { UNTIL_WOULD_BLOCK } else { head.len() };
            let send = |socket: BorrowedFd<'_>| raw::send(socket, head, cursor);
            let sent = self.socket.send(self.patience(), wanted, send).await?;
            self.output_sent = (self.output_sent + sent).min(self.output.len());
        }
        self.output_sent = 0;
        self.output.clear();
        self.report_held();
        Ok(())
    }

    /// Seals some records and sends them together, again and again: one send wakes the other side once.
    async fn send_sealed(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        while cursor.left() > 0 {
            let mut together = cursor.left().min(SENT_TOGETHER_BYTES);
            self.output.reserve(sealed_bytes(together));
            while together > 0 {
                let (begun, count) = (self.output.len(), together.min(RECORD_BYTES));
                together -= count;
                let loaded = raw::load(cursor, count, &mut self.output);
                loaded.map_err(|error| Error::from_io(&error, "loading bytes to send"))?;
                let seal = self.seal.as_mut().expect("only sealed data go in records");
                seal.seal_record(&mut self.output, begun);
            }
            self.drain(&mut Cursor::nowhere()).await?;
        }
        self.send_output().await
    }

    /// Sends the queue and a reply that a descriptor travels with: with its first byte.
    ///
    /// Errors: `Unsupported` over TCP (the connection continues), else as for [`Connection::flush`].
    pub async fn send_descriptor(
        &mut self,
        header: Header,
        body: &[u8],
        descriptor: BorrowedFd<'_>,
    ) -> Result<()> {
        if self.peer_uid.is_none() {
            return Err(
                self.name(Error::new(ErrorKind::Unsupported, "descriptors travel over Unix sockets only"))
            );
        }
        self.flush().await?;
        let header = Header { flags: header.flags | flags::DESCRIPTOR, ..header };
        self.append_head(header, body, 0);
        self.broken = true;
        match self.send_output_with(descriptor).await {
            Ok(()) => {
                self.broken = false;
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn send_output_with(&mut self, descriptor: BorrowedFd<'_>) -> Result<()> {
        let head = &self.output[..];
        let send = |socket: BorrowedFd<'_>| {
            let descriptors = [descriptor];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for one");
            let send_flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            Ok(sendmsg(socket, &[IoSlice::new(head)], &mut control, send_flags)?)
        };
        self.output_sent = self.socket.send(self.patience(), head.len(), send).await?;
        self.send_output().await
    }

    /// Calls the other side, as [`Connection::call_body`] does, and decodes the reply.
    pub async fn call<R: Request>(
        &mut self,
        header: Header,
        request: &R,
        deadline: Duration,
    ) -> std::result::Result<R::Reply, Failure> {
        let mut reply = None;
        let header = Header { kind: R::KIND, ..header };
        self.call_body(header, &encode_body(request), deadline, &mut |body| {
            reply = Some(decode_body(R::KIND, body)?);
            Ok(())
        })
        .await?;
        Ok(reply.expect("a reply that came was taken"))
    }

    /// Calls the other side, as one server calls another: a request without data, and its reply
    /// within `deadline`, whose body `take` gets. The header's call number is the caller's choice: one call is
    /// under way at a time.
    ///
    /// Errors: the other side's answer (not fatal), else the reason why the connection ended (fatal).
    pub async fn call_body(
        &mut self,
        header: Header,
        body: &[u8],
        deadline: Duration,
        take: &mut TakeBody<'_>,
    ) -> std::result::Result<(), Failure> {
        self.check_usable()?;
        self.queue_reply(header, body, &[]);
        // A caller that stops waiting leaves a reply behind that no other call expects.
        self.broken = true;
        let outcome = tokio::time::timeout(deadline, self.await_reply(header.kind, header.call, take))
            .await
            .unwrap_or_else(|_| {
                let text = format!("no answer to {:?} within {} ms", header.kind, deadline.as_millis());
                Err(Failure::from(Error::new(ErrorKind::TimedOut, text)))
            });
        match outcome {
            Err(failure) if failure.fatal => Err(Failure::from(self.fail(failure.error))),
            answered => {
                self.broken = false;
                answered
            }
        }
    }

    async fn await_reply(
        &mut self,
        kind: Kind,
        call: u32,
        take: &mut TakeBody<'_>,
    ) -> std::result::Result<(), Failure> {
        self.send_output().await?;
        let Some((header, body)) = self.read_frame().await? else {
            return Err(closed_inside_a_frame().into());
        };
        check_reply(&header, kind, call)?;
        if header.data_bytes > 0 {
            return Err(Error::new(ErrorKind::Protocol, "a reply brought data that nobody asked for").into());
        }
        take_reply(&header, &body, take)
    }
}

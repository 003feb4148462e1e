//! A connection that has proved the secret.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, ServerId, limits};
use ramlace_wire::Header;

use super::buffers;
use super::socket::{Canceller, Patience, Socket};
use crate::input::Input;
use crate::seal::{Record, Seal};

/// Steps in which the bytes that a connection holds are reported.
const HELD_STEP_BYTES: usize = 16 << 10;
/// An output buffer that has grown beyond this is not kept.
pub(super) const OUTPUT_KEPT_BYTES_MAX: usize = 16 << 10;

/// Called with the bytes that a connection holds beside its buffers, whenever these change.
pub type Meter = Box<dyn Fn(usize)>;

/// A connection whose two ends have proved the secret to each other, used by one task.
///
/// After an error it is of no further use, except where a method says otherwise: close it by
/// dropping it.
pub struct Connection {
    pub(super) socket: Rc<Socket>,
    /// The name of the other side in messages.
    pub(super) peer: String,
    pub(super) peer_uid: Option<u32>,
    server: ServerId,
    /// The protection of its frames; `None` on a Unix socket.
    pub(super) seal: Option<Box<Seal>>,
    /// Sealed data of the latest frame, as far as they have come.
    pub(super) record: Record,
    pub(super) input: Input,
    /// A header whose long body is still arriving.
    pub(super) partial: Option<(Header, Vec<u8>)>,
    /// Data of the latest frame that are not taken yet.
    pub(super) data_left: usize,
    pub(super) output: Vec<u8>,
    /// Bytes of `output` that have left.
    pub(super) output_sent: usize,
    /// A frame was begun that cannot be finished.
    pub(super) broken: bool,
    pub(super) stall: Duration,
    meter: Option<Meter>,
    /// Bytes that the user of the connection holds for its answers.
    held_beside: usize,
    /// The bytes that were last reported to the meter.
    held_reported: usize,
}

impl Connection {
    pub(super) fn new(
        socket: Rc<Socket>,
        peer: String,
        server: ServerId,
        seal: Option<Box<Seal>>,
    ) -> Connection {
        Connection {
            peer_uid: crate::socket::peer_uid(socket.as_fd()),
            socket,
            peer,
            server,
            seal,
            record: Record::default(),
            input: Input::new(),
            partial: None,
            data_left: 0,
            output: Vec::new(),
            output_sent: 0,
            broken: false,
            stall: Duration::from_millis(limits::SEND_STALL_MILLIS_MAX),
            meter: None,
            held_beside: 0,
            held_reported: 0,
        }
    }

    /// From now on the meter gets the bytes that the connection holds.
    pub fn set_meter(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// The user of the connection holds this many bytes for answers that are still to be sent.
    pub fn hold_beside(&mut self, bytes: usize) {
        self.held_beside = bytes;
        self.report_held();
    }

    /// Reports to the meter the bytes of a long body, of the answers, and of replies beyond the queue's
    /// limit.
    pub(super) fn report_held(&mut self) {
        let body = self.partial.as_ref().map_or(0, |(_, body)| body.capacity());
        let replies = self.output.len().saturating_sub(limits::CONNECTION_OUTPUT_BYTES_MAX);
        let held = (body + replies + self.held_beside) / HELD_STEP_BYTES * HELD_STEP_BYTES;
        if held != std::mem::replace(&mut self.held_reported, held)
            && let Some(meter) = &self.meter
        {
            meter(held);
        }
    }

    /// The user on the other side, as the kernel vouches for it; `None` over TCP.
    #[must_use]
    pub fn peer_uid(&self) -> Option<u32> {
        self.peer_uid
    }

    /// The name of the other side in messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The server of the two sides, as it has proved.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The handle that stops this connection from another task.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller::new(&self.socket)
    }

    /// Ends the connection: every call on it fails from now on.
    pub fn shutdown(&self) {
        self.socket.shut_down();
    }

    /// Whether frames are still in step, after an error.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.broken && self.socket.check_cancelled().is_ok()
    }

    /// How long the peer may read nothing, or stop in the middle of a frame, before it loses the
    /// connection; [`limits::SEND_STALL_MILLIS_MAX`] unless set.
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stall = limit;
    }

    pub(super) fn patience(&self) -> Patience {
        Patience::UpTo(self.stall)
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        if self.broken {
            return Err(self.name(Error::new(ErrorKind::HostDown, "the connection is out of step")));
        }
        Ok(())
    }

    /// Ends the connection because of this error.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        self.broken = true;
        self.socket.shut_down();
        self.name(error)
    }

    pub(super) fn name(&self, error: Error) -> Error {
        error.context(&self.peer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let rest = self.input.len();
        self.input.consume(rest);
        if let Some(buffer) = self.input.return_buffer() {
            buffers::return_input(buffer);
        }
    }
}

pub(super) fn closed_inside_a_frame() -> Error {
    Error::new(ErrorKind::HostDown, "closed the connection in the middle of a message")
}

//! The fixed header that precedes every message.

use ramlace_base::{Epoch, Error, ErrorKind, Result, Sequence, SessionId, Slot, limits};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Kind, PROTOCOL_VERSION};

/// First bytes of every frame: "RLCE" as little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RLCE");
/// Size of a frame's header.
pub const HEADER_BYTES: usize = 64;

/// Bits of [`FrameHeader::flags`].
pub mod flags {
    /// The frame answers a request; its kind is the request's.
    pub const REPLY: u16 = 1;
    /// The answer is an error; the body is an [`crate::ErrorBody`].
    pub const ERROR: u16 = 2;
    /// One descriptor travels with the frame (Unix sockets only).
    pub const DESCRIPTOR: u16 = 4;
    /// A request of a host session for one of its users: the body begins with [`crate::Credentials`].
    pub const ON_BEHALF: u16 = 8;
    /// A request for an entry of the directory to which a path leads: in front of its body, after the user on
    /// whose behalf it is, stand the path's names from the root on. It is done only while they lead there.
    pub const BY_PATH: u16 = 16;
    /// Every bit that has a meaning.
    pub const ALL: u16 = REPLY | ERROR | DESCRIPTOR | ON_BEHALF | BY_PATH;
}

/// The header as it lies on the wire: little-endian, no padding.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    magic: U32,
    version: U16,
    kind: U16,
    flags: U16,
    /// The slot that a request is for.
    slot: U16,
    /// Milliseconds the sender will still wait; 0 in replies.
    deadline_millis: U32,
    session: [u8; 16],
    sequence: U64,
    /// How far behind `sequence` the oldest mutation lies that still waits for its answer.
    outstanding: U32,
    epoch: U32,
    /// Chosen by the requester, repeated in the reply.
    call: U32,
    body_bytes: U32,
    data_bytes: U32,
    /// CRC-32C of the 60 bytes before it.
    checksum: U32,
}

const _: () = assert!(size_of::<FrameHeader>() == HEADER_BYTES);
const _: () = assert!(align_of::<FrameHeader>() == 1);
const _: () = assert!(std::mem::offset_of!(FrameHeader, session) == 16);
const _: () = assert!(std::mem::offset_of!(FrameHeader, sequence) == 32);
const _: () = assert!(std::mem::offset_of!(FrameHeader, checksum) == 60);

/// The header's meaning, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Bits of [`flags`].
    pub flags: u16,
    /// The slot that a request is for, where its message leaves a choice: a directory may be spread over
    /// several. `Slot(0)` in all others, and in replies.
    pub slot: Slot,
    /// Milliseconds the requester will still wait; 0 in replies.
    pub deadline_millis: u32,
    /// The requester's session; [`SessionId::NONE`] before one is open, and in replies.
    pub session: SessionId,
    /// The mutation's number in its session; 0 when nothing is changed.
    pub sequence: Sequence,
    /// `sequence - outstanding` is the oldest mutation that still waits for its answer;
    /// replies to older ones may be forgotten.
    pub outstanding: u32,
    /// The epoch of the sender's map.
    pub epoch: Epoch,
    /// Chosen by the requester, repeated in the reply.
    pub call: u32,
    /// Bytes of the postcard body that follows.
    pub body_bytes: u32,
    /// Bulk bytes that follow the body.
    pub data_bytes: u32,
}

impl Header {
    /// A request's header with everything else zero.
    #[must_use]
    pub fn request(kind: Kind) -> Header {
        Header {
            kind,
            flags: 0,
            slot: Slot(0),
            deadline_millis: limits::DEADLINE_MILLIS_DEFAULT,
            session: SessionId::NONE,
            sequence: Sequence(0),
            outstanding: 0,
            epoch: Epoch(0),
            call: 0,
            body_bytes: 0,
            data_bytes: 0,
        }
    }

    /// The header of the answer to this request.
    #[must_use]
    pub fn reply(&self, epoch: Epoch) -> Header {
        Header { flags: flags::REPLY, call: self.call, epoch, ..Header::request(self.kind) }
            .without_deadline()
    }

    fn without_deadline(mut self) -> Header {
        self.deadline_millis = 0;
        self
    }

    /// Whether this frame answers a request.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & flags::REPLY != 0
    }

    /// Whether this frame says that a request failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.flags & flags::ERROR != 0
    }

    /// The header's bytes, checksum included.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut frame = FrameHeader {
            magic: MAGIC.into(),
            version: PROTOCOL_VERSION.into(),
            kind: self.kind.number().into(),
            flags: self.flags.into(),
            slot: self.slot.0.into(),
            deadline_millis: self.deadline_millis.into(),
            session: self.session.0,
            sequence: self.sequence.0.into(),
            outstanding: self.outstanding.into(),
            epoch: self.epoch.0.into(),
            call: self.call.into(),
            body_bytes: self.body_bytes.into(),
            data_bytes: self.data_bytes.into(),
            checksum: 0.into(),
        };
        frame.checksum = checksum(frame.as_bytes()).into();
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(frame.as_bytes());
        bytes
    }

    /// Reads a header. Every deviation is refused with a sentence that says which.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let frame: &FrameHeader = zerocopy::transmute_ref!(bytes);
        check_envelope(frame, bytes)?;
        let kind = Kind::from_number(frame.kind.get())
            .ok_or_else(|| refuse(format!("message number {:#06x} is unknown", frame.kind.get())))?;
        let header = Header {
            kind,
            flags: frame.flags.get(),
            slot: Slot(frame.slot.get()),
            deadline_millis: frame.deadline_millis.get(),
            session: SessionId(frame.session),
            sequence: Sequence(frame.sequence.get()),
            outstanding: frame.outstanding.get(),
            epoch: Epoch(frame.epoch.get()),
            call: frame.call.get(),
            body_bytes: frame.body_bytes.get(),
            data_bytes: frame.data_bytes.get(),
        };
        check_lengths(&header)?;
        Ok(header)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&bytes[..HEADER_BYTES - size_of::<u32>()])
}

fn refuse(text: String) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

fn check_envelope(frame: &FrameHeader, bytes: &[u8]) -> Result<()> {
    if frame.magic.get() != MAGIC {
        return Err(refuse("these bytes are no ramlace frame".into()));
    }
    if frame.checksum.get() != checksum(bytes) {
        return Err(Error::new(ErrorKind::Corrupt, "a frame header arrived damaged (checksum)"));
    }
    if frame.version.get() != PROTOCOL_VERSION {
        return Err(refuse(format!(
            "the peer speaks protocol version {}, this side version {PROTOCOL_VERSION}",
            frame.version.get()
        )));
    }
    if frame.flags.get() & !flags::ALL != 0 {
        return Err(refuse("a frame header uses bits that have no meaning".into()));
    }
    Ok(())
}

fn check_lengths(header: &Header) -> Result<()> {
    if header.body_bytes > limits::BODY_BYTES_MAX || header.data_bytes > limits::DATA_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "a {:?} message of {} + {} bytes is larger than the limits {} + {}",
                header.kind,
                header.body_bytes,
                header.data_bytes,
                limits::BODY_BYTES_MAX,
                limits::DATA_BYTES_MAX
            ),
        ));
    }
    if header.deadline_millis > limits::DEADLINE_MILLIS_MAX {
        return Err(refuse(format!("a deadline of {} ms is too long", header.deadline_millis)));
    }
    if u64::from(header.outstanding) > header.sequence.0 {
        return Err(refuse("a header's oldest waiting mutation lies before its session began".into()));
    }
    Ok(())
}

//! The first 16 bytes of each direction, before the handshake: so that a stranger, an old version and a wrong
//! port are distinguished before any cryptography runs.
//!
//! client → server: preamble, then Noise message 1. Server → client: preamble, then Noise
//! message 2 when `status` is [`Status::Welcome`], else a UTF-8 line that says why not. Client →
//! server: the confirmation, an empty message under the session's key (16 bytes), without which a
//! recorded message 1 would get an answer and hold a connection. Frames follow at once.

use ramlace_base::{Error, ErrorKind, Result};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PROTOCOL_VERSION;
use crate::types::numbered;

/// Size of a preamble.
pub const PREAMBLE_BYTES: usize = 16;
/// Longest Noise message or refusal text behind a preamble.
pub const PREAMBLE_PAYLOAD_BYTES_MAX: usize = 512;
/// First bytes of each direction.
pub const PREAMBLE_MAGIC: [u8; 8] = *b"ramlace\n";

numbered! {
    /// How a server answers a preamble.
    Status {
        /// Go on; what follows is Noise.
        Welcome = 0,
        /// Refused; what follows is a line of text.
        Refused = 1,
        /// Refused by another server than the greeting was meant for; what follows is a line of text.
        Elsewhere = 2,
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPreamble {
    magic: [u8; 8],
    version: U16,
    status: u8,
    role: u8,
    payload_bytes: U32,
}

const _: () = assert!(size_of::<RawPreamble>() == PREAMBLE_BYTES);
const _: () = assert!(align_of::<RawPreamble>() == 1);

/// A preamble's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The sender's [`PROTOCOL_VERSION`].
    pub version: u16,
    /// Always `Welcome` from clients.
    pub status: Status,
    /// The role in which a client connects, by number; 0 from servers.
    pub role: u8,
    /// Bytes that follow; at most [`PREAMBLE_PAYLOAD_BYTES_MAX`].
    pub payload_bytes: u32,
}

impl Preamble {
    /// A server's preamble before `payload_bytes` bytes.
    #[must_use]
    pub fn new(status: Status, payload_bytes: usize) -> Preamble {
        assert!(payload_bytes <= PREAMBLE_PAYLOAD_BYTES_MAX);
        Preamble { version: PROTOCOL_VERSION, status, role: 0, payload_bytes: payload_bytes as u32 }
    }

    /// A client's preamble before `payload_bytes` bytes.
    #[must_use]
    pub fn of_client(role: u8, payload_bytes: usize) -> Preamble {
        Preamble { role, ..Preamble::new(Status::Welcome, payload_bytes) }
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let raw = RawPreamble {
            magic: PREAMBLE_MAGIC,
            version: self.version.into(),
            status: self.status.into(),
            role: self.role,
            payload_bytes: self.payload_bytes.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a preamble. Another version is not an error here: the caller answers it.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble> {
        let raw: &RawPreamble = zerocopy::transmute_ref!(bytes);
        let refuse = |text: &str| Err(Error::new(ErrorKind::Protocol, text));
        if raw.magic != PREAMBLE_MAGIC {
            return refuse("the other side does not speak ramlace");
        }
        let Ok(status) = Status::try_from(raw.status) else {
            return refuse("the other side's greeting has an unknown status");
        };
        if raw.payload_bytes.get() as usize > PREAMBLE_PAYLOAD_BYTES_MAX {
            return refuse("the other side's greeting makes no sense");
        }
        Ok(Preamble {
            version: raw.version.get(),
            status,
            role: raw.role,
            payload_bytes: raw.payload_bytes.get(),
        })
    }
}

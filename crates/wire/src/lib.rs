//! ramlace's messages and their bytes. `docs/WIRE.md` is the prose to this code.
//!
//! A frame is a fixed 64-byte [`FrameHeader`], a body in postcard, and bulk bytes (`data`) that
//! are never copied into the body. Each message is one struct with one explicit number
//! ([`Kind`]); a request names the type of its reply ([`Request`]).
//!
//! Invariant: `wire` opens no socket, and no decoder panics, whatever the bytes.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod access_list_text;
mod access_lists;
mod chains;
pub mod check;
pub mod chunk;
pub mod cluster;
mod codec;
pub mod coordination;
mod credentials;
pub mod delegation;
mod front;
mod header;
pub mod holders;
pub mod inline;
pub mod keys;
mod kind;
pub mod leases;
pub mod listen;
pub mod locks;
pub mod mend;
pub mod metrics;
pub mod namespace;
pub mod peer;
pub mod permit;
mod possible;
pub mod preamble;
mod row;
pub mod runs;
pub mod session;
mod types;
pub mod walk;
pub mod xattrs;

pub use access_lists::{AccessList, AccessLists};
pub use codec::{ErrorBody, Request, decode_body, decode_reply, encode_body};
pub use credentials::{Credentials, Groups, Owner};
pub use front::{Front, decode_on_behalf, decode_path};
pub use header::{FrameHeader, HEADER_BYTES, Header, MAGIC, flags};
pub use kind::Kind;
pub use permit::{LaneRight, OpenedFor, Permit};
pub use row::{Asker, ForWhom, Row, Shows};
pub use types::{
    Attributes, Chain, ClusterMap, DeviceNumbers, FileAttributes, FileKind, FileRules, HostId, Layout,
    LayoutHints, Mode, PoolId, ServerEntry,
};

/// Version of frames and messages; both sides of a connection must agree on it.
pub const PROTOCOL_VERSION: u16 = 30;

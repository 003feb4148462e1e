//! The server's side: tokio tasks on one thread. Nothing here is `Send`, and nothing needs to be.
//!
//! Small frames are batched: one receive may bring many requests, one send takes many replies.
//! Bulk bytes go between the socket and their place in the store, touched by system calls only.
//!
//! What a connection costs: nothing but its socket while it is idle; while it works, an input buffer of
//! [`CONNECTION_INPUT_BYTES`], a body of at most [`BODY_BYTES_MAX`], and queued replies of at most
//! [`CONNECTION_OUTPUT_BYTES_MAX`] and one reply more. A peer that stops reading or stops in the middle of a
//! frame for too long loses its connection; meanwhile it delays no other connection.
//!
//! [`CONNECTION_INPUT_BYTES`]: ramlace_base::limits::CONNECTION_INPUT_BYTES
//! [`BODY_BYTES_MAX`]: ramlace_base::limits::BODY_BYTES_MAX
//! [`CONNECTION_OUTPUT_BYTES_MAX`]: ramlace_base::limits::CONNECTION_OUTPUT_BYTES_MAX

mod accept;
mod buffers;
mod connect;
mod connection;
mod listener;
mod newcomers;
mod receive;
mod records;
mod reply;
mod socket;

pub use connection::{Connection, Meter};
pub use listener::{Incoming, Listener};
pub use newcomers::Newcomers;
pub use socket::Canceller;

//! The server's side: tokio tasks on one thread. Nothing here is `Send`, and nothing needs to be.
//!
//! Small frames are batched: one receive may bring many requests, one send takes many replies.
//! Bulk bytes go between the socket and their place in the store, touched by system calls only.
//!
//! What a connection costs: nothing but its socket while it is idle; while it works, an input
//! buffer of 16 KiB, a body of at most `BODY_BYTES_MAX`, and queued replies of at most
//! [`OUTPUT_BYTES_MAX`] and one reply more. A peer that stops reading or stops in the middle of a
//! frame for too long loses its connection; meanwhile it delays nobody.

mod accept;
mod buffers;
mod connect;
mod connection;
mod listener;
mod receive;
mod reply;
mod socket;

pub use connection::{Connection, OUTPUT_BYTES_MAX};
pub use listener::{Incoming, Listener};
pub use socket::Canceller;

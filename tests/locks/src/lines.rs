//! A connection that sends nothing.

/// A connection to a server.
pub(crate) struct Link;

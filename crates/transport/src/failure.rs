//! Why a call has no reply.

use std::fmt;

use ramlace_base::Error;
use ramlace_wire::{ClusterMap, ErrorBody};

/// A call that failed: the error, and its meaning for the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// With `Moved`: the newer map.
    pub map: Option<Box<ClusterMap>>,
    /// The connection is unusable from now on. Otherwise the other side said so itself, and the
    /// connection continues.
    pub fatal: bool,
}

impl Failure {
    /// The error that the other side sent in an error frame.
    pub(crate) fn answered(body: ErrorBody) -> Failure {
        let mut body = body;
        let map = body.map.take().map(Box::new);
        Failure { error: body.into_error(), map, fatal: false }
    }

    /// The same failure with more context: `context: message`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Failure {
        Failure { error: self.error.context(context), ..self }
    }
}

/// An error of the connection itself: fatal.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, map: None, fatal: true }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl std::error::Error for Failure {}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// What went wrong.
    pub error: Error,
    /// The machine answered that there is no listener. A server that is only starting again keeps its listening
    /// sockets, so that nothing will change by waiting.
    pub refused: bool,
}

impl ConnectFailure {
    /// The same failure with more context: `context: message`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> ConnectFailure {
        ConnectFailure { error: self.error.context(context), ..self }
    }
}

/// Anything but a refusal.
impl From<Error> for ConnectFailure {
    fn from(error: Error) -> ConnectFailure {
        ConnectFailure { error, refused: false }
    }
}

impl From<ConnectFailure> for Error {
    fn from(failure: ConnectFailure) -> Error {
        failure.error
    }
}

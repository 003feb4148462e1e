//! The one error of ramlace: a kind that says what to do, and a sentence for people.
//!
//! Every kind has a number that goes over the wire and an errno that goes to programs; both
//! are fixed in the table below and nowhere else.

use std::borrow::Cow;
use std::fmt;

use crate::plain::plain;

/// What every fallible call returns.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! error_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $errno:literal, $errno_name:literal;)*) => {
        /// What went wrong, in the terms of what the caller can do about it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $name,)*
            /// The request is to be sent elsewhere, or otherwise: the client library does so, and programs never see it.
            Redirect(Redirect),
        }

        impl ErrorKind {
            /// Every kind that programs see, in the order of its number.
            pub const ALL: &'static [ErrorKind] = &[$(ErrorKind::$name,)*];

            /// The number that stands for this kind on the wire; never reused.
            #[must_use]
            pub fn number(self) -> u16 {
                match self { $(ErrorKind::$name => $number,)* ErrorKind::Redirect(redirect) => redirect.number() }
            }

            /// The kind with this wire number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<ErrorKind> {
                match number {
                    $($number => Some(ErrorKind::$name),)*
                    _ => Redirect::from_number(number).map(ErrorKind::Redirect),
                }
            }

            /// The Linux errno that programs see.
            #[must_use]
            pub fn errno(self) -> i32 {
                match self { $(ErrorKind::$name => $errno,)* ErrorKind::Redirect(_) => 11 }
            }

            /// The name of that errno, such as `ENOENT`.
            #[must_use]
            pub fn errno_name(self) -> &'static str {
                match self { $(ErrorKind::$name => $errno_name,)* ErrorKind::Redirect(_) => "EAGAIN" }
            }
        }
    };
}

macro_rules! redirects {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// Why a server does not do a request although nothing is wrong with it. Numbers are those of [`ErrorKind`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Redirect {
            $($(#[$doc])* $name,)*
        }

        impl Redirect {
            /// Each of them, in the order of its number.
            pub const ALL: &'static [Redirect] = &[$(Redirect::$name,)*];

            fn number(self) -> u16 {
                match self { $(Redirect::$name => $number,)* }
            }

            fn from_number(number: u16) -> Option<Redirect> {
                match number { $($number => Some(Redirect::$name),)* _ => None }
            }
        }
    };
}

error_kinds! {
    /// The state is in motion; the same request may be sent again after a short pause.
    Retry = 1, 11, "EAGAIN";
    /// The pool, or the server that holds these bytes, is full.
    NoSpace = 3, 28, "ENOSPC";
    /// The caller lacks the right.
    Denied = 4, 13, "EACCES";
    /// The session, the handle or the inode is gone.
    Stale = 5, 116, "ESTALE";
    /// The bytes were on a server that lost them.
    Lost = 6, 5, "EIO";
    /// Bytes that should make sense do not.
    Corrupt = 7, 5, "EIO";
    /// A bug, or a machine that fails underneath.
    Fatal = 8, 5, "EIO";
    /// No such file or directory.
    NotFound = 9, 2, "ENOENT";
    /// The name is taken.
    Exists = 10, 17, "EEXIST";
    /// A directory was needed.
    NotDirectory = 11, 20, "ENOTDIR";
    /// A directory was not allowed.
    IsDirectory = 12, 21, "EISDIR";
    /// The directory still has entries.
    NotEmpty = 13, 39, "ENOTEMPTY";
    /// An argument makes no sense.
    Invalid = 14, 22, "EINVAL";
    /// A name or a path has too many bytes.
    NameTooLong = 15, 36, "ENAMETOOLONG";
    /// An offset or a size is beyond the largest file.
    TooBig = 16, 27, "EFBIG";
    /// Too many symbolic links on the way.
    Loop = 17, 40, "ELOOP";
    /// The server does not answer; its bytes are out of reach until it returns.
    HostDown = 18, 112, "EHOSTDOWN";
    /// The deadline passed.
    TimedOut = 19, 110, "ETIMEDOUT";
    /// A limit on the number of things was reached.
    TooMany = 20, 23, "ENFILE";
    /// This build or this pool does not do that.
    Unsupported = 21, 95, "EOPNOTSUPP";
    /// The operation itself is not allowed, whoever asks.
    NotPermitted = 22, 1, "EPERM";
    /// Something is in use.
    Busy = 23, 16, "EBUSY";
    /// The memory behind a mapping or a buffer is gone.
    Fault = 24, 14, "EFAULT";
    /// The other side speaks another version or another protocol.
    Protocol = 25, 71, "EPROTO";
    /// A message is larger than the limit for its kind.
    TooLarge = 26, 90, "EMSGSIZE";
    /// The handle was not opened for this.
    BadHandle = 27, 9, "EBADF";
    /// As many entries lead to the inode as are possible.
    TooManyLinks = 28, 31, "EMLINK";
    /// The inode has no such extended attribute.
    NoData = 30, 61, "ENODATA";
    /// A name is too long, or the memory for a value too small.
    OutOfRange = 31, 34, "ERANGE";
    /// The value of an extended attribute has too many bytes.
    ValueTooBig = 32, 7, "E2BIG";
    /// There are as many locks as there may be.
    TooManyLocks = 33, 37, "ENOLCK";
    /// Waiting for this lock would close a cycle of programs that wait for each other.
    Deadlock = 34, 35, "EDEADLK";
    /// No data, or no hole, is left in the file from there on.
    NothingThere = 37, 6, "ENXIO";
}

redirects! {
    /// The slot has changed hands; fetch the map and ask its new primary.
    Moved = 2;
    /// The directory is spread over slots otherwise than the caller believes; ask its home how.
    Spread = 29;
    /// The path does not lead to the directory that the request names, as far as its server can see; walk it.
    Astray = 35;
    /// A kernel maps the file: what makes it longer takes its memory first.
    Passthrough = 36;
    /// The file grows with its memory by its own rules: what makes it longer takes that first.
    Reserved = 38;
}

/// An operation that failed: a kind for programs and a sentence for people.
///
/// The sentence names the file, the server and the next step, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of this kind; `message` is a sentence without a full stop.
    ///
    /// Parts of it may come from other machines and other users: what would steer a terminal is written out
    /// ([`plain`]), in this one place, so that no program that shows an error can forget it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message: String = message.into();
        match plain(&message) {
            Cow::Borrowed(_) => Error { kind, message },
            Cow::Owned(message) => Error { kind, message },
        }
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The Linux errno that programs see.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// The same error with more context: `context: message`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Error {
        Error::new(self.kind, format!("{context}: {}", self.message))
    }

    /// An error of the operating system, with a description of what was being done.
    ///
    /// Errno values that have a kind keep it; the others become [`ErrorKind::Fatal`].
    pub fn from_io(error: &std::io::Error, doing: impl fmt::Display) -> Error {
        let kind = match error.raw_os_error() {
            Some(28 | 12 | 122) => ErrorKind::NoSpace, // ENOSPC, ENOMEM, EDQUOT
            Some(111 | 113 | 104 | 32 | 103) => ErrorKind::HostDown, // refused, no route, reset, pipe, aborted
            Some(11 | 110) => ErrorKind::TimedOut,                   // EAGAIN of a socket with a time limit
            Some(errno) => {
                ErrorKind::ALL.iter().copied().find(|kind| kind.errno() == errno).unwrap_or(ErrorKind::Fatal)
            }
            None if error.kind() == std::io::ErrorKind::UnexpectedEof => ErrorKind::HostDown,
            None => ErrorKind::Fatal,
        };
        Error::new(kind, format!("{doing}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        std::io::Error::new(std::io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_come_back() {
        let redirects = Redirect::ALL.iter().map(|redirect| ErrorKind::Redirect(*redirect));
        let mut all: Vec<ErrorKind> = ErrorKind::ALL.iter().copied().chain(redirects).collect();
        all.sort_by_key(|kind| kind.number());
        for (index, kind) in all.into_iter().enumerate() {
            assert_eq!(usize::from(kind.number()), index + 1);
            assert_eq!(ErrorKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(ErrorKind::from_number(0), None);
        assert_eq!(ErrorKind::from_number(u16::MAX), None);
    }

    #[test]
    fn no_error_steers_a_terminal() {
        let error = Error::new(ErrorKind::Busy, "host \x1b[31mred is missing").context("at \x1b]0;x\x07");
        assert_eq!(error.message(), "at \\x1b]0;x\\x07: host \\x1b[31mred is missing");
        let doing = Error::from_io(&std::io::Error::from_raw_os_error(2), "opening \r");
        assert!(!doing.message().contains('\r'), "{doing}");
    }

    #[test]
    fn system_errors_keep_their_meaning() {
        let full = Error::from_io(&std::io::Error::from_raw_os_error(28), "growing a lane");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.message().starts_with("growing a lane: "));
        let refused = Error::from_io(&std::io::Error::from_raw_os_error(111), "connecting");
        assert_eq!(refused.kind(), ErrorKind::HostDown);
    }
}

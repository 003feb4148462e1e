//! How a command fails: what is said on standard error, and the exit code.

use ramlace_base::Error;
use serde_json::json;

/// Exit code when the operation failed. (0 is success.)
const EXIT_FAILED: u8 = 1;
/// Exit code of wrong usage.
pub const EXIT_USAGE: u8 = 2;
/// Exit code when the reader of the output has gone: what a shell sees of a program that SIGPIPE ended.
const EXIT_PIPE: u8 = 128 + 13;

/// What every command returns.
pub type Done<T = ()> = std::result::Result<T, Failure>;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The operation failed, with a sentence.
    Error(Error),
    /// Everything there is to say has been said.
    Told,
    /// The reader of the output has gone; there is nothing to say, and no reader to say it to.
    PipeClosed,
    /// The hidden child of a server ended with this code.
    Code(u8),
    /// A signal has interrupted it, and everything there is to say has been said.
    Signal(i32),
}

impl Failure {
    /// Says what is still to be said and returns the exit code.
    pub fn report(self, json: bool) -> u8 {
        match self {
            Failure::Error(error) => {
                say(&error, json);
                EXIT_FAILED
            }
            Failure::Told => EXIT_FAILED,
            Failure::PipeClosed => EXIT_PIPE,
            Failure::Code(code) => code,
            // What a shell says of a program that a signal ended.
            Failure::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        }
    }
}

/// Says on standard error that something failed.
pub fn say(error: &Error, json: bool) {
    if json {
        let report = json!({"error": {
            "kind": format!("{:?}", error.kind()),
            "errno": error.errno(),
            "errno_name": error.kind().errno_name(),
            "message": error.message(),
        }});
        crate::output::say_line(&report.to_string());
    } else {
        crate::output::say_line(&format!("ramlace: {error}"));
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

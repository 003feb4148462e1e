//! Standard output and standard error, which may be pipes that close early.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};

use ramlace_base::{Error, plain};
use serde_json::Value;

use crate::failure::{Done, Failure};

/// Where results go.
pub struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
    /// Results are JSON.
    pub json: bool,
}

impl Output {
    /// Takes standard output for the life of the process.
    pub fn new(json: bool) -> Output {
        Output { stdout: BufWriter::with_capacity(64 << 10, io::stdout().lock()), json }
    }

    /// Prints one line, or several. Wherever their parts come from, they do not steer the reader's terminal.
    pub fn line(&mut self, text: impl fmt::Display) -> Done {
        writeln!(self.stdout, "{}", plain(&text.to_string())).map_err(|error| stdout_failure(&error))
    }

    /// Prints one JSON document.
    pub fn json(&mut self, value: &Value) -> Done {
        let text = serde_json::to_string_pretty(value).expect("a JSON value can be written");
        // What JSON leaves as it is: the control characters behind ASCII's first 32, which stand in strings alone.
        let escaped = |letter: char| match letter {
            '\n' => "\n".to_owned(),
            letter if letter.is_control() => format!("\\u{:04x}", letter as u32),
            letter => letter.to_string(),
        };
        let text = if text.contains(|letter: char| letter.is_control() && letter != '\n') {
            text.chars().map(escaped).collect()
        } else {
            text
        };
        writeln!(self.stdout, "{text}").map_err(|error| stdout_failure(&error))
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Done {
        self.stdout.write_all(bytes).map_err(|error| stdout_failure(&error))
    }

    /// Passes on what is still in the buffer.
    pub fn flush(&mut self) -> Done {
        self.stdout.flush().map_err(|error| stdout_failure(&error))
    }

    /// Says something that is no result: on standard error, and not at all with `--json`.
    pub fn note(&self, text: impl fmt::Display) {
        if !self.json {
            say_line(&format!("ramlace: {text}"));
        }
    }
}

/// Writes one line to standard error, without what would steer a terminal. A failure cannot be reported.
pub fn say_line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(text));
}

/// What a failed write to standard output means.
pub fn stdout_failure(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::PipeClosed;
    }
    Failure::Error(Error::from_io(error, "writing to standard output"))
}

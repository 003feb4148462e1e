//! A JSON array that is printed while it is made: a list of a million things is never in memory.

use serde_json::Value;

use crate::failure::Done;
use crate::output::Output;

/// The array, once its beginning is printed.
#[derive(Debug, Default)]
pub struct JsonList {
    begun: bool,
}

impl JsonList {
    /// Prints one element, on a line of its own.
    pub fn push(&mut self, value: &Value, output: &mut Output) -> Done {
        output.bytes(if self.begun { b",\n  " } else { b"[\n  " })?;
        self.begun = true;
        output.bytes(value.to_string().as_bytes())
    }

    /// Prints the end.
    pub fn end(self, output: &mut Output) -> Done {
        output.bytes(if self.begun { b"\n]\n" } else { b"[]\n" })
    }
}

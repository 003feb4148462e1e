//! Changes of many files, one after the other: counted on the way, and reported at the end.

use ramlace_base::{Error, Result};
use serde_json::json;

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::tally::Tally;

/// What has become of them so far.
pub struct Changes {
    json: bool,
    tally: Tally,
    changed: u64,
    failed: bool,
}

impl Changes {
    /// None yet.
    pub fn new(output: &Output) -> Changes {
        Changes { json: output.json, tally: Tally::new(output.json, false), changed: 0, failed: false }
    }

    /// One more; a failure is said at once, and the next ones are tried.
    pub fn note<T>(&mut self, change: Result<T>) {
        match change {
            Ok(_) => self.changed += 1,
            Err(error) => self.say(&error),
        }
        let changed = self.changed;
        self.tally.add(|| format!("{changed} changed"));
    }

    /// Something else failed.
    pub fn say(&mut self, error: &Error) {
        self.failed = true;
        self.tally.pause(|| say(error, self.json));
    }

    /// Reports how many there were, and whether all went well.
    pub fn finish(self, output: &mut Output) -> Done {
        if self.json {
            output.json(&json!({"changed": self.changed}))?;
        }
        output.flush()?;
        if self.failed { Err(Failure::Told) } else { Ok(()) }
    }
}

//! Small calls through a mount whose answers the kernel may have: reads of pages that are there, and `stat` of a
//! file that nobody changes, beside a null file system of which the kernel may keep everything.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ramlace_base::{Error, Result};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::rounds::{Side, measure};

const READ_BYTES: usize = 4096;
/// What is read again and again.
const FILE_BYTES_MAX: usize = 64 << 20;
const READS: usize = 200_000;
const STATS: usize = 20_000;
/// Quick rounds do so many times less.
const QUICK: usize = 100;

/// One file through the pool's mount, and one of the null file system, both of `bytes` bytes.
pub struct Pair<'a> {
    pub args: &'a Args,
    pub here: &'a Processes,
    pub bytes: usize,
    pub mounted: (&'a File, &'a Path),
    pub null: (&'a File, &'a Path),
}

impl Pair<'_> {
    /// Reads of 4 KiB at places spread over pages that the kernel has.
    pub fn reads_again(&self) -> Result<Option<Value>> {
        let name = "mount, read 4 KiB, again";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let pages = self.bytes.min(FILE_BYTES_MAX) / READ_BYTES;
        let count = self.count(READS);
        let read = |file: &File| {
            let mut buffer = [0; READ_BYTES];
            (0..count).try_for_each(|number| {
                // A number with no small factor in common goes round all pages in no order of theirs.
                let offset = (number * 7919 % pages * READ_BYTES) as u64;
                file.read_exact_at(&mut buffer, offset)
                    .map_err(|error| Error::from_io(&error, "reading 4 KiB"))
            })
        };
        let sides =
            vec![self.side("null FUSE", || read(self.null.0)), self.side("figure", || read(self.mounted.0))];
        measure(self.args, name, "operations", count as f64, sides).map(Some)
    }

    /// `stat` by a path of one name below the mount.
    pub fn stats(&self) -> Result<Option<Value>> {
        let name = "mount, stat, again";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let count = self.count(STATS);
        let stat = |path: &Path| {
            (0..count).try_for_each(|_| {
                rustix::fs::stat(path).map(drop).map_err(|errno| Error::from_io(&errno.into(), "stat"))
            })
        };
        let sides =
            vec![self.side("null FUSE", || stat(self.null.1)), self.side("figure", || stat(self.mounted.1))];
        measure(self.args, name, "operations", count as f64, sides).map(Some)
    }

    fn count(&self, count: usize) -> usize {
        if self.args.quick { count / QUICK } else { count }
    }

    fn side<'b>(&'b self, name: &'b str, mut work: impl FnMut() -> Result<()> + 'b) -> Side<'b> {
        Side { name, processes: self.here, work: Box::new(move || work().map(|()| Vec::new())) }
    }
}

//! What leases on bytes cost: pages that change between two mounts, and memory that is taken before a store.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ramlace_base::{Error, Result};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::region::{Region, small_page_file};
use crate::rounds::{Side, measure};

const PAGE_BYTES: usize = 4096;
const WRITTEN_BYTES: usize = 64;
const TURNS: usize = 4_000;
const SPARSE_BYTES: usize = 64 << 20;
/// Quick rounds do so many times less.
const QUICK: usize = 100;
const NAME: &str = "bench-shared";

/// A file of the pool on two mounts.
pub struct Shared<'a> {
    pub args: &'a Args,
    pub here: &'a Processes,
    pub mount: &'a Path,
    pub other: &'a Path,
}

impl Shared<'_> {
    /// A write into a page that another mount has, and its read there; beside it the same on one mount.
    pub fn turns(&self) -> Result<Option<Value>> {
        let name = "mount, write here and read there";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let (writer, reader) = (made(&self.mount.join(NAME))?, self.other.join(NAME));
        changed(writer.set_len(2 * PAGE_BYTES as u64))?;
        let reader = changed(File::open(reader))?;
        let count = self.count(TURNS);
        let turns = |reader: &File| {
            (0..count).try_for_each(|number| {
                let written = [number as u8; WRITTEN_BYTES];
                let mut seen = [0; WRITTEN_BYTES];
                changed(writer.write_all_at(&written, 0))?;
                changed(reader.read_exact_at(&mut seen, 0))?;
                assert!(seen == written, "a write that returned is not seen");
                Ok(())
            })
        };
        let sides = vec![self.side("one mount", || turns(&writer)), self.side("figure", || turns(&reader))];
        let figure = measure(self.args, name, "operations", count as f64, sides);
        changed(std::fs::remove_file(self.mount.join(NAME)))?;
        figure.map(Some)
    }

    /// The first stores into pages of a file with holes, which get their memory by that, and their publication.
    pub fn first_stores(&self) -> Result<Option<Value>> {
        let name = "mount, first stores into holes";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let bytes = self.count(SPARSE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        let (mounted, tmpfs) = (made(&self.mount.join(NAME))?, small_page_file(PAGE_BYTES)?);
        let store = |file: &File| {
            changed(file.set_len(0))?;
            changed(file.set_len(bytes as u64))?;
            let mut region = Region::of_file(file, bytes)?;
            region.bytes_mut().iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
            region.publish()
        };
        let sides = vec![self.side("/dev/shm", || store(&tmpfs)), self.side("figure", || store(&mounted))];
        let figure = measure(self.args, name, "bytes", bytes as f64, sides);
        changed(std::fs::remove_file(self.mount.join(NAME)))?;
        figure.map(Some)
    }

    fn count(&self, count: usize) -> usize {
        if self.args.quick { count / QUICK } else { count }
    }

    fn side<'b>(&'b self, name: &'b str, mut work: impl FnMut() -> Result<()> + 'b) -> Side<'b> {
        Side { name, processes: self.here, work: Box::new(move || work().map(|()| Vec::new())) }
    }
}

fn made(path: &Path) -> Result<File> {
    changed(File::options().read(true).write(true).create(true).truncate(true).open(path))
}

fn changed<T>(done: std::io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::from_io(&error, "a file on two mounts"))
}

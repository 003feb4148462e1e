//! The copy of one file, which several workers may share by ranges.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::Mutex;

use crate::file::OpenFile;
use crate::options::{CopyOptions, PART_BYTES};
use crate::side::{Found, Side};

/// Zeros of this size, aligned to it, stay holes.
const HOLE_BYTES: usize = 64 << 10;

/// What is counted while copies run.
#[derive(Debug, Default)]
pub struct Totals {
    /// Bytes of the files found so far.
    pub bytes_found: AtomicU64,
    /// Bytes copied, holes included.
    pub bytes_done: AtomicU64,
    /// Files, directories and links found so far.
    pub files_found: AtomicU64,
    /// Files, directories and links finished.
    pub files_done: AtomicU64,
}

/// One file to be copied.
pub struct FileTask {
    /// The source.
    pub from: Side,
    /// The destination's full path.
    pub to: Side,
    /// What the source was when it was found.
    pub found: Found,
}

/// The copy of one file under way.
pub struct Transfer {
    task: FileTask,
    source: OpenFile,
    destination: OpenFile,
    fresh: bool,
    next: AtomicU64,
    written: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Transfer {
    /// Opens both files and gives the destination its size.
    pub fn open(task: FileTask, options: &CopyOptions) -> Result<Transfer> {
        let source = OpenFile::reading(&task.from)?;
        let created = OpenFile::writing(&task, options)?;
        let transfer = Transfer {
            source,
            destination: created.file,
            fresh: created.fresh,
            next: AtomicU64::new(0),
            written: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            task,
        };
        // Ranges arrive in any order, and holes not at all: the size comes first. A small file
        // without holes gets it by its one write.
        let size = transfer.task.found.size;
        if size > PART_BYTES as u64 {
            match transfer.destination.set_size(size) {
                Ok(()) => {}
                Err(error) => transfer.fail(error),
            }
        }
        Ok(transfer)
    }

    /// Parts that are not taken yet.
    pub fn parts_left(&self) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        self.task.found.size.saturating_sub(next).div_ceil(PART_BYTES as u64)
    }

    /// Copies parts until none is left or the copy has failed.
    pub fn work(&self, buffer: &mut Vec<u8>, totals: &Totals) {
        let size = self.task.found.size;
        if size == 0 && matches!(self.source, OpenFile::Local(_)) {
            // Files of /proc and the like have content, but no size.
            if let Err(error) = self.copy_to_end(buffer, totals) {
                self.fail(error);
            }
            return;
        }
        while !self.stopped.load(Ordering::Relaxed) {
            let start = self.next.fetch_add(PART_BYTES as u64, Ordering::Relaxed);
            if start >= size {
                return;
            }
            let length = (size - start).min(PART_BYTES as u64);
            if buffer.len() < length as usize {
                buffer.resize(length as usize, 0);
            }
            if let Err(error) = self.copy_part(&mut buffer[..length as usize], start) {
                self.fail(error);
            }
            totals.bytes_done.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// Copies what there is, in order.
    fn copy_to_end(&self, buffer: &mut Vec<u8>, totals: &Totals) -> Result<()> {
        buffer.resize(PART_BYTES, 0);
        let mut at = 0;
        loop {
            let count = self.source.read_at(buffer, at).map_err(|error| with_name(error, &self.task.from))?;
            let arrived = |count| _ = self.written.fetch_add(count, Ordering::Relaxed);
            let written = self.destination.write_at(&buffer[..count], at, arrived);
            written.map_err(|error| with_name(error, &self.task.to))?;
            at += count as u64;
            totals.bytes_done.fetch_add(count as u64, Ordering::Relaxed);
            if count < buffer.len() {
                return Ok(());
            }
        }
    }

    fn copy_part(&self, buffer: &mut [u8], start: u64) -> Result<()> {
        let end = start + buffer.len() as u64;
        let sparse = self.task.found.sparse;
        if sparse && self.source.next_data(start).is_none_or(|data| data >= end) {
            return self.hole_to(end);
        }
        let count = self.source.read_at(buffer, start).map_err(|error| with_name(error, &self.task.from))?;
        if count < buffer.len() {
            return Err(Error::new(
                ErrorKind::Stale,
                format!("{} became shorter while it was copied; copy it again", self.task.from.shown()),
            ));
        }
        let mut at = 0;
        for (data, length) in runs(buffer, sparse) {
            if data {
                let count = |count| _ = self.written.fetch_add(count, Ordering::Relaxed);
                let written = self.destination.write_at(&buffer[at..at + length], start + at as u64, count);
                written.map_err(|error| with_name(error, &self.task.to))?;
            } else {
                self.hole_to(start + (at + length) as u64)?;
            }
            at += length;
        }
        Ok(())
    }

    /// Makes a file that ends in a hole as long as it shall be, where its size was not set at first.
    fn hole_to(&self, end: u64) -> Result<()> {
        if end == self.task.found.size && end <= PART_BYTES as u64 {
            self.destination.set_size(end).map_err(|error| with_name(error, &self.task.to))?;
        }
        Ok(())
    }

    fn fail(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        self.failure.lock().get_or_insert(error);
    }

    /// Ends the copy when all workers have left it: closes the files; what a failure left is
    /// removed, or named where it was there before.
    pub fn finish(self) -> Result<()> {
        let failure = self.failure.into_inner();
        let (written, size) = (self.written.into_inner(), self.task.found.size);
        let outcome = match failure {
            None => self
                .destination
                .finish(self.task.found.modified)
                .map_err(|error| with_name(error, &self.task.to)),
            Some(error) => {
                drop(self.destination);
                Err(error)
            }
        };
        outcome.map_err(|error| partial(&error, &self.task.to, self.fresh, written, Some(size)))
    }
}

/// Adds to a failed copy's error what was written and what became of it.
pub fn partial(error: &Error, to: &Side, fresh: bool, written: u64, size: Option<u64>) -> Error {
    let of = size.map_or(String::new(), |size| format!(" of {}", format_bytes(size)));
    let fate = match fresh.then(|| to.unlink()) {
        Some(Ok(())) => "the partial copy was removed".to_owned(),
        Some(Err(_)) => format!("the partial copy {} is left", to.shown()),
        None => format!("{} was overwritten and is incomplete", to.shown()),
    };
    let kind = error.kind();
    Error::new(
        kind,
        format!(
            "{}; {}{of} ({written} bytes) had been written, {fate}",
            error.message(),
            format_bytes(written)
        ),
    )
}

/// The client's errors name the file already; those of local files do not.
fn with_name(error: Error, side: &Side) -> Error {
    match side {
        Side::Local(_) | Side::Below(_) => error.context(side.shown()),
        Side::Pool(..) | Side::Within(_) => error,
    }
}

/// The runs of data (true) and holes (false) of a part, with their lengths.
fn runs(part: &[u8], sparse: bool) -> Vec<(bool, usize)> {
    if !sparse {
        return vec![(true, part.len())];
    }
    let mut runs: Vec<(bool, usize)> = Vec::new();
    for block in part.chunks(HOLE_BYTES) {
        let data = !is_zero(block);
        match runs.last_mut() {
            Some((last, length)) if *last == data => *length += block.len(),
            _ => runs.push((data, block.len())),
        }
    }
    runs
}

/// Compares the block with itself, moved by one byte: as fast as memory, and done at the first
/// byte in most data.
fn is_zero(block: &[u8]) -> bool {
    match block.split_first() {
        Some((0, rest)) => block[..rest.len()] == *rest,
        Some(_) => false,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_told_from_data() {
        assert!(is_zero(&[]));
        assert!(is_zero(&[0; 4097]));
        for at in [0, 1, 4095, 4096] {
            let mut block = [0; 4097];
            block[at] = 1;
            assert!(!is_zero(&block), "{at}");
        }
    }

    #[test]
    fn runs_cover_a_part_exactly() {
        let mut part = vec![0; 4 * HOLE_BYTES + 5];
        part[HOLE_BYTES] = 1;
        part[3 * HOLE_BYTES - 1] = 1;
        let found = runs(&part, true);
        assert_eq!(found, [(false, HOLE_BYTES), (true, 2 * HOLE_BYTES), (false, HOLE_BYTES + 5)]);
        assert_eq!(runs(&part, false), [(true, part.len())]);
    }
}

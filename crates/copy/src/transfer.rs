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

/// What the threads of a copy share: what is counted while it runs, and whether it shall end.
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
    /// The user has interrupted it: what is under way fails.
    pub interrupted: AtomicBool,
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
    pub fn open(mut task: FileTask, options: &CopyOptions, totals: &Totals) -> Result<Transfer> {
        let source = OpenFile::reading(&task.from)?;
        let found = source.found(&task.found, &task.from)?;
        totals.bytes_found.fetch_add(found.size.wrapping_sub(task.found.size), Ordering::Relaxed);
        task.found = found;
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
            if let Err(error) = self.check_interrupt(totals) {
                return self.fail(error);
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

    fn check_interrupt(&self, totals: &Totals) -> Result<()> {
        if !totals.interrupted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let text = format!("copying {} was interrupted", self.task.from.shown());
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Copies what there is, in order.
    fn copy_to_end(&self, buffer: &mut Vec<u8>, totals: &Totals) -> Result<()> {
        buffer.resize(PART_BYTES, 0);
        let mut at = 0;
        loop {
            self.check_interrupt(totals)?;
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
        let tell = |error| with_name(error, &self.task.from);
        if sparse {
            match self.source.next_data(start) {
                // What was cut off looks like a hole.
                None if self.source.size().map_err(tell)? < end => return Err(self.became_shorter()),
                None => return self.hole_to(end),
                Some(data) if data >= end => return self.hole_to(end),
                Some(_) => {}
            }
        }
        let count = self.source.read_at(buffer, start).map_err(tell)?;
        if count < buffer.len() {
            return Err(self.became_shorter());
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

    fn became_shorter(&self) -> Error {
        Error::new(
            ErrorKind::Stale,
            format!("{} became shorter while it was copied; copy it again", self.task.from.shown()),
        )
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::{Scratch, plain_options};

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

    /// A file of this machine that is copied to the name beside it, as it was when it was listed.
    fn open(scratch: &Scratch, totals: &Totals, since: impl FnOnce(&std::fs::File)) -> Result<Transfer> {
        let [from, to] = ["from", "to"].map(|name| Side::Local(scratch.at(name)));
        let found = from.look(true).unwrap().unwrap();
        since(&std::fs::File::options().write(true).open(scratch.at("from")).unwrap());
        totals.bytes_found.store(found.size, Ordering::Relaxed);
        Transfer::open(FileTask { from, to, found }, &plain_options(1), totals)
    }

    fn finish(transfer: Transfer, totals: &Totals) -> Result<()> {
        transfer.work(&mut Vec::new(), totals);
        transfer.finish()
    }

    // SEMANTICS 111.5
    #[test]
    fn a_file_is_copied_as_it_is_when_it_is_opened() {
        let (scratch, totals) = (Scratch::new("since"), Totals::default());
        std::fs::write(scratch.at("from"), b"short").unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let transfer = open(&scratch, &totals, |file| {
            std::os::unix::fs::FileExt::write_at(file, b", and longer since", 5).unwrap();
            file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
            file.set_modified(time).unwrap();
        });
        finish(transfer.unwrap(), &totals).unwrap();
        assert_eq!(std::fs::read(scratch.at("to")).unwrap(), b"short, and longer since");
        let made = std::fs::metadata(scratch.at("to")).unwrap();
        assert_eq!((made.permissions().mode() & 0o777, made.modified().unwrap()), (0o600, time));
        assert_eq!(totals.bytes_found.load(Ordering::Relaxed), made.len());
    }

    // SEMANTICS 111.5
    #[test]
    fn what_was_cut_off_a_file_with_holes_is_no_hole() {
        let (scratch, totals) = (Scratch::new("cut"), Totals::default());
        let size = 3 * PART_BYTES as u64;
        let source = std::fs::File::create(scratch.at("from")).unwrap();
        source.set_len(size).unwrap();
        let transfer = open(&scratch, &totals, |_| {}).unwrap();
        source.set_len(PART_BYTES as u64).unwrap();
        let error = finish(transfer, &totals).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        assert!(error.message().contains("became shorter"), "{error}");
        assert!(!scratch.at("to").exists());
    }

    // SEMANTICS 111.5
    #[test]
    fn a_copy_that_is_interrupted_leaves_nothing_that_was_not_there_before() {
        for there in [false, true] {
            let (scratch, totals) = (Scratch::new("interrupt"), Totals::default());
            std::fs::write(scratch.at("from"), b"content").unwrap();
            if there {
                std::fs::write(scratch.at("to"), b"other content").unwrap();
            }
            let transfer = open(&scratch, &totals, |_| {}).unwrap();
            totals.interrupted.store(true, Ordering::Relaxed);
            let error = finish(transfer, &totals).unwrap_err();
            assert!(error.message().contains("was interrupted; 0 B of 7 B"), "{error}");
            let fate = if there { "overwritten and is incomplete" } else { "the partial copy was removed" };
            assert!(error.message().ends_with(fate), "{error}");
            assert_eq!(scratch.at("to").exists(), there);
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

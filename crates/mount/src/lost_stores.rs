//! Bytes that programs have stored and that could not be written back: programs here must not mistake the
//! pool's bytes for them.
//!
//! After a failed write-back the kernel takes the page for clean, and drops it at any time. The server's
//! bytes are then from before the store, or zeros. So a read of these bytes through this mount is an error,
//! until they are written again, cut off or punched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, limits};
use ramlace_sync::{Mutex, MutexGuard};

/// Reading this attribute of a mount's directory lists what it has lost: one line for each run of bytes.
pub const LOST_STORES_ATTRIBUTE: &str = "user.ramlace.lost-stores";

/// The lost bytes of all files.
#[derive(Default)]
pub(crate) struct LostStores {
    files: Mutex<BTreeMap<InodeId, Lost>>,
    /// There are some. Usually there are none.
    any: AtomicBool,
}

/// The lost bytes of one file: beginnings and ends of runs that do not touch, in order.
struct Lost {
    runs: BTreeMap<u64, u64>,
    why: Error,
    /// The number of bytes when it was last logged.
    told_bytes: u64,
}

impl LostStores {
    /// Bytes could not be written back. Returns a line for the log if there should be one: for a file's first
    /// loss, and when its lost bytes have doubled.
    pub(crate) fn note(&self, inode: InodeId, range: ByteRange, why: &Error) -> Option<String> {
        let mut files = self.files();
        self.any.store(true, Ordering::Release);
        let mut dropped = None;
        if files.len() >= limits::LOST_STORES_FILES_MAX && !files.contains_key(&inode) {
            dropped = files.pop_first();
        }
        let new = || Lost { runs: BTreeMap::new(), why: why.clone(), told_bytes: 0 };
        let lost = files.entry(inode).or_insert_with(new);
        lost.insert(range);
        lost.why = why.clone();
        let bytes = lost.bytes();
        let mut said = None;
        if bytes >= 2 * lost.told_bytes {
            lost.told_bytes = bytes;
            let ByteRange { start, end } = lost.extent();
            said = Some(format!(
                "{bytes} bytes between {start} and {end} of inode {inode}, which programs have stored by mappings, \
                 could not be written back and are lost; here they are an error until they are written again or cut off: {why}"
            ));
        }
        if let Some((other, lost)) = dropped {
            let forgotten = format!(
                "the {} lost bytes of inode {other} are reported by no error any more: too many files have some",
                lost.bytes()
            );
            said = Some(said.map_or(forgotten.clone(), |said| format!("{said}; {forgotten}")));
        }
        said
    }

    /// Fails when some of these bytes are lost.
    pub(crate) fn check(&self, inode: InodeId, range: ByteRange) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let files = self.files();
        let Some(lost) = files.get(&inode).filter(|lost| lost.touches(range)) else { return Ok(()) };
        let text = format!(
            "bytes of inode {inode} that a program stored by a mapping could not be written back ({}); write them again, \
             or cut them off",
            lost.why
        );
        Err(Error::new(ErrorKind::Lost, text))
    }

    /// Bytes are valid again: written, cut off or punched.
    pub(crate) fn end(&self, inode: InodeId, range: ByteRange) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.files();
        if let Some(lost) = files.get_mut(&inode) {
            lost.remove(range);
            if lost.runs.is_empty() {
                files.remove(&inode);
            }
        }
        self.any.store(!files.is_empty(), Ordering::Release);
    }

    /// One line for each run: inode, first byte, byte behind the last, reason.
    pub(crate) fn tell(&self) -> Vec<u8> {
        let files = self.files();
        let runs = files.iter().flat_map(|(inode, lost)| lost.runs.iter().map(move |run| (inode, run, lost)));
        let line = |(inode, (start, end), lost): (&InodeId, (&u64, &u64), &Lost)| {
            format!("{} {start} {end} {}\n", inode.0, lost.why.to_string().replace('\n', " "))
        };
        let mut text = String::new();
        for line in runs.map(line) {
            if text.len() + line.len() > TOLD_BYTES_MAX {
                break;
            }
            text.push_str(&line);
        }
        text.into_bytes()
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<InodeId, Lost>> {
        self.files.lock()
    }
}

/// The value of an attribute has at most 64 KiB.
const TOLD_BYTES_MAX: usize = 60 << 10;

impl Lost {
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    fn extent(&self) -> ByteRange {
        let start = self.runs.first_key_value().map_or(0, |(start, _)| *start);
        ByteRange { start, end: self.runs.last_key_value().map_or(start, |(_, end)| *end) }
    }

    fn touches(&self, range: ByteRange) -> bool {
        self.runs.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Adds a range. If there are too many runs, the two nearest become one with what lies between: that may
    /// be an unnecessary error.
    fn insert(&mut self, range: ByteRange) {
        let touching: Vec<(u64, u64)> = self
            .runs
            .range(..=range.end)
            .rev()
            .take_while(|(_, end)| **end >= range.start)
            .map(|(start, end)| (*start, *end))
            .collect();
        let mut joined = range;
        for (start, end) in touching {
            self.runs.remove(&start);
            joined = ByteRange { start: joined.start.min(start), end: joined.end.max(end) };
        }
        self.runs.insert(joined.start, joined.end);
        if self.runs.len() > limits::LOST_STORES_RUNS_MAX {
            let gaps = self.runs.iter().zip(self.runs.iter().skip(1));
            let narrowest = gaps.min_by_key(|((_, end), (start, _))| *start - *end);
            if let Some(((first, _), (second, end))) = narrowest.map(|((a, b), (c, d))| ((*a, *b), (*c, *d)))
            {
                self.runs.remove(&second);
                self.runs.insert(first, end);
            }
        }
    }

    fn remove(&mut self, range: ByteRange) {
        while let Some((start, end)) = self
            .runs
            .range(..range.end)
            .next_back()
            .map(|(start, end)| (*start, *end))
            .filter(|run| run.1 > range.start)
        {
            self.runs.remove(&start);
            if start < range.start {
                self.runs.insert(start, range.start);
            }
            if range.end < end {
                self.runs.insert(range.end, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn full() -> Error {
        Error::new(ErrorKind::NoSpace, "full")
    }

    #[test]
    fn lost_bytes_are_an_error_until_they_are_written_again() {
        let lost = LostStores::default();
        assert_eq!(lost.check(FILE, range(0, 100)), Ok(()));
        assert!(lost.note(FILE, range(10, 20), &full()).unwrap().contains("10 bytes between 10 and 20"));
        lost.note(FILE, range(20, 30), &full());
        lost.note(FILE, range(50, 60), &full());
        assert_eq!(lost.tell(), b"7 10 30 full\n7 50 60 full\n");
        assert_eq!(lost.check(FILE, range(29, 40)).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(lost.check(FILE, range(30, 50)), Ok(()));
        assert_eq!(lost.check(InodeId(8), range(10, 20)), Ok(()));
        lost.end(FILE, range(15, 55));
        assert_eq!(lost.tell(), b"7 10 15 full\n7 55 60 full\n");
        lost.end(FILE, range(55, u64::MAX));
        lost.end(FILE, range(0, 12));
        assert_eq!(lost.check(FILE, range(0, 12)), Ok(()));
        assert!(lost.check(FILE, range(14, 15)).is_err());
        lost.end(FILE, range(0, u64::MAX));
        assert!(lost.files().is_empty() && !lost.any.load(Ordering::Acquire));
    }

    #[test]
    fn the_log_hears_of_the_first_and_when_they_have_doubled() {
        let lost = LostStores::default();
        let said =
            (0..64u64).filter(|page| lost.note(FILE, range(page * 8, page * 8 + 4), &full()).is_some());
        assert_eq!(said.count(), 7);
    }

    // SEMANTICS 104.2
    #[test]
    fn memory_is_bounded_and_errs_to_the_side_of_errors() {
        let lost = LostStores::default();
        let most = limits::LOST_STORES_RUNS_MAX as u64;
        for run in 0..=most {
            lost.note(FILE, range(run * 100, run * 100 + 50), &full());
        }
        assert_eq!(lost.files()[&FILE].runs.len(), limits::LOST_STORES_RUNS_MAX);
        for run in 0..=most {
            assert!(lost.check(FILE, range(run * 100, run * 100 + 50)).is_err());
        }
        for file in 0..limits::LOST_STORES_FILES_MAX as u64 {
            lost.note(InodeId(100 + file), range(0, 1), &full());
        }
        assert_eq!(lost.files().len(), limits::LOST_STORES_FILES_MAX);
        assert!(lost.tell().len() <= TOLD_BYTES_MAX);
    }
}

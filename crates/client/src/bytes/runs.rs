//! Runs of bytes with gaps between them, in one call: what lies in the gaps is neither read nor written.

use ramlace_base::{ByteRange, Error, ErrorKind, Result};

use crate::bytes::content::check_range;
use crate::bytes::file::File;
use crate::bytes::kept::Pages;
use crate::bytes::memory::{Memory, Segment};
use crate::bytes::transfer::{Direction, Outcome};
use crate::names::inodes::Handle;

impl File {
    /// Reads runs, which ascend and do not overlap, into the buffer one after the other; returns the bytes read: those
    /// below the file's end. The buffer is as long as the runs together.
    pub fn read_runs(&self, runs: &[ByteRange], buffer: &mut [u8]) -> Result<usize> {
        let Some(hull) = check_runs(runs, buffer.len()).map_err(|error| self.tell(error))? else {
            return Ok(0);
        };
        if let [one] = runs {
            return self.read_at(buffer, one.start);
        }
        self.needs(self.rights().read, "reading")?;
        let handle = self.handle()?;
        if handle.open.is_inline() {
            return self.read_one_by_one(runs, buffer);
        }
        let read = |_| {
            let size = self.size_for(handle, hull.end)?;
            let there = below(runs, size.size);
            let memory = Memory::of_segments(segments(&there, buffer.as_mut_ptr()));
            let transfer = self.transfer(handle, size, Direction::Read, &memory);
            // SAFETY: the segments lie in the caller's exclusive buffer, one behind the other.
            match unsafe { transfer.run() } {
                Outcome::Done if transfer.saw_hole.get() && !self.is_current(handle, size)? => {
                    Err(Error::new(ErrorKind::Retry, "the file was truncated while it was read"))
                }
                Outcome::Done => Ok(memory.bytes()),
                Outcome::Failed { error, .. } | Outcome::Outdated(error) => Err(error),
            }
        };
        self.with_size(handle, read).map_err(|error| self.tell(error))
    }

    /// A small file's bytes live with its inode, and a run of them is one request there.
    fn read_one_by_one(&self, runs: &[ByteRange], buffer: &mut [u8]) -> Result<usize> {
        let mut read = 0;
        for run in runs {
            let wanted = run.length() as usize;
            let count = self.read_at(&mut buffer[read..read + wanted], run.start)?;
            read += count;
            if count < wanted {
                break;
            }
        }
        Ok(read)
    }

    /// Writes runs, which ascend and do not overlap, from bytes that lie one after the other; returns the bytes written:
    /// fewer than given only when the pool filled up in the middle; the next call then says so.
    pub fn write_runs(&self, runs: &[ByteRange], bytes: &[u8]) -> Result<usize> {
        self.needs_writing()?;
        let Some(hull) = check_runs(runs, bytes.len()).map_err(|error| self.tell(error))? else {
            return Ok(0);
        };
        let handle = self.handle()?;
        let memory = Memory::of_segments(segments(runs, bytes.as_ptr().cast_mut()));
        // SAFETY: the memory is the caller's shared buffer, which a write only reads.
        if unsafe { self.write_inline(handle, &memory, Pages::None) }.map_err(|error| self.tell(error))? {
            return Ok(bytes.len());
        }
        let write = |size| {
            let transfer = self.transfer(handle, size, Direction::Write, &memory);
            // SAFETY: as above.
            let done_to = match unsafe { transfer.run() } {
                Outcome::Done => hull.end,
                Outcome::Failed { done_to, error }
                    if error.kind() == ErrorKind::NoSpace && done_to > hull.start =>
                {
                    done_to
                }
                Outcome::Failed { error, .. } | Outcome::Outdated(error) => return Err(error),
            };
            let done = below(runs, done_to);
            self.extend_over(handle, size, &done)?;
            Ok(done.iter().map(|run| run.length() as usize).sum())
        };
        self.with_size(handle, write).map_err(|error| self.tell(error))
    }

    /// The file reaches as far as what was written. The home hears of the last stretch without a gap: what lies
    /// before it may be a hole.
    fn extend_over(
        &self,
        handle: &Handle,
        size: crate::names::inodes::Size,
        done: &[ByteRange],
    ) -> Result<()> {
        let Some(last) = done.last() else { return Ok(()) };
        let joined = done.windows(2).rev().take_while(|pair| pair[0].end == pair[1].start);
        let start = joined.last().map_or(last.start, |pair| pair[0].start);
        self.extend(handle, size, ByteRange { start, end: last.end })
    }
}

/// From the first byte to the last; `None` when there are none.
fn check_runs(runs: &[ByteRange], bytes: usize) -> Result<Option<ByteRange>> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(None) };
    if runs.iter().any(|run| run.is_empty()) || runs.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return invalid("runs ascend, do not overlap, and have at least one byte each");
    }
    let length: u64 = runs.iter().map(|run| run.end - run.start).sum();
    if length != bytes as u64 {
        return invalid("the runs have not as many bytes together as the buffer");
    }
    check_range(first.start, last.end - first.start)?;
    Ok(Some(ByteRange { start: first.start, end: last.end }))
}

/// What of the runs lies below an offset.
fn below(runs: &[ByteRange], end: u64) -> Vec<ByteRange> {
    let there = runs.iter().take_while(|run| run.start < end);
    there.map(|run| ByteRange { start: run.start, end: run.end.min(end) }).collect()
}

/// The memory of runs that lie in it one after the other.
fn segments(runs: &[ByteRange], start: *mut u8) -> Vec<Segment> {
    let mut at = 0;
    let segment = |run: &ByteRange| {
        let length = run.length() as usize;
        // Within the buffer, whose length is that of all runs.
        let segment = Segment { file_offset: run.start, start: start.wrapping_add(at), length };
        at += length;
        segment
    };
    runs.iter().map(segment).collect()
}

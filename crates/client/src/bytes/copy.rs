//! A fetched copy of a file's bytes, for arrays that cannot be mapped: publish sends what was changed here,
//! refresh fetches what was changed elsewhere (`docs/records/arrays.md`).

use std::ops::Range;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_sync::{Mutex, MutexGuard};
use rustix::mm::ProtFlags;

use crate::File;
use crate::bytes::mapping::{AddressRange, OwnBytes};
use crate::bytes::memory::Memory;
use crate::bytes::seen::Seen;
use crate::fork;

/// The unit of a refresh: bytes that are fetched together, and whose state is known as one.
const REFRESH_BYTES_MAX: usize = 4 << 20;
/// Runs of changed bytes that a publish sends in one call.
const PUBLISH_RUNS_MAX: usize = 4096;
/// Blocks of this size are compared as a whole before their grains are compared.
const COMPARE_BYTES: usize = 256;

/// A private copy of a file's bytes, and its twin: the bytes as they were last seen in the pool.
///
/// The program may read and write the copy through [`Copy::as_ptr`] at any time. Changes are found and merged
/// by grain (an array's element): when two clients change different grains, both changes survive.
///
/// Lock order: `twin` is held while bytes are read or written, so it comes before every lock of the client.
pub struct Copy {
    file: File,
    copy: AddressRange,
    twin: Mutex<Twin>,
    length: usize,
    grain: usize,
    /// The process that made it. In a forked child the twin may be locked by a thread that is not there.
    fork: u64,
}

/// The bytes as they were last seen in the pool, and which state of the file they are.
struct Twin {
    bytes: OwnBytes,
    seen: Seen,
}

impl File {
    /// Fetches a copy of the file's first `length` bytes. `grain` is the size in bytes of what is merged as a
    /// whole (1: byte by byte). Takes ownership of the file.
    pub fn copy(self, length: usize, grain: usize) -> Result<Copy> {
        if grain == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a copy is merged in grains of at least one byte"));
        }
        self.check_may_be_memory()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let block = block_bytes(grain) as u64;
        let copy = Copy {
            copy: AddressRange::reserve(length, rights)?,
            twin: Mutex::new(Twin {
                bytes: OwnBytes::new(length)?,
                seen: Seen::nothing(length as u64, block),
            }),
            file: self,
            length,
            grain,
            fork: fork::count(),
        };
        copy.fetch_first()?;
        Ok(copy)
    }
}

impl Copy {
    /// The copy's first byte; valid as long as this value is. Aligned to 2 MiB.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.copy.start().as_ptr()
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The twin, in the process that made the copy: to a forked child this is an error (`BadHandle`), for the copy is
    /// its parent's.
    fn twin(&self) -> Result<MutexGuard<'_, Twin>> {
        if self.fork == fork::count() {
            return Ok(self.twin.lock());
        }
        let text = "the copy is of the process that this one was forked from; make one of this process";
        Err(Error::new(ErrorKind::BadHandle, text))
    }

    /// Fetches everything in one transfer, straight into the copy, which the program does not have yet.
    fn fetch_first(&self) -> Result<()> {
        let mut twin = self.twin()?;
        let whole = ByteRange { start: 0, end: self.length as u64 };
        let numbers = self.file.lane_numbers(whole)?;
        // SAFETY: the copy has `length` bytes, and lives as long as this value.
        let copy = unsafe { Memory::of_raw(self.as_ptr(), self.length, 0) };
        self.read_into(copy, 0)?;
        self.take(0, &mut twin.bytes);
        twin.seen.note(whole, whole.end, numbers);
        Ok(())
    }

    /// Fetches everything; changes that were not published are lost. What the program stores meanwhile is lost, or
    /// counts as changed. After an error some blocks are fetched, and the others are as they were.
    pub fn fetch(&self) -> Result<()> {
        let mut twin = self.twin()?;
        // Many blocks at once, so that all servers have something to do.
        let (step, mut buffer) = (FETCHED_AT_ONCE_BLOCKS * block_bytes(self.grain), Vec::new());
        for start in (0..self.length).step_by(step) {
            let end = self.length.min(start + step) as u64;
            let part = ByteRange { start: start as u64, end };
            self.take_in(&mut twin, part, &mut buffer, Copy::replace)?;
        }
        Ok(())
    }

    /// Sends the grains that differ from the twin, and returns their bytes.
    pub fn publish(&self) -> Result<u64> {
        self.publish_range(ByteRange { start: 0, end: u64::MAX })
    }

    /// The same for the grains that a range of bytes touches; what lies beyond the copy's end is ignored.
    pub fn publish_range(&self, range: ByteRange) -> Result<u64> {
        let twin = &mut self.twin()?.bytes;
        let (first, last) = self.grains_of(range);
        let (mut sent, mut runs, mut at) = (0, Vec::new(), first);
        while let Some(run) = self.next_change(&twin[..last], at) {
            at = run.end;
            runs.push(run);
            if runs.len() == PUBLISH_RUNS_MAX {
                sent += self.send(twin, &runs)?;
                runs.clear();
            }
        }
        Ok(sent + self.send(twin, &runs)?)
    }

    /// Sends runs of changed bytes. The twin then has exactly what was sent, even when the program changes
    /// the copy meanwhile.
    fn send(&self, twin: &mut [u8], runs: &[Range<usize>]) -> Result<u64> {
        let Some(first) = runs.first() else { return Ok(0) };
        let mut before = Vec::with_capacity(runs.iter().map(ExactSizeIterator::len).sum());
        for run in runs {
            before.extend_from_slice(&twin[run.clone()]);
            self.take(run.start, &mut twin[run.clone()]);
        }
        let bytes = before.len();
        let written = self.file.write_from(&mut Memory::of_ranges(twin, runs), first.start as u64);
        let failed = match written {
            Ok(count) if count == bytes => return Ok(bytes as u64),
            Ok(_) => Error::new(ErrorKind::NoSpace, "the pool filled up while a copy was published"),
            Err(error) => error,
        };
        // What may not have arrived must still count as changed.
        let mut rest = &before[..];
        for run in runs {
            let (now, later) = rest.split_at(run.len());
            twin[run.clone()].copy_from_slice(now);
            rest = later;
        }
        Err(failed)
    }

    /// Fetches and merges what others have published; grains that were changed here and not published stay.
    /// Bytes that have not changed since they were fetched are not moved.
    pub fn refresh(&self) -> Result<()> {
        self.refresh_range(ByteRange { start: 0, end: u64::MAX })
    }

    /// The same for the grains that a range of bytes touches; what lies beyond the copy's end is ignored.
    pub fn refresh_range(&self, range: ByteRange) -> Result<()> {
        let mut twin = self.twin()?;
        let (first, last) = self.grains_of(range);
        let mut buffer = Vec::new();
        let mut parts = vec![ByteRange { start: first as u64, end: last as u64 }];
        // Bisects the range as long as a part has changed: few changes cost few requests.
        while let Some(part) = parts.pop() {
            let is_known = match twin.seen.of(part) {
                Some(numbers) => !self.file.has_changed(part, &numbers)?,
                None => part.is_empty(),
            };
            match twin.seen.middle(part) {
                _ if is_known => {}
                Some(middle) => {
                    parts.push(ByteRange { start: middle, end: part.end });
                    parts.push(ByteRange { start: part.start, end: middle });
                }
                None => self.take_in(&mut twin, part, &mut buffer, Copy::merge)?,
            }
        }
        Ok(())
    }

    /// Fetches a part of a block, and merges it or replaces what is there. The copy and its twin get the same bytes:
    /// read straight into the copy, they would be mixed with what the program stores meanwhile.
    fn take_in(
        &self,
        twin: &mut Twin,
        part: ByteRange,
        buffer: &mut Vec<u8>,
        take_over: impl Fn(&Copy, &mut [u8], usize, &[u8]),
    ) -> Result<()> {
        let numbers = self.file.lane_numbers(part)?;
        buffer.resize(part.length() as usize, 0);
        self.read_into(Memory::of_slice(buffer, part.start), part.start as usize)?;
        take_over(self, &mut twin.bytes, part.start as usize, buffer);
        twin.seen.note(part, self.length as u64, numbers);
        Ok(())
    }

    /// The grains that a range touches, as begin and end.
    fn grains_of(&self, range: ByteRange) -> (usize, usize) {
        let length = self.length as u64;
        let start = range.start.min(length) as usize / self.grain * self.grain;
        if range.is_empty() {
            return (start, start);
        }
        let end = (range.end.min(length) as usize).div_ceil(self.grain).saturating_mul(self.grain);
        (start, end.min(self.length).max(start))
    }

    fn merge(&self, twin: &mut [u8], at: usize, fresh: &[u8]) {
        for (index, grain) in fresh.chunks(self.grain).enumerate() {
            let offset = at + index * self.grain;
            let seen = &mut twin[offset..offset + grain.len()];
            // What nobody else has changed is not touched: the program may store into it between a look and a put.
            if grain == seen {
                continue;
            }
            if !self.differs(offset, seen) {
                self.put(offset, grain);
            }
            seen.copy_from_slice(grain);
        }
    }

    fn replace(&self, twin: &mut [u8], at: usize, fresh: &[u8]) {
        twin[at..at + fresh.len()].copy_from_slice(fresh);
        self.put(at, fresh);
    }

    fn read_into(&self, mut memory: Memory<'_>, offset: usize) -> Result<()> {
        let bytes = memory.bytes();
        let read = self.file.read_into(&mut memory, offset as u64)?;
        if read == bytes {
            return Ok(());
        }
        Err(self.file.tell(Error::new(
            ErrorKind::Corrupt,
            format!("the file ends at byte {}, and its copy has {}", offset + read, self.length),
        )))
    }

    /// The next run of grains that differ from the twin, from `at` on and within the twin as given.
    fn next_change(&self, twin: &[u8], at: usize) -> Option<Range<usize>> {
        let start = self.skip_equal(twin, at)?;
        let mut end = (start + self.grain).min(twin.len());
        while end < twin.len() && self.differs(end, upto(twin, end, self.grain)) {
            end = (end + self.grain).min(twin.len());
        }
        Some(start..end)
    }

    /// The first grain from `at` on that differs.
    fn skip_equal(&self, twin: &[u8], mut at: usize) -> Option<usize> {
        let block = (COMPARE_BYTES / self.grain).max(1) * self.grain;
        while at < twin.len() {
            let there = upto(twin, at, block);
            if self.differs(at, there) {
                let mut grains = (at..at + there.len()).step_by(self.grain);
                return grains.find(|start| self.differs(*start, upto(twin, *start, self.grain)));
            }
            at += block;
        }
        None
    }

    /// The address of `bytes` bytes of the copy. The program may change them at any time.
    fn place(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.length, "a place lies within the copy");
        self.as_ptr().wrapping_add(offset)
    }

    /// Whether the copy differs from these bytes at `offset`.
    fn differs(&self, offset: usize, seen: &[u8]) -> bool {
        let copy = self.place(offset, seen.len());
        // SAFETY: both have this many bytes.
        unsafe { libc::memcmp(copy.cast(), seen.as_ptr().cast(), seen.len()) != 0 }
    }

    /// Reads the copy's bytes as they are now.
    fn take(&self, offset: usize, into: &mut [u8]) {
        let copy = self.place(offset, into.len());
        // SAFETY: both have this many bytes, and `into` is borrowed exclusively.
        unsafe { std::ptr::copy_nonoverlapping(copy, into.as_mut_ptr(), into.len()) };
    }

    /// Changes the copy, as the program itself would.
    fn put(&self, offset: usize, bytes: &[u8]) {
        let copy = self.place(offset, bytes.len());
        // SAFETY: both have this many bytes; nobody has borrowed the copy.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    }
}

/// Blocks that are fetched by one transfer.
const FETCHED_AT_ONCE_BLOCKS: usize = 16;

/// Bytes of a block, whose state is known as one: whole grains.
fn block_bytes(grain: usize) -> usize {
    (REFRESH_BYTES_MAX / grain).max(1) * grain
}

/// `count` bytes from an offset on, or as many as there are.
fn upto(bytes: &[u8], at: usize, count: usize) -> &[u8] {
    &bytes[at..bytes.len().min(at + count)]
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Copy({:?}, {} bytes)", self.file, self.length)
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;

//! A fetched copy of a file's bytes, for arrays that cannot be mapped: publish sends what was
//! changed here, refresh takes what was changed elsewhere (`docs/records/arrays.md`).

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_sync::Mutex;
use rustix::mm::ProtFlags;

use crate::File;
use crate::bytes::mapping::AddressRange;
use crate::bytes::memory::{Memory, Segment};
use crate::bytes::seen::Seen;

/// Bytes that a refresh fetches at once, and of which it is known as one whether they have changed.
const REFRESH_BYTES_MAX: usize = 4 << 20;
/// Runs of changed bytes that a publish sends at once.
const PUBLISH_RUNS_MAX: usize = 4096;
/// Whole blocks of this size are compared at once before their grains are looked at.
const COMPARE_BYTES: usize = 256;

/// A private copy of a file's bytes, and its twin: the bytes as they were last seen in the pool.
///
/// The copy may be read and written through [`Copy::as_ptr`] at any time. Changes are found and
/// merged by grain (an array's element): two clients that change different grains both win.
pub struct Copy {
    file: File,
    copy: AddressRange,
    twin: AddressRange,
    length: usize,
    grain: usize,
    /// Held while the twin is compared and changed: of which state it is.
    moving: Mutex<Seen>,
}

impl File {
    /// Fetches a copy of the file's first `length` bytes. `grain` is the size in bytes of what is
    /// merged as a whole (1: byte by byte). Takes over the file.
    pub fn copy(self, length: usize, grain: usize) -> Result<Copy> {
        if grain == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a copy is merged in grains of at least one byte"));
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let block = (REFRESH_BYTES_MAX / grain).max(1) as u64 * grain as u64;
        let copy = Copy {
            copy: AddressRange::reserve(length, rights)?,
            twin: AddressRange::reserve(length, rights)?,
            file: self,
            length,
            grain,
            moving: Mutex::new(Seen::nothing(length as u64, block)),
        };
        copy.fetch()?;
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

    /// Fetches everything; changes that were not published are lost.
    pub fn fetch(&self) -> Result<()> {
        let mut seen = self.moving.lock();
        let whole = ByteRange { start: 0, end: self.length as u64 };
        let numbers = self.file.lane_numbers(whole)?;
        self.read_into(self.as_ptr(), 0, self.length)?;
        // SAFETY: both ranges have `length` bytes and are different mappings.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), self.twin.start().as_ptr(), self.length) };
        seen.note(whole, whole.end, numbers);
        Ok(())
    }

    /// Sends the grains that differ from the twin, and returns how many bytes that were.
    pub fn publish(&self) -> Result<u64> {
        self.publish_range(ByteRange { start: 0, end: u64::MAX })
    }

    /// The same of the grains that a range of bytes touches, as far as there are any.
    pub fn publish_range(&self, range: ByteRange) -> Result<u64> {
        let _moving = self.moving.lock();
        let (first, last) = self.grains_of(range);
        let (mut sent, mut runs, mut at) = (0, Vec::new(), first);
        while let Some((start, end)) = self.next_change(at, last) {
            runs.push((start, end));
            at = end;
            if runs.len() == PUBLISH_RUNS_MAX {
                sent += self.send(&runs)?;
                runs.clear();
            }
        }
        Ok(sent + self.send(&runs)?)
    }

    /// Sends runs of changed bytes; what was sent is what the twin shows then, even when the
    /// program changes it meanwhile.
    fn send(&self, runs: &[(usize, usize)]) -> Result<u64> {
        let Some(first) = runs.first() else { return Ok(0) };
        let twin = self.twin.start().as_ptr();
        let mut before = Vec::with_capacity(runs.iter().map(|(start, end)| end - start).sum());
        for (start, end) in runs {
            // SAFETY: runs lie within both ranges, which are different mappings.
            unsafe {
                before.extend_from_slice(std::slice::from_raw_parts(twin.add(*start), end - start));
                std::ptr::copy_nonoverlapping(self.as_ptr().add(*start), twin.add(*start), end - start);
            }
        }
        let segments = runs.iter().map(|(start, end)| Segment {
            file_offset: *start as u64,
            // SAFETY: as above.
            start: unsafe { twin.add(*start) },
            length: end - start,
        });
        let memory = Memory::of_segments(segments.collect());
        let bytes = memory.bytes();
        // SAFETY: the twin is this value's own and stays as it is while `moving` is held.
        let written = unsafe { self.file.write_from(&memory, first.0 as u64) };
        let failed = match written {
            Ok(count) if count == bytes => return Ok(bytes as u64),
            Ok(_) => Error::new(ErrorKind::NoSpace, "the pool filled up while a copy was published"),
            Err(error) => error,
        };
        // What may not have arrived must count as changed still.
        let mut from = 0;
        for (start, end) in runs {
            // SAFETY: as above; `before` holds the runs one after the other.
            unsafe { std::ptr::copy_nonoverlapping(before[from..].as_ptr(), twin.add(*start), end - start) };
            from += end - start;
        }
        Err(failed)
    }

    /// Takes in what others have published; grains that were changed here and not published stay. Of what has not changed since it was
    /// fetched no byte moves.
    pub fn refresh(&self) -> Result<()> {
        self.refresh_range(ByteRange { start: 0, end: u64::MAX })
    }

    /// The same of the grains that a range of bytes touches, as far as there are any.
    pub fn refresh_range(&self, range: ByteRange) -> Result<()> {
        let mut seen = self.moving.lock();
        let (first, last) = self.grains_of(range);
        let mut buffer = Vec::new();
        let mut parts = vec![ByteRange { start: first as u64, end: last as u64 }];
        // Half of it, and half of that, as long as there is something new in it: a few questions for a few changes.
        while let Some(part) = parts.pop() {
            let is_known = match seen.of(part) {
                Some(numbers) => !self.file.has_changed(part, &numbers)?,
                None => part.is_empty(),
            };
            match seen.middle(part) {
                _ if is_known => {}
                Some(middle) => {
                    parts.push(ByteRange { start: middle, end: part.end });
                    parts.push(ByteRange { start: part.start, end: middle });
                }
                None => self.take_in(&mut seen, part, &mut buffer)?,
            }
        }
        Ok(())
    }

    /// Fetches a part of a block and merges it.
    fn take_in(&self, seen: &mut Seen, part: ByteRange, buffer: &mut Vec<u8>) -> Result<()> {
        let numbers = self.file.lane_numbers(part)?;
        buffer.resize(part.length() as usize, 0);
        self.read_into(buffer.as_mut_ptr(), part.start as usize, buffer.len())?;
        self.merge(part.start as usize, buffer);
        seen.note(part, self.length as u64, numbers);
        Ok(())
    }

    /// Where the grains begin and end that a range touches.
    fn grains_of(&self, range: ByteRange) -> (usize, usize) {
        let length = self.length as u64;
        let start = range.start.min(length) as usize / self.grain * self.grain;
        if range.is_empty() {
            return (start, start);
        }
        let end = (range.end.min(length) as usize).div_ceil(self.grain).saturating_mul(self.grain);
        (start, end.min(self.length).max(start))
    }

    fn merge(&self, at: usize, fresh: &[u8]) {
        for (index, grain) in fresh.chunks(self.grain).enumerate() {
            let offset = at + index * self.grain;
            // SAFETY: the grain lies within both ranges; `moving` keeps others from the twin,
            // and the copy is changed as the program itself would.
            unsafe {
                let copy = self.as_ptr().add(offset);
                let twin = self.twin.start().as_ptr().add(offset);
                if libc::memcmp(copy.cast(), twin.cast(), grain.len()) == 0 {
                    std::ptr::copy_nonoverlapping(grain.as_ptr(), copy, grain.len());
                }
                std::ptr::copy_nonoverlapping(grain.as_ptr(), twin, grain.len());
            }
        }
    }

    fn read_into(&self, start: *mut u8, offset: usize, bytes: usize) -> Result<()> {
        let memory = Memory::of_raw(start, bytes, offset as u64);
        // SAFETY: the memory is this value's own, or a buffer of the caller, of `bytes` bytes.
        let read = unsafe { self.file.read_into(&memory, offset as u64) }?;
        if read == bytes {
            return Ok(());
        }
        Err(self.file.tell(Error::new(
            ErrorKind::Corrupt,
            format!("the file ends at byte {}, and its copy has {}", offset + read, self.length),
        )))
    }

    /// The next run of grains that differ from the twin, from `at` on and before `last`.
    fn next_change(&self, at: usize, last: usize) -> Option<(usize, usize)> {
        let start = self.skip_equal(at, last)?;
        let mut end = (start + self.grain).min(last);
        while end < last && self.differs(end, self.grain) {
            end = (end + self.grain).min(last);
        }
        Some((start, end))
    }

    /// The first grain from `at` on that differs.
    fn skip_equal(&self, mut at: usize, last: usize) -> Option<usize> {
        let block = (COMPARE_BYTES / self.grain).max(1) * self.grain;
        while at < last {
            if self.differs(at, block.min(last - at)) {
                let end = (at + block).min(last);
                return (at..end).step_by(self.grain).find(|start| self.differs(*start, self.grain));
            }
            at += block;
        }
        None
    }

    fn differs(&self, at: usize, bytes: usize) -> bool {
        let bytes = bytes.min(self.length - at);
        // SAFETY: both ranges have `length` bytes.
        unsafe {
            libc::memcmp(self.as_ptr().add(at).cast(), self.twin.start().as_ptr().add(at).cast(), bytes) != 0
        }
    }
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Copy({:?}, {} bytes)", self.file, self.length)
    }
}

//! Where in the caller's memory a file's bytes lie during one transfer.
//!
//! A [`Memory`] borrows the caller's buffers for as long as it lives, and lends parts of them to one user at
//! a time: the code that sends them, or receives into them. So this borrow is the only thing to be trusted
//! about raw addresses, and only in this file.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use ramlace_base::ByteRange;

/// Bytes that lie together in the file and in memory.
#[derive(Clone, Copy)]
struct Segment {
    file_offset: u64,
    start: *mut u8,
    length: usize,
}

impl Segment {
    fn end(&self) -> u64 {
        self.file_offset + self.length as u64
    }

    /// The address of a byte of the file that lies in the segment.
    fn at(&self, offset: u64) -> *mut u8 {
        self.start.wrapping_add((offset - self.file_offset) as usize)
    }
}

enum Segments<'a> {
    One([Segment; 1]),
    Many(Vec<Segment>),
    Borrowed(&'a [Segment]),
}

/// The memory of one transfer: segments in the order of the file, which do not overlap.
pub(crate) struct Memory<'a> {
    segments: Segments<'a>,
    /// Whether the buffers may be written to.
    writable: bool,
    /// Whether a part of them is lent now.
    lent: Cell<bool>,
    lives: PhantomData<&'a mut [u8]>,
}

/// Lists for the parts of a request, reused from one request to the next.
#[derive(Default)]
pub(crate) struct Parts {
    sources: Vec<IoSlice<'static>>,
    targets: Vec<IoSliceMut<'static>>,
}

impl<'a> Memory<'a> {
    fn new(segments: Segments<'a>, writable: bool) -> Memory<'a> {
        Memory { segments, writable, lent: Cell::new(false), lives: PhantomData }
    }

    /// No memory, for requests that carry no data.
    pub(crate) fn none() -> Memory<'static> {
        Memory::of_slice(&mut [], 0)
    }

    pub(crate) fn of_slice(buffer: &'a mut [u8], offset: u64) -> Memory<'a> {
        let segment = Segment { file_offset: offset, start: buffer.as_mut_ptr(), length: buffer.len() };
        Memory::new(Segments::One([segment]), true)
    }

    pub(crate) fn of_bytes(bytes: &'a [u8], offset: u64) -> Memory<'a> {
        let segment = Segment { file_offset: offset, start: bytes.as_ptr().cast_mut(), length: bytes.len() };
        Memory::new(Segments::One([segment]), false)
    }

    /// Memory that other threads may reach at the same time, as the program wishes.
    ///
    /// # Safety
    /// It must be valid for reads and writes for `'a`.
    pub(crate) unsafe fn of_raw(start: *mut u8, length: usize, file_offset: u64) -> Memory<'a> {
        Memory::new(Segments::One([Segment { file_offset, start, length }]), true)
    }

    /// Buffers that hold consecutive bytes of the file.
    pub(crate) fn of_slices_mut(buffers: &'a mut [IoSliceMut<'_>], offset: u64) -> Memory<'a> {
        let parts = buffers.iter_mut().map(|buffer| (buffer.as_mut_ptr(), buffer.len()));
        Memory::new(Segments::Many(one_behind_the_other(parts, offset)), true)
    }

    /// The same with buffers that are only read.
    pub(crate) fn of_slices(buffers: &'a [IoSlice<'_>], offset: u64) -> Memory<'a> {
        let parts = buffers.iter().map(|buffer| (buffer.as_ptr().cast_mut(), buffer.len()));
        Memory::new(Segments::Many(one_behind_the_other(parts, offset)), false)
    }

    /// Ranges of a file, out of bytes that begin where the file begins; there may be gaps between the ranges.
    pub(crate) fn of_ranges(bytes: &'a [u8], ranges: &[std::ops::Range<usize>]) -> Memory<'a> {
        let segment = |range: &std::ops::Range<usize>| {
            let bytes = &bytes[range.clone()];
            Segment { file_offset: range.start as u64, start: bytes.as_ptr().cast_mut(), length: bytes.len() }
        };
        Memory::new(Segments::Many(ranges.iter().map(segment).collect()), false)
    }

    fn segments(&self) -> &[Segment] {
        match &self.segments {
            Segments::One(one) => one,
            Segments::Many(many) => many,
            Segments::Borrowed(many) => many,
        }
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        self.segments().iter().map(|segment| segment.length).sum()
    }

    /// The same memory for one attempt, after which there may be another.
    pub(crate) fn whole(&mut self) -> Memory<'_> {
        let segments = match &self.segments {
            Segments::One(one) => Segments::One(*one),
            Segments::Many(many) => Segments::Borrowed(many),
            Segments::Borrowed(many) => Segments::Borrowed(many),
        };
        Memory::new(segments, self.writable)
    }

    /// The first `bytes` bytes, for one attempt.
    pub(crate) fn clamped(&mut self, bytes: usize) -> Memory<'_> {
        let mut left = bytes;
        let clamp = |segment: &Segment| {
            let length = segment.length.min(left);
            left -= length;
            Segment { length, ..*segment }
        };
        let segments = match self.segments() {
            [one] => Segments::One([Segment { length: one.length.min(bytes), ..*one }]),
            many => Segments::Many(many.iter().map(clamp).filter(|segment| segment.length > 0).collect()),
        };
        Memory::new(segments, self.writable)
    }

    /// The ranges of the file that the segments cover, joined where they touch.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = ByteRange> + '_ {
        let mut rest = self.segments();
        std::iter::from_fn(move || {
            let (first, mut others) = rest.split_first()?;
            let mut range = ByteRange { start: first.file_offset, end: first.end() };
            while let Some((next, after)) =
                others.split_first().filter(|(next, _)| next.file_offset == range.end)
            {
                range.end = next.end();
                others = after;
            }
            rest = others;
            Some(range)
        })
    }

    /// The range from the first byte to the last, with the gaps in between; `None`: there are no bytes.
    pub(crate) fn hull(&self) -> Option<ByteRange> {
        let (first, last) = (self.segments().first()?, self.segments().last()?);
        Some(ByteRange { start: first.file_offset, end: last.end() })
    }

    /// The last of the ranges.
    pub(crate) fn last_range(&self) -> ByteRange {
        self.ranges().last().unwrap_or_default()
    }

    /// Calls `each` with the memory of a range of the file, piece by piece.
    fn each_piece(&self, range: ByteRange, mut each: impl FnMut(*mut u8, usize)) {
        let segments = self.segments();
        let first = segments.partition_point(|segment| segment.end() <= range.start);
        for segment in &segments[first..] {
            if segment.file_offset >= range.end {
                break;
            }
            let start = range.start.max(segment.file_offset);
            let end = range.end.min(segment.end());
            each(segment.at(start), (end - start) as usize);
        }
    }

    /// The memory of a range if it lies in one piece.
    fn one_piece(&self, range: ByteRange) -> Option<(*mut u8, usize)> {
        let segments = self.segments();
        let first = segments.partition_point(|segment| segment.end() <= range.start);
        let segment = segments.get(first)?;
        if range.start < segment.file_offset || segment.end() < range.end {
            return None;
        }
        Some((segment.at(range.start), range.length() as usize))
    }

    /// Lends the memory of a range to `send`, for reading.
    pub(crate) fn with_sources<T>(&self, range: ByteRange, send: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        if let Some((start, length)) = self.one_piece(range) {
            let _lent = self.lend();
            return send(&[source(start, length)]);
        }
        self.with_sources_of(&mut Parts::default(), |each| each(range), send)
    }

    /// Lends the memory of all ranges for which `ranges` calls its argument.
    pub(crate) fn with_sources_of<T>(
        &self,
        parts: &mut Parts,
        ranges: impl FnOnce(&mut dyn FnMut(ByteRange)),
        send: impl FnOnce(&[IoSlice<'_>]) -> T,
    ) -> T {
        let _lent = self.lend();
        let mut sources = std::mem::take(&mut parts.sources);
        ranges(&mut |range| {
            self.each_piece(range, |start, length| sources.push(source(start, length)));
        });
        let sent = send(&sources);
        sources.clear();
        parts.sources = sources.into_iter().map(|_| unreachable!("the list is empty")).collect();
        sent
    }

    /// Lends the memory of a range to `receive`, for writing.
    pub(crate) fn with_targets<T>(
        &self,
        range: ByteRange,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
    ) -> T {
        if let Some((start, length)) = self.one_piece(range) {
            let _lent = self.lend_for_writes();
            return receive(&mut [target(start, length)]);
        }
        self.with_targets_of(&mut Parts::default(), |each| each(range), receive)
    }

    /// Lends the memory of all ranges for which `ranges` calls its argument, in the order of the file.
    pub(crate) fn with_targets_of<T>(
        &self,
        parts: &mut Parts,
        ranges: impl FnOnce(&mut dyn FnMut(ByteRange)),
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
    ) -> T {
        let _lent = self.lend_for_writes();
        let mut targets = std::mem::take(&mut parts.targets);
        let mut from = 0;
        ranges(&mut |range| {
            assert!(range.start >= from, "nothing is received twice into the same memory");
            from = range.end;
            self.each_piece(range, |start, length| targets.push(target(start, length)));
        });
        let received = receive(&mut targets);
        targets.clear();
        parts.targets = targets.into_iter().map(|_| unreachable!("the list is empty")).collect();
        received
    }

    /// The bytes of a range.
    pub(crate) fn copied(&self, range: ByteRange) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.length() as usize);
        self.with_sources(range, |sources| {
            sources.iter().for_each(|source| bytes.extend_from_slice(source));
        });
        bytes
    }

    /// Copies bytes to their place, from an offset on.
    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        self.with_targets(ByteRange { start: offset, end: offset + bytes.len() as u64 }, |targets| {
            for target in targets {
                let (now, later) = rest.split_at(target.len());
                target.copy_from_slice(now);
                rest = later;
            }
        });
    }

    fn lend(&self) -> Lent<'_> {
        assert!(!self.lent.replace(true), "the memory of a transfer is lent to one at a time");
        Lent(&self.lent)
    }

    fn lend_for_writes(&self) -> Lent<'_> {
        assert!(self.writable, "nothing is received into what is only read");
        self.lend()
    }
}

/// While it lives, its holder alone uses the memory.
struct Lent<'a>(&'a Cell<bool>);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// For [`Memory`] alone: it holds a [`Lent`] as long as the slice is used, and no caller keeps the slice.
fn source<'s>(start: *mut u8, length: usize) -> IoSlice<'s> {
    // SAFETY: a part of a segment, which is borrowed for longer; it is lent to nobody else.
    IoSlice::new(unsafe { std::slice::from_raw_parts(start, length) })
}

/// As [`source`], of memory that is writable; no two of one loan overlap.
fn target<'s>(start: *mut u8, length: usize) -> IoSliceMut<'s> {
    // SAFETY: as in `source`; it was borrowed exclusively.
    IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start, length) })
}

fn one_behind_the_other(parts: impl Iterator<Item = (*mut u8, usize)>, offset: u64) -> Vec<Segment> {
    let mut at = offset;
    let segments = parts.filter(|part| part.1 > 0).map(|(start, length)| {
        let segment = Segment { file_offset: at, start, length };
        // The caller that checks the range refuses a sum beyond 64 bits.
        at = at.saturating_add(length as u64);
        segment
    });
    segments.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn vectored_memory_is_found_by_offset() {
        let (first, second, third) = ([1u8; 3], [2u8; 4], [3u8; 5]);
        let slices = [IoSlice::new(&first), IoSlice::new(&[]), IoSlice::new(&second), IoSlice::new(&third)];
        let mut memory = Memory::of_slices(&slices, 10);
        assert_eq!(memory.bytes(), 12);
        assert_eq!(memory.ranges().collect::<Vec<_>>(), [range(10, 22)]);
        assert_eq!(memory.copied(range(12, 18)), [1, 2, 2, 2, 2, 3]);
        assert_eq!(memory.whole().copied(range(12, 18)), [1, 2, 2, 2, 2, 3]);
        assert_eq!(memory.clamped(5).copied(range(10, 22)), [1, 1, 1, 2, 2]);
        assert!(memory.one_piece(range(12, 14)).is_none());
        assert_eq!(memory.one_piece(range(13, 17)).unwrap().1, 4);
    }

    #[test]
    fn gaps_part_ranges() {
        let bytes: Vec<u8> = (0..10).collect();
        let memory = Memory::of_ranges(&bytes, &[0..4, 4..8, 9..10]);
        assert_eq!(memory.ranges().collect::<Vec<_>>(), [range(0, 8), range(9, 10)]);
        assert_eq!((memory.hull(), memory.last_range()), (Some(range(0, 10)), range(9, 10)));
        assert_eq!(memory.copied(range(3, 10)), [3, 4, 5, 6, 7, 9]);
    }

    #[test]
    fn bytes_arrive_in_all_buffers_that_they_belong_to() {
        let (mut first, mut second) = ([0u8; 3], [0u8; 3]);
        let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let memory = Memory::of_slices_mut(&mut buffers, 100);
        memory.fill(102, &[7, 8]);
        let mut parts = Parts::default();
        let ends = |each: &mut dyn FnMut(ByteRange)| {
            each(range(100, 101));
            each(range(105, 106));
        };
        memory.with_targets_of(&mut parts, ends, |targets| targets.iter_mut().for_each(|end| end.fill(1)));
        assert_eq!((first, second), ([1, 0, 7], [8, 0, 1]));
    }

    #[test]
    #[should_panic(expected = "received twice")]
    fn ranges_that_overlap_are_not_lent_for_writes() {
        let mut buffer = [0u8; 8];
        let memory = Memory::of_slice(&mut buffer, 0);
        let twice = |each: &mut dyn FnMut(ByteRange)| {
            each(range(0, 4));
            each(range(3, 8));
        };
        memory.with_targets_of(&mut Parts::default(), twice, |_| {});
    }

    #[test]
    #[should_panic(expected = "only read")]
    fn what_is_only_read_is_not_lent_for_writes() {
        Memory::of_bytes(&[1, 2], 0).fill(0, &[3]);
    }

    #[test]
    #[should_panic(expected = "one at a time")]
    fn what_is_lent_is_not_lent_again() {
        let mut buffer = [0u8; 8];
        let memory = Memory::of_slice(&mut buffer, 0);
        memory.with_targets(range(0, 8), |_| memory.with_sources(range(0, 8), |_| {}));
    }
}

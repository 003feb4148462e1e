//! Where in the caller's memory a file's bytes lie during one transfer.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use ramlace_base::ByteRange;

/// Bytes that lie together in the file and in memory.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) file_offset: u64,
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
}

impl Segment {
    fn end(&self) -> u64 {
        self.file_offset + self.length as u64
    }
}

enum Segments {
    One([Segment; 1]),
    Many(Vec<Segment>),
}

/// The memory of one transfer: segments in the order of the file, which do not overlap.
pub(crate) struct Memory<'a> {
    segments: Segments,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> Memory<'a> {
    /// No memory, for requests that carry no data.
    pub(crate) const NONE: Memory<'static> = Memory {
        segments: Segments::One([Segment { file_offset: 0, start: std::ptr::null_mut(), length: 0 }]),
        lives: PhantomData,
    };

    pub(crate) fn of_slice(buffer: &'a mut [u8], offset: u64) -> Memory<'a> {
        Memory::of_raw(buffer.as_mut_ptr(), buffer.len(), offset)
    }

    pub(crate) fn of_bytes(bytes: &'a [u8], offset: u64) -> Memory<'a> {
        Memory::of_raw(bytes.as_ptr().cast_mut(), bytes.len(), offset)
    }

    pub(crate) fn of_raw(start: *mut u8, length: usize, file_offset: u64) -> Memory<'a> {
        Memory { segments: Segments::One([Segment { file_offset, start, length }]), lives: PhantomData }
    }

    pub(crate) fn of_slices_mut(buffers: &'a mut [IoSliceMut<'_>], offset: u64) -> Memory<'a> {
        Memory::of_parts(buffers.iter_mut().map(|buffer| (buffer.as_mut_ptr(), buffer.len())), offset)
    }

    pub(crate) fn of_slices(buffers: &'a [IoSlice<'_>], offset: u64) -> Memory<'a> {
        Memory::of_parts(buffers.iter().map(|buffer| (buffer.as_ptr().cast_mut(), buffer.len())), offset)
    }

    fn of_parts(parts: impl Iterator<Item = (*mut u8, usize)>, offset: u64) -> Memory<'a> {
        let mut at = offset;
        let segments = parts.filter(|part| part.1 > 0).map(|(start, length)| {
            let segment = Segment { file_offset: at, start, length };
            // A sum beyond 64 bits is refused by whoever checks the range.
            at = at.saturating_add(length as u64);
            segment
        });
        Memory::of_segments(segments.collect())
    }

    /// Segments in the order of the file; there may be gaps between them.
    pub(crate) fn of_segments(segments: Vec<Segment>) -> Memory<'a> {
        Memory { segments: Segments::Many(segments), lives: PhantomData }
    }

    fn segments(&self) -> &[Segment] {
        match &self.segments {
            Segments::One(one) => one,
            Segments::Many(many) => many,
        }
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        self.segments().iter().map(|segment| segment.length).sum()
    }

    /// The first `bytes` bytes.
    pub(crate) fn clamped(&self, bytes: usize) -> Memory<'a> {
        let mut left = bytes;
        let clamp = |segment: &Segment| {
            let length = segment.length.min(left);
            left -= length;
            Segment { length, ..*segment }
        };
        let segments = match &self.segments {
            Segments::One([one]) => Segments::One([Segment { length: one.length.min(bytes), ..*one }]),
            Segments::Many(many) => {
                Segments::Many(many.iter().map(clamp).filter(|segment| segment.length > 0).collect())
            }
        };
        Memory { segments, lives: PhantomData }
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
            // SAFETY: the offset lies within the segment.
            each(
                unsafe { segment.start.add((start - segment.file_offset) as usize) },
                (end - start) as usize,
            );
        }
    }

    /// Adds the memory of a range, to be read from.
    ///
    /// # Safety
    /// The memory must be valid for reads as long as the slices are used.
    pub(crate) unsafe fn push_slices(&self, range: ByteRange, slices: &mut Vec<IoSlice<'static>>) {
        self.each_piece(range, |start, length| {
            // SAFETY: the caller's promise.
            slices.push(IoSlice::new(unsafe { std::slice::from_raw_parts(start, length) }));
        });
    }

    /// Adds the memory of a range, to be written to.
    ///
    /// # Safety
    /// The memory must be valid for writes as long as the slices are used.
    pub(crate) unsafe fn push_slices_mut(&self, range: ByteRange, slices: &mut Vec<IoSliceMut<'static>>) {
        self.each_piece(range, |start, length| {
            // SAFETY: the caller's promise.
            slices.push(IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start, length) }));
        });
    }

    /// Copies bytes to where they lie from an offset on.
    ///
    /// # Safety
    /// The memory must be valid for writes.
    pub(crate) unsafe fn fill(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        self.each_piece(ByteRange { start: offset, end: offset + bytes.len() as u64 }, |start, length| {
            let (now, later) = rest.split_at(length);
            // SAFETY: the caller's promise; the caller's bytes lie elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), start, length) };
            rest = later;
        });
    }

    /// The memory of a range when it lies in one piece.
    pub(crate) fn one_piece(&self, range: ByteRange) -> Option<(*mut u8, usize)> {
        let segments = self.segments();
        let first = segments.partition_point(|segment| segment.end() <= range.start);
        let segment = segments.get(first)?;
        if range.start < segment.file_offset || segment.end() < range.end {
            return None;
        }
        // SAFETY: the offset lies within the segment.
        let start = unsafe { segment.start.add((range.start - segment.file_offset) as usize) };
        Some((start, range.length() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectored_memory_is_found_by_offset() {
        let (first, second, third) = ([1u8; 3], [2u8; 4], [3u8; 5]);
        let slices = [IoSlice::new(&first), IoSlice::new(&[]), IoSlice::new(&second), IoSlice::new(&third)];
        let memory = Memory::of_slices(&slices, 10);
        assert_eq!(memory.bytes(), 12);
        assert_eq!(memory.ranges().collect::<Vec<_>>(), [ByteRange { start: 10, end: 22 }]);
        let collect = |memory: &Memory<'_>, start, end| {
            let mut found = Vec::new();
            // SAFETY: the arrays outlive the slices.
            unsafe { memory.push_slices(ByteRange { start, end }, &mut found) };
            found.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>()
        };
        assert_eq!(collect(&memory, 12, 18), [1, 2, 2, 2, 2, 3]);
        assert_eq!(collect(&memory.clamped(5), 10, 22), [1, 1, 1, 2, 2]);
        assert!(memory.one_piece(ByteRange { start: 12, end: 14 }).is_none());
        assert_eq!(memory.one_piece(ByteRange { start: 13, end: 17 }).unwrap().1, 4);
    }

    #[test]
    fn gaps_part_ranges() {
        let segment = |file_offset, length| Segment { file_offset, start: std::ptr::null_mut(), length };
        let memory = Memory::of_segments(vec![segment(0, 4), segment(4, 4), segment(9, 1)]);
        let ranges: Vec<ByteRange> = memory.ranges().collect();
        assert_eq!(ranges, [ByteRange { start: 0, end: 8 }, ByteRange { start: 9, end: 10 }]);
    }
}

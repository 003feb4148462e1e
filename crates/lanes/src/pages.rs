//! The pages that ranges of bytes touch, and which of them are recalled together.

use ramlace_base::{ByteRange, limits};

use crate::ranges::RangeSet;

/// The unit in which a kernel caches and drops.
pub const PAGE_BYTES: u64 = 4096;

/// All bytes of a place.
pub(crate) const WHOLE: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// The range to recall for `part`: directly behind earlier recalls, as much again ahead.
pub(crate) fn ahead(holes: &RangeSet, part: ByteRange) -> ByteRange {
    let before = holes.run_that_ends_at(part.start).map_or(0, ByteRange::length);
    let more = before.min(limits::DATA_RECALL_AHEAD_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
    ByteRange { start: part.start, end: part.end.saturating_add(more) }
}

pub(crate) fn whole_pages(range: ByteRange) -> ByteRange {
    let start = range.start / PAGE_BYTES * PAGE_BYTES;
    let end = range.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
    ByteRange { start, end }
}

/// The pages that ranges touch, joined where they meet, and further until they are few enough to be recalled one by one.
pub(crate) fn recalled_together(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut joined: Vec<ByteRange> = Vec::new();
    for pages in ranges.iter().filter(|range| !range.is_empty()).map(|range| whole_pages(*range)) {
        match joined.last_mut() {
            Some(last) if last.end >= pages.start => last.end = last.end.max(pages.end),
            _ => joined.push(pages),
        }
    }
    few(&joined)
}

/// Ascending ranges, joined across the gaps between them until they are few enough to be recalled one by one.
pub(crate) fn few(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let together = ranges.len().div_ceil(limits::DATA_RECALLS_PER_CHANGE_MAX).max(1);
    let hull = |some: &[ByteRange]| ByteRange { start: some[0].start, end: some[some.len() - 1].end };
    ranges.chunks(together).map(hull).collect()
}

/// The smallest range that has all of these.
pub(crate) fn hull(ranges: impl Iterator<Item = ByteRange>) -> ByteRange {
    let joined = |all: ByteRange, range: ByteRange| ByteRange {
        start: all.start.min(range.start),
        end: all.end.max(range.end),
    };
    ranges.reduce(joined).unwrap_or_default()
}

/// The pages that lie in a range with all their bytes.
pub(crate) fn inner_pages(range: ByteRange) -> ByteRange {
    ByteRange {
        start: range.start.next_multiple_of(PAGE_BYTES),
        end: if range.end == u64::MAX { range.end } else { range.end / PAGE_BYTES * PAGE_BYTES },
    }
}

/// The pages that have bytes of a range.
pub(crate) fn pages_of(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let first = range.start / PAGE_BYTES;
    let behind = if range.is_empty() { first } else { range.end.div_ceil(PAGE_BYTES) };
    (first..behind).map(page_at)
}

/// The pages of which a range has a part.
pub(crate) fn edges(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let first = (!range.start.is_multiple_of(PAGE_BYTES)).then(|| page_at(range.start / PAGE_BYTES));
    let ends_inside = !range.end.is_multiple_of(PAGE_BYTES) && range.end != u64::MAX;
    let last = ends_inside.then(|| page_at(range.end / PAGE_BYTES));
    first.into_iter().chain(last.filter(|last| Some(*last) != first))
}

pub(crate) fn page_at(page: u64) -> ByteRange {
    ByteRange { start: page * PAGE_BYTES, end: (page + 1) * PAGE_BYTES }
}

//! The pages of a file that were read since its last write through pages was answered: in these the kernel may have
//! older bytes than that write's ([`crate::pages`]).

use std::collections::HashMap;

use ramlace_base::ByteRange;

use crate::in_flight::whole_pages;

/// Up to so many ranges are noted one by one.
const RANGES_MAX: usize = 16;
/// The number of pages for which the reading request is noted.
const PAGES_MAX: usize = 512;

/// Reads of pages. Requests have the kernel's numbers, which grow in the order in which it sends them.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    ranges: Vec<ByteRange>,
    /// The newest request, by the page's number.
    newest: HashMap<u64, Newest>,
}

/// The newest request that reads a page, and how many drops of the file were over when it arrived, if none was under
/// way.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    unique: u64,
    drops_over: Option<u64>,
}

/// Whether the kernel holds the lock of the last page of a write until that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It does not.
    No,
    /// Only if it has dropped the page by itself, because it needed memory.
    Hardly,
    Perhaps,
}

impl Reads {
    /// Notes one more range; if there are too many, extends the last one. `unique`: the request's number, if
    /// programs may be writing. `drops_over`: so many drops of the file are over, and none is under way.
    pub(crate) fn note(&mut self, range: ByteRange, unique: Option<u64>, drops_over: Option<u64>) {
        let is_full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if is_full || ranges_touch(*last, range) => {
                *last = ByteRange { start: last.start.min(range.start), end: last.end.max(range.end) };
            }
            _ => self.ranges.push(range),
        }
        let Some(unique) = unique else { return };
        for page in pages_of(range) {
            if self.newest.len() >= PAGES_MAX && !self.newest.contains_key(&page) {
                return;
            }
            let newest = self.newest.entry(page).or_default();
            if unique > newest.unique {
                *newest = Newest { unique, drops_over };
            }
        }
    }

    /// Whether some of these bytes may have been read.
    pub(crate) fn meet(&self, range: ByteRange) -> bool {
        self.ranges.iter().any(|other| !other.intersection(range).is_empty())
    }

    /// Whether the kernel holds the lock of the last page of an unanswered write with this number, for which so many
    /// drops had begun when it arrived. It holds a page that the write does not fill and that was not there, and
    /// reads no page that it holds. So a later read shows that it does not; and an earlier one has brought the
    /// page, which is there unless it was dropped in between.
    pub(crate) fn hold(&self, range: ByteRange, unique: u64, drops_begun: u64) -> Held {
        let Some(last) = pages_of(range).last() else { return Held::No };
        let page = rustix::param::page_size() as u64;
        if range.start <= last * page && range.end == (last + 1) * page {
            return Held::No;
        }
        match self.newest.get(&last) {
            Some(read) if read.unique > unique => Held::No,
            Some(read) if read.drops_over == Some(drops_begun) => Held::Hardly,
            _ => Held::Perhaps,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.newest.clear();
    }
}

fn pages_of(range: ByteRange) -> std::ops::Range<u64> {
    let page = rustix::param::page_size() as u64;
    let pages = whole_pages(range);
    pages.start / page..pages.end / page
}

fn ranges_touch(one: ByteRange, other: ByteRange) -> bool {
    one.start <= other.end && other.start <= one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn many_reads_are_noted_as_fewer_longer_ones() {
        let mut reads = Reads::default();
        for at in 0..100 {
            reads.note(range(2 * at * PAGE, (2 * at + 1) * PAGE), Some(at), None);
        }
        assert!(reads.ranges.len() <= RANGES_MAX);
        assert!(reads.meet(range(198 * PAGE, 198 * PAGE + 1)), "the last one");
        reads.note(range(0, 2 * PAGES_MAX as u64 * PAGE), Some(1), None);
        assert_eq!(reads.newest.len(), PAGES_MAX);
        reads.clear();
        assert!(!reads.meet(range(0, u64::MAX)));
    }

    // SEMANTICS 116
    #[test]
    fn a_page_that_was_read_behind_a_write_is_not_held_by_it() {
        let mut reads = Reads::default();
        reads.note(range(0, 2 * PAGE), Some(10), Some(3));
        assert_eq!(reads.hold(range(100, PAGE + 8), 8, 4), Held::No);
        assert_eq!(reads.hold(range(100, PAGE + 8), 12, 4), Held::Perhaps, "it was read before, and dropped");
        assert_eq!(reads.hold(range(100, PAGE + 8), 12, 3), Held::Hardly, "it was read before");
        assert_eq!(reads.hold(range(PAGE, 2 * PAGE + 8), 8, 3), Held::Perhaps, "the last page alone counts");
        assert_eq!(reads.hold(range(100, 2 * PAGE), 12, 4), Held::No, "it fills the page");
        assert_eq!(reads.hold(range(PAGE + 1, 2 * PAGE), 12, 4), Held::Perhaps);
        reads.note(range(PAGE, 2 * PAGE), Some(14), Some(5));
        reads.note(range(PAGE, 2 * PAGE), Some(6), Some(6));
        reads.note(range(PAGE, 2 * PAGE), None, Some(6));
        assert_eq!(reads.hold(range(100, PAGE + 8), 12, 6), Held::No);
        assert_eq!(reads.hold(range(100, PAGE + 8), 16, 5), Held::Hardly);
        reads.note(range(PAGE, 2 * PAGE), Some(18), None);
        assert_eq!(reads.hold(range(100, PAGE + 8), 20, 5), Held::Perhaps, "a drop was under way");
    }
}

//! The pages of a file that were read since its last write through pages was answered: the kernel may have
//! older bytes in these.

use std::collections::HashMap;

use ramlace_base::ByteRange;

use crate::under_way::whole_pages;

/// Up to so many ranges are noted one by one.
const RANGES_MAX: usize = 16;
/// The number of pages for which the reading request is noted.
const PAGES_MAX: usize = 512;

/// Reads of pages. Requests have the kernel's numbers, which grow in the order in which it sends them.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    ranges: Vec<ByteRange>,
    /// The newest request, by the page's number.
    newest: HashMap<u64, u64>,
}

impl Reads {
    /// Notes one more range; if there are too many, extends the last one. `unique`: the request's number, if
    /// programs may be writing.
    pub(crate) fn note(&mut self, range: ByteRange, unique: Option<u64>) {
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
            *newest = unique.max(*newest);
        }
    }

    /// Whether some of these bytes may have been read.
    pub(crate) fn meet(&self, range: ByteRange) -> bool {
        self.ranges.iter().any(|other| !other.intersection(range).is_empty())
    }

    /// Whether the kernel certainly does not hold the lock of the last page of an unanswered write with this
    /// number. It holds a page that the write does not fill, and reads no page that it holds: so a later read
    /// request shows that it does not.
    pub(crate) fn show_unlocked(&self, range: ByteRange, unique: u64) -> bool {
        let Some(last) = pages_of(range).last() else { return true };
        let page = rustix::param::page_size() as u64;
        let fills = range.start <= last * page && range.end == (last + 1) * page;
        fills || self.newest.get(&last).is_some_and(|read| *read > unique)
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
            reads.note(range(2 * at * PAGE, (2 * at + 1) * PAGE), Some(at));
        }
        assert!(reads.ranges.len() <= RANGES_MAX);
        assert!(reads.meet(range(198 * PAGE, 198 * PAGE + 1)), "the last one");
        reads.note(range(0, 2 * PAGES_MAX as u64 * PAGE), Some(1));
        assert_eq!(reads.newest.len(), PAGES_MAX);
        reads.clear();
        assert!(!reads.meet(range(0, u64::MAX)));
    }

    // SEMANTICS 116
    #[test]
    fn a_page_that_was_read_behind_a_write_is_not_held_by_it() {
        let mut reads = Reads::default();
        reads.note(range(0, 2 * PAGE), Some(10));
        assert!(reads.show_unlocked(range(100, PAGE + 8), 8));
        assert!(!reads.show_unlocked(range(100, PAGE + 8), 12), "it was read before");
        assert!(!reads.show_unlocked(range(PAGE, 2 * PAGE + 8), 8), "the last page alone counts");
        assert!(reads.show_unlocked(range(100, 2 * PAGE), 12), "it fills the page");
        assert!(!reads.show_unlocked(range(PAGE + 1, 2 * PAGE), 12));
        reads.note(range(PAGE, 2 * PAGE), Some(14));
        reads.note(range(PAGE, 2 * PAGE), Some(6));
        reads.note(range(PAGE, 2 * PAGE), None);
        assert!(reads.show_unlocked(range(100, PAGE + 8), 12));
    }
}

//! A set of bytes, as ranges that do not touch.

use std::collections::BTreeMap;

use ramlace_base::ByteRange;

/// Ranges by their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Whether no byte is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many ranges it has.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.ends.len()
    }

    /// Adds a range.
    pub fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let ByteRange { mut start, mut end } = range;
        // Those that touch it begin at its end, at the latest.
        while let Some((other, its_end)) = self.last_from(end).filter(|(_, its_end)| *its_end >= start) {
            self.ends.remove(&other);
            start = start.min(other);
            end = end.max(its_end);
        }
        self.ends.insert(start, end);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let last = range.end - 1;
        while let Some((start, end)) = self.last_from(last).filter(|(_, end)| *end > range.start) {
            self.ends.remove(&start);
            if start < range.start {
                self.ends.insert(start, range.start);
            }
            if end > range.end {
                self.ends.insert(range.end, end);
            }
        }
    }

    /// Whether all bytes of the range are in it.
    #[must_use]
    pub fn covers(&self, range: ByteRange) -> bool {
        range.is_empty() || self.last_from(range.start).is_some_and(|(_, end)| end >= range.end)
    }

    /// Whether some byte of the range is in it.
    #[must_use]
    pub fn meets(&self, range: ByteRange) -> bool {
        !range.is_empty() && self.last_from(range.end - 1).is_some_and(|(_, end)| end > range.start)
    }

    /// The smallest range that has all bytes of `range` that are not in the set; `None`: there are none.
    #[must_use]
    pub fn missing(&self, range: ByteRange) -> Option<ByteRange> {
        let ByteRange { mut start, mut end } = range;
        if let Some((_, its_end)) = self.last_from(start).filter(|(_, its_end)| *its_end > start) {
            start = its_end;
        }
        if start >= end {
            return None;
        }
        if let Some((its_start, _)) = self.last_from(end - 1).filter(|(_, its_end)| *its_end >= end) {
            end = its_start;
        }
        (start < end).then_some(ByteRange { start, end })
    }

    /// The parts of a range that are in the set.
    pub fn within(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let from = self.last_from(range.start).map_or(range.start, |(start, _)| start);
        let runs = (from < range.end).then(|| self.ends.range(from..range.end)).into_iter().flatten();
        let parts = runs.map(move |(start, end)| ByteRange { start: *start, end: *end }.intersection(range));
        parts.filter(|part| !part.is_empty())
    }

    /// The parts of a range that are not in the set.
    pub fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        let mut start = range.start;
        for run in self.within(range) {
            gaps.push(ByteRange { start, end: run.start });
            start = run.end;
        }
        gaps.push(ByteRange { start, end: range.end });
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }

    /// The range of the set that ends here.
    #[must_use]
    pub fn run_that_ends_at(&self, end: u64) -> Option<ByteRange> {
        let (start, its_end) = self.last_from(end.checked_sub(1)?)?;
        (its_end == end).then_some(ByteRange { start, end })
    }

    /// Takes the smallest range out of those that may go. Returns whether there was one.
    pub fn drop_smallest(&mut self, may_go: impl Fn(ByteRange) -> bool) -> bool {
        let smallest = self.iter().filter(|run| may_go(*run)).min_by_key(|run| run.length());
        smallest.is_some_and(|run| self.ends.remove(&run.start).is_some())
    }

    /// The smallest gap between two ranges, of those that are meant.
    #[must_use]
    pub fn smallest_gap(&self, is_meant: impl Fn(ByteRange) -> bool) -> Option<ByteRange> {
        let between = self.iter().zip(self.iter().skip(1));
        let gaps = between.map(|(before, behind)| ByteRange { start: before.end, end: behind.start });
        gaps.filter(|gap| is_meant(*gap)).min_by_key(|gap| gap.length())
    }

    /// Adds the smallest gaps until there are no more ranges than this.
    pub fn limit_runs(&mut self, most: usize) {
        while self.runs() > most
            && let Some(gap) = self.smallest_gap(|_| true)
        {
            self.insert(gap);
        }
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> {
        self.ends.iter().map(|(start, end)| ByteRange { start: *start, end: *end })
    }

    /// The range that begins last, here or before.
    fn last_from(&self, at: u64) -> Option<(u64, u64)> {
        self.ends.range(..=at).next_back().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = ByteRange> {
        (0..40_u64, 0..12_u64).prop_map(|(start, length)| ByteRange { start, end: start + length })
    }

    proptest! {
        #[test]
        fn it_is_what_a_set_of_numbers_is(steps in prop::collection::vec((any::<bool>(), range()), 0..20), asked in range()) {
            let (mut set, mut model) = (RangeSet::default(), std::collections::BTreeSet::new());
            for (insert, range) in steps {
                if insert {
                    set.insert(range);
                    model.extend(range.start..range.end);
                } else {
                    set.remove(range);
                    (range.start..range.end).for_each(|byte| _ = model.remove(&byte));
                }
            }
            let missing: Vec<u64> = (asked.start..asked.end).filter(|byte| !model.contains(byte)).collect();
            prop_assert_eq!(set.covers(asked), missing.is_empty());
            prop_assert_eq!(set.meets(asked), missing.len() as u64 != asked.length());
            let around = missing.first().map(|first| ByteRange { start: *first, end: missing[missing.len() - 1] + 1 });
            prop_assert_eq!(set.missing(asked), around);
            let inside: Vec<u64> = set.within(asked).flat_map(|part| part.start..part.end).collect();
            prop_assert_eq!(inside, (asked.start..asked.end).filter(|byte| model.contains(byte)).collect::<Vec<_>>());
            let starts = model.iter().filter(|byte| **byte == 0 || !model.contains(&(**byte - 1))).count();
            prop_assert_eq!(set.runs(), starts);
            let ends = (0..60).filter(|end| set.run_that_ends_at(*end).is_some()).count();
            prop_assert_eq!(ends, starts);
            let whole = ByteRange { start: 0, end: 60 };
            let gaps = set.gaps(whole).into_iter().filter(|gap| gap.start != 0 && gap.end != 60);
            prop_assert_eq!(set.smallest_gap(|_| true), gaps.min_by_key(|gap| gap.length()));
            let before = set.clone();
            let dropped = set.drop_smallest(|run| run.start >= asked.start);
            let gone: Vec<ByteRange> = before.iter().filter(|run| !set.covers(*run)).collect();
            let meant = before.iter().filter(|run| run.start >= asked.start);
            prop_assert_eq!(gone, meant.min_by_key(|run| run.length()).into_iter().collect::<Vec<_>>());
            prop_assert_eq!(dropped, set != before);
        }
    }
}

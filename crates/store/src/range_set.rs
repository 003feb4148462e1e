//! A set of bytes as sorted, disjoint ranges.

use ramlace_base::ByteRange;

/// Sorted, disjoint, non-adjacent, non-empty ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<ByteRange>,
}

impl RangeSet {
    /// Whether every byte of `range` is in the set.
    pub(crate) fn contains(&self, range: ByteRange) -> bool {
        if range.is_empty() {
            return true;
        }
        let index = self.first_ending_after(range.start);
        self.ranges.get(index).is_some_and(|found| found.start <= range.start && range.end <= found.end)
    }

    /// The parts of `range` that are not in the set, in order.
    pub(crate) fn missing(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for found in &self.ranges[self.first_ending_after(range.start)..] {
            if found.start >= range.end {
                break;
            }
            if at < found.start {
                missing.push(ByteRange { start: at, end: found.start });
            }
            at = found.end;
        }
        if at < range.end {
            missing.push(ByteRange { start: at, end: range.end });
        }
        missing
    }

    /// Adds `range`.
    pub(crate) fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|found| found.end < range.start);
        let last = self.ranges.partition_point(|found| found.start <= range.end);
        let joined = self.ranges[first..last].iter().fold(range, |joined, found| ByteRange {
            start: joined.start.min(found.start),
            end: joined.end.max(found.end),
        });
        self.ranges.splice(first..last, [joined]);
    }

    /// Takes `range` out.
    pub(crate) fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.first_ending_after(range.start);
        let last = self.ranges.partition_point(|found| found.start < range.end);
        if first >= last {
            return;
        }
        let before = ByteRange { start: self.ranges[first].start, end: range.start };
        let after = ByteRange { start: range.end, end: self.ranges[last - 1].end };
        let kept = [before, after].into_iter().filter(|part| !part.is_empty());
        self.ranges.splice(first..last, kept);
    }

    /// Its ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ByteRange> {
        self.ranges.iter()
    }

    /// How many bytes are in the set.
    pub(crate) fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.length()).sum()
    }

    fn first_ending_after(&self, start: u64) -> usize {
        self.ranges.partition_point(|found| found.end <= start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(set: &RangeSet) -> Vec<bool> {
        (0..64).map(|at| set.contains(ByteRange { start: at, end: at + 1 })).collect()
    }

    proptest! {
        #[test]
        fn behaves_as_a_row_of_bits(steps in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..64), 0..40)) {
            let (mut set, mut model) = (RangeSet::default(), vec![false; 64]);
            for (add, a, b) in steps {
                let range = ByteRange { start: a.min(b), end: a.max(b) };
                if add { set.insert(range) } else { set.remove(range) }
                model[range.start as usize..range.end as usize].fill(add);
                prop_assert_eq!(&bits(&set), &model);
                prop_assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert!(set.ranges.iter().all(|range| !range.is_empty()));
                let missing: u64 = set.missing(ByteRange { start: 3, end: 61 }).iter().map(|m| m.length()).sum();
                prop_assert_eq!(missing, model[3..61].iter().filter(|bit| !**bit).count() as u64);
                prop_assert_eq!(set.total(), model.iter().filter(|bit| **bit).count() as u64);
            }
        }
    }
}

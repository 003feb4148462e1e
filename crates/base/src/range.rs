//! Half-open ranges of bytes.

use serde::{Deserialize, Serialize};

/// The bytes `start..end` of something; empty when both are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl ByteRange {
    /// `length` bytes from `start`; `None` when the end does not fit 64 bits.
    #[must_use]
    pub fn at(start: u64, length: u64) -> Option<ByteRange> {
        start.checked_add(length).map(|end| ByteRange { start, end })
    }

    /// How many bytes.
    #[must_use]
    pub fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes that both have.
    #[must_use]
    pub fn intersection(self, other: ByteRange) -> ByteRange {
        let start = self.start.max(other.start);
        ByteRange { start, end: self.end.min(other.end).max(start) }
    }

    /// The smallest range of whole `unit`s that covers this one; `unit` is a power of two.
    #[must_use]
    pub fn aligned_outward(self, unit: u64) -> ByteRange {
        assert!(unit.is_power_of_two(), "{unit} is no power of two");
        ByteRange { start: self.start & !(unit - 1), end: self.end.next_multiple_of(unit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_grow() {
        let range = ByteRange::at(10, 20).unwrap();
        assert_eq!(range.intersection(ByteRange { start: 25, end: 90 }).length(), 5);
        assert!(range.intersection(ByteRange { start: 30, end: 90 }).is_empty());
        assert_eq!(range.aligned_outward(16), ByteRange { start: 0, end: 32 });
        assert_eq!(ByteRange::at(u64::MAX, 1), None);
    }
}

//! Which bytes of a lane are in the store, which are holes, and which were lost with another server.

use std::collections::BTreeSet;

use ramlace_base::ByteRange;
use serde::{Deserialize, Serialize};

/// Where some bytes are. A read of a lane checks this first, and reads only bytes that are here from the store. Holes
/// within a lane that has bytes are the store's: they count as here. A chunk that was moved to a slower store will be one more of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// In this server's store.
    Here,
    /// Nowhere: they were never written, and read as zeros.
    Hole,
    /// They were written, and went with the server that had them.
    Lost,
}

/// Which bytes of a lane are lost: everything below `below` but the chunks written since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Bytes of a chunk.
    pub stripe_unit: u64,
    /// Bytes that the lane had when they were lost.
    pub below: u64,
    /// Chunks of the lane that were written whole since.
    pub recovered: BTreeSet<u64>,
}

impl Loss {
    /// The lane had bytes up to `length` when they were lost.
    #[must_use]
    pub fn new(stripe_unit: u64, length: u64) -> Loss {
        Loss { stripe_unit, below: length, recovered: BTreeSet::new() }
    }

    /// Whether some byte of the range is lost.
    #[must_use]
    pub fn touches(&self, range: ByteRange) -> bool {
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        !lost.is_empty() && self.chunks(lost).any(|chunk| !self.recovered.contains(&chunk))
    }

    /// Whether nothing is lost any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.touches(ByteRange { start: 0, end: self.below })
    }

    /// Whether a write to the range leaves no byte half lost: lost chunks are written whole, as far
    /// as the lane had them.
    #[must_use]
    pub fn accepts_write(&self, range: ByteRange) -> bool {
        let whole = |chunk: u64| {
            range.start <= chunk * self.stripe_unit
                && range.end >= ((chunk + 1) * self.stripe_unit).min(self.below)
        };
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        lost.is_empty() || self.chunks(lost).all(|chunk| self.recovered.contains(&chunk) || whole(chunk))
    }

    /// Notes that the range was written; whether that changed anything.
    pub fn recover(&mut self, range: ByteRange) -> bool {
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        let before = self.recovered.len();
        if !lost.is_empty() {
            let chunks = self.chunks(lost);
            self.recovered.extend(chunks);
        }
        self.recovered.len() != before
    }

    /// Notes that the lane was cut to `length` bytes: lost bytes beyond are not a loss any more.
    pub fn cut(&mut self, length: u64) {
        self.below = self.below.min(length);
        let chunks = self.below.div_ceil(self.stripe_unit);
        self.recovered.retain(|chunk| *chunk < chunks);
    }

    fn chunks(&self, range: ByteRange) -> std::ops::Range<u64> {
        range.start / self.stripe_unit..range.end.div_ceil(self.stripe_unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn a_lost_chunk_accepts_only_a_whole_write() {
        let mut loss = Loss::new(100, 250);
        assert!(loss.touches(range(249, 251)) && !loss.touches(range(250, 400)));
        assert!(!loss.accepts_write(range(100, 199)) && !loss.accepts_write(range(150, 250)));
        assert!(loss.accepts_write(range(100, 200)) && loss.accepts_write(range(300, 301)));
        assert!(loss.recover(range(100, 200)) && !loss.recover(range(120, 130)));
        assert!(!loss.touches(range(100, 200)) && loss.touches(range(100, 201)));
        assert!(loss.accepts_write(range(120, 130)));
        // The last chunk is whole as far as the file had it.
        assert!(!loss.accepts_write(range(200, 249)) && loss.accepts_write(range(200, 250)));
        assert!(loss.recover(range(200, 250)) && !loss.is_over());
        assert!(loss.recover(range(0, 100)) && loss.is_over());
    }

    #[test]
    fn a_cut_makes_holes_of_losses() {
        let mut loss = Loss::new(100, 300);
        loss.recover(range(200, 300));
        loss.cut(150);
        assert!(loss.touches(range(0, 1)) && loss.touches(range(149, 160)));
        assert!(!loss.touches(range(150, 300)));
        assert!(loss.recovered.is_empty());
        loss.cut(0);
        assert!(loss.is_over());
    }
}

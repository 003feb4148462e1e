//! Which state of a file's bytes a copy has, by the version numbers of its lanes: so a refresh of unchanged bytes
//! transfers none of them.
//!
//! Numbers are taken before the bytes are read. So a change that the copy has may be taken for one that it
//! does not have, which costs a read, and never the reverse. Stores of programs on a server's machine into
//! mapped memory get a number when they are published.

use std::sync::Arc;

use ramlace_base::{ByteRange, Result, limits};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::coordination::{WatchAnswer, WatchChange};

use crate::bytes::file::File;
use crate::bytes::lane_numbers::LaneNumbers;
use crate::bytes::transfer::{Direction, Memory};
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;

/// The states of a copy's blocks. All blocks have the same size, except for the last one.
pub(crate) struct Seen {
    block_bytes: u64,
    /// `None`: not known.
    blocks: Vec<Option<Arc<LaneNumbers>>>,
}

impl Seen {
    /// Nothing is known yet.
    pub(crate) fn nothing(bytes: u64, block_bytes: u64) -> Seen {
        let blocks = usize::try_from(bytes.div_ceil(block_bytes)).expect("a copy fits memory");
        Seen { block_bytes, blocks: vec![None; blocks] }
    }

    /// The blocks that a range touches.
    fn around(&self, range: ByteRange) -> std::ops::Range<usize> {
        let first = range.start / self.block_bytes;
        first as usize..(range.end.div_ceil(self.block_bytes) as usize).min(self.blocks.len())
    }

    /// The oldest state that is known of all bytes of a range.
    pub(crate) fn of(&self, range: ByteRange) -> Option<LaneNumbers> {
        let mut blocks = self.blocks.get(self.around(range))?.iter();
        let mut last = blocks.next()?.as_ref()?;
        let mut oldest = LaneNumbers::clone(last);
        for block in blocks {
            let block = block.as_ref()?;
            // Most of them were read by the same call.
            if !Arc::ptr_eq(block, last) {
                oldest = oldest.older(block)?;
                last = block;
            }
        }
        Some(oldest)
    }

    /// A range was read after these numbers were taken: the blocks that lie entirely in it have this state.
    pub(crate) fn note(&mut self, range: ByteRange, bytes: u64, numbers: Option<LaneNumbers>) {
        let numbers = numbers.map(Arc::new);
        for at in self.around(range) {
            let start = at as u64 * self.block_bytes;
            let end = (start + self.block_bytes).min(bytes);
            if range.start <= start && end <= range.end {
                self.blocks[at].clone_from(&numbers);
            }
        }
    }

    /// The middle of a range, where it can be divided into two of whole blocks; `None` for one block.
    pub(crate) fn middle(&self, range: ByteRange) -> Option<u64> {
        let blocks = self.around(range);
        (blocks.len() > 1).then(|| (blocks.start + blocks.len() / 2) as u64 * self.block_bytes)
    }
}

impl File {
    /// The present numbers of the lanes that a range touches. `None` while the file is inline.
    pub(crate) fn lane_numbers(&self, range: ByteRange) -> Result<Option<LaneNumbers>> {
        self.numbers_of(range, |_| true)
    }

    /// The present number of one whole lane; `None` while the file is inline.
    pub(crate) fn lane_number(&self, lane: u16) -> Result<Option<LaneNumbers>> {
        self.numbers_of(ByteRange { start: 0, end: limits::FILE_BYTES_MAX }, |other| other == lane)
    }

    fn numbers_of(&self, range: ByteRange, wanted: impl Fn(u16) -> bool) -> Result<Option<LaneNumbers>> {
        let handle = self.handle()?;
        let ask = |size: Size| {
            if handle.open.is_inline() {
                return Ok(None);
            }
            let mut lanes = vec![None; usize::from(self.layout().width)];
            let spans = self.spans(handle, size, range)?;
            for (lane, target, span) in spans.into_iter().filter(|(lane, ..)| wanted(*lane)) {
                lanes[usize::from(lane)] = Some(self.ask_number(handle, target, span, None)?.number);
            }
            Ok(Some(LaneNumbers { generation: size.generation, lanes }))
        };
        self.with_size(handle, ask).map_err(|error| self.tell(error))
    }

    /// Whether bytes of a range may have changed since these numbers were taken.
    pub(crate) fn has_changed(&self, range: ByteRange, since: &LaneNumbers) -> Result<bool> {
        let handle = self.handle()?;
        let ask = |size: Size| {
            if handle.open.is_inline() || size.generation != since.generation {
                return Ok(true);
            }
            for (lane, target, span) in self.spans(handle, size, range)? {
                let Some(number) = since.lanes.get(usize::from(lane)).copied().flatten() else {
                    return Ok(true);
                };
                if self.ask_number(handle, target, span, Some(number))?.changed {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.with_size(handle, ask).map_err(|error| self.tell(error))
    }

    /// The lanes that a range touches: their targets, and which of their bytes.
    fn spans(
        &self,
        handle: &Handle,
        size: Size,
        range: ByteRange,
    ) -> Result<Vec<(u16, LaneTarget, ByteRange)>> {
        let map = handle.session.map()?;
        let transfer = self.transfer(handle, size, Direction::Read, Memory::none());
        let spans = (0..self.layout().width)
            .map(|lane| (lane, ramlace_layout::lane_span(self.layout(), lane, range)));
        Ok(spans
            .filter(|(_, span)| !span.is_empty())
            .map(|(lane, span)| (lane, transfer.target_in(&map, lane), span))
            .collect())
    }

    /// The number of some bytes of a lane, and whether it differs from the known one.
    fn ask_number(
        &self,
        handle: &Handle,
        target: LaneTarget,
        span: ByteRange,
        since: Option<u64>,
    ) -> Result<WatchAnswer> {
        let ByteRange { start, end } = span;
        let request = WatchChange { inode: self.inode(), lane: Some(target), start, end, since, wait: 0 };
        handle.session.ask_lane(target.slot, &request, handle.session.deadline())
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::Generation;

    use super::*;

    const UNIT: u64 = 64;

    fn numbers(generation: u64, lanes: &[Option<u64>]) -> Option<LaneNumbers> {
        Some(LaneNumbers { generation: Generation(generation), lanes: lanes.to_vec() })
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn blocks_are_known_as_far_as_they_were_read_whole() {
        let mut seen = Seen::nothing(5 * UNIT + 3, UNIT);
        assert_eq!(seen.of(range(0, 1)), None);
        seen.note(range(0, 5 * UNIT + 3), 5 * UNIT + 3, numbers(1, &[Some(7), Some(9)]));
        assert_eq!(seen.of(range(3, 5 * UNIT + 3)), numbers(1, &[Some(7), Some(9)]));
        // Covers a part of one block, and one whole block.
        seen.note(range(10, 2 * UNIT), 5 * UNIT + 3, numbers(1, &[Some(8), None]));
        assert_eq!(seen.of(range(0, UNIT)), numbers(1, &[Some(7), Some(9)]));
        assert_eq!(seen.of(range(UNIT, 2 * UNIT)), numbers(1, &[Some(8), None]));
        assert_eq!(seen.of(range(0, 2 * UNIT)), numbers(1, &[Some(7), Some(9)]));
        // The last block is shorter.
        seen.note(range(5 * UNIT, 5 * UNIT + 3), 5 * UNIT + 3, numbers(2, &[Some(20), Some(20)]));
        assert_eq!(seen.of(range(5 * UNIT, 5 * UNIT + 1)), numbers(2, &[Some(20), Some(20)]));
        assert_eq!(seen.of(range(4 * UNIT, 5 * UNIT + 1)), None, "it was cut off between them");
        seen.note(range(0, UNIT), 5 * UNIT + 3, None);
        assert_eq!(seen.of(range(0, 2)), None);
    }

    #[test]
    fn a_range_is_parted_at_a_block() {
        let seen = Seen::nothing(5 * UNIT + 3, UNIT);
        assert_eq!(seen.middle(range(0, 5 * UNIT + 3)), Some(3 * UNIT));
        assert_eq!(seen.middle(range(UNIT - 1, UNIT + 1)), Some(UNIT));
        assert_eq!(seen.middle(range(UNIT, 2 * UNIT)), None);
        assert_eq!(seen.middle(range(5 * UNIT, 5 * UNIT + 3)), None);
    }
}

//! Offsets of files and of their lanes. All of it is exact up to the last offset that 64 bits hold.

use ramlace_base::{ByteRange, Slot};
use ramlace_wire::Layout;

/// Bytes of a file that lie together in one lane and together in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The lane.
    pub lane: u16,
    /// Where they begin in the lane's file.
    pub lane_offset: u64,
    /// Where they begin in the file.
    pub file_offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// The slot of a lane in a pool of `slots` slots (more than 0).
#[must_use]
pub fn lane_slot(layout: &Layout, lane: u16, slots: u32) -> Slot {
    slot_at(layout.base_slot, layout.stride, lane, slots)
}

pub(crate) fn slot_at(base: Slot, stride: u16, lane: u16, slots: u32) -> Slot {
    let walked = u64::from(base.0) + u64::from(lane) * u64::from(stride);
    Slot((walked % u64::from(slots)) as u16)
}

/// Bytes of the lane's dense file when the file has `file_size` bytes: those of its bytes below
/// that offset that lie on this lane. A lane that the layout does not have has none.
#[must_use]
pub fn lane_length(layout: &Layout, lane: u16, file_size: u64) -> u64 {
    let (width, unit) = (u64::from(layout.width), layout.stripe_unit);
    let lane = u64::from(lane);
    if lane >= width {
        return 0;
    }
    let (whole_chunks, rest) = (file_size / unit, file_size % unit);
    let (rounds, ahead) = (whole_chunks / width, whole_chunks % width);
    let last_round = match lane.cmp(&ahead) {
        std::cmp::Ordering::Less => unit,
        std::cmp::Ordering::Equal => rest,
        std::cmp::Ordering::Greater => 0,
    };
    rounds * unit + last_round
}

/// The bytes of a lane that a range of the file touches: always one run, because a lane's
/// chunks lie densely in the order of the file.
#[must_use]
pub fn lane_span(layout: &Layout, lane: u16, range: ByteRange) -> ByteRange {
    let start = lane_length(layout, lane, range.start);
    ByteRange { start, end: lane_length(layout, lane, range.end).max(start) }
}

/// Where a byte of a lane lies in the file; `u64::MAX` when that is beyond what 64 bits hold.
#[must_use]
pub fn file_offset(layout: &Layout, lane: u16, lane_offset: u64) -> u64 {
    let unit = u128::from(layout.stripe_unit);
    let (round, within) = (u128::from(lane_offset) / unit, u128::from(lane_offset) % unit);
    let chunk = round * u128::from(layout.width) + u128::from(lane);
    u64::try_from(chunk * unit + within).unwrap_or(u64::MAX)
}

/// The pieces of a range, in the order of the file, one for each chunk that it touches.
#[must_use]
pub fn pieces(layout: &Layout, range: ByteRange) -> Pieces {
    Pieces { layout: *layout, at: range.start, end: range.end }
}

/// Iterator of [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    layout: Layout,
    at: u64,
    end: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let (width, unit) = (u64::from(self.layout.width), self.layout.stripe_unit);
        let (chunk, within) = (self.at / unit, self.at % unit);
        let piece = Piece {
            lane: (chunk % width) as u16,
            lane_offset: (chunk / width) * unit + within,
            file_offset: self.at,
            length: (unit - within).min(self.end - self.at),
        };
        self.at += piece.length;
        Some(piece)
    }
}

/// The pieces of a range with at most `piece_bytes_max` (more than 0) bytes each, in the order of
/// the file; the chunks of a file with one lane are joined, as they lie side by side.
#[must_use]
pub fn merged_pieces(layout: &Layout, range: ByteRange, piece_bytes_max: u64) -> MergedPieces {
    assert!(piece_bytes_max > 0, "a piece of no bytes would never end");
    MergedPieces { layout: *layout, at: range.start, end: range.end, piece_bytes_max }
}

/// Iterator of [`merged_pieces`].
#[derive(Clone, Debug)]
pub struct MergedPieces {
    layout: Layout,
    at: u64,
    end: u64,
    piece_bytes_max: u64,
}

impl Iterator for MergedPieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let rest = ByteRange { start: self.at, end: self.end };
        let mut piece = pieces(&self.layout, rest).next()?;
        if self.layout.width == 1 {
            piece.length = rest.length();
        }
        piece.length = piece.length.min(self.piece_bytes_max);
        self.at += piece.length;
        Some(piece)
    }
}

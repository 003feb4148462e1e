//! The requests for a range of a file: each is one run of a lane. [`crate::bytes::packing`] plans those for
//! many runs.

use ramlace_base::ByteRange;
use ramlace_wire::Layout;
use ramlace_wire::runs::LaneRuns;

use crate::session::retry::Judged;
use crate::session::sequences::Ticket;

/// Bytes of one request of a large transfer.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// The bytes of one request: one run of a lane, which may be several chunks of the file; or many runs.
pub(crate) struct Piece<'a> {
    pub(crate) lane: u16,
    /// The first byte's.
    pub(crate) lane_offset: u64,
    pub(crate) length: u64,
    /// The first byte's; the others lie behind it in the file. In a transfer of runs, where memory has no
    /// gaps: its place in memory.
    pub(crate) file_offset: u64,
    /// Set in a transfer of runs.
    packed: Option<Packed>,
    /// The number of a write; kept until it is answered, also when it is sent again.
    pub(crate) ticket: Option<Ticket<'a>>,
    pub(crate) state: State,
}

/// The part of a transfer of runs that goes in one request.
pub(crate) struct Packed {
    /// Its place in the caller's memory, in the order of the lane.
    pub(crate) memory: Vec<ByteRange>,
    /// Its place in the lane; `None`: one run.
    pub(crate) runs: Option<LaneRuns>,
}

pub(crate) enum State {
    Waiting,
    Done,
    Failed(Judged),
}

impl Piece<'_> {
    fn new<'a>(lane: u16, lane_offset: u64, length: u64, file_offset: u64) -> Piece<'a> {
        Piece { lane, lane_offset, length, file_offset, packed: None, ticket: None, state: State::Waiting }
    }

    /// One run of a transfer of runs, and its place in memory.
    pub(crate) fn of_run<'a>(lane: u16, lane_offset: u64, memory: ByteRange) -> Piece<'a> {
        let packed = Packed { memory: vec![memory], runs: None };
        Piece { lane_offset, ..Piece::of_runs(lane, memory.length(), packed) }
    }

    /// Runs of `length` bytes together.
    pub(crate) fn of_runs<'a>(lane: u16, length: u64, packed: Packed) -> Piece<'a> {
        let lane_offset = packed.runs.as_ref().map_or(0, |runs| runs.tiles()[0].start);
        let first = packed.memory.first().map_or(0, |first| first.start);
        Piece { packed: Some(packed), ..Piece::new(lane, lane_offset, length, first) }
    }

    /// Its runs, if it has many.
    pub(crate) fn runs(&self) -> Option<&LaneRuns> {
        self.packed.as_ref()?.runs.as_ref()
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    pub(crate) fn failure(&self) -> Option<&Judged> {
        match &self.state {
            State::Failed(judged) => Some(judged),
            _ => None,
        }
    }

    /// Calls `each` with the ranges of the file that it covers, which are the memory's keys; in a transfer of
    /// runs, with ranges of the memory itself.
    pub(crate) fn each_range(&self, layout: &Layout, mut each: impl FnMut(ByteRange)) {
        if let Some(packed) = &self.packed {
            return packed.memory.iter().copied().for_each(each);
        }
        if layout.width == 1 {
            each(ByteRange { start: self.file_offset, end: self.file_offset + self.length });
            return;
        }
        let unit = layout.stripe_unit;
        let (mut at, end) = (self.lane_offset, self.lane_offset + self.length);
        while at < end {
            let run = (unit - at % unit).min(end - at);
            let start = ramlace_layout::file_offset(layout, self.lane, at);
            each(ByteRange { start, end: start + run });
            at += run;
        }
    }
}

/// The request that covers a range, if one is enough.
pub(crate) fn single<'a>(layout: &Layout, range: ByteRange) -> Option<Piece<'a>> {
    let mut pieces = ramlace_layout::merged_pieces(layout, range, REQUEST_BYTES_MAX);
    let piece = pieces.next()?;
    (piece.length == range.length())
        .then(|| Piece::new(piece.lane, piece.lane_offset, piece.length, piece.file_offset))
}

/// The requests for a range, in the order of the file. Small chunks of a lane share a request.
pub(crate) fn plan(layout: &Layout, range: ByteRange, batch: &mut Vec<Piece<'_>>) {
    let first = batch.len();
    if layout.width == 1 || layout.stripe_unit >= REQUEST_BYTES_MAX {
        let pieces = ramlace_layout::merged_pieces(layout, range, REQUEST_BYTES_MAX);
        batch.extend(pieces.map(|p| Piece::new(p.lane, p.lane_offset, p.length, p.file_offset)));
        return;
    }
    // At most as many lanes are touched as there are chunks in the range.
    let chunks = range.end.div_ceil(layout.stripe_unit) - range.start / layout.stripe_unit;
    let first_lane = (range.start / layout.stripe_unit) % u64::from(layout.width);
    for step in 0..chunks.min(layout.width.into()) {
        let lane = ((first_lane + step) % u64::from(layout.width)) as u16;
        let span = ramlace_layout::lane_span(layout, lane, range);
        let mut at = span.start;
        while at < span.end {
            // Requests end at ends of chunks, so that no chunk is split without need.
            let end = span.end.min((at + REQUEST_BYTES_MAX) / layout.stripe_unit * layout.stripe_unit);
            batch.push(Piece::new(lane, at, end - at, ramlace_layout::file_offset(layout, lane, at)));
            at = end;
        }
    }
    batch[first..].sort_unstable_by_key(|piece| piece.file_offset);
}

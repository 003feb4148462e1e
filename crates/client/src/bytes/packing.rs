//! The requests for many runs: runs of one lane go together in a request, described by patterns where
//! possible, as many as one request holds.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, limits};
use ramlace_layout::{Cut, Cuts, Shape, cuts};
use ramlace_wire::Layout;
use ramlace_wire::runs::{LaneRuns, Strided, Tile};

use crate::bytes::pieces::{Packed, Piece, REQUEST_BYTES_MAX};

/// Longer runs get requests of their own, whose bytes a server moves without a copy.
const PACKED_RUN_BYTES_MAX: u64 = limits::STAGED_BYTES_MAX as u64;
/// Requests, and descriptions in them, that are planned together.
const BATCH_REQUESTS_MAX: usize = 1024;
const BATCH_DESCRIPTIONS_MAX: usize = 65_536;

/// Plans the requests of a transfer of runs, a batch at a time, in the order of the runs.
pub(crate) struct Packer<'t> {
    cuts: Cuts<'t>,
    /// Cuts that are not planned yet; the last one comes first.
    rest: Vec<Cut<'t>>,
    /// Bytes that are planned.
    at: u64,
    /// If set, each run gets a request of its own, and runs that end at this offset or before it need none.
    one_by_one_from: Option<u64>,
}

impl<'t> Packer<'t> {
    pub(crate) fn new(layout: &Layout, tiles: &'t [Tile]) -> Packer<'t> {
        Packer { cuts: cuts(layout, tiles), rest: Vec::new(), at: 0, one_by_one_from: None }
    }

    /// The same with a request for each run, except for runs within the first `from` bytes.
    pub(crate) fn one_by_one(layout: &Layout, tiles: &'t [Tile], from: u64) -> Packer<'t> {
        Packer { one_by_one_from: Some(from), ..Packer::new(layout, tiles) }
    }

    /// The next requests, in the order of their first bytes; none when all are planned.
    pub(crate) fn next_batch<'b>(&mut self) -> Vec<Piece<'b>> {
        let mut plan = Plan::default();
        while plan.pieces.len() + plan.open.len() < BATCH_REQUESTS_MAX
            && plan.descriptions < BATCH_DESCRIPTIONS_MAX
            && let Some(cut) = self.rest.pop().or_else(|| self.cuts.next())
        {
            self.plan_some(&mut plan, cut);
        }
        let open = std::mem::take(&mut plan.open);
        open.into_iter().for_each(|(lane, open)| plan.close(lane, open));
        plan.pieces.sort_unstable_by_key(|piece| piece.file_offset);
        plan.pieces
    }

    /// Plans what one request takes of a cut, and puts back what is left.
    fn plan_some(&mut self, plan: &mut Plan<'_>, cut: Cut<'t>) {
        match cut.shape {
            Shape::Run(length) if length > PACKED_RUN_BYTES_MAX || self.one_by_one_from.is_some() => {
                self.rest_behind(cut, 1);
                let now = length.min(REQUEST_BYTES_MAX);
                if now < length {
                    self.rest.push(Cut {
                        start: cut.start + now,
                        shape: Shape::Run(length - now),
                        count: 1,
                        ..cut
                    });
                }
                if self.one_by_one_from.is_none_or(|from| from < self.at + now) {
                    plan.pieces.push(Piece::of_run(
                        cut.lane,
                        cut.start,
                        ByteRange { start: self.at, end: self.at + now },
                    ));
                }
                self.at += now;
            }
            Shape::Tile(runs) if self.one_by_one_from.is_some() || !fits_one_request(runs) => {
                self.rest_behind(cut, 1);
                let of_run = |run: &Strided| Cut {
                    start: cut.start + run.offset,
                    shape: Shape::Run(run.length),
                    count: run.count,
                    stride: run.stride,
                    ..cut
                };
                self.rest.extend(runs.iter().rev().map(of_run));
            }
            Shape::Run(_) | Shape::Tile(_) => {
                let count = plan.pack(cut, self.at);
                self.rest_behind(cut, count);
                self.at += count * measure(cut.shape).0;
            }
        }
    }

    /// Puts back what lies behind the first `count` shapes.
    fn rest_behind(&mut self, cut: Cut<'t>, count: u64) {
        if count < cut.count {
            self.rest.push(Cut { start: cut.start + count * cut.stride, count: cut.count - count, ..cut });
        }
    }
}

/// Requests that are planned, and those that still have room.
#[derive(Default)]
struct Plan<'b> {
    pieces: Vec<Piece<'b>>,
    open: BTreeMap<u16, Open>,
    descriptions: usize,
}

/// A request of one lane that still has room.
#[derive(Default)]
struct Open {
    tiles: Vec<Tile>,
    /// Where its bytes lie in the caller's memory.
    memory: Vec<ByteRange>,
    bytes: u64,
    runs: u64,
}

impl Plan<'_> {
    /// Adds as many shapes as fit to the request of their lane; returns how many. Their first byte is at `at`
    /// in memory.
    fn pack(&mut self, cut: Cut<'_>, at: u64) -> u64 {
        let (bytes, runs) = measure(cut.shape);
        let room = |open: &Open| {
            let bytes_left = u64::from(limits::RUNS_BYTES_MAX) - open.bytes;
            (bytes_left / bytes).min((limits::RUNS_PER_REQUEST_MAX - open.runs) / runs)
        };
        if let Some(full) = self.open.remove(&cut.lane) {
            match room(&full) {
                0 => self.close(cut.lane, full),
                _ => _ = self.open.insert(cut.lane, full),
            }
        }
        let open = self.open.entry(cut.lane).or_default();
        let count = room(open).min(cut.count);
        self.descriptions += open.push(cut, count);
        open.bytes += count * bytes;
        open.runs += count * runs;
        let memory = ByteRange { start: at, end: at + count * bytes };
        match open.memory.last_mut() {
            Some(last) if last.end == memory.start => last.end = memory.end,
            _ => open.memory.push(memory),
        }
        count
    }

    fn close(&mut self, lane: u16, open: Open) {
        let Some(first) = open.memory.first().copied() else { return };
        if open.runs == 1 {
            return self.pieces.push(Piece::of_run(lane, open.tiles[0].start, first));
        }
        let runs = LaneRuns::new(open.tiles).expect("a plan keeps to the limits of a request");
        self.pieces.push(Piece::of_runs(lane, open.bytes, Packed { memory: open.memory, runs: Some(runs) }));
    }
}

impl Open {
    /// Adds `count` more shapes; returns how many descriptions that took.
    fn push(&mut self, cut: Cut<'_>, count: u64) -> usize {
        let Cut { start, shape, stride, .. } = cut;
        match shape {
            Shape::Run(length) => {
                let stride = if count > 1 { stride } else { 0 };
                let run = Strided { offset: 0, length, count, stride };
                if self.tiles.last_mut().is_some_and(|last| goes_on(last, start, run)) {
                    return 0;
                }
                self.push_tile(Tile { start, runs: vec![run], count: 1, stride: 0 })
            }
            Shape::Tile(runs) => {
                let again = Tile { start, runs: Vec::new(), count, stride };
                if self.tiles.last_mut().is_some_and(|last| last.runs == runs && comes_again(last, &again)) {
                    return 0;
                }
                self.tiles.push(Tile { runs: runs.to_vec(), ..again });
                runs.len()
            }
        }
    }

    fn push_tile(&mut self, tile: Tile) -> usize {
        if let Some(last) = self.tiles.last_mut() {
            if last.runs == tile.runs && comes_again(last, &tile) {
                return 0;
            }
            if last.count == 1 {
                // Runs without a pattern are listed.
                let offset = tile.start - last.start;
                last.runs.extend(tile.runs.into_iter().map(|run| Strided { offset, ..run }));
                return 1;
            }
        }
        self.tiles.push(tile);
        1
    }
}

/// If runs continue the pattern of a tile's last description, extends it by them; returns whether they do.
fn goes_on(last: &mut Tile, start: u64, more: Strided) -> bool {
    let Tile { start: begins, runs, count: 1, .. } = last else { return false };
    let Some(known) = runs.last_mut().filter(|known| known.length == more.length) else { return false };
    let first = *begins + known.offset;
    let step = (start - first) / known.count;
    let is_next = (start - first).is_multiple_of(known.count)
        && (known.count == 1 || known.stride == step)
        && (more.count == 1 || more.stride == step);
    if is_next {
        (known.count, known.stride) = (known.count + more.count, step);
    }
    is_next
}

/// If tiles with the runs of `last` continue its pattern, extends it by them; returns whether they do.
fn comes_again(last: &mut Tile, more: &Tile) -> bool {
    let step = (more.start - last.start) / last.count;
    let is_next = (more.start - last.start).is_multiple_of(last.count)
        && (last.count == 1 || last.stride == step)
        && (more.count == 1 || more.stride == step);
    if is_next {
        (last.count, last.stride) = (last.count + more.count, step);
    }
    is_next
}

/// Bytes and runs of a shape.
fn measure(shape: Shape<'_>) -> (u64, u64) {
    match shape {
        Shape::Run(length) => (length, 1),
        Shape::Tile(runs) => {
            runs.iter().fold((0, 0), |(bytes, all), run| (bytes + run.length * run.count, all + run.count))
        }
    }
}

fn fits_one_request(runs: &[Strided]) -> bool {
    let (bytes, all) = measure(Shape::Tile(runs));
    bytes <= u64::from(limits::RUNS_BYTES_MAX)
        && all <= limits::RUNS_PER_REQUEST_MAX
        && runs.iter().all(|run| run.length <= PACKED_RUN_BYTES_MAX)
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;

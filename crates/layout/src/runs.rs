//! Runs of a file and where they lie: descriptions are cut at the ends of chunks and nowhere else, so that a pattern stays a
//! pattern on its lane as far as a chunk goes.

use ramlace_base::ByteRange;
use ramlace_wire::Layout;
use ramlace_wire::runs::{Strided, Tile};

use crate::arithmetic::pieces;

/// What of some runs lies together in one lane: `count` equal shapes, each `stride` behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut<'a> {
    /// The lane.
    pub lane: u16,
    /// Where the first shape begins in the lane's file.
    pub start: u64,
    /// What each is.
    pub shape: Shape<'a>,
    /// How many.
    pub count: u64,
    /// In the file as in the lane, for all of them are in one chunk.
    pub stride: u64,
}

/// What comes again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// So many bytes.
    Run(u64),
    /// The runs of a whole tile.
    Tile(&'a [Strided]),
}

/// Cuts tiles, which ascend and do not overlap ([`ramlace_wire::runs::reach_of`]), into what lies together, in the order of
/// the file.
#[must_use]
pub fn cuts<'a>(layout: &Layout, tiles: &'a [Tile]) -> Cuts<'a> {
    Cuts { layout: *layout, tiles, copy: 0, inside: None }
}

/// Iterator of [`cuts`].
#[derive(Clone, Debug)]
pub struct Cuts<'a> {
    layout: Layout,
    /// Those that are left; of the first of them, so many copies are done.
    tiles: &'a [Tile],
    copy: u64,
    /// In a copy that does not lie in one chunk.
    inside: Option<Inside>,
}

/// How far a copy of a tile is done.
#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    /// This description,
    run: usize,
    /// of it so many runs,
    number: u64,
    /// and of the next one so many bytes.
    within: u64,
}

impl<'a> Iterator for Cuts<'a> {
    type Item = Cut<'a>;

    fn next(&mut self) -> Option<Cut<'a>> {
        loop {
            let tile = self.tiles.first()?;
            if self.copy == tile.count {
                (self.tiles, self.copy) = (&self.tiles[1..], 0);
                continue;
            }
            let start = tile.start + self.copy * tile.stride;
            match self.inside {
                None => match self.whole(tile, start) {
                    Some(cut) => return Some(cut),
                    None => self.inside = Some(Inside::default()),
                },
                Some(inside) => match self.part(tile, start, inside) {
                    Some(cut) => return Some(cut),
                    None => (self.inside, self.copy) = (None, self.copy + 1),
                },
            }
        }
    }
}

impl<'a> Cuts<'a> {
    /// As many copies of a tile, from the one at `start` on, as lie in its chunk; `None` when not one does.
    fn whole(&mut self, tile: &'a Tile, start: u64) -> Option<Cut<'a>> {
        let end = tile.runs.last().map_or(0, end_of);
        let (lane, lane_start, room) = self.place(start);
        let left = tile.count - self.copy;
        let count = fitting(room, end, left, tile.stride)?;
        self.copy += count;
        Some(Cut { lane, start: lane_start, shape: Shape::Tile(&tile.runs), count, stride: tile.stride })
    }

    /// The next part of a copy of a tile that begins at `start`; `None` when it is done.
    fn part(&mut self, tile: &Tile, start: u64, mut inside: Inside) -> Option<Cut<'a>> {
        let run = loop {
            let run = tile.runs.get(inside.run)?;
            if inside.number < run.count {
                break run;
            }
            inside = Inside { run: inside.run + 1, ..Inside::default() };
        };
        let at = start + start_of(run, inside.number) + inside.within;
        let (lane, lane_start, room) = self.place(at);
        let whole = fitting(room, run.length, run.count - inside.number, run.stride);
        let (length, count) = match whole.filter(|_| inside.within == 0) {
            Some(count) => {
                inside.number += count;
                (run.length, count)
            }
            None => {
                let length = room.min(run.length - inside.within);
                inside.within += length;
                if inside.within == run.length {
                    (inside.number, inside.within) = (inside.number + 1, 0);
                }
                (length, 1)
            }
        };
        self.inside = Some(inside);
        Some(Cut { lane, start: lane_start, shape: Shape::Run(length), count, stride: run.stride })
    }

    /// The lane of a byte, where it lies there, and how many bytes from it on lie together.
    fn place(&self, at: u64) -> (u16, u64, u64) {
        if self.layout.width == 1 {
            return (0, at, u64::MAX - at);
        }
        let rest = ByteRange { start: at, end: u64::MAX };
        let piece = pieces(&self.layout, rest).next().expect("no file reaches so far");
        (piece.lane, piece.lane_offset, piece.length)
    }
}

/// Where a run of a description begins. A stride means nothing where there is one run.
fn start_of(run: &Strided, number: u64) -> u64 {
    run.offset + if number > 0 { number * run.stride } else { 0 }
}

fn end_of(run: &Strided) -> u64 {
    start_of(run, run.count - 1) + run.length
}

/// How many shapes of so many bytes, each `stride` behind the one before, fit into `room`; `None` when not one does.
fn fitting(room: u64, bytes: u64, most: u64, stride: u64) -> Option<u64> {
    let more = room.checked_sub(bytes)?;
    Some(if most > 1 { (more / stride).min(most - 1) + 1 } else { 1 })
}

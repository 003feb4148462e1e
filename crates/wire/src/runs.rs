//! Family 0x02: many runs of a lane's bytes in one message.
//!
//! Runs are described, not listed: equal ones at equal distances are one [`Strided`], and a pattern of those that comes
//! again and again is one [`Tile`]. So a row of an array's tile costs no bytes here, and neither does a plane of them.

use ramlace_base::{ByteRange, Error, ErrorKind, Result, limits};
use serde::{Deserialize, Serialize};

use crate::chunk::LaneTarget;
use crate::permit::LaneRight;
use crate::{Kind, Permit, Request};

/// Equal runs of bytes at equal distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    /// Where the first begins.
    pub offset: u64,
    /// Bytes of each: at least one.
    pub length: u64,
    /// How many: at least one.
    pub count: u64,
    /// From where one begins to where the next does: they do not overlap. Means nothing where there is one.
    pub stride: u64,
}

/// A pattern of runs that comes again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tile {
    /// Where the first begins.
    pub start: u64,
    /// The runs of each, by their offsets in it: they ascend and do not overlap, and the first is at 0.
    pub runs: Vec<Strided>,
    /// How many: at least one.
    pub count: u64,
    /// From where one begins to where the next does: they do not overlap. Means nothing where there is one.
    pub stride: u64,
}

/// How far some runs reach, and what they come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// From the first byte to the last.
    pub hull: ByteRange,
    /// Bytes of all runs.
    pub bytes: u64,
    /// How many runs.
    pub runs: u64,
}

impl Reach {
    /// The same with `other` behind it; `None` where that overlaps it, or lies before it.
    fn and_then(self, other: Reach) -> Option<Reach> {
        if self.runs == 0 {
            return Some(other);
        }
        let hull = ByteRange { start: self.hull.start, end: other.hull.end };
        // Runs that do not overlap have no more bytes than the hull.
        let joined = Reach { hull, bytes: self.bytes + other.bytes, runs: self.runs + other.runs };
        (other.hull.start >= self.hull.end).then_some(joined)
    }

    /// `count` of it, each `stride` behind the one before; `None` where they overlap or reach beyond any file.
    fn times(self, count: u64, stride: u64) -> Option<Reach> {
        if count == 0 || (count > 1 && stride < self.hull.length()) {
            return None;
        }
        let further = if count > 1 { (count - 1).checked_mul(stride)? } else { 0 };
        let end = self.hull.end.checked_add(further).filter(|end| *end <= limits::FILE_BYTES_MAX)?;
        let hull = ByteRange { start: self.hull.start, end };
        Some(Reach { hull, bytes: self.bytes.checked_mul(count)?, runs: self.runs.checked_mul(count)? })
    }
}

impl Strided {
    /// One run.
    #[must_use]
    pub fn one(range: ByteRange) -> Strided {
        Strided { offset: range.start, length: range.length(), count: 1, stride: 0 }
    }

    /// How far it reaches; `None` where it makes no sense.
    #[must_use]
    pub fn reach(&self) -> Option<Reach> {
        let hull = ByteRange::at(self.offset, self.length)?;
        let one = Reach { hull, bytes: self.length, runs: 1 };
        if self.length == 0 { None } else { one.times(self.count, self.stride) }
    }

    /// Its runs.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + use<> {
        let Strided { offset, length, count, stride } = *self;
        (0..count).map(move |number| {
            let start = offset + number * stride;
            ByteRange { start, end: start + length }
        })
    }
}

impl Tile {
    /// Runs that come once; the first need not be at 0.
    #[must_use]
    pub fn once(mut runs: Vec<Strided>) -> Tile {
        let start = runs.first().map_or(0, |first| first.offset);
        // One that lies before the first makes no sense, and is reported as such.
        runs.iter_mut().for_each(|run| run.offset = run.offset.wrapping_sub(start));
        Tile { start, runs, count: 1, stride: 0 }
    }

    /// How far one of them reaches from its beginning; `None` where it makes no sense.
    #[must_use]
    pub fn reach_of_one(&self) -> Option<Reach> {
        let mut all = Reach::default();
        for run in &self.runs {
            all = all.and_then(run.reach()?)?;
        }
        (all.runs > 0 && all.hull.start == 0).then_some(all)
    }

    /// How far all of them reach; `None` where they make no sense.
    #[must_use]
    pub fn reach(&self) -> Option<Reach> {
        let one = self.reach_of_one()?;
        let end = self.start.checked_add(one.hull.end)?;
        Reach { hull: ByteRange { start: self.start, end }, ..one }.times(self.count, self.stride)
    }

    /// Their runs, in their order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        (0..self.count).flat_map(move |number| {
            let start = self.start + number * self.stride;
            let here = move |run: ByteRange| ByteRange { start: start + run.start, end: start + run.end };
            self.runs.iter().flat_map(Strided::iter).map(here)
        })
    }
}

/// How far tiles reach that ascend and do not overlap; `None` where they make no sense, or there are none.
#[must_use]
pub fn reach_of(tiles: &[Tile]) -> Option<Reach> {
    let mut all = Reach::default();
    for tile in tiles {
        all = all.and_then(tile.reach()?)?;
    }
    (all.runs > 0).then_some(all)
}

/// Runs of one lane that one message is about. They ascend and do not overlap, have at most [`limits::RUNS_BYTES_MAX`] bytes,
/// and are at most [`limits::RUNS_PER_REQUEST_MAX`]: that holds of every value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Tile>")]
pub struct LaneRuns(Vec<Tile>);

impl TryFrom<Vec<Tile>> for LaneRuns {
    type Error = Error;

    fn try_from(tiles: Vec<Tile>) -> Result<LaneRuns> {
        LaneRuns::new(tiles)
    }
}

impl LaneRuns {
    /// Runs, checked.
    ///
    /// Errors: `Invalid` when they make no sense; `TooLarge` when they are more than one message is about.
    pub fn new(tiles: Vec<Tile>) -> Result<LaneRuns> {
        let Some(reach) = reach_of(&tiles) else {
            let text = "runs have bytes, ascend, do not overlap, and end within the largest file";
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let (bytes, runs) = (u64::from(limits::RUNS_BYTES_MAX), limits::RUNS_PER_REQUEST_MAX);
        if reach.bytes > bytes || reach.runs > runs {
            let text = format!(
                "one message is about at most {runs} runs with {bytes} bytes, not {} with {}",
                reach.runs, reach.bytes
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(LaneRuns(tiles))
    }

    /// How they are described.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.0
    }

    /// How far they reach.
    #[must_use]
    pub fn reach(&self) -> Reach {
        reach_of(&self.0).expect("it was checked when this was made")
    }

    /// The runs, in their order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.0.iter().flat_map(Tile::iter)
    }

    /// The same, joined where they touch.
    #[must_use]
    pub fn joined(&self) -> Vec<ByteRange> {
        let mut joined: Vec<ByteRange> = Vec::new();
        for run in self.iter() {
            match joined.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => joined.push(run),
            }
        }
        joined
    }
}

/// Reads runs of a lane. Bytes that were never written are zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRuns {
    /// The lane.
    pub target: LaneTarget,
    /// Which of its bytes.
    pub runs: LaneRuns,
}

/// The bytes follow as data, one run behind the other, unless all of them are zero and `hole` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsRead {
    /// Every byte asked for is zero; no data follows.
    pub hole: bool,
}

impl Request for ReadRuns {
    const KIND: Kind = Kind::ReadRuns;
    type Reply = RunsRead;

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Read))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(ReadRuns { target: self.target.by(permit), ..self.clone() })
    }
}

/// Writes the data that follows, one run behind the other. All of it is promised memory before the first byte is taken; what
/// lies between the runs is not touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRuns {
    /// The lane.
    pub target: LaneTarget,
    /// Where its bytes go.
    pub runs: LaneRuns,
}

impl Request for WriteRuns {
    const KIND: Kind = Kind::WriteRuns;
    type Reply = ();

    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        Some((&self.target, LaneRight::Write))
    }

    fn with_permit(&self, permit: Option<Permit>) -> Option<Self> {
        Some(WriteRuns { target: self.target.by(permit), ..self.clone() })
    }
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;

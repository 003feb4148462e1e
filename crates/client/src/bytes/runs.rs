//! Runs of bytes with gaps between them, in one call: the bytes in the gaps are neither read nor written.

use std::io::{IoSlice, IoSliceMut};

use ramlace_base::{ByteRange, Error, ErrorKind, Result, limits};
use ramlace_wire::inline::FirstPage;
use ramlace_wire::runs::{Reach, Strided, Tile, reach_of};

use crate::bytes::file::File;
use crate::bytes::memory::Memory;
use crate::bytes::transfer::{Direction, Outcome};
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;

/// Up to this many runs of an inline file are written one by one; for more it is promoted to its lanes.
const INLINE_RUNS_MAX: u64 = 4;

impl File {
    /// Reads the runs of tiles into the buffer, one behind the other; returns the bytes read, which are those
    /// below the file's end. The runs ascend and do not overlap, and the buffer is as long as all of them
    /// together.
    pub fn read_runs(&self, tiles: &[Tile], buffer: &mut [u8]) -> Result<usize> {
        self.read_runs_vectored(tiles, &mut [IoSliceMut::new(buffer)])
    }

    /// The same into several buffers, one after the other.
    pub fn read_runs_vectored(&self, tiles: &[Tile], buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let length = buffers.iter().map(|buffer| buffer.len()).sum();
        let Some(reach) = check_runs(tiles, length).map_err(|error| self.tell(error))? else {
            return Ok(0);
        };
        let start = if reach.runs == 1 { reach.hull.start } else { 0 };
        let mut memory = Memory::of_slices_mut(buffers, start);
        if reach.runs == 1 {
            return self.read_into(&mut memory, start);
        }
        self.needs(self.rights().read, "reading")?;
        let handle = self.handle()?;
        let inline = self.read_runs_inline(handle, tiles, reach, &memory);
        if let Some(read) = inline.map_err(|error| self.tell(error))? {
            return Ok(read);
        }
        let read = |_| self.read_runs_once(handle, tiles, reach, &mut memory);
        self.with_size(handle, read).map_err(|error| self.tell(error))
    }

    fn read_runs_once(
        &self,
        handle: &Handle,
        tiles: &[Tile],
        reach: Reach,
        memory: &mut Memory<'_>,
    ) -> Result<usize> {
        let size = self.size_for(handle, reach.hull.end)?;
        let cut = if reach.hull.end > size.size { Some(below(tiles, size.size)) } else { None };
        let there = cut.as_deref().unwrap_or(tiles);
        let Some(reach) = reach_of(there) else { return Ok(0) };
        let memory = memory.clamped(reach.bytes as usize);
        let transfer = self.transfer(handle, size, Direction::Read, memory);
        match transfer.run_packed(there) {
            Outcome::Done if transfer.saw_hole.get() && !self.is_current(handle, size)? => {
                Err(Error::new(ErrorKind::Retry, "the file was truncated while it was read"))
            }
            Outcome::Done => Ok(reach.bytes as usize),
            Outcome::Failed { error, .. } | Outcome::Outdated(error) => Err(error),
        }
    }

    /// Reads an inline file: one request brings all its bytes. `None`: the file is in its lanes.
    fn read_runs_inline(
        &self,
        handle: &Handle,
        tiles: &[Tile],
        reach: Reach,
        memory: &Memory<'_>,
    ) -> Result<Option<usize>> {
        if !handle.open.is_inline() {
            return Ok(None);
        }
        let size = self.size_for(handle, reach.hull.end)?.size;
        let mut bytes = vec![0; limits::INLINE_BYTES_MAX];
        let brought = self.read_at(&mut bytes, 0)?;
        if !handle.open.is_inline() {
            return Ok(None);
        }
        // Behind these bytes the file has zeros up to its end.
        let size = size.min(if brought < bytes.len() { brought as u64 } else { u64::MAX });
        let mut done = 0;
        for run in below(tiles, size).iter().flat_map(Tile::iter) {
            let there = |at: u64| bytes.len().min(at as usize);
            let mut found = bytes[there(run.start)..there(run.end)].to_vec();
            found.resize(run.length() as usize, 0);
            memory.fill(done, &found);
            done += found.len() as u64;
        }
        Ok(Some(done as usize))
    }

    /// Writes the runs of tiles from bytes that lie one behind the other; returns the bytes written. These
    /// are fewer than given only when the pool became full in the middle; the next call then returns the
    /// error. Otherwise as [`File::read_runs`].
    ///
    /// Errors: `Invalid` for a file that was opened for appending: its bytes have no places of the program's choice.
    pub fn write_runs(&self, tiles: &[Tile], bytes: &[u8]) -> Result<usize> {
        self.write_runs_vectored(tiles, &[IoSlice::new(bytes)])
    }

    /// The same from several buffers, one after the other.
    pub fn write_runs_vectored(&self, tiles: &[Tile], buffers: &[IoSlice<'_>]) -> Result<usize> {
        self.needs_writing()?;
        if self.append {
            let text = "it was opened for appending: runs have places of their own, and would overwrite";
            return Err(self.tell(Error::new(ErrorKind::Invalid, text)));
        }
        let length = buffers.iter().map(|buffer| buffer.len()).sum();
        let Some(reach) = check_runs(tiles, length).map_err(|error| self.tell(error))? else {
            return Ok(0);
        };
        let start = if reach.runs == 1 { reach.hull.start } else { 0 };
        let mut memory = Memory::of_slices(buffers, start);
        if reach.runs == 1 {
            return self.write_from(&mut memory, start);
        }
        self.reserve_gap(reach.hull.end, FirstPage::Locked)?;
        let handle = self.handle()?;
        let _changing = self.changing(reach.hull);
        let inline = self.write_runs_inline(handle, tiles, reach, &memory);
        if inline.map_err(|error| self.tell(error))? {
            return Ok(length);
        }
        let write = |size| {
            let transfer = self.transfer(handle, size, Direction::Write, memory.whole());
            let done = match transfer.run_packed(tiles) {
                Outcome::Done => reach.bytes,
                Outcome::Failed { done_to, error } if error.kind() == ErrorKind::NoSpace && done_to > 0 => {
                    done_to
                }
                Outcome::Failed { error, .. } | Outcome::Outdated(error) => return Err(error),
            };
            self.extend_over(handle, size, tiles, done)?;
            Ok(done as usize)
        };
        self.with_size(handle, write).map_err(|error| self.tell(error))
    }

    /// Writes a few runs of an inline file; `false`: the file is in its lanes, and all runs are to be written
    /// there.
    fn write_runs_inline(
        &self,
        handle: &Handle,
        tiles: &[Tile],
        reach: Reach,
        memory: &Memory<'_>,
    ) -> Result<bool> {
        if handle.open.is_inline()
            && (reach.hull.end > limits::INLINE_BYTES_MAX as u64 || reach.runs > INLINE_RUNS_MAX)
        {
            self.promote(handle)?;
        }
        let mut at = 0;
        for run in tiles.iter().flat_map(Tile::iter) {
            let part = ByteRange { start: at, end: at + run.length() };
            if !self.write_run_inline(handle, run.start, memory, part)? {
                return Ok(false);
            }
            at = part.end;
        }
        Ok(true)
    }

    /// Extends the file to the end of what was written: this many bytes of the runs. The home is notified of the
    /// last stretch without a gap: what lies before it may be a hole.
    fn extend_over(&self, handle: &Handle, size: Size, tiles: &[Tile], bytes: u64) -> Result<()> {
        self.extend(handle, size, last_stretch(tiles, bytes))
    }
}

/// The end and the bytes of the runs, after checking that they are valid and fill the buffer; `None` when
/// there are none.
fn check_runs(tiles: &[Tile], bytes: usize) -> Result<Option<Reach>> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    if tiles.is_empty() && bytes == 0 {
        return Ok(None);
    }
    match reach_of(tiles) {
        None => invalid(
            "a run is empty, overlaps another, lies before the one in front of it, or reaches beyond the largest file; \
             or a tile's first run is not at its beginning"
                .into(),
        ),
        Some(reach) if reach.bytes != bytes as u64 => {
            invalid(format!("the runs have {} bytes together, and the buffer {bytes}", reach.bytes))
        }
        reach => Ok(reach),
    }
}

/// The part of valid tiles that lies below an offset.
fn below(tiles: &[Tile], end: u64) -> Vec<Tile> {
    let mut there = Vec::new();
    for tile in tiles {
        let Some(one) = tile.reach_of_one() else { break };
        let whole = whole_below(end.saturating_sub(tile.start), one.hull.end, tile.count, tile.stride);
        if whole > 0 {
            there.push(Tile { count: whole, ..tile.clone() });
        }
        if whole < tile.count {
            let start = tile.start + whole * tile.stride;
            let runs = runs_below(&tile.runs, end.saturating_sub(start));
            if !runs.is_empty() {
                there.push(Tile { start, runs, count: 1, stride: 0 });
            }
            break;
        }
    }
    there
}

fn runs_below(runs: &[Strided], end: u64) -> Vec<Strided> {
    let mut there = Vec::new();
    for run in runs {
        let whole = whole_below(end.saturating_sub(run.offset), run.length, run.count, run.stride);
        if whole > 0 {
            there.push(Strided { count: whole, ..*run });
        }
        if whole < run.count {
            let start = run.offset + whole * run.stride;
            if start < end {
                there.push(Strided::one(ByteRange { start, end }));
            }
            break;
        }
    }
    there
}

/// How many of `count` shapes, `stride` apart, end at or before `end`; each is `length` long, and the first
/// begins at 0.
fn whole_below(end: u64, length: u64, count: u64, stride: u64) -> u64 {
    match end.checked_sub(length) {
        None => 0,
        Some(_) if count == 1 => 1,
        Some(more) => (more / stride + 1).min(count),
    }
}

/// Where in the file the last of the first `bytes` bytes of runs lie: at least one, and as far back as there
/// is no gap.
fn last_stretch(tiles: &[Tile], mut bytes: u64) -> ByteRange {
    let mut last = ByteRange::default();
    for tile in tiles {
        let Some(one) = tile.reach_of_one() else { break };
        let copy = ((bytes - 1) / one.bytes).min(tile.count - 1);
        let start = tile.start + copy * tile.stride;
        bytes -= copy * one.bytes;
        for run in &tile.runs {
            let number = ((bytes - 1) / run.length).min(run.count - 1);
            bytes -= number * run.length;
            let begins = start + run.offset + number * run.stride;
            let now = ByteRange { start: begins, end: begins + bytes.min(run.length) };
            let joins = number == 0 && copy == 0 && last.end == now.start && !last.is_empty();
            last = if joins { ByteRange { end: now.end, ..last } } else { now };
            bytes -= now.length();
            if bytes == 0 {
                return last;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes() -> Vec<Tile> {
        let runs = vec![
            Strided { offset: 0, length: 3, count: 2, stride: 5 },
            Strided { offset: 9, length: 1, count: 1, stride: 0 },
        ];
        vec![
            Tile { start: 2, runs, count: 3, stride: 12 },
            Tile {
                start: 40,
                runs: vec![Strided { offset: 0, length: 4, count: 1, stride: 0 }],
                count: 1,
                stride: 0,
            },
        ]
    }

    fn bytes_of(tiles: &[Tile]) -> Vec<u64> {
        tiles.iter().flat_map(Tile::iter).flat_map(|run| run.start..run.end).collect()
    }

    #[test]
    fn what_lies_below_an_offset_is_found_without_listing() {
        let (tiles, all) = (planes(), bytes_of(&planes()));
        for end in 0..50 {
            let expected: Vec<u64> = all.iter().copied().filter(|at| *at < end).collect();
            let there = below(&tiles, end);
            assert_eq!(bytes_of(&there), expected, "{end}");
            assert_eq!(reach_of(&there).is_some(), !expected.is_empty());
        }
    }

    #[test]
    fn the_last_stretch_ends_with_the_last_byte_and_has_no_gap() {
        let (tiles, all) = (planes(), bytes_of(&planes()));
        for count in 1..=all.len() {
            let last = last_stretch(&tiles, count as u64);
            assert_eq!(last.end, all[count - 1] + 1, "{count}");
            assert!((last.start..last.end).all(|at| all.contains(&at)), "{count}: {last:?}");
        }
        let touching =
            Tile::once((0..3).map(|at| Strided { offset: at * 4, length: 4, count: 1, stride: 0 }).collect());
        assert_eq!(last_stretch(&[touching], 12), ByteRange { start: 0, end: 12 });
    }
}

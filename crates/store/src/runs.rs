//! Many runs of a lane's bytes at once.

use std::iter::Peekable;

use ramlace_base::{ByteRange, LaneId, Result};

use crate::spread::Spread;
use crate::store::Store;
use crate::sys::{self, PAGE_BYTES};

/// Runs with gaps up to here go together: to move the gap along costs less than a system call more.
const GAP_BYTES_MAX: u64 = 2048;
/// Bytes that go together, gaps included.
const TOGETHER_BYTES_MAX: u64 = 64 << 10;
/// Fewer runs than these are written one by one: together they take two system calls.
const WRITTEN_TOGETHER_MIN: usize = 4;

// A page between two runs that are joined would be one for which no memory was taken.
const _: () = assert!(GAP_BYTES_MAX < PAGE_BYTES);

impl Store {
    /// The bytes of runs, which ascend and do not overlap, one behind the other. What the file does not have is zeros.
    ///
    /// Errors: `NotFound`.
    pub fn read_runs(&mut self, id: LaneId, runs: impl Iterator<Item = ByteRange>) -> Result<Vec<u8>> {
        let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
        let mut runs = runs.peekable();
        while let Some((hull, together)) = next_together(&mut runs) {
            if together.len() == 1 {
                let begun = bytes.len();
                bytes.resize(begun + hull.length() as usize, 0);
                self.read_staged(id, hull.start, &mut bytes[begun..])?;
                continue;
            }
            scratch.resize(hull.length() as usize, 0);
            self.read_staged(id, hull.start, &mut scratch)?;
            together.iter().for_each(|run| bytes.extend_from_slice(&scratch[within(hull, *run)]));
        }
        Ok(bytes)
    }

    /// Writes bytes, one run behind the other, after [`Store::prepare_writes`] of the same bytes. What lies between the runs is
    /// not touched: a client may be storing there. Only where no client can, and no page has nothing but gap, small gaps are
    /// read and written back in the same step.
    ///
    /// Errors: `NotFound`; `Fatal` when they were not prepared, which is a bug of the caller, or were cut off meanwhile by
    /// a client that holds the file (prepare again).
    pub fn write_runs(&mut self, id: LaneId, runs: &[ByteRange], mut bytes: &[u8]) -> Result<()> {
        if !self.is_prepared(id, runs)? {
            return Err(sys::fatal(format!("lane {id} was not prepared for {} runs of bytes", runs.len())));
        }
        let (file, alone) = (self.file(id)?, !self.lane(id)?.granted);
        let write = |bytes: &[u8], offset| {
            sys::tell(sys::write_all_at(&file, bytes, offset), format_args!("writing lane {id}"))
        };
        let (mut runs, mut scratch) = (runs.iter().copied().peekable(), Vec::new());
        while let Some((hull, together)) = next_together(&mut runs) {
            let (now, later) = bytes.split_at(together.iter().map(|run| run.length() as usize).sum());
            bytes = later;
            if together.len() < WRITTEN_TOGETHER_MIN {
                each(&together, now, |run, bytes| write(bytes, run.start))?;
            } else if alone {
                scratch.resize(hull.length() as usize, 0);
                self.read_staged(id, hull.start, &mut scratch)?;
                each(&together, now, |run, bytes| {
                    scratch[within(hull, run)].copy_from_slice(bytes);
                    Ok(())
                })?;
                write(&scratch, hull.start)?;
            } else if !self.spread(id, hull, &together, now) {
                each(&together, now, |run, bytes| write(bytes, run.start))?;
            }
        }
        Ok(())
    }

    /// Writes bytes to runs of a hull and to nothing between them; `false` where that was not possible, and some of them may
    /// be written: the file has been cut meanwhile, or the process has no descriptor or address left.
    fn spread(&mut self, id: LaneId, hull: ByteRange, runs: &[ByteRange], bytes: &[u8]) -> bool {
        let Ok(window) = self.window(id, hull.start, hull.length()) else { return false };
        if self.spread.is_none() {
            self.spread = Spread::new().ok();
        }
        let places = runs.iter().map(|run| ((run.start - hull.start) as usize, run.length() as usize));
        self.spread.as_ref().is_some_and(|spread| spread.put(bytes, &window, places).is_ok())
    }
}

/// Goes through runs and the bytes of each.
fn each(
    runs: &[ByteRange],
    mut bytes: &[u8],
    mut what: impl FnMut(ByteRange, &[u8]) -> Result<()>,
) -> Result<()> {
    for run in runs {
        let (now, later) = bytes.split_at(run.length() as usize);
        what(*run, now)?;
        bytes = later;
    }
    Ok(())
}

/// The next runs that lie close together, and the bytes from the first to the last.
fn next_together(
    runs: &mut Peekable<impl Iterator<Item = ByteRange>>,
) -> Option<(ByteRange, Vec<ByteRange>)> {
    let mut hull = runs.next()?;
    let mut together = vec![hull];
    while let Some(next) = runs
        .next_if(|next| next.start - hull.end <= GAP_BYTES_MAX && next.end - hull.start <= TOGETHER_BYTES_MAX)
    {
        hull.end = next.end;
        together.push(next);
    }
    Some((hull, together))
}

/// Where a run lies in the bytes of a hull.
fn within(hull: ByteRange, run: ByteRange) -> std::ops::Range<usize> {
    (run.start - hull.start) as usize..(run.end - hull.start) as usize
}

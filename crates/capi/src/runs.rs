//! Runs of bytes with gaps between them, in one call.

use libc::ssize_t;
use ramlace_base::{ByteRange, Result, limits};

use crate::failure::{guard, invalid, null};
use crate::file::count;
use crate::open::open_file;
use crate::pass::{buffer, bytes};
use crate::types::{ramlace_file, ramlace_run};

/// Runs that are under way at once; what a call has beyond goes afterwards.
const RUNS_AT_ONCE: usize = 65_536;

/// Reads runs into buffer, one behind the other, without touching what lies between them: run_count
/// descriptions of equal runs (see ramlace_run), which ascend and do not overlap. length is what all
/// of them have together. Returns the bytes read: fewer at the end of the file, where it stops.
/// Returns -1 and sets errno: EINVAL for runs that overlap, descend, are empty, or have not length
/// bytes; EBADF not open, or not for reading; and as ramlace_pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pread_runs(
    file: *mut ramlace_file,
    buffer: *mut libc::c_void,
    length: usize,
    runs: *const ramlace_run,
    run_count: usize,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        // SAFETY: the buffer has `length` bytes, by the header.
        let target = unsafe { self::buffer(buffer.cast(), length) }?;
        // SAFETY: `runs` are `run_count`, by the header.
        let runs = unsafe { described(runs, run_count) }?;
        in_parts(runs, length, |part, from, bytes| open.file.read_runs(part, &mut target[from..from + bytes]))
    })
}

/// Writes runs from buffer, in which they lie one behind the other; otherwise as ramlace_pread_runs and
/// ramlace_pwrite. What lies between the runs stays as it is, whoever changes it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwrite_runs(
    file: *mut ramlace_file,
    buffer: *const libc::c_void,
    length: usize,
    runs: *const ramlace_run,
    run_count: usize,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        // SAFETY: the buffer has `length` bytes, by the header.
        let source = unsafe { bytes(buffer.cast(), length) }?;
        // SAFETY: `runs` are `run_count`, by the header.
        let runs = unsafe { described(runs, run_count) }?;
        in_parts(runs, length, |part, from, bytes| open.file.write_runs(part, &source[from..from + bytes]))
    })
}

/// # Safety
/// The pointer is NULL, or leads to so many descriptions.
unsafe fn described<'a>(runs: *const ramlace_run, count: usize) -> Result<&'a [ramlace_run]> {
    if count == 0 {
        return Ok(&[]);
    }
    if runs.is_null() {
        return Err(null("array of runs"));
    }
    if count > isize::MAX as usize / size_of::<ramlace_run>() {
        return Err(invalid(format!("{count} runs are more than memory has")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(runs, count) })
}

/// Moves the runs, so many at once, until one of these moves fewer bytes than it has: `move_part` gets the runs, where
/// they begin in the buffer, and their bytes.
fn in_parts(
    described: &[ramlace_run],
    length: usize,
    mut move_part: impl FnMut(&[ByteRange], usize, usize) -> Result<usize>,
) -> Result<ssize_t> {
    check(described, length)?;
    let mut ranges = described.iter().flat_map(each).peekable();
    let (mut part, mut done) = (Vec::new(), 0);
    while ranges.peek().is_some() {
        part.clear();
        part.extend(ranges.by_ref().take(RUNS_AT_ONCE));
        let bytes = part.iter().map(|range: &ByteRange| range.length() as usize).sum();
        match move_part(&part, done, bytes) {
            Ok(moved) => {
                done += moved;
                if moved < bytes {
                    break;
                }
            }
            // What came before is told first; the next call meets the error again.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    count(done)
}

/// The runs of one description, which was checked.
fn each(run: &ramlace_run) -> impl Iterator<Item = ByteRange> + use<> {
    let ramlace_run { offset, length, stride, count } = *run;
    (0..count).map(move |number| {
        let start = (offset + number * stride) as u64;
        ByteRange { start, end: start + length as u64 }
    })
}

/// Whether they make sense: everything ascends, ends within the largest file, and has `length` bytes together.
fn check(described: &[ramlace_run], length: usize) -> Result<()> {
    let (mut at, mut bytes) = (0, 0);
    for (number, run) in described.iter().enumerate() {
        let (offset, each) = (i128::from(run.offset), i128::from(run.length));
        let (stride, count) = (i128::from(run.stride), i128::from(run.count));
        let end = offset + (count - 1) * stride + each;
        let overlaps = count > 1 && stride < each;
        if each < 1 || count < 1 || offset < at || overlaps || end > i128::from(limits::FILE_BYTES_MAX) {
            return Err(invalid(format!(
                "run {number} (offset {offset}, length {each}, stride {stride}, count {count}) is empty, overlaps \
                 another, lies before the one in front of it, or reaches beyond any file"
            )));
        }
        at = end;
        bytes += each * count;
    }
    if bytes == length as i128 {
        Ok(())
    } else {
        Err(invalid(format!("the runs have {bytes} bytes together, and the buffer {length}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: i64, length: i64, stride: i64, count: i64) -> ramlace_run {
        ramlace_run { offset, length, stride, count }
    }

    #[test]
    fn descriptions_mean_runs_and_nonsense_is_refused() {
        let runs = [run(4, 2, 10, 3), run(26, 1, 0, 1)];
        assert!(check(&runs, 7).is_ok());
        let starts: Vec<u64> = runs.iter().flat_map(each).map(|range| range.start).collect();
        assert_eq!(starts, [4, 14, 24, 26]);
        let largest = limits::FILE_BYTES_MAX as i64;
        for wrong in [
            run(-1, 1, 0, 1),
            run(0, 0, 0, 1),
            run(0, 1, 0, 0),
            run(0, 4, 3, 2),
            run(0, 4, -8, 2),
            run(largest, 1, 0, 1),
            run(0, 1, i64::MAX, i64::MAX),
            run(0, i64::MAX, i64::MAX, 2),
        ] {
            let bytes = usize::try_from(wrong.length.saturating_mul(wrong.count)).unwrap_or(0);
            assert!(check(&[wrong], bytes).is_err());
        }
        assert!(check(&runs, 8).is_err());
        assert!(check(&[run(4, 2, 10, 3), run(25, 1, 0, 1)], 7).is_err());
    }

    #[test]
    fn parts_go_on_until_one_is_short() {
        let many = [run(0, 1, 2, RUNS_AT_ONCE as i64 + 5)];
        let bytes = RUNS_AT_ONCE + 5;
        let mut seen = Vec::new();
        let all = in_parts(&many, bytes, |part, from, bytes| {
            seen.push((part[0].start, from, bytes));
            Ok(bytes)
        });
        assert_eq!(all, Ok(bytes as ssize_t));
        assert_eq!(seen, [(0, 0, RUNS_AT_ONCE), (2 * RUNS_AT_ONCE as u64, RUNS_AT_ONCE, 5)]);
        let mut calls = 0;
        let short = in_parts(&many, bytes, |_, _, bytes| {
            calls += 1;
            Ok(bytes - 1)
        });
        assert_eq!((short, calls), (Ok(RUNS_AT_ONCE as ssize_t - 1), 1));
    }
}

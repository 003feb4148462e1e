//! Runs of bytes with gaps between them, in one call.

use libc::{c_void, ssize_t};
use ramlace_base::Result;
use ramlace_client::{Strided, Tile};

use crate::answers::count;
use crate::failure::{guard, invalid};
use crate::open::open_file;
use crate::pass::{Count, Items, Length, Source, Target};
use crate::types::{ramlace_file, ramlace_run};

/// Reads runs into buffer, one behind the other, without touching what lies between them: run_count
/// descriptions of equal runs (see ramlace_run), which ascend and do not overlap. length is what all
/// of them have together. Returns the bytes read: fewer at the end of the file, where it stops.
/// Returns -1 and sets errno: EINVAL for runs that overlap, descend, are empty, or have not length
/// bytes; EBADF not open, or not for reading; and as ramlace_pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pread_runs(
    file: *mut ramlace_file,
    mut buffer: Target<c_void>,
    length: Length,
    runs: Items<ramlace_run>,
    run_count: Count<usize>,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let target = buffer.bytes(length)?;
        let runs = runs.all(run_count, "runs")?;
        count(open.file.read_runs(&tiles_of(runs)?, target)?)
    })
}

/// Writes runs from buffer, in which they lie one behind the other; otherwise as ramlace_pread_runs and
/// ramlace_pwrite. What lies between the runs stays as it is, whoever changes it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwrite_runs(
    file: *mut ramlace_file,
    buffer: Source,
    length: Length,
    runs: Items<ramlace_run>,
    run_count: Count<usize>,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let source = buffer.bytes(length)?;
        let runs = runs.all(run_count, "runs")?;
        count(open.file.write_runs(&tiles_of(runs)?, source)?)
    })
}

/// Descriptions as one tile. What they have to be beyond this, the client library says.
fn tiles_of(described: &[ramlace_run]) -> Result<Vec<Tile>> {
    let strided = |(number, run): (usize, &ramlace_run)| {
        let ramlace_run { offset, length, stride, count } = *run;
        let parts = [offset, length, count].map(u64::try_from);
        // A stride means nothing where there is one run.
        let stride = if count == 1 { Ok(0) } else { u64::try_from(stride) };
        let ([Ok(offset), Ok(length), Ok(count)], Ok(stride)) = (parts, stride) else {
            let text = format!(
                "run {number} (offset {offset}, length {length}, stride {}, count {count}) has a negative number: none may be",
                run.stride
            );
            return Err(invalid(text));
        };
        Ok(Strided { offset, length, count, stride })
    };
    let runs: Vec<Strided> = described.iter().enumerate().map(strided).collect::<Result<_>>()?;
    Ok(if runs.is_empty() { Vec::new() } else { vec![Tile::once(runs)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: i64, length: i64, stride: i64, count: i64) -> ramlace_run {
        ramlace_run { offset, length, stride, count }
    }

    #[test]
    fn descriptions_mean_runs_and_nonsense_is_refused() {
        let tiles = tiles_of(&[run(4, 2, 10, 3), run(26, 1, -7, 1)]).unwrap();
        let starts: Vec<u64> = tiles.iter().flat_map(Tile::iter).map(|range| range.start).collect();
        assert_eq!(starts, [4, 14, 24, 26]);
        assert!(tiles_of(&[]).unwrap().is_empty());
        for wrong in [run(-1, 1, 0, 1), run(0, -1, 0, 1), run(0, 1, 0, -1), run(0, 4, -8, 2)] {
            assert!(tiles_of(&[wrong]).is_err());
        }
    }
}

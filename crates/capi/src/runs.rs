//! Runs of bytes with gaps between them, in one call.

use libc::{c_void, ssize_t};
use ramlace_base::Result;
use ramlace_client::{Strided, Tile};

use crate::answers::count;
use crate::failure::{guard, invalid};
use crate::open::open_file;
use crate::pass::{Count, Items, Length, Source, Target, file_bytes};
use crate::types::{ramlace_file, ramlace_run, ramlace_tile};

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
/// ramlace_pwrite. What lies between the runs stays as it is, also where others change it meanwhile.
/// EINVAL for a file that was opened with O_APPEND, too: runs have places of their own.
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

/// As ramlace_pread_runs, of tiles: tile_count descriptions of patterns that come again and again (see
/// ramlace_tile), which ascend and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pread_tiles(
    file: *mut ramlace_file,
    mut buffer: Target<c_void>,
    length: Length,
    tiles: Items<ramlace_tile>,
    tile_count: Count<usize>,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let target = buffer.bytes(length)?;
        count(open.file.read_runs(&all_repeated(&tiles, tile_count)?, target)?)
    })
}

/// As ramlace_pwrite_runs, of tiles: see ramlace_pread_tiles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwrite_tiles(
    file: *mut ramlace_file,
    buffer: Source,
    length: Length,
    tiles: Items<ramlace_tile>,
    tile_count: Count<usize>,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let source = buffer.bytes(length)?;
        count(open.file.write_runs(&all_repeated(&tiles, tile_count)?, source)?)
    })
}

/// A description of equal runs. What it has to be beyond this, the client library says.
fn strided((number, run): (usize, &ramlace_run)) -> Result<Strided> {
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
}

/// Descriptions as one tile.
fn tiles_of(described: &[ramlace_run]) -> Result<Vec<Tile>> {
    let runs: Vec<Strided> = described.iter().enumerate().map(strided).collect::<Result<_>>()?;
    Ok(if runs.is_empty() { Vec::new() } else { vec![Tile::once(runs)] })
}

/// A tile as the client library has it: its first run is at its beginning.
fn repeated(tile: &ramlace_tile) -> Result<Tile> {
    let runs = tile.runs.all(tile.run_count, "runs")?.iter().enumerate().map(strided);
    let once = Tile::once(runs.collect::<Result<_>>()?);
    let stride = if tile.count == 1 { 0 } else { file_bytes(tile.stride, "stride of a tile")? };
    let (offset, count) =
        (file_bytes(tile.offset, "offset of a tile")?, file_bytes(tile.count, "count of a tile")?);
    // Of numbers that were no negative ones, and so is their sum.
    Ok(Tile { start: offset + once.start, count, stride, ..once })
}

fn all_repeated(tiles: &Items<ramlace_tile>, tile_count: Count<usize>) -> Result<Vec<Tile>> {
    tiles.all(tile_count, "tiles")?.iter().map(repeated).collect()
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

//! Column sums of a float64 matrix in shared memory: a native array striped over three servers,
//! and the same code on one file of a huge-page tmpfs and on one in `/dev/shm`.
//!
//! `warm`: the mapping has been read before. `first`: it is made anew, so that page faults count.

use std::fs::File;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{Array, ArrayType, Mapping, Order};
use ramlace_wire::LayoutHints;
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::pool::connect;
use crate::region::{Region, huge_file, small_page_file};
use crate::rounds::{Side, measure};

const COLUMNS: usize = 60;
const ROWS: usize = 1 << 20;
const ROWS_QUICK: usize = 1 << 14;
const SERVERS: u16 = 3;
const PATH: &str = "/bench-columns";

/// Measures both scans.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let rows = if args.quick { ROWS_QUICK } else { ROWS };
    let bytes = rows * COLUMNS * 8;
    let pool = connect(true)?;
    let kind = ArrayType::new(&[rows as u64, COLUMNS as u64], "<f8", Order::F)?;
    let hints = LayoutHints { width: Some(SERVERS), ..LayoutHints::default() };
    let array = pool.create_array(PATH, &kind, hints, 0o600)?;
    let (_root, huge) = huge_file(bytes)?;
    let small = small_page_file(bytes)?;
    let mut mapping = array.map(true)?;
    fill(numbers_mut(bytes_of(&mut mapping)));
    for file in [&huge, &small] {
        fill(numbers_mut(Region::of_file(file, bytes)?.bytes_mut()));
    }
    let figures =
        [first_scan(args, rows, &array, &huge, &small), warm_scan(args, rows, &mut mapping, &huge, &small)];
    drop(mapping);
    drop(array);
    pool.unlink(PATH)?;
    figures.into_iter().filter_map(Result::transpose).collect()
}

fn first_scan(args: &Args, rows: usize, array: &Array, huge: &File, small: &File) -> Result<Option<Value>> {
    let name = "column sums, native, first scan";
    if !args.wants(name) {
        return Ok(None);
    }
    let bytes = rows * COLUMNS * 8;
    let here = Processes::with(&[])?;
    let of_file = |file: &File| {
        let region = Region::of_file(file, bytes)?;
        check_sums(rows, numbers(region.bytes()))
    };
    let sides = vec![
        side("tmpfs, huge pages", &here, || of_file(huge)),
        side("tmpfs, 4 KiB pages", &here, || of_file(small)),
        side("figure", &here, || check_sums(rows, numbers(bytes_of(&mut array.map(false)?)))),
    ];
    measure(args, name, "bytes", bytes as f64, sides).map(Some)
}

fn warm_scan(
    args: &Args,
    rows: usize,
    mapping: &mut Mapping,
    huge: &File,
    small: &File,
) -> Result<Option<Value>> {
    let name = "column sums, native, warm";
    if !args.wants(name) {
        return Ok(None);
    }
    let bytes = rows * COLUMNS * 8;
    let here = Processes::with(&[])?;
    let (huge, small) = (Region::of_file(huge, bytes)?, Region::of_file(small, bytes)?);
    let sides = vec![
        side("tmpfs, huge pages", &here, || check_sums(rows, numbers(huge.bytes()))),
        side("tmpfs, 4 KiB pages", &here, || check_sums(rows, numbers(small.bytes()))),
        side("figure", &here, || check_sums(rows, numbers(bytes_of(mapping)))),
    ];
    measure(args, name, "bytes", bytes as f64, sides).map(Some)
}

fn side<'a>(name: &'a str, processes: &'a Processes, mut work: impl FnMut() -> Result<()> + 'a) -> Side<'a> {
    Side { name, processes, work: Box::new(move || work().map(|()| Vec::new())) }
}

fn bytes_of(mapping: &mut Mapping) -> &mut [u8] {
    // SAFETY: mapped as long as the mapping is borrowed; nobody else uses this pool's array.
    unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) }
}

/// Bytes of a mapping as numbers.
pub fn numbers(bytes: &[u8]) -> &[f64] {
    // SAFETY: every pattern of 8 bytes is a number.
    let (before, numbers, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "mappings begin at a page");
    numbers
}

/// The same, to be changed.
pub fn numbers_mut(bytes: &mut [u8]) -> &mut [f64] {
    // SAFETY: every pattern of 8 bytes is a number, and every number one of 8 bytes.
    let (before, numbers, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "mappings begin at a page");
    numbers
}

/// The sum of column j is j × rows.
pub fn fill(matrix: &mut [f64]) {
    let rows = matrix.len() / COLUMNS;
    for (index, column) in matrix.chunks_mut(rows).enumerate() {
        column.fill(index as f64);
    }
}

/// Adds up every column and looks whether the sums are those of [`fill`].
pub fn check_sums(rows: usize, matrix: &[f64]) -> Result<()> {
    let wrong = matrix.chunks(rows).map(sum).enumerate().find(|(index, sum)| *sum != (index * rows) as f64);
    match wrong {
        None => Ok(()),
        Some((index, sum)) => {
            Err(Error::new(ErrorKind::Corrupt, format!("the sum of column {index} is {sum}")))
        }
    }
}

/// Thirty-two sums side by side, so that memory is what limits them.
fn sum(column: &[f64]) -> f64 {
    let mut sums = [0.0; 32];
    let (rows, rest) = column.as_chunks::<32>();
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
    sums.iter().chain(rest).sum()
}

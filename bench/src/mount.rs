//! A mounted pool beside a null file system and a tmpfs: cold reads, cold and warm mappings, mapped stores, and the
//! reads of the program `read_test`, through the mount and by the library.
//!
//! `cold`: the kernel has dropped the file's pages, so that every byte comes from the pool.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{File as PoolFile, Pool};
use ramlace_wire::LayoutHints;
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::columns::{check_sums, fill, numbers, numbers_mut};
use crate::mount_shared::Shared;
use crate::mount_small::Pair;
use crate::mount_writes::Writes;
use crate::null_fuse;
use crate::pool::{connect, write_all};
use crate::region::{Region, huge_file, small_page_file};
use crate::rounds::{Side, measure};

const COLUMNS: usize = 60;
const ROWS: usize = 1 << 20;
const ROWS_QUICK: usize = 1 << 14;
const NAME: &str = "bench-mount";
const CALL_BYTES: usize = 1 << 20;
const PASSTHROUGH: &str = "null FUSE, passthrough";
const WITH_PASSTHROUGH: &str = "figure with --passthrough";
const PASSTHROUGH_NAME: &str = "bench-passthrough";
const STORED: u8 = 7;

/// What `read_test` of 2002 reads: 2,048,000 floats at random offsets of a file of 780 MB, 1000 times.
const READ_TEST_BYTES: usize = 8_192_000;
const READ_TEST_FILE_BYTES: usize = 780_000_000;
const READ_TEST_READS: usize = 100;
const READ_TEST_READS_QUICK: usize = 4;

/// Measures everything.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let rows = if args.quick { ROWS_QUICK } else { ROWS };
    let bytes = rows * COLUMNS * 8;
    let pool = connect(true)?;
    let file = pool.open(format!("/{NAME}"), &ramlace_client::OpenOptions::creating())?;
    let (_root, huge) = huge_file(bytes)?;
    let small = small_page_file(bytes)?;
    for file in [&huge, &small] {
        fill(numbers_mut(Region::of_file(file, bytes)?.bytes_mut()));
    }
    write_all(&file, Region::of_file(&small, bytes)?.bytes(), 0)?;
    let (mounted_path, null_path) = (args.mount.join(NAME), args.null.join(null_fuse::FILES[0]));
    let (mounted, null) = (open(&mounted_path)?, open(&null_path)?);
    let null_passed = open(&args.null.join(null_fuse::PASSTHROUGH_FILE)).ok();
    if let Some(null_passed) = &null_passed {
        fill(numbers_mut(Region::of_file(null_passed, bytes)?.bytes_mut()));
    }
    let passed =
        args.passthrough.as_deref().map(|mount| Passed::make(&pool, mount, &small, bytes)).transpose()?;
    let here = Processes::with(&args.pids)?;
    let sides = Sides {
        args,
        here: &here,
        rows,
        bytes,
        mounted: &mounted,
        null: &null,
        null_passed: null_passed.as_ref(),
        passed: passed.as_ref(),
    };
    let pair =
        Pair { args, here: &here, bytes, mounted: (&mounted, &mounted_path), null: (&null, &null_path) };
    let shared = Shared { args, here: &here, mount: &args.mount, other: &args.other };
    let writes = Writes { args, here: &here, bytes, mount: &args.mount, null: &args.null };
    let figures = [
        shared.turns(),
        shared.first_stores(),
        writes.fresh(),
        writes.over_old_bytes(),
        writes.over_what_was_read(),
        writes.by_two(),
        sides.cold_reads(&huge),
        sides.cold_mapping(),
        sides.warm_sums(&small, &huge),
        pair.reads_again(),
        pair.stats(),
        // The last one of this file, for it leaves no numbers to be summed.
        sides.stores(&huge, &file),
        {
            if passed.is_some() {
                pool.unlink(format!("/{PASSTHROUGH_NAME}"))?;
            }
            drop(passed);
            read_test(args, &pool, &here)
        },
    ];
    drop(file);
    pool.unlink(format!("/{NAME}"))?;
    figures.into_iter().filter_map(Result::transpose).collect()
}

struct Sides<'a> {
    args: &'a Args,
    here: &'a Processes,
    rows: usize,
    bytes: usize,
    mounted: &'a File,
    null: &'a File,
    /// A file of the null file system that goes by kernel passthrough, where there is that.
    null_passed: Option<&'a File>,
    /// The pool's.
    passed: Option<&'a Passed>,
}

/// A file of one lane on a mount with `--passthrough`.
struct Passed {
    reader: File,
    writer: File,
}

impl Passed {
    fn make(pool: &Pool, mount: &Path, content: &File, bytes: usize) -> Result<Passed> {
        let hints = LayoutHints { width: Some(1), ..LayoutHints::default() };
        let options = ramlace_client::OpenOptions { hints, ..ramlace_client::OpenOptions::creating() };
        let file = pool.open(format!("/{PASSTHROUGH_NAME}"), &options)?;
        write_all(&file, Region::of_file(content, bytes)?.bytes(), 0)?;
        file.close()?;
        let path = mount.join(PASSTHROUGH_NAME);
        let reader = File::open(&path)
            .map_err(|error| Error::from_io(&error, format!("opening {}", path.display())))?;
        Ok(Passed { reader, writer: open(&path)? })
    }
}

impl Sides<'_> {
    fn cold_reads(&self, huge: &File) -> Result<Option<Value>> {
        let name = "mount, sequential read, cold";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let read = |file: &File| {
            forget_pages(file)?;
            let mut buffer = vec![0; CALL_BYTES];
            read_all(file, self.bytes, &mut buffer)
        };
        let mut sides = vec![self.side("null FUSE", || read(self.null))];
        sides.extend(self.null_passed.map(|passed| self.side(PASSTHROUGH, move || read(passed))));
        sides.extend(self.passed.map(|passed| self.side(WITH_PASSTHROUGH, move || read(&passed.reader))));
        sides.extend([
            self.side("tmpfs, huge pages", || read(huge)),
            self.side("figure", || read(self.mounted)),
        ]);
        measure(self.args, name, "bytes", self.bytes as f64, sides).map(Some)
    }

    fn cold_mapping(&self) -> Result<Option<Value>> {
        let name = "mount, mapped column sums, cold";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let null = || {
            forget_pages(self.null)?;
            let region = Region::of_file(self.null, self.bytes)?;
            let sum: f64 = numbers(region.bytes()).iter().sum();
            if sum == 0.0 { Ok(()) } else { Err(Error::new(ErrorKind::Corrupt, "zeros have a sum")) }
        };
        let mounted = || {
            forget_pages(self.mounted)?;
            let region = Region::of_file(self.mounted, self.bytes)?;
            check_sums(self.rows, numbers(region.bytes()))
        };
        let mut sides = vec![self.side("null FUSE", null)];
        sides.extend(self.passed.map(|passed| {
            self.side(WITH_PASSTHROUGH, || {
                let region = Region::of_file(&passed.writer, self.bytes)?;
                check_sums(self.rows, numbers(region.bytes()))
            })
        }));
        sides.push(self.side("figure", mounted));
        measure(self.args, name, "bytes", self.bytes as f64, sides).map(Some)
    }

    /// All pages are in the kernel, and each side maps anew, so that page faults count on all of them.
    fn warm_sums(&self, small: &File, huge: &File) -> Result<Option<Value>> {
        let name = "mount, mapped column sums, warm";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let sum = |file: &File| check_sums(self.rows, numbers(Region::of_file(file, self.bytes)?.bytes()));
        sum(self.mounted)?;
        let mut sides = vec![
            self.side("tmpfs, 4 KiB pages", || sum(small)),
            self.side("tmpfs, huge pages", || sum(huge)),
        ];
        sides.extend(self.null_passed.map(|passed| self.side(PASSTHROUGH, move || sum(passed))));
        sides.extend(self.passed.map(|passed| self.side(WITH_PASSTHROUGH, move || sum(&passed.writer))));
        sides.push(self.side("figure", || sum(self.mounted)));
        measure(self.args, name, "bytes", self.bytes as f64, sides).map(Some)
    }

    /// Every byte is stored, and published.
    fn stores(&self, huge: &File, file: &PoolFile) -> Result<Option<Value>> {
        let name = "mount, mapped stores";
        if !self.args.wants(name) {
            return Ok(None);
        }
        let store = |file: &File| {
            let mut region = Region::of_file(file, self.bytes)?;
            region.bytes_mut().fill(STORED);
            region.publish()
        };
        let mut sides =
            vec![self.side("null FUSE", || store(self.null)), self.side("tmpfs, huge pages", || store(huge))];
        sides.extend(self.null_passed.map(|passed| self.side(PASSTHROUGH, move || store(passed))));
        sides.extend(self.passed.map(|passed| self.side(WITH_PASSTHROUGH, move || store(&passed.writer))));
        sides.push(self.side("figure", || store(self.mounted)));
        let figure = measure(self.args, name, "bytes", self.bytes as f64, sides)?;
        let mut last = [0];
        read_native(file, &mut last, self.bytes as u64 - 1)?;
        if last == [STORED] {
            return Ok(Some(figure));
        }
        Err(Error::new(ErrorKind::Corrupt, "a store was published and is not in the pool"))
    }

    fn side<'b>(&'b self, name: &'b str, mut work: impl FnMut() -> Result<()> + 'b) -> Side<'b> {
        Side { name, processes: self.here, work: Box::new(move || work().map(|()| Vec::new())) }
    }
}

/// The program of 2002: by the library, and through the mount (whose pages stay from read to read).
fn read_test(args: &Args, pool: &Pool, here: &Processes) -> Result<Option<Value>> {
    let name = "read_test, native";
    if !args.wants(name) {
        return Ok(None);
    }
    let reads = if args.quick { READ_TEST_READS_QUICK } else { READ_TEST_READS };
    let file_bytes = if args.quick { 4 * READ_TEST_BYTES } else { READ_TEST_FILE_BYTES };
    let path = "/bench-read-test";
    let file = pool.open(path, &ramlace_client::OpenOptions::creating())?;
    write_all(&file, &vec![1; file_bytes], 0)?;
    let mounted = open(&args.mount.join(&path[1..]))?;
    let mut buffer = vec![0; READ_TEST_BYTES];
    let mut native = vec![0; READ_TEST_BYTES];
    let from_mount = |buffer: &mut [u8], cold: bool| {
        if cold {
            forget_pages(&mounted)?;
        }
        offsets(file_bytes, reads).try_for_each(|offset| {
            mounted.read_exact_at(buffer, offset).map_err(|error| Error::from_io(&error, "reading"))
        })
    };
    let buffer = std::cell::RefCell::new(&mut buffer);
    let side = |name, work| Side { name, processes: here, work };
    let sides = vec![
        side(
            "through the mount",
            Box::new(|| from_mount(&mut buffer.borrow_mut(), false).map(|()| Vec::new())),
        ),
        side(
            "through the mount, cold",
            Box::new(|| from_mount(&mut buffer.borrow_mut(), true).map(|()| Vec::new())),
        ),
        side(
            "figure",
            Box::new(|| {
                offsets(file_bytes, reads)
                    .try_for_each(|offset| read_native(&file, &mut native, offset))
                    .map(|()| Vec::new())
            }),
        ),
    ];
    let figure = measure(args, name, "bytes", (reads * READ_TEST_BYTES) as f64, sides)?;
    pool.unlink(path)?;
    Ok(Some(figure))
}

fn read_native(file: &PoolFile, buffer: &mut [u8], offset: u64) -> Result<()> {
    let read = file.read_at(buffer, offset)?;
    if read == buffer.len() { Ok(()) } else { Err(Error::new(ErrorKind::Corrupt, "the file is too short")) }
}

/// The same offsets in every round, spread over the file: multiples of a number with no small factor in common.
fn offsets(file_bytes: usize, reads: usize) -> impl Iterator<Item = u64> {
    let places = (file_bytes - READ_TEST_BYTES) as u64;
    (1..=reads as u64).map(move |number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % places / 4 * 4)
}

fn read_all(file: &File, bytes: usize, buffer: &mut [u8]) -> Result<()> {
    for offset in (0..bytes).step_by(buffer.len()) {
        let part = buffer.len().min(bytes - offset);
        file.read_exact_at(&mut buffer[..part], offset as u64)
            .map_err(|error| Error::from_io(&error, "reading"))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| Error::from_io(&error, format!("opening {}", path.display())))
}

/// The kernel drops the file's clean pages.
fn forget_pages(file: &File) -> Result<()> {
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|errno| Error::from_io(&errno.into(), "dropping a file's pages"))
}

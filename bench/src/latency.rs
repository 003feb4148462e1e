//! Calls of 4 KiB, one in flight: how long each takes, beside the raw loop's.

use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, File, OpenOptions, Pool};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::connection::{Connection, Wish};
use crate::cores::{Cores, Servers};
use crate::pattern;
use crate::pool::{connect, filled_file, options};
use crate::raw_client;
use crate::raw_server::RawServer;
use crate::region::Region;
use crate::rounds::{Extra, Side, measure};

const CALL_BYTES: usize = 4096;
const FILE_BYTES: usize = 64 << 20;
const CALLS: usize = 10_000;
const CALLS_QUICK: usize = 300;
/// Odd, so that every page has its turn: neighbours are far apart.
const STRIDE_PAGES: usize = 4_099;

/// Measures reads and writes over TCP and Unix sockets.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let mut buffer = Region::private(8 << 20)?;
    let raw = RawServer::start(args, FILE_BYTES)?;
    let (ours, theirs) = (Processes::with(&args.pids)?, Processes::with(&[raw.pid()])?);
    let _cores = Cores::keep(Servers::Together, [&args.pids[..], &[raw.pid()][..]].concat())?;
    let calls = if args.quick { CALLS_QUICK } else { CALLS };
    let mut figures = Vec::new();
    for (unix, transport) in [(false, "tcp"), (true, "unix")] {
        let pool = connect(unix)?;
        let file = filled_file(&pool, "/bench-latency", 1, FILE_BYTES, buffer.bytes_mut())?;
        let connection = raw.connect(unix)?;
        for (wish, what) in [(Wish::Read, "read"), (Wish::Write, "write")] {
            let name = format!("{what} 4 KiB, {transport}");
            if !args.wants(&name) {
                continue;
            }
            let raw_loop = || each(calls, |offset, page| raw_call(&connection, wish, offset, page));
            let library = || each(calls, |offset, page| call(&file, wish, offset, page));
            let sides = vec![
                Side { name: "raw blocking loop", processes: &theirs, work: Box::new(raw_loop) },
                Side { name: "figure", processes: &ours, work: Box::new(library) },
            ];
            figures.push(measure(args, &name, "calls", calls as f64, sides)?);
        }
        let name = format!("read 4 KiB again, cached, {transport}");
        if args.wants(&name) {
            let caching =
                Pool::connect(&ConnectOptions { cache_bytes: 2 * FILE_BYTES as u64, ..options(unix) })?;
            let cached = caching.open("/bench-latency", &OpenOptions::reading())?;
            each(FILE_BYTES / CALL_BYTES, |offset, page| call(&cached, Wish::Read, offset, page))?;
            let library = || each(calls, |offset, page| call(&file, Wish::Read, offset, page));
            let again = || each(calls, |offset, page| call(&cached, Wish::Read, offset, page));
            let sides = vec![
                Side { name: "without a cache", processes: &ours, work: Box::new(library) },
                Side { name: "figure", processes: &ours, work: Box::new(again) },
            ];
            figures.push(measure(args, &name, "calls", calls as f64, sides)?);
        }
        file.close()?;
        pool.unlink("/bench-latency")?;
    }
    Ok(figures)
}

/// Calls on pages all over the file; the times in microseconds.
fn each(calls: usize, mut call: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Extra> {
    let mut micros = Vec::with_capacity(calls);
    let mut page = vec![0; CALL_BYTES];
    for index in 0..calls {
        let offset = (index * STRIDE_PAGES % (FILE_BYTES / CALL_BYTES) * CALL_BYTES) as u64;
        pattern::mark(&mut page, offset);
        let begun = Instant::now();
        call(offset, &mut page)?;
        micros.push(begun.elapsed().as_secs_f64() * 1e6);
        pattern::check(&page, offset)?;
    }
    micros.sort_unstable_by(f64::total_cmp);
    let percentile = |percent: usize| micros[(micros.len() - 1) * percent / 100];
    Ok(vec![("p50_micros", percentile(50)), ("p99_micros", percentile(99))])
}

fn raw_call(connection: &Connection, wish: Wish, offset: u64, page: &mut [u8]) -> Result<()> {
    raw_client::call(connection, wish, offset, page)
}

fn call(file: &File, wish: Wish, offset: u64, page: &mut [u8]) -> Result<()> {
    let moved = match wish {
        Wish::Write => file.write_at(page, offset)?,
        _ => file.read_at(page, offset)?,
    };
    if moved < page.len() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("only {moved} bytes were moved at offset {offset}"),
        ));
    }
    Ok(())
}

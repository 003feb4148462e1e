//! What it costs that requests can be traced (`RAMLACE_LOG`): calls of 4 KiB of this process, as its variable says, and events that nobody
//! asked for. `bench/tracing_cost.py` runs it with and without.

use std::hint::black_box;
use std::time::Instant;

use ramlace_base::Result;
use ramlace_client::File;

use crate::args::Args;
use crate::pool::{connect, filled_file};
use crate::region::Region;

const CALL_BYTES: usize = 4096;
const FILE_BYTES: usize = 16 << 20;
const CALLS: usize = 5_000;
const CALLS_QUICK: usize = 200;
/// Odd, so that every page has its turn.
const STRIDE_PAGES: usize = 1_021;
const EVENTS: u32 = 5_000_000;
const EVENTS_QUICK: u32 = 50_000;

/// Prints the median of reads and of writes over TCP in microseconds, and the nanoseconds of one event of a target that is not traced.
pub fn run(args: &Args) -> Result<()> {
    let (calls, events) = if args.quick { (CALLS_QUICK, EVENTS_QUICK) } else { (CALLS, EVENTS) };
    let mut buffer = Region::private(1 << 20)?;
    // Without the memory of this machine's servers: each call is a request.
    let pool = connect(false)?;
    let file = filled_file(&pool, "/bench-traced", 1, FILE_BYTES, buffer.bytes_mut())?;
    let mut page = vec![1; CALL_BYTES];
    let read = median(calls, |offset| file.read_at(&mut page, offset).map(drop))?;
    let write = median(calls, |offset| written(&file, &[2; CALL_BYTES], offset))?;
    file.close()?;
    let told = serde_json::json!({ "read": read, "write": write, "event_nanos": event_nanos(events) });
    println!("{told}");
    Ok(())
}

fn written(file: &File, page: &[u8], offset: u64) -> Result<()> {
    file.write_at(page, offset).map(drop)
}

/// Microseconds of a call, by median; the first ones do not count.
fn median(calls: usize, mut call: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let mut micros = Vec::with_capacity(calls);
    for index in 0..calls + calls / 10 {
        let offset = (index * STRIDE_PAGES % (FILE_BYTES / CALL_BYTES) * CALL_BYTES) as u64;
        let begun = Instant::now();
        call(offset)?;
        if index >= calls / 10 {
            micros.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    micros.sort_unstable_by(f64::total_cmp);
    Ok(micros[micros.len() / 2])
}

/// Nanoseconds of an event like those of a call, beside a loop without one.
fn event_nanos(events: u32) -> f64 {
    let timed = |work: &dyn Fn(u32)| {
        let begun = Instant::now();
        (0..events).for_each(|number| work(black_box(number)));
        begun.elapsed().as_secs_f64()
    };
    let empty = timed(&|number| {
        black_box(number);
    });
    let with_event = timed(&|number| {
        tracing::debug!(target: "ramlace::bench", request = %black_box(number), kind = ?number, "asks");
        black_box(number);
    });
    (with_event - empty) / f64::from(events) * 1e9
}

//! Creating, looking up and removing files, one call after the other, beside the raw loop's
//! exchange of two heads: a request cannot cost less than that.

use std::time::Instant;

use ramlace_base::Result;
use ramlace_client::{File, OpenOptions, Pool};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::connection::Wish;
use crate::cores::{Cores, Servers};
use crate::pool::connect;
use crate::raw_client;
use crate::raw_server::RawServer;
use crate::rounds::{Extra, Side, measure};

const NAMES: usize = 3_000;
const NAMES_QUICK: usize = 100;
const REGION_BYTES: usize = 2 << 20;
const DIRECTORY: &str = "/bench-names";

/// Measures the operations over TCP and over the Unix socket: both ends on one core, where CPU time decides,
/// and each on its own, where it matters which of them sleeps while it waits.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let raw = RawServer::start(args, REGION_BYTES)?;
    let pids = [&args.pids[..], &[raw.pid()][..]].concat();
    let mut figures = Vec::new();
    for (transport, unix, servers) in [
        ("tcp", false, Servers::Together),
        ("unix", true, Servers::Together),
        ("unix, two cores", true, Servers::Apart),
    ] {
        let _cores = Cores::keep(servers, pids.clone())?;
        figures.extend(run_by(args, &raw, transport, unix)?);
    }
    Ok(figures)
}

fn run_by(args: &Args, raw: &RawServer, transport: &str, unix: bool) -> Result<Vec<Value>> {
    let pool = connect(unix)?;
    pool.mkdir(DIRECTORY, 0o700)?;
    let connection = raw.connect(unix)?;
    let (ours, theirs) = (Processes::with(&args.pids)?, Processes::with(&[raw.pid()])?);
    let names = if args.quick { NAMES_QUICK } else { NAMES };
    let echo = || {
        (0..names).try_for_each(|_| raw_client::call(&connection, Wish::Echo, 0, &mut []))?;
        Ok(Vec::new())
    };
    let mut figures = Vec::new();
    for (what, operation) in [
        ("create", create as Operation),
        ("create and close", create_and_close),
        ("stat", stat),
        ("unlink", unlink),
    ] {
        let name = format!("{what}, {transport}");
        if args.wants(&name) {
            let work = || timed(&pool, &ours, names, operation);
            let sides = vec![
                Side { name: "raw exchange of 64 bytes", processes: &theirs, work: Box::new(echo) },
                Side { name: "figure", processes: &ours, work: Box::new(work) },
            ];
            figures.push(measure(args, &name, "operations", names as f64, sides)?);
        }
    }
    pool.rmdir(DIRECTORY)?;
    Ok(figures)
}

/// What it opens is closed when the time is taken.
type Operation = fn(&Pool, &str) -> Result<Option<File>>;

fn create(pool: &Pool, path: &str) -> Result<Option<File>> {
    pool.open(path, &OpenOptions { exclusive: true, ..OpenOptions::creating() }).map(Some)
}

fn create_and_close(pool: &Pool, path: &str) -> Result<Option<File>> {
    create(pool, path)?.map_or(Ok(()), File::close)?;
    Ok(None)
}

fn stat(pool: &Pool, path: &str) -> Result<Option<File>> {
    pool.stat(path)?;
    Ok(None)
}

fn unlink(pool: &Pool, path: &str) -> Result<Option<File>> {
    pool.unlink(path)?;
    Ok(None)
}

/// Times one operation on all names; what it needs before and leaves behind is not timed.
fn timed(pool: &Pool, processes: &Processes, names: usize, operation: Operation) -> Result<Extra> {
    let paths: Vec<String> = (0..names).map(|index| format!("{DIRECTORY}/file-{index}")).collect();
    let all = |operation: Operation| {
        paths.iter().map(|path| operation(pool, path)).collect::<Result<Vec<Option<File>>>>()
    };
    let is = |others: &[Operation]| others.iter().any(|other| std::ptr::fn_addr_eq(operation, *other));
    if is(&[stat, unlink]) {
        all(create_and_close)?;
    }
    let cpu = processes.cpu_seconds()?;
    let begun = Instant::now();
    let opened = all(operation)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = processes.cpu_seconds()? - cpu;
    drop(opened);
    if !is(&[unlink]) {
        all(unlink)?;
    }
    Ok(vec![("seconds", seconds), ("cpu_seconds", cpu)])
}

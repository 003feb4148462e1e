//! Locks, cells and barriers, beside the raw loop's exchange of two heads, and the requests that they cost.
//!
//! Requests are what the servers count; heartbeats and the request for the count itself are among them, and are
//! few beside the thousands of a run.

use std::thread;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_client::{File, LockKind, OpenOptions, Pool};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::connection::Wish;
use crate::cores::{Cores, Servers};
use crate::pool::connect;
use crate::raw_client;
use crate::raw_server::RawServer;
use crate::rounds::{Side, measure};

const TIMES: usize = 3_000;
const TIMES_QUICK: usize = 50;
const REGION_BYTES: usize = 2 << 20;
const MEMBERS: u32 = 8;
const PATH: &str = "/bench-coordination";
const BYTES: ByteRange = ByteRange { start: 0, end: 8 };

/// Measures them over the Unix socket, with all processes on one core and with none kept to any.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let raw = RawServer::start(args, REGION_BYTES)?;
    let pids = [&args.pids[..], &[raw.pid()][..]].concat();
    let mut figures = Vec::new();
    for (transport, servers) in [("unix", Servers::Together), ("unix, two cores", Servers::Apart)] {
        let _cores = Cores::keep(servers, pids.clone())?;
        figures.extend(run_by(args, &raw, transport)?);
    }
    Ok(figures)
}

fn run_by(args: &Args, raw: &RawServer, transport: &str) -> Result<Vec<Value>> {
    let connection = raw.connect(true)?;
    let (ours, theirs) = (Processes::with(&args.pids)?, Processes::with(&[raw.pid()])?);
    let times = if args.quick { TIMES_QUICK } else { TIMES };
    let members = (0..MEMBERS).map(|_| connect(true)).collect::<Result<Vec<Pool>>>()?;
    let files = members.iter().take(2).map(open).collect::<Result<Vec<File>>>()?;
    files[0].truncate(8)?;
    let mut figures = Vec::new();
    for (what, unit, work) in [
        ("lock and unlock", "operations", lock_and_unlock as Work),
        ("lock handed over between two", "operations", hand_over),
        ("fetch-add", "operations", fetch_add),
        ("barrier of 8", "operations", barrier),
    ] {
        let name = format!("{what}, {transport}");
        if !args.wants(&name) {
            continue;
        }
        let echo = || {
            (0..times).try_for_each(|_| raw_client::call(&connection, Wish::Echo, 0, &mut []))?;
            Ok(Vec::new())
        };
        let counted = || {
            let before = requests(&members[0])?;
            work(&members, &files, times)?;
            let each = (requests(&members[0])? - before) as f64 / times as f64;
            Ok(vec![("requests_each", each)])
        };
        let sides = vec![
            Side { name: "raw exchange of 64 bytes", processes: &theirs, work: Box::new(echo) },
            Side { name: "figure", processes: &ours, work: Box::new(counted) },
        ];
        figures.push(measure(args, &name, unit, times as f64, sides)?);
    }
    drop(files);
    members[0].unlink(PATH)?;
    Ok(figures)
}

/// Something done so many times by some of the members.
type Work = fn(&[Pool], &[File], usize) -> Result<()>;

fn open(pool: &Pool) -> Result<File> {
    pool.open(PATH, &OpenOptions::creating())
}

/// What all servers have answered.
fn requests(pool: &Pool) -> Result<u64> {
    pool.status()?.into_iter().map(|report| Ok(report.status?.requests)).sum()
}

fn lock_and_unlock(_: &[Pool], files: &[File], times: usize) -> Result<()> {
    (0..times).try_for_each(|_| {
        files[0].lock(BYTES, LockKind::Exclusive, None)?;
        files[0].unlock(BYTES)
    })
}

/// Two that want the same lock all the time: each gets it every other time.
fn hand_over(_: &[Pool], files: &[File], times: usize) -> Result<()> {
    thread::scope(|scope| {
        let both: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || lock_and_unlock(&[], std::slice::from_ref(file), times / 2)))
            .collect();
        both.into_iter().try_for_each(joined)
    })
}

fn fetch_add(_: &[Pool], files: &[File], times: usize) -> Result<()> {
    (0..times).try_for_each(|_| files[0].fetch_add(0, 1).map(drop))
}

fn barrier(members: &[Pool], _: &[File], times: usize) -> Result<()> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..)
            .zip(members)
            .map(|(member, pool)| {
                scope.spawn(move || {
                    (0..times).try_for_each(|_| pool.barrier("bench", MEMBERS, member, None).map(drop))
                })
            })
            .collect();
        all.into_iter().try_for_each(joined)
    })
}

fn joined(thread: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Fatal, "a thread of the bench has panicked")))
}

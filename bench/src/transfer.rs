//! Sequential reads and writes in requests of 1 MiB, beside a raw blocking loop of the same shape.
//!
//! `calls`: one call of the library for each MiB, so one request in flight; the raw loop waits
//! for each reply as well. `stream`: calls of 32 MiB, which the library cuts into requests of
//! 1 MiB with 4 in flight on each connection; the raw loop keeps 4 in flight as well.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::File;
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::connection::{Connection, Wish};
use crate::cores::{Cores, Servers};
use crate::pool::{connect, filled_file};
use crate::raw_client::Transfer;
use crate::raw_server::RawServer;
use crate::region::Region;
use crate::rounds::{Side, measure};
use crate::{pattern, pool};

const REQUEST_BYTES: usize = 1 << 20;
/// One call of the library in a stream.
const CALL_BYTES: usize = 32 << 20;
/// What the library keeps in flight on one connection: WINDOW_BYTES_MAX of its transfers.
const STREAM_DEPTH: usize = 4;
/// How often a round goes through the file: short rounds are at the scheduler's mercy.
const PASSES: usize = 3;
/// A file; a multiple of 3 stripe units and of a call.
const FILE_BYTES: usize = 384 << 20;
const FILE_BYTES_QUICK: usize = 12 << 20;
const CALL_BYTES_QUICK: usize = 6 << 20;

struct Case {
    unix: bool,
    servers: u16,
    streamed: bool,
    wish: Wish,
}

impl Case {
    fn name(&self) -> String {
        let wish = if self.wish == Wish::Read { "read" } else { "write" };
        let transport = if self.unix { "unix" } else { "tcp" };
        let shape = if self.streamed { "stream" } else { "calls" };
        let plural = if self.servers == 1 { "" } else { "s" };
        format!("{wish} 1 MiB, {shape}, {transport}, {} server{plural}", self.servers)
    }
}

/// Measures all cases.
pub fn run(args: &Args) -> Result<Vec<Value>> {
    let bytes = if args.quick { FILE_BYTES_QUICK } else { FILE_BYTES };
    let mut buffer = Region::private(if args.quick { CALL_BYTES_QUICK } else { CALL_BYTES })?;
    let mut figures = Vec::new();
    for unix in [false, true] {
        let pool = connect(unix)?;
        for servers in [1, 3] {
            let path = "/bench-transfer";
            let cases = [(false, Wish::Read), (true, Wish::Read), (false, Wish::Write), (true, Wish::Write)];
            let cases = cases.map(|(streamed, wish)| Case { unix, servers, streamed, wish });
            // One connection is what a Unix socket is asked about; it adds nothing with three.
            let wanted: Vec<Case> = cases.into_iter().filter(|case| args.wants(&case.name())).collect();
            if wanted.is_empty() || (unix && servers > 1) {
                continue;
            }
            let file = filled_file(&pool, path, servers, bytes, buffer.bytes_mut())?;
            for case in wanted {
                figures.push(measure_case(args, &case, &file, bytes, &mut buffer)?);
            }
            file.close()?;
            pool.unlink(path)?;
        }
    }
    Ok(figures)
}

fn measure_case(args: &Args, case: &Case, file: &File, bytes: usize, buffer: &mut Region) -> Result<Value> {
    let passes = if args.quick { 1 } else { PASSES };
    let share = bytes / usize::from(case.servers);
    let raw: Vec<RawServer> =
        (0..case.servers).map(|_| RawServer::start(args, share)).collect::<Result<_>>()?;
    let connections: Vec<Connection> =
        raw.iter().map(|server| server.connect(case.unix)).collect::<Result<_>>()?;
    let raw_pids: Vec<i32> = raw.iter().map(RawServer::pid).collect();
    let (ours, theirs) = (Processes::with(&args.pids)?, Processes::with(&raw_pids)?);
    let _cores = Cores::keep(Servers::Apart, [&args.pids[..], &raw_pids[..]].concat())?;
    let call = if case.streamed { buffer.bytes().len() } else { REQUEST_BYTES };
    // The two sides take turns with one buffer.
    let shared = std::cell::RefCell::new(buffer);
    let transfer =
        Transfer { connections: &connections, wish: case.wish, bytes, request_bytes: REQUEST_BYTES };
    let raw_loop = || {
        let mut buffer = shared.borrow_mut();
        let buffer = &mut buffer.bytes_mut()[..call];
        for _ in 0..passes {
            if case.streamed { transfer.stream(STREAM_DEPTH, buffer)? } else { transfer.calls(buffer)? }
        }
        Ok(Vec::new())
    };
    let library = || {
        for _ in 0..passes {
            move_file(file, case.wish, bytes, &mut shared.borrow_mut().bytes_mut()[..call])?;
        }
        Ok(Vec::new())
    };
    let sides = vec![
        Side { name: "raw blocking loop", processes: &theirs, work: Box::new(raw_loop) },
        Side { name: "figure", processes: &ours, work: Box::new(library) },
    ];
    let measured = measure(args, &case.name(), "bytes", (passes * bytes) as f64, sides)?;
    verify(file, case.wish, bytes, shared.into_inner().bytes_mut())?;
    Ok(measured)
}

fn move_file(file: &File, wish: Wish, bytes: usize, buffer: &mut [u8]) -> Result<()> {
    for offset in (0..bytes).step_by(buffer.len()) {
        match wish {
            Wish::Write => pool::write_all(file, buffer, offset as u64)?,
            _ => read_full(file, buffer, offset as u64)?,
        }
    }
    Ok(())
}

fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> Result<()> {
    let read = file.read_at(buffer, offset)?;
    if read < buffer.len() {
        return Err(Error::new(ErrorKind::Corrupt, format!("only {read} bytes came from offset {offset}")));
    }
    Ok(())
}

/// After writes, which wrote whatever the buffer held, the marks are written again; then every
/// byte is read and looked at once, outside of what is timed.
fn verify(file: &File, wish: Wish, bytes: usize, buffer: &mut [u8]) -> Result<()> {
    if wish == Wish::Write {
        pool::write_marked(file, bytes, buffer)?;
    }
    for offset in (0..bytes).step_by(buffer.len()) {
        read_full(file, buffer, offset as u64)?;
        pattern::check(buffer, offset as u64)?;
    }
    Ok(())
}

//! `df`: how much room the pool has.

use std::ffi::OsString;

use ramlace_base::units::{count, format_bytes};
use ramlace_client::Capacity;
use serde_json::json;

use crate::failure::{Done, Failure};
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::{percent, table};

const EXAMPLES: &str = "\
Examples:
  ramlace df
  ramlace df /mnt/pool      of the pool that is mounted there
  ramlace df --json | jq .free_bytes

ONE FILE is what one more file can have that lies on all servers, as usual: the one with the least room counts for each
of them, and what servers keep for their logs is no file's. ONE DIRECTORY is how many more files any one directory can
have at the least: its files live with one server until there are 8,192.

Bytes of servers that do not answer are not counted, and the exit code is 1 then; `ramlace status` shows each server.";

/// Arguments of `df`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A place in a pool, whose room is told [default: the pool that is meant]
    #[arg(value_name = "PATH")]
    pub path: Option<OsString>,
}

/// Prints the sums over all servers that answer.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let pool = match &args.path {
        Some(path) => pools.of(&in_pool(path)?)?,
        None => pools.usual()?,
    };
    let capacity = pool.statfs()?;
    if output.json {
        output.json(&json!({
            "total_bytes": capacity.total_bytes, "used_bytes": capacity.used_bytes,
            "free_bytes": capacity.free_bytes, "file_bytes": capacity.file_bytes, "inodes": capacity.inodes,
            "inodes_max": capacity.inodes_max, "directory_inodes": capacity.directory_inodes,
            "silent_servers": capacity.silent_servers,
        }))?;
    } else {
        print(&capacity, output)?;
    }
    output.flush()?;
    if capacity.silent_servers == 0 {
        return Ok(());
    }
    output.note(silence(capacity.silent_servers));
    Err(Failure::Told)
}

/// That the sums are not those of the whole pool.
fn silence(servers: u32) -> String {
    let (do_not, are) = if servers == 1 { ("does not", "is") } else { ("do not", "are") };
    let servers = count(servers.into(), "server");
    format!("{servers} {do_not} answer and {are} not counted; 'ramlace status' shows each server")
}

fn print(capacity: &Capacity, output: &mut Output) -> Done {
    let rows = [
        ["SIZE", "USED", "FREE", "FILL", "ONE FILE", "INODES", "OF", "ONE DIRECTORY"]
            .map(str::to_owned)
            .to_vec(),
        vec![
            format_bytes(capacity.total_bytes),
            format_bytes(capacity.used_bytes),
            format_bytes(capacity.free_bytes),
            format!("{:.1}%", percent(capacity.used_bytes, capacity.total_bytes)),
            format_bytes(capacity.file_bytes),
            capacity.inodes.to_string(),
            capacity.inodes_max.to_string(),
            capacity.directory_inodes.to_string(),
        ],
    ];
    table(&rows, &[0, 1, 2, 3, 4, 5, 6, 7]).into_iter().try_for_each(|line| output.line(line))
}

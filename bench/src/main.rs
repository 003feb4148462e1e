//! `ramlace-bench DRIVER [OPTIONS]`: the native drivers of `bench/run.py`.
//!
//! A driver measures a figure of a running pool and, in turns with it, the limit that this
//! machine sets: the same work by the plainest program that could do it. It prints the samples of
//! every round as JSON; medians, ratios and tables are made by `bench/run.py`.
//!
//! Invariant: a driver never judges; nothing here fails because something was slow.

mod args;
mod clock;
mod columns;
mod connection;
mod coordination;
mod cores;
mod hold_file;
mod idle_client;
mod latency;
mod mount;
mod mount_shared;
mod mount_small;
mod mount_writes;
mod names;
mod null_fuse;
mod null_tree;
mod pattern;
mod pool;
mod raw_client;
mod raw_server;
mod region;
mod rounds;
mod traced;
mod transfer;

use std::process::ExitCode;

use ramlace_base::{Error, ErrorKind, Result};

use crate::args::Args;

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ramlace-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let figures = match args.driver.as_str() {
        "transfer" => transfer::run(args)?,
        "latency" => latency::run(args)?,
        "columns" => columns::run(args)?,
        "names" => names::run(args)?,
        "coordination" => coordination::run(args)?,
        "mount" => mount::run(args)?,
        // What the drivers and bench/run.py start as helpers: they answer on standard output and
        // end with standard input.
        "raw-server" => return raw_server::run(args),
        "hold-file" => return hold_file::run(args),
        "null-fuse" => return null_fuse::run(args),
        "null-tree" => return null_tree::run(args),
        "idle-client" => return idle_client::run(args),
        "traced" => return traced::run(args),
        other => {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "there is no driver '{other}'; there are transfer, latency, columns, names, coordination, mount, hold-file, null-fuse, null-tree, idle-client, traced"
                ),
            ));
        }
    };
    println!("{}", serde_json::json!({ "figures": figures }));
    Ok(())
}

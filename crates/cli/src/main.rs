//! The command `ramlace`: starts, looks at and stops pools, and copies files in and out.
//!
//! One file for each command under `commands`; `copy` is the engine of `cp`. Results go to
//! standard output, everything else to standard error; with `--json` both are JSON.
//!
//! Invariant: `cli` decides nothing about bytes, names or placement; the client library does.
#![deny(unsafe_code)]

mod args;
mod commands;
mod copy;
mod daemon;
mod failure;
mod lock;
mod output;
mod place;
mod pool_processes;
mod ready;
mod show;
mod stop;
mod streams;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut output = Output::new(cli.json);
    let done = commands::run(&cli, &mut output);
    let done = done.and_then(|()| output.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report(cli.json)),
    }
}

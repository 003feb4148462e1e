//! The command `ramlace`: starts, looks at and stops pools, and copies files in and out.
//!
//! One file for each command under `commands`; `copy` is the engine of `cp`. Results go to
//! standard output, everything else to standard error; with `--json` both are JSON.
//!
//! Invariant: `cli` decides nothing about bytes, names or placement; the client library does.
#![deny(unsafe_code)]

mod agent_protocol;
mod args;
mod changes;
mod commands;
mod copy;
mod crew;
mod daemon;
mod date;
mod failure;
mod glob;
mod hosts;
mod hosts_progress;
mod hosts_stop;
mod interrupt;
mod json_list;
mod local_time;
mod lock;
mod mode_words;
mod mount_users;
mod mounting;
mod output;
mod owner;
mod place;
mod pool_processes;
mod ready;
mod remote;
mod show;
mod stop;
mod streams;
mod tally;
mod top;
mod tree;
mod words;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::output::Output;

fn main() -> ExitCode {
    let words = commands::find_words::with_double_dashes(std::env::args_os());
    let cli = Cli::parse_from(words);
    let mut output = Output::new(cli.json);
    let done = commands::run(&cli, &mut output);
    let done = done.and_then(|()| output.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report(cli.json)),
    }
}

//! The command `ramlace`: starts, looks at and stops pools, and copies files in and out.
//!
//! One file for each command under `commands`; what `cp`, `up` and `down` do is libraries (`crates/copy`, `crates/launch`). Results go to
//! standard output, everything else to standard error; with `--json` both are JSON.
//!
//! Invariant: `cli` decides nothing about bytes, names or placement; the client library does.
#![deny(unsafe_code)]

mod args;
mod attribute_changes;
mod changes;
mod commands;
mod date;
mod failure;
mod glob;
mod help;
mod hosts_progress;
mod interrupt;
mod json_list;
mod local_time;
mod message_counts;
mod mode_words;
mod mount_helper;
mod mount_options;
mod mount_sandbox;
mod mount_users;
mod mounted_pools;
mod mounting;
mod output;
mod owner;
mod place;
mod progress;
mod show;
mod streams;
mod tally;
mod top;
mod tree;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches};
use ramlace_base::{Error, ErrorKind};

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    if let Some(name) = mount_helper::called_as(std::env::args_os().next().as_deref()) {
        return mount_helper::run(&name);
    }
    let words = commands::find_words::with_double_dashes(std::env::args_os());
    let json = words.iter().any(|word| word == "--json");
    let parse = |command: Command, words| {
        command.try_get_matches_from(words).and_then(|found| Cli::from_arg_matches(&found))
    };
    // Most command lines need no help: its texts are laid out for those that do.
    let parsed = parse(Cli::command(), words.clone()).or_else(|_| parse(help::command(), words));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error, json),
    };
    let mut output = Output::new(cli.json);
    let done = commands::run(&cli, &mut output);
    let done = done.and_then(|()| output.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A shell ends a loop only if its program was ended by the signal.
            if let Failure::Signal(signal) = failure {
                interrupt::end_by(signal);
            }
            ExitCode::from(failure.report(cli.json))
        }
    }
}

/// Says what is wrong with the command line, or prints the help that was asked for. With `--json` as JSON.
fn wrong_usage(error: &clap::Error, json: bool) -> ExitCode {
    if !error.use_stderr() || !json {
        error.exit();
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    failure::say(&Error::new(ErrorKind::Invalid, first.strip_prefix("error: ").unwrap_or(first)), true);
    ExitCode::from(failure::EXIT_USAGE)
}

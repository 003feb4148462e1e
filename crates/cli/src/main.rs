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
    if wants_many_descriptors(&cli.command) {
        ramlace_launch::raise_descriptor_limit();
    }
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

/// Whether a command may need a descriptor for each of many hosts or servers. `mpirun` hands its limits on to the user's
/// program, and `doctor` shows those that it was given.
fn wants_many_descriptors(command: &args::Command) -> bool {
    !matches!(command, args::Command::Mpirun(_) | args::Command::Doctor(_))
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    // SEMANTICS 146.2
    #[test]
    fn a_users_program_keeps_the_limits_that_it_was_given() {
        let wants = |words: &[&str]| wants_many_descriptors(&Cli::try_parse_from(words).unwrap().command);
        assert!(wants(&["ramlace", "up", "--hosts", "nodes"]) && wants(&["ramlace", "host-agent"]));
        assert!(!wants(&["ramlace", "doctor"]) && !wants(&["ramlace", "mpirun", "true"]));
    }
}

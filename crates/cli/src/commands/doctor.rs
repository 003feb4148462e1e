//! `doctor`: what this machine offers to ramlace.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use serde_json::json;

use super::doctor_checks::{Finding, State, checks};
use super::doctor_mpi;
use super::holders::Leases;
use crate::failure::{Done, Failure};
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::table;

const EXAMPLES: &str = "\
Examples:
  ramlace doctor
  ramlace doctor /data/matrix.bin               which mounts have pages of it, which wait for which, and pages that change sides
  ramlace doctor --json | jq '.checks[] | select(.state != \"ok\")'
  ramlace doctor --mpi ./app                    which MPI the program uses, and how its files reach a pool

ok: found. absent: ramlace works without it, as it says. broken: ramlace, or its mount, cannot work here; exit code 1.";

/// Arguments of `doctor`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file in a pool: which kernels have its bytes, which mounts wait for which, and where machines are in each other's way
    #[arg(value_name = "FILE", conflicts_with = "mpi")]
    file: Option<OsString>,

    /// Look at a program that uses MPI, or at a library that does, instead of this machine
    #[arg(long, value_name = "PROGRAM")]
    mpi: Option<PathBuf>,
}

/// Prints one line for each thing that was checked.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    if let Some(file) = &args.file {
        return look_at_file(file, pools, output);
    }
    let findings = match &args.mpi {
        Some(program) => doctor_mpi::checks(program)?,
        None => checks(),
    };
    let healthy = findings.iter().all(|finding| finding.state != State::Broken);
    if output.json {
        let checks = findings.iter().map(
            |finding| json!({"name": finding.name, "state": finding.state.word(), "found": finding.found}),
        );
        output.json(&json!({"healthy": healthy, "checks": checks.collect::<Vec<_>>()}))?;
    } else {
        let row = |finding: &Finding| {
            vec![finding.state.word().to_owned(), finding.name.to_owned(), finding.found.clone()]
        };
        let rows: Vec<Vec<String>> = findings.iter().map(row).collect();
        table(&rows, &[]).into_iter().try_for_each(|line| output.line(line))?;
    }
    output.flush()?;
    if healthy { Ok(()) } else { Err(Failure::Told) }
}

fn look_at_file(file: &OsStr, pools: &mut Pools, output: &mut Output) -> Done {
    let locator = in_pool(file)?;
    let leases = Leases::of_file(&pools.of(&locator)?, &locator)?;
    if output.json {
        output.json(&leases.json())?;
    } else {
        leases.lines().into_iter().try_for_each(|line| output.line(line))?;
    }
    output.flush()?;
    if leases.is_complete() { Ok(()) } else { Err(Failure::Told) }
}

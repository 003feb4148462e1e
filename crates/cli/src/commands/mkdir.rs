//! `mkdir`: makes directories in the pool.

use std::ffi::OsString;

use ramlace_base::Result;
use ramlace_client::NewMode;
use serde_json::json;

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, in_pool};

const EXAMPLES: &str = "\
Examples:
  ramlace mkdir /data
  ramlace mkdir -p /data/2026/05   those above it too, and no complaint when it is there";

/// Arguments of `mkdir`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories to make: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Make those above it too, and do not complain when it is there
    #[arg(short, long)]
    pub parents: bool,

    /// Permission bits, in octal [default: 777 less the umask]
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u16>,
}

/// Makes each directory; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let mode = args.mode.map_or_else(|| NewMode { mode: 0o777, umask: umask() }, NewMode::from);
    let (mut made, mut failed) = (0, false);
    for path in &args.paths {
        match make(path, mode, args.parents, pools) {
            Ok(()) => made += 1,
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json {
        output.json(&json!({"made": made}))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn make(path: &OsString, mode: NewMode, parents: bool, pools: &mut Pools) -> Result<()> {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    if parents { pool.mkdir_all(&locator.path, mode) } else { pool.mkdir(&locator.path, mode).map(drop) }
}

/// This process's umask. Reading it means setting it, so only before other threads make files.
pub fn umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    (mask.bits() & 0o777) as u16
}

fn parse_mode(text: &str) -> std::result::Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("'{text}' is no mode; write octal digits such as 750")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("750").unwrap(), 0o750);
        for text in ["", "8", "10000", "u+x", "-1"] {
            parse_mode(text).unwrap_err();
        }
    }
}

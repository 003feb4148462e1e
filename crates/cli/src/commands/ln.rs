//! `ln -s`: makes symbolic links in the pool.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::place::{Pools, in_pool};

const EXAMPLES: &str = "\
Examples:
  ramlace ln -s run-17 /data/latest   /data/latest leads to /data/run-17

The target is kept as it is written. Hard links do not exist yet.";

/// Arguments of `ln`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A symbolic link, the only kind there is
    #[arg(short, long, required = true)]
    pub symbolic: bool,

    /// Where the link points
    pub target: OsString,

    /// The new link: /path or ramlace:/path
    pub path: OsString,
}

/// Makes the link.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let locator = in_pool(&args.path)?;
    let attributes = pools.of(&locator)?.symlink(args.target.as_bytes(), &locator.path)?;
    if output.json {
        output.json(&json!({"inode": attributes.inode.to_string()}))?;
    }
    Ok(())
}

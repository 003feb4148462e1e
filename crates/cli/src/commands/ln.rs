//! `ln`: makes links in the pool.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::Attributes;
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::escaped;

const EXAMPLES: &str = "\
Examples:
  ramlace ln /data/run-17.npy /keep.npy  one more name for the file; it lives while it has one
  ramlace ln -s run-17 /data/latest      /data/latest leads to /data/run-17

The target of a symbolic link is kept as it is written. Directories have one name.";

/// Arguments of `ln`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A symbolic link
    #[arg(short, long)]
    pub symbolic: bool,

    /// The file, or where the symbolic link points
    pub target: OsString,

    /// The new link: /path or ramlace:/path
    pub path: OsString,
}

/// Makes the link.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let attributes = if args.symbolic { symbolic(args, pools)? } else { hard(args, pools)? };
    if output.json {
        let links = attributes.links;
        output.json(&json!({"inode": attributes.inode.to_string(), "links": links}))?;
    }
    Ok(())
}

fn symbolic(args: &Args, pools: &mut Pools) -> Result<Attributes> {
    let locator = in_pool(&args.path)?;
    pools.of(&locator)?.symlink(args.target.as_bytes(), &locator.path)
}

fn hard(args: &Args, pools: &mut Pools) -> Result<Attributes> {
    let (old, new) = (in_pool(&args.target)?, in_pool(&args.path)?);
    let pool = pools.of(&new)?;
    if pools.of(&old)?.map()?.pool != pool.map()?.pool {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is in another pool; a file's names are all in one", escaped(&old.path)),
        ));
    }
    pool.link(&old.path, &new.path)
}

//! `rm`: removes files and directories of the pool.

use std::ffi::OsString;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::FileKind;
use serde_json::json;

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::escaped;

const EXAMPLES: &str = "\
Examples:
  ramlace rm /data/x.npy ramlace:/data/y.npy
  ramlace rm -r /data          a directory with all that is in it
  ramlace rm -f /data/x.npy    no complaint when it is not there

Links are removed, never what they lead to. There is no way back.";

/// Arguments of `rm`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to remove: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Directories too, with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Do not complain about what is not there
    #[arg(short, long)]
    pub force: bool,
}

/// Removes each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let (mut removed, mut failed) = (0, false);
    for path in &args.paths {
        match remove(path, args, pools) {
            Ok(()) => removed += 1,
            Err(error) if args.force && error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json {
        output.json(&json!({"removed": removed}))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn remove(path: &OsString, args: &Args, pools: &mut Pools) -> Result<()> {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    let path = &locator.path;
    if args.recursive {
        return pool.remove_tree(path);
    }
    // The entry itself, also where it is a link with a slash behind its name.
    if pool.lstat(path)?.attributes.kind == FileKind::Directory {
        return Err(Error::new(
            ErrorKind::IsDirectory,
            format!("{} is a directory; rm -r removes it with all that is in it", escaped(path)),
        ));
    }
    pool.unlink(path)
}

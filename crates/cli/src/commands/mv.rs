//! `mv`: gives files and directories of the pool other names.

use std::ffi::OsString;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{Pool, RenameMode};
use ramlace_wire::FileKind;
use serde_json::json;

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, base_name, in_pool_as_cp_reads_it, join};
use crate::show::escaped;

const EXAMPLES: &str = "\
Examples:
  ramlace mv ramlace:/data/x.npy ramlace:/data/y.npy  another name; a file that has it is replaced
  ramlace mv pool/a pool/b pool/old                   into a directory that is there; 'pool' is a mount
  ramlace mv -n ramlace:/data/new ramlace:/latest     only when the name is free
  ramlace mv --exchange ramlace:/a ramlace:/b         each gets the other's name

No bytes move, however large the file. Both names are in one pool; cp copies between pools, and to and from this machine.
As for cp, a path without ramlace: that lies on no mount is a file of this machine.";

/// Arguments of `mv`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to rename: ramlace:/path, or a path on a mount
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<OsString>,

    /// The new name, or a directory to move into
    #[arg(value_name = "TARGET")]
    pub target: OsString,

    /// Fail when the new name is taken
    #[arg(short, long, conflicts_with = "exchange")]
    pub no_clobber: bool,

    /// The target is the new name itself, never a directory to move into
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,

    /// Give source and target each other's name
    #[arg(long)]
    pub exchange: bool,
}

/// Renames each source; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let target = in_pool_as_cp_reads_it(&args.target)?;
    let pool = pools.of(&target)?;
    let into = !args.no_target_directory && !args.exchange && is_directory(&pool, &target.path)?;
    if args.sources.len() > 1 && !into {
        let text = format!("{} is no directory; several files need one to move into", escaped(&target.path));
        return Err(Error::new(ErrorKind::NotDirectory, text).into());
    }
    let (mut moved, mut failed) = (0, false);
    for source in &args.sources {
        match rename(source, &target.path, into, args, &pool, pools) {
            Ok(()) => moved += 1,
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json {
        output.json(&json!({"moved": moved}))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn rename(
    source: &OsString,
    target: &[u8],
    into: bool,
    args: &Args,
    pool: &Pool,
    pools: &mut Pools,
) -> Result<()> {
    let source = in_pool_as_cp_reads_it(source)?;
    if pools.of(&source)?.map()?.pool != pool.map()?.pool {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is in another pool; copy it with cp and remove it with rm", escaped(&source.path)),
        ));
    }
    let mode = match (args.no_clobber, args.exchange) {
        (true, _) => RenameMode::Keep,
        (_, true) => RenameMode::Exchange,
        _ => RenameMode::Replace,
    };
    pool.rename(
        &source.path,
        if into { join(target, base_name(&source.path)) } else { target.to_vec() },
        mode,
    )
}

fn is_directory(pool: &Pool, path: &[u8]) -> Result<bool> {
    match pool.stat(path) {
        Ok(info) => Ok(info.attributes.kind == FileKind::Directory),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

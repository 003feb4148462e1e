//! `cat`: prints files of the pool.

use std::ffi::OsString;

use ramlace_client::{File, OpenOptions};

use crate::failure::{Done, Failure, say};
use crate::place::{Pools, in_pool};
use crate::streams::{Stdout, pump};

const EXAMPLES: &str = "\
Examples:
  ramlace cat /log.txt | tail
  ramlace cat /part-0 /part-1 > whole

`ramlace cp ramlace:/x FILE` is faster for big files, and keeps mode and time.";

/// Arguments of `cat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, one after the other: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Prints each file; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, json: bool) -> Done {
    let mut stdout = Stdout::open()?;
    let mut failed = false;
    for path in &args.paths {
        match print(path, pools, &mut stdout) {
            Err(Failure::Error(error)) => {
                say(&error, json);
                failed = true;
            }
            other => other?,
        }
    }
    stdout.close()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn print(path: &OsString, pools: &mut Pools, stdout: &mut Stdout) -> Done {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    if let Some(bytes) = pool.read_small(&locator.path)? {
        return stdout.write(&bytes);
    }
    let file = pool.open(&locator.path, &OpenOptions::reading())?;
    send(&file, |bytes| stdout.write(bytes))
}

/// Sends a file's bytes in order.
pub fn send(file: &File, write: impl FnMut(&[u8]) -> Done) -> Done {
    let mut at = 0;
    let read = |buffer: &mut [u8]| {
        let count = file.read_at(buffer, at)?;
        at += count as u64;
        Ok(count)
    };
    pump(read, write)
}

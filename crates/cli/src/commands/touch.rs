//! `touch`: sets times in the pool, and makes empty files.

use std::ffi::OsString;

use ramlace_base::{ErrorKind, Result, Timestamp};
use ramlace_client::{NewMode, OpenOptions, Pool};
use ramlace_wire::namespace::{SetAttributes, TimeReason};
use serde_json::json;

use super::mkdir::umask;
use crate::date;
use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::escaped;

const EXAMPLES: &str = "\
Examples:
  ramlace touch /data/done                          now; an empty file where there is none
  ramlace touch -c -d '2026-01-31 17:05' /data/x    local time; nothing is made
  ramlace touch -m -r /data/x /data/y               y is as new as x

Links are followed; with --no-dereference they are touched themselves.";

/// Arguments of `touch`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("moment").args(["date", "stamp", "reference"]))]
pub struct Args {
    /// Files and directories: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Make no files; what is not there is no failure
    #[arg(short = 'c', long)]
    pub no_create: bool,

    /// The time: 2026-01-31, '2026-01-31 17:05:09.5', 2026-01-31T17:05Z, @SECONDS, yesterday, '3 hours ago';
    /// without a zone it is local time
    #[arg(short, long, value_name = "DATE", allow_hyphen_values = true)]
    pub date: Option<String>,

    /// The time in digits, local
    #[arg(short = 't', value_name = "[[CC]YY]MMDDhhmm[.ss]")]
    pub stamp: Option<String>,

    /// The times of this one, which is in the pool too
    #[arg(short, long, value_name = "PATH")]
    pub reference: Option<OsString>,

    /// Only when it was last read
    #[arg(short = 'a')]
    pub accessed: bool,

    /// Only when it was last written
    #[arg(short = 'm')]
    pub modified: bool,

    /// Touch links themselves, not what they lead to
    #[arg(long)]
    pub no_dereference: bool,
}

/// What is set; the times are when it was read and written.
#[derive(Clone, Copy, Debug)]
struct Times {
    accessed: Option<Timestamp>,
    modified: Option<Timestamp>,
}

/// Touches each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let times = times(args, pools)?;
    let mode = NewMode { mode: 0o666, umask: umask() };
    let (mut touched, mut failed) = (0, false);
    for path in &args.paths {
        match touch(path, args, times, mode, pools) {
            Ok(done) => touched += u64::from(done),
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json {
        output.json(&json!({"touched": touched}))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

impl Args {
    /// Whether the times are not just the present moment.
    fn chooses(&self) -> bool {
        self.date.is_some() || self.stamp.is_some() || self.reference.is_some()
    }
}

/// Both times, unless one of them is named.
fn times(args: &Args, pools: &mut Pools) -> Result<Times> {
    let now = date::now();
    let (accessed, modified) = match (&args.date, &args.stamp, &args.reference) {
        (Some(text), _, _) => date::parse(text, now).map(|moment| (moment, moment))?,
        (_, Some(text), _) => date::parse_stamp(text, now).map(|moment| (moment, moment))?,
        (_, _, Some(path)) => {
            let locator = in_pool(path)?;
            let pool = pools.of(&locator)?;
            let info =
                if args.no_dereference { pool.lstat(&locator.path)? } else { pool.stat(&locator.path)? };
            (info.attributes.accessed, info.attributes.modified)
        }
        (None, None, None) => (now, now),
    };
    let both = args.accessed == args.modified;
    Ok(Times {
        accessed: (both || args.accessed).then_some(accessed),
        modified: (both || args.modified).then_some(modified),
    })
}

/// Sets the times of what is there, or makes a file; says whether there was anything to do.
fn touch(path: &OsString, args: &Args, times: Times, mode: NewMode, pools: &mut Pools) -> Result<bool> {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    let path = &locator.path;
    match set(&pool, path, args, times) {
        Err(error) if error.kind() == ErrorKind::NotFound && args.no_create => return Ok(false),
        // What is missing can be made, but no link out of nothing.
        Err(error) if error.kind() == ErrorKind::NotFound && !args.no_dereference => {}
        done => return done.map(|()| true),
    }
    pool.open(path, &OpenOptions { mode, ..OpenOptions::creating() })?.close()?;
    if args.chooses() {
        set(&pool, path, args, times)?;
    }
    Ok(true)
}

fn set(pool: &Pool, path: &[u8], args: &Args, times: Times) -> Result<()> {
    let info = if args.no_dereference { pool.lstat(path)? } else { pool.stat(path)? };
    let Times { accessed, modified } = times;
    let inode = info.attributes.inode;
    let request = SetAttributes {
        inode,
        mode: None,
        uid: None,
        gid: None,
        accessed,
        modified,
        times: if args.chooses() { TimeReason::Chosen } else { TimeReason::Now },
    };
    let set = pool.raw().set_attributes(&request);
    set.map(drop).map_err(|error| error.context(format_args!("touching {}", escaped(path))))
}

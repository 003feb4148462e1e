//! `layout get` and `layout set`: how files are striped over the servers.

use std::ffi::OsString;

use ramlace_base::units::parse_bytes;
use ramlace_wire::{FileKind, FileRules, LayoutHints, Mode};
use serde_json::Value;

use super::stat::{hints_json, hints_text, lane_servers, layout_json, layout_text};
use crate::failure::Done;
use crate::mount_options::mode_of;
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::{escaped, put_name};

const EXAMPLES: &str = "\
Examples:
  ramlace layout get /data/x.npy                          a file's stripe unit, width and servers
  ramlace layout set /data --stripe-unit 8MiB --width 2   for files that are made in /data from now on
  ramlace layout set /data/ring --mode strict             mapped on any mount it is one memory, without msync
  ramlace layout set /data --reserve                      new files grow with their memory, or not at all

A file's layout is fixed when it is made, but for its mode and its reserve. `ramlace cp --stripe-unit --width` makes a file with another.
A file's mode is that of `ramlace mount --mode`, and decides on every mount; --reserve is that of `ramlace mount --reserve`, by every door.
Both can be set while nobody has the file open.";

/// Arguments of `layout`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Get or set.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with layouts.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Print the layout of files, or what directories hand down
    Get {
        /// Files or directories: /path or ramlace:/path
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Set what files made in a directory get, or a file's mode and reserve; what is not named becomes as usual
    Set {
        /// The directory, or the file: /path or ramlace:/path
        path: OsString,
        /// The new values.
        #[command(flatten)]
        hints: HintArgs,
    },
}

/// How new files shall be striped.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct HintArgs {
    /// Bytes of a chunk: a power of two from 64KiB to 1GiB [default: 2MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub stripe_unit: Option<u64>,

    /// Over how many servers a file is spread [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub width: Option<u16>,

    /// Copies of each chunk [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub copies: Option<u8>,

    /// When other machines see what programs store into the mapped file, on every mount: `coherent`, `strict` or `relaxed` [default: as each mount has it]
    #[arg(long, value_name = "MODE", value_parser = mode_of)]
    pub mode: Option<Mode>,

    /// What makes a file longer takes the memory of all that is new, or fails for want of room
    #[arg(long)]
    pub reserve: bool,
}

impl HintArgs {
    /// As the pool takes them.
    pub fn hints(&self) -> LayoutHints {
        let rules = FileRules { mode: self.mode, reserve: self.reserve };
        LayoutHints { stripe_unit: self.stripe_unit, width: self.width, copies: self.copies, rules }
    }
}

/// Prints or sets layouts.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    match &args.action {
        Action::Get { paths } => get(paths, pools, output),
        Action::Set { path, hints } => {
            let locator = in_pool(path)?;
            pools.of(&locator)?.set_layout(&locator.path, hints.hints())?;
            if output.json { output.json(&hints_json(&hints.hints())) } else { Ok(()) }
        }
    }
}

fn get(paths: &[OsString], pools: &mut Pools, output: &mut Output) -> Done {
    let mut values = Vec::new();
    for path in paths {
        let locator = in_pool(path)?;
        let pool = pools.of(&locator)?;
        let info = pool.get_layout(&locator.path)?;
        let (text, mut value) = match (&info.layout, info.attributes.kind) {
            (Some(layout), _) => {
                let servers = lane_servers(&pool, layout)?;
                let rules = info.hints.rules;
                (layout_text(layout, rules, &servers), layout_json(layout, rules, &servers))
            }
            (None, FileKind::Directory) => {
                (format!("new files get: {}", hints_text(&info.hints)), hints_json(&info.hints))
            }
            (None, _) => {
                ("it is no file and has no layout".to_owned(), Value::Object(serde_json::Map::new()))
            }
        };
        if output.json {
            put_name(&mut value, "path", &locator.path);
            values.push(value);
        } else {
            output.line(format_args!("{}: {text}", escaped(&locator.path)))?;
        }
    }
    match (output.json, values.len()) {
        (false, _) => Ok(()),
        (true, 1) => output.json(&values[0]),
        (true, _) => output.json(&Value::Array(values)),
    }
}

//! `du`: how big the files below a path are together.

use std::collections::HashSet;
use std::ffi::OsString;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, InodeId, Result};
use ramlace_wire::{Attributes, FileKind, PoolId};
use serde_json::{Value, json};

use crate::failure::{Done, Failure, say};
use crate::json_list::JsonList;
use crate::output::Output;
use crate::place::Pools;
use crate::show::{escaped, kind_name, put_name};
use crate::tally::Tally;
use crate::tree::{Node, Root, Visitor, is_gone};

const EXAMPLES: &str = "\
Examples:
  ramlace du -sH /data        one line for all of it
  ramlace du -H -d 1          the pool's root, and what is directly in it
  ramlace du -a /data         files too
  ramlace du -s --json / | jq '.[0].bytes'

A file counts with the memory that it holds: less than 'ls -l' shows where it has holes, more by up to a page else;
with --apparent-size, or -b, it is what 'ls -l' shows. While a server does not answer, its part of a file with holes
counts as if it had none. A directory counts what is in it. Links count their own few bytes and are not followed; a file with several
names counts once. Without -H, -b: in KiB, rounded up, as du does.";

/// Arguments of `du`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories or files: /path or ramlace:/path
    #[arg(default_value = "/", value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// One line for each path that is named
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    pub summarize: bool,

    /// Sizes such as 1.5 GiB
    #[arg(short = 'H', long = "human-readable", visible_alias = "human")]
    pub human: bool,

    /// Sizes in bytes, as 'ls -l' shows them
    #[arg(short, long, conflicts_with = "human")]
    pub bytes: bool,

    /// Lines for files too, not only for directories
    #[arg(short, long)]
    pub all: bool,

    /// Lines down to N levels below each path
    #[arg(short = 'd', long, value_name = "N")]
    pub max_depth: Option<usize>,

    /// A line for all paths together
    #[arg(short = 'c', long)]
    pub total: bool,

    /// Sizes that 'ls -l' shows, and not the memory that files hold
    #[arg(long)]
    pub apparent_size: bool,
}

impl Args {
    fn size_text(&self, bytes: u64) -> String {
        if self.human {
            format_bytes(bytes)
        } else if self.bytes {
            bytes.to_string()
        } else {
            bytes.div_ceil(1 << 10).to_string()
        }
    }
}

/// What lies below something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    bytes: u64,
    files: u64,
    directories: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files += other.files;
        self.directories += other.directories;
    }
}

/// Adds up each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let tally = Tally::new(output.json, !args.summarize);
    let mut adding = Adding {
        args,
        depth_max: if args.summarize { 0 } else { args.max_depth.unwrap_or(usize::MAX) },
        output,
        list: JsonList::default(),
        tally,
        levels: Vec::new(),
        seen: HashSet::new(),
        whole: Sum::default(),
        failed: false,
    };
    for path in &args.paths {
        match Root::find(path, false, pools) {
            Ok(root) => root.walk(true, &mut adding)?,
            Err(error) => adding.failed(error),
        }
    }
    adding.end()
}

struct Adding<'a> {
    args: &'a Args,
    depth_max: usize,
    output: &'a mut Output,
    list: JsonList,
    tally: Tally,
    /// The directories on the way.
    levels: Vec<Sum>,
    /// Files with several names that have been counted: the same number is another file in another pool.
    seen: HashSet<(PoolId, InodeId)>,
    /// All paths.
    whole: Sum,
    failed: bool,
}

impl Adding<'_> {
    /// What one of them counts.
    fn bytes_of(&self, node: &Node<'_>, attributes: &Attributes) -> Result<u64> {
        if self.args.apparent_size || self.args.bytes {
            return Ok(attributes.size);
        }
        match attributes.allocated {
            Some(bytes) => Ok(bytes),
            // Only its lanes know.
            None => {
                let info = node.pool.raw().info(node.inode)?;
                Ok(info.attributes.allocated.unwrap_or(info.attributes.size))
            }
        }
    }

    /// Counts something where it lies, and prints it where it was asked for.
    fn count(&mut self, sum: Sum, node: &Node<'_>) -> Done {
        self.levels.last_mut().unwrap_or(&mut self.whole).add(sum);
        let is_directory = node.kind == FileKind::Directory;
        let wanted = node.depth <= self.depth_max && (is_directory || self.args.all);
        if wanted || node.depth == 0 { self.print(sum, node) } else { Ok(()) }
    }

    fn print(&mut self, sum: Sum, node: &Node<'_>) -> Done {
        if self.output.json {
            let mut value = sum_json(sum);
            put_name(&mut value, "path", node.path);
            value["kind"] = json!(kind_name(node.kind));
            value["depth"] = json!(node.depth);
            return self.list.push(&value, self.output);
        }
        self.output.line(format_args!("{}\t{}", self.args.size_text(sum.bytes), escaped(node.path)))
    }

    fn end(mut self) -> Done {
        if self.output.json {
            if self.args.total {
                let mut value = sum_json(self.whole);
                value["total"] = json!(true);
                self.list.push(&value, self.output)?;
            }
            self.list.end(self.output)?;
        } else if self.args.total {
            self.output.line(format_args!("{}\ttotal", self.args.size_text(self.whole.bytes)))?;
        }
        self.output.flush()?;
        if self.failed { Err(Failure::Told) } else { Ok(()) }
    }
}

fn sum_json(sum: Sum) -> Value {
    json!({"bytes": sum.bytes, "files": sum.files, "directories": sum.directories})
}

impl Visitor for Adding<'_> {
    fn enter(&mut self, node: &Node<'_>) -> Done<bool> {
        let sums = || std::iter::once(&self.whole).chain(&self.levels);
        self.tally.add(|| format_bytes(sums().map(|sum| sum.bytes).sum()));
        let attributes = node.attributes();
        if node.kind == FileKind::Directory {
            self.levels.push(Sum::default());
            return Ok(true);
        }
        // Only what has several names is remembered: most trees have none.
        if attributes.links > 1 && !self.seen.insert((node.pool.map()?.pool, node.inode)) {
            return Ok(false);
        }
        match self.bytes_of(node, attributes) {
            Ok(bytes) => self.count(Sum { bytes, files: 1, directories: 0 }, node)?,
            // Another user has removed it since it was listed.
            Err(error) if is_gone(&error) && node.depth > 0 => {}
            Err(error) => self.failed(error.context(escaped(node.path))),
        }
        Ok(false)
    }

    fn leave(&mut self, node: &Node<'_>) -> Done {
        let sum = self.levels.pop().expect("a directory that is left was entered");
        self.count(sum, node)?;
        // It is in the one above, not in itself.
        self.levels.last_mut().unwrap_or(&mut self.whole).directories += 1;
        Ok(())
    }

    fn failed(&mut self, error: Error) {
        self.failed = true;
        let json = self.output.json;
        self.tally.pause(|| say(&error, json));
    }
}

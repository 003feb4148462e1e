//! `chmod`: changes permission bits in the pool.

use std::ffi::OsString;

use ramlace_base::Error;
use ramlace_client::Pool;
use ramlace_wire::FileKind;
use ramlace_wire::namespace::{SetAttributes, TimeReason};
use serde_json::json;

use super::mkdir::umask;
use crate::failure::{Done, Failure, say};
use crate::mode_words::ModeChange;
use crate::output::Output;
use crate::place::Pools;
use crate::show::escaped;
use crate::tally::Tally;
use crate::tree::{Node, Root, Visitor};

const EXAMPLES: &str = "\
Examples:
  ramlace chmod 640 /data/x.npy
  ramlace chmod u+x,go-w /data/run.sh
  ramlace chmod -R a=rX /data      everybody may read all of it, and enter its directories

MODE is octal digits, or clauses of [ugoa][-+=][rwxXst] with commas between them. Where a clause names nobody,
it means everybody, but for the bits of the umask. A directory keeps its set-ID bits unless the mode names them
(u-s, or five digits such as 00755). Links are followed when they are named, and left alone inside of trees.";

/// Arguments of `chmod`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    pub recursive: bool,

    /// Octal digits such as 750, or clauses such as u+x,go-w,a=rX
    #[arg(value_parser = ModeChange::parse, allow_hyphen_values = true)]
    pub mode: ModeChange,

    /// What to change: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Changes each path; goes on after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let json = output.json;
    let mut work =
        Work { args, umask: umask(), json, tally: Tally::new(json, false), changed: 0, failed: false };
    for path in &args.paths {
        // `chmod` follows what is named, also with -R.
        match Root::find(path, true, pools) {
            Ok(root) => root.walk(true, &mut Changing { work: &mut work, pool: &root.pool })?,
            Err(error) => work.say(&error),
        }
    }
    let Work { changed, failed, .. } = work;
    if json {
        output.json(&json!({"changed": changed}))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

struct Work<'a> {
    args: &'a Args,
    umask: u16,
    json: bool,
    tally: Tally,
    changed: u64,
    failed: bool,
}

impl Work<'_> {
    fn say(&mut self, error: &Error) {
        self.failed = true;
        self.tally.pause(|| say(error, self.json));
    }
}

/// The work in one pool.
struct Changing<'a, 'b> {
    work: &'a mut Work<'b>,
    pool: &'a Pool,
}

/// The owner's rights to list a directory and to go through it.
const OWNER_ENTERS: u16 = 0o500;

impl Changing<'_, '_> {
    fn wanted(&self, node: &Node<'_>) -> u16 {
        let is_directory = node.kind == FileKind::Directory;
        self.work.args.mode.apply(node.attributes().mode, is_directory, self.work.umask)
    }

    /// A directory that its owner will no longer enter is changed after what is in it, so that
    /// `chmod -R a-x` and `chmod -R 0` change all of a tree.
    fn comes_last(&self, node: &Node<'_>) -> bool {
        node.kind == FileKind::Directory
            && self.work.args.recursive
            && self.wanted(node) & OWNER_ENTERS != OWNER_ENTERS
    }

    fn change(&mut self, node: &Node<'_>) {
        let request = SetAttributes {
            inode: node.inode,
            mode: Some(self.wanted(node)),
            uid: None,
            gid: None,
            accessed: None,
            modified: None,
            times: TimeReason::Chosen,
        };
        match self.pool.raw().set_attributes(&request) {
            Ok(_) => self.work.changed += 1,
            Err(error) => {
                self.failed(error.context(format_args!("changing the mode of {}", escaped(node.path))))
            }
        }
        let changed = self.work.changed;
        self.work.tally.add(|| format!("{changed} changed"));
    }
}

impl Visitor for Changing<'_, '_> {
    fn enter(&mut self, node: &Node<'_>) -> Done<bool> {
        // A link has no mode of its own, and where it leads is not part of the tree.
        if node.kind != FileKind::Symlink && !self.comes_last(node) {
            self.change(node);
        }
        Ok(self.work.args.recursive)
    }

    fn leave(&mut self, node: &Node<'_>) -> Done {
        if self.comes_last(node) {
            self.change(node);
        }
        Ok(())
    }

    fn failed(&mut self, error: Error) {
        self.work.say(&error);
    }
}

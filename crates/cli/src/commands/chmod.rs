//! `chmod`: changes permission bits in the pool.

use std::ffi::OsString;

use ramlace_base::Error;
use ramlace_wire::FileKind;
use ramlace_wire::namespace::SetAttributes;

use super::mkdir::umask;
use crate::attribute_changes::AttributeChanges;
use crate::changes::Changes;
use crate::failure::Done;
use crate::mode_words::ModeChange;
use crate::output::Output;
use crate::place::Pools;
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

/// Changes each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let (mut changes, umask) = (Changes::new(output), umask());
    for path in &args.paths {
        // `chmod` follows what is named, also with -R.
        match Root::find(path, true, pools) {
            Ok(root) => {
                let changes = AttributeChanges::new(&root.pool, &mut changes, "mode");
                let mut changing = Changing { args, umask, changes };
                root.walk(true, &mut changing)?;
                changing.changes.send();
            }
            Err(error) => changes.say(&error),
        }
    }
    changes.finish(output)
}

/// The work in one pool.
struct Changing<'a> {
    args: &'a Args,
    umask: u16,
    changes: AttributeChanges<'a>,
}

/// The owner's rights to list a directory and to go through it.
const OWNER_ENTERS: u16 = 0o500;

impl Changing<'_> {
    fn wanted(&self, node: &Node<'_>) -> u16 {
        let is_directory = node.kind == FileKind::Directory;
        self.args.mode.apply(node.attributes().mode, is_directory, self.umask)
    }

    /// A directory that its owner will no longer enter is changed after what is in it, so that
    /// `chmod -R a-x` and `chmod -R 0` change all of a tree.
    fn comes_last(&self, node: &Node<'_>) -> bool {
        node.kind == FileKind::Directory
            && self.args.recursive
            && self.wanted(node) & OWNER_ENTERS != OWNER_ENTERS
    }

    fn change(&mut self, node: &Node<'_>) {
        let mode = Some(self.wanted(node));
        self.changes.change(node, SetAttributes { mode, ..SetAttributes::nothing(node.inode) });
    }
}

impl Visitor for Changing<'_> {
    fn enter(&mut self, node: &Node<'_>) -> Done<bool> {
        // A link has no mode of its own, and where it leads is not part of the tree.
        if node.kind != FileKind::Symlink && !self.comes_last(node) {
            self.change(node);
        }
        Ok(self.args.recursive)
    }

    fn leave(&mut self, node: &Node<'_>) -> Done {
        if self.comes_last(node) {
            self.change(node);
        }
        Ok(())
    }

    fn failed(&mut self, error: Error) {
        self.changes.say(&error);
    }
}

//! `chown`: changes owner and group in the pool.

use std::ffi::OsString;

use ramlace_base::Error;
use ramlace_wire::FileKind;
use ramlace_wire::namespace::SetAttributes;

use crate::attribute_changes::AttributeChanges;
use crate::changes::Changes;
use crate::failure::Done;
use crate::output::Output;
use crate::owner::Owner;
use crate::place::Pools;
use crate::tree::{Node, Root, Visitor};

const EXAMPLES: &str = "\
Examples:
  ramlace chown ada /data/x.npy
  ramlace chown -R ada:staff /data   with all that is in it, links themselves included
  ramlace chown :100 /data           the group alone, by its number
  ramlace chown ada: /data           the user, and the group in which she begins

Names are those that 'getent passwd' and 'getent group' of this machine know; a pool keeps numbers. Digits are
always a number. Servers let the pool's super-user alone give files to other users.";

/// Arguments of `chown`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories with all that is in them; links are changed themselves
    #[arg(short = 'R', long)]
    pub recursive: bool,

    /// Change links themselves, not what they lead to
    #[arg(long)]
    pub no_dereference: bool,

    /// USER, USER:GROUP, :GROUP or USER: (and the user's own group); names or numbers
    #[arg(value_name = "USER[:GROUP]", value_parser = Owner::parse)]
    pub owner: Owner,

    /// What to change: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Changes each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let mut changes = Changes::new(output);
    let follow = !args.no_dereference && !args.recursive;
    for path in &args.paths {
        match Root::find(path, follow, pools) {
            Ok(root) => {
                let changes = AttributeChanges::new(&root.pool, &mut changes, "owner");
                let mut changing = Changing { args, changes };
                root.walk(false, &mut changing)?;
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
    changes: AttributeChanges<'a>,
}

impl Changing<'_> {
    fn change(&mut self, node: &Node<'_>) {
        let Owner { uid, gid } = self.args.owner;
        self.changes.change(node, SetAttributes { uid, gid, ..SetAttributes::nothing(node.inode) });
    }
}

impl Visitor for Changing<'_> {
    /// A directory that is entered is given away after what is in it, while it may still be listed.
    fn enter(&mut self, node: &Node<'_>) -> Done<bool> {
        let enters = self.args.recursive && node.kind == FileKind::Directory;
        if !enters {
            self.change(node);
        }
        Ok(enters)
    }

    fn leave(&mut self, node: &Node<'_>) -> Done {
        self.change(node);
        Ok(())
    }

    fn failed(&mut self, error: Error) {
        self.changes.say(&error);
    }
}

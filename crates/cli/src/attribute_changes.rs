//! Changes of attributes in a tree: those of files in one slot go many by one message.

use ramlace_base::{Error, Result};
use ramlace_client::Pool;
use ramlace_wire::FileKind;
use ramlace_wire::namespace::SetAttributes;

use crate::changes::Changes;
use crate::show::escaped;
use crate::tree::Node;

/// So many files are waited for before they are sent.
const FILES_MAX: usize = 128;

/// What is to be changed in one pool.
pub struct AttributeChanges<'a> {
    pool: &'a Pool,
    changes: &'a mut Changes,
    /// What changes: the mode, say.
    what: &'static str,
    /// Files of one slot, and their paths.
    waiting: Vec<(SetAttributes, Vec<u8>)>,
}

impl<'a> AttributeChanges<'a> {
    /// None yet.
    pub fn new(pool: &'a Pool, changes: &'a mut Changes, what: &'static str) -> AttributeChanges<'a> {
        AttributeChanges { pool, changes, what, waiting: Vec::new() }
    }

    /// One more, after all that came before it in its directory; a failure is said when it is known.
    pub fn change(&mut self, node: &Node<'_>, request: SetAttributes) {
        let is_elsewhere = |(other, _): &(SetAttributes, _)| other.inode.slot() != node.inode.slot();
        let is_directory = node.kind == FileKind::Directory;
        if is_directory || self.waiting.len() >= FILES_MAX || self.waiting.first().is_some_and(is_elsewhere) {
            self.send();
        }
        if is_directory {
            let changed = self.pool.raw().set_attributes(&request).map(drop);
            self.note(node.path, changed);
        } else {
            self.waiting.push((request, node.path.to_vec()));
        }
    }

    /// Makes those that wait.
    pub fn send(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let requests: Vec<SetAttributes> = waiting.iter().map(|(request, _)| *request).collect();
        let mut outcomes = Vec::with_capacity(waiting.len());
        let sent = self.pool.raw().set_attributes_of_files(&requests, |request, changed| {
            outcomes.push((request.inode, changed));
        });
        if let Err(error) = sent {
            outcomes = requests.iter().map(|request| (request.inode, Err(error.clone()))).collect();
        }
        for (inode, changed) in outcomes {
            // Of a file that has two names in its directory each is reported once.
            let at = waiting.iter().position(|(request, _)| request.inode == inode);
            let path = at.map(|at| waiting.swap_remove(at).1).unwrap_or_default();
            self.note(&path, changed);
        }
    }

    /// Something else failed.
    pub fn say(&mut self, error: &Error) {
        self.changes.say(error);
    }

    fn note(&mut self, path: &[u8], changed: Result<()>) {
        let what = self.what;
        let told = |error: Error| error.context(format_args!("changing the {what} of {}", escaped(path)));
        self.changes.note(changed.map_err(told));
    }
}

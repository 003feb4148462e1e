//! Attributes of removed inodes that programs here may have open, or work in, unknown to any home:
//! directories that were removed here, and pipes, sockets and devices, which the kernel opens by itself.
//!
//! The pool forgets these with their last entry. POSIX lets a program that has one open ask for its
//! attributes as long as it likes: it has no links, and a directory is empty. So its attributes are kept
//! until the kernel forgets it.

use std::collections::HashMap;

use ramlace_base::InodeId;
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;

/// The limit; for inodes beyond it programs that have them open get Stale.
const REMOVED_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Removed {
    last: Mutex<HashMap<InodeId, Attributes>>,
}

impl Removed {
    /// A directory is about to be removed. Called before, because the kernel may forget it right afterwards.
    pub(crate) fn keep(&self, attributes: &Attributes) {
        let mut last = self.last();
        if last.len() < REMOVED_MAX || last.contains_key(&attributes.inode) {
            last.insert(attributes.inode, Attributes { links: 0, size: 0, ..attributes.clone() });
        }
    }

    /// The kernel is told these attributes. It opens a pipe, a socket or a device without a request, and
    /// another machine may remove it: so these are always kept.
    pub(crate) fn heard(&self, attributes: &Attributes) {
        if attributes.kind.is_special() {
            self.keep(attributes);
        }
    }

    /// The attributes from before the removal.
    pub(crate) fn get(&self, inode: InodeId) -> Option<Attributes> {
        self.last().get(&inode).cloned()
    }

    /// The kernel has forgotten it, or it was not removed after all.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.last().remove(&inode);
    }

    fn last(&self) -> MutexGuard<'_, HashMap<InodeId, Attributes>> {
        self.last.lock()
    }
}

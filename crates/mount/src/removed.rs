//! What was removed while somebody here may have it open, or work in it, and no home knows of that: directories that
//! were removed here, and pipes, sockets and devices, which the kernel opens by itself.
//!
//! The pool forgets these with their last entry. POSIX lets who has one open look at it as long as they like: it has no
//! links, and a directory is empty. So what it was is kept until the kernel forgets it.

use std::collections::HashMap;

use ramlace_base::InodeId;
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;

/// What is kept, at most; one more is told as Stale to who has it open.
const REMOVED_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Removed {
    last: Mutex<HashMap<InodeId, Attributes>>,
}

impl Removed {
    /// A directory is about to be removed. Said before, because the kernel may forget it right after.
    pub(crate) fn keep(&self, attributes: &Attributes) {
        let mut last = self.last();
        if last.len() < REMOVED_MAX || last.contains_key(&attributes.inode) {
            last.insert(attributes.inode, Attributes { links: 0, size: 0, ..attributes.clone() });
        }
    }

    /// The kernel hears what something is. Whoever opens a pipe, a socket or a device does it without a word, and whoever
    /// removes it may be elsewhere: so what it is is always kept.
    pub(crate) fn heard(&self, attributes: &Attributes) {
        if attributes.kind.is_special() {
            self.keep(attributes);
        }
    }

    /// What it was before it was removed.
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

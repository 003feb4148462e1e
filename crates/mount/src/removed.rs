//! Directories that were removed here while somebody may have them open or work in them.
//!
//! The pool forgets a directory with its entry. POSIX lets who has it open look at it for as long as he likes: it is
//! empty and has no links. So what it was is kept until the kernel forgets it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ramlace_base::InodeId;
use ramlace_wire::Attributes;

/// Directories that are kept, at most; one more is told as Stale to who has it open.
const REMOVED_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Removed {
    last: Mutex<HashMap<InodeId, Attributes>>,
}

impl Removed {
    /// A directory is about to be removed. Said before, because the kernel may forget it right after.
    pub(crate) fn keep(&self, attributes: &Attributes) {
        let mut last = self.last();
        if last.len() < REMOVED_MAX {
            last.insert(attributes.inode, Attributes { links: 0, size: 0, ..attributes.clone() });
        }
    }

    /// What it was when it was removed.
    pub(crate) fn get(&self, inode: InodeId) -> Option<Attributes> {
        self.last().get(&inode).cloned()
    }

    /// The kernel has forgotten it, or it was not removed after all.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.last().remove(&inode);
    }

    fn last(&self) -> MutexGuard<'_, HashMap<InodeId, Attributes>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

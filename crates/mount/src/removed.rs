//! The last attributes of removed inodes whose home does not keep them while they are open: directories that were
//! removed here, and pipes, sockets and devices, which the kernel opens by itself.
//!
//! The pool forgets these with their last entry. POSIX lets a program that has one open ask for its
//! attributes as long as it likes: it has no links, and a directory is empty. So its attributes are kept
//! until the kernel forgets it.

use std::sync::Arc;

use ramlace_base::InodeId;
use ramlace_wire::Attributes;

use crate::nodes::Nodes;
use crate::nodes::room::Room;

/// The limit; for inodes beyond it programs that have them open get Stale.
const REMOVED_MAX: usize = 4_096;

pub(crate) struct Removed {
    nodes: Arc<Nodes>,
    room: Room,
}

impl Removed {
    pub(crate) fn new(nodes: &Arc<Nodes>) -> Removed {
        Removed { nodes: nodes.clone(), room: Room::new(REMOVED_MAX) }
    }

    /// A directory is about to be removed. Called before, because the kernel may forget it right afterwards.
    pub(crate) fn keep(&self, attributes: &Attributes) {
        let last = Attributes { links: 0, size: 0, ..attributes.clone() };
        self.nodes.change(attributes.inode, |node| node.removed.keep(last, &self.room));
    }

    /// The kernel is sent these attributes. It opens a pipe, a socket or a device without a request, and
    /// another machine may remove it: so these are always kept.
    pub(crate) fn note(&self, attributes: &Attributes) {
        if attributes.kind.is_special() {
            self.keep(attributes);
        }
    }

    /// The attributes from before the removal.
    pub(crate) fn get(&self, inode: InodeId) -> Option<Attributes> {
        self.nodes.read(inode, |node| node.removed.get().cloned()).flatten()
    }

    /// It was not removed after all.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.nodes.find(inode, |node| node.removed.forget());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::tests::directory;

    #[test]
    fn what_was_removed_is_kept_until_the_kernel_forgets_it() {
        let nodes = Arc::<Nodes>::default();
        let removed = Removed::new(&nodes);
        let (attributes, other) = (directory(4), |inode| Attributes { inode, ..directory(4) });
        nodes.tell(attributes.inode);
        removed.note(&attributes);
        assert_eq!(removed.get(attributes.inode), None, "it can be asked for");
        removed.keep(&attributes);
        assert_eq!(removed.get(attributes.inode), Some(Attributes { links: 0, ..directory(0) }));
        removed.forget(attributes.inode);
        assert_eq!(removed.get(attributes.inode), None);
        (0..=REMOVED_MAX as u64).for_each(|number| removed.keep(&other(InodeId(100 + number))));
        assert!(removed.get(InodeId(100)).is_some() && removed.room.taken() == REMOVED_MAX);
        removed.keep(&attributes);
        assert_eq!(removed.get(attributes.inode), None, "one too many");
        nodes.tell(InodeId(100));
        nodes.forget(InodeId(100), 1);
        removed.keep(&attributes);
        assert!(removed.get(attributes.inode).is_some());
        nodes.forget(attributes.inode, 1);
        assert_eq!(removed.get(attributes.inode), None);
    }
}

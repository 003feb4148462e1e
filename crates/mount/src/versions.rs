//! The version of each file of which the kernel may have pages: an open drops them if the file has another version by
//! then.
//!
//! A file's version is its size, its generation and the time of its last change by the home's clock, which no
//! program can set. A writer's bytes are in the pool before its time of change is, so pages that were read during
//! a write count as of the version before, and the next open drops them.
//!
//! The kernel drops pages after it has received the reply to an open and before the program has its descriptor.
//! Until then no other open may trust them. So the new version is [learned](Versions::learn) only when the new
//! descriptor is first used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ramlace_base::InodeId;

use crate::nodes::Nodes;
use crate::nodes::room::Room;
pub(crate) use crate::nodes::version::Version;

/// The limit of files whose versions are remembered; others lose their pages at the next open.
const VERSIONS_MAX: usize = 65_536;

/// The versions of the files of which the kernel may have pages.
pub(crate) struct Versions {
    nodes: Arc<Nodes>,
    known: Room,
    bare: Room,
    /// There were too many files with bare pages: from then on it may be any file.
    any_is_bare: AtomicBool,
}

impl Versions {
    pub(crate) fn new(nodes: &Arc<Nodes>) -> Versions {
        let [known, bare] = [Room::new(VERSIONS_MAX), Room::new(VERSIONS_MAX)];
        Versions { nodes: nodes.clone(), known, bare, any_is_bare: AtomicBool::new(false) }
    }

    /// Whether the kernel's pages of a file are of this version, or there are none.
    pub(crate) fn are_of(&self, inode: InodeId, version: Version) -> bool {
        self.nodes.read(inode, |node| node.version.is(version)).unwrap_or(false)
    }

    /// The kernel has no pages of a file that are older than this version. If this is called late it does no
    /// harm: the pages are newer, and the next open drops them unnecessarily.
    pub(crate) fn learn(&self, inode: InodeId, version: Version) {
        self.nodes.change(inode, |node| node.version.learn(version, &self.known));
    }

    /// The file's pages are being dropped.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.nodes.find(inode, |node| node.version.forget());
    }

    /// The kernel is about to get pages of holes, which have no memory. They must go before a program may
    /// store into them: an open for writing drops them. The caller checks once more for such an open after
    /// this.
    pub(crate) fn note_bare_pages(&self, inode: InodeId) {
        self.nodes.change(inode, |node| {
            if !node.bare.note(&self.bare) {
                self.any_is_bare.store(true, Ordering::Release);
            }
        });
    }

    /// Whether the kernel may have such pages. To be called when the open for writing is already visible.
    pub(crate) fn has_bare_pages(&self, inode: InodeId) -> bool {
        let is_bare = self.nodes.read(inode, |node| node.bare.is_noted()).unwrap_or(false);
        // Read after the inode's own note: a thread that found no room for that note has set this before.
        is_bare || self.any_is_bare.load(Ordering::Acquire)
    }

    /// An open for writing has dropped them.
    pub(crate) fn bare_pages_are_gone(&self, inode: InodeId) {
        self.nodes.find(inode, |node| node.bare.forget());
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Generation, Timestamp};
    use ramlace_client::LockedFile;

    use super::*;

    const FILE: InodeId = InodeId(7);

    fn locked(size: u64, changed: i64) -> LockedFile {
        let changed = Timestamp { nanos: changed };
        LockedFile { size, generation: Generation::FIRST, changed, may_change_unnoticed: false }
    }

    fn version(size: u64, changed: i64) -> Version {
        Version::of_locked(&locked(size, changed))
    }

    fn versions() -> (Arc<Nodes>, Versions) {
        let nodes = Arc::default();
        let versions = Versions::new(&nodes);
        (nodes, versions)
    }

    #[test]
    fn pages_stay_only_from_a_version_to_itself() {
        let (nodes, versions) = versions();
        assert!(!versions.are_of(FILE, version(10, 1)), "nothing is known of a first open");
        versions.learn(FILE, version(10, 1));
        assert!(versions.are_of(FILE, version(10, 1)));
        assert!(!versions.are_of(FILE, version(10, 2)), "it was written");
        assert!(!versions.are_of(FILE, version(11, 1)), "it has grown");
        let next = LockedFile { generation: Generation::FIRST.next(), ..locked(10, 1) };
        assert!(!versions.are_of(FILE, Version::of_locked(&next)));
        versions.learn(FILE, version(11, 2));
        assert!(versions.are_of(FILE, version(11, 2)));
        let unnoticed = Version::of_locked(&LockedFile { may_change_unnoticed: true, ..locked(11, 2) });
        versions.learn(FILE, unnoticed);
        assert!(!versions.are_of(FILE, unnoticed), "it may have been written since");
        nodes.tell(FILE);
        for by_the_kernel in [false, true] {
            versions.learn(FILE, version(11, 2));
            assert!(versions.are_of(FILE, version(11, 2)));
            if by_the_kernel {
                nodes.forget(FILE, 1);
            } else {
                versions.forget(FILE);
            }
            assert!(!versions.are_of(FILE, version(11, 2)));
        }
    }

    #[test]
    fn pages_are_not_trusted_before_the_old_ones_are_dropped() {
        let (_, versions) = versions();
        versions.learn(FILE, version(10, 1));
        assert!(!versions.are_of(FILE, version(10, 2)), "the first open drops them");
        assert!(!versions.are_of(FILE, version(10, 2)), "and has not done so yet");
    }

    #[test]
    fn pages_without_memory_are_remembered_until_they_are_gone() {
        let (nodes, versions) = versions();
        assert!(!versions.has_bare_pages(FILE));
        versions.note_bare_pages(FILE);
        versions.forget(FILE);
        assert!(versions.has_bare_pages(FILE) && !versions.has_bare_pages(InodeId(8)));
        versions.bare_pages_are_gone(FILE);
        assert!(!versions.has_bare_pages(FILE));
        nodes.tell(FILE);
        versions.note_bare_pages(FILE);
        nodes.forget(FILE, 1);
        assert!(!versions.has_bare_pages(FILE), "the kernel has none of a file that it does not know");
        for inode in 0..=VERSIONS_MAX as u64 {
            versions.note_bare_pages(InodeId(inode + 100));
        }
        assert!(versions.has_bare_pages(FILE), "one too many: any may have some");
    }

    #[test]
    fn a_full_table_forgets_nothing_and_trusts_nothing_new() {
        let (_, versions) = versions();
        for inode in 0..VERSIONS_MAX as u64 {
            versions.learn(InodeId(inode + 100), version(1, 1));
        }
        versions.learn(FILE, version(1, 1));
        assert!(!versions.are_of(FILE, version(1, 1)));
        assert!(versions.are_of(InodeId(100), version(1, 1)));
        versions.learn(InodeId(100), version(2, 2));
        assert!(versions.are_of(InodeId(100), version(2, 2)));
    }
}

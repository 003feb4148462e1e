//! The version of each file to which the kernel's pages belong.
//!
//! The kernel's pages are good for the next open if nobody changed the file since. A file's version is its
//! size, its generation and the time of its last change by the home's clock, which no program can set. A
//! writer's bytes are in the pool before its time of change is, so pages that were read during a write belong
//! to the version before, and the next open drops them.
//!
//! The kernel drops pages after it has the reply to an open and before the program has its descriptor. Until
//! then no other open may trust them: a version is [learned](Versions::learn) when the new descriptor is
//! used.

use std::collections::{HashMap, HashSet};

use ramlace_base::{Generation, InodeId, Timestamp};
use ramlace_client::LockedFile;
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;
use ramlace_wire::namespace::InodeInfo;

/// The limit of files whose versions are remembered; others lose their pages at the next open.
const VERSIONS_MAX: usize = 65_536;

/// What distinguishes two states of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    size: u64,
    generation: Generation,
    changed: Timestamp,
    /// A kernel changes it without reports: no two states of it are known to be the same.
    unheard: bool,
}

impl Version {
    pub(crate) fn of(info: &InodeInfo) -> Version {
        let Attributes { size, generation, changed, .. } = info.attributes;
        Version { size, generation, changed, unheard: info.handed }
    }

    pub(crate) fn of_locked(file: &LockedFile) -> Version {
        let LockedFile { size, generation, changed, handed } = *file;
        Version { size, generation, changed, unheard: handed }
    }
}

/// The versions of the files of which the kernel may have pages.
#[derive(Default)]
pub(crate) struct Versions {
    known: Mutex<HashMap<InodeId, Version>>,
    bare: Mutex<Bare>,
}

/// Files of which the kernel may have pages that came from holes while no program here could store into them.
#[derive(Default)]
struct Bare {
    inodes: HashSet<InodeId>,
    /// There were too many of them: from then on it may be any file.
    all: bool,
}

impl Versions {
    /// Whether the kernel's pages of a file are of this version, or there are none.
    pub(crate) fn are_of(&self, inode: InodeId, version: Version) -> bool {
        !version.unheard && self.known().get(&inode) == Some(&version)
    }

    /// The kernel has no pages of a file that are older than this version. If this is called late it does no
    /// harm: the pages are newer, and the next open drops them unnecessarily.
    pub(crate) fn learn(&self, inode: InodeId, version: Version) {
        let mut known = self.known();
        if known.len() < VERSIONS_MAX || known.contains_key(&inode) {
            known.insert(inode, version);
        }
    }

    /// The kernel has forgotten a file, or its pages are being dropped.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.known().remove(&inode);
    }

    /// The kernel is about to get pages of holes, which have no memory. They must go before a program may
    /// store into them: an open for writing drops them. The caller checks once more for such an open after
    /// this.
    pub(crate) fn note_bare_pages(&self, inode: InodeId) {
        let mut bare = self.bare();
        if bare.inodes.len() < VERSIONS_MAX {
            bare.inodes.insert(inode);
        } else if !bare.inodes.contains(&inode) {
            bare.all = true;
        }
    }

    /// Whether the kernel may have such pages. To be called when the open for writing is already visible.
    pub(crate) fn has_bare_pages(&self, inode: InodeId) -> bool {
        let bare = self.bare();
        bare.all || bare.inodes.contains(&inode)
    }

    /// An open for writing has dropped them.
    pub(crate) fn bare_pages_are_gone(&self, inode: InodeId) {
        self.bare().inodes.remove(&inode);
    }

    fn bare(&self) -> MutexGuard<'_, Bare> {
        self.bare.lock()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<InodeId, Version>> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn version(size: u64, changed: i64) -> Version {
        Version { size, generation: Generation::FIRST, changed: Timestamp { nanos: changed }, unheard: false }
    }

    #[test]
    fn pages_stay_only_from_a_version_to_itself() {
        let versions = Versions::default();
        assert!(!versions.are_of(FILE, version(10, 1)), "nothing is known of a first open");
        versions.learn(FILE, version(10, 1));
        assert!(versions.are_of(FILE, version(10, 1)));
        assert!(!versions.are_of(FILE, version(10, 2)), "it was written");
        assert!(!versions.are_of(FILE, version(11, 1)), "it has grown");
        assert!(!versions.are_of(FILE, Version { generation: Generation::FIRST.next(), ..version(10, 1) }));
        versions.learn(FILE, version(11, 2));
        assert!(versions.are_of(FILE, version(11, 2)));
        let unheard = Version { unheard: true, ..version(11, 2) };
        versions.learn(FILE, unheard);
        assert!(!versions.are_of(FILE, unheard), "it may have been written since");
        versions.forget(FILE);
        assert!(!versions.are_of(FILE, version(11, 2)));
    }

    #[test]
    fn pages_are_not_trusted_before_the_old_ones_are_dropped() {
        let versions = Versions::default();
        versions.learn(FILE, version(10, 1));
        assert!(!versions.are_of(FILE, version(10, 2)), "the first open drops them");
        assert!(!versions.are_of(FILE, version(10, 2)), "and has not done so yet");
    }

    #[test]
    fn pages_without_memory_are_remembered_until_they_are_gone() {
        let versions = Versions::default();
        assert!(!versions.has_bare_pages(FILE));
        versions.note_bare_pages(FILE);
        versions.forget(FILE);
        assert!(versions.has_bare_pages(FILE) && !versions.has_bare_pages(InodeId(8)));
        versions.bare_pages_are_gone(FILE);
        assert!(!versions.has_bare_pages(FILE));
        for inode in 0..=VERSIONS_MAX as u64 {
            versions.note_bare_pages(InodeId(inode + 100));
        }
        assert!(versions.has_bare_pages(FILE), "one too many: any may have some");
    }

    #[test]
    fn a_full_table_forgets_nothing_and_trusts_nothing_new() {
        let versions = Versions::default();
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

//! What the mount knows of each inode, in one place: an entry begins when the kernel is told of the inode, and
//! FORGET ends it.
//!
//! Nothing is asked, waited for or written to the kernel under a lock of this table.

use std::collections::HashMap;

use ramlace_base::InodeId;
use ramlace_sync::{Mutex, MutexGuard};

use self::mode::Other;
use crate::places::Places;

pub(crate) mod failure;
mod mode;
mod removed;
pub(crate) mod room;
pub(crate) mod version;

/// The table has as many parts, each with a lock of its own. A power of two.
const SHARDS: usize = 64;

/// What is known of each inode.
pub(crate) struct Nodes {
    shards: Box<[Shard]>,
    /// The numbers and the places by which the kernel knows directories.
    pub(crate) places: Places,
}

/// A part of the table, in cache lines of its own. No other lock is taken while its lock is held.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    nodes: Mutex<HashMap<InodeId, Node>>,
}

/// What is known of one inode.
#[derive(Default)]
struct Node {
    /// The number of entries leading to it that the kernel was told, or is being told, and has not forgotten.
    lookups: i64,
    /// What else is known of it: of most inodes nothing.
    parts: Option<Box<Parts>>,
}

/// What is known of an inode beside that the kernel knows it. Each part has a module for what it is of one inode, where
/// its fields are private, and one above this one for what is done with it.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) bare: version::Bare,
    pub(crate) failure: failure::Last,
    pub(crate) mode: Other,
    pub(crate) removed: removed::Last,
    pub(crate) version: version::Known,
}

impl Parts {
    /// The kernel no longer knows the inode.
    fn forget(&mut self) {
        let Parts { bare, failure, mode, removed, version } = self;
        bare.forget();
        failure.forget();
        mode.forget();
        removed.forget();
        version.forget();
    }

    /// Nothing is known.
    fn is_blank(&self) -> bool {
        let Parts { bare, failure, mode, removed, version } = self;
        bare.is_blank() && failure.is_blank() && mode.is_blank() && removed.is_blank() && version.is_blank()
    }
}

impl Node {
    /// Gives back the memory of what is not known any more; returns whether anything is left.
    fn sweep(&mut self) -> bool {
        if self.parts.as_ref().is_some_and(|parts| parts.is_blank()) {
            self.parts = None;
        }
        self.lookups != 0 || self.parts.is_some()
    }
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes { shards: (0..SHARDS).map(|_| Shard::default()).collect(), places: Places::default() }
    }
}

impl Nodes {
    /// The inode of a node: of a number by which the kernel knows it.
    pub(crate) fn inode(&self, node: u64) -> InodeId {
        self.places.inode(node)
    }

    /// The kernel is being told of an entry that leads to this inode.
    pub(crate) fn tell(&self, inode: InodeId) {
        self.lock(inode).entry(inode).or_default().lookups += 1;
    }

    /// The kernel has forgotten so many entries that led to this inode, or was not told of them. Returns
    /// whether it no longer knows the inode.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) -> bool {
        let is_unknown = {
            let mut nodes = self.lock(inode);
            let node = nodes.entry(inode).or_default();
            node.lookups -= i64::try_from(lookups).unwrap_or(i64::MAX);
            let is_unknown = node.lookups == 0;
            if is_unknown && let Some(parts) = &mut node.parts {
                parts.forget();
            }
            if !node.sweep() {
                nodes.remove(&inode);
            }
            is_unknown
        };
        if is_unknown {
            self.places.forget(inode, || self.is_known(inode));
        }
        is_unknown
    }

    /// The kernel was told of the inode and has not forgotten it.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.lock(inode).get(&inode).is_some_and(|node| node.lookups != 0)
    }

    /// Looks at what is known of an inode, if anything is.
    pub(crate) fn look<T>(&self, inode: InodeId, look: impl FnOnce(&Parts) -> T) -> Option<T> {
        Some(look(self.lock(inode).get(&inode)?.parts.as_ref()?))
    }

    /// The same, to change some of it, or to take it away.
    pub(crate) fn find<T>(&self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> Option<T> {
        let mut nodes = self.lock(inode);
        let node = nodes.get_mut(&inode)?;
        let found = change(node.parts.as_mut()?);
        if !node.sweep() {
            nodes.remove(&inode);
        }
        Some(found)
    }

    /// The same, also if nothing is known yet.
    pub(crate) fn change<T>(&self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> T {
        let mut nodes = self.lock(inode);
        let node = nodes.entry(inode).or_default();
        let changed = change(node.parts.get_or_insert_default());
        if !node.sweep() {
            nodes.remove(&inode);
        }
        changed
    }

    fn lock(&self, inode: InodeId) -> MutexGuard<'_, HashMap<InodeId, Node>> {
        self.shards[shard_of(inode)].nodes.lock()
    }
}

/// Inodes count up within their slot, which is in the upper bits.
fn shard_of(inode: InodeId) -> usize {
    // By the golden ratio, which spreads neighbours.
    (inode.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    #[test]
    fn an_inode_is_known_until_all_that_led_to_it_is_forgotten() {
        let nodes = Nodes::default();
        assert!(!nodes.is_known(FILE));
        nodes.tell(FILE);
        nodes.tell(FILE);
        assert!(!nodes.forget(FILE, 1) && nodes.is_known(FILE));
        nodes.tell(FILE);
        assert!(nodes.forget(FILE, 2) && !nodes.is_known(FILE));
        assert!(nodes.shards.iter().all(|shard| shard.nodes.lock().is_empty()));
    }

    #[test]
    fn a_directory_has_its_number_as_long_as_it_is_known() {
        let nodes = Nodes::default();
        nodes.tell(FILE);
        nodes.tell(FILE);
        nodes.places.made(1, b"x", FILE);
        nodes.forget(FILE, 1);
        assert_eq!(nodes.places.at(1, b"x"), Some(FILE));
        nodes.forget(FILE, 1);
        assert_eq!(nodes.places.at(1, b"x"), None);
    }

    #[test]
    fn inodes_are_spread_over_all_shards() {
        for slot in [0, 1, 4095] {
            let mut inodes = [0; SHARDS];
            (1..=64 * SHARDS as u64).for_each(|counter| {
                inodes[shard_of(InodeId::new(ramlace_base::Slot(slot), counter))] += 1;
            });
            assert!(inodes.iter().all(|inodes| (32..=128).contains(inodes)), "{inodes:?}");
        }
    }
}

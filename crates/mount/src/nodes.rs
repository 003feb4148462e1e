//! The table of the inodes that the kernel knows, with all per-inode state that must end when the kernel forgets the
//! inode. FORGET ends all of it here, in one step.
//!
//! Each part of that state has two files: one in `nodes/` with its data for one inode, and one beside this file
//! with what is done with it for all (`versions`, `modes`, `pages`...), which reaches it through the functions of
//! [`Nodes`]. For most inodes there is only the count of lookups. An entry is removed with the last part; a part that
//! may outlast FORGET keeps the entry until then.
//!
//! State by inode that is not here, and why:
//!
//! * The places of directories ([`crate::places`]): a relation between directories, places and numbers, of which a
//!   change touches several at once, under one lock. FORGET ends it from here.
//! * What was answered under leases ([`crate::believed`], [`crate::kept`]): it ends by slots, sessions and limits, and
//!   is kept for the next request whether or not the kernel knows the inode. The simulator runs it, without locks.
//! * How often an inode is open, and what is known while it is open for writing ([`crate::handles`]): it is counted
//!   with the open files, in one step. Each read and write asks for it several times, on many threads at once, for
//!   which a lock of this table would be too slow.
//! * Files under passthrough ([`crate::passthrough`]): their locks are held while servers are asked.
//! * Lost stores ([`crate::lost_stores`]): they are an error also when the kernel has forgotten the file, and are
//!   listed in order.
//! * Reads and drops in flight ([`crate::strict`], [`crate::recalls`]), and times at which lists are dropped
//!   ([`crate::kept_lists`]): they are queues, each entry of which ends by itself.

use std::collections::HashMap;

use ramlace_base::InodeId;
use ramlace_sync::{Condvar, Mutex, MutexGuard};

use self::mode::Other;
use crate::places::Places;

pub(crate) mod failure;
mod mode;
mod owners;
pub(crate) mod pages;
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

/// A part of the table, in cache lines of its own.
///
/// Lock order: `table` comes last. While it is held no other lock is taken, not of another shard either, and
/// nothing is asked, waited for or written to the kernel.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    table: Mutex<Table>,
    /// Notified when something ends that a thread waits for.
    over: Condvar,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<InodeId, Node>,
    /// The number of threads that wait.
    waiting: usize,
}

/// What is known of one inode.
#[derive(Default)]
struct Node {
    /// The number of entries leading to it that the kernel was sent, or is being sent, and has not forgotten.
    lookups: i64,
    /// What else is known of it: of most inodes nothing.
    parts: Option<Box<Parts>>,
}

/// What is known of an inode beside that the kernel knows it.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) bare: version::Bare,
    pub(crate) failure: failure::Last,
    pub(crate) mode: Other,
    pub(crate) owners: owners::Owners,
    /// Of a file that was read or written.
    pub(crate) pages: Option<Box<pages::File>>,
    pub(crate) removed: removed::Last,
    pub(crate) version: version::Known,
}

impl Parts {
    /// The kernel no longer knows the inode. Each part says here what becomes of it.
    fn forget(&mut self) {
        // Owners of locks end with the descriptors: the kernel may report the end of the last one later.
        let Parts { bare, failure, mode, owners: _, pages, removed, version } = self;
        bare.forget();
        failure.forget();
        mode.forget();
        *pages = None;
        removed.forget();
        version.forget();
    }

    /// Nothing is known.
    fn is_blank(&self) -> bool {
        let Parts { bare, failure, mode, owners, pages, removed, version } = self;
        bare.is_blank()
            && failure.is_blank()
            && mode.is_blank()
            && owners.is_blank()
            && pages.is_none()
            && removed.is_blank()
            && version.is_blank()
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

    /// The kernel is being notified of an entry that leads to this inode.
    pub(crate) fn tell(&self, inode: InodeId) {
        let mut table = self.lock(inode);
        table.with(inode, |node| node.lookups += 1);
    }

    /// The kernel has forgotten so many entries that led to this inode, or was not notified of them. Returns
    /// whether it no longer knows the inode: then all ends that is known of it.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) -> bool {
        let is_unknown = self.lock(inode).with(inode, |node| {
            node.lookups -= i64::try_from(lookups).unwrap_or(i64::MAX);
            if node.lookups == 0
                && let Some(parts) = &mut node.parts
            {
                parts.forget();
            }
            node.lookups == 0
        });
        if is_unknown {
            self.places.forget(inode, || self.is_known(inode));
        }
        is_unknown
    }

    /// The kernel was notified of the inode and has not forgotten it.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.lock(inode).nodes.get(&inode).is_some_and(|node| node.lookups != 0)
    }

    /// All inodes of which this is known.
    pub(crate) fn all(&self, is_known: impl Fn(&Parts) -> bool) -> Vec<InodeId> {
        let mut inodes = Vec::new();
        for shard in self.shards.iter() {
            let table = shard.table.lock();
            let of = |node: &Node| node.parts.as_deref().is_some_and(&is_known);
            inodes.extend(table.nodes.iter().filter(|(_, node)| of(node)).map(|(inode, _)| *inode));
        }
        inodes
    }

    /// Reads what is known of an inode, if anything is.
    pub(crate) fn read<T>(&self, inode: InodeId, read: impl FnOnce(&Parts) -> T) -> Option<T> {
        self.lock(inode).read(inode, read)
    }

    /// The same, to change some of it, or to take it away.
    pub(crate) fn find<T>(&self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> Option<T> {
        self.lock(inode).find(inode, change)
    }

    /// The same, for the end of something that [`Nodes::change_after`] may wait for.
    pub(crate) fn find_and_wake(&self, inode: InodeId, change: impl FnOnce(&mut Parts)) {
        let shard = self.shard(inode);
        let mut table = shard.table.lock();
        table.find(inode, change);
        if table.waiting > 0 {
            shard.over.notify_all();
        }
    }

    /// The same, also if nothing is known yet.
    pub(crate) fn change<T>(&self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> T {
        self.lock(inode).change(inode, change)
    }

    /// Changes it twice. In between, as long as it `waits`, others may change it.
    pub(crate) fn change_after<A, T>(
        &self,
        inode: InodeId,
        begin: impl FnOnce(&mut Parts) -> A,
        waits: impl Fn(&Parts, &A) -> bool,
        mut change: impl FnMut(&mut Parts, A) -> T,
    ) -> T {
        let shard = self.shard(inode);
        let mut table = shard.table.lock();
        let at_once = table.change(inode, |parts| {
            let begun = begin(parts);
            if waits(parts, &begun) { Err(begun) } else { Ok(change(parts, begun)) }
        });
        let begun = match at_once {
            Ok(changed) => return changed,
            Err(begun) => begun,
        };
        loop {
            table.waiting += 1;
            table = shard.over.wait(table);
            table.waiting -= 1;
            if !table.read(inode, |parts| waits(parts, &begun)).unwrap_or(false) {
                return table.change(inode, |parts| change(parts, begun));
            }
        }
    }

    fn shard(&self, inode: InodeId) -> &Shard {
        &self.shards[shard_of(inode)]
    }

    fn lock(&self, inode: InodeId) -> MutexGuard<'_, Table> {
        self.shard(inode).table.lock()
    }

    /// The number of threads that wait beside an inode.
    #[cfg(test)]
    pub(crate) fn waiting(&self, inode: InodeId) -> usize {
        self.lock(inode).waiting
    }
}

impl Table {
    /// Changes a node, and removes it if nothing is known of it any more.
    fn with<T>(&mut self, inode: InodeId, change: impl FnOnce(&mut Node) -> T) -> T {
        let node = self.nodes.entry(inode).or_default();
        let changed = change(node);
        if !node.sweep() {
            self.nodes.remove(&inode);
        }
        changed
    }

    fn change<T>(&mut self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> T {
        self.with(inode, |node| change(node.parts.get_or_insert_default()))
    }

    fn find<T>(&mut self, inode: InodeId, change: impl FnOnce(&mut Parts) -> T) -> Option<T> {
        let node = self.nodes.get_mut(&inode)?;
        let found = change(node.parts.as_deref_mut()?);
        if !node.sweep() {
            self.nodes.remove(&inode);
        }
        Some(found)
    }

    fn read<T>(&self, inode: InodeId, read: impl FnOnce(&Parts) -> T) -> Option<T> {
        Some(read(self.nodes.get(&inode)?.parts.as_deref()?))
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
        assert!(nodes.shards.iter().all(|shard| shard.table.lock().nodes.is_empty()));
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
    fn an_inode_of_which_little_is_known_takes_little_memory() {
        assert!(
            size_of::<(InodeId, Node)>() <= 24 && size_of::<Parts>() <= 96 && size_of::<pages::File>() <= 256
        );
        let nodes = Nodes::default();
        nodes.tell(FILE);
        nodes.change(FILE, |node| node.pages = Some(Box::default()));
        nodes.find(FILE, |node| node.pages = None);
        assert!(nodes.read(FILE, |_| ()).is_none(), "its memory is given back");
        nodes.change(InodeId(8), |_| ());
        assert!(!nodes.lock(InodeId(8)).nodes.contains_key(&InodeId(8)));
    }

    #[test]
    fn locks_are_released_also_when_the_kernel_has_forgotten_the_file_before() {
        let nodes = Nodes::default();
        nodes.tell(FILE);
        nodes.change(FILE, |node| node.owners.note(1, 10));
        assert!(nodes.forget(FILE, 1) && !nodes.is_known(FILE));
        assert_eq!(nodes.find(FILE, |node| node.owners.end_file(10)), Some(vec![1]));
        assert!(!nodes.lock(FILE).nodes.contains_key(&FILE));
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

//! Listings during changes of the directory: no entry twice, and none missing that stayed.

use std::collections::BTreeSet;

use ramlace_base::{ErrorKind, InodeId, Name, Result};
use ramlace_model::Node;
use ramlace_wire::namespace::{DirectoryPage, ReadDirectory};

use crate::pools::pool::{Pool, ROOT_USER};

/// A directory that is read page by page.
pub struct Listing {
    node: Node,
    after: u64,
    /// Entries that have been there all the time.
    stayed: BTreeSet<(Name, Node)>,
    seen: Vec<Name>,
}

impl Pool {
    /// A page of a directory, from wherever its home says that the next entries are.
    pub fn page(&self, inode: InodeId, after: u64, entries_max: u32) -> Result<DirectoryPage> {
        let home = &self.hosts[usize::from(inode.slot().0)].state;
        let partitions = self.info(inode)?.partitions;
        let partition = home.partition_behind(after);
        let slot = match partition.and_then(|partition| partitions.get(partition)) {
            Some(slot) => *slot,
            None => inode.slot(),
        };
        let query = ReadDirectory { inode, after, entries_max };
        self.hosts[usize::from(slot.0)].state.query(&ROOT_USER, &query)
    }

    /// Reads one page more of a listing, or begins one.
    pub fn list_on(&mut self, which: u8, entries_max: u8) {
        let Some(mut listing) = self.listing.take() else {
            let directories: Vec<Node> =
                self.model.nodes().map(|(node, _)| node).filter(|node| self.is_directory(*node)).collect();
            let node = directories[usize::from(which) % directories.len()];
            let stayed = self.untouched_entries(node);
            self.listing = Some(Listing { node, after: 0, stayed, seen: Vec::new() });
            return;
        };
        match self.page(self.inode_of[&listing.node], listing.after, u32::from(entries_max % 3) + 1) {
            Ok(page) => {
                listing.seen.extend(page.entries.into_iter().map(|entry| entry.name));
                listing.after = page.next;
                if page.end {
                    return listing.check();
                }
                self.listing = Some(listing);
            }
            Err(error) if error.kind() == ErrorKind::Retry => self.listing = Some(listing),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Stale, "{error}"),
        }
    }

    fn is_directory(&self, node: Node) -> bool {
        self.model.read_directory(node).is_ok()
    }

    /// The entries that no operation under way is about to change.
    fn untouched_entries(&self, node: Node) -> BTreeSet<(Name, Node)> {
        let entries = self.model.read_directory(node).unwrap_or_default();
        let touched = |name: &Name| {
            let mut touched = self.touched.values().flat_map(|(_, touched)| &touched.names);
            touched.any(|(parent, other)| (*parent, other) == (node, name))
        };
        entries.into_iter().filter(|(name, _, _)| !touched(name)).map(|(name, to, _)| (name, to)).collect()
    }

    /// The tree has changed: removed entries need not be listed.
    pub fn note_listing(&mut self) {
        let Some(mut listing) = self.listing.take() else { return };
        let there = self.untouched_entries(listing.node);
        listing.stayed.retain(|entry| there.contains(entry));
        self.listing = Some(listing);
    }
}

impl Listing {
    fn check(&self) {
        for (name, _) in &self.stayed {
            let seen = self.seen.iter().filter(|other| *other == name).count();
            assert_eq!(seen, 1, "'{name}' was seen {seen} times in {:?}", self.seen);
        }
    }
}

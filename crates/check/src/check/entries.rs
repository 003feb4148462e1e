//! Entries, one after the other: whether they lead somewhere, lie where a lookup finds them, and are there
//! once.
//!
//! They come when all inodes are known, page by page in the order of their places. What they add up to (links,
//! paths, directories inside each other) is collected during a scan and judged when it
//! ends.

use ramlace_base::{InodeId, Name, ServerId};
use ramlace_layout::COLLISION_BITS;
use ramlace_wire::FileKind;
use ramlace_wire::check::EntryFacts;

use crate::check::Check;
use crate::check::losses::mark_lost;
use crate::kinds::FindingKind;

impl Check<'_> {
    /// An entry that a server holds, in the order of its pages.
    pub fn entry(&mut self, server: ServerId, facts: &EntryFacts) {
        self.checked.counts.entries += 1;
        let EntryFacts { directory, inode, name, .. } = facts;
        if facts.misplaced {
            let text = format!(
                "'{name}' in directory {directory} is stored in the wrong slot, where lookups do not find it"
            );
            self.find_entry(FindingKind::EntryMisplaced, server, facts, text);
        }
        self.check_neighbours(server, facts);
        if !self.directories.contains_key(directory) {
            let text = format!("'{name}' is in directory {directory}, which is gone");
            let lost = self.is_lost(*directory);
            let finding = self.find_entry(FindingKind::EntryOfNoDirectory, server, facts, text);
            mark_lost(finding, lost);
        }
        if self.suspects.contains(inode) {
            self.paths.insert(*inode, (*directory, name.clone()));
        }
        let Some(known) = self.inodes.get_mut(inode) else {
            if facts.kind == FileKind::Directory {
                self.count_inside(*directory);
            }
            let text = format!("'{name}' in directory {directory} leads to inode {inode}, which is gone");
            let lost = self.is_lost(*inode);
            let finding = self.find_entry(FindingKind::EntryLeadsNowhere, server, facts, text);
            return mark_lost(finding, lost);
        };
        known.entries += 1;
        let kind = known.kind;
        if kind != facts.kind {
            let text = format!(
                "'{name}' in directory {directory} takes inode {inode} for a {:?}; it is a {kind:?}",
                facts.kind
            );
            self.find_entry(FindingKind::KindsDiffer, server, facts, text);
        }
        if kind == FileKind::Directory {
            self.directory_entry(server, facts);
        }
    }

    /// A directory counts each entry that is one's, wherever that leads.
    fn count_inside(&mut self, directory: InodeId) {
        if let Some(above) = self.directories.get_mut(&directory) {
            above.directories_inside += 1;
        }
    }

    fn directory_entry(&mut self, server: ServerId, facts: &EntryFacts) {
        self.count_inside(facts.directory);
        let Some(inside) = self.directories.get_mut(&facts.inode) else { return };
        let other = inside.found_in.replace((facts.directory, facts.name.clone()));
        if let Some((other, name)) = other {
            let text = format!(
                "directory {} is '{}' in directory {} and '{name}' in directory {other}",
                facts.inode, facts.name, facts.directory
            );
            self.find_entry(FindingKind::DirectoryTwice, server, facts, text);
        }
    }

    fn check_neighbours(&mut self, server: ServerId, facts: &EntryFacts) {
        let hash = facts.cookie >> COLLISION_BITS;
        let is_near =
            |(directory, near, _): &(InodeId, u64, Name)| *directory == facts.directory && *near == hash;
        self.neighbours.retain(is_near);
        if self.neighbours.iter().any(|(_, _, name)| *name == facts.name) {
            let text = format!("'{}' is in directory {} twice", facts.name, facts.directory);
            self.find_entry(FindingKind::NameTwice, server, facts, text);
        }
        self.neighbours.push((facts.directory, hash, facts.name.clone()));
    }
}

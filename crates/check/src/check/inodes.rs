//! Inodes, when all facts have arrived: whether as many entries lead to each as it counts, whether directories
//! are a tree, and which parts are left of directories that are gone.

use std::collections::BTreeSet;

use ramlace_base::{InodeId, ServerId};

use crate::check::losses::mark_lost;
use crate::check::{Check, Known};
use crate::kinds::FindingKind;

impl Check<'_> {
    pub(super) fn check_inodes(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        for (id, known) in &inodes {
            match self.directories.get(id) {
                Some(_) => self.check_directory(*id, known),
                None => self.check_file(*id, known),
            }
        }
        self.inodes = inodes;
    }

    /// Parts of directories that are gone.
    pub(super) fn check_partitions(&mut self) {
        for (directory, partitions) in std::mem::take(&mut self.partitions) {
            if self.directories.contains_key(&directory) {
                continue;
            }
            let lost = self.is_lost(directory);
            for (server, slot, _) in partitions.into_iter().filter(|(_, _, facts)| !facts.held) {
                let text = format!("{slot} has a part of directory {directory}, which is gone");
                let place = slot.to_string();
                let finding =
                    self.find(FindingKind::EntryOfNoDirectory, server, Some(directory), place, text);
                mark_lost(finding, lost);
            }
        }
    }

    fn check_file(&mut self, id: InodeId, known: &Known) {
        let Known { server, links, entries, .. } = *known;
        if known.held {
            return;
        }
        // The directory that had the entry may have been lost.
        let lost = self.has_lost_servers();
        if links == 0 && entries == 0 {
            self.check_nameless(id, known);
        } else if entries == 0 {
            let text = format!("inode {id} counts {links} entries; none leads to it");
            let finding = self.find(FindingKind::InodeWithoutName, server, Some(id), String::new(), text);
            mark_lost(finding, lost);
        } else if links != entries {
            let text = format!("inode {id} counts {links} entries; {entries} lead to it");
            // Entries that come and go meanwhile make other numbers in each scan; what is damaged has the same.
            let place = format!("{links} {entries}");
            let finding = self.find(FindingKind::LinksMiscounted, server, Some(id), place, text);
            mark_lost(finding, lost);
        }
    }

    /// Without entries an inode lives as long as a session has it open.
    fn check_nameless(&mut self, id: InodeId, known: &Known) {
        if known.open {
            self.checked.counts.open_without_name += 1;
        } else {
            let text = format!("nothing leads to inode {id}, and nobody has it open");
            self.find(FindingKind::InodeLeaked, known.server, Some(id), String::new(), text);
        }
    }

    fn check_directory(&mut self, id: InodeId, known: &Known) {
        let Known { server, links, entries, held, .. } = *known;
        let parts = self.partitions.get(&id).map_or(&[][..], |parts| parts);
        let links = parts.iter().fold(links, |links, (_, _, facts)| links.saturating_add(facts.links));
        let held = held || parts.iter().any(|(_, _, facts)| facts.held);
        let directory = &self.directories[&id];
        let (parent, inside) = (directory.parent, directory.directories_inside);
        let found_in = directory.found_in.as_ref().map(|(above, _)| *above);
        if links == 0 && entries == 0 && !held {
            return self.check_nameless(id, known);
        }
        let is_root = id == InodeId::ROOT;
        if entries == 0 && !is_root && !held {
            let text = format!("nothing leads to directory {id}");
            let lost = self.is_lost(parent);
            let finding = self.find(FindingKind::InodeWithoutName, server, Some(id), String::new(), text);
            mark_lost(finding, lost);
        }
        if links != inside.saturating_add(2) && !held {
            let text = format!(
                "directory {id} counts {links} links; with {inside} directories in it, it has {}",
                2 + inside
            );
            // As with a file's.
            let place = format!("{links} {inside}");
            self.find(FindingKind::LinksMiscounted, server, Some(id), place, text);
        }
        if let Some(above) = found_in.filter(|above| *above != parent) {
            let text = format!("directory {id} is in directory {above} and takes {parent} for its parent");
            self.find(FindingKind::ParentDiffers, server, Some(id), String::new(), text);
        }
    }

    /// Every directory that is in another leads to the root, or to one that nothing leads to.
    pub(super) fn check_cycles(&mut self) {
        let mut seen: BTreeSet<InodeId> = BTreeSet::new();
        let mut cycles = Vec::new();
        for start in self.directories.keys() {
            let mut path = Vec::new();
            let mut at = *start;
            while seen.insert(at) {
                path.push(at);
                let above = self.directories.get(&at).and_then(|directory| directory.found_in.as_ref());
                match above {
                    Some((above, _)) => at = *above,
                    None => break,
                }
            }
            if let Some(begin) = path.iter().position(|step| *step == at)
                && (begin + 1 < path.len() || self.is_in(at, at))
            {
                cycles.push(at);
            }
        }
        for at in cycles {
            let server = self.inodes.get(&at).map_or(ServerId(0), |known| known.server);
            let text = format!("directory {at} is inside itself: no path leads to it");
            self.find(FindingKind::DirectoryCycle, server, Some(at), String::new(), text);
        }
    }

    fn is_in(&self, directory: InodeId, above: InodeId) -> bool {
        let found_in = self.directories.get(&directory).and_then(|directory| directory.found_in.as_ref());
        found_in.is_some_and(|(found_in, _)| *found_in == above)
    }
}

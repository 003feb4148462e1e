//! Whether everything that a pool's servers hold fits together: a function of the facts that they
//! tell, page by page.
//!
//! Facts of a pool at work are of different moments: what one look finds may be what was just under
//! way. Look twice and believe what both have found ([`Checked::keep_found_by`]).

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Epoch, InodeId, LaneId, Name, ServerId, Slot};
use ramlace_layout::{COLLISION_BITS, lane_length, lane_slot};
use ramlace_wire::check::{
    EntryFacts, FileFacts, InodeFacts, LaneFacts, PartitionFacts, SlotFacts, StoreFacts, Trouble,
};
use ramlace_wire::{ClusterMap, FileKind};

use crate::findings::{CheckCounts, Checked, FINDINGS_MAX, Finding, FindingKind};
use crate::state::file::PAGE_BYTES;
use crate::state::first_number;

/// One look at a pool. First all slots and inodes, then entries, lanes and books, in any order.
pub struct Check<'map> {
    map: &'map ClusterMap,
    /// Of these, paths are remembered.
    suspects: BTreeSet<InodeId>,
    inodes: BTreeMap<InodeId, Known>,
    directories: BTreeMap<InodeId, KnownDirectory>,
    paths: BTreeMap<InodeId, (InodeId, Name)>,
    /// The entries before this one with the same hash: where names may be equal.
    neighbours: Vec<(InodeId, u64, Name)>,
    asked: BTreeSet<(Slot, Slot, u64)>,
    held: Vec<(ServerId, Slot, Slot, u64)>,
    /// What slots other than their homes have of directories: where, and directories inside.
    partitions: BTreeMap<InodeId, Vec<(ServerId, Slot, PartitionFacts)>>,
    /// Lanes in slots that have begun anew.
    lanes_in_new_slots: BTreeSet<LaneId>,
    checked: Checked,
}

/// An inode, and how often it was met.
struct Known {
    server: ServerId,
    kind: FileKind,
    links: u32,
    entries: u32,
    open: bool,
    held: bool,
    file: Option<FileFacts>,
}

/// What is known of a directory beside that.
struct KnownDirectory {
    /// By its own word.
    parent: InodeId,
    /// By the entry that leads to it.
    found_in: Option<(InodeId, Name)>,
    directories_inside: u32,
}

impl Check<'_> {
    /// Begins. Of `suspects`, which an earlier look has found, paths will be told.
    #[must_use]
    pub fn new(map: &ClusterMap, suspects: BTreeSet<InodeId>) -> Check<'_> {
        Check {
            map,
            suspects,
            inodes: BTreeMap::new(),
            directories: BTreeMap::new(),
            paths: BTreeMap::new(),
            neighbours: Vec::new(),
            asked: BTreeSet::new(),
            held: Vec::new(),
            partitions: BTreeMap::new(),
            lanes_in_new_slots: BTreeSet::new(),
            checked: Checked::default(),
        }
    }

    /// How much was looked at so far.
    #[must_use]
    pub fn counts(&self) -> &CheckCounts {
        &self.checked.counts
    }

    /// A slot that a server holds.
    pub fn slot(&mut self, server: ServerId, facts: &SlotFacts) {
        let counts = &mut self.checked.counts;
        counts.slots += 1;
        counts.operations += facts.asked.len() as u64;
        counts.deliveries += u64::from(facts.deliveries);
        self.asked.extend(facts.asked.iter().map(|(slot, number)| (facts.slot, *slot, *number)));
        self.held.extend(facts.held.iter().map(|(slot, number)| (server, facts.slot, *slot, *number)));
        for partition in &facts.partitions {
            let known = self.partitions.entry(partition.directory).or_default();
            known.push((server, facts.slot, *partition));
        }
        if self.map.primary(facts.slot) != Some(server) {
            let text = format!("{server} keeps a state of {}, which is not its own", facts.slot);
            self.find(FindingKind::SlotMisplaced, server, None, facts.slot.to_string(), text);
        }
        facts.troubles.iter().for_each(|trouble| self.trouble(server, trouble));
    }

    /// What a slot has found by itself.
    pub fn trouble(&mut self, server: ServerId, trouble: &Trouble) {
        // The text tells troubles of one inode apart; numbers in it that change come with pools at work.
        let place = if trouble.inode.is_some() { String::new() } else { trouble.text.clone() };
        self.find(trouble.kind.into(), server, trouble.inode, place, trouble.text.clone());
    }

    /// An inode that a server holds.
    pub fn inode(&mut self, server: ServerId, facts: &InodeFacts) {
        self.checked.counts.inodes += 1;
        let known = Known {
            server,
            kind: facts.kind,
            links: facts.links,
            entries: 0,
            open: facts.opens > 0,
            held: facts.held,
            file: facts.file,
        };
        self.inodes.insert(facts.inode, known);
        if let Some(parent) = facts.parent {
            let directory = KnownDirectory { parent, found_in: None, directories_inside: 0 };
            self.directories.insert(facts.inode, directory);
        }
    }

    /// An entry that a server holds, in the order of its pages.
    pub fn entry(&mut self, server: ServerId, facts: &EntryFacts) {
        self.checked.counts.entries += 1;
        let EntryFacts { directory, inode, name, .. } = facts;
        if facts.misplaced {
            let text = format!("'{name}' in directory {directory} lies where nobody looks for it");
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

    /// A mount says that stores into a file were lost. One that is gone by now has lost nothing. To be told when all
    /// inodes were.
    pub fn lost_stores(&mut self, inode: InodeId, text: &str) {
        if let Some(server) = self.inodes.get(&inode).map(|known| known.server) {
            self.find(FindingKind::StoresLost, server, Some(inode), String::new(), text.to_owned());
        }
    }

    /// A lane that a server holds.
    pub fn lane(&mut self, server: ServerId, facts: &LaneFacts) {
        let counts = &mut self.checked.counts;
        counts.lanes += 1;
        counts.lane_bytes = counts.lane_bytes.saturating_add(facts.allocated_bytes);
        let LaneId { inode, lane } = facts.lane;
        let bytes = facts.allocated_bytes;
        let Some(known) = self.inodes.get(&inode) else {
            let text = format!("lane {lane} of file {inode} takes {bytes} bytes; the file is gone");
            let lost = self.is_lost(inode);
            let finding = self.find_lane(FindingKind::LaneLeaked, server, facts.lane, text);
            return mark_lost(finding, lost);
        };
        let Some(file) = known.file.filter(|file| lane < file.layout.width) else {
            let text = format!("lane {lane} takes {bytes} bytes; inode {inode} has no such lane");
            self.find_lane(FindingKind::LaneMisplaced, server, facts.lane, text);
            return;
        };
        let open = known.open;
        let slot = lane_slot(&file.layout, lane, self.map.slots());
        if self.map.primary(slot) != Some(server) {
            let text = format!("lane {lane} of file {inode} lies in {slot}, which is not with {server}");
            self.find_lane(FindingKind::LaneMisplaced, server, facts.lane, text);
            return;
        }
        if self.began(slot) > file.layout.created {
            self.lanes_in_new_slots.insert(facts.lane);
        }
        self.check_lane_generation(server, facts, &file);
        if facts.lost_below > 0 {
            let text = format!("bytes of lane {lane} of file {inode} were lost with a server");
            let finding = self.find_lane(FindingKind::BytesLost, server, facts.lane, text);
            mark_lost(finding, true);
        }
        if !open && !facts.writing {
            self.check_lane_memory(server, facts, &file);
        }
    }

    fn check_lane_generation(&mut self, server: ServerId, facts: &LaneFacts, file: &FileFacts) {
        let LaneId { inode, lane } = facts.lane;
        let Some(generation) = facts.generation else {
            let text = format!("lane {lane} of file {inode} is in the store and not in the server's table");
            self.find_lane(FindingKind::LaneUnknown, server, facts.lane, text);
            return;
        };
        let wrong = match generation.cmp(&file.generation) {
            std::cmp::Ordering::Less => !file.cutting,
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Greater => true,
        };
        if wrong {
            let text =
                format!("lane {lane} of file {inode} has {generation}; the file has {}", file.generation);
            self.find_lane(FindingKind::GenerationsDiffer, server, facts.lane, text);
        }
    }

    /// Nobody has the file open: the lane has what it needs and no more.
    fn check_lane_memory(&mut self, server: ServerId, facts: &LaneFacts, file: &FileFacts) {
        let LaneId { inode, lane } = facts.lane;
        let Some(length) = facts.length else { return };
        let wanted = lane_length(&file.layout, lane, file.extent);
        if length > wanted {
            let counts = &mut self.checked.counts;
            counts.lanes_beyond_end += 1;
            // Clients choose how far behind the end they write, each up to 2^62 bytes.
            counts.bytes_beyond_end = counts.bytes_beyond_end.saturating_add(length - wanted);
        }
        let pages = length.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        if facts.allocated_bytes > pages && !file.untrimmed && length == wanted {
            let text = format!(
                "lane {lane} of file {inode} has {length} bytes and takes {}, though nobody has it open",
                facts.allocated_bytes
            );
            self.find_lane(FindingKind::LaneUntrimmed, server, facts.lane, text);
        }
    }

    /// A server's books.
    pub fn store(&mut self, facts: &StoreFacts) {
        self.checked.counts.servers += 1;
        let server = facts.server;
        if facts.lanes_bytes != facts.summed_bytes {
            let (counted, summed) = (facts.lanes_bytes, facts.summed_bytes);
            let text = format!("{server} counts {counted} bytes of lanes; its lanes have {summed} together");
            self.find(FindingKind::CounterDiffers, server, None, String::new(), text);
        }
        if let Some(kernel) = facts.kernel_bytes.filter(|kernel| *kernel != facts.counted_bytes) {
            let text = format!(
                "{server} counts {} bytes in its store; the kernel counts {kernel}",
                facts.counted_bytes
            );
            self.find(FindingKind::KernelDiffers, server, None, String::new(), text);
        }
    }

    /// Everything was told: the rest is found, and paths are put in.
    #[must_use]
    pub fn finish(mut self) -> Checked {
        self.check_held();
        self.check_inodes();
        self.check_partitions();
        self.check_cycles();
        self.check_absent_lanes();
        self.name_findings();
        self.checked
    }

    fn check_held(&mut self) {
        for (server, slot, coordinator, number) in std::mem::take(&mut self.held) {
            if !self.asked.contains(&(coordinator, slot, number)) {
                let text = format!(
                    "{slot} holds something for operation {number} of {coordinator}, which knows nothing of it"
                );
                self.find(
                    FindingKind::HeldByNobody,
                    server,
                    None,
                    format!("{slot} {coordinator} {number}"),
                    text,
                );
            }
        }
    }

    fn check_inodes(&mut self) {
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
    fn check_partitions(&mut self) {
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
            let finding = self.find(FindingKind::LinksMiscounted, server, Some(id), String::new(), text);
            mark_lost(finding, lost);
        }
    }

    /// Without entries an inode lives as long as somebody has it open.
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
            self.find(FindingKind::LinksMiscounted, server, Some(id), String::new(), text);
        }
        if let Some(above) = found_in.filter(|above| *above != parent) {
            let text = format!("directory {id} is in directory {above} and takes {parent} for its parent");
            self.find(FindingKind::ParentDiffers, server, Some(id), String::new(), text);
        }
    }

    /// Every directory that is in another leads to the root, or to one that nothing leads to.
    fn check_cycles(&mut self) {
        let mut seen: BTreeSet<InodeId> = BTreeSet::new();
        let mut cycles = Vec::new();
        for start in self.directories.keys() {
            let mut way = Vec::new();
            let mut at = *start;
            while seen.insert(at) {
                way.push(at);
                let above = self.directories.get(&at).and_then(|directory| directory.found_in.as_ref());
                match above {
                    Some((above, _)) => at = *above,
                    None => break,
                }
            }
            if let Some(begin) = way.iter().position(|step| *step == at)
                && (begin + 1 < way.len() || self.is_in(at, at))
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

    /// Lanes that should have bytes and lie in slots that were lost since.
    fn check_absent_lanes(&mut self) {
        if !self.has_lost_servers() {
            return;
        }
        let mut lost = Vec::new();
        for (id, known) in &self.inodes {
            let Some(file) = &known.file else { continue };
            for lane in 0..file.layout.width {
                let slot = lane_slot(&file.layout, lane, self.map.slots());
                let lane = LaneId { inode: *id, lane };
                if self.began(slot) > file.layout.created
                    && lane_length(&file.layout, lane.lane, file.extent) > 0
                    && !self.lanes_in_new_slots.contains(&lane)
                {
                    lost.push((self.map.primary(slot).unwrap_or(known.server), lane));
                }
            }
        }
        for (server, lane) in lost {
            let text = format!("lane {} of file {} was lost with a server", lane.lane, lane.inode);
            let finding = self.find_lane(FindingKind::BytesLost, server, lane, text);
            mark_lost(finding, true);
        }
    }

    // ---- findings ----

    fn find(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        inode: Option<InodeId>,
        place: String,
        text: String,
    ) -> Option<&mut Finding> {
        let checked = &mut self.checked;
        if checked.findings.len() >= FINDINGS_MAX {
            checked.further_findings += 1;
            return None;
        }
        checked.findings.push(Finding {
            kind,
            server,
            inode,
            lane: None,
            place,
            path: None,
            lost_with_server: false,
            text,
        });
        checked.findings.last_mut()
    }

    fn find_lane(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        lane: LaneId,
        text: String,
    ) -> Option<&mut Finding> {
        let finding = self.find(kind, server, Some(lane.inode), format!("lane {}", lane.lane), text)?;
        finding.lane = Some(lane);
        Some(finding)
    }

    fn find_entry(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        entry: &EntryFacts,
        text: String,
    ) -> Option<&mut Finding> {
        self.paths.insert(entry.inode, (entry.directory, entry.name.clone()));
        let place = format!("{} {}", entry.directory, entry.cookie);
        self.find(kind, server, Some(entry.inode), place, text)
    }

    fn name_findings(&mut self) {
        let mut findings = std::mem::take(&mut self.checked.findings);
        for finding in &mut findings {
            finding.path = finding.inode.and_then(|inode| self.path(inode));
        }
        self.checked.findings = findings;
    }

    /// A path to an inode, when one is known.
    fn path(&self, inode: InodeId) -> Option<Vec<u8>> {
        let mut parts: Vec<&Name> = Vec::new();
        let mut at = inode;
        while at != InodeId::ROOT {
            let found_in = self.directories.get(&at).and_then(|directory| directory.found_in.as_ref());
            let (above, name) = found_in.or_else(|| self.paths.get(&at))?;
            parts.push(name);
            at = *above;
            if parts.len() > self.directories.len() + 1 {
                return None; // A cycle.
            }
        }
        if parts.is_empty() {
            return Some(b"/".to_vec());
        }
        Some(parts.iter().rev().flat_map(|name| [b"/", name.as_bytes()].concat()).collect())
    }

    // ---- losses ----

    fn began(&self, slot: Slot) -> Epoch {
        self.map.chain(slot).map_or(Epoch(0), |chain| chain.complete_since)
    }

    /// Whether the inode was lost with its server: its slot has begun anew since.
    fn is_lost(&self, inode: InodeId) -> bool {
        self.has_lost_servers() && inode.counter() < first_number(self.began(inode.slot()))
    }

    fn has_lost_servers(&self) -> bool {
        self.map.servers.iter().any(|entry| entry.forgotten)
    }
}

fn mark_lost(finding: Option<&mut Finding>, lost: bool) {
    if let Some(finding) = finding {
        finding.lost_with_server = lost;
    }
}

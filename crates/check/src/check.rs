//! Whether everything that a pool's servers hold fits together: a function of the facts that they report, page
//! by page.
//!
//! Facts of a pool at work are of different moments: what one scan finds may be an operation under way. Scan
//! twice and keep what both have found ([`Checked::keep_found_by`]).
//!
//! This file has the state of a scan and takes the facts of slots, inodes and books; `check/` judges by
//! subject.

mod entries;
mod inodes;
mod lanes;
mod losses;
mod notes;

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{InodeId, LaneId, Name, ServerId, Slot};
use ramlace_wire::check::{FileFacts, InodeFacts, PartitionFacts, SlotFacts, StoreFacts, Trouble};
use ramlace_wire::{ClusterMap, FileKind};

use crate::findings::{CheckCounts, Checked};
use crate::kinds::FindingKind;

/// One scan of a pool. First all slots and inodes, then entries, lanes and books, in any order.
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
    /// Begins. For `suspects`, which an earlier scan has found, paths are reported.
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

    /// How much was examined so far.
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
        // The text distinguishes troubles of one inode; numbers in it that change come with pools at work.
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

    /// A mount reports that stores into a file were lost. One that is gone by now has lost nothing. To be
    /// called after all inodes were added.
    pub fn lost_stores(&mut self, inode: InodeId, text: &str) {
        if let Some(server) = self.inodes.get(&inode).map(|known| known.server) {
            self.find(FindingKind::StoresLost, server, Some(inode), String::new(), text.to_owned());
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

    /// All facts have arrived: finds the rest, and puts in the paths.
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
}

//! The data that `check` reads of a slot: facts page by page, and the problems that the slot finds by itself.
//!
//! Problems that need data of two slots are found by `ramlace_check::Check`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ramlace_base::{InodeId, Name, SessionId, Slot, limits};
use ramlace_layout::COLLISION_BITS;
use ramlace_wire::check::{EntryFacts, InodeFacts, PartitionFacts, SlotFacts, Trouble, TroubleKind};

use crate::command::{Delivery, DeliveryId};
use crate::state::SlotState;
use crate::state::coordinator::Coordinator;
use crate::state::directory::{Directory, Phase};
use crate::state::hold::Hold;
use crate::state::inode::{Body, Inode};

/// Everything that operations under way hold in a slot.
#[derive(Default)]
struct Held<'state> {
    inodes: BTreeSet<InodeId>,
    names: BTreeSet<(InodeId, &'state Name)>,
    /// Cookies kept for new entries, by directory.
    cookies: BTreeMap<InodeId, usize>,
    moves: bool,
}

impl SlotState {
    /// The operations under way here, and problems of them. `is_open` returns whether the server still has a
    /// session.
    #[must_use]
    pub fn slot_facts(&self, is_open: impl Fn(SessionId) -> bool) -> SlotFacts {
        let mut troubles = Vec::new();
        self.check_sessions(is_open, &mut troubles);
        self.check_operations(&mut troubles);
        let partitions = self.partition_facts(&mut troubles);
        troubles.truncate(limits::CHECK_TROUBLES_MAX);
        let mut held: Vec<(Slot, u64)> = self
            .coordinators
            .iter()
            .flat_map(|(slot, coordinator)| coordinator.held_numbers().map(|number| (*slot, number)))
            .collect();
        held.truncate(limits::CHECK_SLOT_FACTS_MAX);
        SlotFacts {
            slot: self.slot,
            inodes: self.inode_count(),
            asked: self.unfinished.iter().copied().collect(),
            held,
            partitions,
            deliveries: u32::try_from(self.outbox.iter().count()).unwrap_or(u32::MAX),
            troubles,
        }
    }

    /// At most `most` inodes after this one, and their problems.
    pub fn inode_facts(&self, after: InodeId, most: usize, troubles: &mut Vec<Trouble>) -> Vec<InodeFacts> {
        let page: Vec<(InodeId, &Inode)> = self
            .inodes
            .range((Bound::Excluded(after), Bound::Unbounded))
            .filter(|(id, _)| self.is_mine(**id))
            .take(most)
            .map(|(id, inode)| (*id, &**inode))
            .collect();
        let (Some((first, _)), Some((last, _))) = (page.first(), page.last()) else { return Vec::new() };
        let (held, opens) = (self.held(), self.opens_between(*first, *last));
        for (id, inode) in &page {
            self.check_inode(*id, inode, opens.get(id).copied().unwrap_or(0), &held, troubles);
        }
        page.iter().map(|(id, inode)| inode_facts(*id, inode)).collect()
    }

    /// Records of other slots' directories, and their problems.
    fn partition_facts(&self, troubles: &mut Vec<Trouble>) -> Vec<PartitionFacts> {
        let held = self.held();
        let records = self.inodes.iter().filter(|(id, _)| !self.is_mine(**id));
        let mut partitions = Vec::new();
        for (id, record) in records.take(limits::CHECK_SLOT_FACTS_MAX) {
            self.check_inode(*id, record, 0, &held, troubles);
            let facts = inode_facts(*id, record);
            partitions.push(PartitionFacts { directory: *id, links: facts.links, held: facts.held });
        }
        partitions
    }

    /// At most `most` entries after this cookie of this directory. Where it says that there may be
    /// more, it says where it ended.
    pub fn entry_facts(
        &self,
        after: Option<(InodeId, u64)>,
        most: usize,
        entries: &mut Vec<EntryFacts>,
    ) -> Option<(InodeId, u64)> {
        let (first, mut cookie) = after.unwrap_or((InodeId(0), 0));
        for (id, inode) in self.inodes.range(first..) {
            let Body::Directory(directory) = &inode.body else { continue };
            let from = if *id == first { cookie } else { 0 };
            for (at, entry) in directory.entries.after(from) {
                if entries.len() >= most {
                    return Some((*id, cookie));
                }
                cookie = at;
                let elsewhere =
                    self.check_partition(*id, directory, self.hash.partition(&entry.name)).is_err();
                entries.push(EntryFacts {
                    directory: *id,
                    cookie,
                    name: entry.name.clone(),
                    inode: entry.inode,
                    kind: entry.kind,
                    misplaced: elsewhere || cookie >> COLLISION_BITS != self.hash.of(&entry.name),
                });
            }
            // Where the next directory begins.
            cookie = 0;
        }
        None
    }

    fn held(&self) -> Held<'_> {
        let mut held = Held::default();
        let here = self.intents.values().flat_map(|intent| &intent.holds);
        let others = self.coordinators.values().flat_map(Coordinator::holds);
        for hold in here.chain(others) {
            match hold {
                Hold::Made(inode) | Hold::Sealed(inode) | Hold::Raised(inode) | Hold::Lowered(inode) => {
                    held.inodes.insert(*inode);
                }
                Hold::Entry(entry) => {
                    held.names.insert((entry.parent, &entry.name));
                    *held.cookies.entry(entry.parent).or_default() += usize::from(entry.cookie.is_some());
                }
                Hold::Changing { inode, .. }
                | Hold::Taken(inode)
                | Hold::SealedPartition(inode)
                | Hold::SetPartition { inode, .. } => {
                    held.inodes.insert(*inode);
                }
                Hold::Moved { .. } => {}
                Hold::Moves => held.moves = true,
            }
        }
        held
    }

    /// How many sessions have the inodes of a page open.
    fn opens_between(&self, first: InodeId, last: InodeId) -> BTreeMap<InodeId, u32> {
        let mut opens = BTreeMap::new();
        for session in self.sessions.values() {
            for id in session.open.range(first..=last).map(|(id, _)| *id) {
                *opens.entry(id).or_default() += 1;
            }
        }
        opens
    }

    fn check_sessions(&self, is_open: impl Fn(SessionId) -> bool, troubles: &mut Vec<Trouble>) {
        for (id, session) in &self.sessions {
            if !is_open(*id) {
                let open = session.open.len();
                let text = format!(
                    "{} keeps things for session {id}, which has ended; {open} inodes stay open by it",
                    self.slot
                );
                troubles.push(Trouble { kind: TroubleKind::SessionGone, inode: None, text });
            }
            let gone = session.open.keys().filter(|inode| !self.inodes.contains_key(inode));
            troubles.extend(gone.map(|inode| Trouble {
                kind: TroubleKind::OpenOfNothing,
                inode: Some(*inode),
                text: format!("session {id} has inode {inode} open, which is gone"),
            }));
        }
    }

    fn check_operations(&self, troubles: &mut Vec<Trouble>) {
        let decisions: BTreeSet<(Slot, u64)> = self
            .outbox
            .iter()
            .filter_map(|(_, delivery)| match delivery {
                Delivery::Decide(decide) => Some((decide.slot, decide.stamp.number)),
                _ => None,
            })
            .collect();
        let stuck = |text: String| Trouble { kind: TroubleKind::OperationStuck, inode: None, text };
        for (token, intent) in &self.intents {
            let asks = intent.awaited.is_some_and(|delivery| self.outbox.get(delivery).is_some());
            let tells = intent.asked.iter().any(|(slot, number)| decisions.contains(&(*slot, *number)));
            if !(asks || intent.decided.is_some() && tells) {
                let (session, number) = (token.session, token.sequence.0);
                let text =
                    format!("operation {number} of session {session} waits in {} for nothing", self.slot);
                troubles.push(stuck(text));
            }
        }
        let asked = |slot: Slot, number: u64| {
            self.intents.values().any(|intent| intent.asked.get(&slot) == Some(&number))
        };
        for (slot, number) in &self.unfinished {
            if !decisions.contains(&(*slot, *number)) && !asked(*slot, *number) {
                let text = format!("{} never notifies {slot} how operation {number} has ended", self.slot);
                troubles.push(stuck(text));
            }
        }
        if self.moves.is_some() && !self.held().moves {
            let text =
                "directories cannot be moved: an operation that is not under way keeps their order".into();
            troubles.push(Trouble { kind: TroubleKind::HeldByNobody, inode: None, text });
        }
    }

    fn check_inode(
        &self,
        id: InodeId,
        inode: &Inode,
        opens: u32,
        held: &Held<'_>,
        troubles: &mut Vec<Trouble>,
    ) {
        let mut tell = |kind, text| troubles.push(Trouble { kind, inode: Some(id), text });
        if self.is_mine(id) && id.counter() >= self.next_counter {
            let text = format!("inode {id} has a number that {} has yet to give out", self.slot);
            tell(TroubleKind::NumberNotGivenOut, text);
        }
        if inode.opens != opens {
            let text = format!("inode {id} counts {} sessions that have it open; {opens} have", inode.opens);
            tell(TroubleKind::OpensMiscounted, text);
        }
        let is_held =
            inode.held || matches!(&inode.body, Body::Directory(directory) if is_between(directory));
        if is_held && !held.inodes.contains(&id) {
            let text = format!("inode {id} is held for an operation that is not under way");
            tell(TroubleKind::HeldByNobody, text);
        }
        match &inode.body {
            Body::File(file) => {
                for session in file.reserved_by() {
                    let knows =
                        self.sessions.get(&session).is_some_and(|state| state.appending.contains(&id));
                    if !knows {
                        let text = format!(
                            "an append to inode {id} is reserved for session {session}, which has ended"
                        );
                        tell(TroubleKind::ReservationOfNobody, text);
                    }
                }
                if file.open_cuts().any(|delivery: DeliveryId| self.outbox.get(delivery).is_none()) {
                    let text = format!("a lane of inode {id} is never notified of its truncation");
                    tell(TroubleKind::OperationStuck, text);
                }
            }
            Body::Directory(directory) => {
                for name in directory.busy.keys().filter(|name| !held.names.contains(&(id, *name))) {
                    let text =
                        format!("'{name}' in directory {id} is held for an operation that is not under way");
                    tell(TroubleKind::HeldByNobody, text);
                }
                if directory.entries.reserved_count() != held.cookies.get(&id).copied().unwrap_or(0) {
                    let text =
                        format!("places in directory {id} are kept for operations that are not under way");
                    tell(TroubleKind::HeldByNobody, text);
                }
            }
            Body::Symlink(_) | Body::Special(_) => {}
        }
    }
}

/// Whether a mkdir or rmdir of the directory itself, or a change of all its parts, is under way.
fn is_between(directory: &Directory) -> bool {
    matches!(directory.phase, Phase::Prepared | Phase::Sealed | Phase::Changing)
}

fn inode_facts(id: InodeId, inode: &Inode) -> InodeFacts {
    let (parent, file, between) = match &inode.body {
        Body::File(file) => (None, Some(file.facts()), false),
        Body::Directory(directory) => (Some(directory.parent), None, is_between(directory)),
        Body::Symlink(_) | Body::Special(_) => (None, None, false),
    };
    InodeFacts {
        inode: id,
        kind: inode.kind(),
        links: inode.links,
        opens: inode.opens,
        held: inode.held || between,
        parent,
        file,
    }
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;

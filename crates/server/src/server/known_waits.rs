//! The files for whose locks owners wait, as far as they have reported it: see [`crate::deadlock`]. Not kept
//! over a restart: owners that still wait report again.

use std::collections::{BTreeSet, HashMap, HashSet};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_wire::locks::{LockOwner, LockWait};

/// The files for whose locks owners wait.
#[derive(Default)]
pub struct KnownWaits {
    files: HashMap<LockOwner, BTreeSet<InodeId>>,
}

impl KnownWaits {
    /// An owner reports that it waits for a lock of this file.
    pub fn note(&mut self, owner: LockOwner, file: InodeId) {
        if self.files.len() >= limits::DEADLOCK_OWNERS_KNOWN_MAX && !self.files.contains_key(&owner) {
            // Owners that still wait report again.
            self.files.clear();
        }
        self.files.entry(owner).or_default().insert(file);
    }

    /// The slots in which these owners may wait, ordered by owner.
    pub fn homes(&self, owners: &[LockOwner]) -> Vec<(LockOwner, Slot)> {
        let mut homes = Vec::new();
        for owner in owners {
            let slots: BTreeSet<Slot> =
                self.files.get(owner).into_iter().flatten().map(|file| file.slot()).collect();
            homes.extend(slots.into_iter().map(|slot| (*owner, slot)));
        }
        homes
    }

    /// Learns all waits of these owners in those slots: others are forgotten.
    pub fn learn(&mut self, owners: &[LockOwner], waits: &[LockWait]) {
        let there: HashSet<(LockOwner, InodeId)> =
            waits.iter().map(|wait| (wait.owner, wait.inode)).collect();
        // If there are more than one answer holds, it is not known which are missing.
        if waits.len() >= limits::DEADLOCK_WAITS_MAX {
            return;
        }
        for owner in owners {
            if let Some(files) = self.files.get_mut(owner) {
                files.retain(|file| there.contains(&(*owner, *file)));
                if files.is_empty() {
                    self.files.remove(owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::SessionId;

    use super::*;

    // SEMANTICS 70.3
    #[test]
    fn an_owner_is_asked_about_where_it_waits_and_nowhere_else() {
        let mut known = KnownWaits::default();
        let owner = |owner| LockOwner { session: SessionId([1; 16]), owner };
        let file = |slot| InodeId::new(Slot(slot), 7);
        known.note(owner(1), file(3));
        known.note(owner(1), file(3));
        known.note(owner(1), file(9));
        known.note(owner(2), file(5));
        let all = [owner(1), owner(2), owner(3)];
        assert_eq!(known.homes(&all), [(owner(1), Slot(3)), (owner(1), Slot(9)), (owner(2), Slot(5))]);
        let wait = |owner, inode| LockWait { inode, owner, wait: 1, blockers: Vec::new() };
        known.learn(&[owner(1)], &[wait(owner(1), file(9))]);
        assert_eq!(known.homes(&all), [(owner(1), Slot(9)), (owner(2), Slot(5))]);
        known.learn(&all, &[]);
        assert_eq!(known.homes(&all), []);
        for number in 0..=limits::DEADLOCK_OWNERS_KNOWN_MAX as u64 {
            known.note(owner(number), file(1));
        }
        assert_eq!(known.files.len(), 1);
    }
}

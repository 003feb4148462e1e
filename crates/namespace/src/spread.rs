//! Directories that are spread over slots.
//!
//! A directory is whole, with all its entries at its home, or spread: each of its partitions, the names
//! whose hashes have the same prefix, is in a slot of its own. A slot that holds partitions of
//! another's directory keeps a *record* of it under the directory's number: a copy of what its entries
//! need (mode, owner, access lists, hints) with the entries themselves, so that operations on entries run there as
//! they do at home. Cookies are hashes of names, so nothing of this changes one.
//!
//! Everything that is not about entries stays at home: opens, the parent, the list of slots. Counts of
//! entries and subdirectories, and times, are those of each slot's own entries.
//!
//! A record answers only when it is live. One that is being made or removed answers Retry, also to queries: it
//! does not know yet whether it or the home answers for its names.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Redirect, Result, Slot, limits};
use ramlace_wire::peer::PartitionAttributes;

use crate::state::directory::{Directory, Phase};
use crate::state::inode::{Body, Inode};
use crate::state::{FollowUp, SlotState};

impl SlotState {
    /// The partition of a name in a spread directory.
    #[must_use]
    pub fn partition_of(&self, name: &Name) -> usize {
        self.hash.partition(name)
    }

    /// The partition in which a listing continues after a cookie.
    #[must_use]
    pub fn partition_behind(&self, cookie: u64) -> Option<usize> {
        self.hash.partition_behind(cookie)
    }

    /// Directories of other slots that have entries here.
    pub fn partition_records(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.inodes.keys().copied().filter(|inode| !self.is_mine(*inode))
    }

    /// The directory, or the record of it, that holds a name; `Spread` when that is elsewhere.
    pub(crate) fn directory_with(&self, inode: InodeId, name: &Name) -> Result<(&Inode, &Directory)> {
        let (found, directory) = self.directory_here(inode)?;
        self.check_partition(inode, directory, self.hash.partition(name))?;
        Ok((found, directory))
    }

    /// The directory, or the record of it, as far as it is here.
    pub(crate) fn directory_here(&self, inode: InodeId) -> Result<(&Inode, &Directory)> {
        let found = self.inode(inode)?;
        let directory = found.directory(inode)?;
        if !self.is_mine(inode) && directory.phase != Phase::Live {
            let text =
                format!("the part of directory {inode} in {} is just being made or removed", self.slot);
            return Err(Error::new(ErrorKind::Retry, text));
        }
        Ok((found, directory))
    }

    /// Whether a partition of a directory is here.
    pub(crate) fn check_partition(
        &self,
        inode: InodeId,
        directory: &Directory,
        partition: usize,
    ) -> Result<()> {
        match &directory.spread {
            Some(spread) if spread.partitions[partition] != self.slot => {
                let text = format!("directory {inode} is spread; the entry belongs to another slot");
                Err(Error::new(ErrorKind::Redirect(Redirect::Spread), text))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a directory has got an entry.
    pub(crate) fn note_growth(&mut self, inode: InodeId) {
        let entries_max = self.whole_entries_max;
        let (_, directory) = self.directory_mut(inode);
        if directory.spread.is_none() && directory.entries.len() >= entries_max {
            self.follow_up.push(FollowUp::Grown(inode));
        }
    }

    /// Whether the directory can be spread now: it is whole and large, and no operation is under way in it.
    pub(crate) fn may_spread(&self, inode: InodeId) -> bool {
        let Some(Body::Directory(directory)) = self.inodes.get(&inode).map(|inode| &inode.body) else {
            return false;
        };
        directory.spread.is_none()
            && directory.phase == Phase::Live
            && directory.busy.is_empty()
            && directory.entries.len() >= self.whole_entries_max
    }
}

/// Whether a list of partitions is valid: the right number, in slots of the pool.
pub(crate) fn check_partitions(partitions: &[Slot], slots: u32) -> Result<()> {
    let right = partitions.len() == limits::DIRECTORY_PARTITIONS;
    if right && partitions.iter().all(|slot| u32::from(slot.0) < slots) {
        return Ok(());
    }
    let text = format!("a directory has {} partitions in slots of the pool", limits::DIRECTORY_PARTITIONS);
    Err(Error::new(ErrorKind::Invalid, text))
}

impl Inode {
    /// The attributes of a directory that the slots of its partitions must know.
    pub(crate) fn partition_attributes(&self, times: bool) -> PartitionAttributes {
        let Body::Directory(directory) = &self.body else { panic!("only directories are spread") };
        PartitionAttributes {
            mode: self.mode,
            owner: self.owner(),
            hints: directory.hints,
            lists: self.lists.as_deref().cloned().unwrap_or_default(),
            accessed: times.then_some(self.accessed),
            modified: times.then_some(self.modified),
        }
    }

    /// Takes them over.
    pub(crate) fn set_partition_attributes(&mut self, attributes: &PartitionAttributes) {
        self.mode = attributes.mode;
        self.set_lists(attributes.lists.clone());
        (self.uid, self.gid) = (attributes.owner.uid, attributes.owner.gid);
        self.accessed = attributes.accessed.unwrap_or(self.accessed);
        self.modified = attributes.modified.unwrap_or(self.modified);
        if let Body::Directory(directory) = &mut self.body {
            directory.hints = attributes.hints;
        }
    }
}

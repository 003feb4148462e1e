//! Spread directories: finds the slot of an entry, and combines the answers of all slots.
//!
//! A directory is assumed to be whole, or spread as it was last known to be. A request to the wrong slot is
//! answered `Spread`; then the directory's home is asked for the partitions, and the request repeated. The
//! home names the slots of existing partitions: a slot that then knows nothing of its partition has lost it.
//! The rest of such a directory stays accessible: a listing skips what was lost and reports the loss at its
//! end, and attributes are those of what is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Redirect, Result, Slot, limits};
use ramlace_wire::namespace::{DirectoryPage, GetAttributes, GetPartitions, InodeInfo, ReadDirectory};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::names::spreads::Partitions;

/// How often a home may name a slot that does not know its partition before the partition counts as lost.
const REPEATED_MAX: usize = 3;

/// What one call has learned of directories.
struct Lesson {
    learned: HashMap<InodeId, Partitions>,
    /// Answers that brought nothing new.
    repeated: usize,
    backoff: Backoff,
    deadline: Instant,
}

impl Lesson {
    fn new(deadline: Instant) -> Lesson {
        Lesson { learned: HashMap::new(), repeated: 0, backoff: Backoff::new(deadline), deadline }
    }

    /// A slot had no entries of one of these directories: asks their homes which slots have them.
    fn learn(&mut self, session: &Arc<Client>, directories: &[InodeId], error: Error) -> Result<()> {
        let mut new = false;
        for directory in directories {
            let request = GetAttributes { inode: *directory };
            let info = session.ask(directory.slot(), &request, self.deadline)?;
            let partitions = session.note_partitions(*directory, &info);
            new |= self.learned.get(directory) != Some(&partitions);
            self.learned.insert(*directory, partitions);
        }
        if new {
            return Ok(());
        }
        // Once is allowed: between the two requests the directory may have been made whole and spread again.
        self.repeated += 1;
        if self.repeated >= REPEATED_MAX {
            return Err(lost_partition(directories, error.message()));
        }
        self.backoff.pause_after(error)
    }
}

impl Client {
    /// Stores the partitions that a home has answered.
    fn note_partitions(&self, directory: InodeId, info: &InodeInfo) -> Partitions {
        // The answer comes from outside: a list of another length must not be indexed.
        let right = info.partitions.len() == limits::DIRECTORY_PARTITIONS;
        let partitions = right.then(|| Arc::from(info.partitions.as_slice()));
        self.spreads.put(directory, &partitions);
        partitions
    }

    /// The slot that has a name.
    fn slot_of_name(self: &Arc<Client>, directory: InodeId, name: &Name) -> Result<Slot> {
        let Some(partitions) = self.spreads.get(directory) else { return Ok(directory.slot()) };
        Ok(partitions[ramlace_layout::partition_of_name(self.map()?.hash_seed, name)])
    }

    /// Asks the slot that has a name, after finding it.
    pub(crate) fn in_partition<T>(
        self: &Arc<Client>,
        directory: InodeId,
        name: &Name,
        mut ask: impl FnMut(Slot, Instant) -> Result<T>,
    ) -> Result<T> {
        let mut lesson = Lesson::new(self.deadline());
        loop {
            match ask(self.slot_of_name(directory, name)?, lesson.deadline) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Spread) => {
                    lesson.learn(self, &[directory], error)?;
                }
                other => return other,
            }
        }
    }

    /// The same for two names.
    pub(crate) fn in_partitions<T>(
        self: &Arc<Client>,
        (directory, name): (InodeId, &Name),
        (other_directory, other_name): (InodeId, &Name),
        mut ask: impl FnMut(Slot, Slot, Instant) -> Result<T>,
    ) -> Result<T> {
        let mut lesson = Lesson::new(self.deadline());
        loop {
            let slot = self.slot_of_name(directory, name)?;
            let other_slot = self.slot_of_name(other_directory, other_name)?;
            match ask(slot, other_slot, lesson.deadline) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Spread) => {
                    lesson.learn(self, &[directory, other_directory], error)?;
                }
                other => return other,
            }
        }
    }

    /// Entries of a directory behind a cookie: at least one, unless there are no more. Where partitions were
    /// lost, those that are left are listed, and the error follows the last entry.
    pub(crate) fn read_partitions(
        self: &Arc<Client>,
        inode: InodeId,
        mut after: u64,
        entries_max: u32,
    ) -> Result<DirectoryPage> {
        let mut lesson = Lesson::new(self.deadline());
        loop {
            let partition = ramlace_layout::partition_behind(after, ramlace_layout::HASH_BITS);
            let slot = match (self.spreads.get(inode), partition) {
                (Some(partitions), Some(partition)) => partitions[partition],
                _ => inode.slot(),
            };
            let request = ReadDirectory { inode, after, entries_max };
            match self.ask(slot, &request, lesson.deadline) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Spread) => {
                    match (lesson.learn(self, &[inode], error), partition) {
                        (Err(lost), Some(partition)) if lost.kind() == ErrorKind::Lost => {
                            self.spreads.set_lost(inode, partition, true);
                            after = ramlace_layout::last_cookie(partition, ramlace_layout::HASH_BITS);
                            if ramlace_layout::partition_behind(after, ramlace_layout::HASH_BITS).is_none() {
                                return Err(lost);
                            }
                            lesson = Lesson::new(self.deadline());
                        }
                        (learned, _) => learned?,
                    }
                }
                Ok(page) if page.entries.is_empty() && !page.end => {
                    if page.next <= after {
                        let text = "a directory's listing does not go on";
                        return Err(Error::new(ErrorKind::Corrupt, text));
                    }
                    after = page.next;
                }
                page => {
                    let mut page = page?;
                    if let Some(partition) = partition {
                        self.spreads.set_lost(inode, partition, false);
                    }
                    if page.end && self.spreads.has_lost(inode) {
                        if page.entries.is_empty() {
                            return Err(lost_partition(&[inode], "seen while it was listed"));
                        }
                        // The next call returns the error.
                        page.end = false;
                    }
                    return Ok(page);
                }
            }
        }
    }

    /// Everything about an inode; for a spread directory, over all its slots.
    pub(crate) fn whole_info(self: &Arc<Client>, inode: InodeId) -> Result<InodeInfo> {
        let mut lesson = Lesson::new(self.deadline());
        loop {
            let mut info = self.ask(inode.slot(), &GetAttributes { inode }, lesson.deadline)?;
            if info.partitions.is_empty() {
                return Ok(info);
            }
            self.note_partitions(inode, &info);
            let whole = info.clone();
            match self.add_partitions(&mut info, lesson.deadline) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Spread) => {
                    match lesson.learn(self, &[inode], error) {
                        Err(lost) if lost.kind() == ErrorKind::Lost => return self.add_what_is_left(whole),
                        learned => learned?,
                    }
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(info),
            }
        }
    }

    /// Adds the partitions that were not lost.
    fn add_what_is_left(self: &Arc<Client>, mut info: InodeInfo) -> Result<InodeInfo> {
        let inode = info.attributes.inode;
        let deadline = self.deadline();
        for slot in other_slots(&info) {
            match self.ask(slot, &GetPartitions { inode, slots: vec![slot] }, deadline) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Spread) => {}
                part => info.attributes.add_partition(&part?.attributes),
            }
        }
        Ok(info)
    }

    fn add_partitions(self: &Arc<Client>, info: &mut InodeInfo, deadline: Instant) -> Result<()> {
        let inode = info.attributes.inode;
        let mut slots = other_slots(info);
        while let Some(slot) = slots.first().copied() {
            let request = GetPartitions { inode, slots: slots.clone() };
            let part = self.ask(slot, &request, deadline)?;
            info.attributes.add_partition(&part.attributes);
            slots.retain(|slot| !part.slots.contains(slot));
            if slots.first() == Some(&slot) {
                let text = format!("{slot} says nothing of its part of directory {inode}");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
        }
        Ok(())
    }
}

fn lost_partition(directories: &[InodeId], how: &str) -> Error {
    let shown: Vec<String> = directories.iter().map(InodeId::to_string).collect();
    let text = format!(
        "entries of directory {} were lost with a server that was forgotten ({how}); \
         remove the directory when the rest of it is not needed any more",
        shown.join(" or ")
    );
    Error::new(ErrorKind::Lost, text)
}

/// The slots with partitions of a directory, except its home's.
fn other_slots(info: &InodeInfo) -> Vec<Slot> {
    let mut slots = info.partitions.clone();
    slots.retain(|slot| *slot != info.attributes.inode.slot());
    slots.sort_unstable();
    slots.dedup();
    slots
}

//! Prepared changes for an operation that is not decided: the same for the slot that coordinates and for its
//! participants.
//!
//! A *hold* is a change that was checked and is kept possible. It is done, or dropped, when the operation is
//! decided; neither can fail. A caller that wants to change the held objects meanwhile gets Retry. Counts of
//! links change when they are held, so that every answer shows them.

use std::collections::btree_map::Entry as Slotted;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Slot, Timestamp, limits};
use ramlace_wire::namespace::RenameMode;
use ramlace_wire::peer::{Part, Prepared, PutEntry, Target, Token};
use ramlace_wire::{AccessLists, Credentials, FileKind, LayoutHints, Owner};

use crate::command::Effect;
use crate::entries::{not_found, taken};
use crate::state::SlotState;
use crate::state::directory::{Claim, Directory, Entry, Phase};
use crate::state::hold::{HeldEntry, Hold};
use crate::state::inode::{Body, Inode, right};

/// For which caller something is held, and since when.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'asker> {
    pub who: &'asker Credentials,
    pub now: Timestamp,
    /// The slot that coordinates.
    pub coordinator: Slot,
    /// The operation.
    pub token: Token,
}

impl SlotState {
    /// Checks a part of an operation and holds it ready; an error leaves nothing behind.
    pub(crate) fn hold_part(&mut self, asker: Asker, part: &Part) -> Result<(Vec<Hold>, Prepared)> {
        self.check_concerns(part)?;
        let ready = |hold: Hold| (vec![hold], Prepared::Ready);
        match part {
            Part::MakeDirectory { parent, mode, owner, hints, lists } => {
                let inode = self.allocate()?;
                let made = new_directory(*parent, *mode, *owner, *hints, lists, asker.now);
                self.inodes.insert(inode, Box::new(made));
                Ok((vec![Hold::Made(inode)], Prepared::Made(inode)))
            }
            Part::SealDirectory { inode, owner } => self.hold_seal(asker, *inode, *owner).map(ready),
            Part::RaiseLinks { inode } => {
                self.hold_raise(asker, *inode)?;
                let attributes = self.inode(*inode)?.attributes(*inode);
                Ok((vec![Hold::Raised(*inode)], Prepared::Linked(attributes)))
            }
            Part::LowerLinks { inode, owner } => self.hold_lower(asker, *inode, *owner).map(ready),
            Part::PutEntry(put) => self.hold_put(asker, put),
            Part::MoveInode { inode, parent, owner } => {
                self.hold_move(asker, *inode, *parent, *owner).map(ready)
            }
            Part::OrderMoves => self.hold_moves(asker).map(ready),
            Part::TakePartition(take) => Ok((self.hold_take(asker, take)?, Prepared::Ready)),
            Part::SealPartition { inode } => self.hold_seal_partition(*inode).map(ready),
            Part::SetPartition { inode, attributes } => self.hold_set(*inode, attributes.clone()).map(ready),
        }
    }

    /// Whether a part is one for this slot. The sender is another server, and may be wrong.
    fn check_concerns(&self, part: &Part) -> Result<()> {
        let concerns = match part {
            Part::MakeDirectory { .. } | Part::PutEntry(_) | Part::TakePartition(_) => true,
            Part::SealDirectory { inode, .. }
            | Part::RaiseLinks { inode }
            | Part::LowerLinks { inode, .. }
            | Part::MoveInode { inode, .. } => self.is_mine(*inode),
            // The home itself is not one of its partitions.
            Part::SealPartition { inode } | Part::SetPartition { inode, .. } => !self.is_mine(*inode),
            Part::OrderMoves => self.slot == InodeId::ROOT.slot(),
        };
        if concerns {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, format!("{part:?} is not for {}", self.slot)))
    }

    /// The operation is decided: commits its hold, or drops it.
    pub(crate) fn finish_hold(
        &mut self,
        hold: Hold,
        commit: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        match hold {
            Hold::Made(inode) if commit => self.set_phase(inode, Phase::Live),
            Hold::Made(inode) => _ = self.inodes.remove(&inode),
            Hold::Sealed(inode) if commit => {
                self.set_phase(inode, Phase::Removed);
                if let Some(inode) = self.inodes.get_mut(&inode) {
                    inode.links = 0;
                }
                self.retire_if_unused(inode, effects);
            }
            Hold::Sealed(inode) => self.set_phase(inode, Phase::Live),
            Hold::Raised(inode) => self.finish_count(inode, if commit { 0 } else { -1 }, effects),
            Hold::Lowered(inode) => self.finish_count(inode, if commit { 0 } else { 1 }, effects),
            Hold::Entry(entry) => self.finish_entry(entry, commit, now),
            Hold::Moved { inode, parent } => {
                if let (true, Some(inode)) = (commit, self.inodes.get_mut(&inode)) {
                    inode.note_change(now);
                    if let (Some(parent), Body::Directory(directory)) = (parent, &mut inode.body) {
                        directory.parent = parent;
                    }
                }
            }
            Hold::Moves => self.moves = None,
            Hold::Changing { inode, becomes } => self.finish_changing(inode, becomes, commit, now),
            Hold::Taken(inode) => self.finish_taken(inode, commit),
            Hold::SealedPartition(inode) => self.finish_sealed_partition(inode, commit),
            Hold::SetPartition { inode, attributes } => self.finish_set(inode, &attributes, commit, now),
        }
    }

    fn finish_count(&mut self, id: InodeId, change: i32, effects: &mut Vec<Effect>) {
        let inode = self.inodes.get_mut(&id).expect("what is held lives");
        inode.links = inode.links.wrapping_add_signed(change);
        inode.held = false;
        inode.linkable &= inode.links == 0;
        self.retire_if_unused(id, effects);
    }

    // ---- entries ----

    /// Holds a name, which shall lead to `put`. The caller has checked that it may.
    pub(crate) fn claim(
        &mut self,
        parent: InodeId,
        name: &Name,
        put: Option<(InodeId, FileKind)>,
    ) -> Result<Hold> {
        self.claim_new(parent, name, put.is_some())
            .map(|cookie| Hold::Entry(HeldEntry { parent, name: name.clone(), cookie, put }))
    }

    /// The same for an entry whose inode is not known yet.
    pub(crate) fn claim_unmade(&mut self, parent: InodeId, name: &Name) -> Result<Hold> {
        let cookie = self.claim_new(parent, name, true)?;
        Ok(Hold::Entry(HeldEntry { parent, name: name.clone(), cookie, put: None }))
    }

    fn claim_new(&mut self, parent: InodeId, name: &Name, stays: bool) -> Result<Option<u64>> {
        let hash = self.hash.of(name);
        let (_, directory) = self.directory_mut(parent);
        let new = stays && directory.entries.find(hash, name).is_none();
        let cookie = if new { Some(directory.entries.reserve_cookie(hash, name)?) } else { None };
        match directory.busy.entry(name.clone()) {
            Slotted::Vacant(vacant) => _ = vacant.insert(Claim::Asked),
            Slotted::Occupied(_) => panic!("'{name}' is held already"),
        }
        Ok(cookie)
    }

    fn finish_entry(&mut self, held: HeldEntry, commit: bool, now: Timestamp) {
        let hash = self.hash.of(&held.name);
        let (mut above, directory) = self.directory_mut(held.parent);
        directory.busy.remove(&held.name);
        if let Some(cookie) = held.cookie {
            directory.entries.give_back_cookie(cookie);
        }
        if !commit {
            return;
        }
        let old = directory.entries.find(hash, &held.name).map(|(cookie, entry)| (cookie, entry.kind));
        if let Some((cookie, kind)) = old {
            directory.entries.remove(cookie);
            *above.links -= u32::from(kind == FileKind::Directory);
        }
        if let Some((inode, kind)) = held.put {
            let cookie = old.map(|(cookie, _)| cookie).or(held.cookie).expect("a held name has its place");
            directory.entries.insert(cookie, Entry { name: held.name, inode, kind });
            *above.links += u32::from(kind == FileKind::Directory);
        }
        above.touch(now);
        self.note_growth(held.parent);
    }

    /// Holds a rename's new entry, and those of its inodes that live here.
    fn hold_put(&mut self, asker: Asker, put: &PutEntry) -> Result<(Vec<Hold>, Prepared)> {
        let found = self.check_put(asker, put)?;
        if found.is_some_and(|target| target.inode == put.inode) {
            return Ok((Vec::new(), Prepared::Found(found)));
        }
        let mut holds = Vec::new();
        match self.hold_put_all(asker, put, found, &mut holds) {
            Ok(()) => Ok((holds, Prepared::Found(found))),
            Err(error) => {
                let mut effects = Vec::new();
                holds.into_iter().for_each(|hold| self.finish_hold(hold, false, asker.now, &mut effects));
                Err(error)
            }
        }
    }

    fn hold_put_all(
        &mut self,
        asker: Asker,
        put: &PutEntry,
        found: Option<Target>,
        holds: &mut Vec<Hold>,
    ) -> Result<()> {
        holds.push(self.claim(put.parent, &put.name, Some((put.inode, put.kind)))?);
        if put.inode.slot() == self.slot {
            let parent = new_parent(put.kind, put.from, put.parent);
            holds.push(self.hold_move(asker, put.inode, parent, put.owner)?);
        }
        if let Some(target) = found.filter(|target| target.inode.slot() == self.slot) {
            let part = target_part(put.mode, target, put.parent, put.from);
            holds.extend(self.hold_part(asker, &part)?.0);
        }
        Ok(())
    }

    /// Whether the new entry of a rename is possible, and where its name leads now.
    fn check_put(&self, asker: Asker, put: &PutEntry) -> Result<Option<Target>> {
        let directory = self.directory_to_change(put.parent, &put.name, asker.who)?;
        directory.check_not_busy(&put.name)?;
        let above = self.inode(put.parent)?;
        above.check_allows(asker.who, right::WRITE)?;
        if put.kind == FileKind::Directory {
            check_one_more_link(above)?;
        }
        let Some((_, entry)) = directory.entries.find(self.hash.of(&put.name), &put.name) else {
            return if put.mode == RenameMode::Exchange { Err(not_found(&put.name)) } else { Ok(None) };
        };
        let target = Target { inode: entry.inode, kind: entry.kind, owner: above.sticky_owner(asker.who) };
        if put.mode == RenameMode::Keep {
            return Err(taken(&put.name));
        }
        if put.mode == RenameMode::Replace && target.inode != put.inode {
            check_replaceable(put, target.kind)?;
        }
        Ok(Some(target))
    }

    // ---- inodes ----

    fn hold_seal(&mut self, asker: Asker, inode: InodeId, owner: Option<u32>) -> Result<Hold> {
        self.check_not_refused(inode, asker.token)?;
        let found = self.inode(inode)?;
        let sealable = check_sealable(found.directory(inode)?, inode);
        let may = found.check_sticky(owner);
        if may.is_ok() && sealable.as_ref().is_err_and(|why| why.kind() == ErrorKind::Retry) {
            self.note_caller(inode, asker.token);
        }
        // As in Linux: who may not remove it does not hear what is in it.
        may.and(sealable)?;
        self.check_whole(inode, asker.token)?;
        self.set_phase(inode, Phase::Sealed);
        Ok(Hold::Sealed(inode))
    }

    fn hold_raise(&mut self, asker: Asker, id: InodeId) -> Result<()> {
        let inode = self.inode_mut(id)?;
        if let Body::Directory(_) = inode.body {
            let text = "a directory has one name, and no second entry may lead to it";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        inode.check_not_held(id)?;
        if inode.links == 0 && !inode.linkable {
            return Err(Error::new(ErrorKind::NotFound, "what it shall lead to has no name any more"));
        }
        if inode.links >= limits::LINKS_PER_FILE_MAX {
            let text = format!("it would lead to what has {} names; more are not possible", inode.links);
            return Err(Error::new(ErrorKind::TooManyLinks, text));
        }
        inode.links += 1;
        inode.held = true;
        inode.note_change(asker.now);
        Ok(())
    }

    fn hold_lower(&mut self, asker: Asker, id: InodeId, owner: Option<u32>) -> Result<Hold> {
        let inode = self.inode(id)?;
        if let Body::Directory(_) = inode.body {
            let text = format!("inode {id} is a directory");
            return Err(Error::new(ErrorKind::IsDirectory, text));
        }
        inode.check_sticky(owner)?;
        inode.check_not_held(id)?;
        if inode.links == 0 {
            return Err(Error::new(ErrorKind::Invalid, format!("no entry leads to inode {id} any more")));
        }
        if let Body::File(file) = &inode.body {
            self.outbox.check_room(file.layout.width)?;
        }
        let inode = self.inode_mut(id)?;
        inode.links -= 1;
        inode.held = true;
        inode.note_change(asker.now);
        Ok(Hold::Lowered(id))
    }

    fn hold_move(
        &mut self,
        asker: Asker,
        id: InodeId,
        parent: Option<InodeId>,
        owner: Option<u32>,
    ) -> Result<Hold> {
        let inode = self.inode(id)?;
        inode.check_sticky(owner)?;
        if parent.is_some() {
            inode.directory(id)?;
            // As in Linux: the directory's own entry for the one above it changes.
            inode.check_allows(asker.who, right::WRITE)?;
        }
        Ok(Hold::Moved { inode: id, parent })
    }

    fn hold_moves(&mut self, asker: Asker) -> Result<Hold> {
        if let Some(holder) = self.moves {
            let text = format!("another directory is just being moved by {holder}");
            return Err(Error::new(ErrorKind::Retry, text));
        }
        self.moves = Some(asker.coordinator);
        Ok(Hold::Moves)
    }

    pub(crate) fn set_phase(&mut self, inode: InodeId, phase: Phase) {
        if let Some(Body::Directory(directory)) = self.inodes.get_mut(&inode).map(|inode| &mut inode.body) {
            directory.phase = phase;
        }
    }
}

/// The inode that a mkdir makes, the same at both slots.
pub(crate) fn new_directory(
    parent: InodeId,
    mode: u16,
    owner: Owner,
    hints: LayoutHints,
    lists: &AccessLists,
    now: Timestamp,
) -> Inode {
    let directory = Directory::new(parent, hints, Phase::Prepared);
    let mut made = Inode::new(mode, owner, now, Body::Directory(Box::new(directory)));
    made.set_lists(lists.clone());
    made
}

/// The new parent of a moved inode, when it has one and it changes.
pub(crate) fn new_parent(kind: FileKind, from: InodeId, to: InodeId) -> Option<InodeId> {
    (kind == FileKind::Directory && from != to).then_some(to)
}

/// The part that a rename from the directory `from` requests for the target found in the directory `parent`.
pub(crate) fn target_part(mode: RenameMode, target: Target, parent: InodeId, from: InodeId) -> Part {
    let Target { inode, kind, owner } = target;
    match (mode, kind) {
        (RenameMode::Exchange, kind) => {
            Part::MoveInode { inode, parent: new_parent(kind, parent, from), owner }
        }
        (_, FileKind::Directory) => Part::SealDirectory { inode, owner },
        _ => Part::LowerLinks { inode, owner },
    }
}

pub(crate) fn check_one_more_link(above: &Inode) -> Result<()> {
    // Directories that are just being made are not counted yet: leave room for all of them.
    if above.links as usize > u32::MAX as usize - limits::INTENTS_PER_SLOT_MAX {
        return Err(Error::new(
            ErrorKind::TooMany,
            format!("the directory has {} in it", count(u64::from(above.links) - 2, "directory")),
        ));
    }
    Ok(())
}

fn check_replaceable(put: &PutEntry, kind: FileKind) -> Result<()> {
    match (put.kind, kind) {
        (FileKind::Directory, FileKind::Directory) => Ok(()),
        (FileKind::Directory, _) => Err(Error::new(
            ErrorKind::NotDirectory,
            format!("'{}' is no directory; a directory cannot replace it", put.name),
        )),
        (_, FileKind::Directory) => Err(Error::new(
            ErrorKind::IsDirectory,
            format!("'{}' is a directory; only a directory can replace it", put.name),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn check_sealable(directory: &Directory, inode: InodeId) -> Result<()> {
    match directory.phase {
        Phase::Live if directory.busy.values().any(|claim| *claim == Claim::Decided) => Err(Error::new(
            ErrorKind::Retry,
            format!("an entry of directory {inode} is just getting another name"),
        )),
        Phase::Live if !directory.entries.is_empty() => Err(Error::new(
            ErrorKind::NotEmpty,
            format!("the directory still has {}", count(directory.entries.len(), "entry")),
        )),
        Phase::Live if !directory.busy.is_empty() => Err(Error::new(
            ErrorKind::Retry,
            format!("{} of the directory: just being made", count(directory.busy.len() as u64, "entry")),
        )),
        Phase::Live => Ok(()),
        Phase::Prepared | Phase::Sealed | Phase::Changing => directory.check_undisturbed(inode),
        Phase::Removed => Err(Error::new(ErrorKind::Stale, format!("directory {inode} is gone"))),
    }
}

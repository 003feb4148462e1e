//! Operations on all partitions of a directory: spreading it, making it whole again, and changes of what
//! every partition must know. The directory's home coordinates, as [`crate::intent`] has it.
//!
//! *Spreading* is begun by the shell, which knows the servers, when a slot says that a directory has grown
//! ([`crate::Effect::Crowded`]). Each other slot takes its entries in as many messages as it needs, and holds
//! them unseen; meanwhile the home answers queries from what it has, and Retry to every change. When all of it
//! is held the home forgets what it has given away, and the others begin to answer.
//!
//! *Collapsing* is begun by an rmdir, or a rename that replaces the directory, at its home
//! ([`crate::collapse`]). Only an empty directory is made whole. A partition that was lost with its server does
//! not delay it.
//!
//! *Changes of attributes* are answered when every partition has them.

use std::collections::BTreeSet;

use ramlace_base::{Error, ErrorKind, InodeId, Result, Sequence, SessionId, Slot, Timestamp, limits};
use ramlace_wire::peer::{MovedEntry, Part, PartitionAttributes, TakePartition, Token};
use ramlace_wire::{Credentials, FileKind};

use crate::command::{Effect, Reply};
use crate::holds::{Asker, check_sealable};
use crate::spread::check_partitions;
use crate::state::directory::{Directory, Entry, Phase, Spread};
use crate::state::hold::{Becomes, Hold};
use crate::state::inode::{Body, Inode};
use crate::state::intent::{Goal, Partitions, Task};
use crate::state::{Caller, FollowUp, SlotState, Step};

/// No session: for operations that a slot begins by itself.
const NOBODY: Credentials = Credentials::new(0, 0);

impl SlotState {
    /// Spreads a directory over slots, if that is possible now.
    pub(crate) fn spread(
        &mut self,
        inode: InodeId,
        partitions: &[Slot],
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if check_partitions(partitions, self.slots).is_err() || !self.may_spread(inode) {
            return;
        }
        let task = Task::Spread { partitions: partitions.into(), partition: 0, after: 0 };
        self.begin_by_itself(inode, task, Becomes::Spread(partitions.into()), now, effects);
    }

    /// Begins the operations that a step has found to be necessary.
    pub(crate) fn follow_up(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for follow_up in std::mem::take(&mut self.follow_up) {
            match follow_up {
                FollowUp::Grown(directory) if self.may_spread(directory) => {
                    effects.push(Effect::Crowded { directory });
                }
                FollowUp::Grown(_) => {}
                FollowUp::Collapse(inode) => self.collapse(inode, now, effects),
            }
        }
    }

    fn collapse(&mut self, inode: InodeId, now: Timestamp, effects: &mut Vec<Effect>) {
        let home = self.slot;
        let Some(Body::Directory(directory)) = self.inodes.get_mut(&inode).map(|inode| &mut inode.body)
        else {
            return;
        };
        if check_sealable(directory, inode).is_err() {
            return;
        }
        let Some(spread) = &mut directory.spread else { return };
        spread.callers.begin();
        let task = Task::Collapse { rest: spread.others(home) };
        self.begin_by_itself(inode, task, Becomes::Whole, now, effects);
    }

    fn begin_by_itself(
        &mut self,
        inode: InodeId,
        task: Task,
        becomes: Becomes,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let number = match self.number_operation() {
            Ok(number) => number,
            Err(why) => return self.note_refusal(inode, &why),
        };
        let token = Token { session: SessionId::NONE, sequence: Sequence(number) };
        let step = self.begin_on_all(
            Caller { token, who: &NOBODY, on_behalf: false, now },
            inode,
            task,
            becomes,
            effects,
        );
        self.conclude_if_ended(token, step, effects);
    }

    /// Changes attributes that all partitions of a spread directory must know; the caller has checked that it
    /// may.
    pub(crate) fn set_everywhere(
        &mut self,
        caller: Caller,
        inode: InodeId,
        attributes: PartitionAttributes,
        tells: bool,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let rest = match &self.inode(inode)?.directory(inode)?.spread {
            Some(spread) => spread.others(self.slot),
            None => Vec::new(),
        };
        let task = Task::Set { rest, attributes: attributes.clone(), tells };
        self.begin_on_all(caller, inode, task, Becomes::Changed(attributes), effects)
    }

    fn begin_on_all(
        &mut self,
        caller: Caller,
        inode: InodeId,
        task: Task,
        becomes: Becomes,
        effects: &mut Vec<Effect>,
    ) -> Step {
        self.check_may_begin(caller.token)?;
        self.set_phase(inode, Phase::Changing);
        let goal = Goal::Partitions(Box::new(Partitions { inode, task }));
        self.begin(caller, goal, Hold::Changing { inode, becomes });
        self.advance_on_all(caller.token, caller.now, effects)
    }

    /// Asks the next slot, or ends when all have answered.
    pub(crate) fn advance_on_all(&mut self, token: Token, now: Timestamp, effects: &mut Vec<Effect>) -> Step {
        match self.next_part(token) {
            None => self.decide_on_all(token, now, effects),
            Some((slot, part)) => match self.part(token, slot, part, now, effects) {
                Ok(None) => Ok(None),
                Ok(Some(_)) => panic!("the home asks itself for a part of its own directory"),
                Err(why) => self.abort(token, &why, now, effects),
            },
        }
    }

    fn next_part(&mut self, token: Token) -> Option<(Slot, Part)> {
        let intent = self.intents.get_mut(&token).expect("an intent is under way");
        let Goal::Partitions(goal) = &mut intent.goal else { panic!("no operation on all partitions") };
        let inode = goal.inode;
        match &mut goal.task {
            Task::Collapse { rest } => rest.pop().map(|slot| (slot, Part::SealPartition { inode })),
            Task::Set { rest, attributes, .. } => {
                let attributes = attributes.clone();
                rest.pop().map(|slot| (slot, Part::SetPartition { inode, attributes }))
            }
            Task::Spread { partitions, partition, after } => {
                let home = &self.inodes[&inode];
                let Body::Directory(directory) = &home.body else { panic!("only directories are spread") };
                while *partition < partitions.len() {
                    let (slot, last) = (partitions[*partition], self.hash.last_cookie(*partition));
                    let first = !intent.asked.contains_key(&slot);
                    let entries = if slot == self.slot { Vec::new() } else { moved(directory, *after, last) };
                    let is_full = entries.len() == limits::DIRECTORY_MOVED_ENTRIES_MAX;
                    match entries.last() {
                        Some(entry) if is_full => *after = entry.cookie,
                        _ => (*partition, *after) = (*partition + 1, last),
                    }
                    if slot != self.slot && (first || !entries.is_empty()) {
                        let attributes = home.partition_attributes(true);
                        let partitions = partitions.to_vec();
                        let take = TakePartition { inode, first, attributes, partitions, entries };
                        return Some((slot, Part::TakePartition(take)));
                    }
                }
                None
            }
        }
    }

    /// Every slot holds its part.
    fn decide_on_all(&mut self, token: Token, now: Timestamp, effects: &mut Vec<Effect>) -> Step {
        let intent = self.intent_mut(token);
        intent.decided = Some(now);
        let (holds, asked) = (std::mem::take(&mut intent.holds), intent.asked.clone());
        holds.into_iter().for_each(|hold| self.finish_hold(hold, true, now, effects));
        for (slot, number) in asked {
            self.send_decision(token, slot, number, true, now, effects);
        }
        self.finish_on_all(token)
    }

    /// Ends the operation: a change of attributes when all slots have it, the others at once.
    pub(crate) fn finish_on_all(&mut self, token: Token) -> Step {
        let intent = self.intent_mut(token);
        let Goal::Partitions(goal) = &intent.goal else { panic!("no operation on all partitions") };
        let (inode, tells) = (goal.inode, matches!(goal.task, Task::Set { tells: true, .. }));
        if matches!(goal.task, Task::Set { .. }) && !intent.asked.is_empty() {
            return Ok(None);
        }
        self.intents.remove(&token);
        if !tells {
            return Ok(Some(Reply::Done));
        }
        Ok(Some(Reply::Attributes(Box::new(self.inode(inode)?.attributes(inode)))))
    }

    // ---- at home ----

    pub(crate) fn finish_changing(&mut self, inode: InodeId, becomes: Becomes, commit: bool, now: Timestamp) {
        self.set_phase(inode, Phase::Live);
        match becomes {
            _ if !commit => {}
            Becomes::Changed(attributes) => self.change_directory(inode, &attributes, now),
            Becomes::Whole => self.directory_mut(inode).1.spread = None,
            Becomes::Spread(partitions) => {
                let (home, hash) = (self.slot, self.hash);
                let kept: BTreeSet<usize> =
                    (0..partitions.len()).filter(|at| partitions[*at] == home).collect();
                let (above, directory) = self.directory_mut(inode);
                let before = directory.entries.directories();
                directory.entries.retain(|cookie| {
                    hash.partition_behind(cookie - 1).is_some_and(|partition| kept.contains(&partition))
                });
                *above.links -= before - directory.entries.directories();
                directory.spread = Some(Spread::new(&partitions));
            }
        }
    }

    fn change_directory(&mut self, inode: InodeId, attributes: &PartitionAttributes, now: Timestamp) {
        let inode = self.inodes.get_mut(&inode).expect("what is held lives");
        inode.set_partition_attributes(attributes);
        inode.note_change(now);
    }

    // ---- at the other slots ----

    pub(crate) fn hold_take(&mut self, asker: Asker, take: &TakePartition) -> Result<Vec<Hold>> {
        check_partitions(&take.partitions, self.slots)?;
        let fresh = take.first.then(|| record_of(take, asker.now));
        let known = self.inodes.get(&take.inode).map(|inode| &inode.body);
        let directory = match (&fresh, known) {
            _ if self.is_mine(take.inode) => return Err(senseless(take.inode)),
            (Some(fresh), None) => fresh.directory(take.inode)?,
            (Some(_), Some(_)) => {
                let text = format!("an older part of directory {} is just being removed", take.inode);
                return Err(Error::new(ErrorKind::Retry, text));
            }
            (None, Some(Body::Directory(directory))) if directory.phase == Phase::Prepared => directory,
            (None, _) => return Err(senseless(take.inode)),
        };
        let cookies: BTreeSet<u64> = take.entries.iter().map(|entry| entry.cookie).collect();
        if cookies.len() < take.entries.len() || cookies.iter().any(|cookie| directory.entries.has(*cookie)) {
            return Err(senseless(take.inode));
        }
        if let Some(fresh) = fresh {
            self.inodes.insert(take.inode, Box::new(fresh));
        }
        let (above, directory) = self.directory_mut(take.inode);
        for MovedEntry { cookie, name, inode, kind } in take.entries.iter().cloned() {
            directory.entries.insert(cookie, Entry { name, inode, kind });
            *above.links += u32::from(kind == FileKind::Directory);
        }
        // The hold that the first message began ends.
        Ok(if take.first { vec![Hold::Taken(take.inode)] } else { Vec::new() })
    }

    pub(crate) fn finish_taken(&mut self, inode: InodeId, commit: bool) {
        if commit {
            self.set_phase(inode, Phase::Live);
        } else {
            self.inodes.remove(&inode);
        }
    }

    pub(crate) fn hold_seal_partition(&mut self, inode: InodeId) -> Result<Hold> {
        let (found, directory) = self.directory_here(inode)?;
        check_sealable(directory, inode)?;
        found.check_not_held(inode)?;
        self.set_phase(inode, Phase::Sealed);
        Ok(Hold::SealedPartition(inode))
    }

    pub(crate) fn finish_sealed_partition(&mut self, inode: InodeId, commit: bool) {
        if commit {
            self.inodes.remove(&inode);
        } else {
            self.set_phase(inode, Phase::Live);
        }
    }

    pub(crate) fn hold_set(&mut self, inode: InodeId, attributes: PartitionAttributes) -> Result<Hold> {
        let (found, _) = self.directory_here(inode)?;
        found.check_not_held(inode)?;
        self.inodes.get_mut(&inode).expect("just seen").held = true;
        Ok(Hold::SetPartition { inode, attributes })
    }

    pub(crate) fn finish_set(
        &mut self,
        inode: InodeId,
        attributes: &PartitionAttributes,
        commit: bool,
        now: Timestamp,
    ) {
        self.inodes.get_mut(&inode).expect("what is held lives").held = false;
        if commit {
            self.change_directory(inode, attributes, now);
        }
    }
}

impl Partitions {
    /// The directory that was to be made whole, if this operation is a collapse.
    pub(crate) fn collapses(&self) -> Option<InodeId> {
        matches!(self.task, Task::Collapse { .. }).then_some(self.inode)
    }

    pub(crate) fn doing(&self) -> String {
        match &self.task {
            Task::Spread { .. } => format!("spreading directory {}", self.inode),
            Task::Collapse { .. } => format!("looking whether directory {} is empty", self.inode),
            Task::Set { .. } => format!("changing directory {} in all its parts", self.inode),
        }
    }
}

/// The entries after one cookie up to another, as many as one message takes.
fn moved(directory: &Directory, after: u64, last: u64) -> Vec<MovedEntry> {
    directory
        .entries
        .after(after)
        .take_while(|(cookie, _)| *cookie <= last)
        .take(limits::DIRECTORY_MOVED_ENTRIES_MAX)
        .map(|(cookie, entry)| MovedEntry {
            cookie,
            name: entry.name.clone(),
            inode: entry.inode,
            kind: entry.kind,
        })
        .collect()
}

/// A record of another slot's directory, without entries.
fn record_of(take: &TakePartition, now: Timestamp) -> Inode {
    // Only its home knows its parent.
    let mut directory = Directory::new(take.inode, take.attributes.hints, Phase::Prepared);
    directory.spread = Some(Spread::new(&take.partitions));
    let mut record = Inode::new(0, take.attributes.owner, now, Body::Directory(Box::new(directory)));
    record.links = 0;
    record.set_partition_attributes(&take.attributes);
    // Being spread changes no visible time.
    record.changed = record.modified;
    record
}

fn senseless(inode: InodeId) -> Error {
    Error::new(ErrorKind::Invalid, format!("these entries of directory {inode} do not belong here"))
}

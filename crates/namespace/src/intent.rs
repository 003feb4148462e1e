//! Operations across two slots, at the slot that coordinates them: mkdir and rmdir, in the slot
//! of the directory above.
//!
//! An *intent* holds the name while the other slot is asked (`PrepareDirectory`, `SealDirectory`).
//! Its answer decides: the entry appears or goes, the client is answered, and the other slot is
//! told (`SettleDirectory`, `SettleSeal`) until it confirms. Anything else aborts: a refusal, or
//! an other slot that cannot be reached. What the other slot did not hear of, did not happen.
//!
//! Each operation has a number, and every message carries the smallest number between the two
//! slots that is not settled yet (`open_from`): the other slot forgets what lies below, and
//! refuses late duplicates from there.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Slot, Timestamp, limits};
use ramlace_wire::FileKind;
use ramlace_wire::namespace::{MakeDirectory, RemoveDirectory};
use ramlace_wire::peer::{IntentStamp, PrepareDirectory, SealDirectory, SettleDirectory, SettleSeal, Token};
use serde::{Deserialize, Serialize};

use crate::command::{Effect, Errand, ErrandId, Reply};
use crate::directory::{Directory, Entry, Phase};
use crate::entries::{check_mode, inherited_owner, not_found, taken};
use crate::inode::{Body, Inode, SET_GID, right};
use crate::state::{Caller, SlotState, Step};

/// An operation that waits for the other slot's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Intent {
    token: Token,
    parent: InodeId,
    name: Name,
    /// The question to the other slot.
    errand: ErrandId,
}

impl SlotState {
    pub(crate) fn make_directory(
        &mut self,
        caller: Caller,
        request: &MakeDirectory,
        home: Slot,
        effects: &mut Vec<Effect>,
    ) -> Step {
        assert!(u32::from(home.0) < self.slots, "{home} is not among the {} slots of the pool", self.slots);
        check_mode(request.mode)?;
        let directory = self.directory_to_change(request.parent, caller.who)?;
        directory.check_not_busy(&request.name)?;
        let hash = self.hash.of(&request.name);
        if directory.entries.find(hash, &request.name).is_some() {
            return Err(taken(&request.name));
        }
        directory.entries.free_cookie(hash, &request.name)?;
        let above = self.inode(request.parent)?;
        above.check_allows(caller.who, right::WRITE, request.parent)?;
        check_one_more_link(above, request.parent)?;
        let message = PrepareDirectory {
            token: caller.token,
            stamp: self.next_stamp(home)?,
            slot: home,
            parent: request.parent,
            mode: request.mode | (above.mode & SET_GID),
            owner: inherited_owner(above, caller.who),
            hints: above.directory(request.parent)?.hints,
            now: caller.now,
        };
        let stamp = message.stamp;
        self.begin(
            caller,
            stamp,
            home,
            request.parent,
            &request.name,
            Errand::PrepareDirectory(message),
            effects,
        );
        Ok(None)
    }

    pub(crate) fn remove_directory(
        &mut self,
        caller: Caller,
        request: &RemoveDirectory,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let directory = self.directory_to_change(request.parent, caller.who)?;
        directory.check_not_busy(&request.name)?;
        let (_, entry) = directory
            .entries
            .find(self.hash.of(&request.name), &request.name)
            .ok_or_else(|| not_found(&request.name))?;
        let child = entry.inode;
        if entry.kind != FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                format!("'{}' is no directory; remove it with unlink", request.name),
            ));
        }
        self.inode(request.parent)?.check_allows(caller.who, right::WRITE, request.parent)?;
        let home = child.slot();
        let stamp = self.next_stamp(home)?;
        let message = SealDirectory { token: caller.token, stamp, inode: child };
        self.begin(
            caller,
            stamp,
            home,
            request.parent,
            &request.name,
            Errand::SealDirectory(message),
            effects,
        );
        Ok(None)
    }

    /// The stamp of an operation that would begin now with this other slot.
    fn next_stamp(&self, other: Slot) -> Result<IntentStamp> {
        if self.unsettled.len() >= limits::INTENTS_PER_SLOT_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} operations across servers are not settled yet; see `ramlace status`",
                    self.unsettled.len()
                ),
            ));
        }
        self.outbox.check_room(1)?;
        Ok(self.stamp(other, self.next_intent))
    }

    fn stamp(&self, other: Slot, number: u64) -> IntentStamp {
        let oldest = self.unsettled.range((other, 0)..=(other, number)).next();
        IntentStamp {
            coordinator: self.slot,
            number,
            open_from: oldest.map_or(number, |(_, oldest)| *oldest),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is the beginning of one operation")]
    fn begin(
        &mut self,
        caller: Caller,
        stamp: IntentStamp,
        other: Slot,
        parent: InodeId,
        name: &Name,
        question: Errand,
        effects: &mut Vec<Effect>,
    ) {
        self.next_intent += 1;
        self.unsettled.insert((other, stamp.number));
        self.directory_mut(parent).1.busy.insert(name.clone(), stamp.number);
        let errand = self.outbox.send(question, effects);
        self.intents.insert(stamp.number, Intent { token: caller.token, parent, name: name.clone(), errand });
    }

    /// Takes a decided operation off the books; its name is free again.
    fn decide(&mut self, number: u64) -> Intent {
        let intent = self.intents.remove(&number).expect("a question is open as long as its intent");
        self.outbox.remove(intent.errand);
        self.directory_mut(intent.parent).1.busy.remove(&intent.name);
        intent
    }

    /// mkdir: the other slot has made the inode.
    pub(crate) fn directory_prepared(
        &mut self,
        message: &PrepareDirectory,
        inode: InodeId,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let intent = &self.intents[&message.stamp.number];
        let parent = intent.parent;
        let free = self
            .inode(parent)
            .and_then(|above| above.directory(parent))
            .and_then(|above| above.entries.free_cookie(self.hash.of(&intent.name), &intent.name));
        let cookie = match free {
            Ok(cookie) => cookie,
            Err(error) => return self.abort_make(message, error, effects),
        };
        let intent = self.decide(message.stamp.number);
        let (mut above, directory) = self.directory_mut(parent);
        directory.entries.insert(cookie, Entry { name: intent.name, inode, kind: FileKind::Directory });
        *above.links += 1;
        above.touch(now);
        self.settle_make(message, true, effects);
        let made = prepared_inode(message).attributes(inode);
        self.conclude(intent.token, Ok(Some(Reply::Attributes(Box::new(made)))), effects);
    }

    /// mkdir: the other slot refuses, or cannot be reached.
    pub(crate) fn abort_make(&mut self, message: &PrepareDirectory, why: Error, effects: &mut Vec<Effect>) {
        let intent = self.decide(message.stamp.number);
        self.settle_make(message, false, effects);
        let why = why.context(format!("making directory '{}'", intent.name));
        self.conclude(intent.token, Err(why), effects);
    }

    fn settle_make(&mut self, message: &PrepareDirectory, keep: bool, effects: &mut Vec<Effect>) {
        let stamp = self.stamp(message.slot, message.stamp.number);
        let settle = SettleDirectory { token: message.token, stamp, slot: message.slot, keep };
        self.outbox.send(Errand::SettleDirectory(settle), effects);
    }

    /// rmdir: the directory is empty and takes no entries (or was lost with its server).
    pub(crate) fn directory_sealed(
        &mut self,
        message: &SealDirectory,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let intent = self.decide(message.stamp.number);
        let hash = self.hash.of(&intent.name);
        let (mut above, directory) = self.directory_mut(intent.parent);
        let found = directory.entries.find(hash, &intent.name).map(|(cookie, _)| cookie);
        directory.entries.remove(found.expect("an intent holds its name"));
        *above.links -= 1;
        above.touch(now);
        self.settle_seal(message, true, effects);
        self.conclude(intent.token, Ok(Some(Reply::Done)), effects);
    }

    /// rmdir: the directory has entries, or cannot be reached.
    pub(crate) fn abort_remove(&mut self, message: &SealDirectory, why: Error, effects: &mut Vec<Effect>) {
        let intent = self.decide(message.stamp.number);
        self.settle_seal(message, false, effects);
        let why = why.context(format!("removing directory '{}'", intent.name));
        self.conclude(intent.token, Err(why), effects);
    }

    fn settle_seal(&mut self, message: &SealDirectory, remove: bool, effects: &mut Vec<Effect>) {
        let stamp = self.stamp(message.inode.slot(), message.stamp.number);
        let settle = SettleSeal { token: message.token, stamp, inode: message.inode, remove };
        self.outbox.send(Errand::SettleSeal(settle), effects);
    }

    /// The other slot knows how the operation ended.
    pub(crate) fn settled(&mut self, other: Slot, stamp: IntentStamp) {
        self.unsettled.remove(&(other, stamp.number));
    }
}

/// The inode that a mkdir makes, the same at both slots.
pub(crate) fn prepared_inode(message: &PrepareDirectory) -> Inode {
    let directory = Directory::new(message.parent, message.hints, Phase::Prepared);
    Inode::new(message.mode, message.owner, message.now, Body::Directory(Box::new(directory)))
}

fn check_one_more_link(above: &Inode, inode: InodeId) -> Result<()> {
    // Directories that are just being made are not counted yet: leave room for all of them.
    if above.links as usize > u32::MAX as usize - limits::INTENTS_PER_SLOT_MAX {
        return Err(Error::new(
            ErrorKind::TooMany,
            format!("directory {inode} has {} directories in it", above.links - 2),
        ));
    }
    Ok(())
}

//! Renames, coordinated by the slot of the old entry.
//!
//! What is held, in this order: the old entry; for a directory that changes its parent, the order
//! of such moves, which slot 0 keeps, so that only one is under way and the walk from its new
//! parent to the root proves that it makes no cycle; the new entry, with what lives beside it; the
//! inode, and what it replaces or changes places with, where they live elsewhere.
//!
//! When all of it is held the rename is decided. The other slots do their parts first and the old entry goes
//! last: between the two, a lookup of the old name gets Retry, so that no client finds the inode under neither
//! name, or under both. The order of moves is released when all parents have changed, this slot's among them.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Slot, Timestamp};
use ramlace_wire::FileKind;
use ramlace_wire::namespace::{self as wire, RenameMode};
use ramlace_wire::peer::{Ascend, Ascended, Part, Prepared, PutEntry, Target, Token};

use crate::command::{Delivery, Effect, Reply};
use crate::entries::taken;
use crate::holds::{new_parent, target_part};
use crate::query::{AskedBy, Query};
use crate::state::directory::Claim;
use crate::state::hold::Hold;
use crate::state::intent::{Goal, Intent, Rename, Stage};
use crate::state::{Caller, SlotState, Step};

/// The slot that keeps the order of moves.
const ORDER: Slot = Slot(0);

/// By a slot that moves a directory.
impl Query for Ascend {
    fn answer(&self, slot: &SlotState, _by: AskedBy<'_>) -> Result<Ascended> {
        slot.assert_mine(self.inode);
        Ok(Ascended { inode: slot.ascend(self.inode, self.until)? })
    }
}

impl SlotState {
    pub(crate) fn rename(
        &mut self,
        caller: Caller,
        request: &wire::Rename,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (inode, kind, owner) = self.check_old_entry(request.parent, &request.name, caller.who)?;
        if (request.parent, &request.name) == (request.new_parent, &request.new_name) {
            return match request.mode {
                RenameMode::Keep => Err(taken(&request.new_name)),
                RenameMode::Replace | RenameMode::Exchange => Ok(Some(Reply::Done)),
            };
        }
        self.check_slot(request.new_parent)?;
        if u32::from(request.new_slot.0) >= self.slots {
            let text = format!("this pool has no {}", request.new_slot);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.check_may_begin(caller.token)?;
        let moves = request.parent != request.new_parent
            && (kind == FileKind::Directory || request.mode == RenameMode::Exchange);
        let stage = if moves { Stage::Order } else { Stage::Put };
        let rename = Rename {
            request: request.clone(),
            inode,
            kind,
            owner,
            target: None,
            moves,
            order_is_last: false,
            stage,
        };
        let hold = self.claim(request.parent, &request.name, None)?;
        self.begin(caller, Goal::Rename(Box::new(rename)), hold);
        self.advance(caller.token, Ok(Progress::On), caller.now, effects)
    }

    /// Advances as far as possible without waiting.
    fn advance(
        &mut self,
        token: Token,
        mut progress: Result<Progress>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Step {
        loop {
            match progress {
                Ok(Progress::On) => progress = self.next_stage(token, now, effects),
                Ok(Progress::Wait) => return Ok(None),
                Ok(Progress::Held) => return self.decide_rename(token, now, effects),
                // Another link to the same inode has the new name already.
                Ok(Progress::Nothing) => {
                    self.abandon(token, now, effects);
                    return Ok(Some(Reply::Done));
                }
                Err(why) => return self.abort(token, &why, now, effects),
            }
        }
    }

    fn next_stage(&mut self, token: Token, now: Timestamp, effects: &mut Vec<Effect>) -> Result<Progress> {
        let rename = self.rename_mut(token);
        let beside = rename.request.new_slot;
        let (slot, part) = match rename.stage {
            Stage::Order => (ORDER, Part::OrderMoves),
            Stage::Ascend(at) | Stage::AscendBack(at) => return self.ascend_from(token, at, effects),
            Stage::Put => (beside, Part::PutEntry(rename.put_entry())),
            Stage::Inode if rename.inode.slot() == beside => return Ok(rename.go_on()),
            Stage::Inode => (rename.inode.slot(), rename.move_inode()),
            Stage::Target => match rename.target.filter(|target| target.inode.slot() != beside) {
                Some(target) => (target.inode.slot(), rename.part_of(target)),
                None => return Ok(rename.go_on()),
            },
            Stage::Held => return Ok(Progress::Held),
        };
        match self.part(token, slot, part, now, effects)? {
            Some(answer) => Ok(self.rename_mut(token).take(&answer)),
            None => Ok(Progress::Wait),
        }
    }

    pub(crate) fn rename_part_held(
        &mut self,
        token: Token,
        answer: &Prepared,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let progress = self.rename_mut(token).take(answer);
        self.advance(token, Ok(progress), now, effects)
    }

    // ---- the walk ----

    fn ascend_from(&mut self, token: Token, at: InodeId, effects: &mut Vec<Effect>) -> Result<Progress> {
        let until = self.rename_mut(token).walks_for();
        let at = self.ascend(at, until)?;
        if at == until {
            return Err(cycle());
        }
        if at == InodeId::ROOT {
            return Ok(self.rename_mut(token).go_on());
        }
        self.rename_mut(token).set_walk(at);
        let delivery = self.outbox.send(Delivery::Ascend(Ascend { token, inode: at, until }), effects);
        self.intent_mut(token).awaited = Some(delivery);
        Ok(Progress::Wait)
    }

    /// The walk has come further.
    pub(crate) fn ascended(
        &mut self,
        message: &Ascend,
        answer: Ascended,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let token = message.token;
        self.request_answered(token);
        self.rename_mut(token).set_walk(answer.inode);
        let step = self.advance(token, Ok(Progress::On), now, effects);
        self.conclude_if_ended(token, step, effects);
    }

    /// From a directory towards the root: to `until`, to the root, or out of this slot.
    pub(crate) fn ascend(&self, from: InodeId, until: InodeId) -> Result<InodeId> {
        let mut at = from;
        while at != until && at != InodeId::ROOT && at.slot() == self.slot {
            at = self.inode(at)?.directory(at)?.parent;
        }
        Ok(at)
    }

    // ---- the end ----

    /// All slots hold their parts: the others do theirs, then this one does its own.
    fn decide_rename(&mut self, token: Token, now: Timestamp, effects: &mut Vec<Effect>) -> Step {
        let intent = self.intent_mut(token);
        intent.decided = Some(now);
        let asked = intent.asked.clone();
        let Some(Hold::Entry(old)) = intent.holds.first() else { panic!("a rename holds its old name") };
        let (parent, name) = (old.parent, old.name.clone());
        self.directory_mut(parent).1.busy.insert(name, Claim::Decided);
        let rename = self.rename_mut(token);
        rename.order_is_last = rename.moves && asked.contains_key(&ORDER);
        let order_is_last = rename.order_is_last;
        for (slot, number) in asked {
            if !(order_is_last && slot == ORDER) {
                self.send_decision(token, slot, number, true, now, effects);
            }
        }
        self.finish_rename(token, effects)
    }

    /// Ends the rename when every other slot has done its part.
    pub(crate) fn finish_rename(&mut self, token: Token, effects: &mut Vec<Effect>) -> Step {
        let intent = self.intent_mut(token);
        let now = intent.decided.expect("only a decided rename is finished");
        let order = intent.asked.get(&ORDER).copied().filter(|_| intent.asked.len() == 1);
        if let Some(number) = order
            && std::mem::take(&mut self.rename_mut(token).order_is_last)
        {
            // Whoever moves a directory next walks by the parents that are here: they change before. The old entry stays
            // last, because the order's slot may have the new one.
            let own = self.intent_mut(token).holds.split_off(1);
            own.into_iter().for_each(|hold| self.finish_hold(hold, true, now, effects));
            self.send_decision(token, ORDER, number, true, now, effects);
        }
        let home = self.slot;
        if !self.intent_mut(token).asked.is_empty() {
            if let Some((parent, _)) = self.intent_mut(token).name_left(home) {
                // Listings that others know show it still.
                self.directory_mut(parent).1.entries.note_removal();
            }
            return Ok(None);
        }
        let mut intent = self.intents.remove(&token).expect("just seen");
        intent.give_back_target();
        intent.holds.into_iter().for_each(|hold| self.finish_hold(hold, true, now, effects));
        Ok(Some(Reply::Done))
    }

    fn rename_mut(&mut self, token: Token) -> &mut Rename {
        match &mut self.intent_mut(token).goal {
            Goal::Rename(rename) => rename,
            other => panic!("a rename was looked for, not {other:?}"),
        }
    }
}

impl Intent {
    /// The old name of a decided rename, here in `home`, when its new one is shown already. In an exchange both stay.
    pub(crate) fn name_left(&self, home: Slot) -> Option<(InodeId, &Name)> {
        let Goal::Rename(rename) = &self.goal else { return None };
        let request = &rename.request;
        let is_put = match request.new_slot {
            // What is held here beside the old entry is done before it where it cannot wait.
            slot if slot == home => self.holds.len() == 1,
            slot => !self.asked.contains_key(&slot),
        };
        let is_left = self.decided.is_some() && request.mode != RenameMode::Exchange && is_put;
        is_left.then_some((request.parent, &request.name))
    }

    /// In an exchange the old name leads to the new one's former target.
    fn give_back_target(&mut self) {
        let Goal::Rename(rename) = &self.goal else { return };
        if let (RenameMode::Exchange, Some(target), [Hold::Entry(old), ..]) =
            (rename.request.mode, rename.target, &mut self.holds[..])
        {
            old.put = Some((target.inode, target.kind));
        }
    }
}

/// The result of one stage.
enum Progress {
    On,
    /// For another slot's answer.
    Wait,
    /// Everything is held.
    Held,
    /// There is nothing to do.
    Nothing,
}

impl Rename {
    pub(crate) fn doing(&self) -> String {
        format!("renaming '{}' to '{}'", self.request.name, self.request.new_name)
    }

    fn go_on(&mut self) -> Progress {
        let exchanges = self.request.mode == RenameMode::Exchange;
        self.stage = match self.stage {
            // Only a directory has anything inside.
            Stage::Order if self.kind == FileKind::Directory => Stage::Ascend(self.request.new_parent),
            Stage::Order | Stage::Ascend(_) => Stage::Put,
            Stage::Put => Stage::Inode,
            Stage::Inode => match self.target {
                Some(target) if self.moves && exchanges && target.kind == FileKind::Directory => {
                    Stage::AscendBack(self.request.parent)
                }
                _ => Stage::Target,
            },
            Stage::AscendBack(_) => Stage::Target,
            Stage::Target | Stage::Held => Stage::Held,
        };
        Progress::On
    }

    /// The part of this stage is held.
    fn take(&mut self, answer: &Prepared) -> Progress {
        if let Prepared::Found(target) = answer {
            self.target = *target;
            if target.is_some_and(|target| target.inode == self.inode) {
                return Progress::Nothing;
            }
        }
        self.go_on()
    }

    fn put_entry(&self) -> PutEntry {
        PutEntry {
            parent: self.request.new_parent,
            name: self.request.new_name.clone(),
            inode: self.inode,
            kind: self.kind,
            from: self.request.parent,
            owner: self.owner,
            mode: self.request.mode,
        }
    }

    fn move_inode(&self) -> Part {
        let parent = new_parent(self.kind, self.request.parent, self.request.new_parent);
        Part::MoveInode { inode: self.inode, parent, owner: self.owner }
    }

    fn part_of(&self, target: Target) -> Part {
        target_part(self.request.mode, target, self.request.new_parent, self.request.parent)
    }

    /// The inode that the walk must not meet.
    fn walks_for(&self) -> InodeId {
        match (self.stage, self.target) {
            (Stage::AscendBack(_), Some(target)) => target.inode,
            _ => self.inode,
        }
    }

    fn set_walk(&mut self, at: InodeId) {
        self.stage = match self.stage {
            Stage::AscendBack(_) => Stage::AscendBack(at),
            _ => Stage::Ascend(at),
        };
    }
}

fn cycle() -> Error {
    Error::new(ErrorKind::Invalid, "a directory cannot be moved into itself")
}

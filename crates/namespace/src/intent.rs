//! Operations across slots, at the slot that coordinates them: that of the directory whose entry
//! appears or goes; for a rename, that of the old entry.
//!
//! An *intent* holds what changes here and asks other slots, one after the other, to hold what changes there
//! (`Prepare`). When all of it is held, the operation is decided: what is held here is done, and the decision
//! is sent to the other slots (`Decide`) until they confirm. Anything else aborts: a refusal, or a slot that
//! cannot be reached. What another slot has not received has not happened.
//!
//! A part that lives in the coordinator's own slot is held without a message: an operation in one
//! slot is one request.
//!
//! Each slot that is asked knows the operation by a number, and every message carries the smallest number
//! between the two slots that is not finished yet (`open_from`): the other slot forgets what lies below, and
//! refuses late duplicates from there.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Slot, Timestamp, limits};
use ramlace_wire::namespace::{MakeDirectory, RemoveDirectory};
use ramlace_wire::peer::{Decide, IntentStamp, Part, Prepare, Prepared, Token};
use ramlace_wire::{Credentials, FileKind};

use crate::access_lists::{Made, made};
use crate::command::{Delivery, Effect, Reply};
use crate::entries::{check_new_mode, inherited_owner, not_found, taken};
use crate::holds::{Asker, check_one_more_link, new_directory};
use crate::state::hold::Hold;
use crate::state::inode::right;
use crate::state::intent::{Goal, Intent};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn make_directory(
        &mut self,
        caller: Caller,
        request: &MakeDirectory,
        homes: &[Slot],
        effects: &mut Vec<Effect>,
    ) -> Step {
        let slots = self.slots;
        assert!(
            homes.iter().all(|home| u32::from(home.0) < slots),
            "{homes:?} are not all among {slots} slots"
        );
        let (home, others) = homes.split_first().expect("a directory gets a home");
        check_new_mode(request.mode)?;
        self.check_new_entry(request.parent, &request.name, caller.who)?;
        self.check_may_begin(caller.token)?;
        let above = self.inode(request.parent)?;
        check_one_more_link(above)?;
        let Made { mode, lists } = made(above, caller.who, request.mode, FileKind::Directory);
        let part = Part::MakeDirectory {
            parent: request.parent,
            mode,
            owner: inherited_owner(above, caller.who),
            hints: above.directory(request.parent)?.hints,
            lists,
        };
        let hold = self.claim_unmade(request.parent, &request.name)?;
        self.begin(caller, Goal::MakeDirectory(others.to_vec()), hold);
        let made = self.part(caller.token, *home, part.clone(), caller.now, effects);
        self.home_answered(caller.token, &part, made, caller.now, caller.now, effects)
    }

    /// The slot that was asked makes the directory, or refuses. After a refusal for lack of room the next slot is
    /// asked: a full server is no reason to fail while others have room.
    fn home_answered(
        &mut self,
        token: Token,
        part: &Part,
        mut answer: Result<Option<Prepared>>,
        began: Timestamp,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Step {
        loop {
            let why = match answer {
                Ok(Some(made)) => return self.single_part_held(token, part, began, made, now, effects),
                Ok(None) => return Ok(None),
                Err(why) => why,
            };
            let next = match &mut self.intent_mut(token).goal {
                Goal::MakeDirectory(others) if why.kind() == ErrorKind::NoSpace && !others.is_empty() => {
                    others.remove(0)
                }
                _ => return self.abort(token, &why, now, effects),
            };
            answer = self.part(token, next, part.clone(), began, effects);
        }
    }

    /// Another slot refuses to make a directory.
    pub(crate) fn home_refused(
        &mut self,
        message: &Prepare,
        why: Error,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let (token, slot) = (message.token, message.slot);
        self.request_answered(token);
        // It has nothing to do with the operation any more, however that ends.
        if let Some(number) = self.intent_mut(token).asked.remove(&slot) {
            self.send_decision(token, slot, number, false, now, effects);
        }
        let step = self.home_answered(token, &message.part, Err(why), message.now, now, effects);
        self.conclude_if_ended(token, step, effects);
    }

    pub(crate) fn remove_directory(
        &mut self,
        caller: Caller,
        request: &RemoveDirectory,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (inode, kind, owner) = self.check_old_entry(request.parent, &request.name, caller.who)?;
        if kind != FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                format!("'{}' is no directory; remove it with unlink", request.name),
            ));
        }
        self.check_may_begin(caller.token)?;
        let hold = self.claim(request.parent, &request.name, None)?;
        self.begin(caller, Goal::RemoveDirectory, hold);
        self.single_part(caller, inode.slot(), &Part::SealDirectory { inode, owner }, effects)
    }

    // ---- checks ----

    /// Whether the caller may make an entry whose name must be free.
    pub(crate) fn check_new_entry(&self, parent: InodeId, name: &Name, who: &Credentials) -> Result<()> {
        let directory = self.directory_to_change(parent, name, who)?;
        directory.check_not_busy(name)?;
        let hash = self.hash.of(name);
        if directory.entries.find(hash, name).is_some() {
            return Err(taken(name));
        }
        self.inode(parent)?.check_allows(who, right::WRITE)
    }

    /// Whether the caller may remove an entry: where it leads, and which user must own the target.
    pub(crate) fn check_old_entry(
        &self,
        parent: InodeId,
        name: &Name,
        who: &Credentials,
    ) -> Result<(InodeId, FileKind, Option<u32>)> {
        let directory = self.directory_to_change(parent, name, who)?;
        directory.check_not_busy(name)?;
        let (_, entry) = directory.entries.find(self.hash.of(name), name).ok_or_else(|| not_found(name))?;
        let above = self.inode(parent)?;
        above.check_allows(who, right::WRITE)?;
        Ok((entry.inode, entry.kind, above.sticky_owner(who)))
    }

    /// Whether the pool has the slot of an inode that a client names.
    pub(crate) fn check_slot(&self, inode: InodeId) -> Result<()> {
        if u32::from(inode.slot().0) >= self.slots {
            return Err(Error::new(ErrorKind::Stale, format!("inode {inode} is of no slot of this pool")));
        }
        Ok(())
    }

    /// Whether one more operation may begin, under this name.
    pub(crate) fn check_may_begin(&self, token: Token) -> Result<()> {
        if self.intents.contains_key(&token) {
            let (session, number) = (token.session, token.sequence.0);
            let text = format!("operation {number} of session {session} is under way already");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.unfinished.len() >= limits::INTENTS_PER_SLOT_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} operations across servers are not decided yet; see `ramlace status`",
                    self.unfinished.len()
                ),
            ));
        }
        self.outbox.check_room(1)
    }

    // ---- under way ----

    pub(crate) fn begin(&mut self, caller: Caller, goal: Goal, hold: Hold) {
        let intent = Intent {
            who: caller.who.clone(),
            goal,
            holds: vec![hold],
            asked: BTreeMap::new(),
            awaited: None,
            parts: 0,
            decided: None,
        };
        let before = self.intents.insert(caller.token, intent);
        assert!(before.is_none(), "{:?} is under way already", caller.token);
    }

    pub(crate) fn intent_mut(&mut self, token: Token) -> &mut Intent {
        self.intents.get_mut(&token).expect("an intent is there as long as a request of its own is open")
    }

    /// An operation that asks for one part.
    pub(crate) fn single_part(
        &mut self,
        caller: Caller,
        slot: Slot,
        part: &Part,
        effects: &mut Vec<Effect>,
    ) -> Step {
        match self.part(caller.token, slot, part.clone(), caller.now, effects) {
            Ok(Some(answer)) => {
                self.single_part_held(caller.token, part, caller.now, answer, caller.now, effects)
            }
            Ok(None) => Ok(None),
            Err(why) => self.abort(caller.token, &why, caller.now, effects),
        }
    }

    /// Holds a part here, or asks another slot to: then the answer comes later.
    pub(crate) fn part(
        &mut self,
        token: Token,
        slot: Slot,
        part: Part,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Prepared>> {
        let who = self.intent_mut(token).who.clone();
        if slot == self.slot {
            let asker = Asker { who: &who, now, coordinator: self.slot, token };
            let (holds, answer) = self.hold_part(asker, &part)?;
            self.intent_mut(token).holds.extend(holds);
            return Ok(Some(answer));
        }
        let number = match self.intent_mut(token).asked.get(&slot) {
            Some(number) => *number,
            None => {
                let number = self.number_operation()?;
                self.unfinished.insert((slot, number));
                number
            }
        };
        let intent = self.intent_mut(token);
        intent.asked.insert(slot, number);
        intent.parts += 1;
        let part_number = intent.parts;
        let stamp = self.stamp(slot, number);
        let message = Prepare { token, stamp, slot, number: part_number, who, now, part };
        let delivery = self.outbox.send(Delivery::Prepare(Box::new(message)), effects);
        self.intent_mut(token).awaited = Some(delivery);
        Ok(None)
    }

    fn stamp(&self, other: Slot, number: u64) -> IntentStamp {
        let oldest = self.unfinished.range((other, 0)..=(other, number)).next();
        IntentStamp {
            coordinator: self.slot,
            number,
            open_from: oldest.map_or(number, |(_, oldest)| *oldest),
        }
    }

    /// Another slot holds its part ready.
    pub(crate) fn part_held(
        &mut self,
        message: &Prepare,
        answer: Prepared,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        self.request_answered(message.token);
        let step = match self.intent_mut(message.token).goal {
            Goal::Rename(_) => self.rename_part_held(message.token, &answer, now, effects),
            Goal::Partitions(_) => self.advance_on_all(message.token, now, effects),
            _ => self.single_part_held(message.token, &message.part, message.now, answer, now, effects),
        };
        self.conclude_if_ended(message.token, step, effects);
    }

    /// Another slot refuses, or cannot be reached.
    pub(crate) fn request_failed(
        &mut self,
        token: Token,
        why: &Error,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let step = self.abort(token, why, now, effects);
        self.conclude_if_ended(token, step, effects);
    }

    pub(crate) fn request_answered(&mut self, token: Token) {
        if let Some(delivery) = self.intent_mut(token).awaited.take() {
            self.outbox.remove(delivery);
        }
    }

    pub(crate) fn conclude_if_ended(&mut self, token: Token, step: Step, effects: &mut Vec<Effect>) {
        if !matches!(step, Ok(None)) {
            self.conclude(token, step, effects);
        }
    }

    /// All that the operation needs is held: it is done.
    fn single_part_held(
        &mut self,
        token: Token,
        part: &Part,
        began: Timestamp,
        answer: Prepared,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (put, reply) = match (part, answer) {
            (Part::MakeDirectory { parent, mode, owner, hints, lists }, Prepared::Made(inode)) => {
                // The inode lives elsewhere, and is as requested.
                let made = new_directory(*parent, *mode, *owner, *hints, lists, began).attributes(inode);
                (Some((inode, FileKind::Directory)), Reply::Attributes(Box::new(made)))
            }
            (Part::RaiseLinks { inode }, Prepared::Linked(attributes)) => {
                (Some((*inode, attributes.kind)), Reply::Attributes(Box::new(attributes)))
            }
            (Part::SealDirectory { .. } | Part::LowerLinks { .. }, Prepared::Ready) => (None, Reply::Done),
            (part, answer) => {
                let text = format!("the other server answers {part:?} with {answer:?}; see its log");
                return self.abort(token, &Error::new(ErrorKind::Invalid, text), now, effects);
            }
        };
        let mut intent = self.intents.remove(&token).expect("an intent is under way");
        if let [Hold::Entry(entry), ..] = &mut intent.holds[..] {
            entry.put = put;
        }
        self.end(token, intent, true, now, effects);
        Ok(Some(reply))
    }

    /// The operation does not happen: a slot refuses, or cannot be reached.
    pub(crate) fn abort(
        &mut self,
        token: Token,
        why: &Error,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let goal = self.intent_mut(token).goal.clone();
        self.abandon(token, now, effects);
        if let Goal::Partitions(partitions) = &goal
            && let Some(inode) = partitions.collapses()
        {
            self.note_refusal(inode, why);
        }
        // Busy is a slot's answer when another operation conflicts.
        let kind = if why.kind() == ErrorKind::Busy { ErrorKind::Retry } else { why.kind() };
        Err(Error::new(kind, why.message()).context(goal.doing()))
    }

    /// Lets go of everything that is held for the operation.
    pub(crate) fn abandon(&mut self, token: Token, now: Timestamp, effects: &mut Vec<Effect>) {
        self.request_answered(token);
        let intent = self.intents.remove(&token).expect("an intent is under way");
        self.end(token, intent, false, now, effects);
    }

    /// Commits or drops the holds here at once, and notifies the other slots.
    fn end(&mut self, token: Token, intent: Intent, commit: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        for hold in intent.holds {
            self.finish_hold(hold, commit, now, effects);
        }
        for (slot, number) in intent.asked {
            self.send_decision(token, slot, number, commit, now, effects);
        }
    }

    pub(crate) fn send_decision(
        &mut self,
        token: Token,
        slot: Slot,
        number: u64,
        commit: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let decision = Decide { token, stamp: self.stamp(slot, number), slot, commit, now };
        self.outbox.send(Delivery::Decide(decision), effects);
    }

    /// The other slot knows how the operation ended.
    pub(crate) fn decision_acknowledged(&mut self, message: &Decide, effects: &mut Vec<Effect>) {
        let Decide { token, slot, stamp, .. } = *message;
        self.unfinished.remove(&(slot, stamp.number));
        // The acknowledgement may be for an earlier attempt of the same mutation, which was aborted: so the number
        // has to match.
        let awaited = self
            .intents
            .get(&token)
            .is_some_and(|intent| intent.decided.is_some() && intent.asked.get(&slot) == Some(&stamp.number));
        if awaited {
            self.intent_mut(token).asked.remove(&slot);
            let step = match self.intent_mut(token).goal {
                Goal::Partitions(_) => self.finish_on_all(token),
                _ => self.finish_rename(token, effects),
            };
            self.conclude_if_ended(token, step, effects);
        }
    }
}

impl Goal {
    fn doing(&self) -> String {
        match self {
            Goal::MakeDirectory(_) => "making the directory".into(),
            Goal::RemoveDirectory => "removing the directory".into(),
            Goal::Link => "making the link".into(),
            Goal::Unlink => "removing the entry".into(),
            Goal::Rename(rename) => rename.doing(),
            Goal::Partitions(partitions) => partitions.doing(),
        }
    }
}

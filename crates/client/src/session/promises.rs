//! The session's promises in slots that are delegated to it: changes that its callers take for done, and that
//! are sent later, in order, many in one message. It reads no clock and sends nothing:
//! [`crate::session::behind`] does.
//!
//! The answer to a promise is predicted from what is known of the slot. That knowledge has a *version*: a
//! change that is sent by itself, and may make an inode or change a directory, begins another one, and
//! nothing is promised while it is under way. Knowledge of files has a version of its own, which every change
//! that is sent by itself renews.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ramlace_base::{Error, InodeId, Slot, Timestamp, limits};
use ramlace_wire::Kind;
use ramlace_wire::leases::DelegationRecall;

use crate::session::sequences::Kept;

/// The longest delay before a promise is sent.
pub const AGE_MAX: Duration = Duration::from_millis(limits::BEHIND_MILLIS_MAX);
const IDLE: Duration = Duration::from_millis(limits::DELEGATION_IDLE_MILLIS);

/// A change that was promised.
#[derive(Debug)]
pub struct Promise {
    /// The message.
    pub kind: Kind,
    /// The inode that it makes or changes.
    pub inode: InodeId,
    /// The directory in which it makes a file.
    pub directory: Option<InodeId>,
    /// It creates the inode.
    pub makes: bool,
    /// When it was promised.
    pub at: Timestamp,
    /// The message's body.
    pub body: Vec<u8>,
    /// The answer that its caller got: the slot's own, as predicted.
    pub answer: Vec<u8>,
    /// Its sequence number, once it was sent.
    pub kept: Option<Kept>,
    /// Its number among all promises, once it is one.
    pub number: u64,
}

/// The numbers of promises that were pending in a slot at some time: from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    first: u64,
    last: u64,
}

/// Promises of a slot that were refused one after the other, and why the last one was.
#[derive(Debug)]
struct Loss {
    refused: Pending,
    why: Error,
}

/// Losses of one slot that are told apart. What lies between the two oldest of more counts as lost, too.
const LOSSES_MAX: usize = 16;

/// The state of one slot.
#[derive(Debug, Default)]
struct Promises {
    delegation: Option<u64>,
    version: Version,
    /// Changes under way that are sent by themselves, and may affect directories.
    direct: usize,
    /// The same for changes that affect only files.
    direct_of_files: usize,
    /// The number of all changes that have begun and were sent by themselves.
    begun: u64,
    waiting: VecDeque<Promise>,
    bytes: usize,
    /// A thread is sending.
    sending: bool,
    /// What it has been answered for, while it notifies those concerned.
    notifying: Option<Pending>,
    oldest: Option<Instant>,
    used: Option<Instant>,
    /// Another session waits for the slot.
    wanted: bool,
}

/// The versions in which something is known of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Of its directories, and its next inode number.
    pub names: u64,
    /// Of its files.
    pub files: u64,
}

/// The slot is not delegated, the version is outdated, or earlier promises have to be sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPromised;

/// What is due in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its promises are to be sent.
    Send,
    /// The slot is to be given back: the delegation's number.
    GiveBack(u64),
}

/// All promises of a session.
#[derive(Debug, Default)]
pub struct AllPromises {
    slots: BTreeMap<Slot, Promises>,
    /// The losses of each slot, the oldest first.
    losses: BTreeMap<Slot, VecDeque<Loss>>,
    last_version: u64,
    last_promise: u64,
}

impl AllPromises {
    /// The number of slots that are delegated, or about to be requested.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// A create, which is sent by itself, is about to request a slot. Returns the version in which its answer
    /// will be known; `None` while another change is under way: the slot may do that one later and answer it
    /// earlier, so that this answer is outdated when it arrives.
    pub fn begin_asking(&mut self, slot: Slot) -> Option<Version> {
        let next = self.next_version();
        let promises = self.slots.entry(slot).or_default();
        let is_alone = promises.direct == 0;
        promises.begun += 1;
        promises.direct += 1;
        promises.version = Version { names: next, files: next };
        is_alone.then_some(promises.version)
    }

    /// That create has ended; `delegation` is the one that it brought, if any. Returns the version in which
    /// its answer is known, if it allows promises.
    pub fn end_asking(
        &mut self,
        slot: Slot,
        version: Option<Version>,
        delegation: Option<u64>,
        now: Instant,
    ) -> Option<Version> {
        let promises = self.slots.get_mut(&slot)?;
        promises.direct = promises.direct.saturating_sub(1);
        if let Some(number) = delegation {
            if promises.delegation != Some(number) {
                promises.wanted = false;
            }
            promises.delegation = Some(number);
            promises.used = Some(now);
        }
        let is_known = delegation.is_some() && promises.direct == 0 && !promises.wanted;
        let known = version.filter(|version| is_known && promises.version == *version);
        self.forget_if_over(slot);
        known
    }

    /// The version in which something is known of a delegated slot.
    pub fn version(&self, slot: Slot) -> Option<Version> {
        self.slots
            .get(&slot)
            .filter(|promises| promises.delegation.is_some())
            .map(|promises| promises.version)
    }

    fn next_version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// Promises a change that was predicted in this version. The version of files does not matter if it
    /// creates one.
    pub fn promise(
        &mut self,
        slot: Slot,
        version: Version,
        mut promise: Promise,
        now: Instant,
    ) -> Result<(), NotPromised> {
        let number = self.last_promise + 1;
        let promises = self.slots.get_mut(&slot).ok_or(NotPromised)?;
        let may = promises.delegation.is_some()
            && promises.version.names == version.names
            && (promise.makes || promises.version.files == version.files)
            && promises.direct == 0
            && !promises.wanted;
        if !may {
            return Err(NotPromised);
        }
        let bytes = promises.bytes + promise.body.len();
        if promises.waiting.len() >= limits::CHANGES_PER_MESSAGE_MAX
            || bytes > limits::CHANGES_BYTES_PER_MESSAGE_MAX
        {
            return Err(NotPromised);
        }
        promises.bytes = bytes;
        promises.oldest.get_or_insert(now);
        promises.used = Some(now);
        promise.number = number;
        promises.waiting.push_back(promise);
        self.last_promise = number;
        Ok(())
    }

    /// Whether a slot is at rest: nothing is pending, and nothing is being sent.
    pub fn is_at_rest(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_none_or(|promises| !promises.sending && promises.waiting.is_empty())
    }

    /// What is pending in a slot now.
    pub fn pending(&self, slot: Slot) -> Option<Pending> {
        let promises = self.slots.get(&slot)?;
        let number = |promise: Option<&Promise>| promise.map(|promise| promise.number);
        let (front, back) = (number(promises.waiting.front()), number(promises.waiting.back()));
        let first = promises.notifying.map(|notifying| notifying.first).or(front)?;
        let last = back.or(promises.notifying.map(|notifying| notifying.last))?;
        Some(Pending { first, last })
    }

    /// Whether any of these are pending still.
    pub fn are_pending(&self, slot: Slot, these: Pending) -> bool {
        let Some(promises) = self.slots.get(&slot) else { return false };
        let front = promises.waiting.front().map(|promise| promise.number);
        let first = promises.notifying.map(|notifying| notifying.first).or(front);
        first.is_some_and(|first| first <= these.last)
    }

    /// A promise was refused.
    pub fn note_loss(&mut self, slot: Slot, number: u64, why: &Error) {
        let losses = self.losses.entry(slot).or_default();
        let run = losses.back_mut().filter(|last| last.refused.last + 1 == number);
        match run {
            Some(run) => (run.refused.last, run.why) = (number, why.clone()),
            None => {
                let refused = Pending { first: number, last: number };
                losses.push_back(Loss { refused, why: why.clone() });
            }
        }
        if losses.len() > LOSSES_MAX
            && let Some(oldest) = losses.pop_front()
            && let Some(joined) = losses.front_mut()
        {
            joined.refused.first = oldest.refused.first;
        }
    }

    /// Why one of these was refused, if one was.
    pub fn loss_among(&self, slot: Slot, these: Pending) -> Option<&Error> {
        let is_among = |loss: &&Loss| loss.refused.first <= these.last && these.first <= loss.refused.last;
        self.losses.get(&slot)?.iter().rev().find(is_among).map(|loss| &loss.why)
    }

    /// Whether the pending promises of a slot take half of what one message holds.
    pub fn is_nearly_full(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_some_and(|promises| {
            promises.waiting.len() >= limits::CHANGES_PER_MESSAGE_MAX / 2
                || promises.bytes >= limits::CHANGES_BYTES_PER_MESSAGE_MAX / 2
        })
    }

    /// Slots that have pending promises.
    pub fn with_pending(&self) -> Vec<Slot> {
        self.slots
            .iter()
            .filter(|(_, promises)| !promises.waiting.is_empty() || promises.notifying.is_some())
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// A change that is sent by itself begins: it invalidates what is known of the slot's files. With `names`
    /// also what is known of its directories, and nothing is promised until it ends: also in a slot that is delegated
    /// only after it began, for it may make an inode there later. Returns whether its end is to be reported.
    pub fn begin_direct(&mut self, slot: Slot, names: bool) -> bool {
        let next = self.next_version();
        let promises = match self.slots.entry(slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) if names => free.insert(Promises::default()),
            Entry::Vacant(_) => return false,
        };
        promises.begun += 1;
        promises.version.files = next;
        if names {
            promises.version.names = next;
            promises.direct += 1;
        } else {
            promises.direct_of_files += 1;
        }
        true
    }

    /// How many changes have begun that were sent by themselves, if none is under way.
    pub fn quiet(&self, slot: Slot) -> Option<u64> {
        let promises = self.slots.get(&slot)?;
        (promises.direct == 0 && promises.direct_of_files == 0).then_some(promises.begun)
    }

    /// Such a change has ended.
    pub fn end_direct(&mut self, slot: Slot, names: bool) {
        if let Some(promises) = self.slots.get_mut(&slot) {
            let in_flight = if names { &mut promises.direct } else { &mut promises.direct_of_files };
            *in_flight = in_flight.saturating_sub(1);
        }
        self.forget_if_over(slot);
    }

    /// Makes a slot's promises due at once.
    pub fn hurry(&mut self, slot: Slot, now: Instant) {
        if let Some(promises) = self.slots.get_mut(&slot).filter(|promises| !promises.waiting.is_empty()) {
            promises.oldest = Some(now.checked_sub(AGE_MAX).unwrap_or(now));
        }
    }

    /// Another session waits for these slots.
    pub fn want_back(&mut self, recalls: &[DelegationRecall]) {
        for recall in recalls {
            let next = self.next_version();
            let promises = self.slots.entry(recall.slot).or_default();
            promises.wanted = true;
            // The delegation was given after the caller had stopped waiting for the answer.
            if promises.delegation.is_none() {
                promises.delegation = Some(recall.number);
                promises.version = Version { names: next, files: next };
            }
        }
    }

    /// What is due in the slots of a server; first in those for which another session waits.
    pub fn due(&self, now: Instant, is_of_server: impl Fn(Slot) -> bool) -> Option<(Slot, Due)> {
        let mut found = None;
        let free = |(slot, promises): &(&Slot, &Promises)| !promises.sending && is_of_server(**slot);
        for (slot, promises) in self.slots.iter().filter(free) {
            match promises.due(now) {
                Some(due) if promises.wanted => return Some((*slot, due)),
                due => found = found.or_else(|| Some((*slot, due?))),
            }
        }
        found
    }

    /// Slots in which nothing is pending are to be given back at once: their server keeps too many answers.
    pub fn rest(&mut self, now: Instant) {
        for promises in self.slots.values_mut().filter(|promises| promises.waiting.is_empty()) {
            promises.used = promises.used.and(now.checked_sub(IDLE));
        }
    }

    /// Begins to send a slot's promises; false: there are none, or another thread does.
    pub fn begin_sending(&mut self, slot: Slot) -> bool {
        let Some(promises) = self.slots.get_mut(&slot) else { return false };
        if promises.sending || promises.waiting.is_empty() {
            return false;
        }
        promises.sending = true;
        promises.oldest = None;
        true
    }

    /// The promises of a slot whose sending has begun, and the delegation under which they were made.
    pub fn sent_now(&mut self, slot: Slot) -> Option<(u64, &mut VecDeque<Promise>)> {
        let promises = self.slots.get_mut(&slot)?;
        // If it has ended, the slot refuses the promises, and nothing is done twice.
        Some((promises.delegation.unwrap_or(u64::MAX), &mut promises.waiting))
    }

    /// The slot has answered that it is not delegated to this session any more: its promises will be refused.
    pub fn is_lost(&mut self, slot: Slot) {
        let next = self.next_version();
        if let Some(promises) = self.slots.get_mut(&slot) {
            promises.version = Version { names: next, files: next };
            promises.delegation = None;
        }
    }

    /// The first `count` promises were answered: removes and returns them. They count as pending until
    /// [`AllPromises::end_sending`], when those concerned have been notified.
    pub fn answered(&mut self, slot: Slot, count: usize) -> Vec<Promise> {
        let Some(promises) = self.slots.get_mut(&slot) else { return Vec::new() };
        let done: Vec<Promise> = promises.waiting.drain(..count.min(promises.waiting.len())).collect();
        promises.bytes -= done.iter().map(|promise| promise.body.len()).sum::<usize>();
        if let (Some(first), Some(last)) = (done.first(), done.last()) {
            promises.notifying = Some(Pending { first: first.number, last: last.number });
        }
        done
    }

    /// Sending has ended. What is left stays pending.
    pub fn end_sending(&mut self, slot: Slot, now: Instant) {
        if let Some(promises) = self.slots.get_mut(&slot) {
            promises.sending = false;
            promises.notifying = None;
            if !promises.waiting.is_empty() {
                promises.oldest = Some(now);
            }
        }
        self.forget_if_over(slot);
    }

    /// Begins to give a slot back, if nothing is pending; nothing is promised meanwhile. Returns whether it
    /// began.
    pub fn begin_giving_back(&mut self, slot: Slot, number: u64) -> bool {
        let next = self.next_version();
        let Some(promises) = self.slots.get_mut(&slot) else { return false };
        if promises.delegation != Some(number) || promises.sending || !promises.waiting.is_empty() {
            return false;
        }
        promises.version = Version { names: next, files: next };
        promises.wanted = true;
        promises.sending = true;
        true
    }

    /// The slot was given back, or is not delegated to this session any more.
    pub fn is_over(&mut self, slot: Slot, number: u64) {
        if let Some(promises) = self.slots.get_mut(&slot) {
            promises.sending = false;
            if promises.delegation == Some(number) {
                promises.delegation = None;
                promises.wanted = false;
            }
        }
        self.forget_if_over(slot);
    }

    /// No pending promise will ever be done.
    pub fn break_all(&mut self, why: &Error) -> Vec<Promise> {
        let slots = std::mem::take(&mut self.slots);
        let mut broken = Vec::new();
        for (slot, promises) in slots {
            for promise in &promises.waiting {
                self.note_loss(slot, promise.number, why);
            }
            broken.extend(promises.waiting);
        }
        broken
    }

    fn forget_if_over(&mut self, slot: Slot) {
        let is_over = self.slots.get(&slot).is_some_and(|promises| {
            promises.delegation.is_none()
                && promises.waiting.is_empty()
                && promises.direct + promises.direct_of_files == 0
                && !promises.sending
        });
        if is_over {
            self.slots.remove(&slot);
        }
    }
}

impl Promises {
    fn due(&self, now: Instant) -> Option<Due> {
        let is_old = self.oldest.is_some_and(|oldest| now.saturating_duration_since(oldest) >= AGE_MAX);
        if !self.waiting.is_empty() {
            return (is_old || self.wanted).then_some(Due::Send);
        }
        let number = self.delegation?;
        let is_idle = self.used.is_some_and(|used| now.saturating_duration_since(used) >= IDLE);
        let is_quiet = self.direct + self.direct_of_files == 0;
        (self.wanted || (is_idle && is_quiet)).then_some(Due::GiveBack(number))
    }
}

#[cfg(test)]
#[path = "promises_tests.rs"]
mod tests;

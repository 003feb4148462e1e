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

use ramlace_base::{InodeId, Slot, Timestamp, limits};
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
}

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
    last_version: u64,
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
        promise: Promise,
        now: Instant,
    ) -> Result<(), NotPromised> {
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
        promises.waiting.push_back(promise);
        Ok(())
    }

    /// Whether a slot has promises that are not sent, or not answered.
    pub fn owes(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_some_and(|promises| promises.sending || !promises.waiting.is_empty())
    }

    /// Whether the pending promises of a slot take half of what one message holds.
    pub fn is_nearly_full(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_some_and(|promises| {
            promises.waiting.len() >= limits::CHANGES_PER_MESSAGE_MAX / 2
                || promises.bytes >= limits::CHANGES_BYTES_PER_MESSAGE_MAX / 2
        })
    }

    /// Slots that have pending promises.
    pub fn owing(&self) -> Vec<Slot> {
        self.slots
            .iter()
            .filter(|(_, promises)| !promises.waiting.is_empty())
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
            let under_way = if names { &mut promises.direct } else { &mut promises.direct_of_files };
            *under_way = under_way.saturating_sub(1);
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

    /// What is due in the slots of a server.
    pub fn due(&self, now: Instant, is_of_server: impl Fn(Slot) -> bool) -> Option<(Slot, Due)> {
        self.slots.iter().filter(|(slot, promises)| !promises.sending && is_of_server(**slot)).find_map(
            |(slot, promises)| {
                let is_old =
                    promises.oldest.is_some_and(|oldest| now.saturating_duration_since(oldest) >= AGE_MAX);
                if !promises.waiting.is_empty() && (is_old || promises.wanted) {
                    return Some((*slot, Due::Send));
                }
                let number = promises.delegation.filter(|_| promises.waiting.is_empty())?;
                let is_idle = promises.used.is_some_and(|used| now.saturating_duration_since(used) >= IDLE);
                let is_quiet = promises.direct + promises.direct_of_files == 0;
                (promises.wanted || (is_idle && is_quiet)).then_some((*slot, Due::GiveBack(number)))
            },
        )
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

    /// The first `count` promises were answered: removes and returns them.
    pub fn answered(&mut self, slot: Slot, count: usize) -> Vec<Promise> {
        let Some(promises) = self.slots.get_mut(&slot) else { return Vec::new() };
        let done: Vec<Promise> = promises.waiting.drain(..count.min(promises.waiting.len())).collect();
        promises.bytes -= done.iter().map(|promise| promise.body.len()).sum::<usize>();
        done
    }

    /// Sending has ended. What is left stays pending.
    pub fn end_sending(&mut self, slot: Slot, now: Instant) {
        if let Some(promises) = self.slots.get_mut(&slot) {
            promises.sending = false;
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
    pub fn break_all(&mut self) -> Vec<Promise> {
        std::mem::take(&mut self.slots).into_values().flat_map(|promises| promises.waiting).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot(3);

    fn change(counter: u64) -> Promise {
        let inode = InodeId::new(SLOT, counter);
        let at = Timestamp { nanos: 1 };
        Promise {
            kind: Kind::Create,
            inode,
            makes: true,
            at,
            body: vec![0; 100],
            answer: Vec::new(),
            kept: None,
        }
    }

    fn held(now: Instant) -> (AllPromises, Version) {
        let mut all = AllPromises::default();
        let version = all.begin_asking(SLOT);
        assert_eq!(all.end_asking(SLOT, version, Some(7), now), version);
        (all, version.unwrap())
    }

    // SEMANTICS 142.1
    #[test]
    fn what_is_promised_is_sent_in_its_order_and_once_it_is_old() {
        let now = Instant::now();
        let (mut all, version) = held(now);
        for counter in 1..=3 {
            all.promise(SLOT, version, change(counter), now).unwrap();
        }
        assert_eq!(all.due(now + AGE_MAX / 2, |_| true), None);
        assert_eq!(all.due(now + AGE_MAX, |_| false), None, "another server's");
        assert_eq!(all.due(now + AGE_MAX, |_| true), Some((SLOT, Due::Send)));
        assert!(all.begin_sending(SLOT));
        let (number, waiting) = all.sent_now(SLOT).unwrap();
        assert_eq!((number, waiting.len()), (7, 3));
        assert!(!all.begin_sending(SLOT), "one thread at a time keeps their order");
        all.promise(SLOT, version, change(4), now).unwrap();
        let done = all.answered(SLOT, 2);
        assert_eq!(done.iter().map(|promise| promise.inode.counter()).collect::<Vec<_>>(), [1, 2]);
        all.end_sending(SLOT, now);
        assert!(all.owes(SLOT));
        assert_eq!(all.sent_now(SLOT).unwrap().1[0].inode.counter(), 3);
    }

    // SEMANTICS 142.2
    #[test]
    fn nothing_is_promised_beside_a_change_that_began_before_the_slot_was_asked_for() {
        let now = Instant::now();
        let mut all = AllPromises::default();
        assert!(!all.begin_direct(SLOT, false), "of a file: it makes no inode");
        assert!(all.begin_direct(SLOT, true));
        let asked = all.begin_asking(SLOT);
        assert_eq!(asked, None, "it may be done after this create, and take the next number");
        assert_eq!(all.end_asking(SLOT, asked, Some(7), now), None);
        let version = all.version(SLOT).unwrap();
        assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised));
        all.end_direct(SLOT, true);
        all.promise(SLOT, version, change(1), now).unwrap();
        let mut all = AllPromises::default();
        all.begin_direct(SLOT, true);
        all.end_direct(SLOT, true);
        assert_eq!(all.count(), 0, "it is forgotten");
    }

    // SEMANTICS 142.2
    #[test]
    fn nothing_is_promised_by_what_is_not_known_any_more() {
        let now = Instant::now();
        let (mut all, version) = held(now);
        assert!(all.begin_direct(SLOT, true));
        assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised));
        all.end_direct(SLOT, true);
        assert_eq!(
            all.promise(SLOT, version, change(1), now),
            Err(NotPromised),
            "the change may have made it"
        );
        let version = all.begin_asking(SLOT).unwrap();
        assert_eq!(all.promise(SLOT, version, change(1), now), Err(NotPromised), "it makes an inode");
        assert_eq!(all.end_asking(SLOT, Some(version), Some(7), now), Some(version));
        assert!(all.promise(SLOT, version, change(1), now).is_ok());
        // A delegation that began while it was requested.
        let asked_in = all.begin_asking(SLOT);
        all.begin_direct(SLOT, true);
        all.end_direct(SLOT, true);
        assert_eq!(all.end_asking(SLOT, asked_in, Some(7), now), None);
    }

    // SEMANTICS 142.2
    #[test]
    fn an_answer_is_not_known_if_another_change_was_under_way_when_it_was_asked_for() {
        let now = Instant::now();
        let (mut all, _) = held(now);
        // The slot may do the second first and the first last, whose answer may arrive first.
        let (first, second) = (all.begin_asking(SLOT), all.begin_asking(SLOT));
        assert_eq!(all.end_asking(SLOT, first, Some(7), now), None, "the second began meanwhile");
        assert_eq!(all.end_asking(SLOT, second, Some(7), now), None, "the first was under way");
        all.begin_direct(SLOT, true);
        let third = all.begin_asking(SLOT);
        all.end_direct(SLOT, true);
        assert_eq!(all.end_asking(SLOT, third, Some(7), now), None, "that change may make an inode");
        let alone = all.begin_asking(SLOT);
        assert!(alone.is_some());
        assert_eq!(all.end_asking(SLOT, alone, Some(7), now), alone);
    }

    // SEMANTICS 142.3
    #[test]
    fn a_slot_that_is_wanted_is_given_back_once_nothing_is_owed_there() {
        let now = Instant::now();
        let (mut all, version) = held(now);
        all.promise(SLOT, version, change(1), now).unwrap();
        all.want_back(&[DelegationRecall { slot: SLOT, number: 7 }]);
        assert_eq!(all.promise(SLOT, version, change(2), now), Err(NotPromised));
        assert_eq!(all.due(now, |_| true), Some((SLOT, Due::Send)), "at once");
        assert!(!all.begin_giving_back(SLOT, 7));
        assert!(all.begin_sending(SLOT));
        assert_eq!(all.due(now, |_| true), None);
        all.answered(SLOT, 1);
        all.end_sending(SLOT, now);
        assert_eq!(all.due(now, |_| true), Some((SLOT, Due::GiveBack(7))));
        assert!(all.begin_giving_back(SLOT, 7));
        all.is_over(SLOT, 7);
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn a_slot_that_is_not_used_is_given_back_and_a_full_one_is_sent_first() {
        let now = Instant::now();
        let (mut all, version) = held(now);
        for counter in 0..limits::CHANGES_PER_MESSAGE_MAX as u64 {
            all.promise(SLOT, version, change(counter), now).unwrap();
        }
        assert_eq!(all.promise(SLOT, version, change(0), now), Err(NotPromised));
        assert!(all.begin_sending(SLOT));
        all.answered(SLOT, usize::MAX);
        all.end_sending(SLOT, now);
        assert_eq!(all.due(now + IDLE / 2, |_| true), None);
        assert_eq!(all.due(now + IDLE, |_| true), Some((SLOT, Due::GiveBack(7))));
        all.promise(SLOT, version, change(1), now + IDLE).unwrap();
        assert!(!all.begin_giving_back(SLOT, 7), "it is used again");
        let broken = all.break_all();
        assert_eq!((broken.len(), all.count()), (1, 0));
    }
}

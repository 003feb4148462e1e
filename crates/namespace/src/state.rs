//! One slot: what it holds, and how its parts are reached. The files of this folder are its parts; none of them
//! knows an operation.

pub(crate) mod barrier;
pub(crate) mod callers;
pub(crate) mod coordinator;
pub(crate) mod delegation;
pub(crate) mod directory;
pub(crate) mod file;
pub(crate) mod hash;
pub(crate) mod hold;
pub(crate) mod inode;
pub(crate) mod inodes;
pub(crate) mod intent;
pub(crate) mod lock_grants;
pub(crate) mod locks;
pub(crate) mod outbox;
pub(crate) mod passthrough;
pub(crate) mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ramlace_base::{
    Epoch, Error, ErrorKind, InodeId, NUMBERS_PER_EPOCH, Redirect, Result, Sequence, SessionId, Slot,
    Timestamp, limits,
};
use ramlace_wire::peer::Token;
use ramlace_wire::{Credentials, ErrorBody, LayoutHints, Owner};
use serde::{Deserialize, Serialize};

use crate::command::{Delivery, DeliveryId, Effect, Reply};
use crate::state::barrier::Barriers;
use crate::state::coordinator::Coordinator;
use crate::state::delegation::Delegation;
use crate::state::directory::{Directory, Phase};
use crate::state::hash::NameHash;
use crate::state::inode::{Body, Inode};
use crate::state::inodes::Inodes;
use crate::state::intent::Intent;
use crate::state::locks::FileLocks;
use crate::state::outbox::Outbox;
use crate::state::passthrough::Passthrough;
use crate::state::session::{Cached, Session, cancelled};

/// Permission bits of the root directory.
const ROOT_MODE: u16 = 0o755;

/// Everything a slot knows; serialized, it is the slot's snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotState {
    pub(crate) slot: Slot,
    /// Slots of the pool: places lanes.
    pub(crate) slots: u32,
    pub(crate) hash: NameHash,
    /// The slot began with it: inodes with smaller ones were lost with the server that held the slot before.
    pub(crate) first_number: u64,
    /// The counter of the next inode.
    pub(crate) next_counter: u64,
    /// The number by which the next slot that is asked knows the operation.
    pub(crate) next_intent: u64,
    pub(crate) inodes: Inodes,
    /// Bytes of inline files.
    pub(crate) inline_bytes: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Operations that are coordinated here and under way.
    pub(crate) intents: BTreeMap<Token, Intent>,
    /// Slots that were asked and do not know the end yet, and the operations' numbers.
    pub(crate) unfinished: BTreeSet<(Slot, u64)>,
    /// Slots that coordinated operations of which a part was here.
    pub(crate) coordinators: BTreeMap<Slot, Coordinator>,
    /// In slot 0: the slot that moves a directory to another parent at this moment.
    pub(crate) moves: Option<Slot>,
    pub(crate) outbox: Outbox,
    /// Files with locks.
    pub(crate) locks: BTreeMap<InodeId, FileLocks>,
    /// Barriers by name.
    pub(crate) barriers: Barriers,
    /// Files that kernels have.
    pub(crate) passthroughs: BTreeMap<InodeId, Passthrough>,
    /// The number of the last time that a kernel got one; 0: none ever did.
    pub(crate) passthrough_last: u64,
    /// The session to which the slot is delegated.
    pub(crate) delegation: Option<Delegation>,
    /// How often it was.
    pub(crate) delegations: u64,
    /// A directory with this many entries is to be spread.
    pub(crate) whole_entries_max: u64,
    /// The follow-up operations of the present step.
    #[serde(skip)]
    pub(crate) follow_up: Vec<FollowUp>,
    /// The command at hand may make no inode.
    #[serde(skip)]
    pub(crate) full: bool,
}

/// An operation that a step makes necessary: done at its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FollowUp {
    /// A whole directory got an entry, and has many.
    Grown(InodeId),
    /// A spread directory is to be removed: it must be whole, which it can be when it is empty.
    Collapse(InodeId),
}

/// The caller of a change, and the time of the call.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'command> {
    pub token: Token,
    pub who: &'command Credentials,
    /// The session's open files give no right.
    pub on_behalf: bool,
    pub now: Timestamp,
}

/// What a repetition of a mutation comes to.
#[derive(Debug)]
pub enum Repeated {
    /// It is answered when the mutation is.
    Waits,
    /// The mutation's answer.
    Answered(Result<Reply>),
}

/// The result of a client's mutation: its answer, or `None` when it has to wait for deliveries.
pub(crate) type Step = Result<Option<Reply>>;

impl SlotState {
    /// An empty slot of a pool with `slots` slots. `began` is the map's epoch from which it counts,
    /// `hash_seed` the map's key for the order of entries.
    #[must_use]
    pub fn new(slot: Slot, slots: u32, began: Epoch, hash_seed: u64) -> SlotState {
        assert!(u32::from(slot.0) < slots, "{slot} is not among the {slots} slots of the pool");
        let first = began.first_number();
        SlotState {
            slot,
            slots,
            hash: NameHash::new(hash_seed),
            // Counters 0 and 1 stay free: no inode is 0, and 1 is the root.
            first_number: first,
            next_counter: first.max(InodeId::ROOT.counter() + 1),
            next_intent: first,
            inodes: Inodes::default(),
            inline_bytes: 0,
            sessions: BTreeMap::new(),
            intents: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            coordinators: BTreeMap::new(),
            moves: None,
            outbox: Outbox::default(),
            locks: BTreeMap::new(),
            barriers: Barriers::default(),
            passthroughs: BTreeMap::new(),
            passthrough_last: 0,
            delegation: None,
            delegations: 0,
            whole_entries_max: limits::DIRECTORY_WHOLE_ENTRIES_MAX,
            follow_up: Vec::new(),
            full: false,
        }
    }

    /// Keeps only `bits` (1 to 60) bits of the hash of names. For tests, which want collisions.
    #[must_use]
    pub fn with_hash_bits(mut self, bits: u32) -> SlotState {
        self.hash = self.hash.narrowed(bits);
        self
    }

    /// Spreads directories that have this many entries. For tests, which have few.
    #[must_use]
    pub fn with_whole_entries(mut self, entries_max: u64) -> SlotState {
        self.whole_entries_max = entries_max;
        self
    }

    /// Puts the root directory (mode 0o755) into slot 0: part of making a pool, before the first
    /// command. Panics elsewhere, or when there is one.
    pub fn install_root(&mut self, owner: Owner, now: Timestamp) {
        self.assert_mine(InodeId::ROOT);
        let directory = Directory::new(InodeId::ROOT, LayoutHints::default(), Phase::Live);
        let inode = Inode::new(ROOT_MODE, owner, now, Body::Directory(Box::new(directory)));
        let before = self.inodes.insert(InodeId::ROOT, Box::new(inode));
        assert!(before.is_none(), "the pool has a root directory already");
        self.inodes.forget_touched();
    }

    /// Answers a mutation and remembers its answer, or that it waits. Three errors are not remembered:
    /// `Retry`; `HostDown`, with which an operation ends that needs a server that cannot be reached; and
    /// `Spread`, which sends it to another slot. In these cases nothing has happened, and the same request
    /// may be repeated.
    pub(crate) fn conclude(&mut self, token: Token, step: Step, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&token.session) else {
            return; // It ended meanwhile; no caller waits.
        };
        let outcome = match step {
            Ok(None) => return session.wait(token.sequence),
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(ErrorBody::new(&error)),
        };
        let transient = [ErrorKind::Retry, ErrorKind::HostDown, ErrorKind::Redirect(Redirect::Spread)]
            .map(ErrorKind::number);
        match &outcome {
            Err(body) if transient.contains(&body.kind) => session.forget(token.sequence),
            outcome => session.remember(token.sequence, Cached::Answered(outcome.clone())),
        }
        effects.push(Effect::Reply { token, outcome: shown(outcome) });
    }

    /// The deliveries that are not answered yet, oldest first: what must be delivered after a restart.
    pub fn open_deliveries(&self) -> impl Iterator<Item = (DeliveryId, &Delivery)> {
        self.outbox.iter()
    }

    /// The message of a delivery that is still pending. The shell asks before it delivers a delivery again:
    /// some are replaced by newer ones, or cancelled, before they are answered.
    #[must_use]
    pub fn open_delivery(&self, delivery: DeliveryId) -> Option<&Delivery> {
        self.outbox.get(delivery)
    }

    /// Whether a mutation has an answer here already, or is under way.
    #[must_use]
    pub fn has_met(&self, token: Token) -> bool {
        self.sessions.get(&token.session).is_some_and(|session| session.has_met(token.sequence))
    }

    /// Whether a mutation was answered here.
    #[must_use]
    pub fn has_answered(&self, token: Token) -> bool {
        self.sessions.get(&token.session).is_some_and(|session| session.has_answered(token.sequence))
    }

    /// What a repetition of a mutation comes to, as [`SlotState::apply`] answers it; `None` for what would be done now, or
    /// was acknowledged.
    #[must_use]
    pub fn repeated(&self, token: Token) -> Option<Repeated> {
        let met = self.sessions.get(&token.session)?.met(token.sequence)?;
        Some(match met {
            Cached::Waiting => Repeated::Waits,
            Cached::Cancelled => Repeated::Answered(Err(cancelled())),
            Cached::Answered(outcome) => Repeated::Answered(shown(outcome.clone())),
        })
    }

    /// The change of the bytes that the session's kept replies take, since the last call.
    pub fn take_kept_change(&mut self, session: SessionId) -> i64 {
        self.sessions.get_mut(&session).map_or(0, Session::take_kept_change)
    }

    /// The bytes for the session's kept replies that were reported to the owner of this slot.
    #[must_use]
    pub fn reported_reply_bytes(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, Session::reported_reply_bytes)
    }

    /// The bytes that each session's kept replies take, for an owner of this slot that has no figures yet.
    pub fn kept_anew(&mut self) -> impl Iterator<Item = (SessionId, u64)> + '_ {
        self.sessions.iter_mut().map(|(id, session)| (*id, session.kept_anew()))
    }

    /// The bytes that the session's kept replies below a number take.
    #[must_use]
    pub fn kept_below(&self, session: SessionId, sequence: Sequence) -> u64 {
        self.sessions.get(&session).map_or(0, |session| session.kept_below(sequence))
    }

    /// Sessions that have left something here: those that need an `EndSession` when they end.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.keys().copied()
    }

    /// Whether the session has left something here.
    #[must_use]
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Inodes that live here. Asked with every command: it costs as much as there are records of other
    /// slots' directories, which lie before and behind this slot's own inodes.
    #[must_use]
    pub fn inode_count(&self) -> u64 {
        let first = InodeId::new(self.slot, 0);
        let last = InodeId::new(self.slot, InodeId::COUNTER_MAX);
        let before = self.inodes.range(..first).count();
        let behind = self.inodes.range((Bound::Excluded(last), Bound::Unbounded)).count();
        (self.inodes.len() - before - behind) as u64
    }

    /// The inodes that live here, in the order of their numbers.
    pub fn inodes(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.inodes.keys().copied().filter(|inode| self.is_mine(*inode))
    }

    /// Whether all of a directory's names are in this slot, which is its home, and stay for now.
    #[must_use]
    pub fn has_all_names(&self, directory: InodeId) -> bool {
        self.is_mine(directory) && self.inodes.has_all_names(directory)
    }

    /// Which slot this is.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The number of the next inode that is made here: of those that are made from now on none has a lower one.
    #[must_use]
    pub fn next_counter(&self) -> u64 {
        self.next_counter
    }

    /// Whether an inode lives here, and is no record of another slot's directory.
    pub(crate) fn is_mine(&self, inode: InodeId) -> bool {
        inode.slot() == self.slot
    }

    /// The error for an inode that is not here: one of this slot is gone, or was lost with the server that
    /// had the slot before; of another slot's directory there is no partition here (any more).
    pub(crate) fn not_here(&self, inode: InodeId) -> Error {
        if self.is_mine(inode) && inode.counter() < self.first_number {
            let text = format!("inode {inode} was lost with the server that held {} before", self.slot);
            return Error::new(ErrorKind::Lost, text);
        }
        if self.is_mine(inode) {
            return Error::new(ErrorKind::Stale, format!("inode {inode} is gone"));
        }
        let text = format!("{} holds no part of directory {inode}", self.slot);
        Error::new(ErrorKind::Redirect(Redirect::Spread), text)
    }

    pub(crate) fn assert_mine(&self, inode: InodeId) {
        assert!(inode.slot() == self.slot, "inode {inode} was looked for in {}", self.slot);
    }

    pub(crate) fn inode(&self, inode: InodeId) -> Result<&Inode> {
        self.inodes.get(&inode).map(|inode| &**inode).ok_or_else(|| self.not_here(inode))
    }

    pub(crate) fn inode_mut(&mut self, inode: InodeId) -> Result<&mut Inode> {
        self.assert_mine(inode);
        if !self.inodes.contains_key(&inode) {
            return Err(self.not_here(inode));
        }
        Ok(self.inodes.get_mut(&inode).expect("just seen"))
    }

    /// A number for a new inode.
    pub(crate) fn allocate(&mut self) -> Result<InodeId> {
        if self.full {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "the server holds as many files and directories as it may; see `ramlace df` and `up --inodes`",
            ));
        }
        if self.next_counter >= self.numbers_end() {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("{} has given out all its inode numbers; use another directory", self.slot),
            ));
        }
        let inode = InodeId::new(self.slot, self.next_counter);
        self.next_counter += 1;
        Ok(inode)
    }

    /// A number for an operation, by which another slot knows it.
    pub(crate) fn number_operation(&mut self) -> Result<u64> {
        if self.next_intent >= self.numbers_end() {
            let text =
                format!("{} has given out all its numbers of operations; use another directory", self.slot);
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.next_intent += 1;
        Ok(self.next_intent - 1)
    }

    /// Behind the last number that may be given out here: who begins anew after this slot was lost, in the next epoch
    /// at the earliest, counts from there on.
    pub(crate) fn numbers_end(&self) -> u64 {
        (self.first_number + NUMBERS_PER_EPOCH).min(InodeId::COUNTER_MAX + 1)
    }

    pub(crate) fn session_mut(&mut self, caller: Caller) -> &mut Session {
        self.sessions.get_mut(&caller.token.session).expect("the session was admitted")
    }
}

pub(crate) fn shown(outcome: std::result::Result<Reply, ErrorBody>) -> Result<Reply> {
    outcome.map_err(ErrorBody::into_error)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;

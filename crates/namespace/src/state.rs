//! One slot: what it holds, and the one door through which it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ramlace_base::{
    Epoch, Error, ErrorKind, InodeId, Redirect, Result, Sequence, SessionId, Slot, Timestamp, limits,
};
use ramlace_wire::namespace::GivenUp;
use ramlace_wire::peer::Token;
use ramlace_wire::{Credentials, ErrorBody, LayoutHints, Owner};
use serde::{Deserialize, Serialize};

use crate::barriers::Barrier;
use crate::command::{Command, Delivery, DeliveryId, Effect, Op, Origin, Reply, Room};
use crate::directory::{Directory, Phase};
use crate::handovers::Handover;
use crate::hash::NameHash;
use crate::inode::{Body, Inode};
use crate::intent::Intent;
use crate::locks::FileLocks;
use crate::outbox::Outbox;
use crate::peers::Coordinator;
use crate::session::{Cached, Session};
use crate::spread::FollowUp;
use crate::touched::{Inodes, tell_changes};

/// A slot that starts empty counts inodes and operations from its first epoch times this, so
/// that it does not repeat the numbers of a predecessor that was lost.
const NUMBERS_PER_EPOCH: u64 = 1 << 24;

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
    pub(crate) unsettled: BTreeSet<(Slot, u64)>,
    /// Slots that coordinated operations of which a part was here.
    pub(crate) coordinators: BTreeMap<Slot, Coordinator>,
    /// In slot 0: who moves a directory to another at this moment.
    pub(crate) moves: Option<Slot>,
    pub(crate) outbox: Outbox,
    /// Files that somebody has locked.
    pub(crate) locks: BTreeMap<InodeId, FileLocks>,
    /// Barriers by name.
    pub(crate) barriers: BTreeMap<Vec<u8>, Barrier>,
    /// Files that kernels have.
    pub(crate) handovers: BTreeMap<InodeId, Handover>,
    /// The number of the last time that a kernel got one; 0: none ever did.
    pub(crate) handover_last: u64,
    /// A directory with so many entries is to be spread.
    pub(crate) whole_entries_max: u64,
    /// What the present step makes necessary.
    #[serde(skip)]
    pub(crate) follow_up: Vec<FollowUp>,
    /// The command at hand may make no inode.
    #[serde(skip)]
    pub(crate) full: bool,
}

/// Who asks for a change, and when.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'command> {
    pub token: Token,
    pub who: &'command Credentials,
    /// What the session has open gives no right.
    pub on_behalf: bool,
    pub now: Timestamp,
}

/// What a client's mutation comes to: its answer, or `None` when it has to wait for deliveries.
pub(crate) type Step = Result<Option<Reply>>;

impl SlotState {
    /// An empty slot of a pool with `slots` slots. `began` is the map's epoch from which it counts,
    /// `hash_seed` the map's key for the order of entries.
    #[must_use]
    pub fn new(slot: Slot, slots: u32, began: Epoch, hash_seed: u64) -> SlotState {
        assert!(u32::from(slot.0) < slots, "{slot} is not among the {slots} slots of the pool");
        let first = first_number(began);
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
            unsettled: BTreeSet::new(),
            coordinators: BTreeMap::new(),
            moves: None,
            outbox: Outbox::default(),
            locks: BTreeMap::new(),
            barriers: BTreeMap::new(),
            handovers: BTreeMap::new(),
            handover_last: 0,
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

    /// Spreads directories that have so many entries. For tests, which have few.
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

    /// Takes one step: the only way this state changes.
    ///
    /// Panics when the command belongs to another slot, or its origin does not fit its operation:
    /// those are bugs of the caller.
    pub fn apply(&mut self, command: &Command) -> Vec<Effect> {
        self.apply_within(command, Room::ForInodes)
    }

    /// The same, for a server that may have no room for another inode: then what would make one is
    /// refused with `NoSpace`. The room belongs to the command, and is logged with it.
    pub fn apply_within(&mut self, command: &Command, room: Room) -> Vec<Effect> {
        self.full = room == Room::None;
        let effects = self.step(command);
        self.full = false;
        effects
    }

    fn step(&mut self, command: &Command) -> Vec<Effect> {
        let mut effects = Vec::new();
        let now = command.now;
        match (&command.origin, &command.op) {
            (Origin::Client { session, sequence, acknowledged_below, who, on_behalf }, op) => {
                let (session, sequence) = (*session, *sequence);
                let caller = Caller { token: Token { session, sequence }, who, on_behalf: *on_behalf, now };
                let session_state = self.sessions.entry(session).or_default();
                match session_state.admit(session, sequence, *acknowledged_below) {
                    Ok(None) => {
                        let step = self.client_step(caller, op, &mut effects);
                        self.conclude(caller.token, step, &mut effects);
                    }
                    Ok(Some(Cached::Waiting)) => {}
                    Ok(Some(Cached::Answered(outcome))) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: shown(outcome.clone()) });
                    }
                    Err(refusal) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: Err(refusal) });
                    }
                }
            }
            (Origin::Peer, op) => {
                let answer = self.peer_step(op, now, &mut effects);
                self.follow_up(now, &mut effects);
                effects.push(Effect::PeerReply(answer));
            }
            (Origin::Server, Op::DeliveryDone { delivery, result }) => {
                self.delivery_done(*delivery, result, now, &mut effects);
            }
            (Origin::Server, Op::DeliveryUnreachable { delivery }) => {
                self.delivery_unreachable(*delivery, now, &mut effects);
            }
            (Origin::Server, Op::CoordinatorLost { coordinator, began }) => {
                self.coordinator_lost(*coordinator, *began, now, &mut effects);
            }
            (Origin::Server, Op::Disown(disowned)) => self.disown(disowned, now, &mut effects),
            (Origin::Server, Op::EndSession { session }) => self.end_session(*session, now, &mut effects),
            (Origin::Server, Op::Spread { directory, partitions }) => {
                self.spread(*directory, partitions, now, &mut effects);
            }
            (Origin::Server, Op::EndLockWait(request)) => self.end_lock_wait(*request, &mut effects),
            (Origin::Server, op) => panic!("{op:?} does not come from the server"),
        }
        self.follow_up(now, &mut effects);
        tell_changes(&mut self.inodes, self.slot, command, &mut effects);
        effects
    }

    fn client_step(&mut self, caller: Caller, op: &Op, effects: &mut Vec<Effect>) -> Step {
        self.check_not_going(op)?;
        match op {
            Op::Create(request) => self.create(caller, request),
            Op::Open(request) => self.open(caller, *request),
            Op::GiveUp(request) => {
                let opened = self.session_mut(caller).give_up(request.sequence);
                Ok(Some(Reply::GivenUp(GivenUp { opened })))
            }
            Op::OpenEntry(request) => self.open_entry(caller, request),
            Op::HandOver(request) => self.hand_over(caller, *request, effects),
            Op::Close(request) => self.close(caller, *request, effects),
            Op::SetAttributes(request) => self.set_attributes(caller, *request, effects),
            Op::Truncate(request) => self.truncate(caller, *request, effects),
            Op::Symlink(request) => self.symlink(caller, request),
            Op::MakeNode(request) => self.make_node(caller, request),
            Op::CreateUnnamed(request) => self.create_unnamed(caller, request),
            Op::SetXattr(request) => self.set_xattr(caller, request, effects),
            Op::RemoveXattr(request) => self.remove_xattr(caller, request, effects),
            Op::MakeDirectory { request, homes } => self.make_directory(caller, request, homes, effects),
            Op::RemoveDirectory(request) => self.remove_directory(caller, request, effects),
            Op::Unlink(request) => self.unlink(caller, request, effects),
            Op::Rename(request) => self.rename(caller, request, effects),
            Op::Link(request) => self.link(caller, request, effects),
            Op::WriteInline { request, room } => self.write_inline(caller, request, *room),
            Op::Promote { request, epoch } => self.promote(caller, *request, *epoch, effects),
            Op::Extend(request) => self.extend(caller, *request),
            Op::NoteMemory(request) => self.note_memory(caller, *request),
            Op::ReserveAppend(request) => self.reserve_append(caller, *request),
            Op::FinishAppend(request) => self.finish_append(caller, *request),
            Op::SetLayout(request) => self.set_layout(caller, *request, effects),
            Op::SetLock(request) => self.set_lock(caller, *request, effects),
            Op::CancelLock(request) => self.cancel_lock(caller, *request, effects),
            Op::ArriveBarrier { request, room } => self.arrive_barrier(caller, request, *room, effects),
            Op::LeaveBarrier(request) => self.leave_barrier(caller, request),
            Op::ChangeInlineCell { request, room } => self.change_inline_cell(caller, *request, *room),
            other => panic!("{other:?} does not come from a client"),
        }
    }

    /// Answers a mutation and remembers its answer, or that it waits. `Retry` is no answer, and
    /// neither is `HostDown`, with which an operation gives up that needs a server out of reach, nor
    /// `Spread`, which sends it to another slot: nothing has happened, and the same request may come again.
    pub(crate) fn conclude(&mut self, token: Token, step: Step, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&token.session) else {
            return; // It ended meanwhile; nobody waits.
        };
        let outcome = match step {
            Ok(None) => return session.remember(token.sequence, Cached::Waiting),
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

    /// The message of a delivery that is still owed. The shell asks before it delivers a delivery
    /// again: some are replaced by newer ones, or given up, before they are answered.
    #[must_use]
    pub fn open_delivery(&self, delivery: DeliveryId) -> Option<&Delivery> {
        self.outbox.get(delivery)
    }

    /// Whether somebody waits for the delivery, or it is given up when it cannot be delivered: only
    /// then does an `DeliveryUnreachable` change anything.
    #[must_use]
    pub fn is_awaited(&self, delivery: DeliveryId) -> bool {
        match self.outbox.get(delivery) {
            Some(
                Delivery::Prepare(_) | Delivery::Ascend(_) | Delivery::TrimLane(_) | Delivery::FillLane(_),
            ) => true,
            Some(Delivery::CutLane(message)) => self.cut_is_awaited(message.lane),
            Some(Delivery::Settle(_) | Delivery::DropLane(_)) | None => false,
        }
    }

    /// Whether a mutation has an answer here already, or is under way.
    #[must_use]
    pub fn has_met(&self, token: Token) -> bool {
        self.sessions.get(&token.session).is_some_and(|session| session.has_met(token.sequence))
    }

    /// By how much what the session's kept replies take has changed since this was asked last.
    pub fn take_kept_change(&mut self, session: SessionId) -> i64 {
        self.sessions.get_mut(&session).map_or(0, Session::take_kept_change)
    }

    /// What the owner of this slot has been told that the session's kept replies take.
    #[must_use]
    pub fn told_kept(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, Session::told_kept)
    }

    /// What each session's kept replies take, for an owner of this slot that was told nothing yet.
    pub fn kept_anew(&mut self) -> impl Iterator<Item = (SessionId, u64)> + '_ {
        self.sessions.iter_mut().map(|(id, session)| (*id, session.kept_anew()))
    }

    /// What the session's kept replies below a number take.
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
        if self.next_counter > InodeId::COUNTER_MAX {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("{} has given out all its inode numbers; use another directory", self.slot),
            ));
        }
        let inode = InodeId::new(self.slot, self.next_counter);
        self.next_counter += 1;
        Ok(inode)
    }

    pub(crate) fn session_mut(&mut self, caller: Caller) -> &mut Session {
        self.sessions.get_mut(&caller.token.session).expect("the session was admitted")
    }
}

/// The first number of inodes and operations of a slot that began empty in this epoch.
pub(crate) fn first_number(began: Epoch) -> u64 {
    u64::from(began.0) * NUMBERS_PER_EPOCH
}

fn shown(outcome: std::result::Result<Reply, ErrorBody>) -> Result<Reply> {
    outcome.map_err(ErrorBody::into_error)
}

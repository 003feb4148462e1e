//! A session's pending messages to servers, which could not be sent, or need not be sent at once. Pure: it
//! takes messages, outcomes and the time, and says what is sent next.
//!
//! Each message has a subject, and each subject a home. Messages of one subject are sent in order, each until
//! it is acknowledged, and by one thread at a time; subjects of one home take turns, and so do homes. One
//! rule says when: the first message a second after it is added, so that later ones go along; after a
//! failure, following a pause that grows; and to a home whose server is silent, once it has shown a sign of
//! life.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, ServerId, Slot, limits};
use ramlace_wire::coordination::LeaveBarrier;
use ramlace_wire::locks::SetLock;
use ramlace_wire::namespace::AppendReserved;

use crate::session::sequences::Kept;

/// The delay before a pending message is sent: what is added meanwhile goes in the same round. It bounds the
/// time until the times of written files reach their homes (`docs/records/generations.md`).
pub const ROUND_MILLIS: u64 = 1_000;
/// The longest pause after a home that did not answer: the interval of heartbeats.
const PAUSE_MILLIS_MAX: u64 = limits::HEARTBEAT_MILLIS;
/// Pending departures from barriers of one slot; beyond that, the end of the session takes care of them.
const LEAVES_MAX: usize = 1024;
/// Pending messages about a file's locks; beyond that, the end of the session takes care of them.
const LOCKS_MAX: usize = limits::LOCKS_PER_SESSION_MAX as usize;
/// For messages that only signal that there is something to send: one that is being sent, and one of each
/// kind that was added meanwhile.
const SIGNS_MAX: usize = 3;

/// The receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// The server that has this slot.
    Slot(Slot),
    /// A server, whatever its slots.
    Server(ServerId),
}

/// The subjects of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Changes that were not answered in time.
    CancelledChanges(Slot),
    /// The locks of a file.
    Locks(InodeId),
    /// The members of barriers.
    Barriers(Slot),
    /// Whether an inode is open.
    Open(InodeId),
    /// When an inode was written.
    Times(InodeId),
    /// Bytes that are reserved at a file's end.
    Appends(InodeId),
    /// Ended recalls of leases on bytes.
    Recalls(ServerId),
    /// A wait for a lock that may be part of a deadlock.
    Cycle(u64),
}

/// A pending message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Abandon a change: if it arrives later than this, it is not done.
    CancelChange(Kept),
    /// A wait for a lock is cancelled; if it was granted, it is unlocked.
    CancelLock(SetLock),
    /// The owner of locks has gone.
    Unlock(SetLock),
    /// A member no longer waits at a barrier.
    LeaveBarrier(Slot, LeaveBarrier),
    /// An inode was closed, unless it is open again.
    Close(InodeId),
    /// An abandoned change has opened an inode: close it, unless it is open here.
    CloseOpened(InodeId),
    /// An inode was written; the sender knows when.
    Times(InodeId),
    /// Bytes that were reserved at a file's end are not written, or nobody knows.
    FailAppend(AppendReserved),
    /// Recalls have ended; the sender knows which.
    EndRecalls(ServerId),
    /// A wait for a lock goes on: the server of slot 0 is asked whether it closes a cycle, for as long as it
    /// lasts.
    FindCycle(u64),
}

/// The outcome of a message whose home answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// It was acknowledged, or is void.
    Yes,
    /// It is for the next round: another thread is busy with its subject.
    NotYet,
}

impl fmt::Display for Home {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Home::Slot(slot) => slot.fmt(formatter),
            Home::Server(server) => server.fmt(formatter),
        }
    }
}

impl Message {
    /// Its subject.
    pub fn subject(&self) -> Subject {
        match self {
            Message::CancelChange(kept) => Subject::CancelledChanges(kept.slot),
            Message::CancelLock(request) | Message::Unlock(request) => Subject::Locks(request.inode),
            Message::LeaveBarrier(slot, _) => Subject::Barriers(*slot),
            Message::Close(inode) | Message::CloseOpened(inode) => Subject::Open(*inode),
            Message::Times(inode) => Subject::Times(*inode),
            Message::FailAppend(reserved) => Subject::Appends(reserved.inode),
            Message::EndRecalls(server) => Subject::Recalls(*server),
            Message::FindCycle(wait) => Subject::Cycle(*wait),
        }
    }

    /// Whether it only signals that there is something to send: then one pending message is as good as two.
    fn is_sign(&self) -> bool {
        matches!(
            self,
            Message::Close(_)
                | Message::CloseOpened(_)
                | Message::Times(_)
                | Message::EndRecalls(_)
                | Message::FindCycle(_)
        )
    }
}

impl Subject {
    /// The receiver of messages about it.
    pub fn home(self) -> Home {
        match self {
            Subject::Locks(inode)
            | Subject::Open(inode)
            | Subject::Times(inode)
            | Subject::Appends(inode) => Home::Slot(inode.slot()),
            Subject::CancelledChanges(slot) | Subject::Barriers(slot) => Home::Slot(slot),
            Subject::Recalls(server) => Home::Server(server),
            Subject::Cycle(_) => Home::Slot(InodeId::ROOT.slot()),
        }
    }

    /// The limit of pending messages about it.
    fn messages_max(self) -> usize {
        match self {
            Subject::CancelledChanges(_) => limits::REPLIES_PER_SESSION_MAX,
            Subject::Locks(_) => LOCKS_MAX,
            Subject::Barriers(_) => LEAVES_MAX,
            Subject::Appends(_) => limits::APPEND_RESERVATIONS_MAX,
            Subject::Open(_) | Subject::Times(_) | Subject::Recalls(_) | Subject::Cycle(_) => SIGNS_MAX,
        }
    }
}

/// When a home is due, and its turn among homes that are due at the same time.
type Place = (Instant, u64);

/// The pending messages to one home.
struct Queue {
    /// Its subjects, in the order of their turns.
    subjects: BTreeMap<u64, Subject>,
    /// `None`: it is due after a sign of life.
    place: Option<Place>,
    /// Failures in a row.
    failures: u32,
}

/// The pending messages about one subject.
#[derive(Default)]
struct Strand {
    messages: VecDeque<(u64, Message)>,
    turn: u64,
    being_sent: bool,
}

/// What a thread may do about a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenUp {
    /// There are no messages.
    Nothing,
    /// Another thread is sending them.
    ByAnother,
    /// The caller sends them, until it puts the subject down.
    ByCaller,
}

/// The outcome of adding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The limit of its kind is reached: it is dropped.
    TooMuch,
    /// It waits for its turn.
    Later,
    /// The same, and it is the first: the sending thread must not sleep beyond [`PendingMessages::wake_at`].
    Sooner,
}

/// All pending messages.
#[derive(Default)]
pub struct PendingMessages {
    strands: HashMap<Subject, Strand>,
    homes: BTreeMap<Home, Queue>,
    /// Homes that are not silent, in the order in which they are due.
    order: BTreeMap<Place, Home>,
    /// Messages and turns are numbered from one sequence, so that a round ends.
    last: u64,
    count: usize,
}

impl PendingMessages {
    /// The number of messages.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number for each home. Messages that are only queries do not count: nothing is lost without them.
    pub fn by_home(&self) -> HashMap<Home, usize> {
        let mut counts = HashMap::new();
        let is_change = |subject: &Subject| !matches!(subject, Subject::Cycle(_));
        for (subject, strand) in self.strands.iter().filter(|(subject, _)| is_change(subject)) {
            *counts.entry(subject.home()).or_default() += strand.messages.len();
        }
        counts.retain(|_, messages| *messages > 0);
        counts
    }

    /// When the next home is due.
    pub fn wake_at(&self) -> Option<Instant> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// Begins a round, in which messages with an earlier number are sent.
    pub fn begin_round(&mut self) -> u64 {
        self.number()
    }

    /// Adds a message; it is sent when it is due.
    pub fn add(&mut self, message: Message, now: Instant) -> Added {
        let subject = message.subject();
        let number = self.number();
        let strand = match self.strands.entry(subject) {
            Entry::Occupied(strand) => strand.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Strand { turn: number, ..Strand::default() }),
        };
        let mut waiting = strand.messages.iter().skip(usize::from(strand.being_sent));
        if message.is_sign() && waiting.any(|(_, other)| *other == message) {
            return Added::Later;
        }
        if strand.messages.len() >= subject.messages_max() {
            return Added::TooMuch;
        }
        strand.messages.push_back((number, message));
        let turn = strand.turn;
        self.count += 1;
        let home = subject.home();
        if let Some(queue) = self.homes.get_mut(&home) {
            queue.subjects.insert(turn, subject);
            return Added::Later;
        }
        let (first, latest) = (self.wake_at(), now + Duration::from_millis(ROUND_MILLIS));
        let at = first.filter(|first| (now..latest).contains(first)).unwrap_or(latest);
        let subjects = BTreeMap::from([(turn, subject)]);
        self.homes.insert(home, Queue { subjects, place: None, failures: 0 });
        self.place(home, Some(at));
        if first.is_none_or(|first| at < first) { Added::Sooner } else { Added::Later }
    }

    /// Takes up the subject that is due next in the round that began with this number; homes that are
    /// `silent` wait for a sign of life.
    pub fn take_up_next(
        &mut self,
        round: u64,
        now: Instant,
        silent: impl Fn(Home) -> bool,
    ) -> Option<Subject> {
        while let Some((_, &home)) = self.order.first_key_value().filter(|((at, _), _)| *at <= now) {
            if silent(home) {
                self.place(home, None);
                continue;
            }
            let mut turns = self.homes[&home].subjects.range(..round).map(|(_, subject)| *subject);
            match turns.find(|subject| !self.strands[subject].being_sent) {
                Some(subject) => {
                    self.place(home, Some(now));
                    self.strands.get_mut(&subject)?.being_sent = true;
                    return Some(subject);
                }
                None => self.place(home, Some(now + Duration::from_millis(ROUND_MILLIS))),
            }
        }
        None
    }

    /// Takes up a subject out of turn.
    pub fn take_up(&mut self, subject: Subject) -> TakenUp {
        match self.strands.get_mut(&subject) {
            None => TakenUp::Nothing,
            Some(strand) if strand.being_sent => TakenUp::ByAnother,
            Some(strand) => {
                strand.being_sent = true;
                TakenUp::ByCaller
            }
        }
    }

    /// The next message about a subject that is taken up. With `round`: only if it was added before that
    /// round.
    pub fn next_of(&self, subject: Subject, round: Option<u64>) -> Option<Message> {
        let (number, message) = self.strands.get(&subject)?.messages.front()?;
        round.is_none_or(|round| *number < round).then(|| message.clone())
    }

    /// That message was acknowledged, or is void.
    pub fn acknowledged(&mut self, subject: Subject) {
        let front = self.strands.get_mut(&subject).and_then(|strand| strand.messages.pop_front());
        self.count -= usize::from(front.is_some());
    }

    /// The thread that took a subject up is done with it. `unacknowledged`: its home did not answer.
    pub fn put_down(&mut self, subject: Subject, unacknowledged: bool, now: Instant) {
        let home = subject.home();
        let turn = self.number();
        let (Some(strand), Some(queue)) = (self.strands.get_mut(&subject), self.homes.get_mut(&home)) else {
            return;
        };
        strand.being_sent = false;
        queue.subjects.remove(&strand.turn);
        if strand.messages.is_empty() {
            self.strands.remove(&subject);
        } else {
            strand.turn = turn;
            queue.subjects.insert(turn, subject);
        }
        queue.failures = if unacknowledged { queue.failures.saturating_add(1) } else { 0 };
        let failures = queue.failures;
        if queue.subjects.is_empty() {
            self.place(home, None);
            self.homes.remove(&home);
        } else if unacknowledged {
            self.place(home, Some(now + pause_after(failures)));
        }
    }

    /// Servers have shown signs of life: silent homes are due again.
    pub fn note_signs_of_life(&mut self, now: Instant) {
        let silent: Vec<Home> =
            self.homes.iter().filter(|(_, queue)| queue.place.is_none()).map(|(home, _)| *home).collect();
        silent.into_iter().for_each(|home| self.place(home, Some(now)));
    }

    fn place(&mut self, home: Home, at: Option<Instant>) {
        let place = at.map(|at| (at, self.number()));
        let Some(queue) = self.homes.get_mut(&home) else { return };
        if let Some(old) = std::mem::replace(&mut queue.place, place) {
            self.order.remove(&old);
        }
        if let Some(place) = place {
            self.order.insert(place, home);
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn pause_after(failures: u32) -> Duration {
    let pause = ROUND_MILLIS.saturating_mul(1 << failures.saturating_sub(1).min(16));
    Duration::from_millis(pause.min(PAUSE_MILLIS_MAX))
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;

//! What a session owes to servers: messages that they could not be told, or need not be told at once. Pure: it takes messages, what
//! came of them and the time, and says which is sent next.
//!
//! Each message has a subject, and each subject a home. Messages of one subject are told in their order, each until it is heard, and by
//! one thread at a time; subjects of one home take turns, and so do homes. One rule says when: a second after something is owed first,
//! so that what comes meanwhile goes along; after a home that did not hear, after a pause that grows; and after a home whose server is
//! silent, when it has shown a sign of life.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, ServerId, Slot, limits};
use ramlace_wire::coordination::LeaveBarrier;
use ramlace_wire::locks::SetLock;

use crate::session::sequences::Kept;

/// What is owed is told so much later: what is owed meanwhile goes in the same round. Times of written files reach their homes after so
/// long at the latest (`docs/records/generations.md`).
pub const ROUND_MILLIS: u64 = 1_000;
/// The longest pause after a home that did not hear: heartbeats come as often.
const PAUSE_MILLIS_MAX: u64 = limits::HEARTBEAT_MILLIS;
/// Departures from barriers that a slot has yet to hear of; what is beyond ends with the session.
const LEAVES_MAX: usize = 1024;
/// Locks of a file of which its home has yet to hear that they are over; what is beyond ends with the session.
const LOCKS_MAX: usize = limits::LOCKS_PER_SESSION_MAX as usize;
/// Of what only says that there is something to be told: one that is being told, and one of each kind that came meanwhile.
const SIGNS_MAX: usize = 3;

/// Who is to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// Whoever has this slot.
    Slot(Slot),
    /// A server, whatever its slots.
    Server(ServerId),
}

/// What messages are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Changes that were not answered in time.
    GivenUp(Slot),
    /// The locks of a file.
    Locks(InodeId),
    /// The members of barriers.
    Barriers(Slot),
    /// Whether an inode is open.
    Open(InodeId),
    /// When an inode was written.
    Times(InodeId),
    /// Recalls of leases on bytes that are over.
    Recalls(ServerId),
    /// A wait for a lock, which may be one of a cycle.
    Cycle(u64),
}

/// A message that is owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A change is given up: what has not met it by then is not done any more.
    GiveUp(Kept),
    /// A wait for a lock is given up; should it have been granted, it is unlocked.
    CancelLock(SetLock),
    /// The owner of locks has gone.
    Unlock(SetLock),
    /// A member waits at a barrier no longer.
    LeaveBarrier(Slot, LeaveBarrier),
    /// An inode was closed, unless it is open again.
    Close(InodeId),
    /// A change that was given up has opened an inode: that is closed, unless it is open here.
    CloseOpened(InodeId),
    /// An inode was written; when, knows who sends it.
    Times(InodeId),
    /// Recalls are over; which, knows who sends it.
    EndRecalls(ServerId),
    /// A wait for a lock goes on: the server of slot 0 is asked for a cycle that it closes, as long as it does.
    LookForCycle(u64),
}

/// What became of a message that its home did not miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It was told, or nobody is to hear it any more.
    Yes,
    /// It is for the next round: another thread has what it is about.
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
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Message::GiveUp(kept) => Subject::GivenUp(kept.slot),
            Message::CancelLock(request) | Message::Unlock(request) => Subject::Locks(request.inode),
            Message::LeaveBarrier(slot, _) => Subject::Barriers(*slot),
            Message::Close(inode) | Message::CloseOpened(inode) => Subject::Open(*inode),
            Message::Times(inode) => Subject::Times(*inode),
            Message::EndRecalls(server) => Subject::Recalls(*server),
            Message::LookForCycle(wait) => Subject::Cycle(*wait),
        }
    }

    /// Whether it says only that there is something to be told: one that waits is as good as two.
    fn is_sign(&self) -> bool {
        matches!(
            self,
            Message::Close(_)
                | Message::CloseOpened(_)
                | Message::Times(_)
                | Message::EndRecalls(_)
                | Message::LookForCycle(_)
        )
    }
}

impl Subject {
    /// Who hears messages about it.
    pub fn home(self) -> Home {
        match self {
            Subject::Locks(inode) | Subject::Open(inode) | Subject::Times(inode) => Home::Slot(inode.slot()),
            Subject::GivenUp(slot) | Subject::Barriers(slot) => Home::Slot(slot),
            Subject::Recalls(server) => Home::Server(server),
            Subject::Cycle(_) => Home::Slot(InodeId::ROOT.slot()),
        }
    }

    /// As many messages of it are kept at most.
    fn messages_max(self) -> usize {
        match self {
            Subject::GivenUp(_) => limits::REPLIES_PER_SESSION_MAX,
            Subject::Locks(_) => LOCKS_MAX,
            Subject::Barriers(_) => LEAVES_MAX,
            Subject::Open(_) | Subject::Times(_) | Subject::Recalls(_) | Subject::Cycle(_) => SIGNS_MAX,
        }
    }
}

/// When a home is told next, and whose turn it is among those of the same time.
type Place = (Instant, u64);

/// What is owed to one home.
struct Queue {
    /// Its subjects, by whose turn it is.
    subjects: BTreeMap<u64, Subject>,
    /// `None`: it is told after a sign of life.
    place: Option<Place>,
    /// How often in a row it did not hear.
    failures: u32,
}

/// What is owed about one subject.
#[derive(Default)]
struct Strand {
    messages: VecDeque<(u64, Message)>,
    turn: u64,
    being_told: bool,
}

/// What a thread may do about a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenUp {
    /// Nothing is owed.
    Nothing,
    /// Another thread tells it.
    ByAnother,
    /// It is the caller's, until it is put down.
    ByCaller,
}

/// What came of a message that is owed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owes {
    /// There are as many of its kind as may be: it is dropped.
    TooMuch,
    /// It waits for its turn.
    Later,
    /// The same, and it is the first: who tells must not sleep longer than [`Owed::wake_at`].
    Sooner,
}

/// Everything that is owed.
#[derive(Default)]
pub struct Owed {
    strands: HashMap<Subject, Strand>,
    homes: BTreeMap<Home, Queue>,
    /// Homes that are not silent.
    order: BTreeMap<Place, Home>,
    /// Messages and turns have numbers of one row, so that a round ends.
    last: u64,
    count: usize,
}

impl Owed {
    /// As many messages as there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many each home has yet to hear. What is a question is no message that anybody misses.
    pub fn by_home(&self) -> HashMap<Home, usize> {
        let mut counts = HashMap::new();
        let told = |subject: &Subject| !matches!(subject, Subject::Cycle(_));
        for (subject, strand) in self.strands.iter().filter(|(subject, _)| told(subject)) {
            *counts.entry(subject.home()).or_default() += strand.messages.len();
        }
        counts.retain(|_, messages| *messages > 0);
        counts
    }

    /// When somebody has to be told next.
    pub fn wake_at(&self) -> Option<Instant> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// A round begins: what has an earlier number is told in it.
    pub fn begin_round(&mut self) -> u64 {
        self.number()
    }

    /// A message is owed from now on, and told when it is time.
    pub fn owe(&mut self, message: Message, now: Instant) -> Owes {
        let subject = message.subject();
        let number = self.number();
        let strand = match self.strands.entry(subject) {
            Entry::Occupied(strand) => strand.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Strand { turn: number, ..Strand::default() }),
        };
        let mut waiting = strand.messages.iter().skip(usize::from(strand.being_told));
        if message.is_sign() && waiting.any(|(_, other)| *other == message) {
            return Owes::Later;
        }
        if strand.messages.len() >= subject.messages_max() {
            return Owes::TooMuch;
        }
        strand.messages.push_back((number, message));
        let turn = strand.turn;
        self.count += 1;
        let home = subject.home();
        if let Some(queue) = self.homes.get_mut(&home) {
            queue.subjects.insert(turn, subject);
            return Owes::Later;
        }
        let (first, latest) = (self.wake_at(), now + Duration::from_millis(ROUND_MILLIS));
        let at = first.filter(|first| (now..latest).contains(first)).unwrap_or(latest);
        let subjects = BTreeMap::from([(turn, subject)]);
        self.homes.insert(home, Queue { subjects, place: None, failures: 0 });
        self.place(home, Some(at));
        if first.is_none_or(|first| at < first) { Owes::Sooner } else { Owes::Later }
    }

    /// Takes up whatever is to be told next in a round that began with this number; homes that are `silent` wait for a sign of life.
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
            match turns.find(|subject| !self.strands[subject].being_told) {
                Some(subject) => {
                    self.place(home, Some(now));
                    self.strands.get_mut(&subject)?.being_told = true;
                    return Some(subject);
                }
                None => self.place(home, Some(now + Duration::from_millis(ROUND_MILLIS))),
            }
        }
        None
    }

    /// Takes up a subject out of its turn.
    pub fn take_up(&mut self, subject: Subject) -> TakenUp {
        match self.strands.get_mut(&subject) {
            None => TakenUp::Nothing,
            Some(strand) if strand.being_told => TakenUp::ByAnother,
            Some(strand) => {
                strand.being_told = true;
                TakenUp::ByCaller
            }
        }
    }

    /// The message that is to be told about a subject that is taken up. `round`: unless it came after that began.
    pub fn next_of(&self, subject: Subject, round: Option<u64>) -> Option<Message> {
        let (number, message) = self.strands.get(&subject)?.messages.front()?;
        round.is_none_or(|round| *number < round).then(|| message.clone())
    }

    /// That message was heard, or nobody is to hear it any more.
    pub fn told(&mut self, subject: Subject) {
        let front = self.strands.get_mut(&subject).and_then(|strand| strand.messages.pop_front());
        self.count -= usize::from(front.is_some());
    }

    /// Who has taken a subject up is done with it. `unheard`: its home did not hear.
    pub fn put_down(&mut self, subject: Subject, unheard: bool, now: Instant) {
        let home = subject.home();
        let turn = self.number();
        let (Some(strand), Some(queue)) = (self.strands.get_mut(&subject), self.homes.get_mut(&home)) else {
            return;
        };
        strand.being_told = false;
        queue.subjects.remove(&strand.turn);
        if strand.messages.is_empty() {
            self.strands.remove(&subject);
        } else {
            strand.turn = turn;
            queue.subjects.insert(turn, subject);
        }
        queue.failures = if unheard { queue.failures.saturating_add(1) } else { 0 };
        let failures = queue.failures;
        if queue.subjects.is_empty() {
            self.place(home, None);
            self.homes.remove(&home);
        } else if unheard {
            self.place(home, Some(now + pause_after(failures)));
        }
    }

    /// Servers have shown signs of life: homes that were silent are looked at again.
    pub fn hear_of_life(&mut self, now: Instant) {
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
#[path = "owed_tests.rs"]
mod tests;

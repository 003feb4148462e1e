//! The client's outbox in virtual time: the table that clients have ([`ramlace_client::pure::PendingMessages`]), told by a heart and by threads that must
//! not say anything new before, to homes that die, say nothing or lose answers.
//!
//! What holds: each subject's messages are received in their order, each at least once, and all of them in the end; a home that answers has received
//! what it is pending for it two seconds after it was added, and for how long other homes kept the heart waiting; one that does not is asked once and then ever
//! less, and a silent one not at all, but after a sign of life. An [`OutboxBug`] planted in what a sender must do for the table must be found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, Sequence, Slot, limits};
use ramlace_wire::coordination::LeaveBarrier;

use ramlace_client::pure::{Added, Home, Kept, Message, PendingMessages, Subject, TakenUp};

use crate::dice::Dice;
use crate::tally::tally;

const HOMES: u16 = 4;
/// How long homes may fail, in virtual time; then all of them answer.
const TROUBLE_MILLIS: u64 = 60_000;
const RUN_MILLIS: u64 = 90_000;
/// How long a teller waits for an answer.
const PATIENCE_MILLIS: u64 = 1_000;
/// A round that has begun goes on for so long.
const ROUND_LONGEST_MILLIS: u64 = 500;
/// A home that answers has received by then, where no other keeps the heart waiting: a second of gathering, and another where its turn comes in a round
/// that began before.
const RECEIVED_WITHIN_MILLIS: u64 = 2_300;
/// What a home has failed before counts for so long.
const FAILURE_COUNTS_MILLIS: u64 = 3_000;
/// An attempt at a home that failed before comes so much later.
const PAUSE_LEAST_MILLIS: u64 = 1_000;

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxBug {
    /// None.
    None,
    /// A message counts as acknowledged when it was sent.
    CountsSentAsAcknowledged,
    /// A message that is not answered goes behind the others of its subject.
    RepeatsLater,
    /// A subject that its home did not receive stays taken up.
    KeepsSubjects,
    /// A home that received nothing counts as one that did.
    ForgetsFailures,
    /// The heart sleeps until its next beat, whatever is pending meanwhile.
    SleepsUntilTheBeat,
    /// Silent homes are asked like others.
    AsksTheSilent,
    /// Nobody says that silent homes have shown signs of life.
    NeverNotesLife,
    /// Two threads tell one subject.
    TellsTwiceAtOnce,
}

impl OutboxBug {
    /// All that can be planted.
    pub const ALL: [OutboxBug; 8] = [
        OutboxBug::CountsSentAsAcknowledged,
        OutboxBug::RepeatsLater,
        OutboxBug::KeepsSubjects,
        OutboxBug::ForgetsFailures,
        OutboxBug::SleepsUntilTheBeat,
        OutboxBug::AsksTheSilent,
        OutboxBug::NeverNotesLife,
        OutboxBug::TellsTwiceAtOnce,
    ];
}

tally! {
    /// How much has happened.
    OutboxTally {
        /// Messages that were pending.
        pending,
        /// Messages that a home received.
        received,
        /// Of these, some for the second time.
        again,
        /// Attempts at homes that did not answer.
        failed,
        /// Times that somebody told a subject out of its turn.
        hurried,
    }
}

/// What a home does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Hears,
    /// It answers that it cannot now.
    Refuses,
    Nothing,
}

/// One attempt that is under way.
#[derive(Clone, Copy)]
struct Attempt {
    subject: Subject,
    /// The heart's round; `None`: of a thread.
    round: Option<u64>,
    /// When it is over, and whether its home is known to have received it.
    over: u64,
    /// How long it took until then.
    took: u64,
    answered: bool,
}

/// A message that a home has yet to receive.
struct Waiting {
    number: u64,
    added_at: u64,
    /// Attempts that had kept the heart waiting by then.
    waits_before: u64,
}

struct Run {
    dice: Dice,
    bug: OutboxBug,
    pending: PendingMessages,
    began: Instant,
    now: u64,
    homes: Vec<Does>,
    /// Since when each does what it does, and when it last left an attempt unanswered.
    since: Vec<u64>,
    failed_at: Vec<Option<u64>>,
    /// The same of the heart's attempts.
    heart_failed_at: Vec<Option<u64>>,
    /// As the client knows them.
    silent: Vec<bool>,
    beat_at: u64,
    /// The heart's round, until when it takes up more.
    round: Option<(u64, u64)>,
    attempts: Vec<Attempt>,
    waiting: HashMap<Subject, Vec<Waiting>>,
    last: u64,
    /// Milliseconds for which the heart has waited for homes.
    waits: u64,
    tally: OutboxTally,
}

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run_outbox(seed: u64, bug: OutboxBug) -> Result<OutboxTally, String> {
    let homes = usize::from(HOMES);
    let mut run = Run {
        dice: Dice(seed),
        bug,
        pending: PendingMessages::default(),
        began: Instant::now(),
        now: 0,
        homes: vec![Does::Hears; homes],
        since: vec![0; homes],
        failed_at: vec![None; homes],
        heart_failed_at: vec![None; homes],
        silent: vec![false; homes],
        beat_at: limits::HEARTBEAT_MILLIS,
        round: None,
        attempts: Vec::new(),
        waiting: HashMap::new(),
        last: 0,
        waits: 0,
        tally: OutboxTally::default(),
    };
    run.run().map_err(|what| format!("at {} ms: {what}", run.now))?;
    Ok(run.tally)
}

fn home_of(subject: Subject) -> usize {
    match subject.home() {
        Home::Slot(slot) => usize::from(slot.0),
        Home::Server(server) => usize::from(server.0),
    }
}

impl Run {
    fn clock(&self) -> Instant {
        self.began + Duration::from_millis(self.now)
    }

    fn run(&mut self) -> Result<(), String> {
        while self.now < RUN_MILLIS {
            self.now += 1 + self.dice.roll(20);
            if self.now < TROUBLE_MILLIS {
                self.trouble()?;
            } else {
                for home in 0..self.homes.len() {
                    self.becomes(home, Does::Hears);
                }
            }
            self.end_attempts()?;
            self.heart_beats()?;
            self.heart_tells()?;
        }
        if self.pending.count() > 0 || self.waiting.values().any(|waiting| !waiting.is_empty()) {
            return Err(format!("{} messages are still pending", self.pending.count()));
        }
        Ok(())
    }

    fn becomes(&mut self, home: usize, does: Does) {
        if self.homes[home] != does {
            (self.homes[home], self.since[home]) = (does, self.now);
        }
    }

    fn trouble(&mut self) -> Result<(), String> {
        let home = self.dice.roll(HOMES.into()) as usize;
        match self.dice.roll(1_000) {
            0..=2 => self.becomes(home, Does::Nothing),
            3..=5 => self.becomes(home, Does::Refuses),
            6..=20 => self.becomes(home, Does::Hears),
            21..=100 => self.adds(home),
            101..=120 => self.hurry(home)?,
            _ => {}
        }
        Ok(())
    }

    fn adds(&mut self, home: usize) {
        let slot = Slot(home as u16);
        self.last += 1;
        let number = self.last;
        let message = match self.dice.roll(4) {
            0 => Message::CancelChange(Kept { slot, sequence: Sequence(number) }),
            1 => Message::Times(InodeId::new(slot, self.dice.roll(3))),
            _ => Message::LeaveBarrier(
                slot,
                LeaveBarrier { name: b"b".to_vec(), member: number as u32, wait: 1 },
            ),
        };
        let subject = message.subject();
        if self.pending.add(message, self.clock()) == Added::TooMuch {
            return;
        }
        self.tally.pending += 1;
        let waiting = Waiting { number, added_at: self.now, waits_before: self.waits };
        self.waiting.entry(subject).or_default().push(waiting);
    }

    /// A thread must not say anything new before a subject is told.
    fn hurry(&mut self, home: usize) -> Result<(), String> {
        let subject = Subject::Barriers(Slot(home as u16));
        let taken = self.pending.take_up(subject);
        let both = self.bug == OutboxBug::TellsTwiceAtOnce && taken == TakenUp::ByAnother;
        if taken == TakenUp::ByCaller || both {
            self.tally.hurried += 1;
            self.attempt(subject, None)?;
        }
        Ok(())
    }

    /// Sends the next message about a subject that is taken up, or puts that down.
    fn attempt(&mut self, subject: Subject, round: Option<u64>) -> Result<(), String> {
        let (now, home) = (self.now, home_of(subject));
        let Some(message) = self.pending.next_of(subject, round) else {
            self.pending.put_down(subject, false, self.clock());
            return Ok(());
        };
        if self.attempts.iter().any(|attempt| attempt.subject == subject) {
            return Err(format!("two tell {subject:?} at once"));
        }
        let does = self.homes[home];
        // An answer may be lost.
        let answered = does == Does::Hears && !(now < TROUBLE_MILLIS && self.dice.percent(3));
        let takes = match (does, answered) {
            (Does::Hears, true) | (Does::Refuses, _) => 1 + self.dice.roll(3),
            _ => PATIENCE_MILLIS,
        };
        if does == Does::Hears {
            self.receive(subject, &message)?;
        } else {
            self.tally.failed += 1;
        }
        if self.bug == OutboxBug::CountsSentAsAcknowledged {
            self.pending.acknowledged(subject);
        }
        self.attempts.push(Attempt { subject, round, over: now + takes, took: takes, answered });
        Ok(())
    }

    /// A home receives a message.
    fn receive(&mut self, subject: Subject, message: &Message) -> Result<(), String> {
        let (now, home) = (self.now, home_of(subject));
        let waiting = self.waiting.entry(subject).or_default();
        let number = match message {
            Message::CancelChange(kept) => kept.sequence.0,
            Message::LeaveBarrier(_, leave) => leave.member.into(),
            // It says all that there is by now.
            _ => waiting.last().map_or(0, |last| last.number),
        };
        let is_sign = matches!(message, Message::Times(_));
        self.tally.received += 1;
        let count = waiting.iter().take_while(|waiting| waiting.number <= number).count();
        if count == 0 {
            self.tally.again += 1;
            return Ok(());
        }
        if count > 1 && !is_sign {
            return Err(format!("{subject:?} is told out of its order"));
        }
        for Waiting { added_at, waits_before, .. } in waiting.drain(..count) {
            let lived = self.since[home] + FAILURE_COUNTS_MILLIS < added_at || self.since[home] == 0;
            let failed = self.failed_at[home].is_some_and(|at| at + FAILURE_COUNTS_MILLIS > added_at);
            let within = RECEIVED_WITHIN_MILLIS + (self.waits - waits_before);
            if lived && !failed && now > added_at + within {
                return Err(format!("{subject:?} was added at {added_at} ms, and its home answers"));
            }
        }
        Ok(())
    }

    fn end_attempts(&mut self) -> Result<(), String> {
        let (over, going) =
            std::mem::take(&mut self.attempts).into_iter().partition(|one: &Attempt| one.over <= self.now);
        self.attempts = going;
        for Attempt { subject, round, took, answered, .. } in Vec::from_iter(over as Vec<Attempt>) {
            let home = home_of(subject);
            if answered {
                self.heart_failed_at[home] = None;
                if self.bug != OutboxBug::CountsSentAsAcknowledged {
                    self.pending.acknowledged(subject);
                }
                self.attempt(subject, round)?;
                continue;
            }
            self.failed_at[home] = Some(self.now);
            self.silent[home] |= self.homes[home] != Does::Refuses;
            if round.is_some() {
                self.heart_failed_at[home] = Some(self.now);
                self.waits += took;
            }
            match self.bug {
                OutboxBug::KeepsSubjects => continue,
                OutboxBug::RepeatsLater => {
                    if let Some(message) = self.pending.next_of(subject, None) {
                        self.pending.acknowledged(subject);
                        self.pending.add(message, self.clock());
                    }
                }
                _ => {}
            }
            let unanswered = self.bug != OutboxBug::ForgetsFailures;
            self.pending.put_down(subject, unanswered, self.clock());
        }
        Ok(())
    }

    fn heart_is_telling(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.round.is_some())
    }

    /// Heartbeats tell which homes answer.
    fn heart_beats(&mut self) -> Result<(), String> {
        if self.heart_is_telling() || self.now < self.beat_at {
            return Ok(());
        }
        for (silent, does) in self.silent.iter_mut().zip(&self.homes) {
            *silent = *does == Does::Nothing;
        }
        if self.bug != OutboxBug::NeverNotesLife {
            self.pending.note_signs_of_life(self.clock());
        }
        self.beat_at = self.now + limits::HEARTBEAT_MILLIS;
        if self.bug == OutboxBug::SleepsUntilTheBeat {
            self.begin_round();
        }
        Ok(())
    }

    fn begin_round(&mut self) {
        let until = self.beat_at.max(self.now + ROUND_LONGEST_MILLIS);
        self.round = Some((self.pending.begin_round(), until));
    }

    /// The heart tells one subject after the other.
    fn heart_tells(&mut self) -> Result<(), String> {
        if self.heart_is_telling() {
            return Ok(());
        }
        let is_due = self.pending.wake_at().is_some_and(|at| at <= self.clock());
        if self.round.is_none() && is_due && self.bug != OutboxBug::SleepsUntilTheBeat {
            self.begin_round();
        }
        let Some((round, until)) = self.round else { return Ok(()) };
        let silent = self.silent.clone();
        let asks_all = self.bug == OutboxBug::AsksTheSilent;
        let is_silent =
            |home: Home| matches!(home, Home::Slot(slot) if silent[usize::from(slot.0)] && !asks_all);
        let next =
            (self.now < until).then(|| self.pending.take_up_next(round, self.clock(), is_silent)).flatten();
        let Some(subject) = next else {
            self.round = None;
            return Ok(());
        };
        let home = home_of(subject);
        if self.silent[home] {
            return Err(format!("home {home} is silent, and asked"));
        }
        if self.heart_failed_at[home].is_some_and(|at| self.now < at + PAUSE_LEAST_MILLIS)
            && self.homes[home] != Does::Hears
        {
            return Err(format!("home {home} did not hear, and is asked again at once"));
        }
        self.attempt(subject, Some(round))
    }
}

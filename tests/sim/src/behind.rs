//! Slots that are delegated, in virtual time: the table of a server ([`ramlace_server::pure::DelegationDesk`]) with its slots' states, the table of a
//! mount that promises changes there ([`ramlace_client::pure::AllPromises`]), another session that asks for the slots, and a network that delays and loses.
//! The mount is stopped at times.
//!
//! What holds: somebody else is answered 2.5 s after it asked, whatever the mount does, and then the mount has none of that server's slots any more,
//! so that nobody waits for it again; nothing that was promised before is done after that answer; a mount that is not stopped loses nothing, and
//! keeps nobody waiting for longer than a message takes; each change that was promised is done once, in its order, or its mount learns that it is not;
//! and each file that was promised is the inode that was promised, although other creates are sent by themselves.
//! A [`BehindBug`] planted in what a server or a mount must do for the tables must be found.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, InodeId, Sequence, SessionId, Slot, Timestamp, limits};
use ramlace_client::pure::{AllPromises, Due, Promise, Version};
use ramlace_namespace::{Command, Delegation, Op, Origin, SlotState};
use ramlace_server::pure::DelegationDesk;
use ramlace_wire::Kind;
use ramlace_wire::leases::DelegationRecall;

use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::tally::tally;

const MOUNT: SessionId = SessionId([1; 16]);
const SLOTS: u16 = 3;
/// How long there is trouble, in virtual time, and a run.
const TROUBLE_MILLIS: u64 = 30_000;
const RUN_MILLIS: u64 = 45_000;
/// SEMANTICS 142.3.
const WAITS_MILLIS_MAX: u64 = 2_500;
/// How often the server looks which holders to notify again.
const WAKE_MILLIS: u64 = 5;
/// How often the mount's thread looks.
const LOOK_MILLIS: u64 = 25;
/// The longest delay of a message, and how long the mount waits for an answer.
const DELAY_MILLIS_MAX: u64 = 30;
const PATIENCE_MILLIS: u64 = 2_000;
/// How many creates of one slot are sent by themselves at once.
const ASKING_MAX: usize = 2;
/// A mount that runs has given a slot back by then: it is notified, looks, sends what is pending, and gives back.
const GIVEN_BACK_MILLIS: u64 = 8 * DELAY_MILLIS_MAX + 12 * LOOK_MILLIS;

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BehindBug {
    /// None.
    None,
    /// Each look at a slot that is delegated begins the wait anew.
    WaitsAnew,
    /// A holder that does not answer loses the slot that was wanted, and keeps its others.
    WaitsForEach,
    /// Nobody waits for a holder.
    AnswersAtOnce,
    /// What was promised by a delegation that is over is done all the same.
    DoesWhatIsOver,
    /// The holder is notified once, and never again.
    NotifiesOnce,
    /// A holder gives back a slot in which something is pending.
    GivesBackFirst,
    /// A holder that receives a recall does nothing about it.
    KeepsSlots,
    /// What was not answered counts as answered.
    CountsSentAsDone,
    /// What is sent again is done again.
    DoesTwice,
    /// A create asks for a slot before what was promised there is sent.
    AsksWhilePending,
    /// What a create was answered counts as known, although another was under way when it was asked.
    KnowsBesideOthers,
}

impl BehindBug {
    /// All that can be planted.
    pub const ALL: [BehindBug; 11] = [
        BehindBug::WaitsAnew,
        BehindBug::WaitsForEach,
        BehindBug::AnswersAtOnce,
        BehindBug::DoesWhatIsOver,
        BehindBug::NotifiesOnce,
        BehindBug::GivesBackFirst,
        BehindBug::KeepsSlots,
        BehindBug::CountsSentAsDone,
        BehindBug::DoesTwice,
        BehindBug::AsksWhilePending,
        BehindBug::KnowsBesideOthers,
    ];
}

tally! {
    /// How much has happened.
    BehindTally {
        /// Changes that were promised.
        promised,
        /// Of these, some that were refused.
        refused,
        /// Times that a slot was delegated.
        delegated,
        /// Times that somebody waited for the mount.
        waited,
        /// Of these, some until its time was over.
        ran_out,
        /// Times that the mount was stopped.
        stopped,
        /// Messages that were lost.
        lost,
    }
}

/// A create that was promised: its number, and the inode that it makes.
#[derive(Clone, Copy, Debug)]
struct Change {
    number: u64,
    makes: u64,
}

/// What the mount says to the server.
#[derive(Clone, Debug)]
enum Says {
    /// A create that is sent by itself, and asks for the slot.
    Wants {
        version: Option<Version>,
    },
    /// What it has promised, by a delegation.
    Sends {
        delegation: u64,
        changes: Vec<Change>,
    },
    GivesBack {
        delegation: u64,
    },
}

/// What the server answers.
#[derive(Clone, Debug)]
enum Answer {
    /// By which delegation the slot is the mount's, and which inode the next create makes there.
    Wanted {
        version: Option<Version>,
        number: Option<u64>,
        next: u64,
    },
    /// Which of the changes were done; the others were refused.
    Sent {
        done: Vec<bool>,
    },
    GivenBack {
        delegation: u64,
    },
}

enum Event {
    /// A program of the mount makes a file.
    Makes,
    /// The mount's thread looks what is due.
    Looks,
    /// Somebody else asks for a slot.
    Asks,
    Arrives {
        slot: Slot,
        call: u64,
        says: Says,
    },
    Answered {
        slot: Slot,
        call: u64,
        answer: Answer,
    },
    /// The mount waits for this answer no longer.
    TimesOut {
        slot: Slot,
        call: u64,
    },
    /// It learns what it is to give back.
    Notified(Vec<DelegationRecall>),
    /// The server looks at its clock, and which sessions wait for which; again a moment later.
    Wakes {
        again: bool,
    },
    /// The mount is stopped.
    Stops,
}

impl Change {
    fn of(promise: &Promise) -> Change {
        let number = promise.body.as_slice().try_into().expect("as it was promised");
        Change { number: u64::from_le_bytes(number), makes: promise.inode.counter() }
    }
}

struct Waiting {
    slot: Slot,
    asked_at: u64,
    until: u64,
}

struct Run {
    dice: Dice,
    bug: BehindBug,
    /// The mount is never stopped, and no message is lost.
    gentle: bool,
    agenda: Agenda<Event>,
    desk: DelegationDesk,
    slots: Vec<SlotState>,
    /// By slot: the inode that the next create makes.
    next: Vec<u64>,
    promises: AllPromises,
    /// In which version something is known of a slot: the inode that the next create makes.
    known: BTreeMap<Slot, (Version, u64)>,
    /// The mount's calls that are under way.
    calls: BTreeMap<u64, Says>,
    last_call: u64,
    /// By slot: how many creates ask for it.
    asking: BTreeMap<Slot, usize>,
    stopped_until: u64,
    waiting: Vec<Waiting>,
    notified_once: bool,
    last: u64,
    /// What the mount has promised and has no answer for: by number, in which slot and when.
    pending: BTreeMap<u64, (Slot, u64)>,
    /// What was done in each slot, in its order; when somebody else was answered last.
    done: BTreeMap<Slot, Vec<u64>>,
    answered_at: BTreeMap<Slot, u64>,
    tally: BehindTally,
}

/// Runs a seed to its end; what does not hold. Seeds that are even are gentle.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run_behind(seed: u64, bug: BehindBug) -> Result<BehindTally, String> {
    let mut run = Run {
        dice: Dice(seed),
        bug,
        gentle: seed.is_multiple_of(2),
        agenda: Agenda::default(),
        desk: DelegationDesk::default(),
        slots: (0..SLOTS).map(|slot| SlotState::new(Slot(slot), u32::from(SLOTS), Epoch(1), 7)).collect(),
        next: vec![1; usize::from(SLOTS)],
        promises: AllPromises::default(),
        known: BTreeMap::new(),
        calls: BTreeMap::new(),
        last_call: 0,
        asking: BTreeMap::new(),
        stopped_until: 0,
        waiting: Vec::new(),
        notified_once: false,
        last: 0,
        pending: BTreeMap::new(),
        done: BTreeMap::new(),
        answered_at: BTreeMap::new(),
        tally: BehindTally::default(),
    };
    run.run().map_err(|what| format!("at {} ms: {what}", run.agenda.now))?;
    Ok(run.tally)
}

impl Run {
    fn run(&mut self) -> Result<(), String> {
        self.agenda.at(1, Event::Makes);
        self.agenda.at(1, Event::Looks);
        self.agenda.at(1, Event::Wakes { again: true });
        self.agenda.at(300, Event::Asks);
        if !self.gentle {
            self.agenda.at(500, Event::Stops);
        }
        while let Some(event) = self.agenda.next() {
            if self.agenda.now > RUN_MILLIS {
                break;
            }
            // What comes to a mount that is stopped waits there.
            let is_of_mount =
                !matches!(event, Event::Asks | Event::Arrives { .. } | Event::Wakes { .. } | Event::Stops);
            if is_of_mount && self.agenda.now < self.stopped_until {
                self.agenda.at(self.stopped_until, event);
                continue;
            }
            match event {
                Event::Makes => self.makes(),
                Event::Looks => self.looks(),
                Event::Asks => self.asks()?,
                Event::Arrives { slot, call, says } => self.arrives(slot, call, says)?,
                Event::Answered { slot, call, answer } => self.answered(slot, call, answer)?,
                Event::TimesOut { slot, call } => self.times_out(slot, call),
                Event::Notified(recalls) => self.notified(&recalls),
                Event::Wakes { again } => self.wakes(again)?,
                Event::Stops => self.stops(),
            }
        }
        match self.pending.first_key_value() {
            Some((number, _)) => Err(format!("nobody hears what became of {number}")),
            None => Ok(()),
        }
    }

    fn is_calm(&self) -> bool {
        self.agenda.now > TROUBLE_MILLIS
    }

    fn slot(&mut self) -> Slot {
        Slot(self.dice.roll(u64::from(SLOTS)) as u16)
    }

    /// How long a message takes; none where it is lost.
    fn delay(&mut self) -> Option<u64> {
        let is_lost = !self.gentle && !self.is_calm() && self.dice.percent(3);
        self.tally.lost += u64::from(is_lost);
        (!is_lost).then(|| 1 + self.dice.roll(DELAY_MILLIS_MAX))
    }

    // ---- the mount ----

    fn makes(&mut self) {
        if self.is_calm() {
            return;
        }
        let slot = self.slot();
        let now = self.agenda.instant();
        let number = self.last + 1;
        let known = self.known.get(&slot).copied();
        let promise = Promise {
            kind: Kind::Create,
            inode: InodeId::new(slot, known.map_or(0, |(_, next)| next)),
            directory: None,
            makes: true,
            at: Timestamp { nanos: 0 },
            body: number.to_le_bytes().to_vec(),
            answer: Vec::new(),
            kept: None,
            number: 0,
        };
        let is_promised =
            known.is_some_and(|(version, _)| self.promises.promise(slot, version, promise, now).is_ok());
        if is_promised {
            self.known.entry(slot).and_modify(|(_, next)| *next += 1);
            self.last = number;
            self.pending.insert(number, (slot, self.agenda.now));
            self.tally.promised += 1;
        } else if self.promises.is_at_rest(slot) || self.bug == BehindBug::AsksWhilePending {
            let asking = self.asking.entry(slot).or_default();
            if *asking < ASKING_MAX {
                *asking += 1;
                let alone = self.promises.begin_asking(slot);
                let beside = self.bug == BehindBug::KnowsBesideOthers;
                let version = alone.or_else(|| self.promises.version(slot).filter(|_| beside));
                self.says(slot, Says::Wants { version });
            }
        }
        let next = 1 + self.dice.roll(120);
        self.agenda.after(next, Event::Makes);
    }

    fn says(&mut self, slot: Slot, says: Says) {
        self.last_call += 1;
        let call = self.last_call;
        self.calls.insert(call, says.clone());
        if let Some(delay) = self.delay() {
            self.agenda.after(delay, Event::Arrives { slot, call, says });
        }
        self.agenda.after(PATIENCE_MILLIS, Event::TimesOut { slot, call });
    }

    fn looks(&mut self) {
        match self.promises.due(self.agenda.instant(), |_| true) {
            Some((slot, Due::Send)) if self.promises.begin_sending(slot) => {
                let (delegation, waiting) = self.promises.sent_now(slot).expect("something is pending there");
                let changes = waiting.iter().map(Change::of).collect();
                self.says(slot, Says::Sends { delegation, changes });
            }
            Some((slot, Due::GiveBack(number))) if self.promises.begin_giving_back(slot, number) => {
                self.says(slot, Says::GivesBack { delegation: number });
            }
            _ => {}
        }
        self.agenda.after(LOOK_MILLIS, Event::Looks);
    }

    fn notified(&mut self, recalls: &[DelegationRecall]) {
        if self.bug == BehindBug::GivesBackFirst {
            for recall in recalls {
                self.says(recall.slot, Says::GivesBack { delegation: recall.number });
            }
        }
        if self.bug != BehindBug::KeepsSlots {
            self.promises.want_back(recalls);
        }
    }

    fn times_out(&mut self, slot: Slot, call: u64) {
        let Some(says) = self.calls.remove(&call) else { return };
        let now = self.agenda.instant();
        match says {
            Says::Wants { version } => {
                self.asking.entry(slot).and_modify(|asking| *asking -= 1);
                self.promises.end_asking(slot, version, None, now);
            }
            Says::Sends { changes, .. } => {
                if self.bug == BehindBug::CountsSentAsDone {
                    self.promises.answered(slot, changes.len());
                }
                self.promises.end_sending(slot, now);
            }
            Says::GivesBack { .. } => self.promises.end_sending(slot, now),
        }
    }

    fn answered(&mut self, slot: Slot, call: u64, answer: Answer) -> Result<(), String> {
        // What comes too late is not waited for any more.
        if self.calls.remove(&call).is_none() {
            return Ok(());
        }
        let now = self.agenda.instant();
        match answer {
            Answer::Wanted { version, number, next } => {
                self.asking.entry(slot).and_modify(|asking| *asking -= 1);
                if let Some(version) = self.promises.end_asking(slot, version, number, now) {
                    self.known.insert(slot, (version, next));
                }
            }
            Answer::GivenBack { delegation } => self.promises.is_over(slot, delegation),
            Answer::Sent { done } => {
                if done.contains(&false) {
                    self.promises.is_lost(slot);
                }
                let answered = self.promises.answered(slot, done.len());
                self.promises.end_sending(slot, now);
                for (promise, done) in answered.iter().zip(done) {
                    let number = Change::of(promise).number;
                    self.pending.remove(&number);
                    if !done && self.gentle {
                        return Err(format!("a mount that runs has lost {number}"));
                    }
                    self.tally.refused += u64::from(!done);
                }
            }
        }
        Ok(())
    }

    fn stops(&mut self) {
        if self.is_calm() {
            return;
        }
        self.tally.stopped += 1;
        self.stopped_until = self.agenda.now + 1 + self.dice.roll(6_000);
        let next = self.stopped_until + self.dice.roll(4_000);
        self.agenda.at(next, Event::Stops);
    }

    // ---- the server ----

    fn delegation(&self, slot: Slot) -> Option<Delegation> {
        self.slots[usize::from(slot.0)].delegation()
    }

    fn apply(&mut self, slot: Slot, op: Op) {
        let now = Timestamp { nanos: self.agenda.now as i64 * 1_000_000 };
        self.slots[usize::from(slot.0)].apply(&Command { now, origin: Origin::Server, op });
    }

    fn arrives(&mut self, slot: Slot, call: u64, says: Says) -> Result<(), String> {
        let held = self.delegation(slot);
        let answer = match says {
            Says::Wants { version } => {
                let rests = self.desk.rests(slot, self.agenda.instant());
                if held.is_none() && !rests && self.waiting.iter().all(|waiting| waiting.slot != slot) {
                    self.apply(slot, Op::Delegate { session: MOUNT });
                    self.tally.delegated += 1;
                }
                let next = &mut self.next[usize::from(slot.0)];
                *next += 1;
                Answer::Wanted { version, next: *next, number: self.delegation(slot).map(|held| held.number) }
            }
            Says::Sends { delegation, changes } => {
                let is_held = held.is_some_and(|held| held.number == delegation);
                let done = changes
                    .into_iter()
                    .map(|change| self.does(slot, change, is_held))
                    .collect::<Result<_, _>>()?;
                Answer::Sent { done }
            }
            Says::GivesBack { delegation } => {
                if let Some(held) = held.filter(|held| held.number == delegation) {
                    self.end_delegation(slot, held)?;
                }
                Answer::GivenBack { delegation }
            }
        };
        if let Some(delay) = self.delay() {
            self.agenda.after(delay, Event::Answered { slot, call, answer });
        }
        Ok(())
    }

    /// Does one change; whether that is so, now or before.
    fn does(&mut self, slot: Slot, change: Change, is_held: bool) -> Result<bool, String> {
        let Change { number, makes } = change;
        let done = self.done.entry(slot).or_default();
        if done.contains(&number) && self.bug != BehindBug::DoesTwice {
            return Ok(true);
        }
        if !is_held && self.bug != BehindBug::DoesWhatIsOver {
            return Ok(false);
        }
        if done.last().is_some_and(|last| *last >= number) {
            return Err(format!("{number} is done behind {done:?}"));
        }
        done.push(number);
        let next = &mut self.next[usize::from(slot.0)];
        if *next != makes {
            return Err(format!(
                "{number} was promised as inode {makes} of {slot}, where the next is {next}"
            ));
        }
        *next += 1;
        let promised_at = self.pending.get(&number).map_or(0, |(_, at)| *at);
        match self.answered_at.get(&slot) {
            Some(answered) if promised_at < *answered => Err(format!(
                "{number} was promised at {promised_at}, and somebody was answered at {answered}"
            )),
            _ => Ok(true),
        }
    }

    fn end_delegation(&mut self, slot: Slot, held: Delegation) -> Result<(), String> {
        self.apply(slot, Op::EndDelegation { number: held.number, acknowledged_below: Sequence(0) });
        self.desk.is_over(slot, held);
        let (now, over): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.slot != slot);
        self.waiting = now;
        over.into_iter().try_for_each(|waiting| self.answers(slot, waiting.asked_at))
    }

    /// Somebody else is answered.
    fn answers(&mut self, slot: Slot, asked_at: u64) -> Result<(), String> {
        let waited = self.agenda.now - asked_at;
        self.answered_at.insert(slot, self.agenda.now);
        let most = if self.gentle { GIVEN_BACK_MILLIS } else { WAITS_MILLIS_MAX };
        if waited > most {
            return Err(format!("somebody waited for {waited} ms for {slot}"));
        }
        Ok(())
    }

    fn asks(&mut self) -> Result<(), String> {
        let next = if self.is_calm() { 1_000 } else { 1 + self.dice.roll(1_500) };
        self.agenda.after(next, Event::Asks);
        let slot = self.slot();
        match self.delegation(slot).filter(|_| self.bug != BehindBug::AnswersAtOnce) {
            None => self.answers(slot, self.agenda.now),
            Some(held) => {
                self.tally.waited += 1;
                let now = self.agenda.instant();
                let until =
                    self.desk.want(slot, held, now).duration_since(now).as_millis() as u64 + self.agenda.now;
                self.waiting.push(Waiting { slot, asked_at: self.agenda.now, until });
                self.agenda.at(until, Event::Wakes { again: false });
                self.tells();
                Ok(())
            }
        }
    }

    /// Tells the mount what it is to give back, as far as it was not notified just now.
    fn tells(&mut self) {
        if self.bug == BehindBug::NotifiesOnce && self.notified_once {
            return;
        }
        let recalls = self.desk.tell(MOUNT, self.agenda.instant());
        if recalls.is_empty() {
            return;
        }
        self.notified_once = true;
        if let Some(delay) = self.delay() {
            self.agenda.after(delay, Event::Notified(recalls));
        }
    }

    /// A holder that was waited for until now is waited for no longer.
    fn wakes(&mut self, again: bool) -> Result<(), String> {
        if again {
            self.agenda.after(WAKE_MILLIS, Event::Wakes { again });
        }
        self.tells();
        let now = self.agenda.now;
        if self.bug == BehindBug::WaitsAnew {
            let looks = self.dice.percent(1);
            let anew = now + limits::DELEGATION_RECALL_MILLIS_MAX;
            self.waiting.iter_mut().filter(|_| looks).for_each(|waiting| waiting.until = anew);
        }
        let Some(slot) = self.waiting.iter().find(|waiting| waiting.until <= now).map(|waiting| waiting.slot)
        else {
            return Ok(());
        };
        self.tally.ran_out += 1;
        let ends = (0..SLOTS).map(Slot).filter(|each| self.bug != BehindBug::WaitsForEach || *each == slot);
        let held: Vec<(Slot, Delegation)> =
            ends.filter_map(|slot| Some((slot, self.delegation(slot)?))).collect();
        held.into_iter().try_for_each(|(slot, held)| self.end_delegation(slot, held))?;
        let kept = (0..SLOTS).map(Slot).find(|slot| self.delegation(*slot).is_some());
        kept.map_or(Ok(()), |slot| Err(format!("{slot} is kept for a mount that did not answer in time")))
    }
}

const _: () = assert!(limits::DELEGATION_RECALL_MILLIS_MAX == WAITS_MILLIS_MAX);

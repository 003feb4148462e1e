//! Lanes against a model: a file's home, which truncates, extends and promotes, a client that writes and repeats itself,
//! and messages that come late, twice or not at all. The model says what each byte must be.
//!
//! The driver below does what the crate requires of a server. With a [`Bug`] planted it forgets one of those
//! things, or the table is changed behind its back: each must be found.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use ramlace_base::{
    ByteRange, Epoch, ErrorKind, Generation, InodeId, LaneId, Sequence, ServerId, SessionId, Slot,
};
use ramlace_cluster::Absent;
use ramlace_lanes::{
    CutPlan, LaneChange, LaneEffect, LaneTable, Residency, Standing, StoreStep, Traffic, WriteId,
};
use ramlace_wire::Layout;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::peer::InodeAnswer;

const SLOT: Slot = Slot(3);
const SLOTS: u32 = 32;
const ME: ServerId = ServerId(1);
const SESSION: SessionId = SessionId([7; 16]);
const LANE: LaneId = LaneId { inode: InodeId(99), lane: 0 };
const UNIT: u64 = 4;
const BYTES: u64 = 16;

fn id_of(sequence: u64, below: u64) -> WriteId {
    WriteId { session: SESSION, sequence: Sequence(sequence), outstanding: (sequence - below) as u32 }
}

/// Something that a server, or the table, may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A write of an old generation is taken.
    OldGeneration,
    /// A lane that has missed a truncation takes the next one's word for the smallest size.
    MissedCut,
    /// A cut leaves the bytes.
    CutKeepsBytes,
    /// A cut leaves the lane in its generation.
    CutKeepsGeneration,
    /// A retry is done again.
    NoWindow,
    /// A write is done and not remembered.
    Unremembered,
    /// A first attempt that comes late is not stopped by the retry.
    LateAttempt,
    /// Half of a lost chunk is taken.
    HalfChunk,
    /// A lost chunk reads as a hole.
    LossIsHole,
    /// A chunk that was written whole stays lost.
    NoRecovery,
    /// A late message promotes the bytes into the lane again.
    PromotesTwice,
    /// Bytes that have been given to the lane are asked of the home no more.
    PromotesUnasked,
    /// A passthrough that has ended begins.
    LatePassthrough,
    /// A dropped lane is known still.
    DropKeepsLane,
    /// A snapshot forgets the writes.
    SnapshotForgets,
    /// The result of a write that was cut short is not reported.
    Unreported,
}

const BUGS: &[Bug] = &[
    Bug::OldGeneration,
    Bug::MissedCut,
    Bug::CutKeepsBytes,
    Bug::CutKeepsGeneration,
    Bug::NoWindow,
    Bug::Unremembered,
    Bug::LateAttempt,
    Bug::HalfChunk,
    Bug::LossIsHole,
    Bug::NoRecovery,
    Bug::PromotesTwice,
    Bug::PromotesUnasked,
    Bug::LatePassthrough,
    Bug::DropKeepsLane,
    Bug::SnapshotForgets,
    Bug::Unreported,
];

#[derive(Clone, Debug)]
enum Act {
    Write {
        start: u64,
        length: u64,
    },
    /// By a client that has not received the last truncation.
    WriteStale {
        start: u64,
        length: u64,
    },
    /// The client got no answer to its last write.
    WriteAgain,
    /// A write whose bytes stop arriving: the client repeats it, the first attempt continues, or both.
    WriteInPieces {
        start: u64,
        length: u64,
        repeated: bool,
    },
    Punch {
        start: u64,
        length: u64,
    },
    Read {
        start: u64,
        length: u64,
    },
    /// The home truncates; the lane learns of it later, or from a request.
    Truncate {
        size: u64,
    },
    /// The lane's server had no room for the inline bytes, and they change before they leave again.
    PromoteAnew,
    Deliver {
        message: usize,
        stays: bool,
    },
    BeginPassthrough,
    EndPassthroughs,
    Restart,
    Delete,
}

fn acts() -> impl Strategy<Value = Act> {
    let part = (0..BYTES, 1..=BYTES);
    prop_oneof![
        8 => part.clone().prop_map(|(start, length)| Act::Write { start, length }),
        2 => (0..BYTES / UNIT).prop_map(|chunk| Act::Write { start: chunk * UNIT, length: UNIT }),
        3 => part.clone().prop_map(|(start, length)| Act::WriteStale { start, length }),
        3 => Just(Act::WriteAgain),
        4 => (part.clone(), any::<bool>())
            .prop_map(|((start, length), repeated)| Act::WriteInPieces { start, length, repeated }),
        3 => part.clone().prop_map(|(start, length)| Act::Punch { start, length }),
        6 => part.prop_map(|(start, length)| Act::Read { start, length }),
        4 => (0..BYTES).prop_map(|size| Act::Truncate { size }),
        2 => Just(Act::PromoteAnew),
        6 => (0..6usize, any::<bool>()).prop_map(|(message, stays)| Act::Deliver { message, stays }),
        2 => Just(Act::BeginPassthrough),
        1 => Just(Act::EndPassthroughs),
        2 => Just(Act::Restart),
        1 => Just(Act::Delete),
    ]
}

#[derive(Clone, Debug)]
enum Message {
    Cut { generation: Generation, length: u64 },
    Fill { generation: Generation, bytes: Vec<u8> },
    Drop,
}

/// What each byte of the file must be: `None` is lost.
type Bytes = BTreeMap<u64, Option<u8>>;

/// The file's home, and what is right.
struct Model {
    generation: Generation,
    size: u64,
    /// By generation.
    sizes: Vec<(Generation, u64)>,
    place: BytesPlace,
    /// Absent: zero.
    bytes: Bytes,
    passthroughs: u64,
    passthroughs_over: u64,
    gone: bool,
}

struct Driver {
    bug: Bug,
    table: LaneTable,
    traffic: Traffic,
    /// The store.
    stored: Option<BTreeMap<u64, u8>>,
    model: Model,
    absent: Absent,
    messages: Vec<Message>,
    sequence: u64,
    below: u64,
    last: Option<(u64, ByteRange, u8)>,
    told: usize,
}

type Checked = Result<(), TestCaseError>;

impl Driver {
    fn new(bug: Bug, lost: u64, inline: bool) -> Driver {
        let place = if inline { BytesPlace::Leaving } else { BytesPlace::Lanes };
        let size = if inline { 3 } else { lost };
        let inline_bytes = vec![201, 202, 203];
        let bytes = match inline {
            true => (0..3).map(|at| (at, Some(inline_bytes[at as usize]))).collect(),
            false => (0..lost).map(|at| (at, None)).collect(),
        };
        let mut driver = Driver {
            bug,
            table: LaneTable::default(),
            traffic: Traffic::default(),
            stored: None,
            model: Model {
                generation: Generation(2),
                size,
                sizes: vec![(Generation(2), size)],
                place,
                bytes,
                passthroughs: 0,
                passthroughs_over: 0,
                gone: false,
            },
            absent: if lost > 0 && !inline { Absent::Lost } else { Absent::Hole },
            messages: Vec::new(),
            sequence: 0,
            below: 1,
            last: None,
            told: 0,
        };
        if inline {
            driver.messages = vec![Message::Fill { generation: Generation(2), bytes: inline_bytes }; 2];
        }
        driver
    }

    fn answer(&self, since: Generation) -> Option<InodeAnswer> {
        let later = self.model.sizes.iter().filter(|(generation, _)| *generation > since);
        let layout =
            Layout { stripe_unit: UNIT, width: 1, base_slot: SLOT, stride: 1, copies: 1, created: Epoch(1) };
        (!self.model.gone).then(|| InodeAnswer {
            generation: self.model.generation,
            size: self.model.size,
            smallest_size: later.map(|(_, size)| *size).min(),
            layout,
            place: self.model.place,
            kept_by: Vec::new(),
        })
    }

    fn commit(&mut self, change: LaneChange) {
        let step = change.bytes();
        if let Some(StoreStep::Cut { length, .. }) = step
            && self.bug != Bug::CutKeepsBytes
            && let Some(stored) = &mut self.stored
        {
            stored.split_off(&length);
        }
        if let Some(StoreStep::Remove { .. }) = step {
            self.stored = None;
        }
        let change = match (self.bug, change) {
            (Bug::CutKeepsGeneration, LaneChange::Cut { lane, length, .. }) => {
                let generation = self.table.get(lane).unwrap().generation;
                LaneChange::Cut { lane, generation, length }
            }
            (Bug::Unremembered, LaneChange::Written { lane, range, .. }) => {
                LaneChange::Written { lane, range, id: WriteId::default() }
            }
            (Bug::NoRecovery, LaneChange::Written { lane, id, .. }) => {
                LaneChange::Written { lane, range: ByteRange { start: 0, end: 0 }, id }
            }
            (Bug::DropKeepsLane, LaneChange::Dropped { .. }) => return,
            (_, change) => change,
        };
        // A log may be replayed: the same changes give the same table.
        let bytes = postcard::to_stdvec(&change).unwrap();
        let mut replayed = self.table.clone();
        let effect = self.table.apply(&change);
        assert_eq!(replayed.apply(&postcard::from_bytes(&bytes).unwrap()), effect);
        assert_eq!(replayed, self.table);
        if let Some(effect) = effect {
            self.tell(effect);
        }
    }

    /// A session waits for every change of every byte.
    fn tell(&mut self, effect: LaneEffect) {
        self.told += self.traffic.note(effect).len();
    }

    fn watch(&mut self) {
        let range = ByteRange { start: 0, end: u64::MAX };
        let place = (LANE.inode, Some(LANE.lane));
        let now = self.traffic.ask(place, range, None, None, 1).unwrap().number;
        let waits = self.traffic.ask(place, range, Some(now), Some((SESSION, 1)), 1).unwrap();
        assert!(!waits.changed);
    }

    fn target(&self) -> LaneTarget {
        LaneTarget {
            lane: LANE,
            slot: SLOT,
            generation: self.model.generation,
            created: Epoch(1),
            permit: None,
        }
    }

    /// Brings the lane up to a request's generation; whether it is known then.
    fn admit(&mut self, target: &LaneTarget, writes: bool) -> Result<bool, ErrorKind> {
        for _ in 0..3 {
            let standing = match self.table.standing(target.lane, target.generation) {
                Err(_) if self.bug == Bug::OldGeneration => return Ok(true),
                other => other.map_err(|error| error.kind())?,
            };
            match standing {
                Standing::Current => return Ok(true),
                Standing::Unknown if !writes => return Ok(false),
                Standing::Unknown | Standing::Behind => {
                    let Some(since) = self.table.missed_since(LANE, target.generation) else { continue };
                    let answer = self.answer(since).ok_or(ErrorKind::Stale)?;
                    let change = self.table.bring_up(target, &answer, SLOTS, self.absent);
                    let change = change.map_err(|error| error.kind())?;
                    self.commit(change);
                }
            }
        }
        Err(ErrorKind::Busy)
    }

    fn store(&mut self, range: ByteRange, byte: u8) {
        let stored = self.stored.get_or_insert_default();
        for at in range.start..range.end {
            stored.insert(at, byte);
        }
        self.tell(LaneEffect::Changed { lane: LANE, range });
    }

    fn write(
        &mut self,
        target: &LaneTarget,
        sequence: u64,
        range: ByteRange,
        byte: u8,
    ) -> Result<(), ErrorKind> {
        self.admit(target, true)?;
        let done = self.table.is_done(SESSION, Sequence(sequence), Sequence(self.below));
        if done.map_err(|error| error.kind())? && self.bug != Bug::NoWindow {
            return Ok(());
        }
        let accepted = self.table.check_write(LANE, range, ME);
        if self.bug != Bug::HalfChunk {
            accepted.map_err(|error| error.kind())?;
        }
        self.store(range, byte);
        let finished = self.table.finish(target, range, id_of(sequence, self.below));
        match finished {
            Ok(change) => self.commit(change),
            Err(_) if self.bug == Bug::OldGeneration => {}
            Err(error) => return Err(error.kind()),
        }
        Ok(())
    }

    /// What the file has once a write was answered.
    fn expect(&mut self, range: ByteRange, byte: u8) {
        for at in range.start..range.end {
            self.model.bytes.insert(at, Some(byte));
        }
        self.model.size = self.model.size.max(range.end);
    }

    fn fresh(&mut self, start: u64, length: u64) -> (u64, ByteRange, u8) {
        self.sequence += 1;
        // What came before is acknowledged: a retry of it would be Stale.
        self.last = None;
        (
            self.sequence,
            ByteRange { start, end: (start + length).min(BYTES) },
            1 + (self.sequence % 190) as u8,
        )
    }

    /// Whether the model would take it: lost chunks are written whole.
    fn may_write(&self, range: ByteRange) -> bool {
        let lost_end = self.model.bytes.iter().filter(|(_, byte)| byte.is_none()).map(|(at, _)| at + 1).max();
        (range.start / UNIT..range.end.div_ceil(UNIT)).all(|chunk| {
            let (from, to) = (chunk * UNIT, (chunk + 1) * UNIT);
            let is_lost = |at: u64| self.model.bytes.get(&at) == Some(&None);
            let lost: Vec<u64> = (from..to).filter(|at| is_lost(*at)).collect();
            let touched = lost.iter().any(|at| (range.start..range.end).contains(at));
            !touched || (range.start <= from && range.end >= to.min(lost_end.unwrap_or(to)))
        })
    }

    fn run(&mut self, act: &Act) -> Checked {
        self.watch();
        let told = self.told;
        match *act {
            Act::Write { start, length } => {
                let (sequence, range, byte) = self.fresh(start, length);
                self.below = sequence;
                let may = self.may_write(range);
                let wrote = self.write(&self.target(), sequence, range, byte);
                self.check_write(wrote, may)?;
                self.last = None;
                if wrote.is_ok() {
                    prop_assert!(self.told > told, "a write is told to those who wait for it");
                    self.expect(range, byte);
                    self.last = Some((sequence, range, byte));
                }
            }
            Act::WriteStale { start, length } => self.write_stale(start, length)?,
            Act::PromoteAnew => {
                if self.model.place == BytesPlace::Leaving && !self.model.gone {
                    self.model.generation = self.model.generation.next();
                    let generation = self.model.generation;
                    self.model.sizes.push((generation, 3));
                    let bytes: Vec<u8> = (0..3).map(|at| 100 + at + 3 * (generation.0 % 40) as u8).collect();
                    self.model.bytes = (0..).zip(bytes.iter().map(|byte| Some(*byte))).collect();
                    self.messages.push(Message::Fill { generation, bytes });
                }
            }
            Act::WriteAgain => {
                let Some((sequence, range, byte)) = self.last else { return Ok(()) };
                let target = self.target();
                if self.model.gone || self.model.place != BytesPlace::Lanes {
                    return Ok(());
                }
                // Whatever came after it stays: it was done.
                let again = self.write(&target, sequence, range, byte ^ 0xff);
                prop_assert_eq!(again, Ok(()), "a retry is answered");
            }
            Act::WriteInPieces { start, length, repeated } => {
                self.write_in_pieces(start, length, repeated)?
            }
            Act::Punch { start, length } => {
                let (sequence, range, _) = self.fresh(start, length);
                self.below = sequence;
                if self.model.place != BytesPlace::Lanes {
                    return Ok(());
                }
                let target = self.target();
                let begun = self.admit(&target, false);
                let begun = match (begun, self.model.gone) {
                    (Err(ErrorKind::Stale), true) => return Ok(()),
                    (begun, _) => begun.map_err(|error| TestCaseError::fail(format!("{error:?}")))?,
                };
                prop_assert!(!self.table.is_done(SESSION, Sequence(sequence), Sequence(sequence)).unwrap());
                let has_lost = (range.start..range.end).any(|at| self.model.bytes.get(&at) == Some(&None));
                match self.table.residency(LANE, range, self.absent, begun) {
                    Residency::Here => {}
                    Residency::Hole => return Ok(()),
                    Residency::Lost => {
                        prop_assert!(has_lost || !begun);
                        return Ok(());
                    }
                }
                if let Some(stored) = &mut self.stored {
                    for at in range.start..range.end {
                        stored.remove(&at);
                    }
                }
                self.commit(LaneChange::Written { lane: LANE, range, id: id_of(sequence, sequence) });
                for at in range.start..range.end {
                    self.model.bytes.remove(&at);
                }
                self.last = None;
            }
            Act::Read { start, length } => {
                self.read(ByteRange { start, end: (start + length).min(BYTES) })?
            }
            Act::Truncate { size } => {
                if self.model.gone || self.model.place != BytesPlace::Lanes {
                    return Ok(());
                }
                let begins = self.absent == Absent::Lost && self.table.get(LANE).is_none();
                if begins {
                    // The home does not know which bytes were written, so all up to the size are lost.
                    for at in self.model.size..size {
                        self.model.bytes.insert(at, None);
                    }
                }
                self.model.generation = self.model.generation.next();
                self.model.size = size;
                self.model.sizes.push((self.model.generation, size));
                self.model.bytes.split_off(&size);
                let message = Message::Cut { generation: self.model.generation, length: size };
                if begins {
                    // The home answers when the lane has confirmed it.
                    self.deliver(&message);
                }
                self.messages.push(message);
            }
            Act::Deliver { message, stays } => {
                if self.messages.is_empty() {
                    return Ok(());
                }
                let at = message % self.messages.len();
                let message = if stays { self.messages[at].clone() } else { self.messages.remove(at) };
                self.deliver(&message);
            }
            Act::BeginPassthrough => {
                self.model.passthroughs += 1;
                self.begin_passthrough(self.model.passthroughs)?;
                if self.model.passthroughs_over > 0 {
                    self.begin_passthrough(self.model.passthroughs_over)?;
                }
            }
            Act::EndPassthroughs => {
                self.model.passthroughs_over = self.model.passthroughs;
                if let Some(change) = self.table.end_passthroughs(LANE, self.model.passthroughs_over) {
                    self.commit(change);
                }
                prop_assert!(!self.table.has_passthrough(LANE) || self.table.get(LANE).is_none());
            }
            Act::Restart => {
                if self.bug == Bug::SnapshotForgets {
                    self.table.end_session(SESSION);
                }
                let bytes = postcard::to_stdvec(&self.table).unwrap();
                self.table = postcard::from_bytes(&bytes).unwrap();
                self.traffic = Traffic::default();
            }
            Act::Delete => {
                self.model.gone = true;
                self.messages.push(Message::Drop);
            }
        }
        Ok(())
    }

    fn check_write(&self, wrote: Result<(), ErrorKind>, may: bool) -> Checked {
        match wrote {
            Ok(()) => {
                prop_assert!(self.model.place == BytesPlace::Lanes, "an inline file has no lane to write");
                prop_assert!(may, "half of a lost chunk was taken");
            }
            Err(ErrorKind::Lost) => prop_assert!(!may, "a write was refused for a loss that is none"),
            Err(ErrorKind::Stale) => prop_assert!(self.model.gone),
            Err(ErrorKind::Invalid) => prop_assert!(self.model.place != BytesPlace::Lanes),
            Err(other) => prop_assert!(false, "a write was refused: {other:?}"),
        }
        Ok(())
    }

    fn write_stale(&mut self, start: u64, length: u64) -> Checked {
        // Which bytes are lost then is the other acts' business.
        if self.model.sizes.len() < 2 || self.absent == Absent::Lost || self.model.place != BytesPlace::Lanes
        {
            return Ok(());
        }
        let generation = self.model.sizes[self.model.sizes.len() - 2].0;
        let (sequence, range, byte) = self.fresh(start, length);
        self.below = sequence;
        self.last = None;
        let target = LaneTarget { generation, ..self.target() };
        let known = self.table.get(LANE).map(|lane| lane.generation);
        match self.write(&target, sequence, range, byte) {
            Ok(()) => {
                prop_assert!(
                    known.is_some_and(|known| known <= generation),
                    "it was taken after the truncation"
                );
                // The truncation comes after it.
                let end = range.end.min(self.model.sizes.last().unwrap().1);
                for at in range.start..end {
                    self.model.bytes.insert(at, Some(byte));
                }
            }
            Err(kind) => prop_assert!(matches!(kind, ErrorKind::Retry | ErrorKind::Stale), "{:?}", kind),
        }
        Ok(())
    }

    /// A write whose bytes arrive slowly, with a retry or a truncation in between.
    fn write_in_pieces(&mut self, start: u64, length: u64, repeated: bool) -> Checked {
        let (sequence, range, byte) = self.fresh(start, length);
        let writer = (SESSION, Sequence(sequence));
        self.below = sequence;
        let (target, may) = (self.target(), self.may_write(range));
        if self.model.place != BytesPlace::Lanes || !may || self.admit(&target, true).is_err() {
            return Ok(());
        }
        prop_assert!(!self.table.is_done(SESSION, Sequence(sequence), Sequence(sequence)).unwrap());
        self.traffic.begin(LANE, writer, range);
        // The first byte is there.
        let first = ByteRange { start: range.start, end: (range.start + 1).min(range.end) };
        let stored = self.stored.get_or_insert_default();
        for at in first.start..first.end {
            stored.insert(at, byte);
        }
        self.watch();
        let told = self.told;
        if self.bug != Bug::Unreported {
            let replaced = self.traffic.replaced_by(LANE, writer, Sequence(sequence));
            prop_assert_eq!(replaced, Some(writer), "a retry finds its first attempt");
            let effect = self.traffic.end(LANE, writer).expect("it was under way");
            self.tell(effect);
        }
        prop_assert!(self.told > told, "what came of a write that was cut short is told");
        prop_assert_eq!(self.traffic.first_of(LANE), None);
        if repeated {
            prop_assert_eq!(self.write(&target, sequence, range, byte), Ok(()));
            if self.bug == Bug::LateAttempt {
                self.store(range, byte ^ 0xff);
            }
            self.expect(range, byte);
            self.last = Some((sequence, range, byte));
        } else {
            // Its client waits no more: what is there is not reported as done. The next write takes its place.
            let next = self.fresh(range.start, range.length());
            self.below = next.0;
            prop_assert_eq!(self.write(&target, next.0, next.1, next.2), Ok(()));
            let late = self.table.is_done(SESSION, Sequence(sequence), Sequence(sequence));
            prop_assert_eq!(late.unwrap_err().kind(), ErrorKind::Stale, "its late bytes are refused");
            self.expect(next.1, next.2);
            self.last = Some(next);
        }
        Ok(())
    }

    fn begin_passthrough(&mut self, number: u64) -> Checked {
        let begun = self.table.begin_passthrough(LANE, number, true);
        if number <= self.model.passthroughs_over && self.bug != Bug::LatePassthrough {
            let known = self.table.get(LANE).is_some_and(|lane| lane.passthroughs_over >= number);
            prop_assert!(begun.is_err() || !known);
            return Ok(());
        }
        let change = match begun {
            Err(_) if self.bug == Bug::LatePassthrough => {
                Some(LaneChange::PassthroughBegun { lane: LANE, number, stores: true })
            }
            other => other.map_err(|error| TestCaseError::fail(format!("{error:?}")))?,
        };
        if let Some(change) = change {
            self.commit(change);
            prop_assert!(self.table.has_passthrough(LANE));
            prop_assert!(
                number > self.table.get(LANE).unwrap().passthroughs_over,
                "a passthrough that is over began"
            );
        }
        Ok(())
    }

    fn deliver(&mut self, message: &Message) {
        match *message {
            Message::Cut { generation, length } => match self.table.cut(LANE, generation, length) {
                CutPlan::Nothing => {}
                CutPlan::BeginIfLost => {
                    if let Some(answer) = self.answer(Generation(0)).filter(|_| self.absent == Absent::Lost) {
                        let change = self.table.bring_up(&self.target(), &answer, SLOTS, self.absent);
                        self.commit(change.unwrap());
                    }
                }
                CutPlan::Cut(change) => self.commit(change),
                CutPlan::AskHome(_) if self.bug == Bug::MissedCut => {
                    self.commit(LaneChange::Cut { lane: LANE, generation, length: Some(length) });
                }
                CutPlan::AskHome(since) => {
                    // A file that is gone has no cuts any more.
                    if let Some(answer) = self.answer(since) {
                        self.commit(LaneTable::cut_as_answered(LANE, &answer));
                    }
                }
            },
            Message::Fill { generation, ref bytes } => {
                if !self.table.wants_promotion(LANE, generation) && self.bug != Bug::PromotesTwice {
                    return;
                }
                let answer = self.answer(Generation(0));
                let answer = match self.bug {
                    Bug::PromotesUnasked | Bug::PromotesTwice => {
                        answer.map(|answer| InodeAnswer { place: BytesPlace::Leaving, generation, ..answer })
                    }
                    _ => answer,
                };
                let change = answer.and_then(|answer| LaneTable::promote(LANE, generation, &answer));
                if let Some(change) = change {
                    self.stored = Some((0..).zip(bytes.iter().copied()).collect());
                    self.commit(change);
                    self.model.place = BytesPlace::Lanes;
                }
            }
            Message::Drop => self.commit(LaneChange::Dropped { lane: LANE }),
        }
    }

    fn read(&mut self, range: ByteRange) -> Checked {
        if self.model.place != BytesPlace::Lanes || self.model.gone {
            return Ok(());
        }
        let target = self.target();
        let begun = self.admit(&target, false).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
        let residency = self.table.residency(LANE, range, self.absent, begun && self.stored.is_some());
        let expected = |at: &u64| self.model.bytes.get(at).copied().unwrap_or(Some(0));
        let residency = match residency {
            Residency::Lost if begun && self.bug == Bug::LossIsHole => Residency::Hole,
            residency => residency,
        };
        match residency {
            // Of a lane that never began here the home knows the size: the lane alone cannot.
            Residency::Lost if !begun => {}
            // Loss is known by chunk: bytes next to a lost one may be.
            Residency::Lost => {
                let chunks = range.aligned_outward(UNIT);
                prop_assert!((chunks.start..chunks.end).any(|at| expected(&at).is_none()));
            }
            Residency::Hole => prop_assert!((range.start..range.end).all(|at| expected(&at) == Some(0))),
            Residency::Here => {
                let stored = self.stored.as_ref().expect("bytes are stored");
                for at in range.start..range.end {
                    prop_assert_eq!(stored.get(&at).copied().or(Some(0)), expected(&at), "byte {}", at);
                }
            }
        }
        Ok(())
    }
}

fn check(bug: Bug, lost: u64, inline: bool, acts: &[Act]) -> Checked {
    let mut driver = Driver::new(bug, lost, inline);
    for act in acts {
        driver.run(act)?;
    }
    // A read brings the lane up to date: not before it has missed something.
    for at in 0..BYTES {
        driver.read(ByteRange { start: at, end: at + 1 })?;
    }
    if driver.model.gone {
        driver.deliver(&Message::Drop);
        prop_assert!(
            driver.table.get(LANE).is_none() && driver.stored.is_none(),
            "a file that is gone leaves nothing"
        );
    }
    Ok(())
}

fn find(bug: Bug, cases: u32) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let strategy = (0..=BYTES, any::<bool>(), prop::collection::vec(acts(), 1..40));
    // The same histories each time: what was found is found again.
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&strategy, |(lost, inline, acts)| check(bug, lost, inline, &acts))
        .map_err(|failure| failure.to_string())
}

// SEMANTICS 18.2
#[test]
fn any_history_of_a_lane_agrees_with_the_model() {
    if let Err(failure) = find(Bug::None, 4000) {
        panic!("{failure}");
    }
}

#[test]
fn each_planted_bug_is_found() {
    for bug in BUGS {
        assert!(find(*bug, 20_000).is_err(), "{bug:?} was not found");
    }
}

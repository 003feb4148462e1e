//! Everything that must survive the process: the slots, each one value, and the sessions, rebuilt from the
//! newest snapshot and the log that follows it.
//!
//! Invariant: state changes only by [`Durable::commit`], which writes the record before it applies it (a
//! write-ahead log); a replay applies the very same records in the same order. Each slot, and the server
//! itself, counts its records: one that is missing or comes twice is damage.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Position, Result, Sequence, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneEffect, LaneTable, StoreStep};
use ramlace_namespace::{Effect, SlotState};
use ramlace_slot::{Counts, SlotChange, SlotValue};
use ramlace_store::{MetaFile, Store};

use crate::framing::{self, Damage, LOG_MAGIC, Records, Unreadable};
use crate::kept::Kept;
use crate::page_holders::PageHolders;
use crate::record::{At, Place, Record, Urgency};
use crate::sessions::Sessions;
use crate::snapshot::Snapshot;

/// A log shorter than this is not worth a snapshot, if the store can spare the memory.
const LOG_BYTES_MIN: u64 = 4 << 20;
/// In a small store the limit is its size divided by this: memory of the log is lost to files.
const LOG_FRACTION_OF_STORE: u64 = 64;
/// But at least this many bytes.
const LOG_BYTES_MIN_IN_SMALL: u64 = 256 << 10;
/// When the store is full, a log longer than this is replaced.
const LOG_BYTES_WORTH: u64 = 64 << 10;

/// The effects of records.
#[derive(Debug, Default)]
pub struct Effects {
    /// Effects of slots.
    pub names: Vec<(Slot, Effect)>,
    /// Effects on lanes.
    pub lanes: Vec<(Slot, LaneEffect)>,
    /// Steps on the bytes of lanes, to be done before anything else.
    store: Vec<StoreStep>,
}

/// The state of a server that outlives its process.
pub struct Durable {
    /// The connected sessions.
    pub sessions: Sessions,
    /// The slots whose primary this server is, since something first happened in them.
    pub(crate) slots: BTreeMap<Slot, SlotValue>,
    /// The sums over all slots.
    counts: Counts,
    /// There may be holders of leases.
    pub gives_leases: bool,
    /// The sessions whose kernels have pages.
    pub pages: PageHolders,
    /// What kept replies cost.
    pub kept: Kept,
    /// The number of the server's own records so far.
    pub(crate) position: Position,
    /// The log to which records go.
    pub(crate) log: MetaFile,
    /// Its number.
    pub(crate) log_number: u64,
    /// The number of the snapshot, and of the first log that a restart replays.
    pub(crate) base: u64,
    /// Bytes of the logs from there on, without the current one.
    pub(crate) older_logs_bytes: u64,
    /// When the logs have this many bytes a snapshot begins.
    pub(crate) compact_at_bytes: u64,
    /// Bytes of the last snapshot.
    pub(crate) snapshot_bytes: u64,
    /// The one under way.
    pub(crate) snapshot: Option<Snapshot>,
    buffer: Vec<u8>,
}

/// The bytes below which a log is not compacted.
pub fn log_bytes_min(store: &Store) -> u64 {
    (store.usage().size_bytes / LOG_FRACTION_OF_STORE).clamp(LOG_BYTES_MIN_IN_SMALL, LOG_BYTES_MIN)
}

impl Durable {
    /// Rebuilds the state from the store. The expiry of sessions starts anew.
    pub fn load(store: &mut Store, now: Instant) -> Result<Durable> {
        let names = store.meta_names()?;
        let newest = names.iter().filter_map(|name| numbered(name, "snapshot-")).max();
        let base = newest.unwrap_or(0);
        let mut logs: Vec<u64> = names.iter().filter_map(|name| numbered(name, "log-")).collect();
        logs.retain(|number| *number >= base);
        logs.sort_unstable();
        if logs.is_empty() {
            logs.push(base);
        }
        let log_number = *logs.last().expect("there is one");
        let mut durable = Durable {
            sessions: Sessions::default(),
            slots: BTreeMap::new(),
            counts: Counts::default(),
            gives_leases: false,
            pages: PageHolders::default(),
            kept: Kept::default(),
            position: Position::default(),
            log: store.meta_append_file(&log_name(log_number))?,
            log_number,
            base,
            older_logs_bytes: 0,
            compact_at_bytes: log_bytes_min(store),
            snapshot_bytes: 0,
            snapshot: None,
            buffer: Vec::new(),
        };
        if let Some(number) = newest {
            let snapshot = store.meta_append_file(&format!("snapshot-{number}"))?;
            let bytes = snapshot.read_all()?;
            durable.restore(&bytes, now).map_err(|reason| unreadable(snapshot.name(), reason))?;
            durable.snapshot_bytes = snapshot.length();
            durable.compact_at_bytes = log_bytes_min(store).max(2 * snapshot.length());
        }
        durable.replay_logs(store, &logs, now)?;
        durable.remove_other_files(store, &names)?;
        durable.end_forgotten_sessions(store, now)?;
        Ok(durable)
    }

    /// Replays the logs since the snapshot. Only the last one may have a torn tail.
    fn replay_logs(&mut self, store: &mut Store, logs: &[u64], now: Instant) -> Result<()> {
        let mut replay = Replay::default();
        for (at, number) in logs.iter().enumerate() {
            if *number != self.base + at as u64 {
                let gap = Damage { offset: 0, what: "a log before it is missing" };
                return Err(unreadable(&log_name(*number), gap.into()));
            }
            if *number == self.log_number {
                break;
            }
            let log = store.meta_append_file(&log_name(*number))?;
            let bytes = log.read_all()?;
            let replayed = self.replay(&mut replay, &bytes, now);
            let whole = replayed.map_err(|reason| unreadable(log.name(), reason))?;
            if whole != bytes.len() {
                let torn = Damage { offset: whole, what: "its end is missing, and another log follows it" };
                return Err(unreadable(log.name(), torn.into()));
            }
            self.older_logs_bytes += log.length();
        }
        let bytes = self.log.read_all()?;
        let replayed = self.replay(&mut replay, &bytes, now);
        let whole = replayed.map_err(|reason| unreadable(self.log.name(), reason))?;
        for step in replay.undone {
            // The process may have died before it was done. (A step that frees memory is done before its
            // record is written.)
            perform(store, step)?;
        }
        if whole < LOG_MAGIC.len() {
            self.log.cut(0)?;
            self.log.append_urgent(&LOG_MAGIC)?;
        } else {
            self.log.cut(whole as u64)?;
        }
        Ok(())
    }

    /// The end of a session and its effects on slots are several records: if only the first were written,
    /// writes the rest now.
    fn end_forgotten_sessions(&mut self, store: &mut Store, now: Instant) -> Result<()> {
        let stamp = crate::clock::now();
        let mut left: BTreeMap<SessionId, BTreeSet<Slot>> = BTreeMap::new();
        for (slot, value) in &self.slots {
            for session in value.sessions().filter(|session| !self.sessions.contains(*session)) {
                left.entry(session).or_default().insert(*slot);
            }
        }
        // One session after the other: a slot takes one record at a time.
        for (session, slots) in left {
            let ended =
                |slot| Record::Slot { slot, change: SlotChange::SessionEnded { session, now: stamp } };
            let records: Vec<Record> = slots.into_iter().map(ended).collect();
            match self.commit_all(store, &records, now) {
                // What is left takes no additional memory; the next start tries again.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    eprintln!("ramlace: what ended sessions have left in slots stays for now: {error}");
                    return Ok(());
                }
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Writes a record and applies it. Returns its position in the history of its place, and its effects.
    ///
    /// Errors: `NoSpace` when the store is full; then nothing has changed.
    pub fn commit(&mut self, store: &mut Store, record: &Record, now: Instant) -> Result<(At, Effects)> {
        let effects = self.commit_all(store, std::slice::from_ref(record), now)?;
        let place = record.place();
        Ok((At { place, position: self.position(place) }, effects))
    }

    /// Ends a session, and removes what it has left in each slot that knows it.
    ///
    /// Errors: as [`Durable::commit`].
    pub fn end_session(
        &mut self,
        store: &mut Store,
        session: SessionId,
        stamp: Timestamp,
        now: Instant,
    ) -> Result<Effects> {
        let change = SlotChange::SessionEnded { session, now: stamp };
        let knowing = self.slots.values().filter(|value| value.knows(session));
        let of_slot = |value: &SlotValue| Record::Slot { slot: value.slot(), change: change.clone() };
        // The server's own record comes first: if the process dies after it, the missing ones are found at
        // the next start.
        let first = std::iter::once(Record::SessionEnded { session, now: stamp });
        let records: Vec<Record> = first.chain(knowing.map(of_slot)).collect();
        self.commit_all(store, &records, now)
    }

    /// Writes records, at most one for each place, all or none of them, and applies them.
    fn commit_all(&mut self, store: &mut Store, records: &[Record], now: Instant) -> Result<Effects> {
        let places = || records.iter().map(Record::place).collect::<BTreeSet<Place>>().len();
        assert!(
            records.len() == 1 || places() == records.len(),
            "two records of one place would have one position"
        );
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        for record in records {
            framing::encode(record, self.position(record.place()).next(), &mut bytes)?;
        }
        for step in records.iter().filter_map(Record::frees) {
            perform(store, step)?;
        }
        let written =
            self.write(store, &bytes, records.iter().map(Record::urgency).max().unwrap_or_default());
        let length = bytes.len() as u64;
        self.buffer = bytes;
        written?;
        let mut effects = Effects::default();
        let applied = catch_unwind(AssertUnwindSafe(|| {
            records.iter().for_each(|record| self.apply(record, now, &mut effects));
        }));
        if let Err(bug) = applied {
            // A record that cannot be applied would end each further incarnation too; no client has learned
            // of it yet.
            let _ = self.log.cut(self.log.length() - length);
            resume_unwind(bug);
        }
        for step in effects.store.drain(..) {
            // Before a snapshot may say that it was done.
            perform(store, step).unwrap_or_else(|error| fatal(&error));
        }
        self.tend_snapshot(store);
        Ok(effects)
    }

    fn write(&mut self, store: &mut Store, bytes: &[u8], urgency: Urgency) -> Result<()> {
        let error = match self.append(bytes, urgency == Urgency::Urgent) {
            Err(error) if error.kind() == ErrorKind::NoSpace => error,
            appended => return appended,
        };
        if self.makes_room(store, &error) || urgency == Urgency::AtLast {
            self.append(bytes, urgency > Urgency::Ordinary)
        } else {
            Err(error)
        }
    }

    /// Frees memory of the log or of a snapshot in a full store. Returns whether there may be room now.
    fn makes_room(&mut self, store: &mut Store, full: &Error) -> bool {
        // A new snapshot needs as much room as the last one, or half of that.
        if store.usage().free_bytes >= self.snapshot_bytes / 2 {
            let is_worth_it = self.logs_bytes() > LOG_BYTES_WORTH;
            if is_worth_it {
                // In a full store compaction of the log can free memory.
                self.compact(store);
            }
            is_worth_it
        } else {
            let has_some = self.snapshot.is_some();
            if has_some {
                // The snapshot finds no room any more, and has memory that this record can use.
                self.abandon_snapshot(store, full);
            }
            has_some
        }
    }

    /// The number of records that a place has taken.
    pub fn position(&self, place: Place) -> Position {
        match place {
            Place::Server => self.position,
            Place::Slot(slot) => self.slots.get(&slot).map_or(Position::default(), SlotValue::position),
        }
    }

    /// A slot's names, if something has happened to them.
    pub fn names(&self, slot: Slot) -> Option<&SlotState> {
        self.slots.get(&slot).and_then(SlotValue::names)
    }

    /// The names of this slot and of all behind it.
    pub fn names_from(&self, first: Slot) -> impl Iterator<Item = &SlotState> {
        self.slots.range(first..).filter_map(|(_, value)| value.names())
    }

    /// The names of every slot.
    pub fn all_names(&self) -> impl Iterator<Item = &SlotState> {
        self.names_from(Slot(0))
    }

    /// A slot's lanes, if something has happened in it.
    pub fn lanes(&self, slot: Slot) -> Option<&LaneTable> {
        self.slots.get(&slot).map(SlotValue::lanes)
    }

    /// The lanes of every slot, with the slot.
    pub fn slots_of_lanes(&self) -> impl Iterator<Item = (Slot, &LaneTable)> {
        self.slots.values().map(|value| (value.slot(), value.lanes()))
    }

    /// The lanes of every slot.
    pub fn all_lanes(&self) -> impl Iterator<Item = &LaneTable> {
        self.slots.values().map(SlotValue::lanes)
    }

    /// Whether a change of bytes was made already: see [`SlotValue::is_done`].
    pub fn is_done(
        &self,
        slot: Slot,
        session: SessionId,
        sequence: Sequence,
        below: Sequence,
    ) -> Result<bool> {
        match self.slots.get(&slot) {
            Some(value) => value.is_done(session, sequence, below),
            None => SlotValue::new(slot).is_done(session, sequence, below),
        }
    }

    /// Inodes, over all slots.
    pub fn inodes(&self) -> u64 {
        self.counts.inodes
    }

    /// Bytes of inline files, over all slots.
    pub fn inline_bytes(&self) -> u64 {
        self.counts.inline_bytes
    }

    /// Members of barriers that are remembered, over all slots.
    pub fn barrier_members(&self) -> u64 {
        self.counts.barrier_members
    }

    fn append(&mut self, bytes: &[u8], urgent: bool) -> Result<()> {
        if urgent { self.log.append_urgent(bytes) } else { self.log.append(bytes) }
    }

    /// Restores the state of a snapshot. It was complete when it got its number, so a torn tail is damage
    /// here.
    fn restore(&mut self, bytes: &[u8], now: Instant) -> std::result::Result<(), Unreadable> {
        let mut records = Records::new(bytes)?;
        // The pieces so far of a slot that is not complete yet.
        let mut begun: Option<(At, Vec<u8>)> = None;
        loop {
            let offset = records.consumed();
            let damage = |what| Damage { offset, what };
            let Some((at, record)) = records.next()? else { break };
            match record {
                Record::SlotPiece { last, bytes, .. } => {
                    let (first, mut value) = begun.take().unwrap_or((at, Vec::new()));
                    if first != at {
                        return Err(damage("a piece of a slot is missing").into());
                    }
                    value.extend_from_slice(&bytes);
                    if last {
                        self.put_slot(slot_of(at, &value).map_err(damage)?);
                    } else {
                        begun = Some((at, value));
                    }
                }
                _ if begun.is_some() => return Err(damage("a piece of a slot is missing").into()),
                Record::SessionOpened(session) => self.sessions.insert(session, now),
                Record::SessionKeepsPages { session, strict } => self.pages.note(session, strict),
                Record::Pages(news) => self.pages.note_news(&news),
                Record::GivesLeases(given) => (self.gives_leases, self.position) = (given, at.position),
                Record::SessionEnded { .. } | Record::Slot { .. } => {
                    return Err(damage("a change stands in a snapshot").into());
                }
            }
        }
        let whole = records.consumed();
        if whole != bytes.len() || bytes.is_empty() || begun.is_some() {
            return Err(Damage { offset: whole, what: "its end is missing" }.into());
        }
        Ok(())
    }

    /// Applies every whole record of a log that is not in the snapshot; returns the bytes of all whole
    /// records.
    fn replay(
        &mut self,
        replay: &mut Replay,
        bytes: &[u8],
        now: Instant,
    ) -> std::result::Result<usize, Unreadable> {
        let mut records = Records::new(bytes)?;
        loop {
            let offset = records.consumed();
            let Some((at, record)) = records.next()? else { break };
            let is_new = self.check_follows(replay, at, &record).map_err(|what| Damage { offset, what })?;
            // These effects happened already, or are in the slots' open deliveries.
            let mut effects = Effects::default();
            if is_new {
                self.apply(&record, now, &mut effects);
            }
            replay.undone = effects.store;
        }
        Ok(records.consumed())
    }

    /// Refuses a record that cannot be the next of its place in the logs. Returns whether the place still has
    /// to apply it.
    fn check_follows(
        &self,
        replay: &mut Replay,
        at: At,
        record: &Record,
    ) -> std::result::Result<bool, &'static str> {
        let next = self.position(at.place).next();
        let (least, most) = match replay.seen.insert(at.place, at.position) {
            Some(before) => (before.next(), before.next()),
            // The first of its place: those before it were in older logs.
            None => (Position(1), next),
        };
        if at.position > most {
            return Err("a record before this one is missing");
        }
        if at.position < least {
            return Err("a record comes twice");
        }
        match record {
            Record::SlotPiece { .. } => Err("a piece of a snapshot stands in a log"),
            _ if at.position < next => Ok(false),
            Record::Slot { slot, change } => {
                let unborn = SlotValue::new(*slot);
                self.slots.get(slot).unwrap_or(&unborn).refuses(change).map_or(Ok(true), Err)
            }
            _ => Ok(true),
        }
    }

    fn apply(&mut self, record: &Record, now: Instant, effects: &mut Effects) {
        match record {
            Record::SessionOpened(session) => self.sessions.insert(session.clone(), now),
            Record::SessionEnded { session, .. } => {
                self.sessions.remove(*session);
                self.pages.end_session(*session);
            }
            Record::GivesLeases(given) => self.gives_leases = *given,
            Record::SessionKeepsPages { session, strict } => {
                // A session that has ended is not waited for.
                if self.sessions.contains(*session) {
                    self.pages.note(*session, *strict);
                }
            }
            Record::Pages(news) => self.pages.note_news(news),
            Record::Slot { slot, change } => return self.change_slot(*slot, change, effects),
            Record::SlotPiece { .. } => unreachable!("pieces stand in snapshots alone"),
        }
        self.position = self.position.next();
    }

    fn change_slot(&mut self, slot: Slot, change: &SlotChange, effects: &mut Effects) {
        let value = self.slots.entry(slot).or_insert_with(|| SlotValue::new(slot));
        let followed = value.apply(change);
        self.counts = self.counts.after(followed.counts);
        for (session, bytes) in followed.kept {
            self.kept.change(session, bytes);
        }
        effects.names.extend(followed.names.into_iter().map(|effect| (slot, effect)));
        effects.lanes.extend(followed.lane.map(|effect| (slot, effect)));
        effects.store.extend(followed.store);
    }

    fn put_slot(&mut self, mut value: SlotValue) {
        for (session, bytes) in value.kept_anew() {
            self.kept.change(session, bytes as i64);
        }
        let counts = value.counts();
        self.counts.inodes += counts.inodes;
        self.counts.inline_bytes += counts.inline_bytes;
        self.counts.barrier_members += counts.barrier_members;
        self.slots.insert(value.slot(), value);
    }
}

/// What a replay of several logs knows besides the state.
#[derive(Default)]
struct Replay {
    /// The last position of each place in the logs.
    seen: BTreeMap<Place, Position>,
    /// Steps of the last record on the bytes of lanes.
    undone: Vec<StoreStep>,
}

/// Decodes a slot's bytes; it must be the slot that its pieces name.
fn slot_of(at: At, bytes: &[u8]) -> std::result::Result<SlotValue, &'static str> {
    let Ok((value, [])) = postcard::take_from_bytes::<SlotValue>(bytes) else {
        return Err("a slot cannot be decoded");
    };
    let is = At { place: Place::Slot(value.slot()), position: value.position() };
    if is == at { Ok(value) } else { Err("a slot is another than its header says, or not as old") }
}

fn log_name(number: u64) -> String {
    format!("log-{number}")
}

/// Why a server does not start: what it cannot read was acknowledged, and would be lost silently.
fn unreadable(name: &str, reason: Unreadable) -> Error {
    match reason {
        Unreadable::Damaged(Damage { offset, what }) => {
            let text = format!(
                "the store's file '{name}' is damaged at byte {offset}: {what}. The server does not start, so that \
                 nothing of what it has acknowledged is lost in silence; let the others go on without what it holds \
                 with 'ramlace forget', or end the pool with 'ramlace down'"
            );
            Error::new(ErrorKind::Corrupt, text)
        }
        Unreadable::Format(format) => {
            let own = LOG_MAGIC[LOG_MAGIC.len() - 1];
            let text = format!(
                "the store's file '{name}' has log format {format}, and this version of ramlace reads format {own} \
                 alone. The server does not start; start it with the version that wrote the file, or end the pool \
                 with 'ramlace down'"
            );
            Error::new(ErrorKind::Unsupported, text)
        }
    }
}

/// Does a record's step on the store. A cell that has another value than the one before was stored already,
/// by this change or by a client that did not wait for it.
fn perform(store: &mut Store, step: StoreStep) -> Result<()> {
    match step {
        StoreStep::Cut { lane, length } => {
            if store.has_lane(lane) && store.lane_length(lane)? > length {
                store.cut(lane, length)?;
            }
        }
        StoreStep::Remove { lane } => {
            if store.has_lane(lane) {
                store.remove_lane(lane)?;
            }
        }
        StoreStep::Cell(cell) => {
            if !store.has_lane(cell.lane) {
                return Ok(());
            }
            let mut bytes = [0; 8];
            store.read_staged(cell.lane, cell.offset, &mut bytes)?;
            if u64::from_le_bytes(bytes) == cell.before {
                // Its page may have its memory and have never been written: after a restart that is not known.
                store.prepare_write(cell.lane, cell.offset, bytes.len() as u64)?;
                store.write_staged(cell.lane, cell.offset, &cell.after.to_le_bytes())?;
            }
        }
    }
    Ok(())
}

/// The number of a file whose name has this prefix.
pub fn numbered(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// An error after which log and state differ: the process ends, and the next one replays what was logged.
pub fn fatal(error: &Error) -> ! {
    eprintln!("ramlace: the operation log cannot be written; the server starts again: {error}");
    std::process::exit(1);
}

#[cfg(test)]
#[path = "durable_cell_tests.rs"]
mod cell_tests;
#[cfg(test)]
#[path = "durable_tests.rs"]
pub mod tests;

//! Everything that must survive the process: slots, each one value, and who is connected, rebuilt from the newest
//! snapshot and the log that follows it.
//!
//! Invariant: state changes only by [`Durable::commit`], which writes the record before it
//! applies it; a replay applies the very same records in the same order. Each slot, and the server itself, counts its
//! records: one that is missing or comes twice is damage.

use std::borrow::Cow;
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
use crate::record::{At, Place, Record};
use crate::sessions::Sessions;

/// A log shorter than this is not worth a snapshot, in a store that does not miss it.
const LOG_BYTES_MIN: u64 = 4 << 20;
/// In a small store it is this part of it: what the log holds no file can have.
const LOG_FRACTION_OF_STORE: u64 = 64;
/// And so much at the least.
const LOG_BYTES_MIN_IN_SMALL: u64 = 256 << 10;
/// A log longer than this is replaced when the store is full.
const LOG_BYTES_WORTH: u64 = 64 << 10;
/// A snapshot is written through a buffer of this size.
const SNAPSHOT_BUFFER_BYTES: usize = 1 << 20;
/// A snapshot's name while it is written.
const SNAPSHOT_NEXT: &str = "snapshot-next";

/// What follows from a record.
#[derive(Debug, Default)]
pub struct Effects {
    /// What slots want done.
    pub names: Vec<(Slot, Effect)>,
    /// What has become of lanes.
    pub lanes: Vec<(Slot, LaneEffect)>,
    /// What is to be done to bytes of lanes, before anything else happens.
    store: Vec<StoreStep>,
}

/// The state of a server that outlives its process.
pub struct Durable {
    /// Who is connected.
    pub sessions: Sessions,
    /// The slots whose primary this server is, once something happened in them.
    slots: BTreeMap<Slot, SlotValue>,
    /// What they come to.
    counts: Counts,
    /// There may be holders of leases.
    pub gives_leases: bool,
    /// What replies cost that are kept.
    pub kept: Kept,
    /// How many records of its own the server has taken.
    position: Position,
    log: MetaFile,
    number: u64,
    compact_at_bytes: u64,
    snapshot_bytes: u64,
    buffer: Vec<u8>,
}

/// A log shorter than this stays.
fn log_bytes_min(store: &Store) -> u64 {
    (store.usage().size_bytes / LOG_FRACTION_OF_STORE).clamp(LOG_BYTES_MIN_IN_SMALL, LOG_BYTES_MIN)
}

impl Durable {
    /// Rebuilds the state from the store. Sessions get a fresh time to be heard.
    pub fn load(store: &mut Store, now: Instant) -> Result<Durable> {
        let names = store.meta_names()?;
        let number = names.iter().filter_map(|name| numbered(name, "snapshot-")).max();
        let mut durable = Durable {
            sessions: Sessions::default(),
            slots: BTreeMap::new(),
            counts: Counts::default(),
            gives_leases: false,
            kept: Kept::default(),
            position: Position::default(),
            log: store.meta_append_file(&format!("log-{}", number.unwrap_or(0)))?,
            number: number.unwrap_or(0),
            compact_at_bytes: log_bytes_min(store),
            snapshot_bytes: 0,
            buffer: Vec::new(),
        };
        if let Some(number) = number {
            let snapshot = store.meta_append_file(&format!("snapshot-{number}"))?;
            let bytes = snapshot.read_all()?;
            durable.restore(&bytes, now).map_err(|reason| unreadable(snapshot.name(), reason))?;
            durable.snapshot_bytes = snapshot.length();
            durable.compact_at_bytes = log_bytes_min(store).max(2 * snapshot.length());
        }
        let bytes = durable.log.read_all()?;
        let replayed = durable.replay(&bytes, now);
        let (whole, last) = replayed.map_err(|reason| unreadable(durable.log.name(), reason))?;
        for step in last {
            // The process may have ended before it was done. What frees memory is done before its record.
            perform(store, step)?;
        }
        if whole < LOG_MAGIC.len() {
            durable.log.cut(0)?;
            durable.log.append_urgent(&LOG_MAGIC)?;
        } else {
            durable.log.cut(whole as u64)?;
        }
        durable.remove_other_files(store, &names)?;
        durable.end_forgotten_sessions(store, now)?;
        Ok(durable)
    }

    /// The end of a session and what it has left in slots are several records: where only the first were written, the
    /// rest follow now.
    fn end_forgotten_sessions(&mut self, store: &mut Store, now: Instant) -> Result<()> {
        let stamp = crate::clock::now();
        let left: BTreeSet<(Slot, SessionId)> = self
            .slots
            .iter()
            .flat_map(|(slot, value)| value.sessions().map(|session| (*slot, session)))
            .filter(|(_, session)| !self.sessions.contains(*session))
            .collect();
        let ended = |(slot, session)| {
            let change = SlotChange::SessionEnded { session, now: stamp };
            Record::Slot { slot, change }
        };
        let records: Vec<Record> = left.into_iter().map(ended).collect();
        match self.commit_all(store, &records, now) {
            // What is left takes no more than it did; the next life tries again.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                eprintln!("ramlace: what ended sessions have left in slots stays for now: {error}");
                Ok(())
            }
            done => done.map(drop),
        }
    }

    /// Writes a record and applies it. Where in the history of its slot it stands comes back, up to where whoever is
    /// told of it knows that history; and what the slots want done.
    ///
    /// Errors: `NoSpace` when the store is full; then nothing has changed.
    pub fn commit(&mut self, store: &mut Store, record: &Record<'_>, now: Instant) -> Result<(At, Effects)> {
        let effects = self.commit_all(store, std::slice::from_ref(record), now)?;
        let place = record.place();
        Ok((At { place, position: self.position(place) }, effects))
    }

    /// Ends a session, and in each slot that knows it what it has left there.
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
        // The server's own comes first: a process that dies behind it finds what is missing.
        let first = std::iter::once(Record::SessionEnded { session, now: stamp });
        let records: Vec<Record> = first.chain(knowing.map(of_slot)).collect();
        self.commit_all(store, &records, now)
    }

    /// Writes records, of one place at most one, all or none of them, and applies them.
    fn commit_all(&mut self, store: &mut Store, records: &[Record<'_>], now: Instant) -> Result<Effects> {
        for step in records.iter().filter_map(Record::frees) {
            perform(store, step)?;
        }
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        for record in records {
            framing::encode(record, self.position(record.place()).next(), &mut bytes);
        }
        let written = self.write(store, &bytes, records.iter().any(Record::is_urgent));
        let length = bytes.len() as u64;
        self.buffer = bytes;
        written?;
        let mut effects = Effects::default();
        let applied = catch_unwind(AssertUnwindSafe(|| {
            records.iter().for_each(|record| self.apply(record, now, &mut effects));
        }));
        if let Err(bug) = applied {
            // Nobody has heard of the record, and it would end each further life as it ends this.
            let _ = self.log.cut(self.log.length() - length);
            resume_unwind(bug);
        }
        for step in effects.store.drain(..) {
            // Before a snapshot can say that it was stored.
            perform(store, step).unwrap_or_else(|error| fatal(&error));
        }
        if self.log.length() >= self.compact_at_bytes {
            self.compact(store);
        }
        Ok(effects)
    }

    fn write(&mut self, store: &mut Store, bytes: &[u8], urgent: bool) -> Result<()> {
        let appended = self.append(bytes, urgent);
        if matches!(&appended, Err(error) if error.kind() == ErrorKind::NoSpace)
            && self.log.length() > LOG_BYTES_WORTH
            // As large as the last snapshot was, or half of that: less is not worth the work.
            && store.usage().free_bytes >= self.snapshot_bytes / 2
        {
            // In a full store the log itself is what can give memory back.
            self.compact(store);
            return self.append(bytes, urgent);
        }
        appended
    }

    /// How many records a place has taken.
    pub fn position(&self, place: Place) -> Position {
        match place {
            Place::Server => self.position,
            Place::Slot(slot) => self.slots.get(&slot).map_or(Position::default(), SlotValue::position),
        }
    }

    /// A slot's names, once something has happened to them.
    pub fn names(&self, slot: Slot) -> Option<&SlotState> {
        self.slots.get(&slot).and_then(SlotValue::names)
    }

    /// The names of this slot and of those behind it.
    pub fn names_from(&self, first: Slot) -> impl Iterator<Item = &SlotState> {
        self.slots.range(first..).filter_map(|(_, value)| value.names())
    }

    /// The names of every slot.
    pub fn all_names(&self) -> impl Iterator<Item = &SlotState> {
        self.names_from(Slot(0))
    }

    /// A slot's lanes, once something has happened in it.
    pub fn lanes(&self, slot: Slot) -> Option<&LaneTable> {
        self.slots.get(&slot).map(SlotValue::lanes)
    }

    /// The lanes of every slot.
    pub fn all_lanes(&self) -> impl Iterator<Item = &LaneTable> {
        self.slots.values().map(SlotValue::lanes)
    }

    /// Whether a change of bytes was made already: see [`SlotValue::is_done`].
    pub fn is_done(
        &mut self,
        slot: Slot,
        session: SessionId,
        sequence: Sequence,
        below: Sequence,
    ) -> Result<bool> {
        self.slots.entry(slot).or_insert_with(|| SlotValue::new(slot)).is_done(session, sequence, below)
    }

    /// Inodes, over all slots.
    pub fn inodes(&self) -> u64 {
        self.counts.inodes
    }

    /// Bytes of inline files, over all slots.
    pub fn inline_bytes(&self) -> u64 {
        self.counts.inline_bytes
    }

    fn append(&mut self, bytes: &[u8], urgent: bool) -> Result<()> {
        if urgent { self.log.append_urgent(bytes) } else { self.log.append(bytes) }
    }

    /// Replaces the log by a snapshot. A full store keeps its log and tries later. What goes wrong here is
    /// no failure of the record at hand, which is written.
    fn compact(&mut self, store: &mut Store) {
        match self.write_snapshot(store).and_then(|length| Ok((length, self.next_log(store)?))) {
            Ok((length, log)) => {
                self.snapshot_bytes = length;
                self.compact_at_bytes = log_bytes_min(store).max(2 * length);
                self.switch_to(store, log);
            }
            Err(error) => {
                self.compact_at_bytes = 2 * self.log.length();
                eprintln!("ramlace: no snapshot of the namespace can be written; the log grows on: {error}");
                self.remove_leftovers(store);
            }
        }
    }

    fn write_snapshot(&self, store: &mut Store) -> Result<u64> {
        let mut file = store.meta_append_file(SNAPSHOT_NEXT)?;
        file.cut(0)?;
        let mut buffer = LOG_MAGIC.to_vec();
        let mut put = |record: Record| -> Result<()> {
            framing::encode_checked(&record, self.position(record.place()), &mut buffer)?;
            if buffer.len() >= SNAPSHOT_BUFFER_BYTES {
                file.append_urgent(&buffer)?;
                buffer.clear();
            }
            Ok(())
        };
        for session in self.sessions.records() {
            put(Record::SessionOpened(session.clone()))?;
        }
        for value in self.slots.values() {
            put(Record::SlotValue(Box::new(Cow::Borrowed(value))))?;
        }
        put(Record::GivesLeases(self.gives_leases))?;
        file.append_urgent(&buffer)?;
        Ok(file.length())
    }

    /// The log that follows the next snapshot, empty but for its magic.
    fn next_log(&self, store: &mut Store) -> Result<MetaFile> {
        let mut log = store.meta_append_file(&format!("log-{}", self.number + 1))?;
        log.cut(0)?;
        log.append_urgent(&LOG_MAGIC)?;
        Ok(log)
    }

    /// The snapshot gets its number: before, a process that is killed leaves the old snapshot and
    /// its log, afterwards the new one and an empty log. There is no way back from here.
    fn switch_to(&mut self, store: &mut Store, log: MetaFile) {
        let number = self.number + 1;
        if let Err(error) = store.meta_rename_over(SNAPSHOT_NEXT, &format!("snapshot-{number}")) {
            fatal(&error);
        }
        self.log = log;
        self.number = number;
        self.remove_leftovers(store);
    }

    /// What cannot be removed goes with the next life at the latest.
    fn remove_leftovers(&self, store: &mut Store) {
        let removed = store.meta_names().and_then(|names| self.remove_other_files(store, &names));
        if let Err(error) = removed {
            eprintln!("ramlace: an old log or snapshot stays for now: {error}");
        }
    }

    fn remove_other_files(&self, store: &mut Store, names: &[String]) -> Result<()> {
        for name in names {
            let stale = |prefix| numbered(name, prefix).is_some_and(|number| number != self.number);
            if stale("log-") || stale("snapshot-") || name == SNAPSHOT_NEXT {
                store.meta_remove(name)?;
            }
        }
        Ok(())
    }

    /// Takes up the state that a snapshot holds. It got its number when it was whole: a tail is damage here.
    fn restore(&mut self, bytes: &[u8], now: Instant) -> std::result::Result<(), Unreadable> {
        let mut records = Records::new(bytes)?;
        loop {
            let offset = records.consumed();
            let damage = |what| Damage { offset, what };
            let Some((at, record)) = records.next()? else { break };
            match record {
                Record::SessionOpened(session) => self.sessions.insert(session, now),
                Record::GivesLeases(given) => self.gives_leases = given,
                Record::SlotValue(value) => {
                    let value = value.into_owned();
                    if value.position() != at.position || self.slots.contains_key(&value.slot()) {
                        return Err(damage("a slot comes twice, or is not as old as its header says").into());
                    }
                    self.put_slot(value);
                }
                Record::SessionEnded { .. } | Record::Slot { .. } => {
                    return Err(damage("a change stands in a snapshot").into());
                }
            }
            if at.place == Place::Server {
                self.position = at.position;
            }
        }
        let whole = records.consumed();
        if whole != bytes.len() || bytes.is_empty() {
            return Err(Damage { offset: whole, what: "its end is missing" }.into());
        }
        Ok(())
    }

    /// Applies every whole record of a log; returns the bytes they took, and what is to be done to bytes of lanes after
    /// the last.
    fn replay(
        &mut self,
        bytes: &[u8],
        now: Instant,
    ) -> std::result::Result<(usize, Vec<StoreStep>), Unreadable> {
        let mut records = Records::new(bytes)?;
        let mut last = Vec::new();
        loop {
            let offset = records.consumed();
            let Some((at, record)) = records.next()? else { break };
            self.check_follows(at, &record).map_err(|what| Damage { offset, what })?;
            // What the slots wanted done was done, or stands in their open errands.
            let mut effects = Effects::default();
            self.apply(&record, now, &mut effects);
            last = effects.store;
        }
        Ok((records.consumed(), last))
    }

    /// Refuses what cannot be the next record of its place.
    fn check_follows(&self, at: At, record: &Record<'_>) -> std::result::Result<(), &'static str> {
        let expected = self.position(at.place).next();
        if at.position > expected {
            return Err("a record before this one is missing");
        }
        if at.position < expected {
            return Err("a record comes twice");
        }
        match record {
            Record::SlotValue(_) => Err("a state of a snapshot stands in a log"),
            Record::Slot { slot, change } => {
                let unborn = SlotValue::new(*slot);
                self.slots.get(slot).unwrap_or(&unborn).refuses(change).map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, record: &Record<'_>, now: Instant, effects: &mut Effects) {
        match record {
            Record::SessionOpened(session) => self.sessions.insert(session.clone(), now),
            Record::SessionEnded { session, .. } => drop(self.sessions.remove(*session)),
            Record::GivesLeases(given) => self.gives_leases = *given,
            Record::Slot { slot, change } => return self.change_slot(*slot, change, effects),
            Record::SlotValue(_) => unreachable!("states stand in snapshots alone"),
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
        self.slots.insert(value.slot(), value);
    }
}

/// Why a server does not start: what it cannot read was acknowledged, and would be lost in silence.
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

/// Does to the store what a record says. A cell that holds another number than before was stored already, by this
/// change or by somebody who did not wait for it.
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
                store.write_staged(cell.lane, cell.offset, &cell.after.to_le_bytes())?;
            }
        }
    }
    Ok(())
}

fn numbered(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// An error that leaves the log and the state apart cannot be survived: the process ends and
/// its next life replays what was logged.
pub fn fatal(error: &Error) -> ! {
    eprintln!("ramlace: the operation log cannot be written; the server starts again: {error}");
    std::process::exit(1);
}

#[cfg(test)]
#[path = "durable_tests.rs"]
mod tests;

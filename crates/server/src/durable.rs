//! Everything that must survive the process: sessions, slots, lanes and finished writes,
//! rebuilt from the newest snapshot and the log that follows it.
//!
//! Invariant: state changes only by [`Durable::commit`], which writes the record before it
//! applies it; a replay applies the very same records in the same order. Each slot, and the server itself, counts its
//! records: one that is missing or comes twice is damage.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Position, Result, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneChange, LaneEffect, LaneTable, StoreStep};
use ramlace_namespace::{Command, Effect, Op, Origin, SlotState};
use ramlace_store::{MetaFile, Store};
use ramlace_wire::locks::SetLock;

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
}

/// The state of a server that outlives its process.
pub struct Durable {
    /// Who is connected.
    pub sessions: Sessions,
    /// The slots whose primary this server is, once something happened in them.
    pub slots: BTreeMap<Slot, SlotState>,
    /// Inodes in all of them.
    pub inodes: u64,
    /// The lanes in each slot.
    pub lanes: BTreeMap<Slot, LaneTable>,
    /// There may be holders of leases.
    pub gives_leases: bool,
    /// What replies cost that are kept.
    pub kept: Kept,
    /// How many records each slot, and the server itself, has taken.
    positions: BTreeMap<Place, Position>,
    inline_bytes: u64,
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
            inodes: 0,
            lanes: BTreeMap::new(),
            gives_leases: false,
            kept: Kept::default(),
            positions: BTreeMap::new(),
            inline_bytes: 0,
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
        if let Some(step) = last.filter(|step| !step.frees_memory()) {
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
        Ok(durable)
    }

    /// Writes a record and applies it. Where in the history of its slot it stands comes back, up to where whoever is
    /// told of it knows that history; and what the slots want done.
    ///
    /// Errors: `NoSpace` when the store is full; then nothing has changed.
    pub fn commit(&mut self, store: &mut Store, record: Record<'_>, now: Instant) -> Result<(At, Effects)> {
        let at = self.next_at(record.place());
        let step = record.bytes();
        if let Some(step) = step.filter(|step| step.frees_memory()) {
            perform(store, step)?;
        }
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        framing::encode(&record, at.position, &mut bytes);
        let urgent = frees_memory(&record);
        let mut appended = self.append(&bytes, urgent);
        if matches!(&appended, Err(error) if error.kind() == ErrorKind::NoSpace)
            && self.log.length() > LOG_BYTES_WORTH
            // As large as the last snapshot was, or half of that: less is not worth the work.
            && store.usage().free_bytes >= self.snapshot_bytes / 2
        {
            // In a full store the log itself is what can give memory back.
            self.compact(store);
            appended = self.append(&bytes, urgent);
        }
        let length = bytes.len() as u64;
        self.buffer = bytes;
        appended?;
        let mut effects = Effects::default();
        let applied = catch_unwind(AssertUnwindSafe(|| self.take(at, record, now, &mut effects)));
        if let Err(bug) = applied {
            // Nobody has heard of the record, and it would end each further life as it ends this.
            let _ = self.log.cut(self.log.length() - length);
            resume_unwind(bug);
        }
        if let Some(step) = step.filter(|step| !step.frees_memory()) {
            // Before a snapshot can say that it was stored.
            perform(store, step).unwrap_or_else(|error| fatal(&error));
        }
        if self.log.length() >= self.compact_at_bytes {
            self.compact(store);
        }
        Ok((at, effects))
    }

    /// How many records a place has taken.
    pub fn position(&self, place: Place) -> Position {
        self.positions.get(&place).copied().unwrap_or_default()
    }

    /// Where the next record of a place will be.
    fn next_at(&self, place: Place) -> At {
        At { place, position: self.position(place).next() }
    }

    /// Bytes of inline files, over all slots.
    pub fn inline_bytes(&self) -> u64 {
        self.inline_bytes
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
        // An empty table, too: it has the position of its slot.
        for (slot, table) in &self.lanes {
            put(Record::SlotLanes { slot: *slot, table: Box::new(Cow::Borrowed(table)) })?;
        }
        for state in self.slots.values() {
            put(Record::SlotState(Box::new(Cow::Borrowed(state))))?;
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
        while let Some((at, record)) = records.next()? {
            self.positions.insert(at.place, at.position);
            self.apply(record, now, &mut Effects::default());
        }
        let whole = records.consumed();
        if whole != bytes.len() || bytes.is_empty() {
            return Err(Damage { offset: whole, what: "its end is missing" }.into());
        }
        Ok(())
    }

    /// Applies every whole record of a log; returns the bytes they took, and what the last does to bytes of lanes.
    fn replay(
        &mut self,
        bytes: &[u8],
        now: Instant,
    ) -> std::result::Result<(usize, Option<StoreStep>), Unreadable> {
        let mut records = Records::new(bytes)?;
        let mut last = None;
        loop {
            let offset = records.consumed();
            let Some((at, record)) = records.next()? else { break };
            self.check_follows(at, &record).map_err(|what| Damage { offset, what })?;
            last = record.bytes();
            // What the slots wanted done was done, or stands in their open errands.
            self.take(at, record, now, &mut Effects::default());
        }
        Ok((records.consumed(), last))
    }

    /// Refuses what cannot be the next record of its place.
    fn check_follows(&self, at: At, record: &Record<'_>) -> std::result::Result<(), &'static str> {
        let expected = self.next_at(at.place).position;
        match record {
            state if state.is_state() => Err("a state of a snapshot stands in a log"),
            _ if at.position > expected => Err("a record before this one is missing"),
            _ if at.position < expected => Err("a record comes twice"),
            Record::Command { slot, .. } if !self.slots.contains_key(slot) => {
                Err("a command comes before its slot was born")
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, at: At, record: Record<'_>, now: Instant, effects: &mut Effects) {
        self.apply(record, now, effects);
        self.positions.insert(at.place, at.position);
    }

    fn apply(&mut self, record: Record<'_>, now: Instant, effects: &mut Effects) {
        match record {
            Record::SessionOpened(session) => self.sessions.insert(session, now),
            Record::SessionEnded { session, now } => self.end_session(session, now, effects),
            Record::GivesLeases(given) => self.gives_leases = given,
            Record::SlotBorn { slot, birth } => {
                let mut state = SlotState::new(slot, birth.slots, birth.began, birth.hash_seed);
                if slot == ramlace_base::InodeId::ROOT.slot() {
                    state.install_root(birth.owner, birth.now);
                }
                self.put_slot(state);
            }
            Record::Command { slot, command, room } => {
                let state = self.slots.get_mut(&slot).expect("a slot is born before its first command");
                let (before, bytes) = (state.inode_count(), state.inline_bytes());
                let wanted = state.apply_within(&command, room);
                self.inodes = self.inodes - before + state.inode_count();
                self.inline_bytes = self.inline_bytes - bytes + state.inline_bytes();
                note_kept(&mut self.kept, state, Some(&command), &wanted);
                effects.names.extend(wanted.into_iter().map(|effect| (slot, effect)));
            }
            Record::Lane { slot, change } => {
                let effect = self.lanes.entry(slot).or_default().apply(&change);
                effects.lanes.extend(effect.map(|effect| (slot, effect)));
            }
            Record::SlotState(state) => self.put_slot(state.into_owned()),
            Record::SlotLanes { slot, table } => drop(self.lanes.insert(slot, table.into_owned())),
        }
    }

    fn put_slot(&mut self, mut state: SlotState) {
        for (session, bytes) in state.kept_anew() {
            self.kept.change(session, bytes as i64);
        }
        self.inodes += state.inode_count();
        self.inline_bytes += state.inline_bytes();
        if let Some(mut before) = self.slots.insert(state.slot(), state) {
            for (session, bytes) in before.kept_anew() {
                self.kept.change(session, -(bytes as i64));
            }
            self.inodes -= before.inode_count();
            self.inline_bytes -= before.inline_bytes();
        }
    }

    /// The lanes in a slot.
    pub fn lanes_mut(&mut self, slot: Slot) -> &mut LaneTable {
        self.lanes.entry(slot).or_default()
    }

    fn end_session(&mut self, session: SessionId, now: Timestamp, effects: &mut Effects) {
        self.sessions.remove(session);
        for table in self.lanes.values_mut() {
            table.apply(&LaneChange::SessionEnded { session });
        }
        let command = Command { now, origin: Origin::Server, op: Op::EndSession { session } };
        for (slot, state) in &mut self.slots {
            // An unlinked file that was open takes its bytes along.
            let (before, bytes) = (state.inode_count(), state.inline_bytes());
            let wanted = state.apply(&command);
            note_kept(&mut self.kept, state, None, &wanted);
            effects.names.extend(wanted.into_iter().map(|effect| (*slot, effect)));
            self.inodes = self.inodes - before + state.inode_count();
            self.inline_bytes = self.inline_bytes - bytes + state.inline_bytes();
        }
        self.kept.end(session);
    }
}

/// Follows what a slot keeps for the sessions that a step has answered, or whose acknowledgement came with it.
fn note_kept(kept: &mut Kept, state: &mut SlotState, command: Option<&Command>, effects: &[Effect]) {
    let asker = command.and_then(|command| match &command.origin {
        Origin::Client { session, .. } => Some(*session),
        _ => None,
    });
    let answered = effects.iter().filter_map(|effect| match effect {
        Effect::Reply { token, .. } => Some(token.session),
        _ => None,
    });
    for session in asker.into_iter().chain(answered) {
        kept.change(session, state.take_kept_change(session));
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

/// Whether the record may use the last of the store, because it frees memory or ends something.
fn frees_memory(record: &Record<'_>) -> bool {
    match record {
        Record::SessionEnded { .. } => true,
        Record::Lane { change, .. } => change.is_urgent(),
        Record::Command { command, .. } => matches!(
            &command.op,
            Op::SetLock(SetLock { kind: None, .. })
                | Op::CancelLock(_)
                | Op::EndLockWait(_)
                | Op::LeaveBarrier(_)
                | Op::Unlink(_)
                | Op::RemoveDirectory(_)
                | Op::Close(_)
                | Op::GiveUp(_)
                | Op::Truncate(_)
                | Op::Prepare(_)
                | Op::Settle(_)
                | Op::CoordinatorLost { .. }
                | Op::ErrandDone { .. }
                | Op::ErrandUnreachable { .. }
                | Op::EndSession { .. }
        ),
        _ => false,
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

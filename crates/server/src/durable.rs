//! Everything that must survive the process: sessions, slots, lanes and finished writes,
//! rebuilt from the newest snapshot and the log that follows it.
//!
//! Invariant: state changes only by [`Durable::commit`], which writes the record before it
//! applies it; a replay applies the very same records in the same order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result, SessionId, Slot, Timestamp};
use ramlace_namespace::{Command, Effect, Op, Origin, SlotState};
use ramlace_store::{MetaFile, Store};
use ramlace_wire::locks::SetLock;

use crate::lanes::Lanes;
use crate::record::{self, CellStore, Damage, LOG_MAGIC, Record, Records};
use crate::sessions::Sessions;
use crate::writes::WritesDone;

/// A log shorter than this is not worth a snapshot.
const LOG_BYTES_MIN: u64 = 4 << 20;
/// A log longer than this is replaced when the store is full.
const LOG_BYTES_WORTH: u64 = 64 << 10;
/// A snapshot is written through a buffer of this size.
const SNAPSHOT_BUFFER_BYTES: usize = 1 << 20;
/// A snapshot's name while it is written.
const SNAPSHOT_NEXT: &str = "snapshot-next";

/// The state of a server that outlives its process.
pub struct Durable {
    /// Who is connected.
    pub sessions: Sessions,
    /// The slots whose primary this server is, once something happened in them.
    pub slots: BTreeMap<Slot, SlotState>,
    /// Inodes in all of them.
    pub inodes: u64,
    /// What is known of lanes.
    pub lanes: Lanes,
    /// Chunk writes that are done.
    pub writes: WritesDone,
    /// There may be holders of leases.
    pub gives_leases: bool,
    inline_bytes: u64,
    /// Of the last record: a cell that may have to be stored, and what it held.
    unstored: Option<(CellStore, u64)>,
    log: MetaFile,
    number: u64,
    compact_at_bytes: u64,
    snapshot_bytes: u64,
    buffer: Vec<u8>,
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
            lanes: Lanes::default(),
            writes: WritesDone::default(),
            gives_leases: false,
            inline_bytes: 0,
            unstored: None,
            log: store.meta_append_file(&format!("log-{}", number.unwrap_or(0)))?,
            number: number.unwrap_or(0),
            compact_at_bytes: LOG_BYTES_MIN,
            snapshot_bytes: 0,
            buffer: Vec::new(),
        };
        if let Some(number) = number {
            let snapshot = store.meta_append_file(&format!("snapshot-{number}"))?;
            let bytes = snapshot.read_all()?;
            let whole = durable.replay(snapshot.name(), &bytes, now)?;
            // It got its number when it was whole: a tail is damage here.
            if whole != bytes.len() || bytes.is_empty() {
                return Err(damaged(snapshot.name(), Damage { offset: whole, what: "its end is missing" }));
            }
            durable.snapshot_bytes = snapshot.length();
            durable.compact_at_bytes = LOG_BYTES_MIN.max(2 * snapshot.length());
        }
        let bytes = durable.log.read_all()?;
        let name = durable.log.name().to_owned();
        let whole = durable.replay(&name, &bytes, now)?;
        if let Some((cell, before)) = durable.unstored.take() {
            store_again(store, cell, before)?;
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

    /// Writes a record and applies it. What the slots want done comes back.
    ///
    /// Errors: `NoSpace` when the store is full; then nothing has changed.
    pub fn commit(
        &mut self,
        store: &mut Store,
        record: Record<'_>,
        now: Instant,
    ) -> Result<Vec<(Slot, Effect)>> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        record::encode(&record, &mut bytes);
        let urgent = self.frees_memory(&record);
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
        let mut effects = Vec::new();
        let cell = cell_to_store(&record);
        let applied = catch_unwind(AssertUnwindSafe(|| self.apply(record, now, &mut effects)));
        if let Err(bug) = applied {
            // Nobody has heard of the record, and it would end each further life as it ends this.
            let _ = self.log.cut(self.log.length() - length);
            resume_unwind(bug);
        }
        if let Some((cell, _)) = cell {
            // Before a snapshot can say that it was stored.
            let stored = store.write_staged(cell.lane, cell.offset, &cell.after.to_le_bytes());
            stored.unwrap_or_else(|error| fatal(&error));
        }
        if self.log.length() >= self.compact_at_bytes {
            self.compact(store);
        }
        Ok(effects)
    }

    /// Whether the record may use the last of the store, because it frees memory or ends something.
    fn frees_memory(&self, record: &Record<'_>) -> bool {
        match record {
            Record::SessionEnded { .. } | Record::Lane { record: None, .. } => true,
            // A lane that is known already is cut, or has a lost chunk again.
            Record::Lane { lane, record: Some(_) } => self.lanes.get(*lane).is_some(),
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
                self.compact_at_bytes = LOG_BYTES_MIN.max(2 * length);
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
            record::encode_checked(&record, &mut buffer)?;
            if buffer.len() >= SNAPSHOT_BUFFER_BYTES {
                file.append_urgent(&buffer)?;
                buffer.clear();
            }
            Ok(())
        };
        for session in self.sessions.records() {
            put(Record::SessionOpened(session.clone()))?;
        }
        for (lane, record) in self.lanes.records() {
            put(Record::Lane { lane, record: Some(record.clone()) })?;
        }
        for (slot, session, sequence, before) in self.writes.iter() {
            put(match before {
                Some(before) => Record::CellChanged { slot, session, sequence, before, store: None },
                None => Record::ChunkWritten { slot, session, sequence },
            })?;
        }
        for state in self.slots.values() {
            put(Record::Slot(Box::new(Cow::Borrowed(state))))?;
        }
        if self.gives_leases {
            put(Record::GivesLeases(true))?;
        }
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

    /// Applies every whole record of the file `name`; returns the bytes they took.
    fn replay(&mut self, name: &str, bytes: &[u8], now: Instant) -> Result<usize> {
        let mut records = Records::new(bytes).map_err(|damage| damaged(name, damage))?;
        // What the slots wanted done was done, or stands in their open errands.
        let mut effects = Vec::new();
        while let Some(record) = records.next().map_err(|damage| damaged(name, damage))? {
            self.unstored = cell_to_store(&record);
            self.apply(record, now, &mut effects);
            effects.clear();
        }
        Ok(records.consumed())
    }

    fn apply(&mut self, record: Record<'_>, now: Instant, effects: &mut Vec<(Slot, Effect)>) {
        match record {
            Record::SessionOpened(session) => self.sessions.insert(session, now),
            Record::SessionEnded { session, now } => self.end_session(session, now, effects),
            Record::SlotBorn(birth) => {
                let mut state = SlotState::new(birth.slot, birth.slots, birth.began, birth.hash_seed);
                if birth.slot == ramlace_base::InodeId::ROOT.slot() {
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
                effects.extend(wanted.into_iter().map(|effect| (slot, effect)));
            }
            Record::Lane { lane, record } => self.lanes.set(lane, record),
            Record::ChunkWritten { slot, session, sequence } => self.writes.insert(slot, session, sequence),
            Record::CellChanged { slot, session, sequence, before, .. } => {
                self.writes.insert_cell(slot, session, sequence, Some(before));
            }
            Record::Slot(state) => self.put_slot(state.into_owned()),
            Record::GivesLeases(given) => self.gives_leases = given,
        }
    }

    fn put_slot(&mut self, state: SlotState) {
        self.inodes += state.inode_count();
        self.inline_bytes += state.inline_bytes();
        if let Some(before) = self.slots.insert(state.slot(), state) {
            self.inodes -= before.inode_count();
            self.inline_bytes -= before.inline_bytes();
        }
    }

    fn end_session(&mut self, session: SessionId, now: Timestamp, effects: &mut Vec<(Slot, Effect)>) {
        self.sessions.remove(session);
        self.writes.end_session(session);
        let command = Command { now, origin: Origin::Server, op: Op::EndSession { session } };
        for (slot, state) in &mut self.slots {
            // An unlinked file that was open takes its bytes along.
            let (before, bytes) = (state.inode_count(), state.inline_bytes());
            effects.extend(state.apply(&command).into_iter().map(|effect| (*slot, effect)));
            self.inodes = self.inodes - before + state.inode_count();
            self.inline_bytes = self.inline_bytes - bytes + state.inline_bytes();
        }
    }
}

/// Why a server does not start: what follows the damage was acknowledged, and would be lost in silence.
fn damaged(name: &str, damage: Damage) -> Error {
    let Damage { offset, what } = damage;
    let text = format!(
        "the store's file '{name}' is damaged at byte {offset}: {what}. The server does not start, so that nothing of \
         what it has acknowledged is lost in silence; let the others go on without what it holds with 'ramlace forget', \
         or end the pool with 'ramlace down'"
    );
    Error::new(ErrorKind::Corrupt, text)
}

fn cell_to_store(record: &Record<'_>) -> Option<(CellStore, u64)> {
    match record {
        Record::CellChanged { store: Some(cell), before, .. } => Some((*cell, *before)),
        _ => None,
    }
}

/// The process ended between the record of a cell's change and the mark that it was stored. What holds another
/// number than before was stored, by this change or by somebody who did not wait for it.
fn store_again(store: &mut Store, cell: CellStore, before: u64) -> Result<()> {
    if !store.has_lane(cell.lane) {
        return Ok(());
    }
    let mut bytes = [0; 8];
    store.read_staged(cell.lane, cell.offset, &mut bytes)?;
    if u64::from_le_bytes(bytes) == before {
        store.write_staged(cell.lane, cell.offset, &cell.after.to_le_bytes())?;
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

//! Snapshots: slot by slot, in pieces, while the server keeps serving.
//!
//! A snapshot holds each slot as it was at some position, each at its own, and the server's own state at its
//! own. That is enough: a slot is a value that only its own records change, so each is replayed from the
//! position at which it was written, whatever the others did meanwhile.
//!
//! A snapshot begins when the logs have grown. From then on records go to a new log, and with each record,
//! and from time to time (`SNAPSHOT_PAUSE`), one step is done: some slots are written to `snapshot-next`, at
//! most [`limits::SNAPSHOT_STEP_BYTES`] (a larger slot is written in one step, through a buffer of one
//! piece). The server's own state comes last, then the file gets its number N and everything older than log N
//! is removed.
//!
//! What a start finds, wherever the last process ended: the newest snapshot N (or none, N = 0), and the logs
//! N, N + 1, .. without a gap. Every record since the snapshot's first slot was written is in them, in order;
//! those that a slot already contains are skipped.
//!
//! Each call of [`Durable::step_snapshot`] does one thing to the store's files, so that a test can end the
//! process between any two.

use ramlace_base::{Error, Position, Result, Slot, limits};
use ramlace_slot::SlotValue;
use ramlace_store::{MetaFile, Store};

use crate::durable::{Durable, fatal, log_bytes_min, numbered};
use crate::framing::{self, LOG_MAGIC};
use crate::record::Record;

/// Smaller in tests, so that small slots still take several steps and pieces.
const STEP_BYTES: usize = if cfg!(test) { 1 << 10 } else { limits::SNAPSHOT_STEP_BYTES };
const PIECE_BYTES_MAX: usize = if cfg!(test) { 256 } else { limits::SNAPSHOT_PIECE_BYTES_MAX };

/// A snapshot's name while it is written.
pub const SNAPSHOT_NEXT: &str = "snapshot-next";

/// A snapshot that is being written.
pub struct Snapshot {
    /// The number of the first log that follows it.
    number: u64,
    file: MetaFile,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Slots from this one on are still to be written.
    Slots(Slot),
    /// The server's own state is to be written.
    Server,
    /// It is complete. If records still go to an older log, a new one begins now.
    Log,
    /// It gets its number. From here on it cannot be abandoned.
    Rename,
    /// Older files are removed.
    Clean,
}

impl Durable {
    /// Does one step of a snapshot, if one is under way or the logs have become long.
    pub fn tend_snapshot(&mut self, store: &mut Store) {
        if self.snapshot.is_some() {
            self.step_or_abandon(store);
        } else if self.logs_bytes() >= self.compact_at_bytes {
            let begun = self.next_log(store).and_then(|()| self.begin_snapshot(store));
            begun.unwrap_or_else(|error| self.abandon_snapshot(store, &error));
        }
    }

    /// Writes a whole snapshot now, or the rest of one. A full store keeps its logs and tries later. An error
    /// here is no failure of the current record, which is written.
    pub fn compact(&mut self, store: &mut Store) {
        if self.snapshot.is_none()
            && let Err(error) = self.begin_snapshot(store)
        {
            self.abandon_snapshot(store, &error);
        }
        while self.snapshot.is_some() {
            self.step_or_abandon(store);
        }
    }

    /// Begins a snapshot. Its number is that of the current log if that is still empty, else of the next.
    pub fn begin_snapshot(&mut self, store: &mut Store) -> Result<()> {
        let mut file = store.meta_append_file(SNAPSHOT_NEXT)?;
        file.cut(0)?;
        file.append_urgent(&LOG_MAGIC)?;
        let is_empty = self.log.length() <= LOG_MAGIC.len() as u64;
        let number = if is_empty { self.log_number } else { self.log_number + 1 };
        self.snapshot = Some(Snapshot { number, file, stage: Stage::Slots(Slot(0)) });
        Ok(())
    }

    /// Does one step of a snapshot, if one is under way.
    pub fn go_on_with_snapshot(&mut self, store: &mut Store) {
        if self.snapshot.is_some() {
            self.step_or_abandon(store);
        }
    }

    fn step_or_abandon(&mut self, store: &mut Store) {
        if let Err(error) = self.step_snapshot(store) {
            self.abandon_snapshot(store, &error);
        }
    }

    /// Does the next step of the snapshot under way.
    pub fn step_snapshot(&mut self, store: &mut Store) -> Result<()> {
        let Some(mut snapshot) = self.snapshot.take() else { return Ok(()) };
        snapshot.stage = match snapshot.stage {
            Stage::Slots(from) => self.write_slots(&mut snapshot.file, from)?,
            Stage::Server => self.write_server(&mut snapshot.file)?,
            Stage::Log => {
                if self.log_number < snapshot.number {
                    self.next_log(store)?;
                }
                Stage::Rename
            }
            Stage::Rename => {
                if let Err(error) =
                    store.meta_rename_over(SNAPSHOT_NEXT, &format!("snapshot-{}", snapshot.number))
                {
                    fatal(&error);
                }
                self.base = snapshot.number;
                self.older_logs_bytes = 0;
                self.snapshot_bytes = snapshot.file.length();
                self.compact_at_bytes = log_bytes_min(store).max(2 * self.snapshot_bytes);
                Stage::Clean
            }
            Stage::Clean => {
                self.remove_leftovers(store);
                return Ok(());
            }
        };
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Writes the next slots, as many as one step takes.
    fn write_slots(&self, file: &mut MetaFile, from: Slot) -> Result<Stage> {
        let mut pieces = Pieces::new(file);
        for (slot, value) in self.slots.range(from..) {
            if pieces.written >= STEP_BYTES {
                pieces.flush()?;
                return Ok(Stage::Slots(*slot));
            }
            pieces.put_slot(value)?;
        }
        pieces.flush()?;
        Ok(Stage::Server)
    }

    /// Writes the sessions, at most [`limits::SESSIONS_MAX`], and all else that belongs to no slot.
    fn write_server(&self, file: &mut MetaFile) -> Result<Stage> {
        let mut pieces = Pieces::new(file);
        for session in self.sessions.records() {
            pieces.put(&Record::SessionOpened(session.clone()), self.position)?;
        }
        for record in self.pages.records() {
            pieces.put(&record, self.position)?;
        }
        pieces.put(&Record::GivesLeases(self.gives_leases), self.position)?;
        pieces.flush()?;
        Ok(Stage::Log)
    }

    /// From now on records go to another log, which is empty except for its magic.
    pub fn next_log(&mut self, store: &mut Store) -> Result<()> {
        let number = self.log_number + 1;
        let mut log = store.meta_append_file(&format!("log-{number}"))?;
        log.cut(0)?;
        if let Err(error) = log.append_urgent(&LOG_MAGIC) {
            // A log without records is not needed.
            store.meta_remove(log.name())?;
            return Err(error);
        }
        self.older_logs_bytes += self.log.length();
        self.log = log;
        self.log_number = number;
        Ok(())
    }

    /// Bytes of all logs that a start would have to read.
    pub fn logs_bytes(&self) -> u64 {
        self.older_logs_bytes + self.log.length()
    }

    pub(crate) fn abandon_snapshot(&mut self, store: &mut Store, error: &Error) {
        self.snapshot = None;
        self.compact_at_bytes = 2 * self.logs_bytes();
        eprintln!("ramlace: no snapshot of the namespace can be written; the log grows on: {error}");
        self.remove_leftovers(store);
    }

    /// What cannot be removed now is removed at the next start.
    fn remove_leftovers(&self, store: &mut Store) {
        let removed = store.meta_names().and_then(|names| self.remove_other_files(store, &names));
        if let Err(error) = removed {
            eprintln!("ramlace: an old log or snapshot stays for now: {error}");
        }
    }

    /// Removes what the newest snapshot replaces, and an unfinished one.
    pub fn remove_other_files(&self, store: &mut Store, names: &[String]) -> Result<()> {
        for name in names {
            let older = |prefix| numbered(name, prefix).is_some_and(|number| number < self.base);
            if older("log-") || older("snapshot-") || name == SNAPSHOT_NEXT {
                store.meta_remove(name)?;
            }
        }
        Ok(())
    }
}

/// Writes records to a snapshot, and slots in pieces, through a buffer of a bounded size.
struct Pieces<'file> {
    file: &'file mut MetaFile,
    buffer: Vec<u8>,
    /// Bytes written to it.
    written: usize,
}

impl Pieces<'_> {
    fn new(file: &mut MetaFile) -> Pieces<'_> {
        Pieces { file, buffer: Vec::new(), written: 0 }
    }

    fn put(&mut self, record: &Record, position: Position) -> Result<()> {
        let before = self.buffer.len();
        framing::encode(record, position, &mut self.buffer)?;
        self.written += self.buffer.len() - before;
        if self.buffer.len() >= PIECE_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn put_slot(&mut self, value: &SlotValue) -> Result<()> {
        let mut failed = Ok(());
        let flavor = Cut { value, pieces: self, piece: Vec::new(), failed: &mut failed };
        let written = postcard::serialize_with_flavor(value, flavor);
        failed?;
        written.expect("every slot can be written");
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.append_urgent(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Cuts a slot's bytes into pieces as they are made, so that they are never in memory all at once.
struct Cut<'cut, 'file> {
    value: &'cut SlotValue,
    pieces: &'cut mut Pieces<'file>,
    piece: Vec<u8>,
    failed: &'cut mut Result<()>,
}

impl Cut<'_, '_> {
    fn end_piece(&mut self, last: bool) -> postcard::Result<()> {
        let bytes = std::mem::take(&mut self.piece);
        let record = Record::SlotPiece { slot: self.value.slot(), last, bytes };
        *self.failed = self.pieces.put(&record, self.value.position());
        if let Record::SlotPiece { bytes, .. } = record {
            self.piece = bytes;
            self.piece.clear();
        }
        if self.failed.is_ok() { Ok(()) } else { Err(postcard::Error::SerializeBufferFull) }
    }
}

impl postcard::ser_flavors::Flavor for Cut<'_, '_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, mut bytes: &[u8]) -> postcard::Result<()> {
        // A full piece is only written when more comes, so that the last one is never empty.
        while self.piece.len() + bytes.len() > PIECE_BYTES_MAX {
            let (now, later) = bytes.split_at(PIECE_BYTES_MAX - self.piece.len());
            self.piece.extend_from_slice(now);
            self.end_piece(false)?;
            bytes = later;
        }
        self.piece.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(mut self) -> postcard::Result<()> {
        self.end_piece(true)
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

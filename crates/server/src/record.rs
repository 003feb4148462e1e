//! The records of the operation log and of snapshots, and their bytes.
//!
//! A record is `length u32, CRC-32C u32, postcard`. The log is written before the reply, so a
//! process that dies loses at most a record that nobody was told of: a torn tail is cut off.

use std::borrow::Cow;

use ramlace_base::{Error, ErrorKind, LaneId, Result, Sequence, SessionId, Slot, Timestamp};
use ramlace_namespace::{Command, Room, SlotState};
use ramlace_wire::Owner;
use serde::{Deserialize, Serialize};

use crate::lanes::LaneRecord;
use crate::sessions::SessionRecord;

/// First bytes of a log and of a snapshot; the number is the version of [`Record`].
pub const LOG_MAGIC: [u8; 8] = *b"rlog\0\0\0\x06";
/// Largest record: one slot's state in a snapshot.
const RECORD_BYTES_MAX: usize = 1 << 30;
const HEADER_BYTES: usize = 8;

/// How a slot's state begins: everything that its first command must find again on replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotBirth {
    /// The slot.
    pub slot: Slot,
    /// Slots of the pool.
    pub slots: u32,
    /// The epoch in which its counter begins.
    pub began: ramlace_base::Epoch,
    /// Keys the order of directory entries.
    pub hash_seed: u64,
    /// Owner of the root directory, should the slot hold it.
    pub owner: Owner,
    /// The root's times.
    pub now: Timestamp,
}

/// One thing that happened.
#[derive(Serialize, Deserialize)]
pub enum Record<'state> {
    /// A session began.
    SessionOpened(SessionRecord),
    /// A session ended; its traces in every slot go.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// When.
        now: Timestamp,
    },
    /// A slot's state began.
    SlotBorn(SlotBirth),
    /// A command to a slot.
    Command {
        /// The slot.
        slot: Slot,
        /// The command.
        command: Box<Command>,
        /// Whether it may make an inode.
        room: Room,
    },
    /// What is known of a lane changed.
    Lane {
        /// The lane.
        lane: LaneId,
        /// `None`: it was dropped.
        record: Option<LaneRecord>,
    },
    /// A chunk write was done; a retry of it is answered and not done again.
    ChunkWritten {
        /// The lane's slot.
        slot: Slot,
        /// The writer's session.
        session: SessionId,
        /// The write.
        sequence: Sequence,
    },
    /// A cell is changed: its answer, and what is still to be stored. `ChunkWritten` follows when it was.
    CellChanged {
        /// The lane's slot.
        slot: Slot,
        /// Who changes it.
        session: SessionId,
        /// The change.
        sequence: Sequence,
        /// What the cell held.
        before: u64,
        /// `None` in snapshots: it was stored.
        store: Option<CellStore>,
    },
    /// In snapshots: a slot's whole state.
    Slot(Box<Cow<'state, SlotState>>),
    /// Leases are given from now on, or those that were are over.
    GivesLeases(bool),
}

/// What a cell is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellStore {
    /// The lane.
    pub lane: LaneId,
    /// Where in its file.
    pub offset: u64,
    /// The number.
    pub after: u64,
}

/// Appends a record's bytes, unless they are more than [`Records`] would read again.
pub fn encode_checked(record: &Record<'_>, into: &mut Vec<u8>) -> Result<()> {
    let start = into.len();
    encode(record, into);
    if into.len() - start > RECORD_BYTES_MAX {
        let text = format!("a record of {} bytes is larger than {RECORD_BYTES_MAX}", into.len() - start);
        into.truncate(start);
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    Ok(())
}

/// Appends a record's bytes.
pub fn encode(record: &Record<'_>, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; HEADER_BYTES]);
    let mut bytes = postcard::to_extend(record, std::mem::take(into)).expect("every record can be written");
    let body = &bytes[start + HEADER_BYTES..];
    let (length, checksum) = (body.len() as u32, crc_fast::crc32_iscsi(body));
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    bytes[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    *into = bytes;
}

/// The records of a file, and how many of its bytes they take: what follows is a torn tail.
pub struct Records<'bytes> {
    bytes: &'bytes [u8],
    consumed: usize,
}

impl<'bytes> Records<'bytes> {
    /// Reads the file's magic. An empty file holds no records.
    pub fn new(bytes: &'bytes [u8]) -> Result<Records<'bytes>> {
        if bytes.len() >= LOG_MAGIC.len() && bytes[..LOG_MAGIC.len()] != LOG_MAGIC {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "the operation log was written by another version of ramlace",
            ));
        }
        Ok(Records { bytes, consumed: LOG_MAGIC.len().min(bytes.len()) })
    }

    /// Bytes up to the end of the last whole record.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The next record; `None` at the end and at a torn tail.
    pub fn next(&mut self) -> Option<Record<'static>> {
        let rest = &self.bytes[self.consumed..];
        let (header, rest) = rest.split_at_checked(HEADER_BYTES)?;
        let length = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
        let checksum = u32::from_le_bytes(header[4..].try_into().ok()?);
        if length > RECORD_BYTES_MAX {
            return None;
        }
        let body = rest.get(..length)?;
        if crc_fast::crc32_iscsi(body) != checksum {
            return None;
        }
        let record = postcard::from_bytes(body).ok()?;
        self.consumed += HEADER_BYTES + length;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(sequence: u64) -> Record<'static> {
        Record::ChunkWritten { slot: Slot(7), session: SessionId([9; 16]), sequence: Sequence(sequence) }
    }

    fn sequences(bytes: &[u8]) -> (Vec<u64>, usize) {
        let mut records = Records::new(bytes).unwrap();
        let mut found = Vec::new();
        while let Some(record) = records.next() {
            let Record::ChunkWritten { sequence, .. } = record else { panic!("another record was written") };
            found.push(sequence.0);
        }
        (found, records.consumed())
    }

    #[test]
    fn a_log_torn_at_any_byte_keeps_its_whole_records() {
        let mut bytes = LOG_MAGIC.to_vec();
        let mut ends = vec![bytes.len()];
        for sequence in 0..5 {
            encode(&written(sequence), &mut bytes);
            ends.push(bytes.len());
        }
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
            let (found, consumed) = sequences(&bytes[..cut]);
            assert_eq!(found, (0..whole as u64).collect::<Vec<_>>(), "cut at {cut}");
            assert_eq!(consumed, if cut < LOG_MAGIC.len() { cut } else { ends[whole] });
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_log_before_its_record() {
        let mut bytes = LOG_MAGIC.to_vec();
        encode(&written(0), &mut bytes);
        let first = bytes.len();
        encode(&written(1), &mut bytes);
        for byte in first..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[byte] ^= 1 << bit;
                assert_eq!(sequences(&damaged), (vec![0], first));
            }
        }
    }

    #[test]
    fn another_version_is_refused() {
        assert_eq!(Records::new(b"rlog\0\0\0\x01").err().unwrap().kind(), ErrorKind::Corrupt);
    }
}

//! The records of the operation log and of snapshots, and their bytes.
//!
//! A record is `length u32, CRC-32C u32, CRC-32C u32 of these 8 bytes, postcard`. The log is written before the
//! reply, so a process that dies loses at most a record that nobody was told of.
//!
//! Torn or damaged: the kernel appends the bytes of a record in order, so one whose write was cut short is the
//! beginning of a record that ends with the file. Such a torn tail is cut off. Whatever else does not fit is damage,
//! in the last record too, and is refused: a header whose checksum is wrong (its length cannot be believed, so
//! that a damaged one never passes for a tail), a whole body with another checksum, a body that is no record.

use std::borrow::Cow;

use ramlace_base::{Error, ErrorKind, Result, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneChange, LaneTable, StoreStep};
use ramlace_namespace::{Command, Room, SlotState};
use ramlace_wire::Owner;
use serde::{Deserialize, Serialize};

use crate::sessions::SessionRecord;

/// First bytes of a log and of a snapshot; the number is the version of [`Record`].
pub const LOG_MAGIC: [u8; 8] = *b"rlog\0\0\0\x07";
/// Largest record: one slot's state in a snapshot.
const RECORD_BYTES_MAX: usize = 1 << 30;
const HEADER_BYTES: usize = 12;
/// The part of a header that its own checksum is of.
const HEADER_CHECKED_BYTES: usize = 8;

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
    /// Something happened to the lanes of a slot.
    Lane {
        /// The slot.
        slot: Slot,
        /// What.
        change: LaneChange,
    },
    /// In snapshots: a slot's whole state.
    Slot(Box<Cow<'state, SlotState>>),
    /// In snapshots: all lanes of a slot.
    Lanes {
        /// The slot.
        slot: Slot,
        /// They.
        table: Box<Cow<'state, LaneTable>>,
    },
    /// Leases are given from now on, or those that were are over.
    GivesLeases(bool),
}

impl Record<'_> {
    /// What it does to the bytes of a lane.
    pub fn bytes(&self) -> Option<StoreStep> {
        match self {
            Record::Lane { change, .. } => change.bytes(),
            _ => None,
        }
    }
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
    bytes[start + 4..start + HEADER_CHECKED_BYTES].copy_from_slice(&checksum.to_le_bytes());
    let checksum = crc_fast::crc32_iscsi(&bytes[start..start + HEADER_CHECKED_BYTES]);
    bytes[start + HEADER_CHECKED_BYTES..start + HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    *into = bytes;
}

/// What cannot be read in a file, and is no torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where in the file.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// The records of a file, and how many of its bytes they take: what follows is a torn tail.
pub struct Records<'bytes> {
    bytes: &'bytes [u8],
    consumed: usize,
}

impl<'bytes> Records<'bytes> {
    /// Reads the file's magic. An empty file holds no records.
    pub fn new(bytes: &'bytes [u8]) -> std::result::Result<Records<'bytes>, Damage> {
        let magic = bytes.len().min(LOG_MAGIC.len());
        if bytes[..magic] != LOG_MAGIC[..magic] {
            let what = "it does not begin as a log of this version of ramlace does";
            return Err(Damage { offset: 0, what });
        }
        Ok(Records { bytes, consumed: magic })
    }

    /// Bytes up to the end of the last whole record.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The next record; `None` at the end and at a torn tail.
    pub fn next(&mut self) -> std::result::Result<Option<Record<'static>>, Damage> {
        let damage = |what| Damage { offset: self.consumed, what };
        let Some((header, rest)) = self.bytes[self.consumed..].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if crc_fast::crc32_iscsi(&header[..HEADER_CHECKED_BYTES]) != number(HEADER_CHECKED_BYTES) {
            return Err(damage("a record's header has another checksum"));
        }
        let length = number(0) as usize;
        if length > RECORD_BYTES_MAX {
            return Err(damage("a record is longer than any may be"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        if crc_fast::crc32_iscsi(body) != number(4) {
            return Err(damage("a record has another checksum"));
        }
        let record = postcard::from_bytes(body).map_err(|_| damage("a record cannot be decoded"))?;
        self.consumed += HEADER_BYTES + length;
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{ByteRange, InodeId, LaneId, Sequence};

    use super::*;

    fn written(sequence: u64) -> Record<'static> {
        let lane = LaneId { inode: InodeId(9), lane: 0 };
        let (range, session) = (ByteRange { start: 0, end: 8 }, SessionId([9; 16]));
        let change = LaneChange::Written { lane, range, session, sequence: Sequence(sequence) };
        Record::Lane { slot: Slot(7), change }
    }

    fn sequences(bytes: &[u8]) -> std::result::Result<(Vec<u64>, usize), Damage> {
        let mut records = Records::new(bytes)?;
        let mut found = Vec::new();
        while let Some(record) = records.next()? {
            let Record::Lane { change: LaneChange::Written { sequence, .. }, .. } = record else {
                panic!("another record was written")
            };
            found.push(sequence.0);
        }
        Ok((found, records.consumed()))
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
            let (found, consumed) = sequences(&bytes[..cut]).unwrap();
            assert_eq!(found, (0..whole as u64).collect::<Vec<_>>(), "cut at {cut}");
            assert_eq!(consumed, if cut < LOG_MAGIC.len() { cut } else { ends[whole] });
        }
    }

    #[test]
    fn a_flipped_bit_is_damage_at_its_record_wherever_it_is() {
        let mut bytes = LOG_MAGIC.to_vec();
        let mut starts = vec![0, bytes.len()];
        for sequence in 0..3 {
            encode(&written(sequence), &mut bytes);
            starts.push(bytes.len());
        }
        for byte in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[byte] ^= 1 << bit;
                let at = *starts.iter().rfind(|start| **start <= byte).unwrap();
                let refused = sequences(&damaged).expect_err("damage is said, never cut off");
                assert_eq!(refused.offset, at, "bit {bit} of byte {byte}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_before_a_torn_tail_is_damage_too() {
        let mut bytes = LOG_MAGIC.to_vec();
        encode(&written(0), &mut bytes);
        let first = bytes.len();
        encode(&written(1), &mut bytes);
        for byte in 0..first {
            let mut damaged = bytes[..bytes.len() - 1].to_vec();
            damaged[byte] ^= 0x10;
            assert!(sequences(&damaged).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn another_version_is_refused() {
        assert_eq!(Records::new(b"rlog\0\0\0\x01").err().unwrap().offset, 0);
    }
}

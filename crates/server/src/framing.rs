//! The bytes of a log and of a snapshot: a magic, then records one behind the other.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of the body |
//! | 4 | CRC-32C of the body |
//! | 8 | position: how many records of its place this one makes |
//! | 4 | place: the slot, or 2^32 - 1 for the server itself |
//! | 2 | kind, by the table in [`crate::record`] |
//! | 4 | CRC-32C of these 22 bytes |
//! | | the body, in postcard |
//!
//! Numbers are little-endian. The log is written before the reply, so a process that dies loses at most a record that
//! nobody was notified of.
//!
//! Torn or damaged: the kernel appends the bytes of a record in order, so one whose write was cut short is the
//! beginning of a record that ends with the file. Such a torn tail is cut off. Whatever else does not fit is damage,
//! in the last record too, and is refused: a header whose checksum is wrong (its length cannot be believed, so
//! that a damaged one never passes for a tail), a whole body with another checksum, a body that is no record.

use ramlace_base::{Error, ErrorKind, Position, Result, limits};

use crate::record::{At, Place, Record};

/// The first bytes of a log and of a snapshot; the last of them is the version of the format.
pub const LOG_MAGIC: [u8; 8] = *b"rlog\0\0\0\x18";
/// The number of bytes that all versions share.
const MAGIC_OF_ALL_BYTES: usize = 7;
const HEADER_BYTES: usize = 26;
/// The part of a header that the header's checksum covers.
const HEADER_CHECKED_BYTES: usize = 22;

/// Appends a record's bytes; refuses more than [`Records`] would read.
pub fn encode(record: &Record, position: Position, into: &mut Vec<u8>) -> Result<()> {
    let start = into.len();
    into.extend_from_slice(&[0; HEADER_BYTES]);
    let mut bytes = record.encode_body(std::mem::take(into));
    if bytes.len() - start - HEADER_BYTES > limits::RECORD_BYTES_MAX {
        let text =
            format!("a record of {} bytes is larger than {}", bytes.len() - start, limits::RECORD_BYTES_MAX);
        bytes.truncate(start);
        *into = bytes;
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    let (header, body) = bytes[start..].split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&crc_fast::crc32_iscsi(body).to_le_bytes());
    header[8..16].copy_from_slice(&position.0.to_le_bytes());
    header[16..20].copy_from_slice(&record.place().number().to_le_bytes());
    header[20..22].copy_from_slice(&record.kind().to_le_bytes());
    let checksum = crc_fast::crc32_iscsi(&header[..HEADER_CHECKED_BYTES]);
    header[HEADER_CHECKED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    *into = bytes;
    Ok(())
}

/// Why a file cannot be read, other than for a torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offset in the file.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It has another format than [`LOG_MAGIC`] names.
    Format(u8),
    /// It is damaged.
    Damaged(Damage),
}

impl From<Damage> for Unreadable {
    fn from(damage: Damage) -> Unreadable {
        Unreadable::Damaged(damage)
    }
}

/// The records of a file, and the bytes that they take: what follows is a torn tail.
pub struct Records<'bytes> {
    bytes: &'bytes [u8],
    consumed: usize,
}

impl<'bytes> Records<'bytes> {
    /// Checks the file's magic. An empty file holds no records.
    pub fn new(bytes: &'bytes [u8]) -> std::result::Result<Records<'bytes>, Unreadable> {
        let all = bytes.len().min(MAGIC_OF_ALL_BYTES);
        if bytes[..all] != LOG_MAGIC[..all] {
            return Err(Damage { offset: 0, what: "it does not begin as a log does" }.into());
        }
        match bytes.get(MAGIC_OF_ALL_BYTES) {
            Some(format) if *format != LOG_MAGIC[MAGIC_OF_ALL_BYTES] => Err(Unreadable::Format(*format)),
            _ => Ok(Records { bytes, consumed: bytes.len().min(LOG_MAGIC.len()) }),
        }
    }

    /// Bytes up to the end of the last whole record.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The next record and its position in the history of its place; `None` at the end and at a torn tail.
    pub fn next(&mut self) -> std::result::Result<Option<(At, Record)>, Damage> {
        let damage = |what| Damage { offset: self.consumed, what };
        let Some((header, rest)) = self.bytes[self.consumed..].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        if crc_fast::crc32_iscsi(&header[..HEADER_CHECKED_BYTES]) != number(header, HEADER_CHECKED_BYTES) {
            return Err(damage("a record's header has another checksum"));
        }
        let length = number(header, 0) as usize;
        if length > limits::RECORD_BYTES_MAX {
            return Err(damage("a record is longer than any may be"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        if crc_fast::crc32_iscsi(body) != number(header, 4) {
            return Err(damage("a record has another checksum"));
        }
        let position = u64::from(number(header, 8)) | u64::from(number(header, 12)) << 32;
        let place =
            Place::from_number(number(header, 16)).ok_or_else(|| damage("no slot has such a number"))?;
        let kind = u16::from_le_bytes([header[20], header[21]]);
        let record = Record::decode(kind, place, body).map_err(damage)?;
        self.consumed += HEADER_BYTES + length;
        Ok(Some((At { place, position: Position(position) }, record)))
    }
}

fn number(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;

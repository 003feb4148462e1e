//! Frames under keys: an attacker between two machines can read, change, repeat, reorder or leave out nothing
//! without the connection's end.
//!
//! AES-128-GCM, a key for each direction of each connection. The number of what was sealed before in this
//! direction is the nonce, so that order and place are part of what is proved. A frame's header stays
//! readable, since its lengths are needed before the rest is here, and is proved together with the body.
//! Bulk data go in records of at most [`RECORD_BYTES`], each proved before a byte of it reaches its place.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::HEADER_BYTES;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::keys::KEY_BYTES;

/// The bytes by which sealing makes each head and record longer.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of data in one record; the last one of a frame may be shorter. They fit a core's own cache, so that
/// sealing does not fetch them twice.
pub(crate) const RECORD_BYTES: usize = 64 << 10;
/// Bytes of data in records that leave by one call: each call wakes the other side, which costs as much as sealing a
/// record. More of them would keep the other side from opening one while the next is sealed.
pub(crate) const SENT_TOGETHER_BYTES: usize = 4 * RECORD_BYTES;
/// Bytes of a reply that are waited for at once, unless fewer are to come, for the same reason.
const AWAITED_BYTES: usize = 2 * (RECORD_BYTES + TAG_BYTES);
/// Bytes of an AES-128 key: the first of the 32 that were agreed on.
const CIPHER_KEY_BYTES: usize = 16;

/// How frames are protected on a connection. The server chooses and proves its choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: a Unix socket, which no other machine can intercept.
    Nothing,
    /// Headers and bodies are sealed, bulk data go as they are: the pool trusts its network.
    Heads,
    /// All of it is sealed.
    Everything,
}

impl Protection {
    pub(crate) fn number(self) -> u8 {
        match self {
            Protection::Nothing => 0,
            Protection::Heads => 1,
            Protection::Everything => 2,
        }
    }

    /// Refuses plain frames where an attacker may be in between, whatever the server says. Errors: `Protocol`.
    pub(crate) fn check_on(self, is_unix: bool) -> Result<()> {
        if self == Protection::Nothing && !is_unix {
            let text = "the server wants frames without keys on a network; nothing is sent so";
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        Ok(())
    }

    pub(crate) fn by_number(number: u8) -> Option<Protection> {
        [Protection::Nothing, Protection::Heads, Protection::Everything]
            .into_iter()
            .find(|protection| protection.number() == number)
    }
}

/// One side's keys for the frames of a connection.
pub(crate) struct FrameKeys {
    pub(crate) send: [u8; KEY_BYTES],
    pub(crate) receive: [u8; KEY_BYTES],
}

/// One direction: its key, and how much was sealed or opened with it.
struct Direction {
    key: LessSafeKey,
    count: u64,
}

impl Direction {
    fn new(key: &[u8; KEY_BYTES]) -> Direction {
        let key = UnboundKey::new(&AES_128_GCM, &key[..CIPHER_KEY_BYTES]).expect("the key has its length");
        Direction { key: LessSafeKey::new(key), count: 0 }
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_le_bytes());
        self.count = self.count.checked_add(1).expect("nobody sends 2^64 frames");
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts `bytes[at..]` and appends the tag.
    fn seal(&mut self, proved: &[u8], bytes: &mut Vec<u8>, at: usize) {
        let nonce = self.next_nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(proved), &mut bytes[at..]);
        bytes.extend_from_slice(tag.expect("a record is short enough").as_ref());
    }

    /// Decrypts in place; returns the bytes before the tag. Errors: `Protocol`.
    fn open<'bytes>(&mut self, proved: &[u8], sealed: &'bytes mut [u8]) -> Result<&'bytes mut [u8]> {
        let nonce = self.next_nonce();
        self.key.open_in_place(nonce, Aad::from(proved), sealed).map_err(|_| {
            Error::new(
                ErrorKind::Protocol,
                "bytes came that the other side did not send so; something on the network changes them",
            )
        })
    }
}

/// The keys of a connection at work.
pub(crate) struct Seal {
    send: Direction,
    receive: Direction,
    covers_data: bool,
}

impl Seal {
    /// The seal that a connection with this protection needs; `None`: none.
    pub(crate) fn new(keys: &FrameKeys, protection: Protection) -> Option<Box<Seal>> {
        let covers_data = match protection {
            Protection::Nothing => return None,
            Protection::Heads => false,
            Protection::Everything => true,
        };
        let (send, receive) = (Direction::new(&keys.send), Direction::new(&keys.receive));
        Some(Box::new(Seal { send, receive, covers_data }))
    }

    pub(crate) fn covers_data(&self) -> bool {
        self.covers_data
    }

    /// Seals the header and body at the end of `frame`, which begin at `at`.
    pub(crate) fn seal_head(&mut self, frame: &mut Vec<u8>, at: usize) {
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&frame[at..at + HEADER_BYTES]);
        self.send.seal(&header, frame, at + HEADER_BYTES);
    }

    /// Opens a body, its tag behind it; returns the body. Errors: `Protocol`.
    pub(crate) fn open_body<'body>(
        &mut self,
        header: &[u8; HEADER_BYTES],
        body: &'body mut [u8],
    ) -> Result<&'body mut [u8]> {
        self.receive.open(header, body)
    }

    /// Seals the record at the end of `frame`, which begins at `at`.
    pub(crate) fn seal_record(&mut self, frame: &mut Vec<u8>, at: usize) {
        debug_assert!(frame.len() - at <= RECORD_BYTES);
        self.send.seal(&[], frame, at);
    }

    /// Opens a record, its tag behind it. Errors: `Protocol`.
    pub(crate) fn open_record(&mut self, record: &mut [u8]) -> Result<()> {
        self.receive.open(&[], record).map(drop)
    }
}

/// The bytes behind a body or record on the wire.
pub(crate) fn tag_bytes(seal: Option<&Seal>) -> usize {
    if seal.is_some() { TAG_BYTES } else { 0 }
}

/// The length of `data` bytes in records.
pub(crate) fn sealed_bytes(data: usize) -> usize {
    data + data.div_ceil(RECORD_BYTES) * TAG_BYTES
}

/// A record that has been opened, or is arriving.
#[derive(Default)]
pub(crate) struct Record {
    /// Sealed bytes while it arrives; then its bytes, and the tag.
    pub(crate) buffer: Vec<u8>,
    /// Bytes of `buffer` that have arrived, while it does.
    pub(crate) filled: usize,
    /// Opened bytes that are not taken yet begin here.
    start: usize,
    end: usize,
}

impl Record {
    /// Opened bytes that are not taken yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn left(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.left());
        self.start += count;
    }

    /// Prepares for the next record of a frame with so much data to come.
    pub(crate) fn begin(&mut self, data_left: usize) {
        debug_assert!(self.left() == 0);
        if self.filled == 0 {
            self.buffer.resize(data_left.min(RECORD_BYTES) + TAG_BYTES, 0);
        }
    }

    /// How many bytes may wake the thread that waits for the rest of a record, in a frame with `data_left`
    /// bytes still to be taken. A receive may take all of the record except one byte and sleep again: this
    /// many bytes are sure to come then, that byte and everything behind the record. 1 for the last record.
    pub(crate) fn wakes_at(&self, data_left: usize) -> usize {
        let room = self.buffer.len() - self.filled;
        (self.wire_bytes_left(data_left) - room + 1).min(AWAITED_BYTES)
    }

    /// Where the bytes that are missing go.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    /// Opens it, now that it is here.
    pub(crate) fn open(&mut self, seal: &mut Seal) -> Result<()> {
        debug_assert!(self.filled == self.buffer.len());
        self.filled = 0;
        seal.open_record(&mut self.buffer)?;
        (self.start, self.end) = (0, self.buffer.len() - TAG_BYTES);
        Ok(())
    }

    /// The bytes still to come on the wire for a frame with `data_left` bytes still to be taken.
    pub(crate) fn wire_bytes_left(&self, data_left: usize) -> usize {
        sealed_bytes(data_left - self.left()) - self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Box<Seal>, Box<Seal>) {
        let there = FrameKeys { send: [1; KEY_BYTES], receive: [2; KEY_BYTES] };
        let here = FrameKeys { send: there.receive, receive: there.send };
        let seal = |keys| Seal::new(keys, Protection::Everything).unwrap();
        (seal(&there), seal(&here))
    }

    fn sealed(seal: &mut Seal, body: &[u8]) -> (Vec<u8>, [u8; HEADER_BYTES]) {
        let header = [7; HEADER_BYTES];
        let mut frame = [&header[..], body].concat();
        seal.seal_head(&mut frame, 0);
        (frame.split_off(HEADER_BYTES), header)
    }

    #[test]
    fn heads_and_records_come_back_in_order() {
        let (mut there, mut here) = pair();
        for body in [&b""[..], b"x", &[9; 5000]] {
            let (mut wire, header) = sealed(&mut there, body);
            assert_eq!(here.open_body(&header, &mut wire).unwrap(), body);
            let mut record = body.to_vec();
            there.seal_record(&mut record, 0);
            assert!(body.len() < 5000 || record[..5000] != body[..], "the bytes are hidden");
            here.open_record(&mut record).unwrap();
            assert_eq!(&record[..body.len()], body);
        }
    }

    #[test]
    fn what_was_changed_repeated_left_out_or_turned_back_is_refused() {
        let (mut there, mut here) = pair();
        let (mut wire, header) = sealed(&mut there, b"body");
        for bit in 0..wire.len() * 8 {
            let (_, mut fresh) = pair();
            let mut damaged = wire.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(fresh.open_body(&header, &mut damaged).unwrap_err().kind(), ErrorKind::Protocol);
        }
        for bit in 0..header.len() * 8 {
            let (_, mut fresh) = pair();
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(fresh.open_body(&damaged, &mut wire.clone()).is_err());
        }
        here.open_body(&header, &mut wire.clone()).unwrap();
        assert!(here.open_body(&header, &mut wire.clone()).is_err(), "repeated");
        let (_, mut fresh) = pair();
        sealed(&mut there, b"left out");
        let (mut later, header) = sealed(&mut there, b"later");
        assert!(fresh.open_body(&header, &mut later).is_err(), "another is missing before it");
        let (mut turned, _) = pair();
        assert!(turned.open_body(&header, &mut wire.clone()).is_err(), "reflected");
        // A record is no body.
        let (_, mut fresh) = pair();
        assert!(fresh.open_record(&mut wire).is_err());
    }

    #[test]
    fn whoever_waits_for_a_record_is_woken_whatever_has_been_taken_of_it() {
        for data_left in [1, RECORD_BYTES, RECORD_BYTES + 1, 2 * RECORD_BYTES, 3 * RECORD_BYTES - 1, 1 << 20]
        {
            for buffered in [0, 1, 70, 16_000] {
                let mut record = Record::default();
                record.begin(data_left);
                record.filled = record.buffer.len().min(buffered);
                let (room, missing) = (record.room().len(), record.wire_bytes_left(data_left));
                let wakes_at = record.wakes_at(data_left);
                assert!((1..=AWAITED_BYTES).contains(&wakes_at));
                for taken in 0..room {
                    assert!(
                        missing - taken >= wakes_at,
                        "{taken} of {room} are taken, {missing} were missing"
                    );
                }
                assert!(
                    data_left > RECORD_BYTES || wakes_at == 1,
                    "nothing is sure to come behind the last record"
                );
            }
        }
    }

    #[test]
    fn what_is_left_on_the_wire_is_known() {
        let mut record = Record::default();
        assert_eq!(record.wire_bytes_left(0), 0);
        assert_eq!(record.wire_bytes_left(1), 1 + TAG_BYTES);
        assert_eq!(record.wire_bytes_left(RECORD_BYTES + 1), RECORD_BYTES + 1 + 2 * TAG_BYTES);
        record.begin(3);
        record.filled = 2;
        assert_eq!(record.wire_bytes_left(3), 1 + TAG_BYTES);
    }
}

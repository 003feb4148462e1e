//! The buffer between a socket and the frames in it.
//!
//! One receive may bring many small frames. Bulk data shall not pass through here, so after a
//! frame with much data the next receive asks for no more than such a frame's head.

use ramlace_base::limits;
use ramlace_wire::{HEADER_BYTES, Header};

/// Size of the buffer: some 150 small requests.
pub(crate) const INPUT_BYTES: usize = limits::CONNECTION_INPUT_BYTES;

/// Received bytes that are not taken yet.
pub(crate) struct Input {
    /// Empty, or [`INPUT_BYTES`] long.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How much the next receive may bring, including the bytes that are there.
    wanted: usize,
}

impl Input {
    pub(crate) fn new() -> Input {
        Input { buffer: Vec::new(), start: 0, end: 0, wanted: INPUT_BYTES }
    }

    /// The bytes that are there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The bytes that are there, to be decrypted in place.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Drops the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.len());
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves up to `into.len()` bytes out; returns how many.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.len());
        into[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// Where the next receive shall write: room for at least `missing` more bytes. The buffer must be there,
    /// and `missing` fit behind what it holds.
    pub(crate) fn room(&mut self, missing: usize) -> &mut [u8] {
        debug_assert!(self.len() + missing <= INPUT_BYTES && self.has_buffer());
        let count = self.room_bytes(missing);
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..self.end + count]
    }

    /// How long that room is, whether the buffer is there or not.
    pub(crate) fn room_bytes(&self, missing: usize) -> usize {
        missing.max(self.wanted.saturating_sub(self.len())).min(INPUT_BYTES - self.len())
    }

    /// Notes that a receive wrote `count` bytes into [`Input::room`].
    pub(crate) fn received(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.buffer.len());
    }

    /// Predicts the next frame from this one, which has a tag of `tag_bytes` behind its body.
    pub(crate) fn expect_like(&mut self, header: &Header, tag_bytes: usize) {
        let bulky = header.data_bytes as usize > limits::STAGED_BYTES_MAX;
        let head = HEADER_BYTES + header.body_bytes as usize + tag_bytes;
        self.wanted = if bulky { head.min(INPUT_BYTES) } else { INPUT_BYTES };
    }

    pub(crate) fn has_buffer(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Gives the buffer that receives go into.
    pub(crate) fn lend_buffer(&mut self, buffer: Vec<u8>) {
        assert!(buffer.len() == INPUT_BYTES && !self.has_buffer());
        self.buffer = buffer;
    }

    /// Takes the buffer back, unless something is in it.
    pub(crate) fn return_buffer(&mut self) -> Option<Vec<u8>> {
        (self.has_buffer() && self.len() == 0).then(|| std::mem::take(&mut self.buffer))
    }
}

#[cfg(test)]
mod tests {
    use ramlace_wire::Kind;

    use super::*;

    fn filled(count: usize) -> Input {
        let mut input = Input::new();
        input.lend_buffer(vec![0; INPUT_BYTES]);
        for (index, byte) in input.room(count)[..count].iter_mut().enumerate() {
            *byte = index as u8;
        }
        input.received(count);
        input
    }

    #[test]
    fn bytes_come_out_in_order_and_the_room_grows_back() {
        let mut input = filled(100);
        let mut first = [0; 30];
        assert_eq!(input.take(&mut first), 30);
        assert_eq!(input.bytes()[0], 30);
        assert_eq!(input.room(1).len(), INPUT_BYTES - 70);
        assert_eq!(input.bytes()[0], 30);
        assert!(input.return_buffer().is_none());
        input.consume(70);
        assert_eq!(input.return_buffer().unwrap().len(), INPUT_BYTES);
    }

    #[test]
    fn after_bulk_data_no_more_than_a_head_is_asked_for() {
        let mut input = filled(10);
        let bulky = Header { body_bytes: 40, data_bytes: 1 << 20, ..Header::request(Kind::WriteChunk) };
        input.expect_like(&bulky, 16);
        assert_eq!(input.room(1).len(), HEADER_BYTES + 40 + 16 - 10);
        assert_eq!(input.room(200).len(), 200);
        input.expect_like(&Header { data_bytes: 4096, ..bulky }, 0);
        assert_eq!(input.room(1).len(), INPUT_BYTES - 10);
    }
}

//! Sealed data come in: record by record, each proved before a byte of it reaches its place.

use std::os::fd::BorrowedFd;

use ramlace_base::{Error, Result};

use super::buffers;
use super::connection::{Connection, closed_inside_a_frame};
use crate::raw::{self, Cursor};

impl Connection {
    /// Whether the data of frames are sealed.
    pub(super) fn data_is_sealed(&self) -> bool {
        self.seal.as_ref().is_some_and(|seal| seal.covers_data())
    }

    pub(super) async fn stage_opened(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.next_record().await?;
            let count = (buffer.len() - filled).min(self.record.left());
            buffer[filled..filled + count].copy_from_slice(&self.record.bytes()[..count]);
            self.take_opened(count);
            filled += count;
        }
        Ok(())
    }

    pub(super) async fn place_opened(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        while cursor.left() > 0 {
            self.next_record().await?;
            self.socket.check_cancelled()?;
            self.check_sender_now()?;
            let count = cursor.left().min(self.record.left());
            let stored = raw::store(&self.record.bytes()[..count], cursor);
            self.take_opened(count);
            stored.map_err(|error| Error::from_io(&error, "storing received bytes"))?;
        }
        Ok(())
    }

    pub(super) async fn skip_opened(&mut self, mut length: usize) -> Result<()> {
        // Skipped records are decrypted, too: that keeps the count that is the nonce.
        while length > 0 {
            self.next_record().await?;
            let count = length.min(self.record.left());
            self.take_opened(count);
            length -= count;
        }
        Ok(())
    }

    fn take_opened(&mut self, count: usize) {
        self.record.consume(count);
        self.data_left -= count;
        if self.data_left == 0 {
            buffers::return_record(&mut self.record);
        }
    }

    /// Makes sure that decrypted bytes are there, if there are data left. May be dropped while it waits: the
    /// received part of a record stays.
    async fn next_record(&mut self) -> Result<()> {
        if self.record.left() > 0 {
            return Ok(());
        }
        buffers::lend_record(&mut self.record);
        self.record.begin(self.data_left);
        self.record.filled += self.input.take(self.record.room());
        self.return_input_buffer();
        let will_wait = !self.record.room().is_empty();
        self.flush_before_waiting(will_wait).await?;
        while !self.record.room().is_empty() {
            let wanted = self.record.room().len();
            let (patience, record) = (self.patience(), &mut self.record);
            let receive = |socket: BorrowedFd<'_>| Ok(rustix::io::read(socket, &mut *record.room())?);
            let received = self.socket.receive(patience, wanted, receive).await?;
            if received == 0 {
                return Err(closed_inside_a_frame());
            }
            self.record.filled += received;
        }
        self.record.open(self.seal.as_mut().expect("only sealed data come in records"))
    }
}

//! A write by which a file grows, as one request: if the lane's server is also that of the file's home, the
//! home's change is sent along with the bytes ([`ExtendChunk`]). Otherwise, and for writes of several
//! requests, the home is notified once all bytes are written ([`crate::File::extend`]).

use std::cell::{Cell, OnceCell};
use std::io::IoSlice;
use std::time::Instant;

use ramlace_base::{ByteRange, Result};
use ramlace_wire::Request;
use ramlace_wire::chunk::{ExtendChunk, WriteChunk};
use ramlace_wire::namespace::{Extend, SizeInfo};

use crate::bytes::transfer::Transfer;
use crate::session::calls::Call;
use crate::session::lines::reply_without_data;
use crate::session::sequences::Ticket;

/// The growth that a write causes, and the home's answer to it.
pub(crate) struct Growth {
    written: ByteRange,
    answer: OnceCell<SizeInfo>,
}

impl Growth {
    /// The file shall reach the end of what is written.
    pub(crate) fn to(written: ByteRange) -> Growth {
        Growth { written, answer: OnceCell::new() }
    }

    /// The home's answer, if it has applied the growth.
    pub(crate) fn answer(&self) -> Option<SizeInfo> {
        self.answer.get().copied()
    }
}

impl Transfer<'_> {
    /// The sequence number for an extension that is sent along with a write in a slot, if that is possible.
    fn number_of_growth(
        &self,
        write: &WriteChunk,
        deadline: Instant,
    ) -> Result<Option<(&Growth, Ticket<'_>)>> {
        let Some(growth) = self.growth else { return Ok(None) };
        let (map, home) = (self.session.map()?, self.inode.slot());
        if map.primary(write.target.slot) != map.primary(home) {
            return Ok(None);
        }
        Ok(self.session.ticket_now(home, deadline)?.map(|ticket| (growth, ticket)))
    }

    /// Writes all of a write's bytes, and extends the file in the same request if that is possible; `false`:
    /// nothing was sent.
    pub(crate) fn write_and_extend(
        &self,
        write: WriteChunk,
        ticket: &Ticket<'_>,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Result<bool> {
        let Some((growth, number)) = self.number_of_growth(&write, deadline)? else { return Ok(false) };
        let ByteRange { start: from, end: size } = growth.written;
        let (sequence, outstanding) = (number.sequence(), number.outstanding());
        let request = ExtendChunk { write, size, from, sequence, outstanding };
        let lost = Cell::new(false);
        let call = Call {
            ticket: Some(ticket),
            data,
            repeated: Some(&lost),
            ..Call::about_lane(write.target.slot, deadline)
        };
        let answer = self.session.call(&request, &call, |_, received| reply_without_data(received));
        // A change that was abandoned may still be done; then the home has another size than it has answered.
        let answer = self.session.answered(Extend::KIND, number, lost.get(), answer)?;
        if let Some(size) = answer.size {
            let _ = growth.answer.set(size);
        }
        Ok(true)
    }
}

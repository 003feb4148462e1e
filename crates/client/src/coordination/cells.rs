//! Cells: eight bytes of a file at a multiple of eight, a little-endian number that many clients change
//! atomically.

use std::cell::Cell;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_wire::coordination::{CellChange, CellChanged, ChangeCell, ChangeInlineCell, InlineCellChanged};
use ramlace_wire::inline::InlineOutcome;

use crate::backoff::Backoff;
use crate::bytes::file::File;
use crate::bytes::transfer::{Direction, Memory};
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::session::calls::Call;
use crate::session::lines::reply_without_data;

/// Bytes of a cell.
const CELL_BYTES: u64 = 8;

impl File {
    /// Adds to the cell at `offset` (a multiple of 8, within the file), modulo 2^64, and returns its value
    /// from before. A signed number is added as its two's complement. One request to the server that holds
    /// the cell; the change is made exactly once, and is atomic for all readers and writers.
    ///
    /// Errors: `Invalid` beyond the file's end or between cells; `Lost` for bytes that were lost; `BadHandle`
    /// for a file that was not opened for reading and writing.
    pub fn fetch_add(&self, offset: u64, number: u64) -> Result<u64> {
        Ok(self.change_cell(offset, CellChange::Add(number))?.before)
    }

    /// Stores `new` in the cell at `offset` if its value is `expected`, and returns the value from before:
    /// `expected` when it was changed.
    ///
    /// Errors: as [`File::fetch_add`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64> {
        Ok(self.change_cell(offset, CellChange::Swap { expected, new })?.before)
    }

    fn change_cell(&self, offset: u64, change: CellChange) -> Result<CellChanged> {
        self.needs_writing()?;
        self.needs(self.rights().read, "reading")?;
        let handle = self.handle()?;
        self.change_cell_of(handle, offset, change).map_err(|error| self.tell(error))
    }

    fn change_cell_of(&self, handle: &Handle, offset: u64, change: CellChange) -> Result<CellChanged> {
        if !offset.is_multiple_of(CELL_BYTES) {
            let text = format!("a cell lies at a multiple of {CELL_BYTES} bytes, not at {offset}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let range = ByteRange::at(offset, CELL_BYTES)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "no file has a cell there"))?;
        let _changing = self.changing(range);
        if let Some(changed) = self.change_inline_cell(handle, offset, change)? {
            return Ok(changed);
        }
        self.change_cell_in_lane(handle, range, change)
    }

    /// Changes a cell in its lane. What was done before another client truncated the file, and was not answered, must not be
    /// done again: so a number whose answer was lost is kept, and is taken as late as possible, for threads that hold a
    /// number of one slot must not wait for one of another.
    fn change_cell_in_lane(
        &self,
        handle: &Handle,
        range: ByteRange,
        change: CellChange,
    ) -> Result<CellChanged> {
        let piece = ramlace_layout::pieces(self.layout(), range).next().expect("a cell is not empty");
        let session = &handle.session;
        let slot = ramlace_layout::lane_slot(self.layout(), piece.lane, session.map()?.slots());
        let (mut kept, lost) = (None, Cell::new(false));
        let mut backoff: Option<Backoff> = None;
        loop {
            // The known size is a lower bound.
            let mut size = handle.open.size();
            if range.end > size.size {
                let info = if kept.is_some() { self.ask_info(handle)? } else { self.refresh(handle)? };
                size = Size { generation: info.attributes.generation, size: info.attributes.size };
            }
            if range.end > size.size {
                let (at, size) = (range.start, size.size);
                let text = format!("a cell at {at} is not within its {size} bytes; set its size first");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let target = self.transfer(handle, size, Direction::Write, Memory::none()).target(piece.lane)?;
            let request = ChangeCell { target, offset: piece.lane_offset, change };
            let ticket = kept.take().map_or_else(|| session.ticket(slot, session.deadline()), Ok)?;
            let call = Call {
                ticket: Some(&ticket),
                repeated: Some(&lost),
                ..Call::about_lane(slot, session.deadline())
            };
            match session.call(&request, &call, |_, received| reply_without_data(received)) {
                Ok(changed) => {
                    if changed.changed {
                        session.touch(&handle.open);
                    }
                    return Ok(changed);
                }
                Err(error) if error.kind() == ErrorKind::Retry => {
                    kept = lost.get().then_some(ticket);
                    let begin = || Backoff::new(session.deadline());
                    backoff.get_or_insert_with(begin).pause_after(error)?;
                    if kept.is_some() {
                        self.ask_info(handle)?
                    } else {
                        self.refresh(handle)?
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: the file is in its lanes.
    fn change_inline_cell(
        &self,
        handle: &Handle,
        offset: u64,
        change: CellChange,
    ) -> Result<Option<CellChanged>> {
        if !handle.open.is_inline() {
            return Ok(None);
        }
        let session = &handle.session;
        let before = handle.open.written();
        let request = ChangeInlineCell { inode: self.inode(), offset, change };
        let answer = session.change(self.inode().slot(), &request, session.deadline())?;
        let InlineCellChanged { outcome, cell, size } = answer;
        handle.open.learn(Size { generation: size.generation, size: size.size });
        match outcome {
            InlineOutcome::Written => {
                if cell.changed {
                    // The home has set the file's time by its own clock for this change.
                    handle.open.clean_if(before);
                }
                Ok(Some(cell))
            }
            InlineOutcome::InLanes => {
                // The home's answer has the epoch since which the file is in its lanes.
                self.refresh(handle)?;
                Ok(None)
            }
            InlineOutcome::Full => self.promote(handle).map(|()| None),
        }
    }
}

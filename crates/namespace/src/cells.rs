//! Cells of files whose bytes live with their inode: eight bytes that hold a number in little endian.

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Result, limits};
use ramlace_wire::coordination::{CellChanged, ChangeInlineCell, InlineCellChanged};
use ramlace_wire::inline::{BytesPlace, InlineOutcome};

use crate::command::Reply;
use crate::state::file::File;
use crate::state::inode::right;
use crate::state::{Caller, SlotState, Step};

/// Bytes of a cell.
const CELL_BYTES: u64 = 8;

impl SlotState {
    /// Changes a cell of an inline file. `room`: whether the server keeps more inline bytes.
    pub(crate) fn change_inline_cell(
        &mut self,
        caller: Caller,
        request: ChangeInlineCell,
        room: bool,
    ) -> Step {
        let ChangeInlineCell { inode: id, offset, change } = request;
        let file = self.file_to_write(caller, id)?;
        // The answer reveals the cell's value.
        if caller.on_behalf || !self.opened_for(caller.token.session, id).read {
            self.inode(id)?.check_allows(caller.who, right::READ)?;
        }
        let answer = |file: &File, outcome, cell| {
            Ok(Some(Reply::InlineCell(InlineCellChanged { outcome, cell, size: file.size_info() })))
        };
        let nothing = CellChanged { before: 0, changed: false };
        match file.place() {
            BytesPlace::Lanes => return answer(file, InlineOutcome::InLanes, nothing),
            BytesPlace::Leaving => file.check_not_leaving(id)?,
            BytesPlace::Inode => {}
        }
        check_cell(offset, file.size)?;
        let end = offset + CELL_BYTES;
        let more = end.saturating_sub(file.inline_bytes());
        if end > limits::INLINE_BYTES_MAX as u64 || (more > 0 && !room) {
            return answer(file, InlineOutcome::Full, nothing);
        }
        let before = file.inline_cell(offset as usize);
        let after = change.after(before);
        if let Some(after) = after {
            self.file_mut(id).put(offset as usize, &after.to_le_bytes());
            self.inline_bytes += more;
            self.inode_mut(id)?.touch(caller.now);
            self.content_changed(caller, id);
        }
        let cell = CellChanged { before, changed: after.is_some() };
        answer(self.inode(id)?.file(id)?, InlineOutcome::Written, cell)
    }
}

impl SlotState {
    /// A file's published size, its generation, and where its bytes are; `None` when there is no such file.
    #[must_use]
    pub fn file_now(&self, inode: InodeId) -> Option<(u64, Generation, BytesPlace)> {
        let file = self.inode(inode).ok()?.file(inode).ok()?;
        let size = file.size_info();
        Some((size.size, size.generation, file.place()))
    }
}

impl File {
    /// The number at an offset; missing bytes are zero.
    fn inline_cell(&self, start: usize) -> u64 {
        let bytes = self.inline.as_deref().unwrap_or_default();
        let mut cell = [0; CELL_BYTES as usize];
        let there = bytes.get(start..).unwrap_or_default();
        let count = there.len().min(cell.len());
        cell[..count].copy_from_slice(&there[..count]);
        u64::from_le_bytes(cell)
    }
}

/// A cell lies at a multiple of its size, within the file: nothing is made longer by adding to it.
fn check_cell(offset: u64, size: u64) -> Result<()> {
    if !offset.is_multiple_of(CELL_BYTES) {
        let text = format!("a cell lies at a multiple of {CELL_BYTES} bytes, not at {offset}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if offset.checked_add(CELL_BYTES).is_none_or(|end| end > size) {
        let text = format!("a cell at {offset} is not within the file's {size} bytes; set its size first");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

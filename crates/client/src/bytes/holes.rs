//! Holes of files: where they are, and how much memory a file holds.
//!
//! The lanes' files are sparse exactly where the file is, so the kernel's answers about them are
//! authoritative. A lane's bytes lie in the order of the file, so the file's next data is the first of the
//! lanes' next data.

use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, LaneId, Result, limits};
use ramlace_wire::chunk::{CountLane, LaneTarget, SeekLane, Sought};
use ramlace_wire::inline::ReadInline;
use ramlace_wire::namespace::InodeInfo;
use ramlace_wire::{FileKind, Layout};

use crate::backoff::Backoff;
use crate::bytes::file::File;
use crate::bytes::transfer::{Direction, Memory};
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::names::open_inode::{Size, lanes_since};

impl File {
    /// Where the next data begin at or behind `offset` (bytes that may be other than zero), or the next hole
    /// (zeros that take no memory; the end of the file counts as one): as lseek(2) with `SEEK_DATA` and
    /// `SEEK_HOLE`.
    ///
    /// One request to the home, and one to each lane that has to be asked: for data those before the answer,
    /// for a hole also those whose bytes come next.
    ///
    /// Errors: `NothingThere` at and behind the end, and where no data are left; `Lost`.
    pub fn seek(&self, offset: u64, sought: Sought) -> Result<u64> {
        let handle = self.handle()?;
        let found = self.seek_inline(handle, offset, sought).and_then(|inline| match inline {
            Some(found) => Ok(found),
            None => {
                self.refresh(handle)?;
                self.with_size(handle, |size| self.seek_lanes(handle, size, offset, sought))
            }
        });
        let nothing = || Error::new(ErrorKind::NothingThere, format!("nothing is left behind byte {offset}"));
        found.and_then(|found| found.ok_or_else(nothing)).map_err(|error| self.tell(error))
    }

    /// The same for an inline file; `None` when it is in its lanes.
    fn seek_inline(&self, handle: &Handle, offset: u64, sought: Sought) -> Result<Option<Option<u64>>> {
        if !handle.open.is_inline() {
            return Ok(None);
        }
        let session = &handle.session;
        // A caller without the right to read learns only the size, and treats all bytes as data, as lseek(2)
        // allows.
        let length = if self.rights().read { limits::INLINE_BYTES_MAX as u32 } else { 0 };
        let request = ReadInline { inode: self.inode(), offset: 0, length, keep: false };
        let answer = session.ask(self.inode().slot(), &request, session.deadline())?;
        let Some(bytes) = answer.bytes else {
            handle.open.goes_to_lanes(answer.since);
            return Ok(None);
        };
        let size = answer.size.size;
        let there = if length > 0 { bytes.0.len() as u64 } else { size };
        let found = match sought {
            Sought::Data => offset,
            Sought::Hole => offset.max(there),
        };
        let nothing = offset >= size || (sought == Sought::Data && offset >= there);
        Ok(Some((!nothing).then_some(found)))
    }

    fn seek_lanes(&self, handle: &Handle, size: Size, offset: u64, sought: Sought) -> Result<Option<u64>> {
        if offset >= size.size {
            return Ok(None);
        }
        let (session, layout) = (&handle.session, self.layout());
        let transfer = self.transfer(handle, size, Direction::Read, Memory::none());
        let map = session.map()?;
        // In the order of the file: nothing of a lane comes before its first byte from `offset` on.
        let mut lanes: Vec<(u64, u16, u64)> = (0..layout.width)
            .map(|lane| {
                let start = ramlace_layout::lane_length(layout, lane, offset);
                (ramlace_layout::file_offset(layout, lane, start), lane, start)
            })
            .collect();
        lanes.sort_unstable();
        let mut best = size.size;
        for (first, lane, start) in lanes {
            if first >= best {
                break;
            }
            let target = transfer.target_in(&map, lane);
            let request = SeekLane { target, offset: start, sought };
            let answer = session.ask_lane(target.slot, &request, session.deadline())?;
            if let Some(found) = answer.offset {
                best = best.min(ramlace_layout::file_offset(layout, lane, found));
            }
        }
        Ok(if sought == Sought::Data && best == size.size { None } else { Some(best) })
    }
}

impl Client {
    /// Bytes of memory that a file holds; its lanes are asked when its home does not know. A lane whose
    /// server does not answer counts as if it had no holes.
    pub(crate) fn allocated(self: &Arc<Client>, info: &InodeInfo) -> Result<u64> {
        let mut backoff: Option<Backoff> = None;
        let mut newer: Option<InodeInfo> = None;
        loop {
            let info = newer.as_ref().unwrap_or(info);
            match (info.attributes.allocated, info.layout) {
                (Some(allocated), _) => return Ok(allocated),
                (None, Some(layout)) => match self.count_lanes(info, &layout) {
                    // The file was truncated meanwhile.
                    Err(error) if error.kind() == ErrorKind::Retry => {
                        backoff.get_or_insert_with(|| Backoff::new(self.deadline())).pause_after(error)?;
                        newer = Some(self.whole_info(info.attributes.inode)?);
                    }
                    counted => return counted,
                },
                (None, None) => return Ok(0),
            }
        }
    }

    /// Fills in how much memory a file holds.
    pub(crate) fn with_allocated(self: &Arc<Client>, mut info: InodeInfo) -> Result<InodeInfo> {
        if info.attributes.kind == FileKind::File && info.attributes.allocated.is_none() {
            info.attributes.allocated = Some(self.allocated(&info)?);
        }
        Ok(info)
    }

    fn count_lanes(self: &Arc<Client>, info: &InodeInfo, layout: &Layout) -> Result<u64> {
        let attributes = &info.attributes;
        let map = self.map()?;
        let mut sum = 0u64;
        for lane in 0..layout.width {
            let target = LaneTarget {
                lane: LaneId { inode: attributes.inode, lane },
                slot: ramlace_layout::lane_slot(layout, lane, map.slots()),
                generation: attributes.generation,
                created: lanes_since(info),
                permit: None,
            };
            let whole = ramlace_layout::lane_length(layout, lane, attributes.size);
            sum = sum.saturating_add(self.count_lane(target)?.unwrap_or(whole));
        }
        Ok(sum)
    }

    /// The memory that a lane holds; `None` when its server does not answer.
    fn count_lane(self: &Arc<Client>, target: LaneTarget) -> Result<Option<u64>> {
        let server = self.server_of(&*self.map()?, target.slot)?;
        if server.is_failing() {
            return Ok(None);
        }
        match self.ask_lane(target.slot, &CountLane { target }, self.deadline()) {
            Ok(counted) => Ok(Some(counted.allocated)),
            Err(error) if matches!(error.kind(), ErrorKind::HostDown | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

//! Lanes under passthrough: kernels read and map their files without asking.
//!
//! Such a lane has memory for every byte up to its end: to load from a hole would allocate memory that was
//! not reserved, and end the program if there is none. So what makes holes in other lanes allocates memory
//! here, or writes zeros.

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, LaneId, Result, Slot};
use ramlace_lanes::Change;
use ramlace_wire::chunk::{GrantPassthrough, LaneGranted, LaneTarget};
use ramlace_wire::encode_body;

use crate::chunk::checked_range;
use crate::gate::{Answer, Call};
use crate::lane_life::Purpose;
use crate::server::{Outcome, Server};

/// Zeros that are written before other requests are served.
const ZEROED_AT_ONCE_BYTES: u64 = 16 << 20;

impl Server {
    /// Gives the lane's file to the kernel of a client of the same user on this machine.
    pub async fn grant_passthrough(
        self: &Rc<Self>,
        peer: Option<u32>,
        header: &Call,
        request: GrantPassthrough,
    ) -> Outcome<Answer> {
        self.check_shares_memory(peer)?;
        let LaneTarget { lane, slot, .. } = request.target;
        let range = checked_range(0, request.length)?;
        self.admit_slot(header, slot).await?;
        self.admit_lane(&request.target, Purpose::Read).await?;
        self.lanes(slot, |lanes, me| lanes.check_whole(lane, me))?;
        if !self.has_passthrough(slot, lane) {
            self.check_has_memory(lane, request.length)?;
        }
        // From here on no hole can be made. Some of the memory that was counted above may lie behind the end: so what
        // is missing before it is allocated.
        if let Some(change) =
            self.lanes(slot, |lanes, _| lanes.begin_passthrough(lane, request.passthrough, request.stores))?
        {
            self.commit_lane(slot, change)?;
        }
        if request.stores {
            self.before_stores(header, lane).await?;
            self.admit_slot(header, slot).await?;
        }
        self.take_memory(&request.target, range, false).await?;
        self.forget_time(slot, lane);
        let mut store = self.store.borrow_mut();
        let length = store.lane_length(lane)?;
        let descriptor = store.grant(lane, false)?;
        Ok(Answer::Descriptor(encode_body(&LaneGranted { length }), descriptor))
    }

    /// Refuses a lane that is shorter than its file or has clearly less memory: to fill a file full of holes
    /// would take memory that its owner did not mean to take.
    fn check_has_memory(&self, lane: LaneId, bytes: u64) -> Outcome<()> {
        let mut store = self.store.borrow_mut();
        let (length, allocated) = match store.has_lane(lane) {
            true => (store.lane_length(lane)?, store.lane_allocated_bytes(lane)?),
            false => (0, 0),
        };
        if bytes > 0 && length == bytes && allocated >= length {
            return Ok(());
        }
        let text = format!(
            "lane {lane} has {length} bytes and memory for {allocated} of the {bytes} that its file has: a kernel gets \
             files without holes, as long as they are told to be"
        );
        Err(Error::new(ErrorKind::Unsupported, text).into())
    }

    /// The modification time of the lane's file is to show only stores through mappings: the server reports
    /// its own changes itself.
    pub fn forget_time(&self, slot: Slot, lane: LaneId) {
        if self.has_passthrough(slot, lane) {
            // At worst a store is reported that did not happen.
            let _ = self.store.borrow_mut().forget_time(lane);
        }
    }

    /// A kernel reads as far as the lane's file goes, so no memory may be reserved behind the end of such a
    /// lane.
    pub fn check_may_reserve(&self, target: &LaneTarget, range: ByteRange) -> Outcome<()> {
        let lane = target.lane;
        if !self.has_passthrough(target.slot, lane) || range.end <= self.lane_length(lane)? {
            return Ok(());
        }
        let text = format!("a kernel reads inode {} and would find what is kept behind its end", lane.inode);
        Err(Error::new(ErrorKind::Unsupported, text).into())
    }

    /// Bytes of the lane.
    pub fn lane_length(&self, lane: LaneId) -> Result<u64> {
        let mut store = self.store.borrow_mut();
        if store.has_lane(lane) { store.lane_length(lane) } else { Ok(0) }
    }

    /// A write behind the end of a lane that kernels map also allocates the memory in between, together with
    /// its own: otherwise a write that does not fit would have allocated some. Its ranges ascend. Returns
    /// whether other requests ran meanwhile.
    pub async fn leave_no_gap(self: &Rc<Self>, target: &LaneTarget, ranges: &[ByteRange]) -> Outcome<bool> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Ok(false) };
        let hull = ByteRange { start: first.start, end: last.end };
        if hull.is_empty() {
            return Ok(false);
        }
        let lies_behind = self.begin_growth(target, hull)?.start < hull.start;
        let has_gaps = ranges.len() > 1 && self.has_passthrough(target.slot, target.lane);
        let gaps_lie_behind = has_gaps && hull.end > self.lane_length(target.lane)?;
        if !lies_behind && !gaps_lie_behind {
            return Ok(false);
        }
        self.take_memory(target, hull, false).await?;
        Ok(true)
    }

    /// The memory that a range needs before it becomes part of a lane. For one that kernels map that is
    /// everything from the lane's end on. What programs stored behind that end, within its last page, is
    /// cleared.
    pub fn begin_growth(&self, target: &LaneTarget, range: ByteRange) -> Result<ByteRange> {
        let lane = target.lane;
        if !self.has_passthrough(target.slot, lane) {
            return Ok(range);
        }
        let length = self.lane_length(lane)?;
        if range.end > length && length > 0 {
            self.store.borrow_mut().clean_tail(lane)?;
        }
        Ok(ByteRange { start: range.start.min(length), end: range.end })
    }

    /// Makes a range read as zeros, and frees its memory unless a kernel maps it.
    pub async fn make_hole(
        self: &Rc<Self>,
        header: &Call,
        target: &LaneTarget,
        range: ByteRange,
    ) -> Outcome<()> {
        let lane = target.lane;
        let mut at = range.start;
        while at < range.end {
            if !self.has_passthrough(target.slot, lane) {
                let rest = ByteRange { start: at, end: range.end };
                self.change_bytes(target, rest, |store| {
                    if store.has_lane(lane) { store.punch(lane, at, rest.length()) } else { Ok(()) }
                })?;
                return Ok(());
            }
            let part = ByteRange { start: at, end: range.end.min(at + ZEROED_AT_ONCE_BYTES) };
            self.change_bytes(target, part, |store| store.zero(lane, at, part.length()))?;
            at += ZEROED_AT_ONCE_BYTES;
            if at >= self.lane_length(lane)? {
                return Ok(());
            }
            tokio::task::yield_now().await;
            // Meanwhile the lane may have been cut or dropped, or a repetition has done all of it, and others
            // have written since.
            self.admit_lane(target, Purpose::Read).await?;
            if self.is_done(header, target.slot)? {
                return Ok(());
            }
            // Kernels may have read meanwhile what is still there.
            let rest = ByteRange { start: at, end: range.end };
            if !rest.is_empty() {
                self.before_change(Some(header), header.session, lane, rest, Change::Erase)?;
            }
        }
        Ok(())
    }
}

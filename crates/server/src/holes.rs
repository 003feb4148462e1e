//! Requests that ask how much memory a lane holds, and where its holes are.

use std::rc::Rc;

use ramlace_base::{ByteRange, limits};
use ramlace_lanes::{Residency, lost};
use ramlace_wire::chunk::{CountLane, LaneCounted, LaneSought, SeekLane, Sought};

use crate::chunk::checked_range;
use crate::gate::Call;
use crate::lane_life::Purpose;
use crate::server::{Outcome, Server};

impl Server {
    /// How much memory a lane holds. One that was lost holds none.
    pub async fn count_lane(self: &Rc<Self>, header: &Call, request: CountLane) -> Outcome<LaneCounted> {
        self.admit_slot(header, request.target.slot).await?;
        self.admit_lane(&request.target, Purpose::Read).await?;
        let lane = request.target.lane;
        let mut store = self.store.borrow_mut();
        let allocated = if store.has_lane(lane) { store.lane_allocated_bytes(lane)? } else { 0 };
        Ok(LaneCounted { allocated })
    }

    /// Where the next data or hole of a lane begins. Lost bytes are neither.
    pub async fn seek_lane(self: &Rc<Self>, header: &Call, request: SeekLane) -> Outcome<LaneSought> {
        let SeekLane { target, offset, sought } = request;
        checked_range(offset, 0)?;
        let map = self.admit_slot(header, target.slot).await?;
        self.admit_lane(&target, Purpose::Read).await?;
        let mut store = self.store.borrow_mut();
        let rest = ByteRange { start: offset, end: limits::FILE_BYTES_MAX };
        let residency = self.residency(&map, &target, rest, store.has_lane(target.lane));
        let offset = match (residency, sought) {
            (Residency::Lost, _) => return Err(lost(target.lane, self.me).into()),
            (Residency::Here, Sought::Data) => store.next_data(target.lane, offset)?,
            (Residency::Here, Sought::Hole) => Some(store.next_hole(target.lane, offset)?),
            (Residency::Hole, Sought::Data) => None,
            (Residency::Hole, Sought::Hole) => Some(offset),
        };
        Ok(LaneSought { offset })
    }
}

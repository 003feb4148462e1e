//! Family 0x02: many runs of a lane's bytes in one request.
//!
//! They pass through a buffer, and are read or changed in one step: others see all of them as before, or all
//! as after. Claims against strict mounts, and which write-backs are stopped, follow from the whole range
//! from the first byte to the last. Recalls from other mounts, reports to the sessions that wait for changes, and
//! recovery after a loss follow from the runs themselves.

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_lanes::{Change, LaneEffect, Residency, Wish, WriteId, lost};
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::encode_body;
use ramlace_wire::runs::{LaneRuns, ReadRuns, RunsRead, WriteRuns};

use crate::chunk::{ensure_lane, write_id};
use crate::gate::{Answer, Call};
use crate::lane_life::Purpose;
use crate::server::data_desk::place_of;
use crate::server::{Outcome, Server};

/// Up to this many changes are reported one by one to the sessions that wait for changes; if there are more, the gaps
/// between them are reported as changed too.
const REPORTED_ONE_BY_ONE_MAX: usize = 16;

impl Server {
    /// Many runs of a lane.
    pub async fn read_runs(self: &Rc<Self>, header: &Call, request: ReadRuns) -> Outcome<Answer> {
        let (target, reach) = (request.target, request.runs.reach());
        let mut claiming = self.claim(header, place_of(target.lane), reach.hull, Wish::Read);
        let map = loop {
            let map = self.admit_slot(header, target.slot).await?;
            self.admit_lane(&target, Purpose::Read).await?;
            if claiming.is_granted()? {
                break map;
            }
            claiming.wait_or_stop_programs().await;
        };
        let stored = self.store.borrow().has_lane(target.lane);
        let mut hole = true;
        for run in request.runs.iter() {
            match self.residency(&map, &target, run, stored) {
                Residency::Here => hole = false,
                Residency::Hole => {}
                Residency::Lost => return Err(lost(target.lane, self.me).into()),
            }
        }
        self.counters.read_bytes(reach.bytes);
        let body = encode_body(&RunsRead { hole });
        if hole {
            return Ok(Answer::Body(body));
        }
        let bytes = self.store.borrow_mut().read_runs(target.lane, request.runs.iter())?;
        Ok(Answer::Staged(body, bytes))
    }

    /// Receives the data of a write of many runs. The errors are those of [`Server::write_chunk`].
    pub async fn write_runs(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Call,
        request: WriteRuns,
    ) -> Result<Outcome<()>> {
        let reach = request.runs.reach();
        if u64::from(header.data_bytes) != reach.bytes {
            let text = format!("{} bytes came for runs of {}", header.data_bytes, reach.bytes);
            return Ok(Err(Error::new(ErrorKind::Invalid, text).into()));
        }
        let mut bytes = Vec::new();
        let place = (place_of(request.target.lane), reach.hull);
        let _room = self.room_to_stage(header, place, WriteOrigin::Program).await;
        connection.read_data_staged(reach.bytes as usize, &mut bytes).await?;
        Ok(self.change_runs(header, &request.target, &request.runs, &bytes).await)
    }

    async fn change_runs(
        self: &Rc<Self>,
        header: &Call,
        target: &LaneTarget,
        runs: &LaneRuns,
        bytes: &[u8],
    ) -> Outcome<()> {
        let (lane, joined) = (target.lane, runs.joined());
        let (place, hull, writer) = (place_of(lane), runs.reach().hull, (header.session, header.sequence));
        self.data.room_for_bases(None).await;
        let _claiming = self.claim_change(header, place, hull, WriteOrigin::Program).await?;
        if !self.prepare_write(header, target, &joined, (writer, header.session)).await? {
            // Done before: clients that had pages of it then may still have them.
            return Ok(self.before_changes(Some(header), header.session, lane, &joined, Change::Stored)?);
        }
        // From here on nothing else runs. The memory of all of it is allocated, or nothing is changed.
        {
            let mut store = self.store.borrow_mut();
            let promise = ensure_lane(&mut store, lane).and_then(|()| store.prepare_writes(lane, &joined));
            promise.map_err(|error| error.context(self.me))?;
        }
        self.before_changes(Some(header), header.session, lane, &joined, Change::Write)?;
        let written = self.store.borrow_mut().write_runs(lane, &joined, bytes);
        self.tell_of_runs(target, &joined);
        written.map_err(|error| error.context(self.me))?;
        self.finish_runs(target, &joined, write_id(header))
    }

    /// Logs a write whose bytes are in place.
    fn finish_runs(self: &Rc<Self>, target: &LaneTarget, runs: &[ByteRange], id: WriteId) -> Outcome<()> {
        self.check_session(id.session)?;
        let change = self.lanes(target.slot, |lanes, _| lanes.finish_runs(target, runs, id))?;
        self.counters.written_bytes(runs.iter().map(|run| run.length()).sum());
        Ok(self.commit_lane(target.slot, change)?)
    }

    fn tell_of_runs(&self, target: &LaneTarget, runs: &[ByteRange]) {
        for some in runs.chunks(runs.len().div_ceil(REPORTED_ONE_BY_ONE_MAX).max(1)) {
            let range = ByteRange { start: some[0].start, end: some[some.len() - 1].end };
            self.note_effect(target.slot, LaneEffect::Changed { lane: target.lane, range });
        }
    }
}

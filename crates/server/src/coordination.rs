//! Requests that change cells in lanes, and requests that wait for a change of bytes. (Barriers are part of the
//! slots' state.)

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, LaneId, Result, SessionId, Slot, limits};
use ramlace_lanes::{CellStore, Change, HomeSeen, LaneChange, LaneEffect, Mapping};
use ramlace_namespace::{Command, Op, SlotState};
use ramlace_slot::SlotChange;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::coordination::{
    ArriveBarrier, CellChanged, ChangeCell, ChangeInlineCell, EndWatch, NoteChange, WatchAnswer, WatchChange,
};
use ramlace_wire::inline::{InlineMode, WriteInline};

use crate::chunk::{acknowledged_below, checked_range, ensure_lane, require_sequence, write_id};
use crate::clock;
use crate::gate::Call;
use crate::lane_life::Purpose;
use crate::record::Record;
use crate::server::data_desk::place_of;
use crate::server::watched::Watched;
use crate::server::{Outcome, Server};

/// Bytes of a cell.
const CELL_BYTES: u64 = 8;

impl Server {
    /// Changes a cell in a lane. Between reading the cell and changing it nothing else runs.
    pub async fn change_cell(self: &Rc<Self>, header: &Call, request: ChangeCell) -> Outcome<CellChanged> {
        let ChangeCell { target, offset, change } = request;
        let range = checked_range(offset, CELL_BYTES)?;
        if !offset.is_multiple_of(CELL_BYTES) {
            let text = format!("a cell lies at a multiple of {CELL_BYTES} bytes, not at {offset}");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        require_sequence(header)?;
        let (lane, slot, session, sequence) = (target.lane, target.slot, header.session, header.sequence);
        self.admit_slot(header, slot).await?;
        let _claiming = self.claim_change(header, place_of(lane), range, WriteOrigin::Program).await?;
        loop {
            self.admit_lane(&target, Purpose::Write).await?;
            if self.is_done(header, slot)? {
                let before = self.lanes(slot, |lanes, _| lanes.writes().cell_before(session, sequence));
                let text = "this number was a write's, not a cell's";
                let before = before.ok_or_else(|| Error::new(ErrorKind::Invalid, text))?;
                self.before_change(Some(header), session, lane, range, Change::Stored)?;
                return Ok(CellChanged { before, changed: true });
            }
            if !self.lane_desk.stop_replaced(lane, (session, sequence), acknowledged_below(header)).await
                && !self.lane_desk.stop_write_backs(lane, range, session).await
            {
                break;
            }
        }
        self.lanes(slot, |lanes, me| lanes.check_there(lane, range, me))?;
        let before = self.read_cell(lane, offset).map_err(|error| error.context(self.me))?;
        // If nothing is changed, a retry may as well read the cell again.
        let Some(after) = change.after(before) else { return Ok(CellChanged { before, changed: false }) };
        let cell = CellStore { lane, offset, before, after };
        self.before_change(Some(header), session, lane, range, Change::Write)?;
        self.commit_lane(slot, LaneChange::CellChanged { cell, id: write_id(header) })?;
        // It may not fit into the log: a replay reads the cell before it changes it.
        let _ = self.commit_lane(slot, LaneChange::CellStored { lane });
        self.counters.written_bytes(CELL_BYTES);
        Ok(CellChanged { before, changed: true })
    }

    /// The value of a cell; allocates its memory, so that it can be changed.
    fn read_cell(&self, lane: LaneId, offset: u64) -> Result<u64> {
        let mut store = self.store.borrow_mut();
        ensure_lane(&mut store, lane)?;
        store.prepare_write(lane, offset, CELL_BYTES)?;
        let mut bytes = [0; CELL_BYTES as usize];
        store.read_staged(lane, offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Answers whether bytes were changed since, and notes the session's wait.
    pub async fn watch_change(self: &Rc<Self>, header: &Call, request: WatchChange) -> Outcome<WatchAnswer> {
        let WatchChange { inode, lane, start, end, since, wait } = request;
        if start >= end || lane.is_some_and(|target| target.lane.inode != inode) {
            let text = format!("bytes {start} to {end} of inode {inode} cannot be waited for");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        match lane {
            Some(target) => {
                self.admit_slot(header, target.slot).await?;
                self.admit_lane(&target, Purpose::Read).await?;
            }
            None => {
                self.admit_slot(header, inode.slot()).await?;
            }
        }
        self.check_session(header.session)?;
        let mut watches = self.lane_desk.traffic.borrow_mut();
        if lane.is_none() {
            let seen = self.home_seen(inode);
            let open = self.has_open(header.session, inode);
            let Some(seen) = seen.filter(|_| open) else {
                let text = format!("the session does not have file {inode} open");
                return Err(Error::new(ErrorKind::BadHandle, text).into());
            };
            watches.see(inode, seen);
        }
        let place = (inode, lane.map(|target| target.lane.lane));
        let waiter = (wait != 0).then_some((header.session, wait));
        // No number is given twice: changes are further apart than the clock's steps.
        let begin = u64::try_from(clock::now().nanos).unwrap_or_default();
        Ok(watches.ask(place, ByteRange { start, end }, since, waiter, begin)?)
    }

    /// A session no longer waits for a change.
    pub fn end_watch(&self, session: SessionId, request: EndWatch) {
        self.lane_desk.traffic.borrow_mut().end_wait((request.inode, request.lane), session, request.wait);
    }

    /// Programs have stored into the memory of a lane, and perhaps map it no more.
    pub async fn note_stores(self: &Rc<Self>, header: &Call, request: NoteChange) -> Outcome<()> {
        let LaneTarget { lane, slot, .. } = request.target;
        self.admit_slot(header, slot).await?;
        let range = checked_range(request.start, request.end.saturating_sub(request.start))?;
        self.before_change(Some(header), header.session, lane, range, Change::Stored)?;
        self.note_effect(slot, LaneEffect::Changed { lane, range });
        let over = request.over.map(|number| Mapping { session: header.session, number });
        if let Some(change) = over.and_then(|over| self.lanes(slot, |lanes, _| lanes.end_mapping(lane, over)))
        {
            self.commit_lane(slot, change)?;
        }
        Ok(())
    }

    fn home_seen(&self, inode: InodeId) -> Option<HomeSeen> {
        let durable = self.durable.borrow();
        let (size, generation, place) = durable.names(inode.slot())?.file_now(inode)?;
        Some(HomeSeen { size, generation, place })
    }

    fn has_open(&self, session: SessionId, inode: InodeId) -> bool {
        let durable = self.durable.borrow();
        durable.names(inode.slot()).is_some_and(|state| state.has_open(session, inode))
    }

    /// Whether there is room for one more member of a barrier, or it is known already.
    pub fn has_room_for_member(&self, slot: Slot, request: &ArriveBarrier) -> bool {
        let durable = self.durable.borrow();
        let known = |state: &SlotState| state.knows_member(&request.name, request.member);
        durable.names(slot).is_some_and(known)
            || durable.barrier_members() < limits::BARRIER_MEMBERS_PER_SERVER_MAX
    }

    /// The watched inodes that a record may change.
    pub fn watched_by(&self, record: &Record) -> Watched {
        if self.lane_desk.traffic.borrow().has_no_homes() {
            return Watched::default();
        }
        match record {
            Record::Slot { slot, change: SlotChange::Command { command, .. } } => {
                Watched { homes: true, slot: Some(*slot), bytes: changed_bytes(command) }
            }
            _ => Watched::default(),
        }
    }

    /// The same for any slot.
    pub fn watched_by_all(&self) -> Watched {
        let homes = !self.lane_desk.traffic.borrow().has_no_homes();
        Watched { homes, slot: None, bytes: None }
    }

    /// Notifies the sessions that watch them.
    pub fn note_homes(&self, watched: &Watched) {
        if !watched.homes {
            return;
        }
        let mut watches = self.lane_desk.traffic.borrow_mut();
        let mut notified = Vec::new();
        if let Some((inode, range)) = watched.bytes {
            notified.extend(watches.note_inline(inode, range));
        }
        for (inode, before) in watches.homes(watched.slot) {
            let now = self.home_seen(inode);
            if now != Some(before) {
                notified.extend(watches.compare(inode, now));
            }
        }
        drop(watches);
        self.tell(notified);
    }
}

fn changed_bytes(command: &Command) -> Option<(InodeId, ByteRange)> {
    match &command.op {
        Op::WriteInline { request: WriteInline { inode, mode, offset, bytes, .. }, .. } => {
            let length = bytes.0.len() as u64;
            let range = match mode {
                // The change of the size shows it.
                InlineMode::End => return None,
                InlineMode::At | InlineMode::Within => ByteRange::at(*offset, length)?,
            };
            Some((*inode, range))
        }
        Op::ChangeInlineCell { request: ChangeInlineCell { inode, offset, .. }, .. } => {
            Some((*inode, ByteRange::at(*offset, CELL_BYTES)?))
        }
        _ => None,
    }
}

//! Message family 0x02: reads and writes of bytes in lanes.
//!
//! Up to [`limits::STAGED_BYTES_MAX`] bytes are staged: they pass through a buffer and change the lane in one
//! call, so no reader sees half of them. More bytes are received into the lane's memory and sent from it,
//! without a copy, while other requests are served; what a kernel keeps is copied if it changes meanwhile
//! ([`crate::server::outgoing`]).

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, LaneId, Result, Sequence, SessionId, Slot, limits};
use ramlace_cluster::is_hole_or_lost;
use ramlace_lanes::{Change, LaneChange, Place, Residency, Stored, WriteId, Writer, lost};
use ramlace_store::Window;
use ramlace_transport::RawSegment;
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{
    AllocateLane, ChunkRead, ChunkWritten, Keep, LaneTarget, PunchChunk, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::{ClusterMap, Header, encode_body};

use crate::gate::{Answer, Call};
use crate::lane_life::Purpose;
use crate::lanes::InFlight;
use crate::origin::{gives_lease, spared_by};
use crate::owners::{Claiming, wish_of};
use crate::server::data_desk::place_of;
use crate::server::outgoing::PagesSent;
use crate::server::{Outcome, Refusal, Server};

/// Zeros that are sent where a lane has a hole: a load of the hole would allocate memory.
static ZEROS: [u8; ZERO_BYTES] = [0; ZERO_BYTES];
const ZERO_BYTES: usize = 64 << 10;
/// Memory that is allocated before other requests are served: it is zeroed at some 10 GiB/s.
const ALLOCATED_AT_ONCE_BYTES: u64 = 64 << 20;

impl Server {
    /// Bytes of a lane.
    pub async fn read_chunk(self: &Rc<Self>, header: &Call, request: ReadChunk) -> Outcome<Answer> {
        let (readable, kept) = self.prepare_read(header, &request).await?;
        self.counters.read_bytes(u64::from(request.length));
        let body = encode_body(&ChunkRead { hole: matches!(readable, Readable::Hole), kept });
        Ok(match readable {
            Readable::Hole => Answer::Body(body),
            Readable::Staged(bytes) => Answer::Staged(body, bytes),
            // What is not part of the window are static zeros.
            Readable::InPlace { window, segments, pages } => {
                Answer::InPlace { body, window, segments, pages }
            }
        })
    }

    /// The bytes, and whether the session had a lease on the whole lane before.
    async fn prepare_read(self: &Rc<Self>, header: &Call, request: &ReadChunk) -> Outcome<(Readable, bool)> {
        let range = checked_range(request.offset, u64::from(request.length))?;
        if request.length > limits::DATA_BYTES_MAX {
            return Err(too_large(u64::from(request.length)));
        }
        let lane = request.target.lane;
        let purpose = if request.take { Purpose::Write } else { Purpose::Read };
        let mut claiming = self.claim(header, place_of(lane), range, wish_of(request.keep));
        let map = loop {
            let map = self.admit_slot(header, request.target.slot).await?;
            self.admit_lane(&request.target, purpose).await?;
            if claiming.is_granted()? {
                // A holder whose time to write these pages back has passed must not do so any more.
                if request.keep == Keep::Own
                    && self.lane_desk.stop_write_backs(lane, range, header.session).await
                {
                    continue;
                }
                break map;
            }
            claiming.wait_or_stop_programs().await;
        };
        // From here on nothing else runs: these are the bytes that the lease covers.
        let keeps = matches!(request.keep, Keep::Share | Keep::Strict | Keep::BehindEnd);
        if !keeps {
            return Ok((self.readable_of(&map, request, range, false)?, false));
        }
        let (kept, arriving) = self.keep_lane(header, lane, range)?;
        if !self.is_stored_into(request.target.slot, lane) {
            let outgoing = &self.lane_desk.outgoing;
            let at_once = arriving || !outgoing.has_room(range);
            let mut readable = self.readable_of(&map, request, range, at_once)?;
            if let Readable::InPlace { pages, .. } = &mut readable {
                *pages = Some(outgoing.begin(lane, header.session, range));
            }
            return Ok((readable, kept));
        }
        let readable = self.readable_of(&map, request, range, true)?;
        match &readable {
            Readable::Staged(bytes) => self.recall_in_a_moment(header.session, lane, range.start, bytes)?,
            _ => {
                self.recall_in_a_moment(header.session, lane, range.start, &vec![0; range.length() as usize])?
            }
        }
        Ok((readable, false))
    }

    /// What a read of a lane gets. `at_once`: see [`Server::readable`].
    fn readable_of(
        self: &Rc<Self>,
        map: &ClusterMap,
        request: &ReadChunk,
        range: ByteRange,
        at_once: bool,
    ) -> Outcome<Readable> {
        let lane = request.target.lane;
        if request.keep == Keep::BehindEnd
            || (request.take && self.take_for_stores(&request.target, range)?)
        {
            return Ok(Readable::Hole);
        }
        let stored = self.store.borrow().has_lane(lane) && !range.is_empty();
        match self.residency(map, &request.target, range, stored) {
            Residency::Here => Ok(self.readable(lane, range, at_once)?),
            Residency::Hole => Ok(Readable::Hole),
            Residency::Lost => Err(lost(lane, self.me).into()),
        }
    }

    /// Present bytes. `at_once`: read them atomically now, however many.
    fn readable(&self, lane: LaneId, range: ByteRange, at_once: bool) -> Result<Readable> {
        let mut store = self.store.borrow_mut();
        if at_once || range.length() <= limits::STAGED_BYTES_MAX as u64 {
            let mut bytes = vec![0; range.length() as usize];
            store.read_staged(lane, range.start, &mut bytes)?;
            return Ok(Readable::Staged(bytes));
        }
        let extents = store.extents(lane, range.start, range.length())?;
        if extents.iter().all(|extent| extent.is_hole) {
            return Ok(Readable::Hole);
        }
        let window = store.window(lane, range.start, range.length())?;
        let segments = with_zeros_for_holes(&window, range.start, &extents);
        Ok(Readable::InPlace { window, segments, pages: None })
    }

    /// The session's kernel caches pages of these bytes from now on; an empty range means the whole lane.
    /// Returns whether it had a lease on the whole lane, and whether others' bytes are arriving here.
    fn keep_lane(self: &Rc<Self>, header: &Call, lane: LaneId, range: ByteRange) -> Result<(bool, bool)> {
        let kept = self.keep_pages(place_of(lane), header.session, range)?;
        let arriving = self.lane_desk.arriving_in(lane, range, header.session);
        // These pages are based on the bytes that are here now, which are about to change.
        for (writer, part) in &arriving {
            self.before_change(None, *writer, lane, *part, Change::Write)?;
        }
        Ok((kept, !arriving.is_empty()))
    }

    /// Allocates the memory of bytes that programs of a mount may store into, as a page fault on a tmpfs
    /// does: their stores are written back later, and must not find a full server then. Returns whether the
    /// bytes are all zeros.
    fn take_for_stores(&self, target: &LaneTarget, range: ByteRange) -> Outcome<bool> {
        let LaneTarget { lane, slot, .. } = *target;
        self.lanes(slot, |lanes, me| lanes.check_there(lane, range, me))?;
        let quiet = !self.lane_desk.is_written(lane);
        let mut store = self.store.borrow_mut();
        let taken = ensure_lane(&mut store, lane)
            .and_then(|()| store.prepare_stores(lane, range.start, range.length(), quiet));
        drop(store);
        self.forget_time(slot, lane);
        Ok(taken.map_err(|error| error.context(self.me))?)
    }

    /// Receives a write's data. The outer error is the connection's, the inner one the request's. Data that
    /// is refused is left for the connection to skip.
    pub async fn write_chunk(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Call,
        request: WriteChunk,
    ) -> Result<Outcome<ChunkWritten>> {
        let length = header.data_bytes as usize;
        let range = match checked_range(request.offset, length as u64) {
            Ok(range) => range,
            Err(error) => return Ok(Err(error.into())),
        };
        let (place, origin) = (place_of(request.target.lane), request.origin);
        let (writer, spared) = ((header.session, header.sequence), spared_by(header.session, origin));
        // Small data is received first, so that everything after it happens without a pause. So is all data
        // that waits for pages of strict mounts: the sender may stop in the middle.
        let mut is_here =
            length <= limits::STAGED_BYTES_MAX || (origin != WriteOrigin::Back && self.data.is_strict(place));
        if origin == WriteOrigin::Back
            && let Err(refusal) = self.ask_for_small(header.session, request.target.lane, range).await
        {
            return Ok(Err(refusal));
        }
        let (mut staged, mut _room) = (Vec::new(), None);
        if is_here {
            _room = self.room_to_stage(header, (place, range), origin).await;
            connection.read_data_staged(length, &mut staged).await?;
        }
        loop {
            let claiming = match self.claim_write(header, place, range, origin).await {
                Ok(claiming) => claiming,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match self.prepare_write(header, &request.target, &[range], (writer, spared)).await {
                Ok(true) => {}
                Ok(false) => return Ok(self.written_before(header, &request, range)),
                Err(refusal) => return Ok(Err(refusal)),
            }
            let written = if is_here {
                connection.check_sender().await?;
                self.write_staged(header, &request, range, &staged)
            } else {
                match self.may_write_in_place(&request, header.session, range) {
                    Ok(true) => self.write_in_place(connection, header, &request, range).await?,
                    Ok(false) => {
                        // Lets other requests run meanwhile.
                        drop(claiming);
                        _room = self.room_to_stage(header, (place, range), origin).await;
                        connection.read_data_staged(length, &mut staged).await?;
                        is_here = true;
                        continue;
                    }
                    Err(error) => return Ok(Err(error.into())),
                }
            };
            return Ok(written.map(|()| self.chunk_written(place, header.session, origin)));
        }
    }

    /// Waits until no kernel owns the bytes that a program writes, and keeps others away. Write-backs wait
    /// for no other client.
    async fn claim_write(
        self: &Rc<Self>,
        header: &Call,
        place: Place,
        range: ByteRange,
        origin: WriteOrigin,
    ) -> std::result::Result<Option<Claiming>, Refusal> {
        if gives_lease(origin) {
            self.note_leases(header.session, false)?;
        }
        if origin == WriteOrigin::Back {
            return Ok(None);
        }
        let holds_page = origin == WriteOrigin::Through;
        self.data.room_for_bases(holds_page.then_some((place, header.session, range))).await;
        self.claim_change(header, place, range, origin).await.map(Some)
    }

    /// Whether large data may be received into its place: no other client has pages there, or waits for a
    /// page to store into, and none that the session's kernel has of it is recalled in a moment.
    fn may_write_in_place(&self, request: &WriteChunk, session: SessionId, range: ByteRange) -> Result<bool> {
        let (LaneTarget { lane, slot, .. }, origin) = (request.target, request.origin);
        let place = place_of(lane);
        let waited = origin != WriteOrigin::Back && self.data.is_strict(place);
        let recalled = gives_lease(origin) && self.is_stored_into(slot, lane);
        Ok(self.is_alone(place, session, range, origin)? && !waited && !recalled)
    }

    /// The answer to a write that was done by an earlier attempt: clients that had pages of the bytes then
    /// may still have them.
    fn written_before(&self, header: &Call, request: &WriteChunk, range: ByteRange) -> Outcome<ChunkWritten> {
        let (lane, session) = (request.target.lane, header.session);
        if request.origin != WriteOrigin::Back {
            let spared = spared_by(session, request.origin);
            self.before_change(Some(header), spared, lane, range, Change::Stored)?;
        }
        Ok(self.chunk_written(place_of(lane), session, request.origin))
    }

    fn chunk_written(&self, place: Place, session: SessionId, origin: WriteOrigin) -> ChunkWritten {
        let back = origin == WriteOrigin::Back;
        ChunkWritten { recall: if back { self.newest_recall(place, session) } else { 0 } }
    }

    async fn write_in_place(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Call,
        request: &WriteChunk,
        range: ByteRange,
    ) -> Result<Outcome<()>> {
        let (target, writer) = (&request.target, (header.session, header.sequence));
        let window = match self.promise_memory(target.lane, range) {
            Ok(window) => window,
            Err(error) => return Ok(Err(error.into())),
        };
        let segments: Vec<RawSegment> = window
            .segments()
            .map(|piece| RawSegment { pointer: piece.address, length: piece.length })
            .collect();
        let through = request.origin == WriteOrigin::Through;
        if through {
            self.data.begin_through(place_of(target.lane), header.session, range);
        }
        let in_flight = InFlight::begin(self, target, range, (writer, request.origin), connection);
        // SAFETY: the window keeps the segments mapped until this call has returned.
        let received = unsafe { connection.read_data_in_place(&segments).await };
        drop(in_flight);
        // Pages that were read meanwhile have some of the old bytes, and some of the new.
        let told = match request.origin {
            WriteOrigin::Back => None,
            WriteOrigin::Program | WriteOrigin::Through | WriteOrigin::Beside => Some(header),
        };
        let spared = spared_by(header.session, request.origin);
        if let Err(error) = self.before_change(told, spared, target.lane, range, Change::Stored) {
            return Ok(Err(error.into()));
        }
        match received {
            // The base of its kernel's pages was noted in the middle of the write. It is repeated as a whole,
            // and then the base has its bytes.
            Ok(())
                if through
                    && (self.data.has_yet_to_drop(place_of(target.lane), header.session, range)
                        || self.is_stored_into(target.slot, target.lane)) =>
            {
                let text = "others have changed pages of this write while it arrived";
                Ok(Err(Error::new(ErrorKind::Retry, text).into()))
            }
            Ok(()) => {
                let written = self.finish_write(target, range, write_id(header));
                self.note_written(place_of(target.lane), header.session, range, &[], request.origin);
                Ok(written)
            }
            // The memory went away beneath the data: the request fails, the connection stays open.
            Err(error) if connection.is_usable() => Ok(Err(error.into())),
            Err(error) => Err(error),
        }
    }

    /// Ensures everything that must hold before bytes may change, in ranges that ascend and do not touch. `spared`: see
    /// [`spared_by`]. `false`: the write is done already.
    pub(crate) async fn prepare_write(
        self: &Rc<Self>,
        header: &Call,
        target: &LaneTarget,
        ranges: &[ByteRange],
        (writer, spared): (Writer, SessionId),
    ) -> std::result::Result<bool, Refusal> {
        require_sequence(header)?;
        let LaneTarget { lane, slot, .. } = *target;
        let (first, last) =
            (ranges.first().copied().unwrap_or_default(), ranges.last().copied().unwrap_or_default());
        let hull = ByteRange { start: first.start, end: last.end };
        self.admit_slot(header, slot).await?;
        loop {
            self.admit_lane(target, Purpose::Bytes(header.session)).await?;
            if self.is_done(header, slot)? {
                return Ok(false);
            }
            if self.leave_no_gap(target, ranges).await? {
                continue;
            }
            // Stops also an attempt that began while this one waited for the lane. And write-backs of others
            // that are arriving: this write changes what their pages were based on. They will be repeated.
            if !self.lane_desk.stop_replaced(lane, writer, acknowledged_below(header)).await
                && !self.lane_desk.stop_write_backs(lane, hull, spared).await
            {
                break;
            }
        }
        self.lanes(slot, |lanes, me| {
            ranges.iter().try_for_each(|range| lanes.check_write(lane, *range, me))
        })?;
        Ok(true)
    }

    fn write_staged(
        self: &Rc<Self>,
        header: &Call,
        request: &WriteChunk,
        range: ByteRange,
        bytes: &[u8],
    ) -> Outcome<()> {
        let (target, lane, session) = (&request.target, request.target.lane, header.session);
        let (stored, told) = match request.origin {
            WriteOrigin::Back => (self.stored_in_pages(session, lane, range.start, bytes)?, None),
            WriteOrigin::Program | WriteOrigin::Through | WriteOrigin::Beside => {
                (Stored { ranges: vec![range], merged: None }, Some(header))
            }
        };
        let spared = spared_by(session, request.origin);
        let new = stored.merged.as_deref().unwrap_or(bytes);
        let is_stored_into = self.is_stored_into(target.slot, lane);
        let runs = match is_stored_into && request.origin == WriteOrigin::Back {
            true => self.data.leases.borrow().runs_stored(place_of(lane), session, range.start, bytes),
            false => vec![range],
        };
        // Allocates the memory of all of it, or changes nothing.
        {
            let mut store = self.store.borrow_mut();
            let promise = ensure_lane(&mut store, lane);
            let promise = promise.and_then(|()| store.prepare_write(lane, range.start, range.length()));
            promise.map_err(|error| error.context(self.me))?;
        }
        for changed in stored.ranges {
            self.before_change(told, spared, lane, changed, Change::Write)?;
            self.change_bytes(target, changed, |store| {
                let parts = runs.iter().map(|run| run.intersection(changed)).filter(|part| !part.is_empty());
                parts.into_iter().try_for_each(|part| {
                    let new = &new[(part.start - range.start) as usize..(part.end - range.start) as usize];
                    store.write_staged(lane, part.start, new)
                })
            })?;
        }
        self.note_written(place_of(lane), session, range, bytes, request.origin);
        if is_stored_into && request.origin == WriteOrigin::Through {
            self.recall_in_a_moment(session, lane, range.start, bytes)?;
        }
        self.finish_write(target, range, write_id(header))
    }

    fn promise_memory(&self, lane: LaneId, range: ByteRange) -> Result<Window> {
        let mut store = self.store.borrow_mut();
        let mut promise = || {
            ensure_lane(&mut store, lane)?;
            store.prepare_write(lane, range.start, range.length())?;
            store.window(lane, range.start, range.length())
        };
        promise().map_err(|error| error.context(self.me))
    }

    /// Logs a write whose bytes are in place, unless the lane was cut or dropped meanwhile.
    fn finish_write(self: &Rc<Self>, target: &LaneTarget, range: ByteRange, id: WriteId) -> Outcome<()> {
        self.check_session(id.session)?;
        let change = self.lanes(target.slot, |lanes, _| lanes.finish(target, range, id))?;
        self.counters.written_bytes(range.length());
        Ok(self.commit_lane(target.slot, change)?)
    }

    /// Frees a range. Has a sequence number like a write: a late first attempt must not free newer bytes.
    pub async fn punch_chunk(self: &Rc<Self>, header: &Call, request: PunchChunk) -> Outcome<()> {
        let range = checked_range(request.offset, request.length)?;
        require_sequence(header)?;
        let (lane, slot) = (request.target.lane, request.target.slot);
        let writer = (header.session, header.sequence);
        let _claiming = self.claim_change(header, place_of(lane), range, WriteOrigin::Program).await?;
        // All checks come after the wait: the attempt that this one repeats may have been processed
        // meanwhile, and others may have written since.
        let map = self.admit_slot(header, slot).await?;
        loop {
            self.admit_lane(&request.target, Purpose::Read).await?;
            if self.is_done(header, slot)? {
                return Ok(self.before_change(Some(header), header.session, lane, range, Change::Stored)?);
            }
            if !self.lane_desk.stop_replaced(lane, writer, acknowledged_below(header)).await
                && !self.lane_desk.stop_write_backs(lane, range, header.session).await
            {
                break;
            }
        }
        self.before_change(Some(header), header.session, lane, range, Change::Erase)?;
        let begun = self.lanes(slot, |lanes, _| lanes.get(lane).is_some());
        match self.residency(&map, &request.target, range, begun) {
            Residency::Here => {}
            Residency::Hole => return Ok(()),
            Residency::Lost => return Err(lost(lane, self.me).into()),
        }
        self.make_hole(header, &request.target, range).await?;
        // When a session ends, what it has left is searched for once: nothing may be added after that.
        self.check_session(header.session)?;
        Ok(self.commit_lane(slot, LaneChange::Written { lane, range, id: write_id(header) })?)
    }

    /// Whether this change of a chunk was made already.
    ///
    /// Errors: `Stale` for an attempt that its session has given up, `TooMany` with too many under way.
    pub fn is_done(&self, header: &Header, slot: Slot) -> Result<bool> {
        self.check_session(header.session)?;
        let (session, sequence) = (header.session, header.sequence);
        let below = self.lane_desk.acknowledged.borrow_mut().note(session, slot, acknowledged_below(header));
        self.durable.borrow().is_done(slot, session, sequence, below)
    }

    /// Allocates the memory of a part of a lane, all or nothing.
    pub async fn allocate_lane(self: &Rc<Self>, header: &Call, request: AllocateLane) -> Outcome<()> {
        let range = checked_range(request.offset, request.length)?;
        self.admit_slot(header, request.target.slot).await?;
        if request.more > 0 {
            let wanted_bytes = range.length().saturating_add(request.more);
            self.check_room_for_all(request.target.lane, request.offset, wanted_bytes)
                .map_err(|error| error.context(self.me))?;
        }
        self.take_memory(&request.target, range, request.keep_size).await
    }

    /// A part of what a client asks for in several requests: what cannot fit takes nothing. How much of it is there is not
    /// known here: all that the lane has counts, as far as it can lie behind the offset.
    fn check_room_for_all(&self, lane: LaneId, offset: u64, wanted_bytes: u64) -> Result<()> {
        let mut store = self.store.borrow_mut();
        let there = match store.has_lane(lane) {
            true => store.lane_allocated_bytes(lane)?.min(store.lane_length(lane)?.saturating_sub(offset)),
            false => 0,
        };
        let missing = wanted_bytes.saturating_sub(there);
        if missing > store.usage().free_for_lanes_bytes {
            store.trim_tails()?;
        }
        let free = store.usage().free_for_lanes_bytes;
        if missing <= free {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!("the store is full: {missing} more bytes do not fit into the {free} that are free"),
        ))
    }

    /// The same, step by step.
    pub async fn take_memory(
        self: &Rc<Self>,
        target: &LaneTarget,
        range: ByteRange,
        keep_size: bool,
    ) -> Outcome<()> {
        let LaneTarget { lane, slot, .. } = *target;
        let mut taken = self.begin_growth(target, range)?.start;
        loop {
            // While other requests ran the lane may have been cut or dropped.
            self.admit_lane(target, Purpose::Write).await?;
            self.lanes(slot, |lanes, me| lanes.check_whole(lane, me))?;
            if keep_size {
                self.check_may_reserve(target, range)?;
            }
            let range = self.begin_growth(target, range)?;
            taken = self.allocate_more(lane, taken, range).map_err(|error| error.context(self.me))?;
            self.forget_time(slot, lane);
            if taken == range.end {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Allocates the next step's memory. If it is not likely to fit, all the rest is tried in one step: all
    /// or nothing.
    fn allocate_more(&self, lane: LaneId, taken: u64, range: ByteRange) -> Result<u64> {
        let mut store = self.store.borrow_mut();
        ensure_lane(&mut store, lane)?;
        // Memory before the range must not be counted; how much lies there is not known here.
        let there = if range.start == 0 { store.lane_allocated_bytes(lane)? } else { 0 };
        let fits = range.length().saturating_sub(there) <= store.usage().free_for_lanes_bytes;
        let end = if fits { range.end.min(taken + ALLOCATED_AT_ONCE_BYTES) } else { range.end };
        // From the beginning each time: while other requests ran it may have been punched.
        store.prepare_write(lane, range.start, end - range.start)?;
        Ok(end)
    }

    /// The residency of a lane's bytes.
    pub fn residency(
        &self,
        map: &ClusterMap,
        target: &LaneTarget,
        range: ByteRange,
        stored: bool,
    ) -> Residency {
        let absent = is_hole_or_lost(map, target.slot, target.created);
        self.lanes(target.slot, |lanes, _| lanes.residency(target.lane, range, absent, stored))
    }
}

enum Readable {
    Hole,
    Staged(Vec<u8>),
    InPlace { window: Window, segments: Vec<RawSegment>, pages: Option<PagesSent> },
}

/// All changes of the session in the slot with a lower number are answered or abandoned.
pub fn acknowledged_below(header: &Header) -> Sequence {
    Sequence(header.sequence.0 - u64::from(header.outstanding))
}

/// The number of a change of bytes in the history of its slot.
pub fn write_id(header: &Header) -> WriteId {
    WriteId { session: header.session, sequence: header.sequence, outstanding: header.outstanding }
}

/// Changes must have a sequence number.
pub fn require_sequence(header: &Header) -> Result<()> {
    if header.sequence == Sequence(0) {
        return Err(Error::new(ErrorKind::Invalid, format!("a {:?} needs a sequence number", header.kind)));
    }
    Ok(())
}

/// The range, if it lies within the largest file.
pub fn checked_range(offset: u64, length: u64) -> Result<ByteRange> {
    ByteRange::at(offset, length).filter(|range| range.end <= limits::FILE_BYTES_MAX).ok_or_else(|| {
        Error::new(
            ErrorKind::TooBig,
            format!(
                "{length} bytes at offset {offset} lie beyond the largest file, {} bytes",
                limits::FILE_BYTES_MAX
            ),
        )
    })
}

fn too_large(bytes: u64) -> Refusal {
    Error::new(
        ErrorKind::TooLarge,
        format!("one request moves at most {} bytes, not {bytes}", limits::DATA_BYTES_MAX),
    )
    .into()
}

/// A lane's record is logged before its file is made; after a crash between the two the file is made here.
pub fn ensure_lane(store: &mut ramlace_store::Store, lane: LaneId) -> Result<()> {
    if store.has_lane(lane) { Ok(()) } else { store.create_lane(lane) }
}

/// The window's segments, with static zeros where the lane has a hole.
fn with_zeros_for_holes(window: &Window, start: u64, extents: &[ramlace_store::Extent]) -> Vec<RawSegment> {
    let mut segments = Vec::with_capacity(extents.len());
    for extent in extents {
        let (from, to) = ((extent.range.start - start) as usize, (extent.range.end - start) as usize);
        if extent.is_hole {
            let mut left = to - from;
            while left > 0 {
                let length = left.min(ZERO_BYTES);
                // Only ever read from, by a system call.
                segments.push(RawSegment { pointer: ZEROS.as_ptr().cast_mut(), length });
                left -= length;
            }
        } else {
            push_part(window, from, to, &mut segments);
        }
    }
    segments
}

/// Bytes `from..to` of the window.
fn push_part(window: &Window, from: usize, to: usize, into: &mut Vec<RawSegment>) {
    let mut at = 0;
    for piece in window.segments() {
        let (start, end) = (from.max(at), to.min(at + piece.length));
        if start < end {
            into.push(RawSegment { pointer: piece.address.wrapping_add(start - at), length: end - start });
        }
        at += piece.length;
    }
}

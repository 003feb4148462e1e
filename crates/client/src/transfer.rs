//! Striped reads and writes: requests go to all servers, then the answers are collected, with
//! several in flight on each connection (decision 2). Data moves between the sockets and the
//! caller's memory and nowhere else.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, InodeId, LaneId, Result, ServerId};
use ramlace_transport::blocking::Received;
use ramlace_wire::chunk::{ChunkRead, LaneTarget, ReadChunk, WriteChunk};
use ramlace_wire::{ClusterMap, Layout, Request};

use crate::lines::{Line, Server, Unanswered};
pub(crate) use crate::memory::Memory;
use crate::sequences::Ticket;
use crate::session::{Backoff, Call, OnRetry, Session};

/// Bytes of one request of a large transfer.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Bytes in flight on one connection.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// Requests in flight on one connection: small ones, whose headers count for more than their bytes.
const WINDOW_REQUESTS_MAX: usize = 64;
/// Requests that are planned at once: 1 GiB of large ones.
const BATCH_REQUESTS_MAX: usize = 1024;
/// Bytes of a range that are planned at once: what a batch can hold, however many lanes share it.
const BATCH_BYTES_MAX: u64 = 256 << 20;

/// Where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// How a transfer ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All of it.
    Done,
    /// The file has another generation than was believed; nothing can be said about its bytes.
    Outdated(Error),
    /// Everything before `done_to` in the file is done, what follows may be.
    Failed { done_to: u64, error: Error },
}

/// One read or write of any length.
pub(crate) struct Transfer<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) inode: InodeId,
    pub(crate) layout: &'a Layout,
    pub(crate) generation: Generation,
    pub(crate) direction: Direction,
    pub(crate) memory: &'a Memory<'a>,
    /// Some bytes were answered as a hole. A lane that has never been written knows no
    /// generation: only the home can say that the file still reaches so far.
    pub(crate) saw_hole: Cell<bool>,
}

/// The bytes of one request: one run of a lane, which may be several chunks of the file.
struct Piece<'a> {
    lane: u16,
    lane_offset: u64,
    length: u64,
    /// Of its first byte; the others lie behind it in the file.
    file_offset: u64,
    /// The number of a write; kept until it is answered, however often it is sent.
    ticket: Option<Ticket<'a>>,
    state: State,
}

enum State {
    Waiting,
    Done,
    Failed(Error),
}

impl<'a> Transfer<'a> {
    /// The lane as requests name it.
    pub(crate) fn target(&self, lane: u16) -> Result<LaneTarget> {
        Ok(self.target_in(&*self.session.map()?, lane))
    }

    fn target_in(&self, map: &ClusterMap, lane: u16) -> LaneTarget {
        LaneTarget {
            lane: LaneId { inode: self.inode, lane },
            slot: ramlace_layout::lane_slot(self.layout, lane, map.slots()),
            generation: self.generation,
            created: self.layout.created,
        }
    }

    /// Moves all bytes of the memory.
    ///
    /// # Safety
    /// The memory must be valid until this returns: for writes when the direction is a read.
    pub(crate) unsafe fn run(&self) -> Outcome {
        let mut ranges = self.memory.ranges().peekable();
        let Some(first) = ranges.peek().copied() else { return Outcome::Done };
        let mut batch = Vec::new();
        if let Some(piece) = self.single(first) {
            ranges.next();
            if ranges.peek().is_none() {
                // SAFETY: the caller's promise.
                return unsafe { self.run_single(&piece) };
            }
            batch.push(piece);
        }
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + BATCH_BYTES_MAX);
                self.plan(ByteRange { start, end }, &mut batch);
                start = end;
                if batch.len() >= BATCH_REQUESTS_MAX {
                    // SAFETY: the caller's promise.
                    match unsafe { self.run_batch(&mut batch) } {
                        Outcome::Done => batch.clear(),
                        other => return other,
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_batch(&mut batch) }
    }

    /// The one request that covers a range, if one does.
    fn single(&self, range: ByteRange) -> Option<Piece<'a>> {
        let mut pieces = ramlace_layout::merged_pieces(self.layout, range, REQUEST_BYTES_MAX);
        let piece = pieces.next()?;
        (piece.length == range.length())
            .then(|| Piece::new(piece.lane, piece.lane_offset, piece.length, piece.file_offset))
    }

    /// Requests for a range, in the order of the file. Small chunks of a lane share a request.
    fn plan(&self, range: ByteRange, batch: &mut Vec<Piece<'a>>) {
        let first = batch.len();
        let layout = self.layout;
        if layout.width == 1 || layout.stripe_unit >= REQUEST_BYTES_MAX {
            let pieces = ramlace_layout::merged_pieces(layout, range, REQUEST_BYTES_MAX);
            batch.extend(pieces.map(|p| Piece::new(p.lane, p.lane_offset, p.length, p.file_offset)));
            return;
        }
        // No more lanes are touched than there are chunks in the range.
        let chunks = range.end.div_ceil(layout.stripe_unit) - range.start / layout.stripe_unit;
        let first_lane = (range.start / layout.stripe_unit) % u64::from(layout.width);
        for step in 0..chunks.min(layout.width.into()) {
            let lane = ((first_lane + step) % u64::from(layout.width)) as u16;
            let span = ramlace_layout::lane_span(layout, lane, range);
            let mut at = span.start;
            while at < span.end {
                // Requests end where chunks end, so that none is split without need.
                let end = span.end.min((at + REQUEST_BYTES_MAX) / layout.stripe_unit * layout.stripe_unit);
                batch.push(Piece::new(lane, at, end - at, ramlace_layout::file_offset(layout, lane, at)));
                at = end;
            }
        }
        batch[first..].sort_unstable_by_key(|piece| piece.file_offset);
    }

    /// Calls `each` with the ranges of the file that a piece covers.
    fn each_range(&self, piece: &Piece<'_>, mut each: impl FnMut(ByteRange)) {
        if self.layout.width == 1 {
            each(ByteRange { start: piece.file_offset, end: piece.file_offset + piece.length });
            return;
        }
        let unit = self.layout.stripe_unit;
        let (mut at, end) = (piece.lane_offset, piece.lane_offset + piece.length);
        while at < end {
            let run = (unit - at % unit).min(end - at);
            let start = ramlace_layout::file_offset(self.layout, piece.lane, at);
            each(ByteRange { start, end: start + run });
            at += run;
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn run_single(&self, piece: &Piece<'_>) -> Outcome {
        // SAFETY: the caller's promise.
        match unsafe { self.try_single(piece) } {
            Ok(()) => Outcome::Done,
            Err(error) if error.kind() == ErrorKind::Retry => Outcome::Outdated(error),
            Err(error) => Outcome::Failed { done_to: piece.file_offset, error },
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn try_single(&self, piece: &Piece<'_>) -> Result<()> {
        let deadline = self.session.deadline();
        let target = self.target(piece.lane)?;
        let range = ByteRange { start: piece.file_offset, end: piece.file_offset + piece.length };
        let (slot, on_retry, local_only) = (target.slot, OnRetry::Tell, false);
        match self.direction {
            Direction::Read => {
                let request = ReadChunk { target, offset: piece.lane_offset, length: piece.length as u32 };
                let call =
                    Call { slot, request: &request, ticket: None, data: &[], on_retry, local_only, deadline };
                self.session.call(&call, |line, received| {
                    if let Some((start, length)) = self.memory.one_piece(range) {
                        // SAFETY: the caller's promise.
                        let buffer = unsafe { std::slice::from_raw_parts_mut(start, length) };
                        return self.deliver(line, &received, &mut [IoSliceMut::new(buffer)], deadline);
                    }
                    let mut slices = Vec::new();
                    // SAFETY: the caller's promise.
                    unsafe { self.memory.push_slices_mut(range, &mut slices) };
                    self.deliver(line, &received, &mut slices, deadline)
                })
            }
            Direction::Write => {
                let ticket = self.session.sequences.take(slot, deadline)?;
                let request = WriteChunk { target, offset: piece.lane_offset };
                let mut slices = Vec::new();
                let one = self.memory.one_piece(range).map(|(start, length)| {
                    // SAFETY: the caller's promise.
                    [IoSlice::new(unsafe { std::slice::from_raw_parts(start, length) })]
                });
                if one.is_none() {
                    // SAFETY: the caller's promise.
                    unsafe { self.memory.push_slices(range, &mut slices) };
                }
                let data = one.as_ref().map_or(&slices[..], |one| &one[..]);
                let call = Call {
                    slot,
                    request: &request,
                    ticket: Some(&ticket),
                    data,
                    on_retry,
                    local_only,
                    deadline,
                };
                self.session.call(&call, |_, _| Ok(()))
            }
        }
    }

    /// Runs rounds until every piece is done, or one fails for good.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn run_batch<'b>(&'b self, batch: &mut [Piece<'b>]) -> Outcome
    where
        'a: 'b,
    {
        let mut backoff = Backoff::new(self.session.deadline());
        loop {
            let before = batch.iter().filter(|piece| piece.is_done()).count();
            // SAFETY: the caller's promise.
            let round = unsafe { Round::run(self, batch) };
            let Some(open) = batch.iter().find(|piece| !piece.is_done()) else { return Outcome::Done };
            let done_to = open.file_offset;
            if let Err(error) = round {
                return Outcome::Failed { done_to, error };
            }
            let kinds = || batch.iter().filter_map(Piece::failure);
            if let Some(error) = kinds().find(|error| error.kind() == ErrorKind::Retry) {
                return Outcome::Outdated(error.clone());
            }
            let Some(error) = kinds().find(|error| !may_pass(error)).or_else(|| kinds().next()).cloned()
            else {
                unreachable!("a piece that is not done has failed after a round")
            };
            if batch.iter().filter(|piece| piece.is_done()).count() > before {
                backoff = Backoff::new(self.session.deadline());
            }
            let going_on = if may_pass(&error) { backoff.pause_after(error) } else { Err(error) };
            if let Err(error) = going_on {
                return Outcome::Failed { done_to, error };
            }
        }
    }

    /// Takes the data of a read into its place.
    fn deliver(
        &self,
        line: &mut Line,
        received: &Received<ChunkRead>,
        targets: &mut [IoSliceMut<'_>],
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        if received.data_bytes == 0 && received.reply.hole {
            self.saw_hole.set(true);
            targets.iter_mut().for_each(|target| target.fill(0));
            return Ok(());
        }
        let expected: usize = targets.iter().map(|target| target.len()).sum();
        if received.data_bytes as usize != expected {
            let text = format!("{expected} bytes were asked for, and {} came", received.data_bytes);
            line.close();
            return Err(Unanswered::lost(Error::new(ErrorKind::Protocol, text)));
        }
        line.receive_data(targets, deadline).map_err(Unanswered::lost)
    }
}

impl Piece<'_> {
    fn new<'a>(lane: u16, lane_offset: u64, length: u64, file_offset: u64) -> Piece<'a> {
        Piece { lane, lane_offset, length, file_offset, ticket: None, state: State::Waiting }
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn failure(&self) -> Option<&Error> {
        match &self.state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Whether another attempt may go better.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::HostDown | ErrorKind::Moved)
}

/// One server's share of a round.
struct Share {
    server: Arc<Server>,
    line: Option<Line>,
    /// Pieces to send, by their place in the batch.
    waiting: VecDeque<usize>,
    /// Pieces sent, with the number of their call.
    under_way: VecDeque<(usize, u32)>,
    bytes_under_way: u64,
}

/// Sends every piece that is not done once, and collects what comes of it.
struct Round<'t, 'b, 'p> {
    transfer: &'b Transfer<'t>,
    map: Arc<ClusterMap>,
    batch: &'p mut [Piece<'b>],
    /// Moves on with every answer: a large transfer may take as long as it needs.
    deadline: Instant,
    /// Nothing behind this offset is begun any more, since something before it failed for good.
    stop_at: u64,
    /// A connection failed for good: what is under way elsewhere is given up as well, or the
    /// wait for it would blame a server that had no time left to answer.
    over: Option<Error>,
    sources: Vec<IoSlice<'static>>,
    targets: Vec<IoSliceMut<'static>>,
}

impl<'t, 'b, 'p> Round<'t, 'b, 'p> {
    /// # Safety
    /// As for [`Transfer::run`].
    unsafe fn run(transfer: &'b Transfer<'t>, batch: &'p mut [Piece<'b>]) -> Result<()> {
        let session = transfer.session;
        let mut round = Round {
            transfer,
            map: session.map()?,
            batch,
            deadline: session.deadline(),
            stop_at: u64::MAX,
            over: None,
            sources: Vec::new(),
            targets: Vec::new(),
        };
        let mut shares = round.share()?;
        // A server that kept its connection waiting leaves the others their time.
        round.deadline = session.deadline();
        loop {
            // SAFETY: the caller's promise.
            shares.iter_mut().for_each(|share| unsafe { round.fill(share) });
            if let Some(error) = round.over.take() {
                return Err(error);
            }
            if shares.iter().all(|share| share.under_way.is_empty()) {
                break;
            }
            for share in &mut shares {
                // SAFETY: the caller's promise.
                unsafe { round.collect(share) };
                if let Some(error) = round.over.take() {
                    return Err(error);
                }
            }
        }
        round.batch.iter_mut().filter(|piece| matches!(piece.state, State::Waiting)).for_each(|piece| {
            piece.state = State::Failed(Error::new(ErrorKind::HostDown, "it was not sent"));
        });
        Ok(())
    }

    /// Gives each server its pieces and a connection. Connections are taken in the order of the
    /// servers' numbers: threads that wait for one another's would otherwise never stop.
    fn share(&mut self) -> Result<Vec<Share>> {
        let session = self.transfer.session;
        let mut by_server: BTreeMap<ServerId, Share> = BTreeMap::new();
        for (index, piece) in self.batch.iter_mut().enumerate().filter(|(_, piece)| !piece.is_done()) {
            piece.state = State::Waiting;
            let server = session.server_of(&self.map, self.transfer.target_in(&self.map, piece.lane).slot)?;
            let share = by_server.entry(server.id).or_insert_with(|| Share::new(server));
            share.waiting.push_back(index);
        }
        let mut shares: Vec<Share> = by_server.into_values().collect();
        for share in &mut shares {
            match session.line(&share.server, self.deadline) {
                Ok(line) => share.line = Some(line),
                Err(error) => self.lose(share, error),
            }
        }
        Ok(shares)
    }

    /// Sends pieces until the window is full.
    ///
    /// # Safety
    /// As for [`Transfer::run`].
    unsafe fn fill(&mut self, share: &mut Share) {
        while let Some(&index) = share.waiting.front() {
            let (length, offset) = (self.batch[index].length, self.batch[index].file_offset);
            if offset > self.stop_at {
                share.waiting.pop_front();
                continue;
            }
            let full = share.bytes_under_way + length > WINDOW_BYTES_MAX
                || share.under_way.len() >= WINDOW_REQUESTS_MAX;
            if full && !share.under_way.is_empty() {
                return;
            }
            // SAFETY: the caller's promise.
            match unsafe { self.send(share, index) } {
                Ok(Some(call)) => {
                    share.waiting.pop_front();
                    share.under_way.push_back((index, call));
                    share.bytes_under_way += length;
                }
                Ok(None) => return,
                Err(error) => return self.lose(share, error),
            }
        }
    }

    /// Sends one piece; `None` when its number must wait for answers that are under way.
    ///
    /// # Safety
    /// As for [`Transfer::run`].
    unsafe fn send(&mut self, share: &mut Share, index: usize) -> Result<Option<u32>> {
        let transfer = self.transfer;
        let session = transfer.session;
        let piece = &mut self.batch[index];
        let target = transfer.target_in(&self.map, piece.lane);
        let Some(line) = &mut share.line else { return Ok(None) };
        if transfer.direction == Direction::Read {
            let request = ReadChunk { target, offset: piece.lane_offset, length: piece.length as u32 };
            let header = session.header(ReadChunk::KIND, None, self.deadline, self.map.epoch);
            line.send(header, &request, &[], self.deadline)?;
            return Ok(Some(header.call));
        }
        if piece.ticket.is_none() {
            piece.ticket = match session.sequences.try_take(target.slot) {
                None if !share.under_way.is_empty() => return Ok(None),
                None => Some(session.sequences.take(target.slot, self.deadline)?),
                taken => taken,
            };
        }
        let piece = &self.batch[index];
        self.sources.clear();
        // SAFETY: the caller's promise; the slices are not used after this call.
        transfer.each_range(piece, |range| unsafe { transfer.memory.push_slices(range, &mut self.sources) });
        let request = WriteChunk { target, offset: piece.lane_offset };
        let header = session.header(WriteChunk::KIND, piece.ticket.as_ref(), self.deadline, self.map.epoch);
        line.send(header, &request, &self.sources, self.deadline)?;
        Ok(Some(header.call))
    }

    /// Takes one answer.
    ///
    /// # Safety
    /// As for [`Transfer::run`].
    unsafe fn collect(&mut self, share: &mut Share) {
        let Some((index, call)) = share.under_way.pop_front() else { return };
        share.bytes_under_way -= self.batch[index].length;
        let Some(line) = &mut share.line else { return };
        // SAFETY: the caller's promise.
        match unsafe { self.receive(line, index, call) } {
            Ok(()) => {
                self.batch[index].state = State::Done;
                self.batch[index].ticket = None;
                share.server.note_answer(true);
                self.deadline = self.transfer.session.deadline();
            }
            Err(unanswered) if unanswered.told => self.fail_piece(share, index, unanswered),
            Err(unanswered) => {
                share.under_way.push_front((index, call));
                self.lose(share, unanswered.error);
            }
        }
    }

    /// # Safety
    /// As for [`Transfer::run`].
    unsafe fn receive(
        &mut self,
        line: &mut Line,
        index: usize,
        call: u32,
    ) -> std::result::Result<(), Unanswered> {
        if self.transfer.direction == Direction::Write {
            return line.receive_change::<WriteChunk>(call, self.deadline).map(drop);
        }
        let received = line.receive::<ReadChunk>(call, self.deadline)?;
        let transfer = self.transfer;
        let piece = &self.batch[index];
        self.targets.clear();
        // SAFETY: the caller's promise; the slices are not used after this call.
        transfer
            .each_range(piece, |range| unsafe { transfer.memory.push_slices_mut(range, &mut self.targets) });
        transfer.deliver(line, &received, &mut self.targets, self.deadline)
    }

    /// The server said no to one piece; the others go on.
    fn fail_piece(&mut self, share: &Share, index: usize, unanswered: Unanswered) {
        let offset = self.batch[index].file_offset;
        let deadline = self.deadline;
        let error = match self.transfer.session.settle_failure(&share.server, unanswered, deadline) {
            Ok(error) => error,
            Err(error) => {
                self.stop_at = self.stop_at.min(offset);
                error
            }
        };
        self.batch[index].state = State::Failed(error);
    }

    /// The connection is gone, and with it the answers to what was under way.
    fn lose(&mut self, share: &mut Share, error: Error) {
        share.line = None;
        share.bytes_under_way = 0;
        let settled =
            self.transfer.session.settle_failure(&share.server, Unanswered::lost(error), self.deadline);
        let told = settled.unwrap_or_else(|error| self.over.insert(error).clone());
        let lost = share.under_way.drain(..).map(|(index, _)| index).chain(share.waiting.drain(..));
        for index in lost {
            self.batch[index].state = State::Failed(told.clone());
        }
    }
}

impl Share {
    fn new(server: Arc<Server>) -> Share {
        Share { server, line: None, waiting: VecDeque::new(), under_way: VecDeque::new(), bytes_under_way: 0 }
    }
}

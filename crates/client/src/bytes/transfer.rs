//! Striped reads and writes: requests go to all servers, then the replies are collected, with several
//! requests in flight on each connection (`docs/records/connections.md`). Data moves between the sockets and
//! the caller's memory and nowhere else.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{ByteRange, Epoch, Error, ErrorKind, Generation, InodeId, LaneId, Result};
use ramlace_transport::blocking::Received;
use ramlace_wire::chunk::{ChunkRead, LaneTarget, ReadChunk, WriteChunk};
use ramlace_wire::runs::{RunsRead, Tile};
use ramlace_wire::{ClusterMap, Layout, Permit};

use crate::backoff::Backoff;
use crate::bytes::growth::Growth;
pub(crate) use crate::bytes::memory::Memory;
use crate::bytes::packing::Packer;
use crate::bytes::pages::Pages;
use crate::bytes::pieces::{self, Piece};
use crate::bytes::progress::Progress;
use crate::bytes::round::Round;
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::session::calls::Call;
use crate::session::lines::{Line, Unanswered};
use crate::session::retry::{Judged, Verdict};

/// Requests that are planned together: 1 GiB of large ones.
const BATCH_REQUESTS_MAX: usize = 1024;
/// Bytes of a range that are planned together: what a batch can hold, however many lanes share it.
pub(crate) const BATCH_BYTES_MAX: u64 = 256 << 20;

/// The direction of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    /// A read into pages that programs may store into: the servers allocate the bytes' memory before they
    /// answer.
    Fault,
    Write,
}

/// How a transfer ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All of it is done.
    Done,
    /// The file has another generation than assumed; nothing can be said about its bytes.
    Outdated(Error),
    /// Everything before `done_to` in the file is done; what follows may be done.
    Failed { done_to: u64, error: Error },
}

/// A server's answer to a read.
#[derive(Clone, Copy)]
pub(crate) struct Brought {
    hole: bool,
    data_bytes: u32,
}

impl Brought {
    pub(crate) fn of_chunk(received: &Received<ChunkRead>) -> Brought {
        Brought { hole: received.reply.hole, data_bytes: received.data_bytes }
    }

    pub(crate) fn of_runs(received: &Received<RunsRead>) -> Brought {
        Brought { hole: received.reply.hole, data_bytes: received.data_bytes }
    }
}

/// One read or write of any length.
pub(crate) struct Transfer<'a> {
    pub(crate) session: &'a Arc<Client>,
    pub(crate) inode: InodeId,
    pub(crate) layout: &'a Layout,
    /// The epoch from which on the lanes have what was written to them.
    pub(crate) since: Epoch,
    pub(crate) generation: Generation,
    /// The permit that the lanes are shown; replaced when they refuse it.
    pub(crate) permit: Cell<Option<Permit>>,
    pub(crate) direction: Direction,
    /// How its bytes relate to a kernel's pages.
    pub(crate) pages: Pages<'a>,
    pub(crate) memory: Memory<'a>,
    /// Set when the file grows by it.
    pub(crate) growth: Option<&'a Growth>,
    /// Some bytes were answered as a hole. A lane that has never been written knows no generation: only the
    /// home can say whether the file still reaches that far.
    pub(crate) saw_hole: Cell<bool>,
}

impl<'a> Transfer<'a> {
    pub(crate) fn of(
        (inode, layout): (InodeId, &'a Layout),
        pages: Pages<'a>,
        handle: &'a Handle,
        size: Size,
        direction: Direction,
        memory: Memory<'a>,
    ) -> Transfer<'a> {
        Transfer {
            pages,
            session: &handle.session,
            inode,
            layout,
            since: handle.open.lanes_since(),
            generation: size.generation,
            permit: Cell::new(handle.open.permit()),
            direction,
            memory,
            growth: None,
            saw_hole: Cell::new(false),
        }
    }

    /// The lane as it is named in requests.
    pub(crate) fn target(&self, lane: u16) -> Result<LaneTarget> {
        Ok(self.target_in(&*self.session.map()?, lane))
    }

    pub(crate) fn target_in(&self, map: &ClusterMap, lane: u16) -> LaneTarget {
        LaneTarget {
            lane: LaneId { inode: self.inode, lane },
            slot: ramlace_layout::lane_slot(self.layout, lane, map.slots()),
            generation: self.generation,
            created: self.since,
            permit: self.permit.get(),
        }
    }

    /// The request for a piece's bytes.
    pub(crate) fn read_request(&self, target: LaneTarget, piece: &Piece<'_>) -> ReadChunk {
        let (offset, length) = (piece.lane_offset, piece.length as u32);
        let (take, keep) = (self.direction == Direction::Fault, self.pages.keep());
        ReadChunk { target, offset, length, take, keep }
    }

    pub(crate) fn write_request(&self, target: LaneTarget, piece: &Piece<'_>) -> WriteChunk {
        WriteChunk { target, offset: piece.lane_offset, origin: self.pages.origin() }
    }

    /// Moves all bytes of the memory.
    pub(crate) fn run(&self) -> Outcome {
        let mut ranges = self.memory.ranges().peekable();
        let Some(first) = ranges.peek().copied() else { return Outcome::Done };
        let mut batch = Vec::new();
        if let Some(piece) = pieces::single(self.layout, first) {
            ranges.next();
            if ranges.peek().is_none() {
                return self.run_single(&piece);
            }
            batch.push(piece);
        }
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + BATCH_BYTES_MAX);
                pieces::plan(self.layout, ByteRange { start, end }, &mut batch);
                start = end;
                if batch.len() >= BATCH_REQUESTS_MAX {
                    match self.run_batch(&mut batch) {
                        Outcome::Done => batch.clear(),
                        other => return other,
                    }
                }
            }
        }
        self.run_batch(&mut batch)
    }

    /// Moves the bytes of runs, which lie in memory one behind the other. The memory's offsets count the
    /// bytes of all runs, and so does the offset up to which a failure says that all is done.
    pub(crate) fn run_packed(&self, tiles: &[Tile]) -> Outcome {
        match self.run_planned(Packer::new(self.layout, tiles)) {
            // A request of many runs is refused as a whole, although some of them may have room.
            Outcome::Failed { done_to, error } if error.kind() == ErrorKind::NoSpace => {
                match self.run_planned(Packer::one_by_one(self.layout, tiles, done_to)) {
                    Outcome::Failed { done_to: again, error } => {
                        Outcome::Failed { done_to: again.max(done_to), error }
                    }
                    other => other,
                }
            }
            other => other,
        }
    }

    fn run_planned(&self, mut packer: Packer<'_>) -> Outcome {
        loop {
            let mut batch = packer.next_batch();
            if batch.is_empty() {
                return Outcome::Done;
            }
            match self.run_batch(&mut batch) {
                Outcome::Done => {}
                other => return other,
            }
        }
    }

    fn run_single(&self, piece: &Piece<'_>) -> Outcome {
        match self.try_single(piece) {
            Ok(()) => Outcome::Done,
            Err(error) if error.kind() == ErrorKind::Retry => Outcome::Outdated(error),
            Err(error) => Outcome::Failed { done_to: piece.file_offset, error },
        }
    }

    fn try_single(&self, piece: &Piece<'_>) -> Result<()> {
        let deadline = self.session.deadline();
        let target = self.target(piece.lane)?;
        let range = ByteRange { start: piece.file_offset, end: piece.file_offset + piece.length };
        let slot = target.slot;
        self.session.listen_for_pages(slot, self.pages)?;
        match self.direction {
            Direction::Read | Direction::Fault => {
                let request = self.read_request(target, piece);
                let (repeated, on_turn) = (self.pages.repeated(), self.pages.on_turn());
                let call = Call { repeated, on_turn, ..Call::about_lane(slot, deadline) };
                self.session.call(&request, &call, |line, received| {
                    let brought = Brought::of_chunk(&received);
                    self.memory.with_targets(range, |targets| self.deliver(line, brought, targets, deadline))
                })
            }
            Direction::Write => {
                let ticket = self.session.ticket_for(self.pages.number_for(), slot, deadline)?;
                let request = self.write_request(target, piece);
                self.memory.with_sources(range, |data| {
                    if self.write_and_extend(request, &ticket, data, deadline)? {
                        return Ok(());
                    }
                    let ticket = Some(&ticket);
                    let call = Call { ticket, data, ..Call::about_lane(slot, deadline) };
                    self.session.call(&request, &call, |line, received| {
                        self.pages.note_recall(line.server_id(), received.reply.recall);
                        Ok(())
                    })
                })
            }
        }
    }

    /// Runs rounds until every piece is done, or one fails for good.
    fn run_batch<'b>(&'b self, batch: &mut [Piece<'b>]) -> Outcome
    where
        'a: 'b,
    {
        let mut progress = Progress::begin(Instant::now(), self.session.patience());
        let mut backoff = Backoff::new(progress.deadline());
        loop {
            let before = batch.iter().filter(|piece| piece.is_done()).count();
            let round = Round::run(self, batch, &mut progress);
            let Some(open) = batch.iter().find(|piece| !piece.is_done()) else { return Outcome::Done };
            let done_to = open.file_offset;
            if let Err(error) = round {
                return Outcome::Failed { done_to, error };
            }
            let Some(judged) = Judged::deciding(batch.iter().filter_map(Piece::failure)).cloned() else {
                unreachable!("a piece that is not done has failed after a round")
            };
            if judged.verdict == Verdict::Outdated {
                return Outcome::Outdated(judged.error);
            }
            if batch.iter().filter(|piece| piece.is_done()).count() > before {
                backoff = Backoff::new(progress.deadline());
            }
            backoff.move_to(progress.deadline());
            let going_on = judged.before_next(&mut backoff, || self.renew_permit());
            if let Err(error) = going_on {
                return Outcome::Failed { done_to, error };
            }
        }
    }

    /// A lane has refused the permit: whether there is another. Pieces that are sent again with it keep their
    /// numbers.
    fn renew_permit(&self) -> Result<bool> {
        let renewed = self.session.renew_permit(self.inode, self.permit.get())?;
        if renewed.is_some() {
            self.permit.set(renewed);
        }
        Ok(renewed.is_some())
    }

    /// Receives the data of a read into its place.
    pub(crate) fn deliver(
        &self,
        line: &mut Line,
        brought: Brought,
        targets: &mut [IoSliceMut<'_>],
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        if brought.data_bytes == 0 && brought.hole {
            // A lane that has allocated memory has begun, and knows its generation.
            self.saw_hole.set(self.direction != Direction::Fault);
            targets.iter_mut().for_each(|target| target.fill(0));
            return Ok(());
        }
        let expected: usize = targets.iter().map(|target| target.len()).sum();
        if brought.data_bytes as usize != expected {
            let text = format!("{expected} bytes were asked for, and {} came", brought.data_bytes);
            line.close();
            return Err(Unanswered::lost(Error::new(ErrorKind::Protocol, text)));
        }
        // The reply may have waited for others beyond the deadline; its bytes follow at once.
        line.receive_data(targets, deadline.max(self.session.deadline())).map_err(Unanswered::lost)
    }
}

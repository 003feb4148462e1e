//! One round of a large transfer: every piece that is not done is sent once, with several in flight on each
//! connection, and the results are collected.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, Result, ServerId};
use ramlace_wire::chunk::{ReadChunk, WriteChunk};
use ramlace_wire::runs::{ReadRuns, WriteRuns};
use ramlace_wire::{ClusterMap, Kind, Request};

use crate::bytes::memory::Parts;
use crate::bytes::pieces::{Piece, State};
use crate::bytes::progress::Progress;
use crate::bytes::transfer::{Brought, Direction, Transfer};
use crate::session::lines::{Line, Server, Unanswered};
use crate::session::retry::{Judged, OnRetry};

/// Bytes in flight on one connection.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// Requests in flight on one connection; for small ones, whose headers count for more than their bytes.
const WINDOW_REQUESTS_MAX: usize = 64;

/// How long a read of several requests waits, after its last answer, for pages of a strict mount. The wait
/// must be short to avoid a deadlock: the reading kernel has all its pages locked, and the thread that owns
/// those of one server may itself wait for some of the others.
const SEVERAL_WAIT_MAX: Duration = Duration::from_millis(250);

/// One server's share of a round.
struct Share {
    server: Arc<Server>,
    line: Option<Line>,
    /// Pieces to send, by their index in the batch.
    waiting: VecDeque<usize>,
    /// Pieces sent, with the numbers of their calls.
    in_flight: VecDeque<(usize, u32)>,
    bytes_in_flight: u64,
}

/// Sends every piece that is not done once, and collects the results.
pub(crate) struct Round<'t, 'b, 'p> {
    transfer: &'b Transfer<'t>,
    map: Arc<ClusterMap>,
    batch: &'p mut [Piece<'b>],
    progress: &'p mut Progress,
    /// When to stop waiting for others' pages.
    abandons_at: Option<Instant>,
    /// No piece behind this offset is begun any more, since one before it has failed for good.
    stop_at: u64,
    /// A connection failed for good: requests in flight elsewhere are abandoned as well, or the wait for them
    /// would blame a server that had no time left to answer.
    over: Option<Error>,
    parts: Parts,
}

impl<'t, 'b, 'p> Round<'t, 'b, 'p> {
    pub(crate) fn run(
        transfer: &'b Transfer<'t>,
        batch: &'p mut [Piece<'b>],
        progress: &'p mut Progress,
    ) -> Result<()> {
        let session = transfer.session;
        let must_not_wait = transfer.pages.are_strict() && batch.len() > 1;
        let mut round = Round {
            transfer,
            map: session.map()?,
            batch,
            progress,
            abandons_at: must_not_wait.then(|| Instant::now() + SEVERAL_WAIT_MAX),
            stop_at: u64::MAX,
            over: None,
            parts: Parts::default(),
        };
        let mut shares = round.share()?;
        loop {
            shares.iter_mut().for_each(|share| round.fill(share));
            if let Some(error) = round.over.take() {
                return Err(error);
            }
            if shares.iter().all(|share| share.in_flight.is_empty()) {
                break;
            }
            for share in &mut shares {
                round.collect(share);
                if let Some(error) = round.over.take() {
                    return Err(error);
                }
            }
        }
        round.batch.iter_mut().filter(|piece| matches!(piece.state, State::Waiting)).for_each(|piece| {
            piece.state = State::Failed(Judged::not_sent());
        });
        Ok(())
    }

    /// Gives each server its pieces and a connection. Connections are taken in the order of the servers'
    /// numbers: otherwise threads that wait for each other's could deadlock.
    fn share(&mut self) -> Result<Vec<Share>> {
        let session = self.transfer.session;
        let mut by_server: BTreeMap<ServerId, Share> = BTreeMap::new();
        for (index, piece) in self.batch.iter_mut().enumerate().filter(|(_, piece)| !piece.is_done()) {
            piece.state = State::Waiting;
            let slot = self.transfer.target_in(&self.map, piece.lane).slot;
            session.listen_for_pages(slot, self.transfer.pages)?;
            let server = session.server_of(&self.map, slot)?;
            let share = by_server.entry(server.id).or_insert_with(|| Share::new(server));
            share.waiting.push_back(index);
        }
        let mut shares: Vec<Share> = by_server.into_values().collect();
        for share in &mut shares {
            let (begun, deadline) = (Instant::now(), self.progress.deadline());
            let line = match self.abandons_at {
                None => session.line(&share.server, deadline),
                Some(until) => session.line_by(&share.server, until).map(|line| (line, deadline)),
            };
            match line {
                Ok((line, deadline)) => {
                    share.line = Some(line);
                    // Time spent waiting for one server's connection is not taken from the others.
                    self.progress.excuse(begun.elapsed());
                    self.progress.allow(deadline);
                }
                Err(Unanswered { error, .. })
                    if error.kind() == ErrorKind::TimedOut && self.abandons_at.is_some() =>
                {
                    return Err(others_have_some());
                }
                Err(unanswered) => self.lose(share, unanswered),
            }
        }
        Ok(shares)
    }

    /// Sends pieces until the window is full.
    fn fill(&mut self, share: &mut Share) {
        while let Some(&index) = share.waiting.front() {
            let (length, offset) = (self.batch[index].length, self.batch[index].file_offset);
            if offset > self.stop_at {
                share.waiting.pop_front();
                continue;
            }
            let full = share.bytes_in_flight + length > WINDOW_BYTES_MAX
                || share.in_flight.len() >= WINDOW_REQUESTS_MAX;
            if full && !share.in_flight.is_empty() {
                return;
            }
            match self.send(share, index) {
                Ok(Some(call)) => {
                    share.waiting.pop_front();
                    share.in_flight.push_back((index, call));
                    share.bytes_in_flight += length;
                }
                Ok(None) => return,
                Err(error) => return self.lose(share, Unanswered::lost(error)),
            }
        }
    }

    /// Sends one piece; `None` when its number must wait for replies to requests in flight.
    fn send(&mut self, share: &mut Share, index: usize) -> Result<Option<u32>> {
        let transfer = self.transfer;
        let session = transfer.session;
        let piece = &mut self.batch[index];
        let target = transfer.target_in(&self.map, piece.lane);
        let Some(line) = &mut share.line else { return Ok(None) };
        if transfer.direction != Direction::Write {
            let header = |kind: Kind| session.header(kind, None, self.progress.deadline(), self.map.epoch);
            let header = match piece.runs().cloned() {
                None => {
                    let (header, request) = (header(ReadChunk::KIND), transfer.read_request(target, piece));
                    line.send(header, &request, &[], self.progress.deadline()).map(|()| header)
                }
                Some(runs) => {
                    let header = header(ReadRuns::KIND);
                    line.send(header, &ReadRuns { target, runs }, &[], self.progress.deadline())
                        .map(|()| header)
                }
            };
            return Ok(Some(header?.call));
        }
        if piece.ticket.is_none() {
            let purpose = transfer.pages.number_for();
            piece.ticket = match session.sequences.try_take(target.slot, purpose) {
                None if !share.in_flight.is_empty() => return Ok(None),
                None => Some(session.ticket_for(purpose, target.slot, self.progress.deadline())?),
                taken => taken,
            };
        }
        let piece = &self.batch[index];
        let header = |kind: Kind| {
            session.header(kind, piece.ticket.as_ref(), self.progress.deadline(), self.map.epoch)
        };
        let ranges = |each: &mut dyn FnMut(ByteRange)| piece.each_range(transfer.layout, each);
        let header =
            transfer.memory.with_sources_of(&mut self.parts, ranges, |sources| match piece.runs().cloned() {
                None => {
                    let (header, request) = (header(WriteChunk::KIND), transfer.write_request(target, piece));
                    line.send(header, &request, sources, self.progress.deadline()).map(|()| header)
                }
                Some(runs) => {
                    let header = header(WriteRuns::KIND);
                    line.send(header, &WriteRuns { target, runs }, sources, self.progress.deadline())
                        .map(|()| header)
                }
            });
        Ok(Some(header?.call))
    }

    /// Receives one reply.
    fn collect(&mut self, share: &mut Share) {
        let Some((index, call)) = share.in_flight.pop_front() else { return };
        share.bytes_in_flight -= self.batch[index].length;
        let Some(line) = &mut share.line else { return };
        match self.receive(line, index, call) {
            Ok(()) => {
                self.batch[index].state = State::Done;
                self.batch[index].ticket = None;
                share.server.note_answer(true);
                self.progress.made(Instant::now());
            }
            Err(unanswered) if unanswered.from_server => self.fail_piece(share, index, unanswered),
            Err(unanswered) => {
                share.in_flight.push_front((index, call));
                self.lose(share, unanswered);
            }
        }
    }

    fn receive(&mut self, line: &mut Line, index: usize, call: u32) -> std::result::Result<(), Unanswered> {
        match &mut self.abandons_at {
            // Waits for the clients that have pages of them, however long the other replies took.
            None => drop(self.transfer.session.await_holders(line, self.progress.deadline())?),
            Some(until) if line.is_answered_by(*until)? => *until = Instant::now() + SEVERAL_WAIT_MAX,
            Some(_) => return Err(Unanswered::from_server(self.over.insert(others_have_some()).clone())),
        }
        self.progress.made(Instant::now());
        if self.transfer.direction == Direction::Write {
            if self.batch[index].runs().is_some() {
                return line.receive_change::<WriteRuns>(call, self.progress.deadline()).map(drop);
            }
            let written = line.receive_change::<WriteChunk>(call, self.progress.deadline())?;
            self.transfer.pages.note_recall(line.server_id(), written.reply.recall);
            return Ok(());
        }
        let transfer = self.transfer;
        let piece = &self.batch[index];
        let brought = match piece.runs() {
            None => Brought::of_chunk(&line.receive::<ReadChunk>(call, self.progress.deadline())?),
            Some(_) => Brought::of_runs(&line.receive::<ReadRuns>(call, self.progress.deadline())?),
        };
        let ranges = |each: &mut dyn FnMut(ByteRange)| piece.each_range(transfer.layout, each);
        transfer.memory.with_targets_of(&mut self.parts, ranges, |targets| {
            transfer.deliver(line, brought, targets, self.progress.deadline())
        })
    }

    /// The server refused one piece; the others go on.
    fn fail_piece(&mut self, share: &Share, index: usize, unanswered: Unanswered) {
        let judged = self.judge(share, unanswered);
        if judged.verdict.stops_others() {
            self.stop_at = self.stop_at.min(self.batch[index].file_offset);
        }
        self.batch[index].state = State::Failed(judged);
    }

    /// The connection is gone, and with it the replies to its requests in flight.
    fn lose(&mut self, share: &mut Share, unanswered: Unanswered) {
        share.line = None;
        share.bytes_in_flight = 0;
        let judged = self.judge(share, unanswered);
        self.transfer.pages.note_repeated();
        if judged.verdict.stops_others() {
            self.over = Some(judged.error.clone());
        }
        let lost = share.in_flight.drain(..).map(|(index, _)| index).chain(share.waiting.drain(..));
        for index in lost {
            self.batch[index].state = State::Failed(judged.clone());
        }
    }

    fn judge(&self, share: &Share, unanswered: Unanswered) -> Judged {
        let session = self.transfer.session;
        // The caller of the transfer asks the file's home about outdated state.
        session.judge(&share.server, self.map.epoch, unanswered, OnRetry::Tell, self.progress.deadline())
    }
}

impl Share {
    fn new(server: Arc<Server>) -> Share {
        Share { server, line: None, waiting: VecDeque::new(), in_flight: VecDeque::new(), bytes_in_flight: 0 }
    }
}

fn others_have_some() -> Error {
    Error::new(ErrorKind::Busy, "other kernels have some of these pages: they are to be asked for one by one")
}

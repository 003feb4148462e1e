//! A file's size, generation, truncations and appends: `docs/records/generations.md`.
//!
//! Three sizes matter. The *published* size is what all clients see. The *extent* is the end of the last byte
//! known to be written, or to stay a hole. The *tail* is the end of all that appends have reserved, also where it was
//! given back. Published ≤ extent, and the published size stops before the first unfinished reservation; unless appends
//! or truncations are under way all three are equal, and a file needs no [`FileWork`].

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Error, ErrorKind, Generation, InodeId, Result, SessionId, limits};
use ramlace_wire::check::FileFacts;
use ramlace_wire::peer::Token;
use ramlace_wire::{Attributes, FileAttributes, FileRules, Layout};
use serde::{Deserialize, Serialize};

use crate::command::DeliveryId;

/// The state that only files have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct File {
    /// The published size.
    pub size: u64,
    /// Raised by every truncation that takes bytes away, and where reserved bytes of a mapped file were given back.
    pub generation: Generation,
    /// Where the bytes lie.
    pub layout: Layout,
    /// Grew, or was open for writing, since its lanes were last asked to give back their unused tails. A write
    /// takes memory ahead also where the file does not grow: in a hole at its end.
    pub untrimmed: bool,
    /// Bytes from the beginning that are known to have memory: where that is all of them there is no hole.
    pub filled: u64,
    /// Memory was taken up to here, perhaps behind the end.
    pub taken_to: u64,
    /// Lane 0 has refused the inline bytes, and may hold them all the same: the message may have come twice, and
    /// only one of the two was refused.
    pub refused: bool,
    /// No lane from this one on has ever begun: there is nothing to drop.
    pub lanes_begun: u16,
    /// Named bytes; most files have none.
    pub named: Option<Box<FileAttributes>>,
    /// When stores are seen elsewhere, whatever the mounts have that open it; and whether it grows with its memory.
    pub rules: FileRules,
    /// The bytes, as long as they live here; see [`crate::inline`].
    pub inline: Option<Box<[u8]>>,
    /// Appends and truncations under way.
    pub work: Option<Box<FileWork>>,
}

/// Appends and truncations under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileWork {
    /// The extent, if it lies beyond the published size. Otherwise the value has no meaning, and is at most that size.
    extent: u64,
    /// Unfinished, in the order of their offsets.
    reservations: Vec<Reservation>,
    /// The end of all that was reserved in this generation. What was given back of it may still be written, late, and is
    /// not reserved again.
    given_to: u64,
    /// Truncations that some lane may not know: generations and sizes both rise.
    history: Vec<Truncated>,
    /// Lanes that have not confirmed the file's generation.
    cuts: BTreeMap<u16, OpenCut>,
    /// Truncations that have not been answered.
    answers: Vec<TruncateAnswer>,
    /// Inline bytes that are in flight to lane 0.
    pub leaving: Option<Leaving>,
}

/// Inline bytes in flight to lane 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Leaving {
    pub delivery: DeliveryId,
    /// The token that waits for it.
    pub waiting: Option<Token>,
}

/// Bytes promised to one writer at the end of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Reservation {
    offset: u64,
    length: u64,
    /// The change that has reserved them.
    by: Token,
}

/// The size that a generation began with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Truncated {
    generation: Generation,
    size: u64,
}

/// A `CutLane` in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct OpenCut {
    delivery: DeliveryId,
    /// The newest generation the lane has confirmed.
    known: Generation,
}

/// A truncation that waits for its lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TruncateAnswer {
    pub token: Token,
    lanes: BTreeSet<u16>,
    pub attributes: Attributes,
}

impl File {
    pub(crate) fn new(layout: Layout, rules: FileRules, named: FileAttributes) -> File {
        File {
            size: 0,
            generation: Generation::FIRST,
            layout,
            untrimmed: false,
            filled: 0,
            taken_to: 0,
            refused: false,
            lanes_begun: 0,
            named: (!named.is_empty()).then(|| Box::new(named)),
            rules,
            inline: Some(Box::default()),
            work: None,
        }
    }

    /// Bytes up to the end of the last that was written, published or not.
    pub(crate) fn extent(&self) -> u64 {
        self.work.as_ref().map_or(self.size, |work| work.extent.max(self.size))
    }

    /// Bytes of memory that it holds, if that is known here.
    pub(crate) fn allocated(&self) -> Option<u64> {
        match &self.inline {
            Some(bytes) => Some(bytes.len() as u64),
            None => {
                let whole = self.size.next_multiple_of(limits::PAGE_BYTES);
                (self.filled >= self.size && self.taken_to <= whole).then_some(whole)
            }
        }
    }

    /// The bytes from `start` to `end` have memory. Unreported bytes before them may be a hole.
    pub(crate) fn fill(&mut self, start: u64, end: u64) {
        if start <= self.filled {
            self.filled = self.filled.max(end);
        }
    }

    pub(crate) fn work(&mut self) -> &mut FileWork {
        self.work.get_or_insert_default()
    }

    /// The file has bytes up to `end`: raises the extent and publishes as far as possible. Returns whether
    /// the published size grew.
    pub(crate) fn extend(&mut self, end: u64) -> bool {
        let extent = self.extent().max(end);
        let limit = self.work.as_ref().and_then(|work| work.reservations.first()).map(|first| first.offset);
        let before = self.size;
        self.size = before.max(limit.map_or(extent, |limit| extent.min(limit)));
        self.untrimmed |= self.size > before;
        if extent > self.size {
            self.work().extent = extent;
        }
        self.forget_finished_work();
        self.size > before
    }

    /// Reserves the next `length` bytes for a session's change; returns their offset.
    pub(crate) fn reserve(&mut self, by: Token, length: u64, inode: InodeId) -> Result<u64> {
        let offset = self.given_to().max(self.extent());
        if length > limits::FILE_BYTES_MAX - offset.min(limits::FILE_BYTES_MAX) {
            return Err(Error::new(
                ErrorKind::TooBig,
                format!(
                    "an append of {length} bytes to file {inode} would end beyond {} bytes",
                    limits::FILE_BYTES_MAX
                ),
            ));
        }
        let waiting = self.work.as_ref().map_or(0, |work| work.reservations.len());
        if waiting >= limits::APPEND_RESERVATIONS_MAX {
            return Err(Error::new(
                ErrorKind::Retry,
                format!("{waiting} appends to file {inode} are not finished yet"),
            ));
        }
        let work = self.work();
        work.reservations.push(Reservation { offset, length, by });
        work.given_to = offset + length;
        Ok(offset)
    }

    /// The reserved bytes are written, or stay a hole because that failed; then it is no error if they are not reserved any
    /// more (`None`). Returns whether the published size grew. With `gap`, bytes that were not written do not belong to the file, unless others follow them.
    pub(crate) fn finish(
        &mut self,
        by: Token,
        failed: bool,
        gap: bool,
        inode: InodeId,
    ) -> Result<Option<bool>> {
        let missing = || {
            Error::new(
                ErrorKind::Retry,
                format!(
                    "file {inode} was truncated after its bytes were reserved; reserve and write them again"
                ),
            )
        };
        let found = self.work.as_mut().and_then(|work| {
            let at = work.reservations.iter().position(|reservation| reservation.by == by)?;
            Some(work.reservations.remove(at))
        });
        let reserved = match found {
            Some(reservation) => reservation,
            None if failed => return Ok(None),
            None => return Err(missing()),
        };
        let (offset, end) = (reserved.offset, reserved.end());
        if !failed {
            self.fill(offset, end);
        }
        Ok(Some(self.extend(if failed && gap { 0 } else { end })))
    }

    /// Up to where bytes were reserved in this generation.
    fn given_to(&self) -> u64 {
        self.work.as_ref().map_or(0, |work| work.given_to)
    }

    /// Whether bytes behind the end were reserved and given back, and nothing else is under way there.
    pub(crate) fn is_only_given_back(&self) -> bool {
        self.given_to() > self.size && !self.is_unpublished()
    }

    /// What was reserved up to now is to be written no more: begins a generation, with all bytes that the file has. Returns
    /// the length to which they are cut in every lane; `None` where that must wait.
    pub(crate) fn outdate(&mut self, inode: InodeId) -> Option<u64> {
        self.begin_generation(self.size, inode).ok()?;
        Some(self.size)
    }

    /// Whether appends are under way, or bytes are there that are not published yet.
    pub(crate) fn is_unpublished(&self) -> bool {
        self.extent() > self.size || self.work.as_ref().is_some_and(|work| !work.reservations.is_empty())
    }

    /// The session is gone: its reservations stay holes, or with `gap` are removed if nothing is behind them.
    /// Returns whether the published size grew.
    pub(crate) fn abandon(&mut self, session: SessionId, gap: bool) -> bool {
        let Some(work) = &mut self.work else { return false };
        let mut end = 0;
        work.reservations.retain(|reservation| {
            let stays = reservation.by.session != session;
            if !stays {
                end = end.max(reservation.end());
            }
            stays
        });
        self.extend(if gap { 0 } else { end })
    }

    /// Sets the size. Returns the length to which the file's bytes must be cut in every lane,
    /// or `None` when no byte has to go.
    ///
    /// Growing takes no bytes away and sends no message: lanes hold bytes beyond the file's end only from
    /// writes that never completed. Unless there are appends under way, or bytes written behind them: those go
    /// first, and their writers meet a newer generation.
    pub(crate) fn truncate(&mut self, size: u64, inode: InodeId) -> Result<Option<u64>> {
        let kept = size.min(self.size);
        self.filled = self.filled.min(kept);
        let appends = self.work.as_ref().is_some_and(|work| !work.reservations.is_empty());
        if kept == self.extent() && !appends {
            self.size = size;
            self.forget_finished_work();
            return Ok(None);
        }
        self.begin_generation(kept, inode)?;
        self.size = size;
        Ok(Some(kept))
    }

    /// Whatever lies behind these bytes belongs to the file no more, nor does what is written there for older generations.
    fn begin_generation(&mut self, kept: u64, inode: InodeId) -> Result<()> {
        let history = &mut self.work().history;
        // A lane that learns of this truncation need not learn of an older one to a larger size.
        let still_telling = history.partition_point(|older| older.size < kept);
        if still_telling >= limits::TRUNCATIONS_UNRECEIVED_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{still_telling} truncations of file {inode} have not reached a server that is down"),
            ));
        }
        history.truncate(still_telling);
        self.generation = self.generation.next();
        let generation = self.generation;
        let work = self.work();
        work.history.push(Truncated { generation, size: kept });
        work.reservations.clear();
        (work.extent, work.given_to) = (0, 0);
        self.taken_to = 0;
        Ok(())
    }

    /// The smallest size of any generation after `since`; `None` when there is none, or every
    /// lane knows of them.
    pub(crate) fn smallest_size(&self, since: Generation) -> Option<u64> {
        let history = &self.work.as_ref()?.history;
        history.iter().find(|truncated| truncated.generation > since).map(|truncated| truncated.size)
    }

    /// A `CutLane` with the file's generation is in flight; returns an older one that it replaces.
    pub(crate) fn cut_sent(&mut self, lane: u16, delivery: DeliveryId) -> Option<DeliveryId> {
        let before = Generation(self.generation.0 - 1);
        let cuts = &mut self.work().cuts;
        let older = cuts.get(&lane).copied();
        cuts.insert(lane, OpenCut { delivery, known: older.map_or(before, |cut| cut.known) });
        older.map(|cut| cut.delivery)
    }

    /// Whether a `CutLane` is in flight.
    pub(crate) fn is_being_cut(&self, lane: u16) -> bool {
        self.work.as_ref().is_some_and(|work| work.cuts.contains_key(&lane))
    }

    /// A caller waits until every lane has received the truncation, or cannot be reached.
    pub(crate) fn answer_later(&mut self, token: Token, attributes: Attributes) {
        let lanes = (0..self.layout.width).collect();
        self.work().answers.push(TruncateAnswer { token, lanes, attributes });
    }

    /// The lane has confirmed the file's generation.
    pub(crate) fn cut_done(&mut self, lane: u16) -> Vec<TruncateAnswer> {
        let work = self.work();
        work.cuts.remove(&lane);
        match work.cuts.values().map(|cut| cut.known).min() {
            None => work.history.clear(),
            Some(known) => work.history.retain(|truncated| truncated.generation > known),
        }
        let answers = self.lane_need_not_be_awaited(lane);
        self.forget_finished_work();
        answers
    }

    /// No caller waits for the lane any longer; returns the truncations that are answered thereby.
    pub(crate) fn lane_need_not_be_awaited(&mut self, lane: u16) -> Vec<TruncateAnswer> {
        let Some(work) = &mut self.work else { return Vec::new() };
        let mut ready = Vec::new();
        for mut answer in std::mem::take(&mut work.answers) {
            answer.lanes.remove(&lane);
            if answer.lanes.is_empty() { ready.push(answer) } else { work.answers.push(answer) }
        }
        ready
    }

    /// Whether a truncation waits for the lane.
    pub(crate) fn lane_is_awaited(&self, lane: u16) -> bool {
        self.work.as_ref().is_some_and(|work| work.answers.iter().any(|answer| answer.lanes.contains(&lane)))
    }

    /// The deliveries and truncations that are still under way when the file goes for good.
    pub(crate) fn into_unfinished(self) -> (Vec<DeliveryId>, Vec<TruncateAnswer>) {
        let work = self.work.map(|work| *work).unwrap_or_default();
        (work.cuts.values().map(|cut| cut.delivery).collect(), work.answers)
    }

    /// Sessions with unfinished appends.
    pub(crate) fn reserved_by(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.work.iter().flat_map(|work| work.reservations.iter().map(|reservation| reservation.by.session))
    }

    /// The `CutLane`s and the `FillLane` in flight.
    pub(crate) fn open_cuts(&self) -> impl Iterator<Item = DeliveryId> + '_ {
        let leaving = |work: &FileWork| work.leaving.map(|leaving| leaving.delivery);
        self.work.iter().flat_map(move |work| work.cuts.values().map(|cut| cut.delivery).chain(leaving(work)))
    }

    /// The facts for `check`.
    pub(crate) fn facts(&self) -> FileFacts {
        FileFacts {
            extent: self.extent().max(self.given_to()),
            generation: self.generation,
            layout: self.layout,
            untrimmed: self.untrimmed,
            // A lane that has refused the inline bytes may have taken a late copy of them. It is notified of the
            // generation only with the next promotion, so it may differ from the file until then.
            cutting: self.open_cuts().next().is_some() || self.refused,
            lanes_begun: self.lanes_begun,
        }
    }

    pub(crate) fn forget_finished_work(&mut self) {
        let idle = |work: &FileWork| {
            work.extent <= self.size
                && work.given_to <= self.size
                && work.reservations.is_empty()
                && work.history.is_empty()
                && work.cuts.is_empty()
                && work.answers.is_empty()
                && work.leaving.is_none()
        };
        if self.work.as_deref().is_some_and(idle) {
            self.work = None;
        }
    }
}

impl Reservation {
    fn end(&self) -> u64 {
        self.offset + self.length
    }
}

//! Waiting for a change of bytes.
//!
//! A version holds a number for each lane that the range touches, and one for the file's home where its size
//! or its inline bytes belong to the range. It is taken before the bytes are read, so that no change in
//! between is missed.

use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, Slot, limits};
use ramlace_wire::Layout;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::coordination::{EndWatch, NoteChange, WatchChange};

use crate::bytes::file::File;
use crate::bytes::pages::Pages;
use crate::bytes::transfer::{Direction, Memory, Transfer};
use crate::coordination::locking::soon;
use crate::coordination::parked::{Slept, Waiter, Wake, end_of};
use crate::names::inodes::Handle;
use crate::names::open_inode::Size;
use crate::session::retry::is_unacknowledged;

/// The state of a range's bytes at one point in time. Valid only for the file from which it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeVersion {
    range: ByteRange,
    home: Option<u64>,
    /// In the order in which the range touches its lanes.
    lanes: Vec<u64>,
}

impl ChangeVersion {
    /// The bytes it stands for.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// Its numbers: the home's, and each lane's, at most [`limits::WATCH_LANES_MAX`].
    #[doc(hidden)]
    #[must_use]
    pub fn numbers(&self) -> (Option<u64>, &[u64]) {
        (self.home, &self.lanes)
    }

    /// From a range and its numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn from_numbers(range: ByteRange, home: Option<u64>, lanes: Vec<u64>) -> ChangeVersion {
        ChangeVersion { range, home, lanes }
    }
}

/// The places that report changes of a range.
struct Places {
    home: bool,
    lanes: Vec<(u16, LaneTarget)>,
}

/// The result of asking all places once.
enum Compared {
    Changed,
    Same,
}

impl File {
    /// The present version of some bytes; an empty range goes as far as any file may.
    ///
    /// Errors: `TooBig` when the range touches more than 64 lanes.
    pub fn change_version(&self, range: ByteRange) -> Result<ChangeVersion> {
        let handle = self.handle()?;
        let start = range.start;
        let end = if range.start >= range.end { limits::FILE_BYTES_MAX } else { range.end };
        let mut version = ChangeVersion { range: ByteRange { start, end }, home: None, lanes: Vec::new() };
        self.look(handle, &mut version, None).map_err(|error| self.tell(error))?;
        Ok(version)
    }

    /// Waits until bytes of the version's range were written, cut off or published by any client since it was
    /// taken, for at most `timeout` (for ever without one), and returns the present version. May also return
    /// when nothing has changed: after a server's process has died, and when there were many changes close
    /// by.
    ///
    /// Errors: `TimedOut` when nothing has changed in time.
    pub fn wait_for_change(&self, since: &ChangeVersion, timeout: Option<Duration>) -> Result<ChangeVersion> {
        self.wait_for_change_with(since, timeout, || Ok(()))
    }

    /// The same; `pause` is called several times a second and says whether to go on waiting.
    #[doc(hidden)]
    pub fn wait_for_change_with(
        &self,
        since: &ChangeVersion,
        timeout: Option<Duration>,
        mut pause: impl FnMut() -> Result<()>,
    ) -> Result<ChangeVersion> {
        let handle = self.handle()?;
        let waited = self.wait_for(handle, since, timeout, &mut pause);
        waited.map_err(|error| self.tell(error))
    }

    fn wait_for(
        &self,
        handle: &Handle,
        since: &ChangeVersion,
        timeout: Option<Duration>,
        pause: &mut impl FnMut() -> Result<()>,
    ) -> Result<ChangeVersion> {
        let until = end_of(timeout);
        let session = &handle.session;
        let mut version = since.clone();
        let slots = self.slots_of(handle, since.range)?;
        let mut waiter = session.waits.park(slots.clone(), None)?;
        let mut waits = false;
        loop {
            match self.look(handle, &mut version, Some(&waiter)) {
                Ok(Compared::Changed) => {
                    self.end_watches(handle, &version, &waiter, None);
                    return Ok(version);
                }
                Ok(Compared::Same) => waits = true,
                // The server restarts, or its slot moves to another server.
                Err(error) if waits && is_unacknowledged(&error) => waiter.ask_later(),
                Err(error) => {
                    self.end_watches(handle, &version, &waiter, None);
                    return Err(error);
                }
            }
            let listening = slots.iter().try_for_each(|slot| session.listen_to(*slot));
            let ended = match listening.and_then(|()| waiter.sleep(until, pause)) {
                Ok(Slept::Woken(Wake::Changed(lane, number))) => {
                    self.end_watches(handle, &version, &waiter, Some(lane));
                    self.set_number(&mut version, lane, number);
                    return Ok(version);
                }
                Ok(Slept::Woken(_)) => continue,
                Ok(Slept::Over) => {
                    let timeout = timeout.unwrap_or_default();
                    Error::new(ErrorKind::TimedOut, format!("nothing has changed within {timeout:?}"))
                }
                Err(error) => error,
            };
            self.end_watches(handle, &version, &waiter, None);
            return Err(ended);
        }
    }

    /// Asks every place about the version's numbers and takes new ones where they have changed. A number that
    /// was not known counts as changed. Without a waiter this does not wait.
    fn look(
        &self,
        handle: &Handle,
        version: &mut ChangeVersion,
        waiter: Option<&Waiter<'_>>,
    ) -> Result<Compared> {
        let range = version.range;
        let (look, looked) = self.with_size(handle, |known| {
            // A retry after a truncation begins with the old numbers.
            let mut version = version.clone();
            let mut places = self.places(handle, known, range)?;
            let mut changed = false;
            if places.home || version.home.is_some() {
                let (differs, number, inline) = self.ask_home(handle, range, version.home, waiter)?;
                changed |= differs || version.home.is_none();
                version.home = Some(number);
                if !inline && handle.open.is_inline() {
                    // The home's answer has the epoch since which the file is in its lanes.
                    self.refresh(handle)?;
                    places = self.places(handle, handle.open.size(), range)?;
                }
            }
            if changed && !version.lanes.is_empty() {
                return Ok((Compared::Changed, version));
            }
            let fresh = version.lanes.len() != places.lanes.len();
            if fresh {
                changed |= !places.lanes.is_empty() || !version.lanes.is_empty();
                version.lanes.clear();
            }
            for (at, (lane, target)) in places.lanes.iter().enumerate() {
                let span = ramlace_layout::lane_span(self.layout(), *lane, range);
                let since = version.lanes.get(at).copied();
                let wait = waiter.filter(|_| !changed).map_or(0, |waiter| waiter.wait);
                let request = WatchChange {
                    inode: self.inode(),
                    lane: Some(*target),
                    start: span.start,
                    end: span.end,
                    since,
                    wait,
                };
                let session = &handle.session;
                let answer = session.ask_lane(target.slot, &request, session.deadline())?;
                match version.lanes.get_mut(at) {
                    Some(number) => *number = answer.number,
                    None => version.lanes.push(answer.number),
                }
                changed |= answer.changed;
                if changed && !fresh {
                    break;
                }
            }
            Ok((if changed { Compared::Changed } else { Compared::Same }, version))
        })?;
        *version = looked;
        Ok(look)
    }

    /// Asks the home: whether something has changed, its number, and whether the file is inline.
    fn ask_home(
        &self,
        handle: &Handle,
        range: ByteRange,
        since: Option<u64>,
        waiter: Option<&Waiter<'_>>,
    ) -> Result<(bool, u64, bool)> {
        let session = &handle.session;
        let wait = waiter.map_or(0, |waiter| waiter.wait);
        let ByteRange { start, end } = range;
        let request = WatchChange { inode: self.inode(), lane: None, start, end, since, wait };
        let answer = session.ask(self.inode().slot(), &request, session.deadline())?;
        Ok((answer.changed, answer.number, answer.inline))
    }

    /// The places that report changes of a range: the home while the file is inline, and also where the range
    /// goes beyond the known size; else the lanes.
    fn places(&self, handle: &Handle, known: Size, range: ByteRange) -> Result<Places> {
        if handle.open.is_inline() {
            return Ok(Places { home: true, lanes: Vec::new() });
        }
        let session = &handle.session;
        let transfer = self.transfer(handle, known, Direction::Read, Memory::none());
        let map = session.map()?;
        let lanes = self.lanes_of(range)?;
        let lanes = lanes.into_iter().map(|lane| (lane, transfer.target_in(&map, lane)));
        Ok(Places { home: range.end > known.size, lanes: lanes.collect() })
    }

    fn lanes_of(&self, range: ByteRange) -> Result<Vec<u16>> {
        let layout = self.layout();
        let pieces = ramlace_layout::pieces(layout, range).take(usize::from(layout.width));
        let lanes: Vec<u16> = pieces.map(|piece| piece.lane).collect();
        if lanes.len() > limits::WATCH_LANES_MAX {
            let text = format!(
                "the bytes are on {} lanes, and a wait for changes may touch {}: wait for fewer bytes",
                lanes.len(),
                limits::WATCH_LANES_MAX
            );
            return Err(Error::new(ErrorKind::TooBig, text));
        }
        Ok(lanes)
    }

    fn slots_of(&self, handle: &Handle, range: ByteRange) -> Result<Vec<Slot>> {
        let slots = handle.session.map()?.slots();
        let lanes = self.lanes_of(range)?;
        let mut all: Vec<Slot> =
            lanes.iter().map(|lane| ramlace_layout::lane_slot(self.layout(), *lane, slots)).collect();
        all.push(self.inode().slot());
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn set_number(&self, version: &mut ChangeVersion, lane: Option<u16>, number: u64) {
        let Some(lane) = lane else { return version.home = Some(number) };
        let position =
            self.lanes_of(version.range).ok().and_then(|lanes| lanes.iter().position(|of| *of == lane));
        if let Some(known) = position.and_then(|at| version.lanes.get_mut(at)) {
            *known = number;
        }
    }

    /// Ends the wait at all places, except the one that has reported. A place that cannot be notified reports one
    /// more event, which is ignored.
    fn end_watches(
        &self,
        handle: &Handle,
        version: &ChangeVersion,
        waiter: &Waiter<'_>,
        notified_by: Option<Option<u16>>,
    ) {
        let session = &handle.session;
        let Ok(places) = self.places(handle, handle.open.size(), version.range) else { return };
        let lanes = places.lanes.iter().map(|(lane, target)| (Some(*lane), target.slot));
        let home = version.home.map(|_| (None, self.inode().slot()));
        let deadline = soon();
        for (lane, slot) in lanes.chain(home).filter(|(lane, _)| Some(*lane) != notified_by) {
            let request = EndWatch { inode: self.inode(), lane, wait: waiter.wait };
            let _ = session.ask(slot, &request, deadline);
        }
    }

    /// Notifies the servers of these bytes that they were changed by stores into their memory.
    pub(crate) fn note_stores(&self, handle: &Handle, range: ByteRange) -> Result<()> {
        note_stores(handle, (self.inode(), self.layout()), range, None, || handle.session.deadline())
    }
}

/// A mapping for stores that has ended.
#[derive(Clone, Copy)]
pub(crate) struct Over {
    /// Its number.
    pub(crate) number: u64,
    /// The servers of so many lanes, from the first one on, may know it.
    pub(crate) lanes: u16,
}

/// Notifies the servers of some bytes of a file that they were changed by stores into their memory, and that a mapping
/// is over. Each of them has the time until a deadline of its own.
pub(crate) fn note_stores(
    handle: &Handle,
    (inode, layout): (InodeId, &Layout),
    range: ByteRange,
    over: Option<Over>,
    deadline: impl Fn() -> Instant,
) -> Result<()> {
    let size = handle.open.size();
    let range = range.intersection(ByteRange { start: 0, end: size.size });
    let notify = |lane, (start, end), over| {
        let file = (inode, layout);
        let transfer = Transfer::of(file, Pages::None, handle, size, Direction::Write, Memory::none());
        let target = transfer.target(lane)?;
        handle.session.ask(target.slot, &NoteChange { target, start, end, over }, deadline())
    };
    let mut outcome = Ok(());
    for lane in 0..layout.width {
        let ByteRange { start, end } = ramlace_layout::lane_span(layout, lane, range);
        let over = over.filter(|over| lane < over.lanes).map(|over| over.number);
        if start < end || over.is_some() {
            // Where one server does not answer the others are told all the same.
            outcome = outcome.and(notify(lane, (start, end), over));
        }
    }
    outcome
}

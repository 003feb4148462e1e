//! What an incarnation of a server knows of its lanes: writes whose bytes are arriving, and the sessions that
//! wait for changes.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, InodeId, LaneId, Result, Sequence, SessionId, Slot};
use ramlace_wire::coordination::WatchAnswer;
use ramlace_wire::locks::Event;

use crate::change::LaneEffect;
use crate::watches::{HomeSeen, Place, Watches};

/// Names a write for ever.
pub type Writer = (SessionId, Sequence);

/// An event for a session.
pub type Notified = (SessionId, Event);

/// Writes under way, and waits for changes.
#[derive(Default)]
pub struct Traffic {
    in_flight: BTreeMap<LaneId, BTreeMap<Writer, ByteRange>>,
    watches: Watches,
}

impl Traffic {
    /// Bytes of a lane begin to change.
    pub fn begin(&mut self, lane: LaneId, writer: Writer, range: ByteRange) {
        self.in_flight.entry(lane).or_default().insert(writer, range);
    }

    /// The change has ended, in whatever way: bytes of a write that was cut short are there, too.
    pub fn end(&mut self, lane: LaneId, writer: Writer) -> Option<LaneEffect> {
        let writes = self.in_flight.get_mut(&lane)?;
        let range = writes.remove(&writer);
        if writes.is_empty() {
            self.in_flight.remove(&lane);
        }
        range.map(|range| LaneEffect::Changed { lane, range })
    }

    /// A write under way that this one replaces: its own first attempt, or one of the session's with a number
    /// below `below`, for which the client no longer waits.
    #[must_use]
    pub fn replaced_by(&self, lane: LaneId, writer: Writer, below: Sequence) -> Option<Writer> {
        let of_session = (writer.0, Sequence(0))..=(writer.0, below.max(writer.1));
        let mut writes = self.in_flight.get(&lane)?.range(of_session).map(|(other, _)| *other);
        writes.find(|other| *other == writer || other.1 < below)
    }

    /// A write under way in a lane.
    #[must_use]
    pub fn first_of(&self, lane: LaneId) -> Option<Writer> {
        self.in_flight.get(&lane)?.keys().next().copied()
    }

    /// Does what follows from a step: returns the events that sessions wait for.
    #[must_use]
    pub fn note(&mut self, effect: LaneEffect) -> Vec<Notified> {
        let LaneEffect::Changed { lane, range } = effect;
        self.watches.note((lane.inode, Some(lane.lane)), range)
    }

    /// Bytes that live with an inode were changed.
    #[must_use]
    pub fn note_inline(&mut self, inode: InodeId, range: ByteRange) -> Vec<Notified> {
        self.watches.note((inode, None), range)
    }

    /// Whether bytes were changed since a number; if not, and with a waiter, it is notified when they are.
    /// `begin` is a number above all that were ever given of this place.
    pub fn ask(
        &mut self,
        place: Place,
        range: ByteRange,
        since: Option<u64>,
        waiter: Option<(SessionId, u64)>,
        begin: u64,
    ) -> Result<WatchAnswer> {
        self.watches.ask(place, range, since, waiter, begin)
    }

    /// The state of a home when it is asked about.
    pub fn see(&mut self, inode: InodeId, seen: HomeSeen) {
        self.watches.see(inode, seen);
    }

    /// The homes in a slot that a session has asked about; of all slots without one.
    #[must_use]
    pub fn homes(&self, slot: Option<Slot>) -> Vec<(InodeId, HomeSeen)> {
        self.watches.homes(slot)
    }

    /// Whether no home is watched.
    #[must_use]
    pub fn has_no_homes(&self) -> bool {
        self.watches.has_no_homes()
    }

    /// A home is as it is now, or gone: returns the events to send.
    #[must_use]
    pub fn compare(&mut self, inode: InodeId, now: Option<HomeSeen>) -> Vec<Notified> {
        self.watches.compare(inode, now)
    }

    /// A session waits no longer.
    pub fn end_wait(&mut self, place: Place, session: SessionId, wait: u64) {
        self.watches.end(place, session, wait);
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.watches.end_session(session);
    }

    /// How many wait.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.watches.waits()
    }
}

//! Which bytes were changed recently, of those that sessions have asked about, and which sessions wait for a
//! change.
//!
//! Nothing is remembered of bytes that no session has asked about, and nothing is kept over a restart: a
//! number that is no longer known stands for a state that has changed. So a wait may end early, and never
//! late.
//!
//! The caller provides the number from which a new table counts: this reads no clock.

use std::collections::{BTreeMap, VecDeque};

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, InodeId, Result, SessionId, Slot, limits};
use ramlace_wire::coordination::WatchAnswer;
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::locks::Event;

/// A lane, or (`None`) a file's size and the bytes that live with its inode.
pub type Place = (InodeId, Option<u16>);

/// The part of a home's state that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeSeen {
    /// The published size.
    pub size: u64,
    /// Its generation.
    pub generation: Generation,
    /// Where the bytes are.
    pub place: BytesPlace,
}

struct Wait {
    session: SessionId,
    wait: u64,
    range: ByteRange,
}

struct Watch {
    /// Nothing is known of what happened before this number.
    floor: u64,
    latest: u64,
    /// Oldest first, each range once.
    changes: VecDeque<(ByteRange, u64)>,
    waits: Vec<Wait>,
    asked: u64,
}

impl Watch {
    fn new(begin: u64) -> Watch {
        Watch { floor: begin, latest: begin, changes: VecDeque::new(), waits: Vec::new(), asked: 0 }
    }

    fn is_changed(&self, range: ByteRange, since: u64) -> bool {
        let known = (self.floor..=self.latest).contains(&since);
        !known || self.changes.iter().any(|(changed, number)| *number > since && overlaps(*changed, range))
    }

    fn note(&mut self, range: ByteRange) {
        self.latest += 1;
        self.changes.retain(|(other, _)| *other != range);
        if self.changes.len() >= limits::WATCH_CHANGES_MAX
            && let Some((_, number)) = self.changes.pop_front()
        {
            self.floor = number;
        }
        self.changes.push_back((range, self.latest));
    }
}

fn overlaps(one: ByteRange, other: ByteRange) -> bool {
    one.start < other.end && other.start < one.end
}

/// What one server knows of changes.
#[derive(Default)]
pub struct Watches {
    places: BTreeMap<Place, Watch>,
    homes: BTreeMap<InodeId, HomeSeen>,
    queries: u64,
    waits: usize,
}

impl Watches {
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
        self.make_room(place).inspect_err(|_| {
            if place.1.is_none() {
                self.homes.remove(&place.0);
            }
        })?;
        self.queries += 1;
        let watch = self.places.entry(place).or_insert_with(|| Watch::new(begin));
        watch.asked = self.queries;
        let number = watch.latest;
        let changed = since.is_some_and(|since| watch.is_changed(range, since));
        if let (Some(_), false, Some((session, wait))) = (since, changed, waiter) {
            let before = watch.waits.len();
            watch.waits.retain(|other| (other.session, other.wait) != (session, wait));
            self.waits -= before - watch.waits.len();
            if self.waits >= limits::WATCH_WAITS_PER_SERVER_MAX {
                let text = format!("{} waits for changes are as many as one server takes", self.waits);
                return Err(Error::new(ErrorKind::TooMany, text));
            }
            watch.waits.push(Wait { session, wait, range });
            self.waits += 1;
        }
        let inline = self.homes.get(&place.0).is_some_and(|seen| seen.place != BytesPlace::Lanes);
        Ok(WatchAnswer { changed, number, inline: inline && place.1.is_none() })
    }

    /// The state of a home when it is asked about.
    pub fn see(&mut self, inode: InodeId, seen: HomeSeen) {
        self.homes.insert(inode, seen);
    }

    /// Bytes were changed: returns the sessions to notify.
    pub fn note(&mut self, place: Place, range: ByteRange) -> Vec<(SessionId, Event)> {
        let Some(watch) = self.places.get_mut(&place).filter(|_| range.start < range.end) else {
            return Vec::new();
        };
        watch.note(range);
        let number = watch.latest;
        let notified = watch.waits.extract_if(.., |wait| overlaps(wait.range, range));
        let event = |wait: Wait| (wait.session, Event::Changed { wait: wait.wait, lane: place.1, number });
        let notified: Vec<_> = notified.map(event).collect();
        self.waits -= notified.len();
        notified
    }

    /// The homes in a slot that a session has asked about; of all slots without one.
    pub fn homes(&self, slot: Option<Slot>) -> Vec<(InodeId, HomeSeen)> {
        let within = match slot {
            Some(slot) => InodeId::new(slot, 0)..=InodeId::new(slot, InodeId::COUNTER_MAX),
            None => InodeId(0)..=InodeId(u64::MAX),
        };
        self.homes.range(within).map(|(inode, seen)| (*inode, *seen)).collect()
    }

    /// Whether no home is watched.
    pub fn has_no_homes(&self) -> bool {
        self.homes.is_empty()
    }

    /// A home is as it is now, or gone: returns the sessions to notify.
    pub fn compare(&mut self, inode: InodeId, now: Option<HomeSeen>) -> Vec<(SessionId, Event)> {
        let Some(before) = self.homes.get(&inode).copied() else { return Vec::new() };
        let all = ByteRange { start: 0, end: u64::MAX };
        match now {
            None => {
                self.homes.remove(&inode);
                self.note((inode, None), all)
            }
            Some(now) => {
                self.homes.insert(inode, now);
                if now.place != before.place {
                    return self.note((inode, None), all);
                }
                if (now.size, now.generation) == (before.size, before.generation) {
                    return Vec::new();
                }
                let range = ByteRange { start: now.size.min(before.size), end: u64::MAX };
                self.note((inode, None), range)
            }
        }
    }

    /// A session waits no longer.
    pub fn end(&mut self, place: Place, session: SessionId, wait: u64) {
        if let Some(watch) = self.places.get_mut(&place) {
            let before = watch.waits.len();
            watch.waits.retain(|other| (other.session, other.wait) != (session, wait));
            self.waits -= before - watch.waits.len();
        }
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        for watch in self.places.values_mut() {
            let before = watch.waits.len();
            watch.waits.retain(|wait| wait.session != session);
            self.waits -= before - watch.waits.len();
        }
    }

    /// How many wait.
    pub fn waits(&self) -> u64 {
        self.waits as u64
    }

    /// Forgets the place that was not asked about for the longest time, and where no session waits.
    fn make_room(&mut self, place: Place) -> Result<()> {
        if self.places.len() < limits::WATCHES_PER_SERVER_MAX || self.places.contains_key(&place) {
            return Ok(());
        }
        let idle = self.places.iter().filter(|(_, watch)| watch.waits.is_empty());
        let Some(oldest) = idle.min_by_key(|(_, watch)| watch.asked).map(|(place, _)| *place) else {
            let text = format!(
                "changes of {} lanes are waited for, which is as many as one server takes",
                self.places.len()
            );
            return Err(Error::new(ErrorKind::TooMany, text));
        };
        self.places.remove(&oldest);
        if oldest.1.is_none() {
            self.homes.remove(&oldest.0);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "watches_tests.rs"]
mod tests;

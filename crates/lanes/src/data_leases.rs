//! Leases on bytes: which sessions' kernels may keep pages of what, and what those pages were when the kernel
//! got them.
//!
//! A session that reads bytes for its kernel's pages gets a lease on the whole place (a lane, or the bytes that
//! live with an inode). When another session changes some of these bytes, the lease on them is *recalled*: the
//! holder writes back what programs have stored, drops the pages, and acknowledges. The change is made at once;
//! its answer waits for the acknowledgements, so that once it has arrived no client reads older bytes. What was
//! recalled is a hole of the lease, until the holder reads it anew. A lease may always seem larger than what
//! the kernel has: that costs a recall and nothing else. So a lease with too many holes loses the smallest.
//! Recalls that follow each other name as much again ahead, so that a writer that streams through what others
//! have read waits a few times, and not once for each write.
//!
//! Pages that come back by a write-back have their programs' stores in them, and around them what the kernel
//! was given: their *base*. Only what differs from the base is written, so that stores of several machines to
//! bytes of one page all survive. The base is what the place has, except after a change by another session:
//! then the previous bytes are kept here, for each holder, until it has acknowledged or reads the page anew. A
//! write-back never waits: its kernel holds the page, and dropping the page waits for the write-back.
//!
//! A holder that does not acknowledge in time is *fenced*: no caller waits for it any longer, it has lost its
//! lease, and what it writes back there is refused until it has acknowledged. All of this is lost with the
//! process.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use ramlace_base::{ByteRange, Result, SessionId, limits};

use crate::outdated::{News, Outdated};
use crate::pages::{PAGE_BYTES, WHOLE, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

#[path = "bases.rs"]
mod bases;
#[path = "claims.rs"]
mod claims;
#[path = "fought.rs"]
mod fought;
#[path = "held.rs"]
pub mod held;
#[path = "news.rs"]
mod news;
#[path = "owners.rs"]
mod owners;
#[path = "recalls.rs"]
mod recalls;
#[path = "returning.rs"]
mod returning;
#[path = "small.rs"]
mod small;
#[path = "stores.rs"]
mod stores;
#[path = "unknown.rs"]
mod unknown;

use bases::Base;
use fought::Fought;
use owners::Owners;
pub use owners::{Asked, Ticket, Wish};
use returning::Returning;
use small::FirstPages;
use unknown::Unknown;

/// Reads bytes of the place that a call is about, as they are now; zeros where there are none.
pub type ReadNow<'a> = &'a mut dyn FnMut(ByteRange) -> Result<Vec<u8>>;

/// A kind of change of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They are replaced by others.
    Write,
    /// They have changed already, by stores into the memory itself: the previous bytes are not known.
    Stored,
    /// They become zeros, or are no longer part of the file; what programs have stored there is erased too.
    Erase,
}

/// The programs' stores in pages that are written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The parts of the pages that change, as far as they were written back; they do not touch.
    pub ranges: Vec<ByteRange>,
    /// The new content of all bytes that came: what programs have stored, and otherwise what the place has.
    /// `None`: as they came.
    pub merged: Option<Vec<u8>>,
}

/// All leases on bytes of one server.
#[derive(Debug, Default)]
pub struct DataLeases {
    /// The holes of each lease.
    leases: BTreeMap<Place, BTreeMap<SessionId, RangeSet>>,
    given: usize,
    recalls: BTreeMap<u64, Pending>,
    /// The recalls of each place, with their ranges: a change is about few of the thousands that there may be.
    at: BTreeMap<Place, BTreeMap<u64, ByteRange>>,
    /// The numbers of each holder's recalls.
    of: BTreeMap<SessionId, BTreeSet<u64>>,
    last_number: u64,
    /// How often a holder was asked, or was fenced.
    notices: u64,
    /// The bases of pages that differ from what the place has now.
    bases: BTreeMap<(Place, SessionId, u64), Base>,
    /// The number of copies of pages that these share.
    copies: Rc<Cell<usize>>,
    /// After a restart of a server that had given leases: the sessions that had some, and may still have
    /// pages.
    returning: Returning,
    /// Facts that must be known after a restart, and were not logged yet.
    news: Vec<News>,
    /// What will be known after a restart, once these are logged.
    outdated: Outdated,
    /// Pages whose base is not known.
    unknown: Unknown,
    /// First pages that are known not to be from when their files were small.
    firsts: FirstPages,
    /// The place whose lease was last recalled to make room.
    evicted: Option<Place>,
    /// Pages that lie in one kernel alone.
    owners: Owners,
    /// Pages that machines take from each other, counted.
    fought: Fought,
}

/// Whose answers wait for a recall, from the fewest to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WaitedFor {
    Nobody,
    /// The holder cannot drop the pages before a call of its own is answered, which may wait for the drop of a page
    /// that another call holds: calls that change bytes do not wait. A call that publishes stores holds no page.
    Publishers,
    All,
}

/// A recall that was not acknowledged.
#[derive(Debug)]
struct Pending {
    place: Place,
    range: ByteRange,
    holder: SessionId,
    began: u64,
    /// When the holder last wrote something back, or it began.
    progress: u64,
    waited: WaitedFor,
    /// The holder's time is over.
    fenced: bool,
    /// The part of it that only the holder had.
    owned: RangeSet,
    /// It is about pages from before the server's restart: others may have changed them since the holder got
    /// them.
    of_before: bool,
    /// When the rest of it was last recalled again, or when it began.
    resent_at: u64,
    /// The part that was dropped because of later recalls.
    dropped: RangeSet,
    /// Whole pages in it that were erased since, and not read anew.
    erased: RangeSet,
    /// The part that others have changed since.
    outdated: RangeSet,
    /// Its holder is told of it at this time, or with a later one, or when somebody waits for it.
    told_at: u64,
}

impl DataLeases {
    /// Recalls have numbers above this one. Two incarnations of a server begin with numbers far apart: an
    /// acknowledgement for one must not match a recall of the other.
    #[must_use]
    pub fn counting_from(self, number: u64) -> DataLeases {
        DataLeases { last_number: number, ..self }
    }

    /// A session reads bytes for its kernel's pages. Returns whether it had a lease on all of the place before.
    pub fn keep(&mut self, place: Place, session: SessionId, range: ByteRange, now: u64) -> bool {
        let pages = whole_pages(range);
        let had = self.has_lease(place, session);
        if !had {
            self.give(place, session, self.holes_of_new(place, session), now);
        }
        let leases = self.leases.get_mut(&place).expect("the session has one of them");
        let holes = leases.get_mut(&session).expect("the session has one");
        let whole = had && holes.is_empty();
        if !holes.is_empty() {
            holes.remove(pages);
            self.limit_holes(place, session, pages, now);
        }
        self.read_anew(place, session, pages);
        whole
    }

    /// A session's kernel caches pages of a place; this call reads none of them. Returns whether it had a
    /// lease on all of it before. What was recalled and dropped is part of the lease again; what still has to
    /// be dropped keeps its base.
    pub fn keep_whole(&mut self, place: Place, session: SessionId, now: u64) -> bool {
        let mut left = RangeSet::default();
        for (_, pending) in self.pending_at(place, WHOLE).filter(|(_, pending)| pending.holder == session) {
            left.insert(pending.range);
        }
        match self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&session)) {
            Some(holes) => {
                let whole = holes.is_empty();
                left.gaps(WHOLE).into_iter().for_each(|gap| holes.remove(gap));
                whole
            }
            None => {
                left.limit_runs(limits::DATA_LEASE_HOLES_MAX);
                self.give(place, session, left, now);
                false
            }
        }
    }

    /// The same for bytes below `end`, which have come to this place: the session's kernel has pages of them from where
    /// they were before.
    pub fn keep_below(&mut self, place: Place, session: SessionId, end: u64, now: u64) {
        let had = self.has_lease(place, session);
        self.keep_whole(place, session, now);
        let holes = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&session));
        if let Some(holes) = holes.filter(|_| !had) {
            holes.insert(ByteRange { start: whole_pages(ByteRange { start: 0, end }).end, end: u64::MAX });
        }
    }

    /// The base of these pages of a session is what the place has now.
    fn read_anew(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        self.each_base(place, session, pages, |_| None);
        for number in self.numbers_at(place, pages) {
            if let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session) {
                pending.erased.remove(pages);
                pending.outdated.remove(pages);
            }
        }
        self.unknown.read(place, session, pages);
        self.firsts.read(place, session, pages);
        self.note_drops(place, session);
    }

    /// Whether another session has a lease on some of these bytes, or has yet to drop them.
    #[must_use]
    pub fn others_hold(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        let pages = whole_pages(range);
        self.others(place, session).any(|(_, holes)| holes.missing(pages).is_some())
            || self.owners.others_own(place, session, pages)
            || self.returning.others_may_have(place, session)
            || self.pending_at(place, pages).any(|(_, pending)| pending.holder != session)
    }

    /// The sessions that still have to drop pages of a place, and that others wait for.
    #[must_use]
    pub fn late_at(&self, place: Place) -> BTreeSet<SessionId> {
        let late = self.pending_at(place, WHOLE).filter(|(_, pending)| pending.waited > WaitedFor::Nobody);
        late.map(|(_, pending)| pending.holder).collect()
    }

    /// Whether a session has a lease at this place.
    #[must_use]
    pub fn has_lease(&self, place: Place, session: SessionId) -> bool {
        self.leases.get(&place).is_some_and(|leases| leases.contains_key(&session))
    }

    /// Whether no session has a lease, and no recall is waited for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.leases.is_empty() && self.recalls.is_empty() && self.owners.is_idle()
    }

    /// A session has ended: the pages of its kernel no longer count.
    pub fn end_session(&mut self, session: SessionId) {
        // The log removes by itself what it has of the session.
        self.outdated.end_session(session);
        self.news.retain(|news| news.session() != session);
        for number in self.of.remove(&session).unwrap_or_default() {
            self.end_recall(number);
        }
        let places: Vec<Place> =
            self.leases.iter().filter(|(_, of)| of.contains_key(&session)).map(|(place, _)| *place).collect();
        for place in places {
            self.take(place, session);
        }
        self.bases.retain(|(_, holder, _), _| *holder != session);
        self.unknown.end_session(session);
        self.firsts.end_session(session);
        self.returning.end(session);
        self.owners.end_session(session);
    }

    /// A place is gone for ever, and no session has its file open.
    pub fn forget(&mut self, place: Place) {
        for number in self.numbers_at(place, WHOLE) {
            self.end_recall(number);
        }
        self.given -= self.leases.remove(&place).map_or(0, |of| of.len());
        self.unknown.forget_place(place);
        self.firsts.forget_place(place);
        self.forget_outdated(place);
        self.returning.forget(place);
        self.owners.forget(place);
        self.fought.forget(place);
    }

    /// One page is taken from a session. A change of several pages is not counted: it is not a fight for one
    /// page.
    fn note_fight(&mut self, place: Place, from: SessionId, pages: ByteRange, now: u64) {
        if pages.length() == PAGE_BYTES {
            self.fought.note(place, pages.start / PAGE_BYTES, from, now);
        }
    }

    /// The holes of a new lease: all of the place while the holder has yet to drop something; it has a page
    /// once it has read it anew.
    fn holes_of_new(&self, place: Place, session: SessionId) -> RangeSet {
        let mut holes = RangeSet::default();
        if self.has_yet_to_drop(place, session, WHOLE) {
            holes.insert(WHOLE);
        }
        holes
    }

    fn give(&mut self, place: Place, session: SessionId, holes: RangeSet, now: u64) {
        if self.returning.is_worthless(place, session) {
            self.unknown.begin_whole(place, session);
        }
        if self.given >= limits::DATA_LEASES_PER_SERVER_MAX {
            self.recall_next(now);
        }
        self.leases.entry(place).or_default().insert(session, holes);
        self.given += 1;
    }

    /// Makes room: a session loses a lease that no change has asked for, at one place after the other. Its recall
    /// covers the whole place, as the lease did.
    fn recall_next(&mut self, now: u64) {
        let behind = self.evicted.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.leases.range((behind, Bound::Unbounded)).next().or_else(|| self.leases.iter().next());
        if let Some((place, session)) = next.and_then(|(place, of)| Some((*place, *of.keys().next()?))) {
            self.evicted = Some(place);
            self.recall(place, session, WHOLE, now);
            self.take(place, session);
        }
    }

    fn take(&mut self, place: Place, session: SessionId) {
        let Some(of) = self.leases.get_mut(&place) else { return };
        if of.remove(&session).is_some() {
            self.given -= 1;
        }
        if of.is_empty() {
            self.leases.remove(&place);
        }
    }

    /// A lease that has too many holes gets one less, so it seems larger than it is. But not where a claim
    /// waits for such a hole, which would be recalled for ever. Then the holder drops what lies between two
    /// holes, if it is not `kept`.
    fn limit_holes(&mut self, place: Place, holder: SessionId, kept: ByteRange, now: u64) {
        let mut claimed = None;
        while let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&holder)) {
            if holes.runs() <= limits::DATA_LEASE_HOLES_MAX {
                return;
            }
            let claimed = claimed.get_or_insert_with(|| self.owners.claimed(place));
            if holes.drop_smallest(|run| !claimed.meets(run)) {
                continue;
            }
            let Some(gap) = holes.smallest_gap(|gap| gap.intersection(kept).is_empty()) else { return };
            holes.insert(gap);
            let number = self.add(place, holder, gap, now);
            self.limit_recalls(holder, number, now);
        }
    }

    fn others(&self, place: Place, session: SessionId) -> impl Iterator<Item = (SessionId, &RangeSet)> {
        let of = self.leases.get(&place).into_iter().flatten();
        of.filter(move |(holder, _)| **holder != session).map(|(holder, holes)| (*holder, holes))
    }
}

impl Pending {
    /// Whether answers to changes wait for it.
    fn is_waited(&self) -> bool {
        self.waited == WaitedFor::All
    }

    /// The holder's time is over.
    fn set_fenced(&mut self) {
        (self.fenced, self.waited) = (true, WaitedFor::Nobody);
    }

    fn until(&self) -> u64 {
        let writing = self.began + limits::DATA_RECALL_WRITING_MILLIS;
        (self.progress + limits::DATA_RECALL_MILLIS).min(writing)
    }

    fn resends_at(&self) -> u64 {
        self.resent_at + limits::DATA_RECALL_STUCK_MILLIS
    }
}

#[cfg(test)]
#[path = "data_leases_tests.rs"]
mod tests;

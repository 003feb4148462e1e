//! Leases on bytes: whose kernels may keep pages of what, and what those pages were when the kernel got them.
//!
//! A session that reads bytes for its kernel's pages gets a lease on the whole place (a lane, or the bytes that live
//! with an inode). Somebody else who changes some of these bytes *recalls* the lease on them: the holder writes back what
//! programs have stored, drops the pages, and acknowledges. The change is made at once; its answer waits for the
//! acknowledgements, so that when it is back nobody reads older bytes. What was recalled is a hole of the lease, until
//! the holder reads it anew. A lease may always seem larger than what the kernel has: that costs a recall and
//! nothing else.
//!
//! Pages that come back by a write-back have their programs' stores in them, and around them what the kernel was given:
//! their *base*. Only what differs from the base is written, so that stores of several machines to bytes of one page
//! all survive. The base is what the place has, except after somebody else's change: then the bytes of before are
//! kept here, for each holder, until it has acknowledged or reads the page anew. A write-back is never made to wait: its
//! kernel holds the page, and drops wait for that.
//!
//! A holder that does not acknowledge in time is *fenced*: nobody waits for it any longer, it has lost its lease, and
//! what it writes back there is refused until it has acknowledged. All of this is lost with the process.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use ramlace_base::{ByteRange, Result, SessionId, limits};
use ramlace_wire::leases::DataRecall;

use crate::outdated::{News, Outdated};
use crate::pages::{PAGE_BYTES, WHOLE, ahead, pages_of, recalled_together, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

#[path = "bases.rs"]
mod bases;
#[path = "fought.rs"]
mod fought;
#[path = "held.rs"]
pub mod held;
#[path = "news.rs"]
mod news;
#[path = "owners.rs"]
mod owners;
#[path = "returning.rs"]
mod returning;
#[path = "small.rs"]
mod small;
#[path = "unknown.rs"]
mod unknown;

use bases::{Base, merge, with_bytes};
use fought::Fought;
use owners::Owners;
pub use owners::{Asked, Ticket, Wish};
use returning::Returning;
use small::FirstPages;
use unknown::Unknown;

/// Reads bytes of the place that a call is about, as they are now; zeros where there are none.
pub type ReadNow<'a> = &'a mut dyn FnMut(ByteRange) -> Result<Vec<u8>>;

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They become others.
    Write,
    /// They have become others already, by stores into the memory itself: nobody knows what was there before.
    Stored,
    /// They become zeros, or are no part of the file any more; what programs have stored there goes with them.
    Erase,
}

/// What programs have stored in pages that come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Pages that change by it, as far as they came; they lie apart.
    pub ranges: Vec<ByteRange>,
    /// All that came as it is to be: beside stores, what is here. `None`: as it came.
    pub merged: Option<Vec<u8>>,
}

/// All leases on bytes of one server.
#[derive(Debug, Default)]
pub struct DataLeases {
    /// The holes of each lease.
    leases: BTreeMap<Place, BTreeMap<SessionId, RangeSet>>,
    given: usize,
    recalls: BTreeMap<u64, Pending>,
    /// The same by what is recalled, and by the holder.
    at: BTreeMap<Place, BTreeSet<u64>>,
    of: BTreeMap<SessionId, BTreeSet<u64>>,
    last_number: u64,
    /// How often somebody was asked, or was given up.
    told: u64,
    /// What pages are based on, where that is not what the place has now.
    bases: BTreeMap<(Place, SessionId, u64), Base>,
    /// How many copies of pages these have among them.
    copies: Rc<Cell<usize>>,
    /// In a life that follows one that had given leases: who had some, and may have pages still.
    returning: Returning,
    /// What the next life has to know, and was not told to the log.
    news: Vec<News>,
    /// What it knows when it has been told that.
    outdated: Outdated,
    /// Pages whose base is not known.
    unknown: Unknown,
    /// First pages that are not from when their files were small.
    firsts: FirstPages,
    /// The place that made room last.
    evicted: Option<Place>,
    /// Pages that lie in one kernel alone.
    owners: Owners,
    /// Pages that machines take from each other.
    fought: Fought,
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
    /// Answers wait for it.
    waited: bool,
    /// The holder's time is over.
    fenced: bool,
    /// What of it the holder was the only one to have.
    owned: RangeSet,
    /// It is about pages from the server's last life: others may have changed them since the holder got them.
    of_before: bool,
    /// When what is left of it was told again last, or it began.
    retold: u64,
    /// What was dropped by later recalls.
    dropped: RangeSet,
    /// Whole pages in it that were erased since, and not read anew.
    erased: RangeSet,
    /// What of it others have changed since.
    outdated: RangeSet,
}

impl DataLeases {
    /// Recalls have numbers above this one. Two lives of a server begin far apart: what is acknowledged to the one must be
    /// nothing to the other.
    #[must_use]
    pub fn counting_from(self, number: u64) -> DataLeases {
        DataLeases { last_number: number, ..self }
    }

    /// A session reads bytes for its kernel's pages. Whether it had a lease on all of the place before.
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

    /// A session's kernel keeps pages of a place, of which this asks for none. Whether it had a lease on all of it before. What was
    /// recalled and dropped is part of the lease again; what has yet to be dropped is based on what it was based on.
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

    /// What a session's pages are based on is what the place has now.
    fn read_anew(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        self.each_base(place, session, pages, |_| None);
        for number in self.numbers_at(place) {
            if let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session) {
                pending.erased.remove(pages);
                pending.outdated.remove(pages);
            }
        }
        self.unknown.read(place, session, pages);
        self.firsts.read(place, session, pages);
        self.settle(place, session);
    }

    /// Whether some of these bytes, which a session writes back, may be on a page that it has since the file was small.
    #[must_use]
    pub fn may_be_small(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.firsts.may_be_small(place, session, range)
    }

    /// They are not, or nobody has changed them since.
    pub fn is_not_small(&mut self, place: Place, session: SessionId, range: ByteRange) {
        self.firsts.read(place, session, range);
    }

    /// A session's kernel has these bytes in its pages, and they are on their way to the place: whoever changes some of them before they are
    /// there asks it to drop its pages.
    pub fn begin_through(&mut self, place: Place, session: SessionId, range: ByteRange, now: u64) {
        if self.is_fenced(place, session) {
            return;
        }
        if !self.has_lease(place, session) {
            self.give(place, session, self.holes_of_new(place, session), now);
        }
        if let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&session)) {
            holes.remove(whole_pages(range));
        }
        self.limit_holes(place, session, whole_pages(range), now);
    }

    /// A session has written these bytes through pages that its kernel keeps: those that it had have them, too.
    /// `bytes` are empty where nobody had to keep what its pages are based on.
    pub fn wrote_through(
        &mut self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        bytes: &[u8],
        now: u64,
    ) {
        let offset = range.start;
        self.begin_through(place, session, range, now);
        if !self.is_fenced(place, session) {
            self.unknown.wrote(place, session, range);
            self.settle(place, session);
        }
        self.each_base(place, session, whole_pages(range), |base| Some(with_bytes(base, offset, bytes)));
    }

    /// Whether nobody else has pages of these bytes, and what the session's own are based on is what is there.
    ///
    /// Errors: `Stale` when nobody knows what the session's pages are based on.
    pub fn is_alone(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        writes_back: bool,
    ) -> Result<bool> {
        if writes_back {
            self.check_base(place, session, range)?;
        }
        Ok(self.pending_at(place, whole_pages(range)).next().is_none()
            && !self.others_hold(place, session, range))
    }

    /// Whether a session itself has yet to drop some of these bytes.
    #[must_use]
    pub fn has_yet_to_drop(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.pending_at(place, whole_pages(range)).any(|(_, pending)| pending.holder == session)
    }

    /// Whether somebody else has a lease on some of these bytes, or has yet to drop them.
    #[must_use]
    pub fn others_hold(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        let pages = whole_pages(range);
        self.others(place, session).any(|(_, holes)| holes.missing(pages).is_some())
            || self.owners.others_own(place, session, pages)
            || self.returning.others_may_have(place, session)
            || self.pending_at(place, pages).any(|(_, pending)| pending.holder != session)
    }

    /// Whether a session has a lease at this place.
    #[must_use]
    pub fn has_lease(&self, place: Place, session: SessionId) -> bool {
        self.leases.get(&place).is_some_and(|leases| leases.contains_key(&session))
    }

    /// Bytes are about to change: recalls the leases that others have on them, and keeps what their pages are based on.
    /// The recalls that the answer has to wait for. `by` is whose change it is; nothing is recalled from that session.
    pub fn before_change(
        &mut self,
        place: Place,
        by: SessionId,
        range: ByteRange,
        change: Change,
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<Vec<u64>> {
        self.before_changes(place, by, &[range], change, read, now)
    }

    /// The same of ranges that ascend and do not overlap. Of many that lie apart, what lies between them may be recalled as well:
    /// a holder is not asked for each of a thousand pages.
    pub fn before_changes(
        &mut self,
        place: Place,
        by: SessionId,
        ranges: &[ByteRange],
        change: Change,
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<Vec<u64>> {
        if ranges.iter().all(|range| range.is_empty()) {
            return Ok(Vec::new());
        }
        self.recall_from_returning(place, by, false, now);
        let nobody = !self.leases.contains_key(&place) && !self.at.contains_key(&place);
        if nobody && !self.owners.is_strict(place) {
            return Ok(Vec::new());
        }
        let recalled = recalled_together(ranges);
        for pages in &recalled {
            self.recall_from_others(place, by, *pages, now);
        }
        self.recall_owned(place, by, &recalled, now);
        self.keep_bases(place, by, ranges, change, read, now)?;
        Ok(self.waits(place, by, &recalled))
    }

    fn recall_from_others(&mut self, place: Place, by: SessionId, pages: ByteRange, now: u64) {
        let theirs =
            |(session, holes): (SessionId, &RangeSet)| Some((session, ahead(holes, holes.missing(pages)?)));
        let recalled: Vec<(SessionId, ByteRange)> = self.others(place, by).filter_map(theirs).collect();
        for (session, part) in recalled {
            self.note_fight(place, session, pages, now);
            self.recall(place, session, part, now);
        }
    }

    /// What of these pages, which a session's kernel writes back, programs have stored.
    ///
    /// Errors: `Stale` when nobody knows what they are based on.
    pub fn stored(
        &mut self,
        place: Place,
        session: SessionId,
        offset: u64,
        bytes: &[u8],
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<Stored> {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        self.check_base(place, session, range)?;
        let mut erased = RangeSet::default();
        for number in self.numbers_at(place) {
            let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session)
            else {
                continue;
            };
            pending.progress = now;
            if !pending.erased.is_empty() {
                let gone = pages_of(range).filter(|page| pending.erased.covers(*page));
                gone.for_each(|page| erased.insert(page));
            }
        }
        let own = (place, session, range.start / PAGE_BYTES)..=(place, session, range.end / PAGE_BYTES);
        let alone = erased.is_empty() && self.bases.range(own).next().is_none();
        if alone && !self.others_hold(place, session, range) {
            // Whatever differs from what is here was stored by this session.
            return Ok(Stored { ranges: vec![range], merged: None });
        }
        let mut merged = read(range)?;
        let mut ranges: Vec<ByteRange> = Vec::new();
        for page in pages_of(range).filter(|page| !erased.covers(*page)) {
            let part = range.intersection(page);
            let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
            let base = self.bases.get(&(place, session, page.start / PAGE_BYTES));
            let inside = (part.start - page.start) as usize;
            let base = base.map(|base| base.bytes()[inside..inside + to - from].to_vec());
            if !merge(base.as_deref(), &bytes[from..to], &mut merged[from..to]) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => ranges.push(part),
            }
        }
        Ok(Stored { ranges, merged: Some(merged) })
    }

    /// These pages of a session were written back: its kernel has them so now.
    pub fn wrote_back(&mut self, place: Place, session: SessionId, offset: u64, bytes: &[u8], now: u64) {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let had = self.has_lease(place, session) || self.had_alone(place, session, range);
        if !had && !self.is_fenced(place, session) {
            self.give(place, session, self.holes_of_new(place, session), now);
        }
        self.each_base(place, session, whole_pages(range), |base| Some(with_bytes(base, offset, bytes)));
    }

    /// It grows when somebody is asked, and when somebody is waited for no more.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Whether nobody has a lease, and nobody is waited for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.leases.is_empty() && self.recalls.is_empty() && self.owners.is_idle()
    }

    /// A session's pages of a place are to go, whoever has changed nothing: their bytes go elsewhere.
    pub fn recall_from(&mut self, place: Place, session: SessionId, now: u64) -> bool {
        let has = self.has_lease(place, session);
        if has {
            self.recall(place, session, WHOLE, now);
        }
        has || self.recall_of_before(place, session, now)
    }

    /// A holder acknowledges recalls: those that are done, and those that it cannot do before a write of its own is
    /// answered. Whether somebody may wait for less now.
    pub fn acknowledge(&mut self, session: SessionId, done: &[u64], blocked: &[u64]) -> bool {
        let mut changed = false;
        for number in blocked {
            if let Some(pending) = self.recalls.get_mut(number).filter(|pending| pending.holder == session) {
                changed |= std::mem::replace(&mut pending.waited, false);
                self.returning.hear(session, self.last_number);
            }
        }
        for number in done {
            if self.recalls.get(number).is_some_and(|pending| pending.holder == session) {
                let earlier = self.note_dropped(*number);
                self.note_dropped_whole(*number);
                earlier.into_iter().chain([*number]).for_each(|number| self.end_recall(number));
                self.returning.hear(session, self.last_number);
                changed = true;
            }
        }
        changed
    }

    /// Whether an answer has to wait for this recall.
    #[must_use]
    pub fn is_waited(&self, number: u64) -> bool {
        self.recalls.get(&number).is_some_and(|pending| pending.waited && !self.is_excused(pending))
    }

    /// Recalls again what is left of recalls that an answer waits for, where their holders wait for pages of them themselves. Whether
    /// there was something.
    pub fn retell_waited(&mut self, numbers: &[u64], now: u64) -> bool {
        let mut of: BTreeMap<Place, ByteRange> = BTreeMap::new();
        for pending in numbers.iter().filter_map(|number| self.recalls.get(number)) {
            if pending.waited && self.is_awaited_by_kernels(pending.place) {
                let hull = of.entry(pending.place).or_insert(pending.range);
                let (start, end) = (hull.start.min(pending.range.start), hull.end.max(pending.range.end));
                *hull = ByteRange { start, end };
            }
        }
        let newest = self.last_number;
        of.into_iter().for_each(|(place, hull)| _ = self.retell(place, hull, now));
        self.last_number != newest
    }

    /// Recalls from others, up to a number, that answers wait for, whoever has made them: what a session has written back may
    /// be on pages that somebody else had recalled already.
    #[must_use]
    pub fn of_others(&self, session: SessionId, up_to: u64) -> Vec<u64> {
        let of_others = |pending: &Pending| pending.waited && pending.holder != session;
        let recalls = self.recalls.range(..=up_to).filter(|(_, pending)| of_others(pending));
        recalls.map(|(number, _)| *number).collect()
    }

    /// The newest recall of this place from others that answers wait for.
    #[must_use]
    pub fn newest_at(&self, place: Place, session: SessionId) -> Option<u64> {
        let others = |pending: &Pending| pending.waited && pending.holder != session;
        let recalls = self.pending_at(place, WHOLE).filter(|(_, pending)| others(pending));
        recalls.map(|(number, _)| number).max()
    }

    /// What a session has yet to acknowledge, above a number, as much as one answer tells.
    #[must_use]
    pub fn unacknowledged(&self, session: SessionId, above: u64) -> Vec<DataRecall> {
        let numbers = self.of.get(&session).into_iter().flat_map(|of| of.range(above.saturating_add(1)..));
        let told = |number: &u64| {
            let Pending { place: (inode, lane), range: ByteRange { start, end }, .. } =
                *self.recalls.get(number)?;
            Some(DataRecall { number: *number, inode, lane, start, end })
        };
        numbers.take(limits::EVENTS_PER_ANSWER_MAX).filter_map(told).collect()
    }

    /// When the next holder's time is over, or something is to be told again.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        let counts = self.recalls.values().filter(|pending| !pending.fenced && !self.is_excused(pending));
        let ends = counts.map(|pending| match self.waits_for_some(pending) {
            true => pending.until().min(pending.retells_at()),
            false => pending.until(),
        });
        ends.min()
    }

    /// Fences those whose time is over. Whether somebody may wait for less now, or has more to drop.
    pub fn pass(&mut self, now: u64) -> bool {
        let told = self.retell_late(now);
        let over: Vec<u64> = self
            .recalls
            .iter()
            .filter(|(_, pending)| !pending.fenced && pending.until() <= now && !self.is_excused(pending))
            .map(|(number, _)| *number)
            .collect();
        for number in &over {
            // One may be given up with another one.
            if self.recalls.get(number).is_some_and(|pending| !pending.fenced) {
                self.give_up(*number, now);
                self.note_late(*number, now);
            }
        }
        told || !over.is_empty()
    }

    /// Nobody waits for a recall any more.
    fn give_up(&mut self, number: u64, now: u64) {
        let Some(pending) = self.recalls.get_mut(&number) else { return };
        (pending.fenced, pending.waited) = (true, false);
        let (place, holder) = (pending.place, pending.holder);
        self.fence(place, holder, now);
    }

    /// A holder loses its lease, and is to drop all that it has there, whenever it answers.
    fn fence(&mut self, place: Place, holder: SessionId, now: u64) {
        self.told += 1;
        self.take(place, holder);
        self.unknown.begin_whole(place, holder);
        self.owners.forget_owner(place, holder);
        self.each_base(place, holder, WHOLE, |_| None);
        let whole = |pending: &Pending| pending.holder == holder && pending.fenced && pending.range == WHOLE;
        if !self.pending_at(place, WHOLE).any(|(_, pending)| whole(pending)) {
            let number = self.add(place, holder, WHOLE, now);
            let pending = self.recalls.get_mut(&number).expect("it was made just now");
            (pending.fenced, pending.waited) = (true, false);
        }
        let number =
            self.pending_at(place, WHOLE).find(|(_, pending)| whole(pending)).map(|(number, _)| number);
        if let Some(number) = number {
            self.note_outdated(number, WHOLE);
        }
    }

    /// A session has ended: its kernel's pages are worth nothing.
    pub fn end_session(&mut self, session: SessionId) {
        // The log forgets by itself what it knows of it.
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

    /// A place is gone for ever, and nobody has its file open.
    pub fn forget(&mut self, place: Place) {
        for number in self.numbers_at(place) {
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

    /// One page is taken from somebody. Where there are more, nobody fights for one.
    fn note_fight(&mut self, place: Place, from: SessionId, pages: ByteRange, now: u64) {
        if pages.length() == PAGE_BYTES {
            self.fought.note(place, pages.start / PAGE_BYTES, from, now);
        }
    }

    /// What a lease has not that is given now: a holder that has yet to drop what was recalled has that no more when it has read it anew.
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

    /// Makes room: somebody loses a lease that is not asked for, at one place after the other. Its recall is as long as a lease
    /// would be.
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

    fn recall(&mut self, place: Place, holder: SessionId, range: ByteRange, now: u64) {
        // Whoever has much to drop already loses the lease, so that changes one by one make no more of it: their number is
        // nothing to be fenced for.
        let has_much =
            self.of.get(&holder).is_some_and(|of| of.len() >= limits::DATA_RECALLS_PER_SESSION_MAX / 4);
        let range = if has_much { WHOLE } else { range };
        if has_much {
            self.take(place, holder);
        } else if let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&holder)) {
            holes.insert(range);
        }
        let number = self.add(place, holder, range, now);
        self.limit_recalls(holder, number, now);
        self.limit_holes(place, holder, ByteRange::default(), now);
    }

    /// A lease that has too many holes gets one less: it seems larger than it is. But not where somebody waits for such a hole: he
    /// would have it made for ever. Then the holder drops what lies between two of them, if it is not `kept`.
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

    /// So many, and none acknowledged: its time is over.
    fn limit_recalls(&mut self, holder: SessionId, number: u64, now: u64) {
        if self.of.get(&holder).is_some_and(|of| of.len() > limits::DATA_RECALLS_PER_SESSION_MAX) {
            self.give_up(number, now);
        }
    }

    fn add(&mut self, place: Place, holder: SessionId, range: ByteRange, now: u64) -> u64 {
        self.told += 1;
        self.last_number += 1;
        let number = self.last_number;
        let (owned, erased, dropped, outdated) = Default::default();
        let (began, progress, retold) = (now, now, now);
        let (waited, fenced, of_before) = (true, false, false);
        let pending = Pending {
            place,
            range,
            holder,
            began,
            progress,
            waited,
            fenced,
            owned,
            of_before,
            retold,
            dropped,
            erased,
            outdated,
        };
        self.recalls.insert(number, pending);
        self.at.entry(place).or_default().insert(number);
        self.of.entry(holder).or_default().insert(number);
        number
    }

    fn end_recall(&mut self, number: u64) {
        let Some(Pending { place, holder, range, .. }) = self.recalls.remove(&number) else { return };
        remove_from(&mut self.at, &place, number);
        remove_from(&mut self.of, &holder, number);
        self.settle(place, holder);
        let first = (place, holder, range.start / PAGE_BYTES);
        let last = (place, holder, range.end / PAGE_BYTES);
        let over: Vec<_> = self
            .bases
            .range(first..=last)
            .filter(|(_, base)| base.recall == number)
            .map(|(key, _)| *key)
            .collect();
        over.iter().for_each(|key| _ = self.bases.remove(key));
    }

    /// Whether a holder has not answered in time, and not yet since.
    fn is_fenced(&self, place: Place, session: SessionId) -> bool {
        self.pending_at(place, WHOLE).any(|(_, pending)| pending.holder == session && pending.fenced)
    }

    /// A holder has dropped a recall. If that was all of a place, and it is not fenced again, it has none of the pages of before.
    fn note_dropped_whole(&mut self, number: u64) {
        let Some(Pending { place, holder, range, .. }) = self.recalls.get(&number) else { return };
        let (place, holder) = (*place, *holder);
        let fenced_again = |(other, pending): (u64, &Pending)| {
            other != number && pending.holder == holder && pending.fenced && pending.range == WHOLE
        };
        if *range == WHOLE && !self.pending_at(place, WHOLE).any(fenced_again) {
            self.unknown.forget(place, holder);
        }
    }

    /// Whether a session is to drop pages: it has had them in this life.
    fn is_recalled(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        let is_recalled = |page| {
            self.pending_at(place, page).any(|(_, pending)| pending.holder == session && !pending.fenced)
        };
        pages_of(pages).all(is_recalled)
    }

    fn waits(&self, place: Place, by: SessionId, pages: &[ByteRange]) -> Vec<u64> {
        let pending =
            self.pending_at(place, WHOLE).filter(|(_, pending)| pending.waited && pending.holder != by);
        let is_there = |pending: &Pending| {
            let parts = pages.iter().map(|part| part.intersection(pending.range));
            let mut met = parts.filter(|part| !part.is_empty()).peekable();
            // Most of many recalls are about other pages.
            met.peek().is_some() && {
                let gone = self.gone(pending);
                met.any(|part| !gone.covers(part))
            }
        };
        pending.filter(|(_, pending)| is_there(pending)).map(|(number, _)| number).collect()
    }

    fn others(&self, place: Place, session: SessionId) -> impl Iterator<Item = (SessionId, &RangeSet)> {
        let of = self.leases.get(&place).into_iter().flatten();
        of.filter(move |(holder, _)| **holder != session).map(|(holder, holes)| (*holder, holes))
    }

    fn numbers_at(&self, place: Place) -> Vec<u64> {
        self.at.get(&place).into_iter().flatten().copied().collect()
    }

    fn pending_at(&self, place: Place, range: ByteRange) -> impl Iterator<Item = (u64, &Pending)> {
        let numbers = self.at.get(&place).into_iter().flatten();
        let pending = numbers.map(|number| (*number, &self.recalls[number]));
        pending.filter(move |(_, pending)| {
            let part = pending.range.intersection(range);
            !part.is_empty() && !pending.dropped.covers(part)
        })
    }
}

impl Pending {
    fn until(&self) -> u64 {
        let writing = self.began + limits::DATA_RECALL_WRITING_MILLIS;
        (self.progress + limits::DATA_RECALL_MILLIS).min(writing)
    }

    fn retells_at(&self) -> u64 {
        self.retold + limits::DATA_RECALL_STUCK_MILLIS
    }
}

fn remove_from<K: Ord + Copy>(index: &mut BTreeMap<K, BTreeSet<u64>>, key: &K, number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "data_leases_tests.rs"]
mod tests;

//! Recalls of leases on bytes, from the change that begins one to its acknowledgement or the end of its holder's time.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{ByteRange, Result, SessionId, limits};
use ramlace_wire::leases::{DataRecall, EndRecalls};

use super::{Change, DataLeases, Pending, ReadNow, WaitedFor};
use crate::pages::{PAGE_BYTES, WHOLE, ahead, hull, pages_of, recalled_together, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

impl DataLeases {
    /// Whether a session itself has yet to drop some of these bytes.
    #[must_use]
    pub fn has_yet_to_drop(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.pending_at(place, whole_pages(range)).any(|(_, pending)| pending.holder == session)
    }

    /// Bytes are about to change: recalls the leases that others have on them, and keeps the bases of their
    /// pages. Returns the recalls that the answer has to wait for. Nothing is recalled from `by`: the session that
    /// makes the change, or nobody where its own kernel has the pages as others have.
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

    /// The same for ascending ranges that do not overlap. If there are many, the gaps between them may be
    /// recalled as well: a holder is not asked for each of a thousand pages.
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
        let waits = self.waits(place, by, &recalled);
        self.tell_now(&waits);
        Ok(waits)
    }

    /// Bytes that a session's kernel has just got may be changed by stores that nobody announces: it drops them in a
    /// moment, and what it has got is the base of its pages.
    pub fn recall_in_a_moment(
        &mut self,
        (place, session): (Place, SessionId),
        range: ByteRange,
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<()> {
        let holes = self.leases.get(&place).and_then(|leases| leases.get(&session));
        let before = self.last_number;
        if let Some(part) = holes.and_then(|holes| holes.missing(whole_pages(range))) {
            self.recall(place, session, part, now);
        }
        self.keep_bases(place, SessionId::NONE, &[range], Change::Write, read, now)?;
        // With many copies there is no moment to lose.
        if self.base_bytes() <= limits::DATA_BASE_BYTES_MAX / 2 {
            for (_, pending) in self.recalls.range_mut(before + 1..) {
                pending.told_at = now + limits::DATA_RECALL_HELD_MILLIS;
            }
        }
        Ok(())
    }

    /// The recalls of a place whose holders have yet to drop pages, whoever waits for them.
    #[must_use]
    pub fn left_at(&self, place: Place) -> Vec<u64> {
        let left = self.pending_at(place, WHOLE).filter(|(number, _)| self.is_left(*number));
        left.map(|(number, _)| number).collect()
    }

    /// Whether a recall is one of those.
    #[must_use]
    pub fn is_left(&self, number: u64) -> bool {
        self.recalls.get(&number).is_some_and(|pending| !pending.fenced && !self.is_excused(pending))
    }

    /// Somebody waits for these.
    fn tell_now(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(pending) = self.recalls.get_mut(number).filter(|pending| pending.told_at > 0) {
                pending.told_at = 0;
                self.notices += 1;
            }
        }
    }

    /// Bytes were changed by an earlier attempt of the request: returns the recalls from others of that time
    /// that are not over. Anything read since is up to date.
    pub fn recalled_before(&mut self, place: Place, by: SessionId, range: ByteRange, now: u64) -> Vec<u64> {
        self.recall_from_returning(place, by, false, now);
        let waits = self.waits(place, by, &[range]);
        self.tell_now(&waits);
        waits
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

    /// Grows when a holder is asked, and when a holder is waited for no more.
    #[must_use]
    pub fn notices(&self) -> u64 {
        self.notices
    }

    /// A session's pages of a place are to go although nothing has changed: their bytes go elsewhere.
    pub fn recall_from(&mut self, place: Place, session: SessionId, now: u64) -> bool {
        let has = self.has_lease(place, session);
        if has {
            self.recall(place, session, WHOLE, now);
        }
        has || self.recall_of_before(place, session, now)
    }

    /// A holder acknowledges recalls: those that are done, those that it cannot do before a call of its own is
    /// answered, and those of relaxed files. Returns whether an answer may have fewer recalls to wait for now.
    pub fn acknowledge(&mut self, session: SessionId, ended: &EndRecalls) -> bool {
        let (mut changed, mut places) = (false, BTreeSet::new());
        let blocked = ended.blocked.iter().map(|number| (number, WaitedFor::Publishers));
        for (number, by) in blocked.chain(ended.relaxed.iter().map(|number| (number, WaitedFor::Nobody))) {
            if let Some(pending) = self.recalls.get_mut(number).filter(|pending| pending.holder == session) {
                changed |= pending.waited > by;
                pending.waited = pending.waited.min(by);
                self.returning.note_acknowledged(session, self.last_number);
            }
        }
        for number in &ended.done {
            if self.recalls.get(number).is_some_and(|pending| pending.holder == session) {
                let earlier = self.note_dropped(*number);
                self.note_dropped_whole(*number);
                places.extend(
                    earlier.into_iter().chain([*number]).filter_map(|number| self.remove_recall(number)),
                );
                self.returning.note_acknowledged(session, self.last_number);
                changed = true;
            }
        }
        // Once for all of them: it walks all that are left.
        places.into_iter().for_each(|place| self.note_drops(place, session));
        changed
    }

    /// Whether the answer to a change has to wait for this recall.
    #[must_use]
    pub fn is_waited(&self, number: u64) -> bool {
        self.is_waited_by(number, WaitedFor::All)
    }

    /// Whether the answer to a publisher has to wait for this recall: its kernel holds no page meanwhile, so it
    /// waits for holders that are blocked, too.
    #[must_use]
    pub fn is_waited_by_publishers(&self, number: u64) -> bool {
        self.is_waited_by(number, WaitedFor::Publishers)
    }

    fn is_waited_by(&self, number: u64, least: WaitedFor) -> bool {
        self.recalls.get(&number).is_some_and(|pending| pending.waited >= least && !self.is_excused(pending))
    }

    /// Recalls again the rest of recalls that an answer waits for, where their holders wait for pages of them
    /// themselves. Returns whether there was any.
    pub fn resend_waited(&mut self, numbers: &[u64], now: u64) -> bool {
        let mut of: BTreeMap<Place, ByteRange> = BTreeMap::new();
        for pending in numbers.iter().filter_map(|number| self.recalls.get(number)) {
            if pending.is_waited() && self.is_awaited_by_kernels(pending.place) {
                let hull = of.entry(pending.place).or_insert(pending.range);
                let (start, end) = (hull.start.min(pending.range.start), hull.end.max(pending.range.end));
                *hull = ByteRange { start, end };
            }
        }
        let newest = self.last_number;
        of.into_iter().for_each(|(place, hull)| _ = self.resend(place, hull, now));
        self.last_number != newest
    }

    /// Recalls from others, up to a number, that publishers wait for, whichever change made them: what a session
    /// has written back may be on pages that were recalled already for another session.
    #[must_use]
    pub fn of_others(&self, session: SessionId, up_to: u64) -> Vec<u64> {
        let of_others =
            |pending: &Pending| pending.waited >= WaitedFor::Publishers && pending.holder != session;
        let recalls = self.recalls.range(..=up_to).filter(|(_, pending)| of_others(pending));
        recalls.map(|(number, _)| *number).collect()
    }

    /// The newest recall of this place from others that publishers wait for.
    #[must_use]
    pub fn newest_at(&self, place: Place, session: SessionId) -> Option<u64> {
        let others = |pending: &Pending| pending.waited >= WaitedFor::Publishers && pending.holder != session;
        let recalls = self.pending_at(place, WHOLE).filter(|(_, pending)| others(pending));
        recalls.map(|(number, _)| number).max()
    }

    /// Recalls that a session still has to acknowledge, above a number, as many as one answer holds.
    #[must_use]
    pub fn unacknowledged(&self, session: SessionId, above: u64) -> Vec<DataRecall> {
        let numbers = self.numbers_above(session, above);
        let recall = |number: &u64| {
            let Pending { place: (inode, lane), range: ByteRange { start, end }, .. } =
                *self.recalls.get(number)?;
            Some(DataRecall { number: *number, inode, lane, start, end })
        };
        numbers.take(limits::EVENTS_PER_ANSWER_MAX).filter_map(recall).collect()
    }

    /// Those of which the session is told by now: a number that is told brings all below it.
    #[must_use]
    pub fn told_by(&self, session: SessionId, above: u64, now: u64) -> Vec<DataRecall> {
        let is_due = |number: &&u64| self.recalls.get(number).is_some_and(|pending| pending.told_at <= now);
        let Some(last) = self.numbers_above(session, above).filter(is_due).last().copied() else {
            return Vec::new();
        };
        let mut told = self.unacknowledged(session, above);
        told.retain(|recall| recall.number <= last);
        told
    }

    /// When a session is told of its next recall above a number; `None`: there is none.
    #[must_use]
    pub fn told_at(&self, session: SessionId, above: u64) -> Option<u64> {
        self.numbers_above(session, above).filter_map(|number| Some(self.recalls.get(number)?.told_at)).min()
    }

    fn numbers_above(&self, session: SessionId, above: u64) -> impl Iterator<Item = &u64> {
        self.of.get(&session).into_iter().flat_map(move |of| of.range(above.saturating_add(1)..))
    }

    /// When the next holder's time is over, or something is to be recalled again.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        let counts = self.recalls.values().filter(|pending| !pending.fenced && !self.is_excused(pending));
        let ends = counts.map(|pending| match self.waits_for_some(pending) {
            true => pending.until().min(pending.resends_at()),
            false => pending.until(),
        });
        ends.min()
    }

    /// Fences holders whose time is over. Returns whether an answer may have fewer recalls to wait for now, or
    /// a holder has more to drop.
    pub fn pass(&mut self, now: u64) -> bool {
        let resent = self.resend_late(now);
        let over: Vec<u64> = self
            .recalls
            .iter()
            .filter(|(_, pending)| !pending.fenced && pending.until() <= now && !self.is_excused(pending))
            .map(|(number, _)| *number)
            .collect();
        for number in &over {
            // One may be fenced together with another one.
            if self.recalls.get(number).is_some_and(|pending| !pending.fenced) {
                self.fence_holder(*number, now);
                self.note_late(*number, now);
            }
        }
        resent || !over.is_empty()
    }

    /// Fences a recall's holder: no caller waits for it any more.
    pub(super) fn fence_holder(&mut self, number: u64, now: u64) {
        let Some(pending) = self.recalls.get_mut(&number) else { return };
        pending.set_fenced();
        let (place, holder) = (pending.place, pending.holder);
        self.fence(place, holder, now);
    }

    /// A holder loses its lease, and is to drop all that it has there, whenever it answers.
    pub(super) fn fence(&mut self, place: Place, holder: SessionId, now: u64) {
        self.notices += 1;
        self.take(place, holder);
        self.unknown.begin_whole(place, holder);
        self.owners.forget_owner(place, holder);
        self.each_base(place, holder, WHOLE, |_| None);
        let whole = |pending: &Pending| pending.holder == holder && pending.fenced && pending.range == WHOLE;
        if !self.pending_at(place, WHOLE).any(|(_, pending)| whole(pending)) {
            let number = self.add(place, holder, WHOLE, now);
            let pending = self.recalls.get_mut(&number).expect("it was made just now");
            pending.set_fenced();
        }
        let number =
            self.pending_at(place, WHOLE).find(|(_, pending)| whole(pending)).map(|(number, _)| number);
        if let Some(number) = number {
            self.note_outdated(number, WHOLE);
        }
    }

    pub(super) fn recall(&mut self, place: Place, holder: SessionId, range: ByteRange, now: u64) {
        // A holder that has much to drop already loses the lease, so that single changes add no further
        // recalls: a holder is not to be fenced for their number.
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

    /// Fences a holder that has too many unacknowledged recalls.
    pub(super) fn limit_recalls(&mut self, holder: SessionId, number: u64, now: u64) {
        if self.of.get(&holder).is_some_and(|of| of.len() > limits::DATA_RECALLS_PER_SESSION_MAX) {
            self.fence_holder(number, now);
        }
    }

    pub(super) fn add(&mut self, place: Place, holder: SessionId, range: ByteRange, now: u64) -> u64 {
        self.notices += 1;
        self.last_number += 1;
        let number = self.last_number;
        let (owned, erased, dropped, outdated) = Default::default();
        let (began, progress, resent_at) = (now, now, now);
        let (waited, fenced, of_before) = (WaitedFor::All, false, false);
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
            resent_at,
            dropped,
            erased,
            outdated,
            told_at: 0,
        };
        self.recalls.insert(number, pending);
        self.at.entry(place).or_default().insert(number, range);
        self.of.entry(holder).or_default().insert(number);
        number
    }

    pub(super) fn end_recall(&mut self, number: u64) {
        let holder = self.recalls.get(&number).map(|pending| pending.holder);
        if let Some((place, holder)) = self.remove_recall(number).zip(holder) {
            self.note_drops(place, holder);
        }
    }

    /// The same; the caller notes the drops at the place that is returned.
    fn remove_recall(&mut self, number: u64) -> Option<Place> {
        let Pending { place, holder, range, .. } = self.recalls.remove(&number)?;
        self.unlist(place, holder, number);
        let first = (place, holder, range.start / PAGE_BYTES);
        let last = (place, holder, range.end / PAGE_BYTES);
        let over: Vec<_> = self
            .bases
            .range(first..=last)
            .filter(|(_, base)| base.recall == number)
            .map(|(key, _)| *key)
            .collect();
        over.iter().for_each(|key| _ = self.bases.remove(key));
        Some(place)
    }

    /// Whether a holder has not answered in time, and not yet since.
    pub(super) fn is_fenced(&self, place: Place, session: SessionId) -> bool {
        self.pending_at(place, WHOLE).any(|(_, pending)| pending.holder == session && pending.fenced)
    }

    /// A holder has dropped a recall. If that was all of a place, and it is not fenced again, it has no pages
    /// from before any more.
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

    /// Whether a session is to drop pages that it has had in this incarnation.
    pub(super) fn is_recalled(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        let is_recalled = |page| {
            self.pending_at(place, page).any(|(_, pending)| pending.holder == session && !pending.fenced)
        };
        pages_of(pages).all(is_recalled)
    }

    pub(super) fn waits(&self, place: Place, by: SessionId, pages: &[ByteRange]) -> Vec<u64> {
        let others = |pending: &Pending| pending.is_waited() && pending.holder != by;
        let is_there = |pending: &Pending| {
            let parts = pages.iter().map(|part| part.intersection(pending.range));
            let mut met = parts.filter(|part| !part.is_empty()).peekable();
            met.peek().is_some() && {
                let gone = self.gone(pending);
                met.any(|part| !gone.covers(part))
            }
        };
        let pending = self.pending_at(place, hull(pages.iter().copied()));
        let waited = pending.filter(|(_, pending)| others(pending) && is_there(pending));
        waited.map(|(number, _)| number).collect()
    }

    /// The recalls of a place that are about some of these bytes.
    pub(super) fn numbers_at(&self, place: Place, range: ByteRange) -> Vec<u64> {
        self.listed(place, range).collect()
    }

    pub(super) fn pending_at(&self, place: Place, range: ByteRange) -> impl Iterator<Item = (u64, &Pending)> {
        let pending = self.listed(place, range).map(|number| (number, &self.recalls[&number]));
        pending.filter(move |(_, pending)| {
            let part = pending.range.intersection(range);
            pending.dropped.is_empty() || !pending.dropped.covers(part)
        })
    }

    fn listed(&self, place: Place, range: ByteRange) -> impl Iterator<Item = u64> {
        let of_place = self.at.get(&place).into_iter().flatten();
        let met = of_place.filter(move |(_, recalled)| !recalled.intersection(range).is_empty());
        met.map(|(number, _)| *number)
    }

    fn unlist(&mut self, place: Place, holder: SessionId, number: u64) {
        if let Some(at) = self.at.get_mut(&place) {
            at.remove(&number);
            if at.is_empty() {
                self.at.remove(&place);
            }
        }
        if let Some(of) = self.of.get_mut(&holder) {
            of.remove(&number);
            if of.is_empty() {
                self.of.remove(&holder);
            }
        }
    }
}

//! Claims of pages, from the one that is made to the grant: which drops a claim waits for, and which wait for it. What is kept of owners
//! and claims is in `owners.rs`, and why it is so at the head of that file.

use ramlace_base::{ByteRange, Error, ErrorKind, Result, SessionId, limits};

use super::owners::{Asked, Owned, Ticket, Wish, asked_again};
use super::{DataLeases, Pending};
use crate::pages::{PAGE_BYTES, WHOLE, few, pages_of, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

/// The number of parts that a machine that owns too many drops at once.
const STRICT_RUNS_RELEASED: usize = 256;

impl DataLeases {
    /// Whether strict mounts are at a place.
    #[must_use]
    pub fn is_strict(&self, place: Place) -> bool {
        self.owners.is_strict(place)
    }

    /// Whether the request may be done in this very step. If not, it is to be made again when something has
    /// changed: by then the sessions that have the pages may have dropped them. A change that was granted
    /// keeps others away until [`DataLeases::end_claim`].
    ///
    /// Errors: `Busy` for several pages that are to be owned and are not free: ask for them one by one.
    /// `Retry` for a request that was repeated. `Unsupported` for bytes that were read before they were
    /// claimed.
    pub fn claim(&mut self, asked: &Asked, ticket: &mut Ticket, now: u64) -> Result<bool> {
        let Asked { place, session, range, wish, .. } = *asked;
        if matches!(wish, Wish::Own | Wish::Strict) {
            self.owners.join(place, session)?;
        }
        // What programs of strict mounts stored before the restart is written back first. A claim that excludes all
        // others also waits for what other mounts had.
        self.recall_from_returning(place, session, !wish.is_alone(), now);
        let pages = whole_pages(range);
        // A request without bytes wants a lease on all of them.
        let wanted = if range.is_empty() { WHOLE } else { pages };
        if !self.owners.is_strict(place) && !self.is_owned_by_others(place, session, wanted) {
            if !wish.changes() {
                // Before the last strict mount left, the claim may have waited.
                self.end_claim(place, std::mem::take(ticket));
            } else if *ticket == Ticket::default() {
                // A strict mount may join while the bytes of this change are still arriving: it has to wait for
                // this claim.
                *ticket = self.owners.note(asked, pages)?;
            }
            return Ok(true);
        }
        if range.is_empty() {
            let text = "a strict mount may have newer bytes; read them from the server";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let is_new = *ticket == Ticket::default();
        if !is_new && !self.owners.is_noted(place, *ticket) {
            return Err(asked_again());
        }
        if self.may_go_on(asked, pages) {
            self.end_claim(place, std::mem::take(ticket));
            self.owners.end_repeated(asked, pages)?;
            self.owners.remember(asked, pages);
            return Ok(true);
        }
        if is_new {
            *ticket = self.owners.note(asked, pages)?;
        }
        let is_several = wish == Wish::Own && pages.length() > PAGE_BYTES;
        let mut is_free = self.owners.is_first(asked, pages, *ticket);
        if is_free {
            is_free = match is_several {
                true => !self.others_hold(place, session, range),
                false => !self.recall_for(asked, pages, now) && !self.is_kept_from(asked, pages),
            };
        }
        if is_free {
            self.grant(asked, pages, ticket, now);
            if wish.is_for_pages() {
                self.recall_ahead(place, session, pages, now);
            }
        } else if is_several {
            self.end_claim(place, std::mem::take(ticket));
            return Err(Error::new(ErrorKind::Busy, "another kernel has some of these pages"));
        } else {
            self.resend(place, pages, now);
        }
        Ok(is_free)
    }

    /// A claim ends. Returns whether others may proceed because of that.
    pub fn end_claim(&mut self, place: Place, ticket: Ticket) -> bool {
        self.owners.end(place, ticket)
    }

    /// A session that reads what it already has must have dropped it for lack of memory, or is just being
    /// asked to drop it: no other session has it.
    fn may_go_on(&self, asked: &Asked, pages: ByteRange) -> bool {
        let Asked { place, session, wish, .. } = *asked;
        let mut own = self.pending_at(place, pages).filter(|(_, pending)| pending.holder == session);
        match wish {
            Wish::Share => own.next().is_some() && !self.is_owned_by_others(place, session, pages),
            Wish::Strict | Wish::Own => self.owners.owns(place, session, pages) && own.next().is_none(),
            Wish::Read | Wish::Change | Wish::Through => false,
        }
    }

    fn is_owned_by_others(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        let dropping =
            |pending: &Pending| pending.owned.meets(pages) && !pending.fenced && pending.holder != session;
        self.owners.others_own(place, session, pages)
            || self.pending_at(place, pages).any(|(_, pending)| dropping(pending))
    }

    /// Recalls the pages from sessions that must not have them. Returns whether there are such.
    fn recall_for(&mut self, asked: &Asked, pages: ByteRange, now: u64) -> bool {
        let Asked { place, session, wish, .. } = *asked;
        let mut recalls = Vec::new();
        for (holder, owned) in self.owners.strict.get(&place).into_iter().flatten() {
            // A write comes from a program, and not from the pages of its own kernel.
            if *holder == session && !wish.changes() {
                continue;
            }
            let awaited = self.owners.awaited(place, *holder);
            let theirs: Vec<ByteRange> =
                owned.pages.within(pages).flat_map(|run| awaited.gaps(run)).collect();
            recalls.extend(few(&theirs).into_iter().map(|part| (*holder, part)));
        }
        let sharers = if wish.is_alone() { Some(self.others(place, session)) } else { None };
        let mut shared = Vec::new();
        for (holder, holes) in sharers.into_iter().flatten() {
            let awaited = self.owners.awaited(place, holder);
            let theirs: Vec<ByteRange> =
                holes.gaps(pages).into_iter().flat_map(|part| awaited.gaps(part)).collect();
            shared.extend(few(&theirs).into_iter().map(|part| (holder, part)));
        }
        for (holder, part) in shared.iter().chain(&recalls) {
            self.note_fight(place, *holder, *part, now);
        }
        for (holder, part) in &shared {
            self.recall(place, *holder, *part, now);
        }
        for (holder, part) in &recalls {
            let ahead = self.streak(place, *holder, *part);
            let awaited = self.owners.awaited(place, *holder);
            for part in std::iter::once(*part).chain(awaited.gaps(ahead)) {
                self.recall_owned_part(place, *holder, part, now);
            }
        }
        !shared.is_empty() || !recalls.is_empty()
    }

    /// Pages that are likely to be wanted next: as many as were recalled one after the other before these.
    fn streak(&mut self, place: Place, holder: SessionId, part: ByteRange) -> ByteRange {
        let owned = self.owners.strict.get_mut(&place).and_then(|of| of.get_mut(&holder));
        let Some(owned) = owned else { return ByteRange::default() };
        let Owned { pages, streak } = &*owned;
        let follows = streak.end == part.start && !streak.is_empty();
        let start = if follows { streak.start } else { part.start };
        let more = if follows { ahead_of(owned) } else { 0 };
        let next = ByteRange { start: part.end, end: part.end.saturating_add(more) };
        let ahead = pages.within(next).next().filter(|run| run.start == part.end).unwrap_or_default();
        owned.streak = ByteRange { start, end: part.end.max(ahead.end) };
        ahead
    }

    /// A session goes through what another one has: before it comes to the end of what was recalled for it, the next
    /// pages are recalled, so that they are dropped beside its reads.
    fn recall_ahead(&mut self, place: Place, session: SessionId, pages: ByteRange, now: u64) {
        let is_near = |owned: &Owned| {
            let left = owned.streak.end.saturating_sub(pages.end);
            owned.streak.start < pages.start && pages.start < owned.streak.end && 2 * left <= ahead_of(owned)
        };
        let of = self.owners.strict.get(&place).into_iter().flatten();
        let near: Vec<(SessionId, ByteRange)> = of
            .filter(|(holder, owned)| **holder != session && is_near(owned))
            .map(|(holder, owned)| (*holder, ByteRange { start: owned.streak.end, end: owned.streak.end }))
            .collect();
        for (holder, end) in near {
            let awaited = self.owners.awaited(place, holder);
            let ahead = self.streak(place, holder, end);
            awaited.gaps(ahead).into_iter().for_each(|part| self.recall_owned_part(place, holder, part, now));
        }
    }

    /// Recalls pages as one range. The holder owns nothing of what lies between them, so it loses only time
    /// there.
    fn recall_owned_part(&mut self, place: Place, holder: SessionId, pages: ByteRange, now: u64) {
        let owned = self.owners.strict.get_mut(&place).and_then(|of| of.get_mut(&holder));
        let Some(owned) = owned.filter(|owned| owned.pages.meets(pages)) else { return };
        let mut theirs = RangeSet::default();
        owned.pages.within(pages).for_each(|run| theirs.insert(run));
        owned.pages.remove(pages);
        self.add_owned(place, holder, pages, theirs, false, now);
    }

    fn add_owned(
        &mut self,
        place: Place,
        holder: SessionId,
        range: ByteRange,
        owned: RangeSet,
        of_before: bool,
        now: u64,
    ) {
        let number = self.add(place, holder, range, now);
        let pending = self.recalls.get_mut(&number).expect("it was made just now");
        (pending.owned, pending.of_before) = (owned, of_before);
        self.limit_recalls(holder, number, now);
    }

    /// Recalls the pages that others own in ascending ranges, for a change that waits for them later.
    pub(super) fn recall_owned(&mut self, place: Place, by: SessionId, ranges: &[ByteRange], now: u64) {
        let of = self.owners.strict.get(&place).into_iter().flatten().filter(|(holder, _)| **holder != by);
        let recalls: Vec<(SessionId, Vec<ByteRange>)> = of
            .map(|(holder, owned)| {
                let runs: Vec<ByteRange> =
                    ranges.iter().flat_map(|range| owned.pages.within(*range)).collect();
                (*holder, few(&runs))
            })
            .collect();
        for (holder, parts) in recalls {
            parts.into_iter().for_each(|part| self.recall_owned_part(place, holder, part, now));
        }
    }

    /// Whether a session has yet to drop pages that it must not have.
    fn is_kept_from(&self, asked: &Asked, pages: ByteRange) -> bool {
        self.pending_at(asked.place, pages).any(|(_, pending)| self.blocks(pending, asked, pages))
    }

    /// Whether a recall that is not done keeps a claim from these pages.
    pub(super) fn blocks(&self, pending: &Pending, asked: &Asked, pages: ByteRange) -> bool {
        let Asked { place, session, wish, .. } = *asked;
        let counts = match wish.is_alone() {
            true => pending.holder != session || (wish.changes() && pending.owned.meets(pages)),
            false => pending.holder != session && pending.owned.meets(pages),
        };
        counts
            && !pending.fenced
            && !self.blocks_itself(place, pending)
            && !self.gone(pending).covers(pending.range.intersection(pages))
    }

    /// The part of a recall that its holder no longer has: what it has dropped, and what it waits for.
    pub(super) fn gone(&self, pending: &Pending) -> RangeSet {
        let mut gone = self.owners.awaited(pending.place, pending.holder);
        pending.dropped.within(WHOLE).for_each(|part| gone.insert(part));
        gone
    }

    /// Recalls again the rest of recalls of these pages that cannot be done before their holders have got
    /// pages that they wait for.
    pub(super) fn resend(&mut self, place: Place, pages: ByteRange, now: u64) -> bool {
        if !self.is_awaited_by_kernels(place) {
            return false;
        }
        let stuck: Vec<(u64, SessionId)> = self
            .pending_at(place, pages)
            .filter(|(_, pending)| !pending.fenced && self.waits_for_some(pending))
            .map(|(number, pending)| (number, pending.holder))
            .collect();
        let newest = self.last_number;
        for (number, holder) in stuck {
            for part in self.unsent(number, pages) {
                let Some(pending) = self.recalls.get(&number) else { break };
                let mut owned = RangeSet::default();
                pending.owned.within(part).for_each(|run| owned.insert(run));
                let of_before = pending.of_before;
                self.add_owned(place, holder, part, owned, of_before, now);
            }
        }
        self.last_number != newest
    }

    /// Whether a session waits for a page of this place for its kernel.
    pub(super) fn is_awaited_by_kernels(&self, place: Place) -> bool {
        let claims = self.owners.claims.get(&place).into_iter().flat_map(|claims| claims.values());
        claims.into_iter().any(|claim| claim.wish.is_for_pages())
    }

    /// The rest of a recall, less the parts of later recalls that can be done at once.
    fn unsent(&self, number: u64, pages: ByteRange) -> Vec<ByteRange> {
        let Some(pending) = self.recalls.get(&number) else { return Vec::new() };
        let mut sent = self.gone(pending);
        let later = self.at.get(&pending.place).into_iter().flat_map(|at| at.range(number + 1..));
        for other in later.filter_map(|(number, _)| self.recalls.get(number)) {
            if other.holder == pending.holder && !other.fenced && !self.waits_for_some(other) {
                sent.insert(other.range);
            }
        }
        sent.gaps(pending.range.intersection(pages))
    }

    /// The same for all recalls that were sent a while ago, so that no session is fenced that cannot do its
    /// recall.
    pub(super) fn resend_late(&mut self, now: u64) -> bool {
        let late = |pending: &Pending| !pending.fenced && pending.resends_at() <= now;
        let late: Vec<(u64, Place, ByteRange)> = self
            .recalls
            .iter()
            .filter(|(_, pending)| late(pending) && self.waits_for_some(pending))
            .map(|(number, pending)| (*number, pending.place, pending.range))
            .collect();
        let mut any = false;
        for (number, place, range) in late {
            if let Some(pending) = self.recalls.get_mut(&number) {
                pending.resent_at = now;
            }
            any |= self.resend(place, range, now);
        }
        any
    }

    /// A holder has dropped all of a recall, and thereby these bytes of earlier ones. Returns the recalls of
    /// which nothing is left.
    pub(super) fn note_dropped(&mut self, number: u64) -> Vec<u64> {
        let Some(Pending { place, holder, range, .. }) = self.recalls.get(&number) else { return Vec::new() };
        let (place, holder, range) = (*place, *holder, *range);
        let earlier: Vec<u64> =
            self.of.get(&holder).into_iter().flat_map(|of| of.range(..number)).copied().collect();
        let mut over = Vec::new();
        for earlier in earlier {
            let Some(pending) = self.recalls.get_mut(&earlier) else { continue };
            if pending.place == place && !pending.fenced {
                pending.dropped.insert(pending.range.intersection(range));
                if pending.dropped.covers(pending.range) {
                    over.push(earlier);
                }
            }
        }
        over
    }

    /// A holder cannot drop a page before its own write of it is answered, which waits for its turn.
    fn blocks_itself(&self, place: Place, pending: &Pending) -> bool {
        let claims = self.owners.claims.get(&place).into_iter().flat_map(|claims| claims.values());
        let mut through =
            claims.filter(|claim| claim.wish == Wish::Through && claim.session == pending.holder);
        let coming = self.owners.coming.get(&place).into_iter().flatten();
        let meets = |pages: ByteRange| !pages.intersection(pending.range).is_empty();
        !pending.is_waited()
            && (through.any(|claim| meets(claim.pages))
                || coming.filter(|(session, _)| *session == pending.holder).any(|(_, pages)| meets(*pages)))
    }

    /// A write through a kernel's pages has arrived, and its bytes have to wait before it can make a claim: the
    /// pages stay locked until [`DataLeases::has_come`].
    pub fn comes(&mut self, place: Place, session: SessionId, range: ByteRange) {
        self.owners.coming.entry(place).or_default().push((session, whole_pages(range)));
    }

    /// Its bytes have arrived, or it has ended.
    pub fn has_come(&mut self, place: Place, session: SessionId, range: ByteRange) {
        let Some(of) = self.owners.coming.get_mut(&place) else { return };
        if let Some(at) = of.iter().position(|other| *other == (session, whole_pages(range))) {
            of.swap_remove(at);
        }
        if of.is_empty() {
            self.owners.coming.remove(&place);
        }
    }

    /// Whether a holder's kernel waits for some of the pages that were recalled from it.
    pub(super) fn waits_for_some(&self, pending: &Pending) -> bool {
        let claims = self.owners.claims.get(&pending.place).into_iter().flat_map(|claims| claims.values());
        let mut own = claims.filter(|claim| claim.session == pending.holder && claim.wish.is_for_pages());
        own.any(|claim| !claim.pages.intersection(pending.range).is_empty())
    }

    /// A session's kernel reads the first page of a file whose bytes have to move to a lane first. So it has none, and
    /// acknowledges nothing of the file before: two of them do not wait for each other. Until
    /// [`DataLeases::end_promotion`].
    pub fn begin_promotion(&mut self, place: Place, session: SessionId) {
        self.owners.promoting.entry(place).or_default().push(session);
    }

    /// The bytes have moved, or not.
    pub fn end_promotion(&mut self, place: Place, session: SessionId) {
        let Some(of) = self.owners.promoting.get_mut(&place) else { return };
        if let Some(at) = of.iter().position(|other| *other == session) {
            of.swap_remove(at);
        }
        if of.is_empty() {
            self.owners.promoting.remove(&place);
        }
    }

    fn is_promoting(&self, pending: &Pending) -> bool {
        self.owners.promoting.get(&pending.place).is_some_and(|of| of.contains(&pending.holder))
    }

    /// Whether a holder has nothing of what was recalled, however late it acknowledges.
    pub(super) fn is_excused(&self, pending: &Pending) -> bool {
        self.is_promoting(pending)
            || (self.waits_for_some(pending) && self.gone(pending).covers(pending.range))
    }

    fn grant(&mut self, asked: &Asked, pages: ByteRange, ticket: &mut Ticket, now: u64) {
        let Asked { place, session, wish, .. } = *asked;
        if wish.changes() {
            return;
        }
        // What blocked its drops has arrived: its time begins now.
        for number in self.numbers_at(place, WHOLE) {
            if let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session) {
                pending.progress = now;
                if !pending.range.intersection(pages).is_empty() {
                    pending.began = now;
                }
            }
        }
        self.end_claim(place, std::mem::take(ticket));
        if wish.is_for_pages() {
            self.owners.remember(asked, pages);
        }
        if wish != Wish::Own {
            return;
        }
        // A session that waits for the same page has none of it.
        for (holder, owned) in self.owners.strict.get_mut(&place).into_iter().flatten() {
            match *holder == session {
                true => owned.pages.insert(pages),
                false => owned.pages.remove(pages),
            }
        }
        let mut sharers = Vec::new();
        for (holder, holes) in self.leases.get_mut(&place).into_iter().flatten() {
            holes.insert(pages);
            sharers.push(*holder);
        }
        for holder in sharers {
            self.limit_holes(place, holder, ByteRange::default(), now);
        }
        self.limit_owned(place, session, pages, now);
        self.read_anew(place, session, pages);
    }

    /// A session that owns pages in too many parts drops some, all at once: those that lie farthest from what
    /// it has just got.
    fn limit_owned(&mut self, place: Place, session: SessionId, got: ByteRange, now: u64) {
        let owned = self.owners.strict.get(&place).and_then(|of| of.get(&session));
        let Some(Owned { pages, .. }) = owned.filter(|owned| owned.pages.runs() > limits::STRICT_RUNS_MAX)
        else {
            return;
        };
        let (mut before, behind): (Vec<ByteRange>, Vec<ByteRange>) =
            pages.iter().filter(|run| run.intersection(got).is_empty()).partition(|run| run.end <= got.start);
        let far = if before.len() >= behind.len() {
            before.truncate(STRICT_RUNS_RELEASED);
            before
        } else {
            behind[behind.len().saturating_sub(STRICT_RUNS_RELEASED)..].to_vec()
        };
        if let (Some(first), Some(last)) = (far.first(), far.last()) {
            let hull = ByteRange { start: first.start, end: last.end };
            self.recall_owned_part(place, session, hull, now);
        }
    }

    /// Whether no other session has had these pages since this session got them, in this incarnation.
    pub(super) fn had_alone(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        let dropping = |pending: &Pending, page| {
            pending.owned.covers(page) && !pending.fenced && !pending.of_before && pending.holder == session
        };
        self.owners.is_strict(place)
            && pages_of(range).all(|page| {
                self.owners.owns(place, session, page)
                    || self.pending_at(place, page).any(|(_, pending)| dropping(pending, page))
            })
    }
}

/// As many bytes as were recalled one after the other are recalled ahead.
fn ahead_of(owned: &Owned) -> u64 {
    owned.streak.length().min(limits::STRICT_RECALL_AHEAD_BYTES_MAX)
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;

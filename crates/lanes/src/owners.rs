//! Pages that lie in one kernel alone: what strict mounts ask for, and which session waits for which.
//!
//! A page that programs of a strict mount may store into is *owned*: no other kernel has it, so that a store is
//! seen by every load that comes after it. A session that wants bytes at a place with a strict mount makes a
//! *claim*, and claims of the same pages are served in the order in which they came. A claim is granted when
//! all sessions that must not have the pages have dropped them: the pages are recalled, and the claim waits.
//!
//! A kernel that reads a page has none of it, and what programs stored there before is written back. So other
//! claims do not wait for a session that itself waits with a claim for the same page: its drop of that page
//! waits for the very same claim. This keeps two machines that want one page from waiting for each other. For
//! the same reason a claim waits only for single pages that are to be owned: a kernel that holds one page while
//! it waits for the next would close a cycle.
//!
//! Adjacent pages are recalled as one range, and a kernel drops it in order: it stops at a page that it reads.
//! Another session may wait for a page after that one, while the reader waits for that session. So what is left
//! of such a recall is recalled again without the page that is read ([`DataLeases::resend`]), and what is
//! dropped by a later recall is dropped by the earlier ones, too.

use std::collections::{BTreeMap, VecDeque};

use ramlace_base::{ByteRange, Error, ErrorKind, Result, SessionId, limits};

use super::{DataLeases, Pending};
use crate::pages::{PAGE_BYTES, WHOLE, few, pages_of, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

/// Grants that are remembered of each session, so that a late request is recognised.
const GRANTS_REMEMBERED: usize = 64;
/// The number of a late request is smaller by less than this: numbers wrap around.
const LATE_BY_MAX: u32 = 1 << 30;

/// The number of parts that a machine that owns too many drops at once.
const STRICT_RUNS_RELEASED: usize = 256;

/// The kind of claim on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To read them once.
    Read,
    /// To cache pages of them, into which programs may store what they publish later.
    Share,
    /// To keep pages of them on a strict mount, where no program stores into them.
    Strict,
    /// To keep pages of them on a strict mount, where programs store into them.
    Own,
    /// To change them.
    Change,
    /// To change them through pages that its kernel may lock until the answer.
    Through,
}

impl Wish {
    /// A kernel reads them for its pages: until the answer it has none of these pages.
    fn is_for_pages(self) -> bool {
        matches!(self, Wish::Share | Wish::Strict | Wish::Own)
    }

    /// Whether bytes are to change.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Wish::Change | Wish::Through)
    }

    /// No other session may have them meanwhile.
    fn is_alone(self) -> bool {
        self == Wish::Own || self.changes()
    }
}

/// A session's claim.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Where.
    pub place: Place,
    /// Which session.
    pub session: SessionId,
    /// Which bytes.
    pub range: ByteRange,
    /// The kind of claim.
    pub wish: Wish,
    /// The request's number: a session's later ones are larger.
    pub call: u32,
}

/// A claim's place in the order; `Default`: not made yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Claim {
    session: SessionId,
    pages: ByteRange,
    wish: Wish,
    call: u32,
}

/// The pages that a strict mount has of a place.
#[derive(Debug, Default)]
struct Owned {
    pages: RangeSet,
    /// The range that consecutive recalls have covered.
    streak: ByteRange,
}

#[derive(Debug)]
struct Grant {
    place: Place,
    pages: ByteRange,
    call: u32,
}

/// The pages that a session got.
#[derive(Debug, Default)]
struct Granted {
    last: VecDeque<Grant>,
    /// The newest request whose pages are not remembered any more.
    forgotten: Option<u32>,
}

impl Granted {
    fn remember(&mut self, grant: Grant) {
        self.last.push_back(grant);
        if self.last.len() > GRANTS_REMEMBERED
            && let Some(Grant { call, .. }) = self.last.pop_front()
            && self.forgotten.is_none_or(|newest| is_newer(call, newest))
        {
            self.forgotten = Some(call);
        }
    }

    /// Whether a request may be a late copy: the session has repeated it since, and got its pages.
    fn is_late(&self, asked: &Asked, pages: ByteRange) -> bool {
        let same = |grant: &&Grant| grant.place == asked.place && !grant.pages.intersection(pages).is_empty();
        self.forgotten.is_some_and(|newest| newest.wrapping_sub(asked.call) < LATE_BY_MAX)
            || self.last.iter().filter(same).any(|grant| is_newer(grant.call, asked.call))
    }
}

/// All owners of pages, and all claims.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The sessions of strict mounts at each place.
    strict: BTreeMap<Place, BTreeMap<SessionId, Owned>>,
    count: usize,
    claims: BTreeMap<Place, BTreeMap<u64, Claim>>,
    /// Sessions that want the bytes of an inode in the file's lanes, and until then hold a page that they read.
    promoting: BTreeMap<Place, Vec<SessionId>>,
    /// Writes through kernels' pages that have yet to begin.
    coming: BTreeMap<Place, Vec<(SessionId, ByteRange)>>,
    last_ticket: u64,
    granted: BTreeMap<SessionId, Granted>,
}

impl Owners {
    pub(super) fn is_idle(&self) -> bool {
        self.strict.is_empty()
    }

    /// Whether strict mounts are at this place.
    pub(super) fn is_strict(&self, place: Place) -> bool {
        self.strict.contains_key(&place)
    }

    pub(super) fn others_own(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        let mut of = self.strict.get(&place).into_iter().flatten();
        of.any(|(holder, owned)| *holder != session && owned.pages.meets(pages))
    }

    fn owns(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        let owned = self.strict.get(&place).and_then(|of| of.get(&session));
        owned.is_some_and(|owned| owned.pages.covers(pages))
    }

    /// A session is fenced: it owns nothing there any more.
    pub(super) fn forget_owner(&mut self, place: Place, session: SessionId) {
        let Some(of) = self.strict.get_mut(&place) else { return };
        if of.remove(&session).is_some() {
            self.count -= 1;
        }
        if of.is_empty() {
            self.strict.remove(&place);
        }
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        let of = |(place, of): (&Place, &BTreeMap<_, _>)| of.contains_key(&session).then_some(*place);
        let places: Vec<Place> = self.strict.iter().filter_map(of).collect();
        places.into_iter().for_each(|place| self.forget_owner(place, session));
        for claims in self.claims.values_mut() {
            claims.retain(|_, claim| claim.session != session);
        }
        self.claims.retain(|_, claims| !claims.is_empty());
        self.granted.remove(&session);
    }

    /// The place is gone. Claims find that out for themselves.
    pub(super) fn forget(&mut self, place: Place) {
        self.count -= self.strict.remove(&place).map_or(0, |of| of.len());
    }

    fn join(&mut self, place: Place, session: SessionId) -> Result<()> {
        if self.strict.get(&place).is_some_and(|of| of.contains_key(&session)) {
            return Ok(());
        }
        if self.count >= limits::DATA_LEASES_PER_SERVER_MAX {
            self.forget_idle_owner();
        }
        if self.count >= limits::DATA_LEASES_PER_SERVER_MAX {
            let text = format!("{} files are shared strictly on this server, as many as may be", self.count);
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        self.count += 1;
        self.strict.entry(place).or_default().insert(session, Owned::default());
        Ok(())
    }

    /// A strict mount that owns nothing of a place where no claim waits keeps no more than its lease, as others
    /// do.
    fn forget_idle_owner(&mut self) {
        let idle = |of: &BTreeMap<SessionId, Owned>| {
            of.iter().find(|(_, owned)| owned.pages.is_empty()).map(|(session, _)| *session)
        };
        let mut quiet = self.strict.iter().filter(|(place, _)| !self.claims.contains_key(place));
        if let Some((place, session)) = quiet.find_map(|(place, of)| Some((*place, idle(of)?))) {
            self.forget_owner(place, session);
        }
    }

    /// Pages that a session's kernel waits for: it has none of them.
    fn awaited(&self, place: Place, session: SessionId) -> RangeSet {
        let claims = self.claims.get(&place).into_iter().flat_map(|claims| claims.values());
        let own = claims.filter(move |claim| claim.session == session && claim.wish.is_for_pages());
        let mut awaited = RangeSet::default();
        own.for_each(|claim| awaited.insert(claim.pages));
        awaited
    }

    /// Pages of a place for which a session waits, or that it changes.
    pub(super) fn claimed(&self, place: Place) -> RangeSet {
        let mut claimed = RangeSet::default();
        let claims = self.claims.get(&place).into_iter().flat_map(|claims| claims.values());
        claims.for_each(|claim| claimed.insert(claim.pages));
        claimed
    }

    /// Whether there is no earlier claim of some of these pages that goes first: both claims may not have them together.
    fn is_first(&self, asked: &Asked, pages: ByteRange, ticket: Ticket) -> bool {
        self.those_before(asked, pages, ticket).next().is_none()
    }

    /// The earlier claims that go first.
    pub(super) fn those_before(
        &self,
        asked: &Asked,
        pages: ByteRange,
        ticket: Ticket,
    ) -> impl Iterator<Item = SessionId> {
        let before =
            self.claims.get(&asked.place).into_iter().flat_map(move |claims| claims.range(..ticket.0));
        let alone = asked.wish.is_alone();
        let first = before.filter(move |(_, claim)| {
            (claim.wish.is_alone() || alone) && !claim.pages.intersection(pages).is_empty()
        });
        first.map(|(_, claim)| claim.session)
    }

    /// Places with strict mounts or waiting claims.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.strict.keys().chain(self.claims.keys())
    }

    /// The pages of a place that each strict mount owns.
    pub(super) fn owned_bytes(&self, place: Place) -> impl Iterator<Item = (SessionId, u64)> {
        let of = self.strict.get(&place).into_iter().flatten();
        of.map(|(session, owned)| (*session, owned.pages.within(WHOLE).map(ByteRange::length).sum()))
    }

    /// All claims of a place, in order.
    pub(super) fn claims_at(&self, place: Place) -> impl Iterator<Item = (Asked, Ticket)> {
        let claims = self.claims.get(&place).into_iter().flatten();
        claims.map(move |(number, claim)| {
            let Claim { session, pages: range, wish, call } = *claim;
            (Asked { place, session, range, wish, call }, Ticket(*number))
        })
    }

    /// Notes a claim, after all others.
    fn note(&mut self, asked: &Asked, pages: ByteRange) -> Result<Ticket> {
        self.end_repeated(asked, pages)?;
        self.last_ticket += 1;
        let Asked { place, session, wish, call, .. } = *asked;
        let claim = Claim { session, pages, wish, call };
        self.claims.entry(place).or_default().insert(self.last_ticket, claim);
        Ok(Ticket(self.last_ticket))
    }

    /// A kernel asks for a page once: an earlier request of it for the page is one whose answer was lost.
    ///
    /// Errors: `Retry` for a request that was itself repeated since: by now the page may be in its kernel.
    fn end_repeated(&mut self, asked: &Asked, pages: ByteRange) -> Result<()> {
        let Asked { place, session, call, wish, .. } = *asked;
        if !wish.is_for_pages() {
            return Ok(());
        }
        let same = |claim: &Claim| {
            let meets = !claim.pages.intersection(pages).is_empty();
            claim.session == session && claim.wish.is_for_pages() && meets
        };
        let mut claims = self.claims.get(&place).into_iter().flat_map(|claims| claims.values());
        if claims.any(|claim| same(claim) && is_newer(claim.call, call))
            || self.granted.get(&session).is_some_and(|granted| granted.is_late(asked, pages))
        {
            return Err(asked_again());
        }
        if let Some(claims) = self.claims.get_mut(&place) {
            claims.retain(|_, claim| !same(claim));
            if claims.is_empty() {
                self.claims.remove(&place);
            }
        }
        Ok(())
    }

    fn is_noted(&self, place: Place, ticket: Ticket) -> bool {
        self.claims.get(&place).is_some_and(|claims| claims.contains_key(&ticket.0))
    }

    fn end(&mut self, place: Place, ticket: Ticket) -> bool {
        let Some(claims) = self.claims.get_mut(&place) else { return false };
        let ended = claims.remove(&ticket.0).is_some();
        if claims.is_empty() {
            self.claims.remove(&place);
        }
        ended && self.claims.contains_key(&place)
    }

    fn remember(&mut self, asked: &Asked, pages: ByteRange) {
        let grant = Grant { place: asked.place, pages, call: asked.call };
        self.granted.entry(asked.session).or_default().remember(grant);
    }
}

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
        let Some(Owned { pages, streak }) = owned else { return ByteRange::default() };
        let follows = streak.end == part.start && !streak.is_empty();
        let start = if follows { streak.start } else { part.start };
        let more = if follows { streak.length().min(limits::STRICT_RECALL_AHEAD_BYTES_MAX) } else { 0 };
        let next = ByteRange { start: part.end, end: part.end.saturating_add(more) };
        let ahead = pages.within(next).next().filter(|run| run.start == part.end).unwrap_or_default();
        *streak = ByteRange { start, end: part.end.max(ahead.end) };
        ahead
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

/// Whether a request came after another one: numbers wrap around.
fn is_newer(call: u32, other: u32) -> bool {
    (call.wrapping_sub(other) as i32) > 0
}

fn asked_again() -> Error {
    Error::new(ErrorKind::Retry, "the same page was asked for again")
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;

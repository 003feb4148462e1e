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
//! of such a recall is recalled again without the page that is read (`resend` in `claims.rs`), and what is
//! dropped by a later recall is dropped by the earlier ones, too.

use std::collections::{BTreeMap, VecDeque};

use ramlace_base::{ByteRange, Error, ErrorKind, Result, SessionId, limits};

use crate::pages::WHOLE;
use crate::ranges::RangeSet;
use crate::watches::Place;

/// Grants that are remembered of each session, so that a late request is recognised.
pub(super) const GRANTS_REMEMBERED: usize = 64;
/// The number of a late request is smaller by less than this: numbers wrap around.
const LATE_BY_MAX: u32 = 1 << 30;

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
    pub(super) fn is_for_pages(self) -> bool {
        matches!(self, Wish::Share | Wish::Strict | Wish::Own)
    }

    /// Whether bytes are to change.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Wish::Change | Wish::Through)
    }

    /// No other session may have them meanwhile.
    pub(super) fn is_alone(self) -> bool {
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
pub struct Ticket(pub(super) u64);

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) session: SessionId,
    pub(super) pages: ByteRange,
    pub(super) wish: Wish,
    call: u32,
}

/// The pages that a strict mount has of a place.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pub(super) pages: RangeSet,
    /// The range that consecutive recalls have covered.
    pub(super) streak: ByteRange,
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
    pub(super) fn remember(&mut self, grant: Grant) {
        self.last.push_back(grant);
        if self.last.len() > GRANTS_REMEMBERED
            && let Some(Grant { call, .. }) = self.last.pop_front()
            && self.forgotten.is_none_or(|newest| is_newer(call, newest))
        {
            self.forgotten = Some(call);
        }
    }

    /// Whether a request may be a late copy: the session has repeated it since, and got its pages.
    pub(super) fn is_late(&self, asked: &Asked, pages: ByteRange) -> bool {
        let same = |grant: &&Grant| grant.place == asked.place && !grant.pages.intersection(pages).is_empty();
        self.forgotten.is_some_and(|newest| newest.wrapping_sub(asked.call) < LATE_BY_MAX)
            || self.last.iter().filter(same).any(|grant| is_newer(grant.call, asked.call))
    }
}

/// All owners of pages, and all claims.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The sessions of strict mounts at each place.
    pub(super) strict: BTreeMap<Place, BTreeMap<SessionId, Owned>>,
    pub(super) count: usize,
    pub(super) claims: BTreeMap<Place, BTreeMap<u64, Claim>>,
    /// Sessions that want the bytes of an inode in the file's lanes, and until then hold a page that they read.
    pub(super) promoting: BTreeMap<Place, Vec<SessionId>>,
    /// Writes through kernels' pages that have yet to begin.
    pub(super) coming: BTreeMap<Place, Vec<(SessionId, ByteRange)>>,
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

    pub(super) fn owns(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
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

    pub(super) fn join(&mut self, place: Place, session: SessionId) -> Result<()> {
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
    pub(super) fn forget_idle_owner(&mut self) {
        let idle = |of: &BTreeMap<SessionId, Owned>| {
            of.iter().find(|(_, owned)| owned.pages.is_empty()).map(|(session, _)| *session)
        };
        let mut quiet = self.strict.iter().filter(|(place, _)| !self.claims.contains_key(place));
        if let Some((place, session)) = quiet.find_map(|(place, of)| Some((*place, idle(of)?))) {
            self.forget_owner(place, session);
        }
    }

    /// Pages that a session's kernel waits for: it has none of them.
    pub(super) fn awaited(&self, place: Place, session: SessionId) -> RangeSet {
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
    pub(super) fn is_first(&self, asked: &Asked, pages: ByteRange, ticket: Ticket) -> bool {
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
    pub(super) fn note(&mut self, asked: &Asked, pages: ByteRange) -> Result<Ticket> {
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
    pub(super) fn end_repeated(&mut self, asked: &Asked, pages: ByteRange) -> Result<()> {
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

    pub(super) fn is_noted(&self, place: Place, ticket: Ticket) -> bool {
        self.claims.get(&place).is_some_and(|claims| claims.contains_key(&ticket.0))
    }

    pub(super) fn end(&mut self, place: Place, ticket: Ticket) -> bool {
        let Some(claims) = self.claims.get_mut(&place) else { return false };
        let ended = claims.remove(&ticket.0).is_some();
        if claims.is_empty() {
            self.claims.remove(&place);
        }
        ended && self.claims.contains_key(&place)
    }

    pub(super) fn remember(&mut self, asked: &Asked, pages: ByteRange) {
        let grant = Grant { place: asked.place, pages, call: asked.call };
        self.granted.entry(asked.session).or_default().remember(grant);
    }
}

/// Whether a request came after another one: numbers wrap around.
fn is_newer(call: u32, other: u32) -> bool {
    (call.wrapping_sub(other) as i32) > 0
}

pub(super) fn asked_again() -> Error {
    Error::new(ErrorKind::Retry, "the same page was asked for again")
}

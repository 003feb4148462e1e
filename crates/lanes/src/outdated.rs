//! What must be known of pages after a server's restart: those that others have changed, and that their
//! holder still has to drop. If that kernel writes them back, its stores cannot be distinguished from what
//! was there before the change: the pages' bases were lost with the process. So it is refused.
//!
//! Pages are kept by place and session: what a session has read anew, written through or dropped is good again in every
//! later life, whichever recall it was about. That takes a record when pages change so, and one when they are
//! dropped. Machines that do not collide pay none, unless one writes past its own kernel's pages.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{ByteRange, SessionId, limits};

use crate::ranges::RangeSet;
use crate::watches::Place;

/// Something to be logged, in this order, before bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Pages are about to change that a session has been asked to drop, and has not.
    Outdated {
        /// Where they are.
        place: Place,
        /// The session that has them.
        session: SessionId,
        /// Which.
        pages: ByteRange,
    },
    /// It has none of these any more as they were before a change: it has dropped them, or has read them since.
    Dropped {
        /// Where they were.
        place: Place,
        /// The session that had them.
        session: SessionId,
        /// Which.
        pages: ByteRange,
    },
    /// Others change what a session may have from before a restart, and it is not asked to drop that: it has
    /// left too many recalls unanswered.
    Worthless {
        /// Which session.
        session: SessionId,
    },
    /// It has none of that any more.
    Returned {
        /// Which session.
        session: SessionId,
    },
}

impl News {
    pub(crate) fn session(&self) -> SessionId {
        match *self {
            News::Outdated { session, .. }
            | News::Dropped { session, .. }
            | News::Worthless { session }
            | News::Returned { session } => session,
        }
    }
}

/// All such pages. The set may be too large: then stores are refused that could have been kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outdated {
    of: BTreeMap<(Place, SessionId), RangeSet>,
    /// Sessions all of whose pages from before a restart may be such.
    worthless: BTreeSet<SessionId>,
}

impl Outdated {
    /// Something has happened to pages.
    pub fn note(&mut self, news: &News) {
        match *news {
            News::Outdated { place, session, pages } => {
                self.change(place, session, |of| of.insert(pages));
            }
            News::Dropped { place, session, pages } => {
                self.change(place, session, |of| of.remove(pages));
            }
            News::Worthless { session } => _ = self.worthless.insert(session),
            News::Returned { session } => _ = self.worthless.remove(&session),
        }
    }

    fn change(&mut self, place: Place, session: SessionId, change: impl FnOnce(&mut RangeSet)) {
        let of = self.of.entry((place, session)).or_default();
        change(of);
        of.limit_runs(limits::DATA_LEASE_HOLES_MAX);
        if of.is_empty() {
            self.of.remove(&(place, session));
        }
    }

    /// Whether that changes anything.
    #[must_use]
    pub fn is_news(&self, news: &News) -> bool {
        let of = |place, session| self.of.get(&(place, session));
        match *news {
            News::Outdated { place, session, pages } => {
                !of(place, session).is_some_and(|of| of.covers(pages))
            }
            News::Dropped { place, session, pages } => of(place, session).is_some_and(|of| of.meets(pages)),
            News::Worthless { session } => !self.worthless.contains(&session),
            News::Returned { session } => self.worthless.contains(&session),
        }
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.of.retain(|(_, of), _| *of != session);
        self.worthless.remove(&session);
    }

    /// Whether a session has some.
    #[must_use]
    pub fn has(&self, session: SessionId) -> bool {
        self.worthless.contains(&session) || self.of.keys().any(|(_, of)| *of == session)
    }

    /// Records from which this state would follow.
    pub fn news(&self) -> impl Iterator<Item = News> {
        let pages = self.all().map(|(place, session, pages)| News::Outdated { place, session, pages });
        pages.chain(self.worthless.iter().map(|session| News::Worthless { session: *session }))
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (Place, SessionId, ByteRange)> {
        self.of.iter().flat_map(|((place, session), of)| of.iter().map(|pages| (*place, *session, pages)))
    }

    pub(crate) fn of(&self, place: Place, session: SessionId) -> Option<&RangeSet> {
        self.of.get(&(place, session))
    }

    pub(crate) fn places_of(&self, session: SessionId) -> Vec<Place> {
        self.of.keys().filter(|(_, of)| *of == session).map(|(place, _)| *place).collect()
    }

    pub(crate) fn sessions_at(&self, place: Place) -> Vec<SessionId> {
        self.of.keys().filter(|(at, _)| *at == place).map(|(_, session)| *session).collect()
    }
}

//! Pages whose base is not known: a session's kernel may have them from before the server's restart, or from
//! before the session was fenced. What it writes back of them is refused, until it has read them anew or has
//! dropped them.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, SessionId, limits};

use crate::pages::{WHOLE, inner_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

/// For each place and session with a lease there, or with pages still to be dropped because of a recall or
/// from before a restart. The set may be too large: then stores are refused that could have been kept.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    of: BTreeMap<(Place, SessionId), RangeSet>,
}

impl Unknown {
    /// Others have changed pages that a session's kernel had before a restart, and it still has to drop them.
    pub(super) fn begin(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        let unknown = self.of.entry((place, session)).or_default();
        unknown.insert(pages);
        unknown.limit_runs(limits::DATA_LEASE_HOLES_MAX);
    }

    /// A session is fenced: others change the pages that it has, and the previous bytes are not kept.
    pub(super) fn begin_whole(&mut self, place: Place, session: SessionId) {
        self.of.entry((place, session)).or_default().insert(WHOLE);
    }

    /// Whether some of these pages are among them.
    pub(super) fn meets(&self, place: Place, session: SessionId, pages: ByteRange) -> bool {
        self.of.get(&(place, session)).is_some_and(|unknown| unknown.meets(pages))
    }

    /// Those of a place and session.
    pub(super) fn of(&self, place: Place, session: SessionId) -> impl Iterator<Item = ByteRange> + '_ {
        self.of.get(&(place, session)).into_iter().flat_map(RangeSet::iter)
    }

    /// A session has read these pages.
    pub(super) fn read(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        let Some(unknown) = self.of.get_mut(&(place, session)) else { return };
        unknown.remove(pages);
        unknown.limit_runs(limits::DATA_LEASE_HOLES_MAX);
        if unknown.is_empty() {
            self.forget(place, session);
        }
    }

    /// A session has written these bytes through its pages: pages that it has written whole are known.
    pub(super) fn wrote(&mut self, place: Place, session: SessionId, range: ByteRange) {
        self.read(place, session, inner_pages(range));
    }

    /// A session has dropped all pages, or has none.
    pub(super) fn forget(&mut self, place: Place, session: SessionId) {
        self.of.remove(&(place, session));
    }

    /// Where a session has such pages.
    pub(super) fn places_of(&self, session: SessionId) -> Vec<Place> {
        self.of.keys().filter(|(_, of)| *of == session).map(|(place, _)| *place).collect()
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        self.of.retain(|(_, of), _| *of != session);
    }

    pub(super) fn forget_place(&mut self, place: Place) {
        self.of.retain(|(of, _), _| *of != place);
    }
}

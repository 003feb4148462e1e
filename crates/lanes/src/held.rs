//! A report for people on leases on bytes: which session has what, which waits for which, and which pages change
//! owners.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{ByteRange, InodeId, SessionId};

use super::fought::Fight;
use super::{DataLeases, Wish};
use crate::pages::{PAGE_BYTES, WHOLE};
use crate::watches::Place;

/// One place, as it is now.
#[derive(Debug)]
pub struct Held {
    /// Which.
    pub place: Place,
    /// The sessions that may have pages.
    pub holders: BTreeMap<SessionId, Has>,
    /// The claims that wait, in order.
    pub waits: Vec<Waits>,
    /// Pages by their first byte, those first that are taken most often.
    pub fought: Vec<(u64, Fight)>,
}

/// The pages that a session may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// It has a lease.
    pub shares: bool,
    /// The bytes that it owns.
    pub owned_bytes: u64,
    /// Recalls that it has yet to acknowledge.
    pub recalls: u64,
    /// When the oldest of them began.
    pub since: Option<u64>,
    /// It has not answered in time.
    pub fenced: bool,
}

/// A claim that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The session of the claim.
    pub session: SessionId,
    /// The kind of claim.
    pub wish: Wish,
    /// Which bytes.
    pub range: ByteRange,
    /// The sessions it waits for.
    pub blockers: BTreeSet<SessionId>,
}

impl Held {
    /// One of which no session has anything.
    #[must_use]
    pub fn by_nobody(place: Place) -> Held {
        Held { place, holders: BTreeMap::new(), waits: Vec::new(), fought: Vec::new() }
    }

    /// The order in which places are shown: those with most activity first.
    #[must_use]
    pub fn weight(&self) -> (usize, u64) {
        (self.waits.len(), self.fought.first().map_or(0, |(_, fight)| fight.changes))
    }
}

impl DataLeases {
    /// All places where sessions have something, or those of one file.
    #[must_use]
    pub fn held(&self, inode: Option<InodeId>) -> Vec<Held> {
        let leased = self.leases.keys();
        let all = leased.chain(self.at.keys()).chain(self.owners.places()).copied();
        let places: BTreeSet<Place> = all.filter(|(of, _)| inode.is_none_or(|inode| inode == *of)).collect();
        places.into_iter().map(|place| self.held_at(place)).collect()
    }

    fn held_at(&self, place: Place) -> Held {
        let mut holders: BTreeMap<SessionId, Has> = BTreeMap::new();
        for session in self.leases.get(&place).into_iter().flat_map(|leases| leases.keys()) {
            holders.entry(*session).or_default().shares = true;
        }
        for (session, bytes) in self.owners.owned_bytes(place) {
            holders.entry(session).or_default().owned_bytes = bytes;
        }
        for (_, pending) in self.pending_at(place, WHOLE) {
            let has = holders.entry(pending.holder).or_default();
            has.recalls += 1;
            has.since = Some(has.since.map_or(pending.began, |since| since.min(pending.began)));
            has.fenced |= pending.fenced;
        }
        let mut fought: Vec<(u64, Fight)> =
            self.fought.of(place).map(|(page, fight)| (page * PAGE_BYTES, fight.clone())).collect();
        fought.sort_by_key(|(_, fight)| std::cmp::Reverse(fight.changes));
        Held { place, holders, waits: self.waits_at(place), fought }
    }

    /// Claims that another session blocks.
    fn waits_at(&self, place: Place) -> Vec<Waits> {
        let waits = self.owners.claims_at(place).map(|(asked, ticket)| {
            let pages = asked.range;
            let mut blockers: BTreeSet<SessionId> = self.owners.those_before(&asked, pages, ticket).collect();
            let late = self
                .pending_at(place, pages)
                .filter(|(_, pending)| !pending.fenced && self.blocks(pending, &asked, pages));
            blockers.extend(late.map(|(_, pending)| pending.holder));
            Waits { session: asked.session, wish: asked.wish, range: pages, blockers }
        });
        waits.filter(|waits| !waits.blockers.is_empty()).collect()
    }
}

//! A report for people (`ramlace status`): which clients' kernels have which bytes, and which clients wait for
//! which. The data are those of [`DataLeases`](ramlace_lanes::DataLeases), with the clients' labels added.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{InodeId, SessionId, limits};
use ramlace_lanes::{Held, Place, Wish};
use ramlace_wire::encode_body;
use ramlace_wire::holders::{FoughtPage, HeldPlace, Holder, Holders, ListHolders, PageWait, Storer, WaitsTo};

use crate::server::Server;
use crate::server::data_desk::place_of;

/// Who stores into the memory of a lane without asking.
#[derive(Default)]
struct Storers {
    sessions: BTreeSet<SessionId>,
    passed_through: bool,
}

/// The first of these places, as many as fit in one answer.
fn that_fit(places: impl Iterator<Item = HeldPlace>) -> Vec<HeldPlace> {
    // The numbers besides them take some of the body.
    let mut room_bytes = limits::BODY_BYTES_MAX as usize - 64;
    let fits = |place: &HeldPlace| match room_bytes.checked_sub(encode_body(place).len()) {
        Some(left) => {
            room_bytes = left;
            true
        }
        None => false,
    };
    places.take(limits::HELD_PLACES_LISTED_MAX).take_while(fits).collect()
}

impl Server {
    /// The present holders, for one file or for all; the places with the most activity come first.
    pub fn holders(&self, request: ListHolders) -> Holders {
        let mut held = self.data.held(request.inode);
        let mut storers = self.storers(request.inode);
        let known: BTreeSet<Place> = held.iter().map(|held| held.place).collect();
        let of_no_kernel = storers.keys().filter(|place| !known.contains(place));
        held.extend(of_no_kernel.map(|place| Held::by_nobody(*place)));
        held.sort_by_key(|held| Reverse((held.weight(), storers.contains_key(&held.place))));
        let all = held.len();
        let places = that_fit(held.into_iter().map(|held| {
            let storers = storers.remove(&held.place).unwrap_or_default();
            self.held_place(held, storers)
        }));
        Holders { left_out: (all - places.len()) as u64, places }
    }

    /// Who stores into the lanes of one file, or of all, without asking.
    fn storers(&self, inode: Option<InodeId>) -> BTreeMap<Place, Storers> {
        let mut found: BTreeMap<Place, Storers> = BTreeMap::new();
        let durable = self.durable.borrow();
        let stored = durable.all_lanes().flat_map(|lanes| lanes.stored_into());
        for (lane, by) in stored.filter(|(lane, _)| inode.is_none_or(|inode| inode == lane.inode)) {
            let storers = found.entry(place_of(lane)).or_default();
            match by {
                Some(session) => _ = storers.sessions.insert(session),
                None => storers.passed_through = true,
            }
        }
        found
    }

    fn held_place(&self, held: Held, storers: Storers) -> HeldPlace {
        let (now, most) = (self.data.now(), limits::HOLDERS_LISTED_MAX);
        let holders = held.holders.into_iter().take(most).map(|(session, has)| Holder {
            session,
            label: self.label_of(session),
            shares: has.shares,
            owned_bytes: has.owned_bytes,
            recalls: has.recalls,
            millis: has.since.map_or(0, |since| now.saturating_sub(since)),
            fenced: has.fenced,
        });
        let waits = held.waits.into_iter().take(most).map(|waits| PageWait {
            session: waits.session,
            label: self.label_of(waits.session),
            to: waits_to(waits.wish),
            start: waits.range.start,
            end: waits.range.end,
            blockers: waits.blockers.into_iter().take(most).collect(),
        });
        let fought = held.fought.into_iter().take(most).map(|(offset, fight)| FoughtPage {
            offset,
            changes: fight.changes,
            millis: fight.last - fight.first,
            since_millis: now.saturating_sub(fight.last),
            sides: fight.sides,
        });
        let stores = |session| Storer { session, label: self.label_of(session) };
        let (inode, lane): (InodeId, _) = held.place;
        HeldPlace {
            inode,
            lane,
            holders: holders.collect(),
            waits: waits.collect(),
            fought: fought.collect(),
            storers: storers.sessions.into_iter().take(most).map(stores).collect(),
            passed_through: storers.passed_through,
        }
    }

    fn label_of(&self, session: SessionId) -> String {
        self.durable.borrow().sessions.label_of(session).unwrap_or_default().to_owned()
    }
}

fn waits_to(wish: Wish) -> WaitsTo {
    match wish {
        Wish::Read => WaitsTo::Look,
        Wish::Share => WaitsTo::Share,
        Wish::Strict => WaitsTo::Read,
        Wish::Own => WaitsTo::Own,
        Wish::Change | Wish::Through => WaitsTo::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_of_more_places_than_an_answer_has_room_for_fits_all_the_same() {
        let (most, session) = (u64::MAX, SessionId([0xff; 16]));
        let label = || "x".repeat(limits::LABEL_BYTES_MAX);
        let holder = || Holder {
            session,
            label: label(),
            shares: true,
            owned_bytes: most,
            recalls: most,
            millis: most,
            fenced: true,
        };
        let wait = || PageWait {
            session,
            label: label(),
            to: WaitsTo::Own,
            start: most,
            end: most,
            blockers: vec![session; limits::HOLDERS_LISTED_MAX],
        };
        let place = HeldPlace {
            inode: InodeId(most),
            lane: Some(u16::MAX),
            holders: (0..limits::HOLDERS_LISTED_MAX).map(|_| holder()).collect(),
            waits: (0..limits::HOLDERS_LISTED_MAX).map(|_| wait()).collect(),
            fought: Vec::new(),
            storers: vec![Storer { session, label: label() }; limits::HOLDERS_LISTED_MAX],
            passed_through: true,
        };
        let places = that_fit(std::iter::repeat_n(place, limits::HELD_PLACES_LISTED_MAX));
        assert!(!places.is_empty());
        assert!(encode_body(&Holders { places, left_out: most }).len() <= limits::BODY_BYTES_MAX as usize);
    }
}

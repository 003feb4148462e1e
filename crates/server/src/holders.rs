//! Whose kernels have which bytes, and who waits for whom: what [`DataLeases`](ramlace_lanes::DataLeases) knows, with names.

use std::cmp::Reverse;

use ramlace_base::{InodeId, SessionId, limits};
use ramlace_lanes::{Held, Wish};
use ramlace_wire::holders::{FoughtPage, HeldPlace, Holder, Holders, ListHolders, PageWait, WaitsTo};

use crate::server::Server;

impl Server {
    /// What is known at this moment, of one file or of all: those places first about which most happens.
    pub fn holders(&self, request: ListHolders) -> Holders {
        let mut held = self.data.held(request.inode);
        held.sort_by_key(|held| Reverse(held.weight()));
        let left_out = held.len().saturating_sub(limits::HELD_PLACES_TOLD_MAX) as u64;
        let told = held.into_iter().take(limits::HELD_PLACES_TOLD_MAX);
        Holders { places: told.map(|held| self.held_place(held)).collect(), left_out }
    }

    fn held_place(&self, held: Held) -> HeldPlace {
        let (now, most) = (self.data.now(), limits::HOLDERS_TOLD_MAX);
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
        let (inode, lane): (InodeId, _) = held.place;
        HeldPlace {
            inode,
            lane,
            holders: holders.collect(),
            waits: waits.collect(),
            fought: fought.collect(),
        }
    }

    fn label_of(&self, session: SessionId) -> String {
        self.durable.borrow().sessions.label_of(session).unwrap_or_default().to_owned()
    }
}

fn waits_to(wish: Wish) -> WaitsTo {
    match wish {
        Wish::Look => WaitsTo::Look,
        Wish::Share => WaitsTo::Share,
        Wish::Strict => WaitsTo::Read,
        Wish::Own => WaitsTo::Own,
        Wish::Change | Wish::Through => WaitsTo::Write,
    }
}

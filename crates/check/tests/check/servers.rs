//! Servers that report facts, a few on each page, and mend as real ones do.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Result, ServerId, Slot};
use ramlace_check::Servers;
use ramlace_wire::check::{
    CheckEntries, CheckInodes, CheckLanes, CheckSlots, EntriesPage, EntryPlace, InodesPage, LanesPage,
    SlotsPage, Trouble, TroubleKind,
};
use ramlace_wire::mend::{LanesMended, Mend, MendLanes, Mended};
use ramlace_wire::{ClusterMap, Kind, Request, decode_body, encode_body};

use crate::facts::{Facts, server_of};

/// Facts on a page.
const PAGE_FACTS: usize = 2;

/// Servers, and what they were asked.
pub struct Fakes {
    pub facts: RefCell<Facts>,
    /// What servers have wrongly recorded of coordinators.
    pub doubts: RefCell<Vec<(ServerId, Slot, Trouble)>>,
    /// Lanes that are mended by one request.
    pub mends_at_once: usize,
    /// A server that answers no request to mend anything.
    pub stubborn: Option<ServerId>,
    /// The map's epoch rises each time that it is asked for.
    pub restless: bool,
    /// What becomes of the facts while time passes.
    pub later: fn(&mut Facts),
    pub waits: Cell<u32>,
    pub maps: Cell<u32>,
    /// Which server was asked what.
    pub asked: RefCell<Vec<(ServerId, Kind)>>,
    pub lanes_asked: RefCell<Vec<Vec<LaneId>>>,
}

impl Fakes {
    pub fn new(facts: Facts) -> Fakes {
        Fakes {
            facts: RefCell::new(facts),
            doubts: RefCell::default(),
            mends_at_once: usize::MAX,
            stubborn: None,
            restless: false,
            later: |_| {},
            waits: Cell::new(0),
            maps: Cell::new(0),
            asked: RefCell::default(),
            lanes_asked: RefCell::default(),
        }
    }

    /// Requests of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.asked.borrow().iter().filter(|(_, asked)| *asked == kind).count()
    }

    fn answer(&self, server: ServerId, kind: Kind, body: &[u8]) -> Result<Vec<u8>> {
        let facts = self.facts.borrow();
        Ok(match kind {
            Kind::CheckSlots => {
                let after = decode_body::<CheckSlots>(kind, body)?.after;
                let slots = facts.slots.iter().filter(|facts| server_of(facts.slot.0) == server);
                let (slots, end) = page(slots, |facts| facts.slot, after.as_ref());
                encode_body(&SlotsPage { slots, end })
            }
            Kind::CheckInodes => {
                let after = decode_body::<CheckInodes>(kind, body)?.after;
                let inodes = facts.inodes.iter().filter(|facts| home_of(facts.inode) == server);
                let (inodes, end) = page(inodes, |facts| facts.inode, Some(&after));
                encode_body(&InodesPage { inodes, troubles: Vec::new(), end })
            }
            Kind::CheckEntries => {
                let after = decode_body::<CheckEntries>(kind, body)?.after;
                let entries = facts.entries.iter().filter(|facts| home_of(facts.directory) == server);
                let place = |facts: &ramlace_wire::check::EntryFacts| EntryPlace {
                    slot: facts.directory.slot(),
                    directory: facts.directory,
                    cookie: facts.cookie,
                };
                let (entries, end) = page(entries, place, after.as_ref());
                let next = entries.last().filter(|_| !end).map(place);
                encode_body(&EntriesPage { entries, next })
            }
            Kind::CheckLanes => {
                let after = decode_body::<CheckLanes>(kind, body)?.after;
                let lanes = facts.lanes.iter().filter(|(holder, _)| *holder == server);
                let (lanes, end) = page(lanes.map(|(_, facts)| facts), |facts| facts.lane, after.as_ref());
                encode_body(&LanesPage { lanes, end })
            }
            Kind::CheckStore => {
                encode_body(facts.stores.iter().find(|facts| facts.server == server).unwrap())
            }
            Kind::Mend => encode_body(&self.mend(server, decode_body(kind, body)?)?),
            Kind::MendLanes => {
                drop(facts);
                encode_body(&self.mend_lanes(server, decode_body(kind, body)?)?)
            }
            other => panic!("{other:?} is no request of a check"),
        })
    }

    /// One coordinator for each request.
    fn mend(&self, server: ServerId, request: Mend) -> Result<Mended> {
        self.refuse(server, request.repair)?;
        let mut doubts = self.doubts.borrow_mut();
        let behind = |(holder, slot, _): &(ServerId, Slot, Trouble)| {
            (*holder == server && Some(*slot) > request.after).then_some(*slot)
        };
        let Some(coordinator) = doubts.iter().filter_map(behind).min() else {
            return Ok(Mended { found: Vec::new(), next: None });
        };
        let is_meant =
            |(holder, slot, _): &(ServerId, Slot, Trouble)| (*holder, *slot) == (server, coordinator);
        let found =
            doubts.iter().filter(|doubt| is_meant(doubt)).map(|(.., trouble)| trouble.clone()).collect();
        if request.repair {
            doubts.retain(|doubt| !is_meant(doubt));
        }
        Ok(Mended { found, next: Some(coordinator) })
    }

    fn mend_lanes(&self, server: ServerId, request: MendLanes) -> Result<LanesMended> {
        self.refuse(server, true)?;
        assert!(request.is_possible());
        let mended = &request.lanes[..request.lanes.len().min(self.mends_at_once)];
        self.facts.borrow_mut().lanes.retain(|(_, facts)| !mended.contains(&facts.lane));
        let trouble = |lane: &LaneId| Trouble {
            kind: TroubleKind::LaneAstray,
            inode: Some(lane.inode),
            text: lane.to_string(),
        };
        let told = LanesMended { mended: mended.iter().map(trouble).collect(), fit: mended.len() as u32 };
        self.lanes_asked.borrow_mut().push(request.lanes);
        Ok(told)
    }

    fn refuse(&self, server: ServerId, repair: bool) -> Result<()> {
        if repair && self.stubborn == Some(server) {
            return Err(Error::new(ErrorKind::HostDown, format!("{server} says nothing")));
        }
        Ok(())
    }
}

impl Servers for Fakes {
    fn map(&self) -> Result<Arc<ClusterMap>> {
        self.maps.set(self.maps.get() + 1);
        let mut map = self.facts.borrow().map.clone();
        if self.restless {
            map.epoch = Epoch(self.maps.get());
        }
        Ok(Arc::new(map))
    }

    fn ask<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        self.asked.borrow_mut().push((server, R::KIND));
        let reply = decode_body(R::KIND, &self.answer(server, R::KIND, &encode_body(request))?)?;
        assert!(request.fits(&reply), "{:?}", R::KIND);
        Ok(reply)
    }

    fn wait(&self, _time: Duration) {
        self.waits.set(self.waits.get() + 1);
        (self.later)(&mut self.facts.borrow_mut());
    }
}

fn home_of(inode: InodeId) -> ServerId {
    server_of(inode.slot().0)
}

/// The first few facts after a place, in order, and whether there are no more.
fn page<'a, F: Clone + 'a, P: Ord>(
    all: impl Iterator<Item = &'a F>,
    place: impl Fn(&F) -> P,
    after: Option<&P>,
) -> (Vec<F>, bool) {
    let behind = |facts: &&F| after.is_none_or(|after| place(facts) > *after);
    let mut facts: Vec<F> = all.filter(behind).cloned().collect();
    facts.sort_by_key(|facts| place(facts));
    let end = facts.len() <= PAGE_FACTS;
    facts.truncate(PAGE_FACTS);
    (facts, end)
}

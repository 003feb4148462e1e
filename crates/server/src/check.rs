//! The messages of `ramlace check`: they list what this server holds, page by page, and change nothing.

use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, InodeId, LaneId, Result, Slot, limits};
use ramlace_lanes::Lane;
use ramlace_wire::check::{
    CheckEntries, CheckInodes, CheckLanes, CheckSlots, EntriesPage, EntryPlace, InodesPage, LaneFacts,
    LanesPage, SlotsPage, StoreFacts,
};
use ramlace_wire::{Credentials, Kind, decode_body, encode_body};

use crate::server::{Outcome, Server};

impl Server {
    /// Answers one of `check`'s requests; `None` for other kinds.
    pub fn serve_check(
        self: &Rc<Self>,
        who: &Credentials,
        kind: Kind,
        body: &[u8],
    ) -> Option<Outcome<Vec<u8>>> {
        let page = |server: &Rc<Server>| -> Outcome<Vec<u8>> {
            server.check_is_owner(who, kind)?;
            Ok(match kind {
                Kind::CheckStore => encode_body(&server.store_facts()?),
                Kind::CheckLanes => {
                    encode_body(&server.lanes_page(decode_body::<CheckLanes>(kind, body)?.after)?)
                }
                Kind::CheckSlots => encode_body(&server.slots_page(decode_body(kind, body)?)),
                Kind::CheckInodes => encode_body(&server.inodes_page(decode_body(kind, body)?)),
                _ => encode_body(&server.entries_page(decode_body(kind, body)?)),
            })
        };
        let is_mine = matches!(
            kind,
            Kind::CheckStore | Kind::CheckLanes | Kind::CheckSlots | Kind::CheckInodes | Kind::CheckEntries
        );
        is_mine.then(|| page(self))
    }

    /// Only the owner may see names and sizes of everything.
    pub fn check_is_owner(&self, who: &Credentials, kind: Kind) -> Result<()> {
        if who.uid == self.owner.uid {
            return Ok(());
        }
        let text =
            format!("{kind:?} is for the pool's owner, user {}, not for user {}", self.owner.uid, who.uid);
        Err(Error::new(ErrorKind::Denied, text))
    }

    fn store_facts(&self) -> Result<StoreFacts> {
        let audit = self.store.borrow().audit()?;
        Ok(StoreFacts {
            server: self.me,
            epoch: self.membership.epoch(),
            lanes_bytes: audit.lanes_bytes,
            summed_bytes: audit.summed_bytes,
            counted_bytes: audit.counted_bytes,
            kernel_bytes: audit.kernel_bytes,
        })
    }

    fn lanes_page(&self, after: Option<LaneId>) -> Result<LanesPage> {
        let mut store = self.store.borrow_mut();
        let durable = self.durable.borrow();
        let beyond = |lane: &LaneId| after.is_none_or(|after| *lane > after);
        let known = || durable.all_lanes().flat_map(|table| table.iter());
        let unstored = known().map(|(lane, _)| lane).filter(|lane| !store.has_lane(*lane));
        let ids: Vec<LaneId> =
            smallest(store.lane_ids().chain(unstored).filter(beyond), limits::CHECK_LANES_MAX + 1);
        let end = ids.len() <= limits::CHECK_LANES_MAX;
        let records: HashMap<LaneId, &Lane> =
            known().filter(|(lane, _)| ids.binary_search(lane).is_ok()).collect();
        let mut lanes = Vec::with_capacity(ids.len());
        for lane in ids.iter().copied().take(limits::CHECK_LANES_MAX) {
            let record = records.get(&lane);
            let is_stored = store.has_lane(lane);
            lanes.push(LaneFacts {
                lane,
                generation: record.map(|record| record.generation),
                length: if is_stored { Some(store.lane_length(lane)?) } else { None },
                allocated_bytes: if is_stored { store.lane_allocated_bytes(lane)? } else { 0 },
                lost_below: record.and_then(|record| record.loss.as_ref()).map_or(0, |loss| loss.below),
                writing: self.lane_desk.is_written(lane),
            });
        }
        Ok(LanesPage { lanes, end })
    }

    fn slots_page(&self, request: CheckSlots) -> SlotsPage {
        let durable = self.durable.borrow();
        let first = request.after.map_or(0, |after| u32::from(after.0) + 1);
        let Ok(first) = u16::try_from(first) else { return SlotsPage { slots: Vec::new(), end: true } };
        let (mut slots, mut count) = (Vec::new(), 0);
        for state in durable.names_from(Slot(first)) {
            if count >= limits::CHECK_SLOT_FACTS_MAX {
                return SlotsPage { slots, end: false };
            }
            let facts = state.slot_facts(|session| durable.sessions.contains(session));
            count += 1 + facts.asked.len() + facts.held.len() + facts.partitions.len() + facts.troubles.len();
            slots.push(facts);
        }
        SlotsPage { slots, end: true }
    }

    fn inodes_page(&self, request: CheckInodes) -> InodesPage {
        let durable = self.durable.borrow();
        let (mut inodes, mut troubles) = (Vec::new(), Vec::new());
        // The smallest inode that is reported must be the smallest there is.
        let mut after = request.after;
        for state in durable.names_from(request.after.slot()) {
            let room = limits::CHECK_INODES_MAX - inodes.len();
            if room == 0 {
                return bounded(inodes, troubles, false);
            }
            after = after.max(InodeId::new(state.slot(), 0));
            inodes.extend(state.inode_facts(after, room, &mut troubles));
        }
        let end = inodes.len() < limits::CHECK_INODES_MAX;
        bounded(inodes, troubles, end)
    }

    fn entries_page(&self, request: CheckEntries) -> EntriesPage {
        let durable = self.durable.borrow();
        let mut entries = Vec::new();
        let first = request.after.map_or(Slot(0), |after| after.slot);
        for state in durable.names_from(first) {
            let slot = state.slot();
            let after = request.after.filter(|after| after.slot == slot);
            let after = after.map(|after| (after.directory, after.cookie));
            if let Some((directory, cookie)) =
                state.entry_facts(after, limits::CHECK_ENTRIES_MAX, &mut entries)
            {
                return EntriesPage { entries, next: Some(EntryPlace { slot, directory, cookie }) };
            }
        }
        EntriesPage { entries, next: None }
    }
}

fn bounded(
    inodes: Vec<ramlace_wire::check::InodeFacts>,
    mut troubles: Vec<ramlace_wire::check::Trouble>,
    end: bool,
) -> InodesPage {
    troubles.truncate(limits::CHECK_TROUBLES_MAX);
    InodesPage { inodes, troubles, end }
}

/// The smallest `most` of some things, in order; uses memory for these alone.
fn smallest<T: Ord>(all: impl Iterator<Item = T>, most: usize) -> Vec<T> {
    let mut kept = BinaryHeap::with_capacity(most + 1);
    for one in all {
        if kept.len() < most {
            kept.push(one);
        } else if kept.peek().is_some_and(|largest| one < *largest) {
            kept.pop();
            kept.push(one);
        }
    }
    kept.into_sorted_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_come_in_order() {
        assert_eq!(smallest([5, 3, 9, 1, 7, 2].into_iter(), 3), [1, 2, 3]);
        assert_eq!(smallest([5, 3].into_iter(), 3), [3, 5]);
    }
}

//! `check --repair`: this server compares what it holds on behalf of other slots with what these know, and
//! releases the rest.
//!
//! It trusts only the answers of the slots and homes themselves, asked at their servers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ramlace_base::{ErrorKind, Generation, LaneId, Result, SessionId, Slot, limits};
use ramlace_lanes::{LaneChange, LaneTable};
use ramlace_layout::lane_length;
use ramlace_namespace::{Command, Disowned, Doubt, Op, Origin};
use ramlace_wire::check::{Trouble, TroubleKind};
use ramlace_wire::mend::{LanesMended, Mend, MendLanes, Mended, OperationsKnown, QueryOperations};
use ramlace_wire::peer::{InodeAnswer, QueryInode};

use crate::clock;
use crate::server::{Outcome, Server};

impl Server {
    /// Asks some coordinators about their operations, and repairs what is found if requested.
    pub async fn mend(self: &Rc<Self>, request: Mend) -> Outcome<Mended> {
        self.notice_lost_slots()?;
        // One request for each coordinator slot, however many slots here name it. What they name is read
        // before the request.
        let doubts = self.doubts_behind(request.after);
        let asked = doubts.keys().next_back().copied();
        let next = asked.filter(|_| doubts.len() == limits::MEND_COORDINATORS_MAX);
        let mut found = Vec::new();
        for (coordinator, doubts) in doubts {
            let known = self.query_operations(coordinator).await?;
            for (slot, doubt) in doubts {
                let Some(disowned) = doubt.held_against(&known) else { continue };
                found.extend(troubles(slot, &disowned));
                if request.repair {
                    self.disown(slot, disowned)?;
                }
            }
        }
        found.truncate(limits::CHECK_TROUBLES_MAX);
        Ok(Mended { found, next })
    }

    /// What the slots here assume about operations of the next coordinators.
    fn doubts_behind(&self, after: Option<Slot>) -> BTreeMap<Slot, Vec<(Slot, Doubt)>> {
        let durable = self.durable.borrow();
        let mut next: BTreeSet<Slot> = BTreeSet::new();
        for coordinator in durable.all_names().flat_map(|state| state.coordinators_behind(after)) {
            next.insert(coordinator);
            if next.len() > limits::MEND_COORDINATORS_MAX {
                next.pop_last();
            }
        }
        let mut doubts: BTreeMap<Slot, Vec<(Slot, Doubt)>> = BTreeMap::new();
        for coordinator in next {
            let of = durable.all_names().filter_map(|state| Some((state.slot(), state.doubt(coordinator)?)));
            doubts.insert(coordinator, of.collect());
        }
        doubts
    }

    fn disown(self: &Rc<Self>, slot: Slot, disowned: Disowned) -> Result<()> {
        let op = Op::Disown(disowned);
        self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op }).map(drop)
    }

    /// Asks a slot about its operations, on this server or another.
    async fn query_operations(self: &Rc<Self>, coordinator: Slot) -> Outcome<OperationsKnown> {
        if self.primary(coordinator)? != self.me {
            return self.call_peer(coordinator, &QueryOperations { coordinator }).await;
        }
        Ok(self.query(&self.owner, coordinator, &QueryOperations { coordinator })?)
    }

    /// Makes lanes consistent with their files, up to the first that cannot be: its error is returned when
    /// the request begins with it.
    pub async fn mend_lanes(self: &Rc<Self>, request: MendLanes) -> Outcome<LanesMended> {
        let (mut mended, mut fit) = (Vec::new(), 0);
        for lane in request.lanes {
            match self.mend_lane(lane).await {
                Ok(trouble) => mended.extend(trouble),
                Err(refusal) if fit == 0 => return Err(refusal),
                Err(_) => break,
            }
            fit += 1;
        }
        Ok(LanesMended { mended, fit })
    }

    /// Drops a lane whose file is gone; gives a lane with a truncation that never happened, or without one
    /// that did, the generation of its file. The file is asked while no other request cuts the lane.
    async fn mend_lane(self: &Rc<Self>, lane: LaneId) -> Outcome<Option<Trouble>> {
        self.changing_lane(lane, async {
            let Some((slot, known)) = self.find_lane(lane) else { return Ok(None) };
            let since = known.unwrap_or_default();
            let finding = match self.query_home(QueryInode { inode: lane.inode, since }).await {
                Ok(answer) => match self.fit_lane(lane, slot, known, &answer).await? {
                    Some(finding) => finding,
                    None => return Ok(None),
                },
                Err(refusal) if matches!(refusal.error.kind(), ErrorKind::Stale | ErrorKind::Lost) => {
                    self.drop_leaked(lane, slot, known).await?;
                    "which is gone"
                }
                Err(refusal) => return Err(refusal),
            };
            let text = format!("lane {} of file {}, {finding}", lane.lane, lane.inode);
            Ok(Some(Trouble { kind: TroubleKind::LaneAstray, inode: Some(lane.inode), text }))
        })
        .await
    }

    /// Makes a lane consistent with its file; returns what was wrong. Of a lane that is ahead of its file it is not
    /// known what was cut off: what lies behind the file's end is removed.
    async fn fit_lane(
        self: &Rc<Self>,
        lane: LaneId,
        slot: Slot,
        known: Option<Generation>,
        answer: &InodeAnswer,
    ) -> Outcome<Option<&'static str>> {
        let (change, finding) = match known.map(|known| known.cmp(&answer.generation)) {
            Some(Ordering::Greater) => {
                let length = lane_length(&answer.layout, lane.lane, answer.size);
                let (generation, length) = (answer.generation, Some(length));
                let finding = "which was cut by a truncation that the file knows nothing of: bytes of it may be gone, \
                            or what was cut off since may be back";
                (LaneChange::Cut { lane, generation, length }, finding)
            }
            Some(Ordering::Less) => {
                (LaneTable::cut_as_answered(lane, answer), "which had missed a truncation of the file")
            }
            Some(Ordering::Equal) | None => return Ok(None),
        };
        self.cut_now(slot, lane, change, SessionId::NONE).await?;
        Ok(Some(finding))
    }

    /// Drops a lane whose file is gone. If only its memory is there, without a record, that is freed: no slot would
    /// ever be asked to do so.
    async fn drop_leaked(
        self: &Rc<Self>,
        lane: LaneId,
        slot: Slot,
        known: Option<Generation>,
    ) -> Outcome<()> {
        if known.is_some() {
            return self.drop_now(lane, slot).await;
        }
        self.lane_desk.stop_writes(lane).await;
        self.store.borrow_mut().remove_lane(lane)?;
        self.forget_leases(lane);
        Ok(())
    }

    /// The slot of a lane that this server has, and its generation. Memory without a record counts to the
    /// slot of its inode.
    fn find_lane(&self, lane: LaneId) -> Option<(Slot, Option<Generation>)> {
        let durable = self.durable.borrow();
        let known =
            durable.slots_of_lanes().find_map(|(slot, lanes)| Some((slot, lanes.get(lane)?.generation)));
        match known {
            Some((slot, generation)) => Some((slot, Some(generation))),
            None => self.store.borrow().has_lane(lane).then(|| (lane.inode.slot(), None)),
        }
    }
}

/// The findings in words.
fn troubles(slot: Slot, disowned: &Disowned) -> Vec<Trouble> {
    let coordinator = disowned.coordinator;
    let trouble = |kind, text| Trouble { kind, inode: None, text };
    let held = disowned.held().map(|number| {
        let text = format!(
            "{slot} holds something for operation {number} of {coordinator}, which knows nothing of it"
        );
        trouble(TroubleKind::HeldByNobody, text)
    });
    let ahead = disowned.is_ahead().then(|| {
        let text = format!("{slot} takes operations of {coordinator} for finished that are yet to begin");
        trouble(TroubleKind::NumbersAhead, text)
    });
    held.chain(ahead).collect()
}

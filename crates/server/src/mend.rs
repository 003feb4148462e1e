//! `check --repair`: this server holds what came in others' names against what those know, and lets go of the rest.
//!
//! It goes by what the slots and homes say themselves, asked at their servers, and by nobody else's word.

use std::collections::BTreeMap;
use std::rc::Rc;

use ramlace_base::{ErrorKind, Generation, LaneId, Result, Slot, limits};
use ramlace_lanes::LaneChange;
use ramlace_namespace::{Answer, Command, Disowned, Doubt, Op, Origin, Query};
use ramlace_wire::check::{Trouble, TroubleKind};
use ramlace_wire::mend::{Mend, Mended, OperationsKnown, QueryOperations};
use ramlace_wire::peer::{DropLane, QueryInode};

use crate::clock;
use crate::server::{Outcome, Server};

impl Server {
    /// Looks, and mends what is found if that is asked.
    pub async fn mend(self: &Rc<Self>, request: Mend) -> Outcome<Mended> {
        let mut found = self.mend_operations(request.repair).await?;
        for lane in request.lanes {
            found.extend(self.mend_lane(lane, request.repair).await?);
        }
        found.truncate(limits::CHECK_TROUBLES_MAX);
        Ok(Mended { found })
    }

    async fn mend_operations(self: &Rc<Self>, repair: bool) -> Outcome<Vec<Trouble>> {
        // One question for each slot that is meant, whoever here believes something of it; what is believed is noted first.
        let mut doubts: BTreeMap<Slot, Vec<(Slot, Doubt)>> = BTreeMap::new();
        for state in self.durable.borrow().all_names() {
            for doubt in state.doubts() {
                doubts.entry(doubt.coordinator()).or_default().push((state.slot(), doubt));
            }
        }
        let mut found = Vec::new();
        for (coordinator, doubts) in doubts {
            let known = self.query_operations(coordinator).await?;
            for (slot, doubt) in doubts {
                let Some(disowned) = doubt.held_against(&known) else { continue };
                found.extend(troubles(slot, &disowned));
                if repair {
                    self.disown(slot, disowned)?;
                }
            }
        }
        Ok(found)
    }

    fn disown(self: &Rc<Self>, slot: Slot, disowned: Disowned) -> Result<()> {
        let op = Op::Disown(disowned);
        self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op }).map(drop)
    }

    /// Asks a slot about its operations, here or elsewhere.
    async fn query_operations(self: &Rc<Self>, coordinator: Slot) -> Outcome<OperationsKnown> {
        if self.primary(coordinator)? != self.me {
            return self.call_peer(coordinator, &QueryOperations { coordinator }).await;
        }
        match self.query(&self.owner, coordinator, &Query::Operations)? {
            Answer::Operations(known) => Ok(known),
            _ => unreachable!("a slot answers what it was asked"),
        }
    }

    /// A lane of a file that is gone goes; one that has heard of a truncation that never was is as old as its file.
    async fn mend_lane(self: &Rc<Self>, lane: LaneId, repair: bool) -> Outcome<Option<Trouble>> {
        let Some((slot, known)) = self.find_lane(lane) else { return Ok(None) };
        let text = match self.query_home(QueryInode { inode: lane.inode, since: Generation(0) }).await {
            Err(refusal) if refusal.error.kind() == ErrorKind::Stale => {
                if repair {
                    self.drop_lane(DropLane { lane, slot }).await?;
                }
                format!("lane {} of file {}, which is gone", lane.lane, lane.inode)
            }
            Err(refusal) => return Err(refusal),
            Ok(answer) if known.is_some_and(|known| known > answer.generation) => {
                if repair {
                    self.take_back_cut(slot, lane, answer.generation).await?;
                }
                let text = "was cut by a truncation that the file knows nothing of; bytes of it may be gone";
                format!("lane {} of file {} {text}", lane.lane, lane.inode)
            }
            Ok(_) => return Ok(None),
        };
        Ok(Some(Trouble { kind: TroubleKind::LaneAstray, inode: Some(lane.inode), text }))
    }

    /// The lane has its file's generation again. Of an older one it hears by itself.
    async fn take_back_cut(self: &Rc<Self>, slot: Slot, lane: LaneId, generation: Generation) -> Outcome<()> {
        self.changing_lane(lane, async {
            let known = self.lanes(slot, |lanes, _| lanes.get(lane).map(|lane| lane.generation));
            if known.is_some_and(|known| known > generation) {
                self.lane_desk.stop_writes(lane).await;
                self.commit_lane(slot, LaneChange::Cut { lane, generation, length: None })?;
            }
            Ok(())
        })
        .await
    }

    /// The slot of a lane that this server has, and what it knows of it: memory without a record counts to the slot of its
    /// inode.
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

/// In words.
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
        let text = format!("{slot} takes operations of {coordinator} for settled that are yet to begin");
        trouble(TroubleKind::NumbersAhead, text)
    });
    held.chain(ahead).collect()
}

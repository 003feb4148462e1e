//! What slots owe each other: sent until it was answered, and what a server does with it.

use ramlace_base::Result as Outcome;
use ramlace_lanes::{CutPlan, LaneChange, LaneTable};
use ramlace_namespace::{Command, Delivery, DeliveryAnswer, DeliveryId, Op, Origin, Room};
use ramlace_slot::SlotChange;
use ramlace_wire::peer::QueryInode;

use super::{Bug, Message, World};

impl World {
    /// What slots owe still is sent, again and again.
    pub(super) fn deliver(&mut self, server: usize) {
        if self.bug == Bug::DeliversOnce {
            return;
        }
        let (values, known) = (self.servers[server].slots.iter().flatten(), &self.servers[server].owed);
        let forgets = self.bug == Bug::ForgetsDeliveries;
        let owed: Vec<Message> = values
            .filter_map(|(slot, value)| Some((*slot, value.names()?)))
            .flat_map(|(from, names)| {
                let owed = move |(delivery, message): (DeliveryId, &Delivery)| Message::Owed {
                    from,
                    delivery,
                    message: Box::new(message.clone()),
                };
                let known = move |(delivery, _): &(DeliveryId, &Delivery)| {
                    !forgets || known.contains(&(from, *delivery))
                };
                names.open_deliveries().filter(known).map(owed)
            })
            .collect();
        owed.into_iter().for_each(|message| self.send(message));
    }

    /// What a server does with what a slot owes another.
    pub(super) fn receive(&mut self, message: Delivery) -> Outcome<DeliveryAnswer> {
        let slot = message.slot();
        let op = match message {
            Delivery::Prepare(message) => Op::Prepare(message),
            Delivery::Decide(message) => Op::Decide(message),
            Delivery::Ascend(message) => {
                return self.query(message.inode.slot(), &message).map(DeliveryAnswer::Ascended);
            }
            Delivery::CutLane(message) => {
                let plan =
                    self.lanes(slot, |lanes| lanes.cut(message.lane, message.generation, message.length));
                match plan {
                    // No server of these pools is forgotten, so no slot has lost bytes.
                    CutPlan::Nothing | CutPlan::BeginIfLost => {}
                    CutPlan::Cut(change) => self.change_lane(slot, change),
                    CutPlan::AskHome(since) => {
                        let answer = self.ask_home(QueryInode { inode: message.lane.inode, since })?;
                        self.change_lane(slot, LaneTable::cut_as_answered(message.lane, &answer));
                    }
                }
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::DropLane(message) => {
                let known = self.lanes(slot, |lanes| lanes.get(message.lane).is_some());
                if known && self.bug != Bug::KeepsLanes {
                    self.change_lane(slot, LaneChange::Dropped { lane: message.lane });
                }
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::TrimLane(message) => {
                let change =
                    self.lanes(slot, |lanes| lanes.end_passthroughs(message.lane, message.passthroughs_over));
                change.into_iter().for_each(|change| self.change_lane(slot, change));
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::FillLane(message) => {
                let wanted = self.lanes(slot, |lanes| lanes.wants_fill(message.lane, message.generation));
                if wanted || self.bug == Bug::FillsTwice {
                    let since = Default::default();
                    let answer = self.ask_home(QueryInode { inode: message.lane.inode, since })?;
                    let fill = LaneTable::fill(message.lane, message.generation, &answer);
                    let again =
                        LaneChange::Begun { lane: message.lane, generation: message.generation, loss: None };
                    if let Some(change) = fill.or((self.bug == Bug::FillsTwice).then_some(again)) {
                        let home = self.home(slot);
                        self.servers[home].store.insert(message.lane, message.bytes.0);
                        self.change_lane(slot, change);
                    }
                }
                return Ok(DeliveryAnswer::Done);
            }
        };
        let command = Box::new(Command { now: self.stamp(), origin: Origin::Peer, op });
        let answer = self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes });
        answer.expect("a peer is answered at once")
    }
}

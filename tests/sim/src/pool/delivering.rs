//! Deliveries between slots: sent until they are answered, and what a server does with it.

use ramlace_base::{Result as Outcome, Slot};
use ramlace_lanes::{CutPlan, LaneChange, LaneTable};
use ramlace_namespace::{Command, Delivery, DeliveryAnswer, DeliveryId, Op, Origin, Room};
use ramlace_slot::SlotChange;
use ramlace_wire::peer::QueryInode;

use super::network::Message;
use super::{Bug, World};

impl World {
    /// What is still pending is sent, again and again.
    pub(super) fn deliver(&mut self, server: usize) {
        if self.bug == Bug::DeliversOnce {
            return;
        }
        let (values, known) = (self.servers[server].slots.iter().flatten(), &self.servers[server].pending);
        let forgets = self.bug == Bug::ForgetsDeliveries;
        let pending: Vec<Message> = values
            .filter_map(|(slot, value)| Some((*slot, value.names()?)))
            .flat_map(|(from, names)| {
                let pending = move |(delivery, message): (DeliveryId, &Delivery)| Message::Delivery {
                    from,
                    delivery,
                    message: Box::new(message.clone()),
                };
                let known = move |(delivery, _): &(DeliveryId, &Delivery)| {
                    !forgets || known.contains(&(from, *delivery))
                };
                names.open_deliveries().filter(known).map(pending)
            })
            .collect();
        for message in pending {
            self.send(message);
        }
    }

    /// A delivery arrives at its slot. The answer to a part of an operation waits at the gate.
    pub(super) fn arrives_delivery(
        &mut self,
        from: Slot,
        delivery: DeliveryId,
        message: Delivery,
    ) -> Result<(), String> {
        let slot = message.slot();
        if !self.servers[self.home(slot)].is_up() {
            return Ok(());
        }
        let shows = matches!(message, Delivery::Prepare(_) | Delivery::Decide(_));
        self.changed.clear();
        let Ok(answer) = self.receive(message)? else { return Ok(()) };
        let done = Message::Done { from, delivery, answer: Box::new(answer) };
        if shows {
            let shown = self.as_they_are(self.changed.iter());
            return self.answer(slot, done, shown);
        }
        self.send(done);
        Ok(())
    }

    /// What a server does with a delivery.
    fn receive(&mut self, message: Delivery) -> Result<Outcome<DeliveryAnswer>, String> {
        let slot = message.slot();
        let op = match message {
            Delivery::Prepare(message) => Op::Prepare(message),
            Delivery::Decide(message) => Op::Decide(message),
            Delivery::Ascend(message) => {
                return Ok(self.query(message.inode.slot(), &message).map(DeliveryAnswer::Ascended));
            }
            Delivery::CutLane(message) => {
                let plan =
                    self.lanes(slot, |lanes| lanes.cut(message.lane, message.generation, message.length));
                match plan {
                    CutPlan::Nothing => {}
                    CutPlan::BeginIfLost => self.begins_if_lost(message.lane, slot)?,
                    CutPlan::Cut(change) => self.change_lane(slot, change),
                    CutPlan::AskHome(since) => {
                        let answer = match self.ask_home(QueryInode { inode: message.lane.inode, since }) {
                            Ok(answer) => answer,
                            Err(error) => return Ok(Err(error)),
                        };
                        self.change_lane(slot, LaneTable::cut_as_answered(message.lane, &answer));
                    }
                }
                return Ok(Ok(DeliveryAnswer::Done));
            }
            Delivery::DropLane(message) => {
                let known = self.lanes(slot, |lanes| lanes.get(message.lane).is_some());
                if known && self.bug != Bug::KeepsLanes {
                    self.change_lane(slot, LaneChange::Dropped { lane: message.lane });
                }
                return Ok(Ok(DeliveryAnswer::Done));
            }
            Delivery::TrimLane(message) => {
                let change =
                    self.lanes(slot, |lanes| lanes.end_passthroughs(message.lane, message.passthroughs_over));
                change.into_iter().for_each(|change| self.change_lane(slot, change));
                return Ok(Ok(DeliveryAnswer::Done));
            }
            Delivery::FillLane(message) => {
                let wanted =
                    self.lanes(slot, |lanes| lanes.wants_promotion(message.lane, message.generation));
                if wanted || self.bug == Bug::PromotesTwice {
                    let since = Default::default();
                    let answer = match self.ask_home(QueryInode { inode: message.lane.inode, since }) {
                        Ok(answer) => answer,
                        Err(error) => return Ok(Err(error)),
                    };
                    let promoted = LaneTable::promote(message.lane, message.generation, &answer);
                    let again =
                        LaneChange::Begun { lane: message.lane, generation: message.generation, loss: None };
                    if let Some(change) = promoted.or((self.bug == Bug::PromotesTwice).then_some(again)) {
                        let home = self.home(slot);
                        self.servers[home].store.insert(message.lane, message.bytes.0);
                        self.change_lane(slot, change);
                    }
                }
                return Ok(Ok(DeliveryAnswer::Done));
            }
        };
        let command = Box::new(Command { now: self.stamp(), origin: Origin::Peer, op });
        let answer = self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes })?;
        Ok(answer.expect("a peer is answered at once"))
    }
}

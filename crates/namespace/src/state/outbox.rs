//! Pending messages of a slot to others (its outbox): the only way in which slots communicate.

use std::collections::BTreeMap;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, LaneId, Result, limits};
use serde::{Deserialize, Serialize};

use crate::command::{Delivery, DeliveryId, Effect};

/// Open deliveries, oldest first. A delivery leaves when it is answered, or no longer pending.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outbox {
    /// Deliveries ever sent.
    sent: u64,
    open: BTreeMap<DeliveryId, Delivery>,
}

impl Outbox {
    pub(crate) fn send(&mut self, message: Delivery, effects: &mut Vec<Effect>) -> DeliveryId {
        self.sent += 1;
        let delivery = DeliveryId(self.sent);
        self.open.insert(delivery, message.clone());
        effects.push(Effect::Send { delivery, message });
        delivery
    }

    pub(crate) fn get(&self, delivery: DeliveryId) -> Option<&Delivery> {
        self.open.get(&delivery)
    }

    pub(crate) fn remove(&mut self, delivery: DeliveryId) {
        self.open.remove(&delivery);
    }

    /// Removes what tells a lane that passthroughs of it are over.
    pub(crate) fn remove_passthroughs_over(&mut self, lane: LaneId) {
        self.open.retain(|_, message| {
            !matches!(message, Delivery::TrimLane(trim) if trim.lane == lane && trim.passthroughs_over > 0)
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (DeliveryId, &Delivery)> {
        self.open.iter().map(|(delivery, message)| (*delivery, message))
    }

    /// Refuses an operation that would add `more` messages when too many are open already.
    pub(crate) fn check_room(&self, more: u16) -> Result<()> {
        if self.open.len() + usize::from(more) > limits::DELIVERIES_PER_SLOT_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} not delivered to servers that are down; see `ramlace status`",
                    count(self.open.len() as u64, "message")
                ),
            ));
        }
        Ok(())
    }
}

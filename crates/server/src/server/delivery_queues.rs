//! Queues of the slots' deliveries, by server: see [`crate::deliveries`].

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use ramlace_base::{ServerId, Slot};
use ramlace_namespace::{Delivery, DeliveryId};
use ramlace_transport::trace::RequestName;

/// A pending delivery, and the slot that sends it.
#[derive(Clone)]
pub struct Pending {
    pub from: Slot,
    pub id: DeliveryId,
    pub delivery: Delivery,
    /// The request that made it necessary, for the log; not known after a restart.
    pub cause: Option<RequestName>,
}

/// The pending deliveries to one server.
#[derive(Default)]
pub struct Queue {
    pub pending: VecDeque<Pending>,
    pub unreachable: bool,
}

/// The pending deliveries, by server.
#[derive(Default)]
pub struct Deliveries {
    pub queues: RefCell<HashMap<ServerId, Queue>>,
}

#[cfg(test)]
impl Deliveries {
    /// The number that wait for a server.
    pub fn queued(&self, target: ServerId) -> usize {
        self.queues.borrow().get(&target).map_or(0, |queue| queue.pending.len())
    }
}

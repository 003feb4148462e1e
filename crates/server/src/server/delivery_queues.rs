//! What slots owe each other, by server: see [`crate::deliveries`].

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use ramlace_base::{ServerId, Slot};
use ramlace_namespace::{Delivery, DeliveryId};

/// A delivery, and the slot that owes it.
#[derive(Clone)]
pub struct Owed {
    pub from: Slot,
    pub id: DeliveryId,
    pub delivery: Delivery,
}

/// What is owed to one server.
#[derive(Default)]
pub struct Queue {
    pub owed: VecDeque<Owed>,
    pub unreachable: bool,
}

/// What is owed, by server.
#[derive(Default)]
pub struct Deliveries {
    pub queues: RefCell<HashMap<ServerId, Queue>>,
}

#[cfg(test)]
impl Deliveries {
    /// How many wait for a server.
    pub fn queued(&self, target: ServerId) -> usize {
        self.queues.borrow().get(&target).map_or(0, |queue| queue.owed.len())
    }
}

//! What a server has counted since its process began: for each message, and for each session.

use serde::{Deserialize, Serialize};

use crate::{Kind, Request};

/// Answers are counted by how long they took, in so many classes.
pub const LATENCY_CLASSES: usize = 12;

/// The longest time of a class, in microseconds: 4, 16, 64 and so on; the last has no end.
#[must_use]
pub fn latency_class_micros(class: usize) -> Option<u64> {
    (class + 1 < LATENCY_CLASSES).then(|| 4 << (2 * class))
}

/// The class of an answer that took so long.
#[must_use]
pub fn latency_class(micros: u64) -> usize {
    // Rounded up to the next power of four.
    let bits = u64::BITS - micros.saturating_sub(1).leading_zeros();
    (bits.div_ceil(2).max(1) as usize - 1).min(LATENCY_CLASSES - 1)
}

/// What has been counted?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetMetrics {}

/// What one server has counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Each message that came.
    pub messages: Vec<MessageMetrics>,
    /// Each open session of a client or a host.
    pub sessions: Vec<SessionMetrics>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageMetrics {
    /// [`Kind::number`].
    pub kind: u16,
    /// Answers that were errors; `Retry`, `Moved` and the like among them.
    pub errors: u64,
    /// Bytes of bodies and data that came.
    pub received_bytes: u64,
    /// Bytes of bodies and data that were answered.
    pub sent_bytes: u64,
    /// The time of all answers together, from when the request is there to when its answer leaves, in microseconds. Data that
    /// the request carries is received within it.
    pub micros: u64,
    /// How many answers took how long; see [`latency_class_micros`].
    pub classes: [u64; LATENCY_CLASSES],
}

impl MessageMetrics {
    /// How often it was answered.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMetrics {
    /// The first bytes of its number: distinguishes sessions with one label, on all servers alike.
    pub session: u32,
    /// Program and process, as they call themselves.
    pub label: String,
    /// It acts for the users of a machine.
    pub host: bool,
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of bodies and data that came.
    pub received_bytes: u64,
    /// Bytes of bodies and data that were answered.
    pub sent_bytes: u64,
}

impl Request for GetMetrics {
    const KIND: Kind = Kind::GetMetrics;
    type Reply = Metrics;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_class_that_it_does_not_exceed() {
        for micros in (0..5000).chain([1 << 22, (1 << 22) + 1, 1 << 24, u64::MAX]) {
            let first = (0..LATENCY_CLASSES)
                .find(|class| latency_class_micros(*class).is_none_or(|most| micros <= most));
            assert_eq!(Some(latency_class(micros)), first, "{micros}");
        }
    }
}

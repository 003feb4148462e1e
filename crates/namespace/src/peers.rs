//! Operations across slots, at a slot that is asked for its part.
//!
//! Messages may come twice, late, and out of order. What has happened to each numbered operation is remembered
//! until its coordinator says that it is finished on both sides (`open_from`); what is older than that is a
//! late duplicate and changes nothing.

use std::collections::BTreeMap;
use std::ops::Bound;

use ramlace_base::{Epoch, Error, ErrorKind, Result, Slot, Timestamp};
use ramlace_wire::mend::{OperationsKnown, QueryOperations};
use ramlace_wire::peer::{Decide, IntentStamp, Prepare, Prepared};

use crate::command::{DeliveryAnswer, Effect, Op};
use crate::holds::Asker;
use crate::mend::{Disowned, Doubt};
use crate::query::{AskedBy, Query};
use crate::state::SlotState;
use crate::state::coordinator::{Coordinator, Half};

/// By a slot that holds something for operations which this one coordinates.
impl Query for QueryOperations {
    fn answer(&self, slot: &SlotState, _by: AskedBy<'_>) -> Result<OperationsKnown> {
        Ok(OperationsKnown { next: slot.next_intent, unfinished: slot.unfinished.iter().copied().collect() })
    }
}

impl SlotState {
    pub(crate) fn peer_step(
        &mut self,
        op: &Op,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<DeliveryAnswer> {
        match op {
            Op::Prepare(message) => {
                self.forget_finished(message.stamp, now, effects);
                self.prepare(message).map(DeliveryAnswer::Prepared).map_err(as_busy)
            }
            Op::Decide(message) => {
                self.forget_finished(message.stamp, now, effects);
                self.decide(*message, effects);
                Ok(DeliveryAnswer::Done)
            }
            other => panic!("{other:?} does not come from a peer"),
        }
    }

    /// Slots for which something is held here though they were lost since: by `began` they began anew after
    /// that. Each needs an [`Op::CoordinatorLost`].
    pub fn lost_coordinators(&self, began: impl Fn(Slot) -> Epoch) -> Vec<(Slot, Epoch)> {
        let lost = |(slot, coordinator): (&Slot, &Coordinator)| {
            let began = began(*slot);
            let open = coordinator.halves.range(..began.first_number());
            open.map(|(_, half)| half).any(|half| *half != Half::Decided).then_some((*slot, began))
        };
        self.coordinators.iter().filter_map(lost).collect()
    }

    /// A slot was lost with its server's memory and has started over on another server: operations that it
    /// had not decided are dropped.
    pub(crate) fn coordinator_lost(
        &mut self,
        coordinator: Slot,
        began: Epoch,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let below = began.first_number();
        if self.coordinators.contains_key(&coordinator) {
            self.forget_finished(IntentStamp { coordinator, number: below, open_from: below }, now, effects);
        }
    }

    /// Forgets operations that the coordinator knows to be finished. Operations that the coordinator does not
    /// even remember, because it was lost and started over with larger numbers, are aborted.
    fn forget_finished(&mut self, stamp: IntentStamp, now: Timestamp, effects: &mut Vec<Effect>) {
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        if stamp.open_from <= coordinator.finished_below {
            return;
        }
        coordinator.finished_below = stamp.open_from;
        let open = coordinator.halves.split_off(&stamp.open_from);
        let forgotten = std::mem::replace(&mut coordinator.halves, open);
        coordinator.forget_first();
        forgotten.into_values().for_each(|half| self.finish_half(half, false, now, effects));
    }

    pub(crate) fn finish_half(
        &mut self,
        half: Half,
        commit: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Half::Held(parts) = half else { return };
        for hold in parts.into_values().flat_map(|(holds, _)| holds) {
            self.finish_hold(hold, commit, now, effects);
        }
    }

    fn prepare(&mut self, message: &Prepare) -> Result<Prepared> {
        assert!(message.slot == self.slot, "a part for {} was sent to {}", message.slot, self.slot);
        let stamp = message.stamp;
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        let late = stamp.number < coordinator.finished_below;
        match coordinator.halves.get(&stamp.number) {
            Some(Half::Held(parts)) if !late => {
                if let Some((_, answer)) = parts.get(&message.number) {
                    return Ok(answer.clone());
                }
            }
            None if !late => {}
            _ => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("operation {} of {} is decided already", stamp.number, stamp.coordinator),
                ));
            }
        }
        let asker = Asker {
            who: &message.who,
            now: message.now,
            coordinator: stamp.coordinator,
            token: message.token,
        };
        let (holds, answer) = self.hold_part(asker, &message.part)?;
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        let half = coordinator.halves.entry(stamp.number).or_insert_with(|| Half::Held(BTreeMap::new()));
        let Half::Held(parts) = half else { unreachable!("it was not decided") };
        parts.insert(message.number, (holds, answer.clone()));
        Ok(answer)
    }

    fn decide(&mut self, message: Decide, effects: &mut Vec<Effect>) {
        assert!(message.slot == self.slot, "what {} holds was decided in {}", message.slot, self.slot);
        let stamp = message.stamp;
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        if stamp.number < coordinator.finished_below {
            return;
        }
        let held = coordinator.halves.insert(stamp.number, Half::Decided);
        coordinator.forget_first();
        if let Some(half) = held {
            self.finish_half(half, message.commit, message.now, effects);
        }
    }
}

impl SlotState {
    /// Slots of whose operations this one knows, after a given one.
    pub fn coordinators_behind(&self, after: Option<Slot>) -> impl Iterator<Item = Slot> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.coordinators.range((from, Bound::Unbounded)).map(|(other, _)| *other)
    }

    /// This slot's records of another's operations.
    #[must_use]
    pub fn doubt(&self, coordinator: Slot) -> Option<Doubt> {
        let known = self.coordinators.get(&coordinator)?;
        let (finished_below, halves) = (known.finished_below, known.parts_held().collect());
        Some(Doubt { slot: self.slot, coordinator, finished_below, halves })
    }

    /// Drops holds that their coordinator does not know, unless messages have come for them since.
    pub(crate) fn disown(&mut self, disowned: &Disowned, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(coordinator) = self.coordinators.get_mut(&disowned.coordinator) else { return };
        let forgotten = coordinator.forget(&disowned.halves, disowned.finished_below);
        forgotten.into_iter().for_each(|half| self.finish_half(half, false, now, effects));
    }
}

/// No request waits for another operation: one that meets another fails with Retry, and its client retries. So
/// no two operations wait for each other.
fn as_busy(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Retry => Error::new(ErrorKind::Busy, error.message()),
        _ => error,
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;

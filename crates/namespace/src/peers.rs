//! Operations across slots, at a slot that is asked for its part.
//!
//! Messages may come twice, late, and out of order. What has happened to each numbered operation
//! is remembered until its coordinator says that it is settled on both sides (`open_from`); what
//! is older than that is a late duplicate and changes nothing.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, Error, ErrorKind, Result, Slot, Timestamp};
use ramlace_wire::peer::{IntentStamp, Prepare, Prepared, Settle};
use serde::{Deserialize, Serialize};

use crate::command::{DeliveryAnswer, Effect, Op};
use crate::holds::{Asker, Hold};
use crate::state::{SlotState, first_number};

/// What a slot remembers of another that coordinated operations with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Coordinator {
    /// Every operation below is settled.
    settled_below: u64,
    /// The others of which something is known. Mostly none: there are as many pairs of slots as there are
    /// slots squared, and what a pair keeps for ever must be a few bytes.
    halves: BTreeMap<u64, Half>,
}

/// What has happened here to an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Half {
    /// Parts are held ready, by their numbers.
    Held(BTreeMap<u32, (Vec<Hold>, Prepared)>),
    /// It is decided.
    Settled,
}

impl Half {
    fn parts(&self) -> u32 {
        match self {
            Half::Held(parts) => u32::try_from(parts.len()).unwrap_or(u32::MAX),
            Half::Settled => 0,
        }
    }
}

impl Coordinator {
    /// Forgets what is settled up to the first that may not be: all below `settled_below` is settled, and so
    /// is what follows it directly.
    fn forget_first(&mut self) {
        while let Some(first) = self.halves.first_entry()
            && *first.key() == self.settled_below
            && *first.get() == Half::Settled
        {
            self.settled_below += 1;
            first.remove();
        }
        self.shrink();
    }

    /// An emptied map keeps a node of half a kilobyte.
    fn shrink(&mut self) {
        if self.halves.is_empty() {
            self.halves = BTreeMap::new();
        }
    }

    /// Every operation below is settled.
    pub(crate) fn settled_below(&self) -> u64 {
        self.settled_below
    }

    /// Operations of which something is known, and how many parts are held for each; none: it is settled.
    pub(crate) fn parts_held(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.halves.iter().map(|(number, half)| (*number, half.parts()))
    }

    /// Forgets operations for which so many parts are held as is said, and what is settled below the first number, if
    /// that is where it stands.
    pub(crate) fn forget(&mut self, halves: &[(u64, u32)], settled_below: Option<(u64, u64)>) -> Vec<Half> {
        if let Some((was, is)) = settled_below
            && self.settled_below == was
        {
            self.settled_below = is;
        }
        let is_so = |known: &BTreeMap<u64, Half>, (number, parts): (u64, u32)| {
            known.get(&number).is_some_and(|half| half.parts() == parts)
        };
        let numbers = halves.iter().filter(|half| is_so(&self.halves, **half)).map(|(number, _)| *number);
        let numbers: Vec<u64> = numbers.collect();
        let forgotten = numbers.iter().filter_map(|number| self.halves.remove(number)).collect();
        self.shrink();
        forgotten
    }

    /// Operations that hold something here.
    pub(crate) fn held_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let held = |(number, half): (&u64, &Half)| matches!(half, Half::Held(_)).then_some(*number);
        self.halves.iter().filter_map(held)
    }

    /// What is held for them.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.halves.values().flat_map(|half| {
            match half {
                Half::Held(parts) => Some(parts.values().flat_map(|(holds, _)| holds)),
                Half::Settled => None,
            }
            .into_iter()
            .flatten()
        })
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
                self.forget_settled(message.stamp, now, effects);
                self.prepare(message).map(DeliveryAnswer::Prepared).map_err(in_the_way)
            }
            Op::Settle(message) => {
                self.forget_settled(message.stamp, now, effects);
                self.settle(*message, effects);
                Ok(DeliveryAnswer::Done)
            }
            other => panic!("{other:?} does not come from a peer"),
        }
    }

    /// Slots for which something is held here though they were lost since: those that began anew,
    /// by `began`, behind the numbers that they knew. Each wants an [`Op::CoordinatorLost`].
    pub fn lost_coordinators(&self, began: impl Fn(Slot) -> Epoch) -> Vec<(Slot, Epoch)> {
        let lost = |(slot, coordinator): (&Slot, &Coordinator)| {
            let began = began(*slot);
            let open = coordinator.halves.range(..first_number(began));
            open.map(|(_, half)| half).any(|half| *half != Half::Settled).then_some((*slot, began))
        };
        self.coordinators.iter().filter_map(lost).collect()
    }

    /// A slot was lost with its server's memory and has begun anew in other hands: what it had not
    /// decided is let go.
    pub(crate) fn coordinator_lost(
        &mut self,
        coordinator: Slot,
        began: Epoch,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let below = first_number(began);
        if self.coordinators.contains_key(&coordinator) {
            self.forget_settled(IntentStamp { coordinator, number: below, open_from: below }, now, effects);
        }
    }

    /// Forgets what the coordinator knows to be settled. What it does not even remember, because
    /// it was lost and began anew with larger numbers, is aborted.
    fn forget_settled(&mut self, stamp: IntentStamp, now: Timestamp, effects: &mut Vec<Effect>) {
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        if stamp.open_from <= coordinator.settled_below {
            return;
        }
        coordinator.settled_below = stamp.open_from;
        let open = coordinator.halves.split_off(&stamp.open_from);
        let forgotten = std::mem::replace(&mut coordinator.halves, open);
        coordinator.forget_first();
        forgotten.into_values().for_each(|half| self.settle_half(half, false, now, effects));
    }

    pub(crate) fn settle_half(
        &mut self,
        half: Half,
        commit: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Half::Held(parts) = half else { return };
        for hold in parts.into_values().flat_map(|(holds, _)| holds) {
            self.settle_hold(hold, commit, now, effects);
        }
    }

    fn prepare(&mut self, message: &Prepare) -> Result<Prepared> {
        assert!(message.slot == self.slot, "a part for {} was sent to {}", message.slot, self.slot);
        let stamp = message.stamp;
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        let late = stamp.number < coordinator.settled_below;
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
                    format!("operation {} of {} is settled already", stamp.number, stamp.coordinator),
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
        let Half::Held(parts) = half else { unreachable!("it was not settled") };
        parts.insert(message.number, (holds, answer.clone()));
        Ok(answer)
    }

    fn settle(&mut self, message: Settle, effects: &mut Vec<Effect>) {
        assert!(message.slot == self.slot, "what {} holds was settled in {}", message.slot, self.slot);
        let stamp = message.stamp;
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        if stamp.number < coordinator.settled_below {
            return;
        }
        let held = coordinator.halves.insert(stamp.number, Half::Settled);
        coordinator.forget_first();
        if let Some(half) = held {
            self.settle_half(half, message.commit, message.now, effects);
        }
    }
}

/// No question waits for another operation: the one that meets another gives way, and its client
/// comes again. So no two operations wait for each other.
fn in_the_way(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Retry => Error::new(ErrorKind::Busy, error.message()),
        _ => error,
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;

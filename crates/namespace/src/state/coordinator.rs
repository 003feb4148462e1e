//! What a slot remembers of another slot that coordinated operations with it: see [`crate::peers`].

use std::collections::BTreeMap;

use ramlace_base::numbered_variants;
use ramlace_wire::peer::Prepared;
use serde::{Deserialize, Serialize};

use crate::state::hold::Hold;

/// What a slot remembers of another that coordinated operations with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Coordinator {
    /// Every operation below is finished.
    pub finished_below: u64,
    /// The others of which something is known. Mostly none: the number of pairs of slots is the square of the
    /// number of slots, and what a pair keeps for ever must be a few bytes.
    pub halves: BTreeMap<u64, Half>,
}

/// The state of an operation here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Half {
    /// Parts are held ready, by their numbers.
    Held(BTreeMap<u32, (Vec<Hold>, Prepared)>),
    /// It is decided.
    Decided,
}

numbered_variants! { Half:
    0 Held(body);
    1 Decided;
}

impl Half {
    fn parts(&self) -> u32 {
        match self {
            Half::Held(parts) => u32::try_from(parts.len()).unwrap_or(u32::MAX),
            Half::Decided => 0,
        }
    }
}

impl Coordinator {
    /// Forgets finished operations up to the first that may not be finished: all below `finished_below` are,
    /// and so are those that follow it directly.
    pub(crate) fn forget_first(&mut self) {
        while let Some(first) = self.halves.first_entry()
            && *first.key() == self.finished_below
            && *first.get() == Half::Decided
        {
            self.finished_below += 1;
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

    /// Operations of which something is known, and how many parts are held for each; none: it is finished.
    pub(crate) fn parts_held(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.halves.iter().map(|(number, half)| (*number, half.parts()))
    }

    /// Forgets operations for which exactly this many parts are still held, and finished ones below the first
    /// number, if that is the current one.
    pub(crate) fn forget(&mut self, halves: &[(u64, u32)], finished_below: Option<(u64, u64)>) -> Vec<Half> {
        if let Some((was, is)) = finished_below
            && self.finished_below == was
        {
            self.finished_below = is;
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

    /// The holds of these operations.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.halves.values().flat_map(|half| {
            match half {
                Half::Held(parts) => Some(parts.values().flat_map(|(holds, _)| holds)),
                Half::Decided => None,
            }
            .into_iter()
            .flatten()
        })
    }
}

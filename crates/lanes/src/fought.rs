//! Pages that machines take from each other: counted, so that people can find out where their programs block
//! each other.
//!
//! Bounded: for each place the pages that were taken most often are kept, and of places those with the latest
//! conflicts.

use std::collections::BTreeMap;

use ramlace_base::{SessionId, limits};

use crate::watches::Place;

/// Sides that are remembered of a page.
const SIDES_MAX: usize = 4;

/// All places where pages were taken.
#[derive(Debug, Default)]
pub(super) struct Fought {
    places: BTreeMap<Place, BTreeMap<u64, Fight>>,
}

/// What is known of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fight {
    /// How often it was taken from a session.
    pub changes: u64,
    /// When it was first.
    pub first: u64,
    /// When it was last.
    pub last: u64,
    /// The sessions it was taken from; the last few.
    pub sides: Vec<SessionId>,
}

impl Fought {
    /// A page is taken from a session.
    pub(super) fn note(&mut self, place: Place, page: u64, from: SessionId, now: u64) {
        if !self.places.contains_key(&place) && self.places.len() >= limits::FOUGHT_PLACES_MAX {
            let last = |pages: &BTreeMap<u64, Fight>| pages.values().map(|fight| fight.last).max();
            let oldest = self.places.iter().min_by_key(|(_, pages)| last(pages)).map(|(place, _)| *place);
            if let Some(oldest) = oldest {
                self.places.remove(&oldest);
            }
        }
        let pages = self.places.entry(place).or_default();
        if !pages.contains_key(&page) && pages.len() >= limits::FOUGHT_PAGES_PER_PLACE_MAX {
            let least =
                pages.iter().min_by_key(|(_, fight)| (fight.changes, fight.last)).map(|(page, _)| *page);
            if let Some(least) = least {
                pages.remove(&least);
            }
        }
        let fight =
            pages.entry(page).or_insert(Fight { changes: 0, first: now, last: now, sides: Vec::new() });
        fight.changes += 1;
        fight.last = now;
        fight.sides.retain(|side| *side != from);
        fight.sides.push(from);
        if fight.sides.len() > SIDES_MAX {
            fight.sides.remove(0);
        }
    }

    /// The pages of a place.
    pub(super) fn of(&self, place: Place) -> impl Iterator<Item = (u64, &Fight)> {
        self.places.get(&place).into_iter().flatten().map(|(page, fight)| (*page, fight))
    }

    pub(super) fn forget(&mut self, place: Place) {
        self.places.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::InodeId;

    use super::*;

    const PLACE: Place = (InodeId(7), Some(0));

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    // SEMANTICS 131.2
    #[test]
    fn what_is_taken_often_stays() {
        let mut fought = Fought::default();
        for turn in 0..10 {
            fought.note(PLACE, 3, session(turn % 2), u64::from(turn));
        }
        for page in 0..1_000 {
            fought.note(PLACE, 100 + page, session(9), 20);
        }
        let fight = Fight { changes: 10, first: 0, last: 9, sides: vec![session(0), session(1)] };
        assert_eq!(fought.of(PLACE).find(|(page, _)| *page == 3), Some((3, &fight)));
        assert_eq!(fought.of(PLACE).count(), limits::FOUGHT_PAGES_PER_PLACE_MAX);
        for number in 0..1_000 {
            fought.note((InodeId(1_000 + number), None), 0, session(1), 30);
        }
        assert_eq!(fought.places.len(), limits::FOUGHT_PLACES_MAX);
        assert_eq!(fought.of(PLACE).count(), 0);
    }
}

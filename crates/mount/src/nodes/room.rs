//! Limits how many inodes may have a part that only a bounded number may have.

use std::sync::Arc;

/// A counter of places with a limit.
pub(crate) struct Room {
    places: Arc<()>,
    most: usize,
}

/// A place that is taken until this is dropped.
pub(crate) struct Taken(#[allow(dead_code, reason = "it is counted")] Arc<()>);

impl Room {
    pub(crate) fn new(most: usize) -> Room {
        Room { places: Arc::default(), most }
    }

    /// Takes a place, if there is one. If several threads try to take the last one at the same time, none may
    /// get it.
    pub(crate) fn take(&self) -> Option<Taken> {
        let place = Taken(self.places.clone());
        (self.taken() <= self.most).then_some(place)
    }

    /// The number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        Arc::strong_count(&self.places) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let room = Room::new(2);
        let (first, second) = (room.take(), room.take());
        assert!(first.is_some() && second.is_some() && room.take().is_none());
        drop(first);
        assert_eq!(room.taken(), 1);
        assert!(room.take().is_some());
    }
}

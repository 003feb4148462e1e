//! Deferred closes: when the session's reference to a file that no program has open any more is closed at its home.
//! Pure: it takes the time and says which are due.
//!
//! A mount keeps the reference for a while, because programs open what they have just read once more, and because
//! many closes go in one message. Meanwhile the file cannot change unnoticed: its attributes are leased, and their recall
//! makes the close due at once (`closing`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, limits};

/// How long a close is deferred.
const DEFERRED: Duration = Duration::from_millis(limits::CLOSE_DEFERRED_MILLIS);
/// What is due so soon goes along with what is due.
const ALONG: Duration = Duration::from_secs(1);

/// The inodes whose close is deferred, and when each is due.
#[derive(Default)]
pub(crate) struct DeferredCloses {
    due: BTreeMap<InodeId, Place>,
    order: BTreeMap<Place, InodeId>,
    last: u64,
}

/// The moment at which a close is due, and a number.
type Place = (Instant, u64);

impl DeferredCloses {
    /// Defers a close. `false`: there are too many, and it is to be made now.
    pub(crate) fn defer(&mut self, inode: InodeId, now: Instant) -> bool {
        if self.due.len() >= limits::CLOSES_DEFERRED_PER_SESSION_MAX && !self.has(inode) {
            return false;
        }
        self.place(inode, now + DEFERRED);
        true
    }

    /// A close that was due could not be made.
    pub(crate) fn defer_until(&mut self, inode: InodeId, until: Instant) {
        self.place(inode, until);
    }

    /// Whether an inode's close is deferred.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        self.due.contains_key(&inode)
    }

    /// The inode is open again, or closed.
    pub(crate) fn cancel(&mut self, inode: InodeId) {
        if let Some(place) = self.due.remove(&inode) {
            self.order.remove(&place);
        }
    }

    /// Makes the close of an inode due, if it is deferred. Returns whether it is.
    pub(crate) fn hasten(&mut self, inode: InodeId, now: Instant) -> bool {
        let has = self.has(inode);
        if has {
            self.place(inode, now);
        }
        has
    }

    /// The same for all of them. Returns whether there are any.
    pub(crate) fn hasten_all(&mut self, now: Instant) -> bool {
        let all: Vec<InodeId> = self.due.keys().copied().collect();
        all.iter().for_each(|inode| self.place(*inode, now));
        !all.is_empty()
    }

    /// Takes that of an inode and those of the next ones of its slot, whenever they are due; at most so many.
    pub(crate) fn take_from(&mut self, first: InodeId, most: usize) -> Vec<InodeId> {
        let of = self.due.range(first..).map(|(inode, _)| *inode);
        let taken: Vec<InodeId> = of.take_while(|inode| inode.slot() == first.slot()).take(most).collect();
        taken.iter().for_each(|inode| self.cancel(*inode));
        taken
    }

    /// When the next one is due.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// If one is due: takes those that are, and those that will be in a moment; at most so many.
    pub(crate) fn take_due(&mut self, now: Instant, most: usize) -> Vec<InodeId> {
        let until = if self.due_at().is_some_and(|at| at <= now) { now + ALONG } else { now };
        let due = self.order.iter().take_while(|((at, _), _)| *at <= until).take(most);
        let due: Vec<InodeId> = due.map(|(_, inode)| *inode).collect();
        due.iter().for_each(|inode| self.cancel(*inode));
        due
    }

    fn place(&mut self, inode: InodeId, at: Instant) {
        self.cancel(inode);
        self.last += 1;
        let place = (at, self.last);
        self.due.insert(inode, place);
        self.order.insert(place, inode);
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::Slot;

    use super::*;

    #[test]
    fn a_close_is_due_after_its_time_or_when_it_is_hastened() {
        let (mut closes, now) = (DeferredCloses::default(), Instant::now());
        let [one, two, three, four] =
            [(0, 1), (0, 2), (7, 3), (7, 4)].map(|(slot, number)| InodeId::new(Slot(slot), number));
        let later = |seconds| now + Duration::from_secs(seconds);
        for (seconds, inode) in [2, 4, 6, 8].into_iter().zip([one, two, three, four]) {
            assert!(closes.defer(inode, later(seconds)));
        }
        assert_eq!(closes.due_at(), Some(later(2) + DEFERRED));
        assert_eq!(closes.take_due(now + DEFERRED, 9), []);
        assert!(closes.hasten(three, now) && !closes.hasten(InodeId(9), now));
        assert_eq!(closes.take_due(now, 9), [three]);
        closes.cancel(one);
        assert!(closes.hasten_all(now) && !closes.has(one));
        assert_eq!(closes.take_due(now, 9), [two, four]);
        // One that is open again and closed once more begins anew.
        assert!(closes.defer(two, later(5)));
        assert_eq!(closes.take_due(later(4) + DEFERRED, 9), []);
        assert_eq!(closes.take_due(later(5) + DEFERRED, 9), [two]);
        assert!(!closes.hasten_all(now));
        assert!([one, two, three].into_iter().all(|inode| closes.defer(inode, now)));
        assert_eq!((closes.take_from(two, 9), closes.take_from(one, 1)), (vec![two], vec![one]));
        closes.cancel(three);
        closes.defer_until(one, later(1));
        assert_eq!((closes.take_due(now, 9), closes.take_due(later(1), 9)), (vec![], vec![one]));
        assert_eq!(closes.due_at(), None);
    }

    #[test]
    fn what_is_due_within_a_second_goes_along() {
        let (mut closes, now) = (DeferredCloses::default(), Instant::now());
        for millis in [0, 400, 900, 1_100] {
            assert!(closes.defer(InodeId(millis), now + Duration::from_millis(millis)));
        }
        assert_eq!(closes.take_due(now + DEFERRED, 9), [0, 400, 900].map(InodeId));
    }

    #[test]
    fn as_many_are_deferred_as_there_is_room_for_and_taken_in_pieces() {
        let (mut closes, now) = (DeferredCloses::default(), Instant::now());
        let most = limits::CLOSES_DEFERRED_PER_SESSION_MAX as u64;
        assert!((0..most).all(|inode| closes.defer(InodeId(inode), now)));
        assert!(!closes.defer(InodeId(most), now) && closes.defer(InodeId(0), now));
        assert_eq!(closes.take_due(now + DEFERRED, 2), [InodeId(1), InodeId(2)]);
        assert!(closes.defer(InodeId(most), now));
    }
}

//! What is to happen, in virtual time: by when, and of the same moment what was put down first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub struct Agenda<E> {
    /// In boxes: nodes of the tree are moved about with what they hold.
    events: BTreeMap<(u64, u64), Box<E>>,
    last: u64,
    /// The time, in milliseconds.
    pub now: u64,
    began: Instant,
}

impl<E> Default for Agenda<E> {
    fn default() -> Agenda<E> {
        // Only differences count, so that the same seed gives the same run.
        Agenda { events: BTreeMap::new(), last: 0, now: 0, began: Instant::now() }
    }
}

impl<E> Agenda<E> {
    pub fn at(&mut self, when: u64, event: E) {
        self.last += 1;
        self.events.insert((when.max(self.now), self.last), Box::new(event));
    }

    pub fn after(&mut self, delay: u64, event: E) {
        self.at(self.now + delay, event);
    }

    /// What happens next; its time has come.
    pub fn next(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(*event)
    }

    /// A moment as the product's code has it.
    pub fn instant_of(&self, millis: u64) -> Instant {
        self.began + Duration::from_millis(millis)
    }

    /// The same the other way round.
    pub fn millis_of(&self, instant: Instant) -> u64 {
        (instant - self.began).as_millis() as u64
    }

    pub fn instant(&self) -> Instant {
        self.instant_of(self.now)
    }
}

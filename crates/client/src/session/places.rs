//! How many connections to one server are used for which purpose, and in which order threads wait for one.
//!
//! Some requests wait at the server for other machines. What those machines wait for must not queue behind
//! them, so each purpose has places of its own, and no other purpose takes them.

use std::collections::VecDeque;
use std::sync::Arc;

use ramlace_base::limits;
use ramlace_sync::Condvar;

/// The purpose of a thread's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Calls of programs.
    Usual,
    /// Reads for a kernel's pages; they may wait for the owner of a page.
    Pages,
    /// Reads for the pages of a strict mount, which wait until other kernels have dropped them.
    StrictReads,
    /// Write-backs of pages: servers answer these without waiting for other clients, and drops wait for them.
    WritesBack,
}

const PURPOSES: [Purpose; 4] = [Purpose::Usual, Purpose::Pages, Purpose::StrictReads, Purpose::WritesBack];

impl Purpose {
    /// The number of connections for it. All together, with the few for long polls, are at most
    /// [`limits::CONNECTIONS_PER_SESSION_MAX`].
    const fn places(self) -> usize {
        match self {
            Purpose::Usual => limits::CONNECTIONS_PER_SERVER_MAX,
            Purpose::Pages => 16,
            Purpose::StrictReads => 24,
            Purpose::WritesBack => 8,
        }
    }
}

/// Whether a request waits for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All are in use: nothing is sent before one is free.
    Waits,
    /// It waits no more: it is about to be sent, or has failed.
    Comes,
}

/// Is told of the turn of a request that has to wait for a place; not of one that has its place at once. It is called with a
/// lock of the server's connections held.
pub type OnTurn<'a> = &'a dyn Fn(Turn);

/// Places in use, and the threads that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Places {
    used: [usize; PURPOSES.len()],
    waiting: [VecDeque<Waiter>; PURPOSES.len()],
    last_number: u64,
}

/// A waiting thread, until [`Places::take_in_turn`] or [`Places::leave`].
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    number: u64,
    /// Signalled when its turn may have come.
    pub(crate) turn: Arc<Condvar>,
}

impl Places {
    /// Places in use.
    pub(crate) fn used(&self) -> usize {
        self.used.iter().sum()
    }

    /// The threads that wait for one.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Takes a place, unless there is none or other threads wait for one.
    pub(crate) fn take(&mut self, purpose: Purpose) -> bool {
        let takes = self.waiting[purpose as usize].is_empty() && self.has_place(purpose);
        self.used[purpose as usize] += usize::from(takes);
        takes
    }

    /// Joins the queue at its end.
    pub(crate) fn wait(&mut self, purpose: Purpose) -> Waiter {
        self.last_number += 1;
        let waiter = Waiter { number: self.last_number, turn: Arc::default() };
        self.waiting[purpose as usize].push_back(waiter.clone());
        waiter
    }

    /// Takes a place, and leaves the queue, if it is this thread's turn.
    pub(crate) fn take_in_turn(&mut self, purpose: Purpose, waiter: &Waiter) -> bool {
        let first = self.waiting[purpose as usize].front();
        let takes = first.is_some_and(|first| first.number == waiter.number) && self.has_place(purpose);
        if takes {
            self.waiting[purpose as usize].pop_front();
            self.used[purpose as usize] += 1;
            self.wake();
        }
        takes
    }

    /// Leaves the queue without a place.
    pub(crate) fn leave(&mut self, purpose: Purpose, waiter: &Waiter) {
        self.waiting[purpose as usize].retain(|other| other.number != waiter.number);
        self.wake();
    }

    /// Frees a place.
    pub(crate) fn give_back(&mut self, purpose: Purpose) {
        self.used[purpose as usize] -= 1;
        self.wake();
    }

    /// Wakes only the threads whose turn it is: to wake one is a system call.
    fn wake(&self) {
        for purpose in PURPOSES.into_iter().filter(|purpose| self.has_place(*purpose)) {
            if let Some(first) = self.waiting[purpose as usize].front() {
                first.turn.notify_one();
            }
        }
    }

    fn has_place(&self, purpose: Purpose) -> bool {
        self.used[purpose as usize] < purpose.places()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &mut Places, purpose: Purpose) -> usize {
        (0..100).take_while(|_| places.take(purpose)).count()
    }

    #[test]
    fn what_one_purpose_uses_is_missing_to_no_other() {
        let mut places = Places::default();
        for purpose in [Purpose::StrictReads, Purpose::Pages, Purpose::Usual, Purpose::WritesBack] {
            assert_eq!(fill(&mut places, purpose), purpose.places());
        }
        let reserve = 6;
        assert!(places.used() + reserve < limits::CONNECTIONS_PER_SESSION_MAX);
    }

    #[test]
    fn the_one_that_waits_longest_is_the_next() {
        let (mut places, purpose) = (Places::default(), Purpose::StrictReads);
        fill(&mut places, purpose);
        let waiters: Vec<Waiter> = (0..3).map(|_| places.wait(purpose)).collect();
        assert!(!places.take_in_turn(purpose, &waiters[0]), "there is no place yet");
        places.give_back(purpose);
        assert!(!places.take(purpose), "whoever comes now comes last");
        assert!(!places.take_in_turn(purpose, &waiters[1]));
        assert!(places.take_in_turn(purpose, &waiters[0]));
        places.give_back(purpose);
        places.leave(purpose, &waiters[1]);
        assert!(places.take_in_turn(purpose, &waiters[2]));
        assert!(!places.take(purpose), "all are in use");
        places.give_back(purpose);
        assert!(places.take(purpose));
    }
}

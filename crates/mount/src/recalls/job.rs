//! One drop, and what is to be done about it when it takes long.

use ramlace_base::ByteRange;

use super::{For, Wanted};
use crate::under_way::without;

/// Drops of what requests do not hold of a late recall that are under way at once: requests that have come since may hold them up.
pub(super) const RESTS_MAX: usize = 4;
/// A recall of which nothing more could be dropped for so long is told to be blocked, though programs may still read what is left: a server
/// would wait for it no longer soon after, and take back what they have stored.
pub(super) const STUCK_MILLIS: u64 = 2_000;

/// Pages that are to be dropped, and for whom. Times are in milliseconds.
pub(super) struct Job<T> {
    pub(super) drop: Wanted,
    pub(super) whom: Option<For<T>>,
    /// Nobody is to wait for it.
    pub(super) is_relaxed: bool,
    /// Its server was told that it waits for a request.
    pub(super) is_told: bool,
    /// When to look whether it takes long.
    pub(super) look_at: u64,
    pub(super) runs: bool,
    /// It waits for a request, and does not count among those that run.
    pub(super) is_late: bool,
    /// No request held its pages when it had yet to begin: it begins, or has begun, where there is no place among others of its file.
    pub(super) is_free: bool,
    /// When something of it was dropped last, or began to be.
    pub(super) moved: u64,
    pub(super) rest: Rest,
}

/// The part of a late recall that no request holds.
#[derive(Default)]
pub(super) struct Rest {
    /// It was dropped.
    pub(super) dropped: Vec<ByteRange>,
    /// Drops of it that are not over.
    pub(super) drops: Vec<RestDrop>,
    /// The kernel would not.
    pub(super) is_refused: bool,
}

pub(super) struct RestDrop {
    pub(super) id: u64,
    pub(super) parts: Vec<ByteRange>,
    pub(super) runs: bool,
}

/// What is to be done about a recall that takes long.
pub(super) enum Late {
    /// It comes to its end by itself: it waits for what it writes back itself, or for a thread.
    Wait,
    /// Nothing holds it, and it has no thread.
    Begin,
    /// These pages are held by nothing.
    DropRest(Vec<ByteRange>),
    /// All others are dropped, or cannot be.
    Blocked,
}

impl<T> Job<T> {
    /// One that has yet to begin.
    pub(super) fn new(drop: Wanted, whom: For<T>, look_at: u64, now: u64) -> Job<T> {
        let is_free = matches!(whom, For::Rest(_));
        Job {
            drop,
            whom: Some(whom),
            is_relaxed: false,
            is_told: false,
            look_at,
            runs: false,
            is_late: false,
            is_free,
            moved: now,
            rest: Rest::default(),
        }
    }

    /// Whether requests hold what is left of a recall. What nothing holds goes first: programs may read it.
    pub(super) fn is_held_up(&mut self, now: u64, held: impl Fn(&Wanted) -> Vec<ByteRange>) -> Late {
        let held = held(&self.drop);
        if self.is_told {
            // What held it is over: programs may read it, and nobody waits.
            let may_begin = held.is_empty() && !self.runs && !self.is_free;
            return if may_begin { Late::Begin } else { Late::Wait };
        }
        let gone = || held.iter().chain(&self.rest.dropped).copied();
        let left: Vec<ByteRange> = self.drop.parts.iter().flat_map(|part| without(*part, gone())).collect();
        if left.is_empty() {
            return Late::Blocked;
        }
        // Others hold a drop up only by what they hold now.
        let is_free = |parts: &[ByteRange]| {
            !parts.iter().any(|part| held.iter().any(|of| !of.intersection(*part).is_empty()))
        };
        if self.runs && held.is_empty()
            || self.rest.drops.iter().any(|rest| rest.runs && is_free(&rest.parts))
        {
            return Late::Wait;
        }
        if held.is_empty() && !self.is_free {
            return Late::Begin;
        }
        let all_run = self.rest.drops.len() < RESTS_MAX && self.rest.drops.iter().all(|rest| rest.runs);
        if all_run && !held.is_empty() && !self.rest.is_refused {
            return Late::DropRest(left);
        }
        if now >= self.moved + STUCK_MILLIS { Late::Blocked } else { Late::Wait }
    }

    /// The recall of which it is a part.
    pub(super) fn whole(&self) -> Option<u64> {
        if let Some(For::Rest(whole)) = self.whom { Some(whole) } else { None }
    }

    /// There is nothing to say of it before it is over, or begins.
    pub(super) fn is_settled(&self) -> bool {
        let is_recall = matches!(self.whom, Some(For::Server(..)));
        let has_place = self.is_late || self.is_free;
        if is_recall { self.is_told && has_place } else { has_place || !self.runs }
    }
}

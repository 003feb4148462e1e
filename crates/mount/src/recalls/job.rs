//! One drop of pages that is queued or runs, and what to do when it takes long.

use ramlace_base::ByteRange;

use super::{For, Wanted};
use crate::in_flight::{HeldPages, without};

/// The number of drops under way for the part of a late recall that no request holds: later requests may hold
/// them up.
pub(super) const RESTS_MAX: usize = 4;
/// How long the pages of a recall may wait for a truncation of their file, before it is reported as blocked. What
/// programs have stored in them may be read until they are dropped, so it is only for truncations that wait for
/// each other.
pub(super) const CUT_MILLIS: u64 = 500;
/// For how long a thread sleeps that waits for a request: one that waits for another thread's processor is awake sooner.
pub(super) const ASLEEP_MILLIS: u64 = 20;
/// How long a recall whose pages are all held may wait for a thread, before it is reported as blocked.
pub(super) const UNBEGUN_MILLIS: u64 = 200;
/// A recall of which nothing more could be dropped for this long is reported as blocked, even if programs may
/// still read the rest: soon after, the server would wait no longer, and refuse what they have stored.
pub(super) const STUCK_MILLIS: u64 = 2_000;

/// A drop of pages, and its reason. Times are in milliseconds.
pub(super) struct Job<T> {
    pub(super) drop: Wanted,
    pub(super) whom: Option<For<T>>,
    /// It is not to be waited for.
    pub(super) is_relaxed: bool,
    /// Its server was notified that it is blocked.
    pub(super) is_told: bool,
    /// When to check whether it takes long.
    pub(super) look_at: u64,
    pub(super) runs: bool,
    /// It waits for a request, and does not count among the running ones.
    pub(super) is_late: bool,
    /// No request held its pages before it began: it may run even if the places of its file are taken.
    pub(super) is_free: bool,
    /// When a part of it was last dropped, or began to be.
    pub(super) moved: u64,
    /// Since when its thread has been asleep in the kernel whenever it was checked.
    pub(super) asleep_since: Option<u64>,
    pub(super) rest: Rest,
}

/// The part of a late recall that no request holds.
#[derive(Default)]
pub(super) struct Rest {
    /// What was dropped of it.
    pub(super) dropped: Vec<ByteRange>,
    /// Its drops that are not over.
    pub(super) drops: Vec<RestDrop>,
    /// The kernel has refused.
    pub(super) is_refused: bool,
}

pub(super) struct RestDrop {
    pub(super) id: u64,
    pub(super) parts: Vec<ByteRange>,
    pub(super) runs: bool,
}

/// What to do about a recall that takes long.
pub(super) enum Late {
    /// Nothing: it ends by itself, after its own write-backs, or when it gets a thread.
    Wait,
    /// Start it: no request holds it, and it has no thread.
    Begin,
    /// Drop these pages, which no request holds.
    DropRest(Vec<ByteRange>),
    /// Report it as blocked: all other pages are dropped, or cannot be.
    Blocked,
    /// Report it as done, whatever its thread waits for: each page is dropped, or locked for a read that is not sent yet.
    Done,
}

impl<T> Job<T> {
    /// A drop that has not begun.
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
            asleep_since: None,
            rest: Rest::default(),
        }
    }

    /// What to do about a recall, depending on whether requests hold the rest of its pages. Pages that are
    /// not held are dropped first: programs may read these. `sleeps`: its thread is asleep in the kernel. A
    /// thread that is not waits for a processor, and for no page.
    pub(super) fn is_held_up(&mut self, now: u64, held: &HeldPages, sleeps: bool) -> Late {
        let asleep_since = sleeps.then(|| self.asleep_since.unwrap_or(now));
        self.asleep_since = asleep_since;
        let sleeps_on = asleep_since.is_some_and(|since| now >= since + ASLEEP_MILLIS);
        let HeldPages { locked: held, unsent, is_cut } = held;
        self.note_gone(unsent);
        if self.is_gone() {
            return Late::Done;
        }
        if self.is_told {
            // The request that held it has ended: programs may read the pages, and nobody waits for them.
            let may_begin = held.is_empty() && !is_cut && !self.runs && !self.is_free;
            return if may_begin { Late::Begin } else { Late::Wait };
        }
        if *is_cut && now >= self.moved + CUT_MILLIS {
            return Late::Blocked;
        }
        let gone = || held.iter().chain(&self.rest.dropped).copied();
        let left: Vec<ByteRange> = self.drop.parts.iter().flat_map(|part| without(*part, gone())).collect();
        if left.is_empty() {
            let is_stuck = if self.runs { sleeps_on } else { now >= self.moved + UNBEGUN_MILLIS };
            return if is_stuck { Late::Blocked } else { Late::Wait };
        }
        // Other requests delay a drop only by the pages that they hold now.
        let is_unheld = held.is_empty() && unsent.is_empty();
        let is_free = |parts: &[ByteRange]| {
            let mut holding = held.iter().chain(unsent);
            !holding.any(|of| parts.iter().any(|part| !of.intersection(*part).is_empty()))
        };
        if self.runs && is_unheld || self.rest.drops.iter().any(|rest| rest.runs && is_free(&rest.parts)) {
            return Late::Wait;
        }
        if held.is_empty() && !self.runs && !self.is_free {
            return Late::Begin;
        }
        let all_run = self.rest.drops.len() < RESTS_MAX && self.rest.drops.iter().all(|rest| rest.runs);
        if all_run && !is_unheld && !self.rest.is_refused {
            return Late::DropRest(left);
        }
        if now >= self.moved + STUCK_MILLIS { Late::Blocked } else { Late::Wait }
    }

    /// Reads that are not sent yet have locked these pages: nothing of before is in them.
    pub(super) fn note_gone(&mut self, unsent: &[ByteRange]) {
        for part in unsent {
            let new = without(*part, self.rest.dropped.iter().copied());
            self.rest.dropped.extend(new);
        }
    }

    /// Whether nothing of what was recalled is left.
    fn is_gone(&self) -> bool {
        let dropped = || self.rest.dropped.iter().copied();
        self.drop.parts.iter().all(|part| without(*part, dropped()).is_empty())
    }

    /// The recall of which it is a part.
    pub(super) fn whole(&self) -> Option<u64> {
        if let Some(For::Rest(whole)) = self.whom { Some(whole) } else { None }
    }

    /// Whether no check is needed before it is over, or begins.
    pub(super) fn needs_no_check(&self) -> bool {
        let is_recall = matches!(self.whom, Some(For::Server(..)));
        let has_place = self.is_late || self.is_free;
        if is_recall { self.is_told && has_place } else { has_place || !self.runs }
    }
}

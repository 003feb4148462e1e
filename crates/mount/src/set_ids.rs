//! What is believed of the set-id bits of a file that is open for writing here: a write takes them away, and the kernel
//! does not know of bits that another mount has set.
//!
//! A belief comes from an answer of the file's home, and counts from when that was *asked*: the answer may have waited long, and
//! a recall may have come meanwhile. A recall of attributes says that something has changed, perhaps the bits. That is less
//! than to have seen them: it makes the next write ask, but where the home does not answer the write goes on, as without the
//! recall.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ramlace_base::InodeId;

/// How long a file that is open for writing is believed to have no set-id bits.
const BELIEVED: Duration = Duration::from_millis(2_500);
/// Recalls that are remembered.
const RECENT_MAX: usize = 1_024;

/// The recalls of attributes that have come.
#[derive(Default)]
pub(crate) struct Doubts {
    count: u64,
    /// Of which files the last ones were.
    recent: VecDeque<InodeId>,
}

impl Doubts {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn note(&mut self, inode: InodeId) {
        self.count += 1;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(inode);
    }

    /// Whether one of this file came, or may have come, after there were `count`.
    pub(crate) fn any_since(&self, count: u64, inode: InodeId) -> bool {
        let since = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        since > self.recent.len() || self.recent.iter().rev().take(since).any(|recalled| *recalled == inode)
    }
}

/// The belief of one file.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SetIds {
    /// Its home has said that it has some.
    seen: bool,
    /// Its attributes were recalled since it was asked last.
    doubted: bool,
    /// When the answer was asked for.
    learned: Option<Instant>,
    /// When somebody began to ask because the belief was old.
    renewed: Option<Instant>,
    /// When its home was last asked after a recall, and did not answer.
    in_vain: Option<Instant>,
}

impl SetIds {
    /// Its home has answered what was asked then; `doubted`: its attributes were recalled since.
    pub(crate) fn learn(&mut self, has_some: bool, asked: Instant, doubted: bool) {
        // An answer that was overtaken says nothing about what has happened since.
        let is_late = self.learned.is_some_and(|learned| asked < learned);
        self.seen = has_some || (is_late && self.seen);
        self.doubted = doubted || (is_late && self.doubted);
        self.learned = self.learned.max(Some(asked));
    }

    /// Its attributes are recalled.
    pub(crate) fn doubt(&mut self) {
        self.doubted = true;
        self.in_vain = None;
    }

    /// Whether it has some, as far as is known.
    pub(crate) fn are_seen(self) -> bool {
        self.seen
    }

    /// Whether it may have got some, as a recall has told.
    pub(crate) fn are_doubted(self, now: Instant) -> bool {
        self.doubted && self.in_vain.is_none_or(|asked| is_old(asked, now))
    }

    /// Its home was asked and did not answer: for a while writes go on.
    pub(crate) fn asked_in_vain(&mut self, now: Instant) {
        self.in_vain = Some(now);
    }

    /// Whether it may have got some that no recall has told of.
    pub(crate) fn are_outdated(self, now: Instant) -> bool {
        self.learned.max(self.renewed).is_none_or(|learned| is_old(learned, now))
    }

    /// Somebody asks: others go on.
    pub(crate) fn renew(&mut self, now: Instant) {
        self.renewed = Some(now);
    }

    /// Whether the other says the same, but for when it was asked for.
    pub(crate) fn says_as(self, other: SetIds) -> bool {
        (self.seen, self.doubted) == (other.seen, other.doubted)
    }
}

fn is_old(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= BELIEVED
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    // SEMANTICS 51
    #[test]
    fn a_recall_that_comes_while_an_answer_waits_is_not_forgotten() {
        let mut doubts = Doubts::default();
        let asked = doubts.count();
        doubts.note(InodeId(8));
        assert!(!doubts.any_since(asked, FILE), "of another file");
        doubts.note(FILE);
        assert!(doubts.any_since(asked, FILE) && !doubts.any_since(doubts.count(), FILE));
        (0..=RECENT_MAX as u64).for_each(|inode| doubts.note(InodeId(100 + inode)));
        assert!(doubts.any_since(asked, FILE), "it is not known any more, and may be");

        let (now, mut belief) = (Instant::now(), SetIds::default());
        belief.learn(false, now, true);
        assert!(belief.are_doubted(now) && !belief.are_seen());
        belief.learn(false, now, false);
        assert!(!belief.are_doubted(now));
    }

    // SEMANTICS 51
    #[test]
    fn a_belief_is_as_old_as_the_question() {
        let (asked, mut belief) = (Instant::now(), SetIds::default());
        assert!(belief.are_outdated(asked));
        belief.learn(false, asked, false);
        let answered = asked + BELIEVED;
        assert!(belief.are_outdated(answered), "the answer has waited so long");
        belief.renew(answered);
        assert!(!belief.are_outdated(answered), "somebody asks");
        belief.learn(true, answered, false);
        belief.doubt();
        belief.learn(false, asked, false);
        assert!(belief.are_seen() && belief.are_doubted(answered), "this one was asked before");
        assert!(!belief.are_outdated(answered + BELIEVED / 2));
    }

    // SEMANTICS 51
    #[test]
    fn a_recall_alone_makes_a_write_ask_once_in_vain() {
        let (now, mut belief) = (Instant::now(), SetIds::default());
        belief.learn(false, now, false);
        belief.doubt();
        assert!(belief.are_doubted(now) && !belief.are_seen(), "nobody has seen any");
        belief.asked_in_vain(now);
        assert!(!belief.are_doubted(now + BELIEVED / 2), "writes go on");
        assert!(belief.are_doubted(now + BELIEVED), "and ask again");
        belief.asked_in_vain(now);
        belief.doubt();
        assert!(belief.are_doubted(now), "this is another one");
    }
}

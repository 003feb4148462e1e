//! What the kernel may cache under leases and until when, and what is kept to answer its next request. Pure:
//! the time is an argument.
//!
//! An answer is judged by the state when its request was sent: it says nothing about what was recalled since,
//! or changed here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_client::{Doubt, Renewed};
use ramlace_sync::Mutex;
use ramlace_wire::Attributes;
use ramlace_wire::leases::Leased;

use crate::kept::{Kept, Named};

/// Recalls that are remembered at most, for requests under way.
const MARKS_MAX: usize = 4_096;
/// A lease with no more than this left is renewed when it is used.
const RENEWED_WITH: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);

/// What a lease is on.
pub type Subject = (InodeId, Leased);

/// A request that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub(crate) at: Instant,
    marks: u64,
    /// The thread for whose request it is sent.
    pub(crate) thread: u32,
}

impl Asked {
    /// For facts that depend on the answers to both.
    pub(crate) fn earlier(self, other: Asked) -> Asked {
        Asked { at: self.at.min(other.at), marks: self.marks.min(other.marks), ..self }
    }
}

/// What the kernel may cache, what was recalled, and what is kept.
#[derive(Default)]
pub struct State {
    /// Grows with each mark.
    marks: u64,
    /// The mark of the last recall, or change made here: answers to older requests are not valid.
    marked: HashMap<Subject, u64>,
    /// Marks up to this one are forgotten.
    forgotten: u64,
    /// Until when at most the kernel may use what it was told: it counts a lifetime from when it processes
    /// the answer, and in whole ticks, so the margin that servers wait counts here, too.
    pub(crate) given: HashMap<Subject, Given>,
    /// Answers to requests that the kernel may repeat.
    pub(crate) kept: Kept,
    /// Slots in which changes of this mount may still be done, and how many.
    pub(crate) doubted: HashMap<Slot, usize>,
}

/// What the kernel was told under a lease.
pub struct Given {
    /// From then on no server relies on it.
    pub(crate) over: Instant,
    /// The attributes say that there are extended attributes.
    pub(crate) xattrs: bool,
    /// It will be noticed when the kernel has all answers that contain it.
    pub(crate) tracked: bool,
}

/// Attributes that are kept for the kernel, and the request that they answer, as if it had just been sent.
pub fn kept_attributes(
    state: &Mutex<State>,
    asked: Asked,
    inode: InodeId,
    renew: impl FnOnce(bool) -> Option<Renewed>,
    clock: impl Fn() -> Instant,
) -> Option<(Attributes, Asked)> {
    let (attributes, at) = {
        let state = state.lock();
        let (attributes, at) = state.kept.attributes(inode)?;
        (attributes.clone(), at)
    };
    let asked = renewed(Asked { at, ..asked }, renew, clock)?;
    // What was kept may have been recalled between reading it and the renewal.
    state.lock().is_newer(asked, (inode, Leased::Attributes)).then_some((attributes, asked))
}

/// The same for where a name leads.
pub(crate) fn kept_name(
    state: &Mutex<State>,
    asked: Asked,
    (directory, name): (InodeId, &[u8]),
    renew: impl FnOnce(bool) -> Option<Renewed>,
    clock: impl Fn() -> Instant,
) -> Option<(Named, Asked)> {
    let (named, at) = state.lock().kept.name(directory, name)?;
    let asked = renewed(Asked { at, ..asked }, renew, clock)?;
    let state = state.lock();
    let is_newer = |what| state.is_newer(asked, (directory, what));
    (is_newer(Leased::Names) && is_newer(Leased::Attributes)).then_some((named, asked))
}

/// The request that stands for what is kept, at the time of its lease's last renewal: a lease is renewed when
/// half of it is over. `None` if it cannot be. While the lease lasts, a caller does not wait for another
/// thread's renewal.
fn renewed(
    asked: Asked,
    renew: impl FnOnce(bool) -> Option<Renewed>,
    clock: impl Fn() -> Instant,
) -> Option<Asked> {
    let until = asked.at + Duration::from_millis(limits::LEASE_MILLIS);
    let left = || until.checked_duration_since(clock());
    if left().is_some_and(|left| left > RENEWED_WITH) {
        return Some(asked);
    }
    match renew(left().is_none()) {
        Some(Renewed { since, asked: again }) if asked.at > since => {
            Some(Asked { at: again.max(asked.at), ..asked })
        }
        _ => left().map(|_| asked),
    }
}

impl State {
    /// A request that is sent now.
    pub fn request(&self, at: Instant, thread: u32) -> Asked {
        Asked { at, marks: self.marks, thread }
    }

    /// The kernel is told this under a lease that came with the answer; returns for how long it may use it.
    pub fn give(
        &mut self,
        asked: Asked,
        subject: Subject,
        (xattrs, tracked): (bool, bool),
        now: Instant,
    ) -> Option<Duration> {
        let until = asked.at + Duration::from_millis(limits::LEASE_MILLIS);
        let over = until + Duration::from_millis(limits::LEASE_MARGIN_MILLIS);
        if until <= now || !self.is_newer(asked, subject) || !self.has_room_for(subject, now) {
            return None;
        }
        let before = self.given.remove(&subject).filter(|given| given.over > now);
        let (over, tracked) =
            before.map_or((over, tracked), |given| (over.max(given.over), tracked && given.tracked));
        self.given.insert(subject, Given { over, xattrs, tracked });
        Some(until - now)
    }

    /// Keeps what came with the answer to this request, under a lease, to answer the next one.
    pub fn keep_attributes(&mut self, asked: Asked, attributes: &Attributes) {
        if self.is_newer(asked, (attributes.inode, Leased::Attributes)) {
            self.kept.keep_attributes(attributes, asked.at);
        }
    }

    /// A lease is recalled. Returns until when the kernel may use what it was told under it, if anything: the
    /// kernel has to drop that.
    pub fn recall(&mut self, subject: Subject) -> Option<Instant> {
        self.kept.recall(subject.0, subject.1);
        Some(self.mark(subject)?.over)
    }

    /// The session has ended, and its leases with it. Returns what the kernel was told.
    pub fn end(&mut self) -> Vec<(Subject, Instant)> {
        self.forget_marks();
        self.kept.clear();
        self.doubted.clear();
        self.given.drain().map(|(subject, given)| (subject, given.over)).collect()
    }

    /// Whether nothing was recalled since the request was sent, and the slot is not in doubt, where changes
    /// would not be recalled.
    pub fn is_newer(&self, asked: Asked, subject: Subject) -> bool {
        asked.marks >= self.forgotten
            && self.marked.get(&subject).is_none_or(|mark| *mark <= asked.marks)
            && !self.doubted.contains_key(&subject.0.slot())
    }

    /// Returns what the kernel was told of a slot whose doubt begins or ends.
    pub fn doubt(&mut self, slot: Slot, doubt: Doubt) -> Vec<(Subject, Instant)> {
        self.forget_marks();
        let count = self.doubted.get(&slot).copied().unwrap_or_default();
        let count = if doubt == Doubt::Begins { count + 1 } else { count.saturating_sub(1) };
        if count > 0 {
            self.doubted.insert(slot, count);
        } else {
            self.doubted.remove(&slot);
        }
        self.kept.forget_slot(slot);
        let of_slot = self.given.extract_if(|(inode, _), _| inode.slot() == slot);
        of_slot.map(|(subject, given)| (subject, given.over)).collect()
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room_for(&mut self, subject: Subject, now: Instant) -> bool {
        if self.given.len() < limits::LEASES_PER_MOUNT_MAX || self.given.contains_key(&subject) {
            return true;
        }
        self.given.retain(|_, given| given.over > now);
        self.given.len() < limits::LEASES_PER_MOUNT_MAX
    }

    /// Answers to all earlier requests become invalid.
    pub(crate) fn forget_marks(&mut self) {
        self.marks += 1;
        self.marked.clear();
        self.forgotten = self.marks;
    }

    pub(crate) fn move_name(&mut self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        for (directory, name) in [from, to] {
            match self.kept.name(directory, name).map(|(named, _)| named.inode()) {
                Some(Some(inode)) => self.outdate((inode, Leased::Attributes)),
                Some(None) => {}
                None => self.forget_attributes(),
            }
            self.kept.forget_name(directory, name);
        }
    }

    /// It is not known which inodes' attributes have changed.
    pub(crate) fn forget_attributes(&mut self) {
        self.forget_marks();
        self.kept.forget_all_attributes();
    }

    /// Answers to earlier requests about this become invalid, and are not kept.
    pub(crate) fn outdate(&mut self, subject: Subject) {
        if self.marked.len() >= MARKS_MAX {
            self.forget_marks();
        }
        self.marks += 1;
        self.marked.insert(subject, self.marks);
        if subject.1 == Leased::Attributes {
            self.kept.forget_attributes(subject.0);
        }
    }

    /// The same; returns what the kernel was told, even if its time is over: the kernel uses a delayed answer
    /// from when it gets it.
    pub fn mark(&mut self, subject: Subject) -> Option<Given> {
        self.outdate(subject);
        self.given.remove(&subject)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kept::tests::{DIRECTORY, directory};

    const FILE: Subject = (DIRECTORY, Leased::Attributes);

    fn request(state: &State) -> Asked {
        state.request(Instant::now(), 1)
    }

    #[test]
    fn an_answer_to_a_request_from_before_a_recall_is_not_believed() {
        let mut state = State::default();
        let before = request(&state);
        assert!(state.is_newer(before, FILE));
        assert!(state.mark(FILE).is_none(), "the kernel had nothing");
        assert!(!state.is_newer(before, FILE));
        assert!(state.is_newer(before, (FILE.0, Leased::Names)), "that is another lease");
        assert!(state.is_newer(request(&state), FILE));
    }

    /// What is known of a directory under expired leases: that nothing is in it, or where one name leads.
    fn known(size: u64) -> (Mutex<State>, Instant) {
        let (mut state, then) = (State::default(), Instant::now() - Duration::from_secs(60));
        state.kept.keep_attributes(&directory(size), then);
        if size > 0 {
            state.kept.keep_name(FILE.0, b"name", Named::At(InodeId(71)), then);
        }
        (Mutex::new(state), then)
    }

    // SEMANTICS 138.2
    #[test]
    fn what_is_recalled_while_leases_are_renewed_is_not_answered() {
        let (empty, full) = (0, 1);
        for (size, what) in [(empty, Leased::Attributes), (full, Leased::Names), (full, Leased::Attributes)] {
            let (state, then) = known(size);
            let asked = request(&state.lock());
            let renews = |_| Some(Renewed { since: then - Duration::from_secs(1), asked: Instant::now() });
            let recalled = |_| {
                state.lock().recall((FILE.0, what));
                renews(true)
            };
            assert!(kept_name(&state, asked, (FILE.0, b"name"), renews, Instant::now).is_some());
            assert!(kept_attributes(&state, asked, FILE.0, renews, Instant::now).is_some());
            if what == Leased::Attributes {
                assert!(kept_attributes(&state, asked, FILE.0, recalled, Instant::now).is_none());
            }
            let (state, _) = known(size);
            let recalled = |_| {
                state.lock().recall((FILE.0, what));
                renews(true)
            };
            assert!(kept_name(&state, asked, (FILE.0, b"name"), recalled, Instant::now).is_none());
        }
    }

    // SEMANTICS 138.2
    #[test]
    fn what_was_known_before_a_server_took_leases_is_not_renewed() {
        let (state, then) = known(1);
        let asked = request(&state.lock());
        let later = |_| Some(Renewed { since: then + Duration::from_secs(1), asked: Instant::now() });
        // Something else of the directory is known under a present lease.
        state.lock().kept.keep_name(FILE.0, b"other", Named::At(InodeId(72)), Instant::now());
        assert!(kept_name(&state, asked, (FILE.0, b"other"), |_| None, Instant::now).is_some());
        assert!(kept_name(&state, asked, (FILE.0, b"name"), later, Instant::now).is_none());
        assert!(kept_attributes(&state, asked, FILE.0, later, Instant::now).is_none());
    }

    // SEMANTICS 138.3
    #[test]
    fn a_rename_that_may_have_done_nothing_hides_no_name() {
        let (state, _) = known(1);
        let mut state = state.lock();
        state.kept.keep_attributes(&Attributes { inode: InodeId(80), ..directory(0) }, Instant::now());
        state.move_name((FILE.0, b"name"), (InodeId(80), b"link"));
        assert!(state.kept.name(FILE.0, b"name").is_none());
        assert!(state.kept.name(InodeId(80), b"link").is_none());
        assert!(state.kept.name(InodeId(80), b"other").is_none(), "it was empty before");
    }

    // SEMANTICS 138.4
    #[test]
    fn nothing_is_kept_or_believed_of_a_slot_in_which_something_may_be_done_yet() {
        let (state, _) = known(1);
        let mut state = state.lock();
        let elsewhere = InodeId::new(Slot(9), 1);
        state.kept.keep_attributes(&Attributes { inode: elsewhere, ..directory(0) }, Instant::now());
        let over = Instant::now();
        state.given.insert(FILE, Given { over, xattrs: false, tracked: true });
        let before = request(&state);
        assert_eq!(state.doubt(FILE.0.slot(), Doubt::Begins), [(FILE, over)], "the kernel drops it");
        assert!(state.kept.name(FILE.0, b"name").is_none() && state.kept.attributes(FILE.0).is_none());
        assert!(state.kept.attributes(elsewhere).is_some(), "another slot");
        assert!(state.is_newer(request(&state), (elsewhere, Leased::Attributes)));
        assert!(!state.is_newer(before, FILE) && !state.is_newer(request(&state), FILE));
        state.doubt(FILE.0.slot(), Doubt::Begins);
        state.doubt(FILE.0.slot(), Doubt::Ends);
        let between = request(&state);
        assert!(!state.is_newer(between, FILE), "another is not over");
        state.doubt(FILE.0.slot(), Doubt::Ends);
        assert!(!state.is_newer(between, FILE), "its answer may be of before");
        assert!(state.is_newer(request(&state), FILE));
    }

    // SEMANTICS 77.2
    #[test]
    fn what_was_told_is_dropped_also_where_it_should_be_over() {
        let mut state = State::default();
        let over = Instant::now() - Duration::from_secs(1);
        state.given.insert(FILE, Given { over, xattrs: false, tracked: true });
        assert!(state.mark(FILE).is_some(), "the daemon may have been stopped with the answer in its hand");
        assert!(state.mark(FILE).is_none());
    }

    // SEMANTICS 138.2
    #[test]
    fn nobody_waits_for_another_who_renews_while_a_lease_lasts() {
        let (lasts, over) = (
            Instant::now() - RENEWED_WITH - Duration::from_millis(1),
            Instant::now() - Duration::from_secs(60),
        );
        let ask = |at| {
            let asks = |wait| {
                assert_eq!(wait, at == over);
                None
            };
            renewed(Asked { at, marks: 0, thread: 1 }, asks, Instant::now)
        };
        assert_eq!(ask(lasts).map(|asked| asked.at), Some(lasts));
        assert!(ask(over).is_none());
    }

    #[test]
    fn forgotten_marks_void_whatever_was_asked_before() {
        let mut state = State::default();
        let before = request(&state);
        for inode in 0..=MARKS_MAX as u64 {
            state.mark((InodeId(100 + inode), Leased::Attributes));
        }
        assert!(state.marked.len() <= MARKS_MAX);
        assert!(!state.is_newer(before, FILE));
        assert!(state.is_newer(request(&state), FILE));
    }
}

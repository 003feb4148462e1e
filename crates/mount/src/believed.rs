//! The state of the leases on attributes and names that this mount has: what the kernel may cache and until when,
//! what was recalled, and what is kept to answer the kernel's next request. [`crate::leases`] drives it. Pure: the
//! time is an argument; the simulator drives it, too.
//!
//! An answer counts as of the time when its request was sent (`Asked`): what was recalled or changed here since
//! then is not in it, perhaps, so a lease that came with it is not used.

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

/// When a request was sent, in time and in recalls.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub(crate) at: Instant,
    marks: u64,
    /// The thread for whose request it is sent.
    pub(crate) thread: u32,
}

impl Asked {
    /// The earlier one of two: for what follows from both answers.
    pub(crate) fn earlier(self, other: Asked) -> Asked {
        Asked { at: self.at.min(other.at), marks: self.marks.min(other.marks), ..self }
    }
}

/// What the kernel may cache, what was recalled, and what is kept.
#[derive(Default)]
pub struct State {
    /// The number of marks so far. A mark is a recall, or a change made here.
    marks: u64,
    /// The last mark of each subject: answers to older requests are not valid.
    marked: HashMap<Subject, u64>,
    /// Marks up to this one are not in `marked` any more: answers to requests from before it are not valid.
    forgotten: u64,
    /// Until when at most the kernel may use what it was given. It counts a lifetime from when it processes
    /// the reply, and in whole ticks, so the margin that servers wait counts here, too.
    pub(crate) given: HashMap<Subject, Given>,
    /// Answers to requests that the kernel may repeat.
    pub(crate) kept: Kept,
    /// Slots in which changes of this mount may still be done, and how many.
    pub(crate) doubted: HashMap<Slot, usize>,
}

/// What the kernel was given under a lease: attributes, or names of a directory.
pub struct Given {
    /// From then on the lease has ended for every server: it waits for no recall of it.
    pub(crate) over: Instant,
    /// The attributes say that there are extended attributes.
    pub(crate) xattrs: bool,
    /// [`crate::replies_in_flight`] will know when the kernel has processed all replies that contain it.
    pub(crate) tracked: bool,
}

/// Kept attributes under a valid lease, which is renewed where needed, and the request that they count as the
/// answer to.
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

/// The same for what a name leads to.
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

/// Renews the lease of what is kept, if half of it is over. Returns the request that it counts as the answer to:
/// the last renewal. `None` if the lease has expired and cannot be renewed. `renew` is called with whether to wait for
/// another thread's renewal: only if the lease has expired.
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
    /// Notes the time at which a request is sent, for its answer to be judged by.
    pub fn request(&self, at: Instant, thread: u32) -> Asked {
        Asked { at, marks: self.marks, thread }
    }

    /// The kernel is given something under a lease that came with the answer to this request. Returns the lifetime
    /// for the reply; `None` if the lease must not be used.
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

    /// A server recalls a lease. Returns until when the kernel may use what it was given under that lease; the
    /// caller has to make the kernel drop it. `None` if it was given nothing.
    pub fn recall(&mut self, subject: Subject) -> Option<Instant> {
        self.kept.recall(subject.0, subject.1);
        Some(self.mark(subject)?.over)
    }

    /// The session has ended, and its leases with it. Returns everything that the kernel was given, which the
    /// caller has to make it drop.
    pub fn end(&mut self) -> Vec<(Subject, Instant)> {
        self.forget_marks();
        self.kept.clear();
        self.doubted.clear();
        self.given.drain().map(|(subject, given)| (subject, given.over)).collect()
    }

    /// Whether the answer to this request may be used: nothing of the subject was recalled or changed since the
    /// request was sent, and its slot is not in doubt ([`State::doubt`]).
    pub fn is_newer(&self, asked: Asked, subject: Subject) -> bool {
        asked.marks >= self.forgotten
            && self.marked.get(&subject).is_none_or(|mark| *mark <= asked.marks)
            && !self.doubted.contains_key(&subject.0.slot())
    }

    /// A slot's doubt begins or ends: a change of this mount was cancelled that its server may still make, and
    /// would not recall from this mount. Nothing of the slot is kept meanwhile. Returns what the kernel was given
    /// of it, which the caller has to make it drop.
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

    /// Attributes have changed, and it is not known of which inodes.
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

    /// The same; returns what the kernel was given, even if its time is over: the lifetime of a delayed reply
    /// begins when the kernel gets it.
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

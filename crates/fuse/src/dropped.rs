//! Finds out which answers with a file's size the kernel may ignore, and has the size shown to it in another way.
//!
//! The kernel takes nothing from a reply to GETATTR, not even the size, if it has dropped something of the node since it
//! sent the request. A read that has sent the request then ends where the file ended before. The daemon cannot see when
//! the kernel sent a request or when it processes a reply: a request may have been queued while the drop was made, and a
//! reply may have been sent and not processed yet. So a drop is remembered until the next answer, and an answer for
//! [`TAKEN_IN`]. Where a drop and an answer may have met, the size is also *shown*: the kernel is sent a STORE of no bytes,
//! which makes it raise the size ([`crate::Notifier::answering_size`]).
//!
//! Two more cases are treated alike:
//!
//! * A reply to a READ that says that the file ends before those pages. A kernel that took the file for longer then takes
//!   it to end there, and ignores other replies of that time ([`AnsweringEnd`]).
//! * Two replies that are sent close to each other. The kernel numbers its requests and the replies that it has processed;
//!   a thread that processes the older reply last makes it ignore the newer one. So an answer that is older than another
//!   one is not sent at all ([`Answering::IsOld`]). Where the newer one is sent last, the kernel is notified that its
//!   attributes are invalid, which voids both, and then the size is shown ([`Answering::Renew`]). That is left out where
//!   the kernel may take the file for longer than it is, because a size that shrinks cannot be shown.
//!
//! A reply to SETATTR or LINK, or to CREATE of a file that was there before, the kernel takes in whatever it was answered
//! since it sent the request: a smaller size takes back what a program has learned meanwhile, and drops what it has stored
//! behind. So such a reply has no older size than any before, and an answer with a larger one waits until it was sent
//! ([`AnsweringSet`]) and taken in, and is shown. A thread that asks again has taken it in; of others that is not seen, and
//! they may wake up later than who is answered next: hence [`SET_WITHIN`].
//!
//! While the size is being shown for one answer, other answers for the same node show it, too: the kernel would ignore
//! them as well.
//!
//! To make drops wait for such requests instead would let machines wait for each other. To void both answers each time, also where the file may have
//! become shorter, was tried: the kernel then ignores the answer itself, and reads zeros where the file has ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_sync::{Condvar, Mutex, MutexGuard};

/// Nodes that are remembered, at most.
const NODES_MAX: usize = 65_536;
/// So long after its answer a thread may not have taken it in: it does that when it gets a processor.
const TAKEN_IN: Duration = Duration::from_secs(1);
/// So long after a reply that the kernel takes in whatever it was answered, answers with a larger size wait. Its thread takes it in
/// within microseconds; this is for one that gets no processor just then.
const SET_WITHIN: Duration = Duration::from_millis(20);

/// How long a file is. The later of two sizes is the greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// Raised whenever the file may become shorter; until then it only becomes longer.
    pub generation: u64,
    /// In bytes.
    pub bytes: u64,
}

/// A request for a size was read.
#[derive(Clone, Copy, Debug)]
pub struct SizeAsked {
    /// How many replies were sent by then that the kernel takes in whatever it was answered. `None`: it may not have taken in the last one.
    sets: Option<u64>,
    /// The thread that asks; 0 if it is not known.
    thread: u32,
}

/// What to do before the kernel is answered that a file has some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answering {
    /// Another answer was newer: this one is not to be given.
    IsOld,
    /// Nothing.
    Plain,
    /// To show the size, and then to pass [`Dropped::shown`] this number.
    Show(u64),
    /// The same, and before that to void what the kernel has not taken in.
    Renew(u64),
}

/// Nodes with drops and answers that may meet.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    state: Mutex<State>,
    /// A reply that the kernel takes in whatever it was answered was sent.
    set: Condvar,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<u64, Node>,
    /// There were too many with drops: from then on, any may be one.
    all: bool,
    /// When there was no room although it was searched for: it is not searched for again at once.
    full_since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Node {
    /// How often it was asked to drop something, or notified that the file ends.
    drops: u64,
    /// How many of these were over when the last answer that was shown began to be.
    shown: u64,
    /// Reads that are about to be answered that the file ends before their pages.
    ends: u32,
    /// Replies that are about to be sent and that the kernel takes in whatever it was answered.
    setting: u32,
    /// How many of these were sent.
    sets: u64,
    /// The size that the last of these contains.
    set: Option<Size>,
    /// When the last one was sent, and to which thread; 0 if it is not known, or not the only one of that time.
    set_last: Option<(Instant, u32)>,
    /// The size that was answered last, and when.
    answered: Option<(u64, Instant)>,
    /// The smallest size that was answered since the kernel has last voided what it had not taken in, and when.
    least: Option<(u64, Instant)>,
    /// The size that was answered last, as long as the kernel has none that is newer.
    last: Option<Size>,
    /// The kernel does not take the file for longer than this by what it was answered; `None`: it is not known.
    most: Option<u64>,
}

impl Node {
    fn is_dropped(&self) -> bool {
        self.drops != self.shown || self.ends > 0
    }

    /// Whether an answer may not have been taken in yet.
    fn is_being_answered(&self, now: Instant) -> bool {
        let answers = [self.answered, self.least];
        let is_being_set = self.setting > 0 || self.set_at(0, now).is_some();
        is_being_set || answers.into_iter().flatten().any(|(_, at)| now.duration_since(at) < TAKEN_IN)
    }

    /// When a reply was sent that the kernel takes in whatever it was answered, if it may not have done that yet, now that this thread asks.
    fn set_at(&self, thread: u32, now: Instant) -> Option<Instant> {
        let is_taken_in =
            |at, by| now.saturating_duration_since(at) >= SET_WITHIN || (by == thread && by != 0);
        self.set_last.filter(|(at, by)| !is_taken_in(*at, *by)).map(|(at, _)| at)
    }

    /// Until when the kernel may take in a smaller size than this, whatever it is answered. `None` instead of a thread: it has taken in what was sent.
    fn is_set_until(&self, size: Size, thread: Option<u32>, now: Instant) -> Option<Instant> {
        if self.set.is_some_and(|set| size <= set) {
            return None;
        }
        let sent = thread.and_then(|thread| self.set_at(thread, now)).map(|at| at + SET_WITHIN);
        if self.setting > 0 { Some(now + TAKEN_IN) } else { sent }
    }

    /// Takes down that the kernel is given this size. Whether a smaller one may be taken in behind it.
    fn note(&mut self, size: u64) -> bool {
        let now = Instant::now();
        let is_on_its_way = |(_, at): &(u64, Instant)| now.duration_since(*at) < TAKEN_IN;
        let before = self.least.filter(is_on_its_way);
        let is_alone =
            self.answered.filter(is_on_its_way).is_none() && before.is_none() && !self.is_dropped();
        self.most = if is_alone { Some(size) } else { self.most.map(|most| most.max(size)) };
        let is_least = before.is_none_or(|(least, _)| size <= least);
        if is_least {
            self.least = Some((size, now));
        }
        !is_least
    }

    /// Takes down an answer. Whether what the kernel has not taken in is to be void before it is shown this size.
    fn answer(&mut self, size: u64, may_be_longer: bool) -> bool {
        let most = self.most;
        let may_shrink = self.note(size);
        self.answered = Some((size, Instant::now()));
        may_shrink && !may_be_longer && most.is_some_and(|most| size >= most)
    }
}

impl State {
    fn node(&mut self, node: u64) -> Option<&mut Node> {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
            self.make_room();
            if self.nodes.len() >= NODES_MAX {
                return None;
            }
        }
        Some(self.nodes.entry(node).or_default())
    }

    /// Forgets the nodes of which nothing is in flight to the kernel.
    fn make_room(&mut self) {
        let now = Instant::now();
        if self.full_since.is_some_and(|since| now.duration_since(since) < TAKEN_IN) {
            return;
        }
        self.nodes.retain(|_, node| node.is_dropped() || node.is_being_answered(now));
        self.full_since = (self.nodes.len() >= NODES_MAX).then_some(now);
    }

    fn dropped(&mut self, node: u64) -> Option<&mut Node> {
        if self.node(node).is_none() {
            self.all = true;
        }
        let node = self.nodes.get_mut(&node)?;
        node.drops += 1;
        Some(node)
    }
}

impl Dropped {
    /// The kernel is about to be notified of a drop. The size that it is to be shown before.
    pub(crate) fn begin(&self, of: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let node = state.dropped(of)?;
        node.least = None;
        node.answered.take().filter(|(_, at)| at.elapsed() < TAKEN_IN).map(|(size, _)| size)
    }

    /// The kernel was notified of it.
    pub(crate) fn end(&self, of: u64) {
        self.state.lock().dropped(of);
    }

    /// The kernel is about to be answered. A size that shrinks cannot be shown, and its page is left alone where it is the only one.
    /// `may_be_longer`: the kernel may take the file for longer than it was answered, since programs here write it.
    pub(crate) fn answer(&self, of: u64, size: Size, may_be_longer: bool, asked: SizeAsked) -> Answering {
        let mut state = self.when_none_is_set(of, size, Some(asked.thread));
        let all = state.all;
        let Some(node) = state.node(of) else { return Answering::Show(0) };
        if node.last.is_some_and(|last| size < last) {
            return Answering::IsOld;
        }
        if node.set != Some(size) && (node.setting > 0 || asked.sets != Some(node.sets)) {
            // It ignores the answer, as if something had been dropped meanwhile.
            node.drops += 1;
        }
        let shrinks = node.last.replace(size).is_some_and(|last| size.bytes < last.bytes);
        let is_shown = size.bytes > 0 && !(shrinks && size.bytes <= rustix::param::page_size() as u64);
        if node.answer(size.bytes, may_be_longer) {
            return Answering::Renew(node.drops);
        }
        if (node.is_dropped() || all) && is_shown { Answering::Show(node.drops) } else { Answering::Plain }
    }

    /// This thread asks for a size; what this returns is passed on when it is answered.
    pub(crate) fn asks(&self, of: u64, thread: u32) -> SizeAsked {
        let now = Instant::now();
        let sets = match self.state.lock().nodes.get(&of) {
            Some(node) => node.set_at(thread, now).is_none().then_some(node.sets),
            None => Some(0),
        };
        SizeAsked { sets, thread }
    }

    /// The state, when the kernel has taken in each reply by which it would take the file for shorter again.
    fn when_none_is_set(&self, of: u64, size: Size, thread: Option<u32>) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let mut now = Instant::now();
        let end = now + TAKEN_IN;
        while let Some(until) = state.nodes.get(&of).and_then(|node| node.is_set_until(size, thread, now)) {
            if now >= end {
                break;
            }
            state = self.set.wait_timeout(state, until.min(end).saturating_duration_since(now));
            now = Instant::now();
        }
        state
    }

    /// The kernel is about to be given this size for this thread, and takes it in whatever it was answered since that sent the request; the result
    /// is to be dropped after the reply. `None`: another answer was newer, so this size is not to be given. `is_cut`: the request has set the size
    /// itself, which is what the kernel makes of its pages.
    pub(crate) fn begin_setting(
        self: &Arc<Dropped>,
        of: u64,
        size: Size,
        is_cut: bool,
        thread: u32,
    ) -> Option<AnsweringSet> {
        // The kernel lets nobody truncate a file while a thread sets its attributes or has not taken in that it did.
        let mut state = self.when_none_is_set(of, size, (!is_cut).then_some(thread));
        if let Some(node) = state.node(of) {
            if node.last.is_some_and(|last| size < last) && !is_cut {
                return None;
            }
            node.last = node.last.max(Some(size));
            node.most = node.most.map(|most| most.max(size.bytes));
            node.setting += 1;
            node.set = Some(size);
        }
        drop(state);
        Some(AnsweringSet { dropped: self.clone(), of, thread })
    }

    fn end_setting(&self, of: u64, thread: u32) {
        if let Some(node) = self.state.lock().nodes.get_mut(&of) {
            let now = Instant::now();
            let is_only_one = node.set_at(thread, now).is_none();
            node.setting = node.setting.saturating_sub(1);
            node.sets += 1;
            node.set_last = Some((now, if is_only_one { thread } else { 0 }));
        }
        self.set.notify_all();
    }

    /// The kernel is about to be given an entry that leads to a file of this size.
    pub(crate) fn entry(&self, of: u64, bytes: u64) {
        let mut state = self.state.lock();
        // A tree that is walked is larger than the table; it is not searched for room each time.
        if state.nodes.len() < NODES_MAX || state.nodes.contains_key(&of) {
            state.nodes.entry(of).or_default().note(bytes);
        }
    }

    /// The kernel was asked to void what it has not taken in, to be shown this size.
    pub(crate) fn voided(&self, of: u64, size: Size) {
        if let Some(node) = self.state.lock().nodes.get_mut(&of) {
            node.drops += 1;
            if node.least.is_some_and(|(least, _)| least < size.bytes) {
                node.least = Some((size.bytes, Instant::now()));
            }
        }
    }

    /// The kernel was shown the size. Until then others are not answered without it.
    pub(crate) fn shown(&self, of: u64, drops: u64) {
        if let Some(node) = self.state.lock().nodes.get_mut(&of) {
            node.shown = node.shown.max(drops).min(node.drops);
        }
    }

    /// A read for pages is about to be answered that the file ends before them; until what is returned is dropped.
    fn begin_end(&self, of: u64) {
        let mut state = self.state.lock();
        if let Some(node) = state.dropped(of) {
            node.ends += 1;
        }
    }

    fn end_end(&self, of: u64) {
        let mut state = self.state.lock();
        if let Some(node) = state.dropped(of) {
            node.ends = node.ends.saturating_sub(1);
        }
    }

    /// What was answered is no more: the file was cut here, or the kernel has forgotten it.
    pub(crate) fn forget_answer(&self, of: u64) {
        if let Some(node) = self.state.lock().nodes.get_mut(&of) {
            (node.answered, node.last, node.most) = (None, None, None);
        }
    }

    /// The kernel does not know the node any more.
    pub(crate) fn forget(&self, node: u64) {
        self.state.lock().nodes.remove(&node);
    }
}

/// A read whose answer shows the kernel that a file ends, until that was sent.
#[derive(Debug)]
pub struct AnsweringEnd {
    dropped: Arc<Dropped>,
    of: u64,
}

impl AnsweringEnd {
    pub(crate) fn begin(dropped: &Arc<Dropped>, of: u64) -> AnsweringEnd {
        dropped.begin_end(of);
        AnsweringEnd { dropped: dropped.clone(), of }
    }
}

impl Drop for AnsweringEnd {
    fn drop(&mut self) {
        self.dropped.end_end(self.of);
    }
}

/// A reply with a size that the kernel takes in whatever it was answered, until it was sent.
#[derive(Debug)]
pub struct AnsweringSet {
    dropped: Arc<Dropped>,
    of: u64,
    thread: u32,
}

impl Drop for AnsweringSet {
    fn drop(&mut self) {
        self.dropped.end_setting(self.of, self.thread);
    }
}

#[cfg(test)]
#[path = "dropped_tests.rs"]
mod tests;

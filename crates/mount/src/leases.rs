//! What the kernel may believe without asking: attributes and names, for the rest of a lease.
//!
//! A reply may bring a lifetime when its answer came with a lease and nothing was recalled since the question left. A
//! recall ends it: the kernel is told to drop what it has, and what is on its way to it is void, for the kernel goes by
//! what was told between a question and its answer (the version of its attributes, the epoch of its names). The one case
//! in which there is nothing to tell it of is an inode that it is just hearing of for the first time: then it is told
//! again until it knows it. So it is counted which inodes it knows: one that it has forgotten it does not believe. Of a file that
//! a thread has just made it takes the answer as it is: a recall waits until that thread asks something more, or a moment ([`Told`]).
//!
//! For no other request of the kernel anything waits here, and for no answer of a server. So names are dropped by a new epoch of all
//! names, and not one by one: for that the kernel takes the directory's lock, which two mounts may hold against each
//! other.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_client::{Doubt, Raw, Renewed};
use ramlace_fuse::Notifier;
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;
use ramlace_wire::leases::{Leased, Recall};
use ramlace_wire::namespace::EntryLeased;

use crate::kept::{Kept, Named};
use crate::told::Told;

/// How long attributes are believed where each walk asks for each name, and so for what it leads to: for the checks of
/// rights on the way (the kernel rounds up to a tick).
const ONE_WALK: Duration = Duration::from_millis(1);
/// Recalls that are remembered for questions under way, at most.
const MARKS_MAX: usize = 4_096;
/// Pause before the kernel is told again of an inode that it does not know yet.
const PAUSE: Duration = Duration::from_micros(500);

/// A lease of which so much is left is renewed when it is used.
const RENEWED_WITH: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);

type Subject = (InodeId, Leased);

/// What this mount has done with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// It leads to this inode, and the directory's names are leased.
    Made(InodeId),
    /// It was made, and leads to this inode as long as what is leased of the directory stays so.
    MadeOnce(InodeId),
    Removed,
    /// No answer came, or an error.
    Perhaps,
}

/// Something that came with a lease.
#[derive(Clone, Copy)]
pub(crate) enum Keeping<'a> {
    Attributes(&'a Attributes),
    Name {
        directory: InodeId,
        name: &'a [u8],
        inode: InodeId,
    },
    /// There is no such name in this directory.
    Absence {
        directory: &'a Attributes,
        name: &'a [u8],
    },
}

/// How long the kernel may believe what an entry says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Believed {
    pub(crate) name: Duration,
    pub(crate) attributes: Duration,
}

impl Believed {
    /// Not at all: the kernel takes these answers without looking whether something was recalled meanwhile.
    pub(crate) const NOT: Believed = Believed { name: Duration::ZERO, attributes: Duration::ZERO };
}

/// A question that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Instant,
    marks: u64,
    /// Whose request it is for.
    thread: u32,
}

impl Asked {
    /// For what was leased by answers to both.
    pub(crate) fn earlier(self, other: Asked) -> Asked {
        Asked { at: self.at.min(other.at), marks: self.marks.min(other.marks), ..self }
    }
}

thread_local! {
    /// Whose request this worker handles.
    static ASKER: Cell<u32> = const { Cell::new(0) };
}

/// What the kernel believes, and what has been recalled.
pub(crate) struct Leases {
    told: Told,
    notifier: Notifier,
    /// Names are believed: the kernel has epochs, and all programs are one user's.
    pub(crate) names: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Grows with each mark.
    marks: u64,
    /// What was recalled, or changed here, last: answers to older questions are not believed.
    marked: HashMap<Subject, u64>,
    /// Marks up to this one are forgotten.
    forgotten: u64,
    /// What the kernel may believe at most until when: it counts a lifetime from when it takes the answer in, and in
    /// whole ticks, so the margin that servers wait counts here, too.
    given: HashMap<Subject, Given>,
    /// How many entries that lead to an inode the kernel was told, or is being told, and has not forgotten.
    lookups: HashMap<InodeId, i64>,
    /// What the kernel may ask for once more.
    kept: Kept,
    /// Slots in which something of this mount's may be done yet, and how much.
    doubted: HashMap<Slot, usize>,
}

/// What the kernel was told by a lease.
struct Given {
    /// No server counts on it any more.
    over: Instant,
    /// The attributes say that there are extended ones.
    xattrs: bool,
    /// It will be known when the kernel has all answers that told it.
    tracked: bool,
}

/// Attributes that the kernel may believe, and that are recalled when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttributesBelieved {
    /// The kernel asks again then.
    pub(crate) until: Instant,
    /// There are extended ones.
    pub(crate) xattrs: bool,
}

/// An inode whose attributes were leased, or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) inode: InodeId,
    pub(crate) leased: bool,
    pub(crate) xattrs: bool,
}

impl Offered {
    pub(crate) fn of(attributes: &Attributes, leased: bool) -> Offered {
        Offered { inode: attributes.inode, leased, xattrs: attributes.xattrs }
    }

    fn subject(self) -> Subject {
        (self.inode, Leased::Attributes)
    }
}

impl Leases {
    pub(crate) fn new(notifier: Notifier, names: bool) -> Leases {
        Leases { told: Told::default(), notifier, names, state: Mutex::default() }
    }

    /// To be called before each question whose answer may bring leases.
    pub(crate) fn ask(&self) -> Asked {
        Asked { marks: self.lock().marks, at: Instant::now(), thread: ASKER.get() }
    }

    /// How long an entry may be believed, whose leases were given or not. The kernel is told of it next.
    pub(crate) fn entry(&self, asked: Asked, parent: (InodeId, bool), offered: Offered) -> Believed {
        let name = if parent.1 { self.give(asked, (parent.0, Leased::Names), false, false) } else { None };
        // Before it is looked whether they were recalled: a recall that comes behind that finds it known.
        self.count(offered.inode, 1);
        let attributes = self.give_attributes(asked, offered);
        // Where names are believed, a walk asks for nothing.
        let unleased = if self.names { Duration::ZERO } else { ONE_WALK };
        Believed { name: name.unwrap_or_default(), attributes: attributes.unwrap_or(unleased) }
    }

    /// The same of a file that the request has made. The kernel takes the attributes of what it hears of for the first
    /// time without looking whether they were recalled meanwhile: so a recall waits until the thread has them.
    pub(crate) fn made(
        &self,
        asked: Asked,
        (parent, leased): (InodeId, EntryLeased),
        made: &Attributes,
    ) -> Believed {
        let is_news = !self.is_known(made.inode);
        let attributes = leased.attributes && is_news && self.told.begin_made(made.inode, asked.thread);
        let believed = self.entry(asked, (parent, leased.names && self.names), Offered::of(made, attributes));
        if attributes { believed } else { Believed { attributes: Duration::ZERO, ..believed } }
    }

    /// This thread asks something: it has what it was told before.
    pub(crate) fn asks(&self, thread: u32) {
        ASKER.set(thread);
        self.told.end(thread);
    }

    /// How long attributes may be believed.
    pub(crate) fn attributes(&self, asked: Asked, offered: Offered) -> Duration {
        self.give_attributes(asked, offered).unwrap_or_default()
    }

    fn give_attributes(&self, asked: Asked, offered: Offered) -> Option<Duration> {
        if !offered.leased {
            return None;
        }
        let tracked = self.told.begin(offered.inode, asked.thread);
        self.give(asked, offered.subject(), offered.xattrs, tracked)
    }

    /// What the kernel may believe of an inode's attributes, unless they were recalled since the question left: then what
    /// was answered to it may be kept as long.
    pub(crate) fn attributes_believed(&self, asked: Asked, inode: InodeId) -> Option<AttributesBelieved> {
        let (state, subject) = (self.lock(), (inode, Leased::Attributes));
        let given = state.given.get(&subject).filter(|_| state.is_newer(asked, subject))?;
        let until = given.over - Duration::from_millis(limits::LEASE_MARGIN_MILLIS);
        (until > Instant::now()).then_some(AttributesBelieved { until, xattrs: given.xattrs })
    }

    /// The kernel is being told of an entry that leads to this inode, or, with a number below 0, has forgotten so many.
    /// Whether it does not know the inode any more.
    pub(crate) fn count(&self, inode: InodeId, more: i64) -> bool {
        let mut state = self.lock();
        let lookups = state.lookups.entry(inode).or_default();
        *lookups += more;
        let unknown = *lookups == 0;
        if unknown {
            state.lookups.remove(&inode);
        }
        unknown
    }

    /// The kernel was told of the inode and has not forgotten it.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.lock().lookups.contains_key(&inode)
    }

    fn give(&self, asked: Asked, subject: Subject, xattrs: bool, tracked: bool) -> Option<Duration> {
        let until = asked.at + Duration::from_millis(limits::LEASE_MILLIS);
        let over = until + Duration::from_millis(limits::LEASE_MARGIN_MILLIS);
        let mut state = self.lock();
        let now = Instant::now();
        if until <= now || !state.is_newer(asked, subject) {
            return None;
        }
        if !state.has_room_for(subject, now) {
            return None;
        }
        let before = state.given.remove(&subject).filter(|given| given.over > now);
        let (over, tracked) =
            before.map_or((over, tracked), |given| (over.max(given.over), tracked && given.tracked));
        state.given.insert(subject, Given { over, xattrs, tracked });
        Some(until - now)
    }

    /// The mount has changed these itself. The kernel knows, but an answer that is on its way may be older. To be called
    /// before the kernel hears that it is done.
    pub(crate) fn changed_here(&self, inodes: &[InodeId]) {
        for inode in inodes {
            let subject = (*inode, Leased::Attributes);
            if self.lock().mark(subject).is_some() {
                self.drop_attributes(*inode);
            }
        }
    }

    /// The mount has changed a name in a directory, as far as it knows. When it is done, the kernel drops by itself what it has of
    /// its attributes: it is told where that may not be all. It asks again; `now`: what it will be answered, by a lease that came
    /// with the answer to this question.
    pub(crate) fn name_changed_here(
        &self,
        asked: Asked,
        (directory, name): (InodeId, &[u8]),
        change: NameChange,
        now: Option<&Attributes>,
    ) {
        let subject = (directory, Leased::Attributes);
        let has_all = {
            let mut state = self.lock();
            let is_newest = state.is_newer(asked, subject);
            let names_too = is_newest && state.is_newer(asked, (directory, Leased::Names));
            state.outdate(subject);
            if let Some(now) = now.filter(|_| is_newest) {
                state.kept.keep_attributes(now, asked.at);
            }
            // What is told of the directory came with a lease on it.
            let told = names_too && now.is_some();
            let named = match change {
                NameChange::Made(inode) if names_too => Some(Named::At(inode)),
                NameChange::MadeOnce(inode) if told => Some(Named::AtByAll(inode)),
                NameChange::Removed if told => Some(Named::Absent),
                _ => None,
            };
            match named {
                Some(Named::At(inode)) => state.kept.keep_place(directory, name, inode, asked.at),
                Some(named) => state.kept.keep_name(directory, name, named, asked.at),
                None => state.kept.forget_name(directory, name),
            }
            let tracked = state.given.get(&subject).is_none_or(|given| given.tracked);
            change != NameChange::Perhaps && tracked && !self.told.is_under_way(directory)
        };
        if !has_all {
            self.drop_attributes(directory);
        }
    }

    /// The mount has moved what was at one name to another, or perhaps: a rename of one link over another does nothing. What was at
    /// the names has another time of change, or is one name the poorer.
    pub(crate) fn name_moved_here(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        self.lock().move_name(from, to);
        self.changed_here(&[from.0, to.0]);
    }

    /// The mount has changed attributes itself, and hears what they are in the answer, which the kernel takes in. As long as nobody
    /// else changes them, they stay so.
    pub(crate) fn attributes_changed_here(&self, asked: Asked, now: &Attributes) {
        let (mut state, subject) = (self.lock(), (now.inode, Leased::Attributes));
        let leased = state.kept.attributes(now.inode).map(|(_, asked)| asked);
        let leased = leased.filter(|_| state.is_newer(asked, subject));
        state.outdate(subject);
        if let Some(asked_for_lease) = leased {
            state.kept.keep_attributes(now, asked_for_lease);
        }
    }

    /// The mount has changed this itself, and the kernel takes the answer for what it is now.
    pub(crate) fn answered_here(&self, inode: InodeId) {
        self.lock().outdate((inode, Leased::Attributes));
    }

    /// The mount has removed an entry, and it is not known what it led to.
    pub(crate) fn something_changed_here(&self) {
        self.lock().forget_attributes();
    }

    /// What came with an answer to this question, by leases: it answers the next one.
    pub(crate) fn keep(&self, asked: Asked, told: Keeping<'_>) {
        let mut state = self.lock();
        let is_newer = |state: &State, inode, what| state.is_newer(asked, (inode, what));
        match told {
            Keeping::Attributes(attributes) if is_newer(&state, attributes.inode, Leased::Attributes) => {
                state.kept.keep_attributes(attributes, asked.at);
            }
            Keeping::Name { directory, name, inode }
                if is_newer(&state, directory, Leased::Names)
                    && is_newer(&state, directory, Leased::Attributes) =>
            {
                state.kept.keep_place(directory, name, inode, asked.at);
            }
            Keeping::Absence { directory, name } if is_newer(&state, directory.inode, Leased::Attributes) => {
                state.kept.keep_attributes(directory, asked.at);
                state.kept.keep_name(directory.inode, name, Named::Absent, asked.at);
            }
            _ => {}
        }
    }

    /// What is kept of these attributes shall not answer any more.
    pub(crate) fn forget_kept(&self, inode: InodeId) {
        self.lock().kept.forget_attributes(inode);
    }

    /// Attributes that are kept for the kernel, and the question that they answer, as if it had just been asked.
    pub(crate) fn kept_attributes(&self, raw: Raw<'_>, inode: InodeId) -> Option<(Attributes, Asked)> {
        kept_attributes(&self.state, self.ask(), inode, |wait| raw.renew_leases(inode, wait))
    }

    /// The same of where a name leads.
    pub(crate) fn kept_name(&self, raw: Raw<'_>, directory: InodeId, name: &[u8]) -> Option<(Named, Asked)> {
        kept_name(&self.state, self.ask(), (directory, name), |wait| raw.renew_leases(directory, wait))
    }

    /// A name moves from one directory to another, with what the kernel believes of it: that has to be leased there, too.
    /// `lease` asks for that. Returns what to do when it has moved.
    pub(crate) fn before_move(&self, from: InodeId, to: InodeId, lease: impl Fn(InodeId) -> bool) -> Moving {
        let at = Instant::now();
        if !self.names || from == to {
            return Moving { at, directories: None, covered: true };
        }
        let covered = self.believes_names(from, to)
            && [from, to].into_iter().all(|directory| {
                let asked = self.ask();
                lease(directory) && self.give(asked, (directory, Leased::Names), false, false).is_some()
            });
        Moving { at, directories: Some((from, to)), covered }
    }

    /// It has moved. What the kernel was told meanwhile lasts a little longer than what was leased before; so does a server wait.
    pub(crate) fn after_move(&self, moving: Moving) {
        let Some((from, to)) = moving.directories else { return };
        let soon = moving.at.elapsed() < Duration::from_millis(limits::LEASE_MARGIN_MILLIS / 2);
        if !(moving.covered && soon) && self.believes_names(from, to) {
            self.drop_names();
        }
    }

    fn believes_names(&self, from: InodeId, to: InodeId) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        [from, to].iter().any(|directory| {
            state.given.get(&(*directory, Leased::Names)).is_some_and(|given| given.over > now)
        })
    }

    /// Leases end before their time: when this is back, the kernel believes nothing by them.
    pub(crate) fn recall(&self, recalls: &[Recall]) {
        let given: Vec<(Subject, Instant)> = {
            let mut state = self.lock();
            let subjects = recalls.iter().map(|recall| (recall.inode, recall.what));
            let recalled = |subject: Subject| {
                state.kept.recall(subject.0, subject.1);
                Some((subject, state.mark(subject)?.over))
            };
            subjects.filter_map(recalled).collect()
        };
        self.drop_given(given);
    }

    /// A change of this mount's was not answered in time, and may be done yet: servers count this mount as knowing of it. As long as that
    /// is not over, nothing that its slot says is kept or believed; when it is, nothing that was asked before.
    pub(crate) fn doubt(&self, slot: Slot, doubt: Doubt) {
        let given = self.lock().doubt(slot, doubt);
        self.drop_given(given);
    }

    /// The session has ended, and its leases with it: servers forget them when they hear of that.
    pub(crate) fn end(&self) {
        let given = {
            let mut state = self.lock();
            state.forget_marks();
            state.kept.clear();
            state.doubted.clear();
            state.given.drain().map(|(subject, given)| (subject, given.over)).collect()
        };
        self.drop_given(given);
    }

    fn drop_given(&self, given: Vec<(Subject, Instant)>) {
        if given.iter().any(|((_, what), _)| *what == Leased::Names) {
            self.drop_names();
        }
        for ((inode, what), until) in given {
            while what == Leased::Attributes && !self.drop_attributes_for_good(inode) {
                if !self.lock().lookups.contains_key(&inode) || Instant::now() >= until {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The kernel drops what it has of a node's attributes, and of its lists; what is on its way to it is void.
    pub(crate) fn drop_attributes_of(&self, node: u64) {
        // A kernel that does not know the node has nothing of it.
        let _ = self.notifier.invalidate_inode(node, -1, 0);
    }

    /// The kernel is about to be answered, for a read, that a file has this size.
    pub(crate) fn answering_size(&self, node: u64, size: u64) {
        self.notifier.answering_size(node, size);
    }

    /// What it was answered is no more: the file is being cut, or was.
    pub(crate) fn size_changed(&self, node: u64) {
        self.notifier.size_changed(node);
    }

    /// The kernel does not know this node any more.
    pub(crate) fn node_forgotten(&self, node: u64) {
        self.notifier.forgotten(node);
    }

    /// The same, and nothing that was told before is on its way to it.
    fn drop_attributes_for_good(&self, inode: InodeId) -> bool {
        let has_all = !self.told.is_being_made(inode);
        self.drop_attributes(inode) && has_all
    }

    /// Whether the kernel has dropped them. Otherwise it does not know the inode: not yet, or not any more, as it will say.
    fn drop_attributes(&self, inode: InodeId) -> bool {
        self.notifier.invalidate_inode(inode.0, -1, 0).unwrap_or(false)
    }

    fn drop_names(&self) {
        if let Err(error) = self.notifier.increment_epoch() {
            // It was asked whether it can when the mount was made. What it believes is over in a moment.
            eprintln!("ramlace: {error}");
            std::thread::sleep(Duration::from_millis(limits::LEASE_MILLIS));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn kept_attributes(
    state: &Mutex<State>,
    asked: Asked,
    inode: InodeId,
    renew: impl FnOnce(bool) -> Option<Renewed>,
) -> Option<(Attributes, Asked)> {
    let (attributes, at) = {
        let state = state.lock();
        let (attributes, at) = state.kept.attributes(inode)?;
        (attributes.clone(), at)
    };
    let asked = renewed(Asked { at, ..asked }, renew)?;
    // What was recalled before the renewal may have been kept when this looked.
    state.lock().is_newer(asked, (inode, Leased::Attributes)).then_some((attributes, asked))
}

fn kept_name(
    state: &Mutex<State>,
    asked: Asked,
    (directory, name): (InodeId, &[u8]),
    renew: impl FnOnce(bool) -> Option<Renewed>,
) -> Option<(Named, Asked)> {
    let (named, at) = state.lock().kept.name(directory, name)?;
    let asked = renewed(Asked { at, ..asked }, renew)?;
    let state = state.lock();
    let is_newer = |what| state.is_newer(asked, (directory, what));
    (is_newer(Leased::Names) && is_newer(Leased::Attributes)).then_some((named, asked))
}

/// The question for what is kept, as of its lease's last renewal: it is renewed when half of it is over. `None` where it cannot be.
/// Nobody waits for another who renews it while it lasts.
fn renewed(asked: Asked, renew: impl FnOnce(bool) -> Option<Renewed>) -> Option<Asked> {
    let until = asked.at + Duration::from_millis(limits::LEASE_MILLIS);
    let left = || until.checked_duration_since(Instant::now());
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

/// A name on its way.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    at: Instant,
    directories: Option<(InodeId, InodeId)>,
    covered: bool,
}

impl State {
    /// Whether nothing was recalled since the question left, and nothing changes that nobody recalls.
    fn is_newer(&self, asked: Asked, subject: Subject) -> bool {
        asked.marks >= self.forgotten
            && self.marked.get(&subject).is_none_or(|mark| *mark <= asked.marks)
            && !self.doubted.contains_key(&subject.0.slot())
    }

    /// Returns what the kernel was told of a slot that is in doubt from now on.
    fn doubt(&mut self, slot: Slot, doubt: Doubt) -> Vec<(Subject, Instant)> {
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

    /// Whether one more may be given.
    fn has_room_for(&mut self, subject: Subject, now: Instant) -> bool {
        if self.given.len() < limits::LEASES_PER_MOUNT_MAX || self.given.contains_key(&subject) {
            return true;
        }
        self.given.retain(|_, given| given.over > now);
        self.given.len() < limits::LEASES_PER_MOUNT_MAX
    }

    /// No answer to an earlier question is believed any more.
    fn forget_marks(&mut self) {
        self.marks += 1;
        self.marked.clear();
        self.forgotten = self.marks;
    }

    fn move_name(&mut self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        for (directory, name) in [from, to] {
            match self.kept.name(directory, name).map(|(named, _)| named.inode()) {
                Some(Some(inode)) => self.outdate((inode, Leased::Attributes)),
                Some(None) => {}
                None => self.forget_attributes(),
            }
            self.kept.forget_name(directory, name);
        }
    }

    /// Nobody knows whose attributes are others now.
    fn forget_attributes(&mut self) {
        self.forget_marks();
        self.kept.forget_all_attributes();
    }

    /// Answers to earlier questions are not believed any more, and nothing is kept of them.
    fn outdate(&mut self, subject: Subject) {
        if self.marked.len() >= MARKS_MAX {
            self.forget_marks();
        }
        self.marks += 1;
        self.marked.insert(subject, self.marks);
        if subject.1 == Leased::Attributes {
            self.kept.forget_attributes(subject.0);
        }
    }

    /// The same. What the kernel was told, also where it may not believe it any more: an answer that was held up it believes from when
    /// it has it.
    fn mark(&mut self, subject: Subject) -> Option<Given> {
        self.outdate(subject);
        self.given.remove(&subject)
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Generation, Timestamp};
    use ramlace_wire::FileKind;

    use super::*;

    const FILE: Subject = (InodeId(70), Leased::Attributes);

    fn question(state: &State) -> Asked {
        Asked { at: Instant::now(), marks: state.marks, thread: 1 }
    }

    #[test]
    fn an_answer_to_a_question_from_before_a_recall_is_not_believed() {
        let mut state = State::default();
        let before = question(&state);
        assert!(state.is_newer(before, FILE));
        assert!(state.mark(FILE).is_none(), "the kernel had nothing");
        assert!(!state.is_newer(before, FILE));
        assert!(state.is_newer(before, (FILE.0, Leased::Names)), "that is another lease");
        assert!(state.is_newer(question(&state), FILE));
    }

    fn directory(size: u64) -> Attributes {
        let now = Timestamp { nanos: 1 };
        Attributes {
            inode: FILE.0,
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            size,
            device: 0,
            generation: Generation::FIRST,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            xattrs: false,
            allocated: Some(0),
        }
    }

    /// What is known of a directory by leases that are over: that nothing is in it, or where one name leads.
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
            let asked = question(&state.lock());
            let renews = |_| Some(Renewed { since: then - Duration::from_secs(1), asked: Instant::now() });
            let recalled = |_| {
                let mut state = state.lock();
                state.kept.recall(FILE.0, what);
                state.mark((FILE.0, what));
                renews(true)
            };
            assert!(kept_name(&state, asked, (FILE.0, b"name"), renews).is_some());
            assert!(kept_attributes(&state, asked, FILE.0, renews).is_some());
            if what == Leased::Attributes {
                assert!(kept_attributes(&state, asked, FILE.0, recalled).is_none());
            }
            let (state, _) = known(size);
            let recalled = |_| {
                let mut state = state.lock();
                state.kept.recall(FILE.0, what);
                state.mark((FILE.0, what));
                renews(true)
            };
            assert!(kept_name(&state, asked, (FILE.0, b"name"), recalled).is_none());
        }
    }

    // SEMANTICS 138.2
    #[test]
    fn what_was_known_before_a_server_took_leases_is_not_renewed() {
        let (state, then) = known(1);
        let asked = question(&state.lock());
        let later = |_| Some(Renewed { since: then + Duration::from_secs(1), asked: Instant::now() });
        // Something else of the directory is known by a lease of now.
        state.lock().kept.keep_name(FILE.0, b"other", Named::At(InodeId(72)), Instant::now());
        assert!(kept_name(&state, asked, (FILE.0, b"other"), |_| None).is_some());
        assert!(kept_name(&state, asked, (FILE.0, b"name"), later).is_none());
        assert!(kept_attributes(&state, asked, FILE.0, later).is_none());
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
        let before = question(&state);
        assert_eq!(state.doubt(FILE.0.slot(), Doubt::Begins), [(FILE, over)], "the kernel drops it");
        assert!(state.kept.name(FILE.0, b"name").is_none() && state.kept.attributes(FILE.0).is_none());
        assert!(state.kept.attributes(elsewhere).is_some(), "another slot");
        assert!(state.is_newer(question(&state), (elsewhere, Leased::Attributes)));
        assert!(!state.is_newer(before, FILE) && !state.is_newer(question(&state), FILE));
        state.doubt(FILE.0.slot(), Doubt::Begins);
        state.doubt(FILE.0.slot(), Doubt::Ends);
        let between = question(&state);
        assert!(!state.is_newer(between, FILE), "another is not over");
        state.doubt(FILE.0.slot(), Doubt::Ends);
        assert!(!state.is_newer(between, FILE), "its answer may be of before");
        assert!(state.is_newer(question(&state), FILE));
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
            renewed(Asked { at, marks: 0, thread: 1 }, |wait| {
                assert_eq!(wait, at == over);
                None
            })
        };
        assert_eq!(ask(lasts).map(|asked| asked.at), Some(lasts));
        assert!(ask(over).is_none());
    }

    #[test]
    fn forgotten_marks_void_whatever_was_asked_before() {
        let mut state = State::default();
        let before = question(&state);
        for inode in 0..=MARKS_MAX as u64 {
            state.mark((InodeId(100 + inode), Leased::Attributes));
        }
        assert!(state.marked.len() <= MARKS_MAX);
        assert!(!state.is_newer(before, FILE));
        assert!(state.is_newer(question(&state), FILE));
    }
}

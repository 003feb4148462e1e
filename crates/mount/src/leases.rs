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
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_client::{Doubt, Raw};
use ramlace_fuse::Notifier;
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;
use ramlace_wire::leases::{Leased, Recall};
use ramlace_wire::namespace::EntryLeased;

use crate::believed::{Asked, State, Subject, kept_attributes, kept_name};
use crate::kept::Named;
use crate::told::Told;

/// How long attributes are believed where each walk asks for each name, and so for what it leads to: for the checks of
/// rights on the way (the kernel rounds up to a tick).
const ONE_WALK: Duration = Duration::from_millis(1);
/// Pause before the kernel is told again of an inode that it does not know yet.
const PAUSE: Duration = Duration::from_micros(500);

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
        self.lock().question(Instant::now(), ASKER.get())
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
        self.lock().give(asked, subject, (xattrs, tracked), Instant::now())
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
            Keeping::Attributes(attributes) => state.keep_attributes(asked, attributes),
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
        kept_attributes(&self.state, self.ask(), inode, |wait| raw.renew_leases(inode, wait), Instant::now)
    }

    /// The same of where a name leads.
    pub(crate) fn kept_name(&self, raw: Raw<'_>, directory: InodeId, name: &[u8]) -> Option<(Named, Asked)> {
        let renew = |wait| raw.renew_leases(directory, wait);
        kept_name(&self.state, self.ask(), (directory, name), renew, Instant::now)
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
            let recalled = |subject: Subject| Some((subject, state.recall(subject)?));
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
        let given = self.lock().end();
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

/// A name on its way.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    at: Instant,
    directories: Option<(InodeId, InodeId)>,
    covered: bool,
}

//! What the kernel may cache: attributes and names, for the rest of a lease.
//!
//! A reply may have a lifetime if its answer came with a lease and nothing was recalled since the request was
//! sent. A recall ends it: the kernel is asked to drop what it has, and replies that it has not processed yet
//! are void, because the kernel checks for notifications between a request and its reply (by the version of
//! its attributes, the epoch of its names). The one case in which a notification is lost is an inode that the
//! kernel is just getting for the first time: then it is notified again until it knows the inode. So the
//! inodes that it knows are counted: it caches nothing of one that it has forgotten. The attributes of a file
//! that a thread has just created it takes without such a check: a recall waits until that thread sends
//! another request, or for a short time ([`RepliesInFlight`]).
//!
//! Nothing else here waits for a request of the kernel, and nothing for a server's reply. So names are
//! dropped by a new epoch for all names, not one by one: to drop one the kernel takes the directory's lock,
//! by which two mounts could deadlock.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, Slot, limits};
use ramlace_client::{Doubt, Raw};
use ramlace_fuse::{AnsweringEnd, AnsweringSet, Notifier, Size, SizeAsked};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::Attributes;
use ramlace_wire::leases::{Leased, Recall};
use ramlace_wire::namespace::{DirectoryEntry, EntryLeased};

use crate::believed::{Asked, State, Subject, kept_attributes, kept_name};
use crate::kept::Named;
use crate::nodes::Nodes;
use crate::replies_in_flight::RepliesInFlight;

/// How long attributes without a lease may be used, when each walk has to ask for each name and for what it
/// leads to: for the checks of rights during that walk (the kernel rounds up to a tick).
const ONE_WALK: Duration = Duration::from_millis(1);
/// The pause before the kernel is notified again of an inode that it does not know yet.
const PAUSE: Duration = Duration::from_micros(500);

/// A change that this mount has made to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// The name leads to this inode, and the directory's names are leased.
    Made(InodeId),
    /// The name was created, and leads to this inode as long as the lease on the directory's attributes
    /// holds.
    MadeOnce(InodeId),
    Removed,
    /// There was no answer, or an error.
    Perhaps,
}

/// A fact that came with a lease.
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
    /// Other names of this directory; with the one that was asked for they are all, or not.
    Neighbours {
        directory: &'a Attributes,
        found: Option<(&'a [u8], InodeId)>,
        neighbours: &'a [DirectoryEntry],
        is_all: bool,
    },
}

/// For how long the kernel may cache the parts of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Believed {
    pub(crate) name: Duration,
    pub(crate) attributes: Duration,
}

impl Believed {
    /// Not at all: the kernel takes these answers without checking whether something was recalled meanwhile.
    pub(crate) const NOT: Believed = Believed { name: Duration::ZERO, attributes: Duration::ZERO };
}

thread_local! {
    /// The thread whose request this worker handles.
    static ASKER: Cell<u32> = const { Cell::new(0) };
}

/// What the kernel may cache, and what was recalled.
pub(crate) struct Leases {
    in_flight: RepliesInFlight,
    notifier: Notifier,
    nodes: Arc<Nodes>,
    /// The kernel may cache names: it has epochs, and all programs belong to one user.
    pub(crate) names: bool,
    state: Mutex<State>,
}

/// Attributes that the kernel may cache, and that are recalled when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttributesBelieved {
    /// After this the kernel asks again.
    pub(crate) until: Instant,
    /// There are extended attributes.
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
    pub(crate) fn new(notifier: Notifier, nodes: &Arc<Nodes>, names: bool) -> Leases {
        Leases {
            in_flight: RepliesInFlight::default(),
            notifier,
            nodes: nodes.clone(),
            names,
            state: Mutex::default(),
        }
    }

    /// To be called before each request whose answer may bring leases.
    pub(crate) fn ask(&self) -> Asked {
        self.lock().request(Instant::now(), ASKER.get())
    }

    /// For how long an entry may be cached, given which leases came with it. The kernel is notified of the entry
    /// next.
    pub(crate) fn entry(&self, asked: Asked, parent: (InodeId, bool), offered: Offered) -> Believed {
        let name = if parent.1 { self.give(asked, (parent.0, Leased::Names), false, false) } else { None };
        // Before it is checked whether they were recalled: then a later recall finds the inode counted.
        self.nodes.tell(offered.inode);
        let attributes = self.give_attributes(asked, offered);
        // Where names are cached, a walk sends no requests.
        let unleased = if self.names { Duration::ZERO } else { ONE_WALK };
        Believed { name: name.unwrap_or_default(), attributes: attributes.unwrap_or(unleased) }
    }

    /// The same for a file that the request has created. The kernel takes the attributes of a new inode
    /// without checking whether they were recalled meanwhile: so a recall waits until the thread has them.
    pub(crate) fn made(
        &self,
        asked: Asked,
        (parent, leased): (InodeId, EntryLeased),
        made: &Attributes,
    ) -> Believed {
        let is_news = !self.nodes.is_known(made.inode);
        let attributes =
            leased.attributes && is_news && self.in_flight.sent_for_created(made.inode, asked.thread);
        let believed = self.entry(asked, (parent, leased.names && self.names), Offered::of(made, attributes));
        if attributes { believed } else { Believed { attributes: Duration::ZERO, ..believed } }
    }

    /// This thread sends a request: so it has processed all earlier replies.
    pub(crate) fn asks(&self, thread: u32) {
        ASKER.set(thread);
        self.in_flight.processed(thread);
    }

    /// For how long attributes may be cached.
    pub(crate) fn attributes(&self, asked: Asked, offered: Offered) -> Duration {
        self.give_attributes(asked, offered).unwrap_or_default()
    }

    fn give_attributes(&self, asked: Asked, offered: Offered) -> Option<Duration> {
        if !offered.leased {
            return None;
        }
        let tracked = self.in_flight.sent(offered.inode, asked.thread);
        self.give(asked, offered.subject(), offered.xattrs, tracked)
    }

    /// For how long the kernel may cache an inode's attributes, unless they were recalled since the request
    /// was sent: then other answers to it may be cached as long.
    pub(crate) fn attributes_believed(&self, asked: Asked, inode: InodeId) -> Option<AttributesBelieved> {
        let (state, subject) = (self.lock(), (inode, Leased::Attributes));
        let given = state.given.get(&subject).filter(|_| state.is_newer(asked, subject))?;
        let until = given.over - Duration::from_millis(limits::LEASE_MARGIN_MILLIS);
        (until > Instant::now()).then_some(AttributesBelieved { until, xattrs: given.xattrs })
    }

    fn give(&self, asked: Asked, subject: Subject, xattrs: bool, tracked: bool) -> Option<Duration> {
        self.lock().give(asked, subject, (xattrs, tracked), Instant::now())
    }

    /// The mount has changed these attributes itself. The kernel knows that, but a reply that it has not
    /// processed may be older. To be called before the kernel is notified that the change is done.
    pub(crate) fn changed_here(&self, inodes: &[InodeId]) {
        for inode in inodes {
            let subject = (*inode, Leased::Attributes);
            if self.lock().mark(subject).is_some() {
                self.drop_attributes(*inode);
            }
        }
    }

    /// The mount has changed a name in a directory, or may have. When the change is answered, the kernel
    /// drops its attributes of the directory by itself; it is notified where that may not cover all replies.
    /// It will ask again; `now`: the answer it will get, under a lease that came with the answer to this
    /// request.
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
            // If there are new attributes of the directory, they came with a lease.
            let leased = names_too && now.is_some();
            let named = match change {
                NameChange::Made(inode) if names_too => Some(Named::At(inode)),
                NameChange::MadeOnce(inode) if leased => Some(Named::AtByAll(inode)),
                NameChange::Removed if leased => Some(Named::Absent),
                _ => None,
            };
            match named {
                Some(Named::At(inode)) => state.kept.keep_place(directory, name, inode, asked.at),
                Some(named) => state.kept.keep_name(directory, name, named, asked.at),
                None => state.kept.forget_name(directory, name),
            }
            let tracked = state.given.get(&subject).is_none_or(|given| given.tracked);
            change != NameChange::Perhaps && tracked && !self.in_flight.is_in_flight(directory)
        };
        if !has_all {
            self.drop_attributes(directory);
        }
    }

    /// The mount has moved an entry from one name to another, or may have: a rename of one link over another
    /// does nothing. The inodes at these names have another time of change, or one link less.
    pub(crate) fn name_moved_here(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        self.lock().move_name(from, to);
        self.changed_here(&[from.0, to.0]);
    }

    /// The mount has changed attributes itself; the answer has the new ones, and the kernel processes it.
    /// They stay valid until another client changes them.
    pub(crate) fn attributes_changed_here(&self, asked: Asked, now: &Attributes) {
        let (mut state, subject) = (self.lock(), (now.inode, Leased::Attributes));
        let leased = state.kept.attributes(now.inode).map(|(_, asked)| asked);
        let leased = leased.filter(|_| state.is_newer(asked, subject));
        state.outdate(subject);
        if let Some(asked_for_lease) = leased {
            state.kept.keep_attributes(now, asked_for_lease);
        }
    }

    /// The mount has changed this itself, and the kernel takes the answer as the present state.
    pub(crate) fn answered_here(&self, inode: InodeId) {
        self.lock().outdate((inode, Leased::Attributes));
    }

    /// The same; `now`: as the answer to this request contains them, under a lease that came with it.
    pub(crate) fn attributes_known_here(&self, asked: Asked, inode: InodeId, now: Option<&Attributes>) {
        let (mut state, subject) = (self.lock(), (inode, Leased::Attributes));
        let is_newest = state.is_newer(asked, subject);
        state.outdate(subject);
        if let Some(now) = now.filter(|_| is_newest) {
            state.kept.keep_attributes(now, asked.at);
        }
    }

    /// The mount has removed an entry, and it is not known what it led to.
    pub(crate) fn something_changed_here(&self) {
        self.lock().forget_attributes();
    }

    /// Keeps what came with the answer to this request, under leases, to answer the next one.
    pub(crate) fn keep(&self, asked: Asked, kept: Keeping<'_>) {
        let mut state = self.lock();
        let is_newer = |state: &State, inode, what| state.is_newer(asked, (inode, what));
        match kept {
            Keeping::Attributes(attributes) => state.keep_attributes(asked, attributes),
            Keeping::Name { directory, name, inode }
                if is_newer(&state, directory, Leased::Names)
                    && is_newer(&state, directory, Leased::Attributes) =>
            {
                state.kept.keep_place(directory, name, inode, asked.at);
                state.kept.may_be_walked(directory);
            }
            Keeping::Absence { directory, name } if is_newer(&state, directory.inode, Leased::Attributes) => {
                state.kept.keep_attributes(directory, asked.at);
                state.kept.keep_name(directory.inode, name, Named::Absent, asked.at);
            }
            Keeping::Neighbours { directory, found, neighbours, is_all }
                if is_newer(&state, directory.inode, Leased::Names)
                    && is_newer(&state, directory.inode, Leased::Attributes) =>
            {
                state.kept.keep_neighbours(directory, found, (neighbours, is_all), asked.at);
            }
            _ => {}
        }
    }

    /// How many other names are to be asked for with one of this directory.
    pub(crate) fn neighbours_wanted(&self, directory: InodeId) -> u16 {
        if self.names { self.lock().kept.neighbours_wanted(directory) } else { 0 }
    }

    /// A program has listed a directory.
    pub(crate) fn listed(&self, directory: InodeId) {
        if self.names {
            self.lock().kept.may_be_walked(directory);
        }
    }

    /// The kept attributes shall not be used as an answer any more.
    pub(crate) fn forget_kept(&self, inode: InodeId) {
        self.lock().kept.forget_attributes(inode);
    }

    /// Since when attributes of a file that has a name are kept, by a lease that was asked for then; it may have expired.
    pub(crate) fn attributes_since(&self, inode: InodeId) -> Option<Instant> {
        let state = self.lock();
        state.kept.attributes(inode).filter(|(attributes, _)| attributes.links > 0).map(|(_, asked)| asked)
    }

    /// Attributes that are kept for the kernel, and the request that they answer, as if it had just been
    /// sent.
    pub(crate) fn kept_attributes(&self, raw: Raw<'_>, inode: InodeId) -> Option<(Attributes, Asked)> {
        kept_attributes(&self.state, self.ask(), inode, |wait| raw.renew_leases(inode, wait), Instant::now)
    }

    /// The same for where a name leads.
    pub(crate) fn kept_name(&self, raw: Raw<'_>, directory: InodeId, name: &[u8]) -> Option<(Named, Asked)> {
        let renew = |wait| raw.renew_leases(directory, wait);
        kept_name(&self.state, self.ask(), (directory, name), renew, Instant::now)
    }

    /// A name is about to move from one directory to another, with what the kernel has cached of it: so the
    /// other directory's names have to be leased too. `lease` requests that. Returns what to do after the
    /// move.
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

    /// The name has moved. What the kernel was sent meanwhile may be used a little longer than what was
    /// leased before; servers wait for as long.
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

    /// Leases are recalled: when this returns, the kernel no longer uses anything under them.
    pub(crate) fn recall(&self, recalls: &[Recall]) {
        let given: Vec<(Subject, Instant)> = {
            let mut state = self.lock();
            let subjects = recalls.iter().map(|recall| (recall.inode, recall.what));
            let recalled = |subject: Subject| Some((subject, state.recall(subject)?));
            subjects.filter_map(recalled).collect()
        };
        self.drop_given(given);
    }

    /// A change of this mount's was not answered in time, and may still be done: servers count this mount as
    /// knowing it. Until that is over, no answer of its slot is kept or cached; and when it is over, no
    /// answer to an earlier request.
    pub(crate) fn doubt(&self, slot: Slot, doubt: Doubt) {
        let given = self.lock().doubt(slot, doubt);
        self.drop_given(given);
    }

    /// The session has ended, and its leases with it: servers forget them when they learn that.
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
                if !self.nodes.is_known(inode) || Instant::now() >= until {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The kernel drops its attributes of a node, and its lists; replies that it has not processed are void.
    pub(crate) fn drop_attributes_of(&self, node: u64) {
        // A kernel that does not know the node has nothing of it.
        let _ = self.notifier.invalidate_inode(node, -1, 0);
    }

    /// The kernel is about to be answered that a file has these attributes. `may_be_longer`: programs here write it, and the kernel may know it to
    /// be longer. `false`: it was answered newer ones since.
    pub(crate) fn answering_size(
        &self,
        node: u64,
        attributes: &Attributes,
        may_be_longer: bool,
        asked: SizeAsked,
    ) -> bool {
        self.notifier.answering_size(node, size_of(attributes), may_be_longer, asked)
    }

    /// The kernel has asked for a size; what this returns is passed on when it is answered.
    pub(crate) fn asked_for_size(&self, node: u64) -> SizeAsked {
        self.notifier.asked_for_size(node, ASKER.get())
    }

    /// The kernel is about to be answered these attributes, whose size it takes in whatever it was answered since; the result is to be dropped
    /// after the reply. `is_cut`: the request has set the size. `None`: it was answered newer ones since.
    pub(crate) fn answering_set(
        &self,
        node: u64,
        attributes: &Attributes,
        is_cut: bool,
    ) -> Option<AnsweringSet> {
        self.notifier.answering_set(node, size_of(attributes), is_cut, ASKER.get())
    }

    /// The kernel is about to be given an entry that leads to a file of this size.
    pub(crate) fn giving_entry(&self, node: u64, bytes: u64) {
        self.notifier.giving_entry(node, bytes);
    }

    /// The reply to a read is about to show the kernel that the file ends; to be dropped behind it.
    pub(crate) fn answering_end(&self, node: u64) -> AnsweringEnd {
        self.notifier.answering_end(node)
    }

    /// The size that the kernel was sent is outdated: the file is being truncated, or was.
    pub(crate) fn size_changed(&self, node: u64) {
        self.notifier.size_changed(node);
    }

    /// The kernel no longer knows this node.
    pub(crate) fn node_forgotten(&self, node: u64) {
        self.notifier.forgotten(node);
    }

    /// The same; returns whether no earlier reply can still reach the kernel.
    fn drop_attributes_for_good(&self, inode: InodeId) -> bool {
        let has_all = !self.in_flight.is_being_created(inode);
        self.drop_attributes(inode) && has_all
    }

    /// Returns whether the kernel has dropped them. If not, it does not know the inode: not yet, or not any
    /// more, which it will report.
    fn drop_attributes(&self, inode: InodeId) -> bool {
        self.notifier.invalidate_inode(inode.0, -1, 0).unwrap_or(false)
    }

    fn drop_names(&self) {
        if let Err(error) = self.notifier.increment_epoch() {
            // That the kernel can do this was checked when the mount was made. What it has cached expires
            // after this time.
            eprintln!("ramlace: {error}");
            std::thread::sleep(Duration::from_millis(limits::LEASE_MILLIS));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn size_of(attributes: &Attributes) -> Size {
    Size { generation: attributes.generation.0, bytes: attributes.size }
}

/// A name that is being moved.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Moving {
    at: Instant,
    directories: Option<(InodeId, InodeId)>,
    covered: bool,
}

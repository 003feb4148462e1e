//! The node number and the place (parent and name) by which the kernel knows each directory.
//!
//! The kernel has a directory at one place only. If a lookup finds it elsewhere, because another mount has moved
//! it, the kernel moves its own entry. During a rename(2) it cannot, because the locks for that are taken. It then
//! releases all locks, walks the paths once more and looks up again; if it still cannot, the program gets ESTALE,
//! and will each time. The only sign of the first failure is that the same thread looks the same place up again
//! and has asked nothing about the directory in between: its attributes may not be cached until then, so a thread
//! that got the directory does ask for them. The second lookup is answered with a new node number for the same
//! directory. To the kernel that is another directory, which it knows at no other place.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ramlace_base::InodeId;
use ramlace_sync::{Mutex, MutexGuard};

/// Additional numbers of directories begin here. No inode reaches them: the slot is the last, and its counter
/// would have begun at the map's epoch 16,776,960.
const OTHERS_FROM: u64 = 0xffff_ffff_0000_0000;
/// The limit of directories that are remembered, and of additional numbers; others are always given their
/// inode's number.
const DIRECTORIES_MAX: usize = 65_536;
/// The limit of threads that were notified of a directory at a new place and have asked nothing else since.
const THREADS_MAX: usize = 1_024;

/// A name in a directory, which the kernel knows as this node.
type Place = (u64, Box<[u8]>);

/// Lock order: `state`, then those of [`crate::nodes`] (`forget` asks there whether the kernel knows an inode).
#[derive(Default)]
pub(crate) struct Places {
    state: Mutex<State>,
    /// There are threads in `State::threads`: usually there are none.
    watches: AtomicBool,
}

#[derive(Default)]
struct State {
    directories: HashMap<InodeId, Known>,
    /// Which directory is at a place, by what the kernel was sent.
    places: HashMap<Place, InodeId>,
    /// Directories by their additional numbers.
    others: HashMap<u64, InodeId>,
    numbers_given: u64,
    threads: HashMap<u32, Thread>,
}

/// A directory that the kernel was notified of.
struct Known {
    node: u64,
    place: Place,
    /// The kernel may have failed to move it there.
    unsure: bool,
}

/// A thread that was notified of directories at new places.
#[derive(Default)]
struct Thread {
    found: Vec<InodeId>,
    /// It has asked a second time.
    again: bool,
}

/// What the reply to a lookup says of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) node: u64,
    /// Its attributes may be cached under a lease: the kernel has it under one number, and at its place.
    pub(crate) leased: bool,
    /// The kernel shall ask for its attributes, which shows that it has it there.
    pub(crate) unsure: bool,
}

impl Places {
    /// The inode of a node.
    pub(crate) fn inode(&self, node: u64) -> InodeId {
        let other = if node < OTHERS_FROM { None } else { self.lock().others.get(&node).copied() };
        other.unwrap_or(InodeId(node))
    }

    /// A lookup of this thread has found a directory. To be called after the lookup was counted.
    pub(crate) fn found(&self, parent: u64, name: &[u8], inode: InodeId, thread: u32) -> Found {
        let mut state = self.lock();
        let found = state.found((parent, name.into()), inode, thread);
        self.watches.store(!state.threads.is_empty(), Ordering::Release);
        found
    }

    /// A directory was created here.
    pub(crate) fn made(&self, parent: u64, name: &[u8], inode: InodeId) {
        self.lock().learn(inode, (parent, name.into()));
    }

    /// The directory at this place, if the kernel knows one there.
    pub(crate) fn at(&self, parent: u64, name: &[u8]) -> Option<InodeId> {
        self.lock().places.get(&(parent, name.into())).copied()
    }

    /// This mount has moved whatever was at one place to the other, or exchanged them.
    pub(crate) fn moved(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchanged: bool) {
        let (from, to): (Place, Place) = ((from.0, from.1.into()), (to.0, to.1.into()));
        let mut state = self.lock();
        let (moved, other) = (state.places.remove(&from), state.places.remove(&to));
        let moves = [(moved, to), (other.filter(|_| exchanged), from)];
        for (inode, place) in moves.into_iter().filter_map(|(inode, place)| Some((inode?, place))) {
            if let Some(known) = state.directories.get_mut(&inode) {
                known.place = place.clone();
                state.places.insert(place, inode);
            }
        }
    }

    /// Whether the kernel may cache attributes of this inode: a recall reaches only one node of it.
    pub(crate) fn has_one_number(&self, inode: InodeId) -> bool {
        self.lock().directories.get(&inode).is_none_or(|known| known.node == inode.0)
    }

    /// A thread sends a request other than a lookup: for a node's attributes, which shows that it has that
    /// node, or another, which shows that it has everything it was notified of.
    pub(crate) fn asks(&self, thread: u32, attributes_of: Option<u64>) {
        if !self.watches.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.lock();
        state.asks(thread, attributes_of);
        self.watches.store(!state.threads.is_empty(), Ordering::Release);
    }

    /// The kernel has forgotten an inode, unless it was notified of it again meanwhile, as `known` says.
    pub(crate) fn forget(&self, inode: InodeId, known: impl FnOnce() -> bool) {
        let mut state = self.lock();
        if state.directories.contains_key(&inode) && !known() {
            state.forget(inode);
        }
    }

    /// The number of the directory in which the kernel knows this one.
    pub(crate) fn parent(&self, inode: InodeId) -> Option<u64> {
        self.lock().directories.get(&inode).map(|known| known.place.0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn found(&mut self, here: Place, inode: InodeId, thread: u32) -> Found {
        let Some(known) = self.directories.get_mut(&inode) else {
            self.learn(inode, here);
            return Found { node: inode.0, leased: true, unsure: false };
        };
        if known.place != here {
            // Within its directory the kernel moves it without further locks.
            known.unsure |= known.place.0 != here.0;
            if self.places.get(&known.place) == Some(&inode) {
                self.places.remove(&known.place);
            }
            known.place = here.clone();
            self.places.insert(here, inode);
        }
        let (node, unsure) = (known.node, known.unsure);
        if !unsure {
            return Found { node, leased: node == inode.0, unsure };
        }
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        let asking = self.threads.entry(thread).or_default();
        if asking.again || asking.found.contains(&inode) {
            asking.again = true;
            asking.found.retain(|found| *found != inode);
            return self.renumber(inode);
        }
        asking.found.push(inode);
        Found { node, leased: false, unsure }
    }

    /// The kernel could not take it under its present number: gives it a new one.
    fn renumber(&mut self, inode: InodeId) -> Found {
        let known = self.directories.get_mut(&inode).expect("whoever renumbers has found it");
        if self.others.len() < DIRECTORIES_MAX {
            known.node = OTHERS_FROM + self.numbers_given % (u64::MAX - OTHERS_FROM);
            self.numbers_given += 1;
            self.others.insert(known.node, inode);
        }
        known.unsure = false;
        Found { node: known.node, leased: false, unsure: false }
    }

    fn learn(&mut self, inode: InodeId, place: Place) {
        if self.directories.len() < DIRECTORIES_MAX {
            self.places.insert(place.clone(), inode);
            self.directories.insert(inode, Known { node: inode.0, place, unsure: false });
        }
    }

    fn asks(&mut self, thread: u32, attributes_of: Option<u64>) {
        let Some(asking) = self.threads.get_mut(&thread) else { return };
        let has: Vec<InodeId> = match attributes_of {
            None => std::mem::take(&mut asking.found),
            Some(node) => {
                let of =
                    |inode: &mut InodeId| self.directories.get(inode).is_some_and(|known| known.node == node);
                asking.found.extract_if(.., of).collect()
            }
        };
        if attributes_of.is_none() || (asking.found.is_empty() && !asking.again) {
            self.threads.remove(&thread);
        }
        for inode in has {
            if let Some(known) = self.directories.get_mut(&inode) {
                known.unsure = false;
            }
        }
    }

    fn forget(&mut self, inode: InodeId) {
        let Some(known) = self.directories.remove(&inode) else { return };
        if self.places.get(&known.place) == Some(&inode) {
            self.places.remove(&known.place);
        }
        if known.node != inode.0 {
            self.others.retain(|_, other| *other != inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: InodeId = InodeId(70);
    const THREAD: u32 = 9;

    fn answer(node: u64, leased: bool, unsure: bool) -> Found {
        Found { node, leased, unsure }
    }

    /// A directory at place `x` of node 10 that was later found in node 20.
    fn moved() -> Places {
        let places = Places::default();
        assert_eq!(places.found(10, b"x", MOVED, THREAD), answer(70, true, false));
        assert_eq!(places.found(20, b"x", MOVED, THREAD), answer(70, false, true));
        places
    }

    #[test]
    fn who_comes_again_without_it_gets_another_number_for_good() {
        let places = moved();
        assert_eq!(places.found(20, b"x", MOVED, THREAD), answer(OTHERS_FROM, false, false));
        assert_eq!(places.inode(OTHERS_FROM), MOVED);
        assert!(!places.has_one_number(MOVED));
        places.moved((20, b"x"), (30, b"y"), false);
        assert_eq!(places.found(30, b"y", MOVED, THREAD), answer(OTHERS_FROM, false, false));
        places.forget(MOVED, || true);
        assert_eq!(places.inode(OTHERS_FROM), MOVED, "the kernel knows it still");
        places.forget(MOVED, || false);
        assert_eq!(places.inode(OTHERS_FROM), InodeId(OTHERS_FROM));
        assert_eq!(places.found(30, b"y", MOVED, THREAD), answer(70, true, false));
    }

    #[test]
    fn who_asks_for_its_attributes_or_does_something_has_it() {
        for attributes_of in [Some(70), None] {
            let places = moved();
            places.asks(THREAD + 1, attributes_of);
            places.asks(THREAD, Some(20));
            places.asks(THREAD, attributes_of);
            assert_eq!(places.found(20, b"x", MOVED, THREAD), answer(70, true, false));
            assert!(places.lock().threads.is_empty());
        }
    }

    #[test]
    fn a_second_directory_is_not_tried_in_vain_when_the_thread_has_come_again() {
        let (places, other) = (moved(), InodeId(71));
        places.found(10, b"z", other, THREAD + 1);
        places.found(20, b"x", MOVED, THREAD);
        assert_eq!(places.found(20, b"z", other, THREAD), answer(OTHERS_FROM + 1, false, false));
        places.asks(THREAD, None);
        assert_eq!(places.found(10, b"z", other, THREAD), answer(OTHERS_FROM + 1, false, true));
    }

    #[test]
    fn other_threads_that_could_not_have_it_either_are_heard() {
        let places = moved();
        assert_eq!(places.found(20, b"x", MOVED, THREAD + 1), answer(70, false, true));
        assert_eq!(places.found(20, b"x", MOVED, THREAD + 1), answer(OTHERS_FROM, false, false));
        assert_eq!(places.found(20, b"x", MOVED, THREAD), answer(OTHERS_FROM, false, false));
    }

    #[test]
    fn what_moves_here_or_within_its_directory_is_where_it_is_said_to_be() {
        let places = Places::default();
        places.made(10, b"x", MOVED);
        assert_eq!(places.at(10, b"x"), Some(MOVED));
        places.moved((10, b"x"), (20, b"y"), false);
        assert_eq!((places.at(10, b"x"), places.at(20, b"y")), (None, Some(MOVED)));
        assert_eq!(places.found(20, b"y", MOVED, THREAD), answer(70, true, false));
        assert_eq!(places.found(20, b"z", MOVED, THREAD), answer(70, true, false));
        places.made(10, b"a", InodeId(71));
        places.moved((10, b"a"), (20, b"z"), true);
        assert_eq!((places.at(10, b"a"), places.at(20, b"z")), (Some(MOVED), Some(InodeId(71))));
    }

    #[test]
    fn full_tables_stay_as_they_are() {
        let places = Places::default();
        for number in 0..=DIRECTORIES_MAX as u64 {
            places.made(10, &number.to_le_bytes(), InodeId(100 + number));
        }
        assert_eq!(places.lock().directories.len(), DIRECTORIES_MAX);
        for thread in 0..=THREADS_MAX as u32 {
            places.found(20 + u64::from(thread), b"x", InodeId(100), thread);
        }
        assert!(places.lock().threads.len() <= THREADS_MAX);
    }
}

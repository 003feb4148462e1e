//! Answers of servers under leases, kept for the kernel's next request: attributes, where names lead, and
//! which names do not exist.
//!
//! A lease ends by its recall, or when it is not renewed. So what is kept may be of any age. A lease on a
//! directory's names covers the names that exist; one on its attributes also covers those that do not,
//! because creating a name changes the attributes. Each fact has the time of its own lease: a later lease
//! says nothing of a fact whose own lease was lost. What this mount changes itself is changed here before the
//! kernel gets its answer.
//!
//! Not kept here: attributes of a file that is being written here, whose home does not know its times yet;
//! callers check for that.

use std::collections::HashMap;
use std::time::Instant;

use ramlace_base::{InodeId, Slot, limits};
use ramlace_wire::leases::Leased;
use ramlace_wire::namespace::DirectoryEntry;
use ramlace_wire::{Attributes, FileKind};

/// What is kept, each with the time when it was requested: the lease was given later.
#[derive(Default)]
pub(crate) struct Kept {
    attributes: HashMap<InodeId, (Box<Attributes>, Instant)>,
    directories: HashMap<InodeId, Directory>,
    /// The number of names in all directories, plus the directories.
    names: usize,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// According to the lease on the names; the kernel may be answered under it.
    At(InodeId),
    /// According to the lease on the directory's attributes. A recall of that lease does not make the kernel drop
    /// names, so the kernel must not cache this one.
    AtByAll(InodeId),
    /// There is no such name, according to the lease on the attributes.
    Absent,
}

#[derive(Default)]
struct Directory {
    names: HashMap<Box<[u8]>, (Named, Instant)>,
    /// There are no other names, according to a lease on the attributes that was requested at this time.
    whole: Option<Instant>,
    /// How names of it are asked for.
    walk: Walk,
}

/// Whether programs look up one name of a directory after the other. Then a lookup also asks for the names behind it
/// (read-ahead of names): for more and more of them, as long as new ones come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Walk {
    /// Not yet.
    #[default]
    No,
    /// A name of it was asked for, or its names were listed.
    Perhaps,
    /// Names were asked for again.
    Yes,
    /// What came with the last name was known for the most part: the rest is.
    Over,
}

/// Names that are asked for with another one.
const FEW_NEIGHBOURS: u16 = 16;

impl Named {
    /// The inode, if there is one.
    pub(crate) fn inode(self) -> Option<InodeId> {
        match self {
            Named::At(inode) | Named::AtByAll(inode) => Some(inode),
            Named::Absent => None,
        }
    }
}

impl Kept {
    pub(crate) fn attributes(&self, inode: InodeId) -> Option<(&Attributes, Instant)> {
        self.attributes.get(&inode).map(|(attributes, asked)| (&**attributes, *asked))
    }

    /// Where a name leads, if that is known, and when the lease was requested.
    pub(crate) fn name(&self, directory: InodeId, name: &[u8]) -> Option<(Named, Instant)> {
        let directory = self.directories.get(&directory)?;
        let absent = directory.whole.map(|asked| (Named::Absent, asked));
        directory.names.get(name).copied().or(absent)
    }

    /// Keeps attributes that came with a lease.
    pub(crate) fn keep_attributes(&mut self, attributes: &Attributes, asked: Instant) {
        if self.attributes.len() >= limits::LEASES_PER_MOUNT_MAX {
            // When this many are in use, to start over is as good as any other rule.
            self.attributes.clear();
        }
        self.attributes.insert(attributes.inode, (Box::new(attributes.clone()), asked));
        if attributes.kind == FileKind::Directory && attributes.size == 0 {
            self.forget_names(attributes.inode);
            self.directory(attributes.inode).whole = Some(asked);
        }
    }

    /// Keeps where a name leads, under a lease on the names that was requested at this time. The directory's
    /// attributes say who may look a name up: so those have to be known, and the older of both leases counts.
    pub(crate) fn keep_place(&mut self, directory: InodeId, name: &[u8], inode: InodeId, asked: Instant) {
        match self.attributes.get(&directory) {
            Some((_, known)) => {
                let asked = asked.min(*known);
                self.keep_name(directory, name, Named::At(inode), asked);
            }
            None => self.forget_name(directory, name),
        }
    }

    /// How many other names are to be asked for with one of this directory that is not known here.
    pub(crate) fn neighbours_wanted(&self, directory: InodeId) -> u16 {
        match self.directories.get(&directory).map(|directory| directory.walk) {
            None | Some(Walk::No | Walk::Over) => 0,
            Some(Walk::Perhaps) => FEW_NEIGHBOURS,
            Some(Walk::Yes) => limits::NEIGHBOURS_LEASED_MAX,
        }
    }

    /// A program has listed a directory, or looked at a name in it: it may look at others next.
    pub(crate) fn may_be_walked(&mut self, directory: InodeId) {
        let walk = &mut self.directory(directory).walk;
        if *walk == Walk::No {
            *walk = Walk::Perhaps;
        }
    }

    /// Keeps the names that came with one that was asked for, and that one if it leads anywhere. `is_all`: there are
    /// no others.
    pub(crate) fn keep_neighbours(
        &mut self,
        directory: &Attributes,
        found: Option<(&[u8], InodeId)>,
        (neighbours, is_all): (&[DirectoryEntry], bool),
        asked: Instant,
    ) {
        self.keep_attributes(directory, asked);
        let directory = directory.inode;
        let known = |entry: &&DirectoryEntry| self.name(directory, entry.name.as_bytes()).is_some();
        let mostly_known = 2 * neighbours.iter().filter(known).count() > neighbours.len();
        let of = self.directory(directory);
        of.walk = match of.walk {
            _ if mostly_known || is_all => Walk::Over,
            Walk::No => Walk::Perhaps,
            _ => Walk::Yes,
        };
        if is_all {
            // Before the names: where they find no room all is dropped, this as well. Behind them it would say that those
            // that were dropped do not exist.
            of.whole = Some(asked);
        }
        let beside = neighbours.iter().map(|entry| (entry.name.as_bytes(), entry.inode));
        for (name, inode) in beside.chain(found) {
            self.keep_place(directory, name, inode, asked);
        }
    }

    /// Keeps where a name leads, or that there is none, under a lease that was requested at this time.
    pub(crate) fn keep_name(&mut self, directory: InodeId, name: &[u8], named: Named, asked: Instant) {
        let of = self.directory(directory);
        let is_known = named == Named::Absent && of.whole.is_some();
        let before =
            if is_known { of.names.remove(name) } else { of.names.insert(name.into(), (named, asked)) };
        self.names += usize::from(!is_known);
        self.names -= usize::from(before.is_some());
    }

    /// This mount has perhaps changed where a name leads.
    pub(crate) fn forget_name(&mut self, directory: InodeId, name: &[u8]) {
        if let Some(of) = self.directories.get_mut(&directory) {
            of.whole = None;
            self.names -= usize::from(of.names.remove(name).is_some());
        }
    }

    /// This mount has changed these attributes, or is about to.
    pub(crate) fn forget_attributes(&mut self, inode: InodeId) {
        self.attributes.remove(&inode);
    }

    /// The same, if it is not known of which inode.
    pub(crate) fn forget_all_attributes(&mut self) {
        self.attributes.clear();
    }

    /// A lease has ended. A directory's attributes say who may look names up in it: so its names are dropped
    /// with either lease.
    pub(crate) fn recall(&mut self, inode: InodeId, what: Leased) {
        self.forget_names(inode);
        if what == Leased::Attributes {
            self.attributes.remove(&inode);
        }
    }

    /// The answers of a slot may be outdated without a recall.
    pub(crate) fn forget_slot(&mut self, slot: Slot) {
        self.attributes.retain(|inode, _| inode.slot() != slot);
        self.directories.retain(|inode, _| inode.slot() != slot);
        self.names = self.directories.values().map(|directory| 1 + directory.names.len()).sum();
    }

    fn forget_names(&mut self, directory: InodeId) {
        let forgotten = self.directories.remove(&directory);
        self.names -= forgotten.map_or(0, |forgotten| 1 + forgotten.names.len());
    }

    /// All leases have ended.
    pub(crate) fn clear(&mut self) {
        *self = Kept::default();
    }

    fn directory(&mut self, inode: InodeId) -> &mut Directory {
        if self.names >= limits::NAMES_KEPT_PER_MOUNT_MAX {
            self.directories.clear();
            self.names = 0;
        }
        let names = &mut self.names;
        self.directories.entry(inode).or_insert_with(|| {
            *names += 1;
            Directory::default()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use ramlace_base::{Generation, Timestamp};

    use super::*;

    pub(crate) const DIRECTORY: InodeId = InodeId(70);
    const FILE: InodeId = InodeId(71);

    pub(crate) fn directory(size: u64) -> Attributes {
        let now = Timestamp { nanos: 1 };
        Attributes {
            inode: DIRECTORY,
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

    fn leads(kept: &Kept, name: &[u8]) -> Option<Named> {
        kept.name(DIRECTORY, name).map(|(named, _)| named)
    }

    // SEMANTICS 138.1, 138.2
    #[test]
    fn each_name_is_known_by_the_lease_that_it_came_with() {
        let (mut kept, then) = (Kept::default(), Instant::now());
        let now = then + Duration::from_secs(1);
        kept.keep_name(DIRECTORY, b"there", Named::At(FILE), then);
        kept.keep_name(DIRECTORY, b"not", Named::Absent, then);
        kept.keep_attributes(&directory(1), now);
        kept.keep_name(DIRECTORY, b"later", Named::AtByAll(FILE), now);
        assert_eq!(
            kept.name(DIRECTORY, b"there"),
            Some((Named::At(FILE), then)),
            "no later one says that of it"
        );
        assert_eq!(kept.name(DIRECTORY, b"not"), Some((Named::Absent, then)));
        assert_eq!(kept.name(DIRECTORY, b"later"), Some((Named::AtByAll(FILE), now)));
        assert_eq!(leads(&kept, b"other"), None);
        for what in [Leased::Attributes, Leased::Names] {
            kept.recall(DIRECTORY, what);
            assert_eq!((leads(&kept, b"there"), kept.names), (None, 0));
            assert_eq!(kept.attributes(DIRECTORY), None);
            kept.keep_name(DIRECTORY, b"there", Named::At(FILE), then);
        }
    }

    // SEMANTICS 138.2
    #[test]
    fn no_name_is_known_in_a_directory_of_which_nobody_hears_who_may_look_into_it() {
        let (mut kept, then) = (Kept::default(), Instant::now());
        let now = then + Duration::from_secs(1);
        kept.keep_place(DIRECTORY, b"there", FILE, now);
        assert_eq!(leads(&kept, b"there"), None);
        kept.keep_attributes(&directory(1), then);
        kept.keep_place(DIRECTORY, b"there", FILE, now);
        assert_eq!(kept.name(DIRECTORY, b"there"), Some((Named::At(FILE), then)), "both leases hold it");
        kept.recall(DIRECTORY, Leased::Attributes);
        assert_eq!(leads(&kept, b"there"), None, "it may be forbidden now");
    }

    // SEMANTICS 138.1
    #[test]
    fn all_names_of_a_directory_that_was_empty_are_known_until_somebody_else_makes_one() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        kept.keep_attributes(&directory(0), now);
        assert_eq!(leads(&kept, b"any"), Some(Named::Absent));
        kept.keep_name(DIRECTORY, b"made", Named::At(FILE), now);
        assert_eq!(
            (leads(&kept, b"made"), leads(&kept, b"any")),
            (Some(Named::At(FILE)), Some(Named::Absent))
        );
        kept.keep_name(DIRECTORY, b"made", Named::Absent, now);
        assert_eq!((leads(&kept, b"made"), kept.names), (Some(Named::Absent), 1));
        kept.forget_name(DIRECTORY, b"perhaps");
        assert_eq!(leads(&kept, b"any"), None);
        kept.keep_attributes(&directory(0), now);
        kept.recall(DIRECTORY, Leased::Attributes);
        assert_eq!(leads(&kept, b"any"), None);
    }

    fn neighbours(names: &[&str]) -> Vec<DirectoryEntry> {
        let entry = |text: &&str| DirectoryEntry {
            cookie: 8,
            name: ramlace_base::Name::new(text.as_bytes()).unwrap(),
            inode: FILE,
            kind: FileKind::File,
            attributes: None,
        };
        names.iter().map(entry).collect()
    }

    // SEMANTICS 138.6
    #[test]
    fn more_and_more_names_are_asked_for_at_once_until_they_are_known() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        assert_eq!(kept.neighbours_wanted(DIRECTORY), 0, "whoever looks at one name gets no others");
        kept.may_be_walked(DIRECTORY);
        assert_eq!(kept.neighbours_wanted(DIRECTORY), FEW_NEIGHBOURS);
        kept.keep_neighbours(&directory(9), Some((b"a", FILE)), (&neighbours(&["b", "c"]), false), now);
        assert_eq!(leads(&kept, b"c"), Some(Named::At(FILE)));
        assert_eq!(leads(&kept, b"other"), None);
        assert_eq!(kept.neighbours_wanted(DIRECTORY), limits::NEIGHBOURS_LEASED_MAX);
        kept.may_be_walked(DIRECTORY);
        let came = neighbours(&["b", "c", "d"]);
        kept.keep_neighbours(&directory(9), Some((b"e", FILE)), (&came, false), now);
        assert_eq!(kept.neighbours_wanted(DIRECTORY), 0, "most of them were known");
        kept.recall(DIRECTORY, Leased::Names);
        assert_eq!(kept.neighbours_wanted(DIRECTORY), 0, "it begins anew");
    }

    // SEMANTICS 138.6
    #[test]
    fn of_a_directory_that_came_whole_all_names_are_known() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        kept.keep_neighbours(&directory(2), Some((b"a", FILE)), (&neighbours(&["b"]), true), now);
        assert_eq!((leads(&kept, b"a"), leads(&kept, b"b")), (Some(Named::At(FILE)), Some(Named::At(FILE))));
        assert_eq!(leads(&kept, b"other"), Some(Named::Absent));
        assert_eq!(kept.neighbours_wanted(DIRECTORY), 0);
        kept.recall(DIRECTORY, Leased::Attributes);
        assert_eq!(leads(&kept, b"other"), None, "somebody may have made it");
    }

    // SEMANTICS 138.1
    #[test]
    fn a_name_that_found_no_room_is_not_said_to_be_absent() {
        const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let now = Instant::now();
        for free in 0..2 * NAMES.len() {
            let mut kept = Kept::default();
            for number in 0..(limits::NAMES_KEPT_PER_MOUNT_MAX - free - 1) as u64 {
                kept.keep_name(InodeId(1), &number.to_le_bytes(), Named::At(FILE), now);
            }
            let size = NAMES.len() as u64;
            kept.keep_neighbours(&directory(size), Some((b"a", FILE)), (&neighbours(&NAMES[1..]), true), now);
            for name in NAMES {
                assert_ne!(
                    leads(&kept, name.as_bytes()),
                    Some(Named::Absent),
                    "{name}, with room for {free}"
                );
            }
            assert_eq!(leads(&kept, b"a"), Some(Named::At(FILE)), "the last one is there");
        }
    }

    #[test]
    fn as_much_as_there_is_room_for_is_kept() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        for number in 0..=2 * limits::NAMES_KEPT_PER_MOUNT_MAX as u64 {
            kept.keep_name(InodeId(number % 1000), &number.to_le_bytes(), Named::At(FILE), now);
            kept.keep_attributes(
                &Attributes { inode: InodeId(1000 + number), kind: FileKind::File, ..directory(0) },
                now,
            );
        }
        let counted: usize = kept.directories.values().map(|directory| 1 + directory.names.len()).sum();
        assert_eq!(kept.names, counted);
        assert!(counted <= limits::NAMES_KEPT_PER_MOUNT_MAX + 1);
        assert!(kept.attributes.len() <= limits::LEASES_PER_MOUNT_MAX);
        kept.clear();
        assert_eq!(kept.names, 0);
    }
}

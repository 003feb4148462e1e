//! A directory's entries, in the order of their cookies.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Slot, numbered_variants};
use ramlace_layout::COLLISION_BITS;
use ramlace_wire::{FileKind, LayoutHints};
use serde::{Deserialize, Serialize};

use crate::state::callers::Callers;

/// The state that only directories have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// The directory above.
    pub parent: InodeId,
    /// The hints that files made here inherit.
    pub hints: LayoutHints,
    /// Its state between mkdir and rmdir.
    pub phase: Phase,
    /// Its entries.
    pub entries: Entries,
    /// Names that an operation under way holds.
    pub busy: BTreeMap<Name, Claim>,
    /// Which slots have its entries, when not all of them are here.
    pub spread: Option<Box<Spread>>,
}

/// How an operation under way holds a name: no other operation may change the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The operation is not decided: the entry is as it was.
    Asked,
    /// It is decided and done elsewhere, but not yet here: it may not even be read.
    Decided,
}

numbered_variants! { Claim:
    0 Asked;
    1 Decided;
}

/// The state of a directory between mkdir and rmdir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made, but not known to have an entry: answers queries, and Retry to every change.
    Prepared,
    /// As usual.
    Live,
    /// Its partitions are being made, changed or removed: answers queries, and Retry to every change.
    Changing,
    /// Empty, and answers Retry to every change until the rmdir is decided.
    Sealed,
    /// Without an entry; lives until no session has it open any more.
    Removed,
}

numbered_variants! { Phase:
    0 Prepared;
    1 Live;
    2 Changing;
    3 Sealed;
    4 Removed;
}

impl Directory {
    pub(crate) fn new(parent: InodeId, hints: LayoutHints, phase: Phase) -> Directory {
        Directory { parent, hints, phase, entries: Entries::default(), busy: BTreeMap::new(), spread: None }
    }

    /// Whether no mkdir or rmdir of the directory itself is under way.
    pub(crate) fn check_undisturbed(&self, inode: InodeId) -> Result<()> {
        let doing = match self.phase {
            Phase::Prepared => "made",
            Phase::Sealed => "removed",
            Phase::Changing => "changed in all its parts",
            Phase::Live | Phase::Removed => return Ok(()),
        };
        Err(Error::new(ErrorKind::Retry, format!("directory {inode} is just being {doing}")))
    }

    /// Whether entries may be added and removed now.
    pub(crate) fn check_live(&self, inode: InodeId) -> Result<()> {
        self.check_undisturbed(inode)?;
        if self.phase == Phase::Removed {
            return Err(Error::new(ErrorKind::NotFound, format!("directory {inode} has been removed")));
        }
        Ok(())
    }

    /// Whether no operation under way holds the name.
    pub(crate) fn check_not_busy(&self, name: &Name) -> Result<()> {
        if self.busy.contains_key(name) {
            return Err(Error::new(ErrorKind::Retry, format!("'{name}' is just being made or removed")));
        }
        Ok(())
    }

    /// Whether it is known here where the name leads.
    pub(crate) fn check_known(&self, name: &Name) -> Result<()> {
        match self.busy.get(name) {
            Some(Claim::Decided) => {
                Err(Error::new(ErrorKind::Retry, format!("'{name}' is just getting another name")))
            }
            Some(Claim::Asked) | None => Ok(()),
        }
    }
}

/// Where the entries of a directory are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// The slot of each partition.
    pub partitions: Box<[Slot]>,
    /// At home: callers that want the directory removed.
    pub callers: Callers,
}

impl Spread {
    pub(crate) fn new(partitions: &[Slot]) -> Box<Spread> {
        Box::new(Spread { partitions: partitions.into(), callers: Callers::default() })
    }

    /// The slots other than `home` that hold partitions, each once.
    pub(crate) fn others(&self, home: Slot) -> Vec<Slot> {
        let mut slots: Vec<Slot> = self.partitions.iter().copied().filter(|slot| *slot != home).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

/// Where a name leads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub name: Name,
    pub inode: InodeId,
    pub kind: FileKind,
}

/// Entries by cookie: 60 bits of hash and 3 bits that distinguish equal hashes. A cookie stays as long as its
/// entry, whatever happens to its neighbours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entries {
    by_cookie: BTreeMap<u64, Entry>,
    /// Cookies of entries that an operation under way will make.
    reserved: BTreeSet<u64>,
    #[serde(skip)]
    removals: Removals,
}

/// How often entries were removed since this process began: distinguishes two moments, and is no part of the
/// state.
#[derive(Clone, Copy, Debug, Default)]
struct Removals(u64);

impl PartialEq for Removals {
    fn eq(&self, _other: &Removals) -> bool {
        true
    }
}

impl Entries {
    pub(crate) fn len(&self) -> u64 {
        self.by_cookie.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_cookie.is_empty()
    }

    /// The entry with this name, whose hash is `hash`, and its cookie.
    pub(crate) fn find(&self, hash: u64, name: &Name) -> Option<(u64, &Entry)> {
        self.by_cookie
            .range(cookies(hash))
            .find(|(_, entry)| entry.name == *name)
            .map(|(cookie, entry)| (*cookie, entry))
    }

    /// A cookie for a new entry. Fails with `NoSpace` when eight names share the hash.
    pub(crate) fn free_cookie(&self, hash: u64, name: &Name) -> Result<u64> {
        let taken = |cookie: &u64| self.by_cookie.contains_key(cookie) || self.reserved.contains(cookie);
        cookies(hash).find(|cookie| !taken(cookie)).ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                format!("8 names of this directory have the same hash as '{name}'; choose another name"),
            )
        })
    }

    /// The same, kept for an entry that comes later.
    pub(crate) fn reserve_cookie(&mut self, hash: u64, name: &Name) -> Result<u64> {
        let cookie = self.free_cookie(hash, name)?;
        self.reserved.insert(cookie);
        Ok(cookie)
    }

    /// A reserved cookie is free again.
    pub(crate) fn give_back_cookie(&mut self, cookie: u64) {
        self.reserved.remove(&cookie);
    }

    /// Cookies that are kept for entries to come.
    pub(crate) fn reserved_count(&self) -> usize {
        self.reserved.len()
    }

    /// Adds an entry at a cookie from [`Entries::free_cookie`].
    pub(crate) fn insert(&mut self, cookie: u64, entry: Entry) {
        let before = self.by_cookie.insert(cookie, entry);
        assert!(before.is_none(), "cookie {cookie} was taken");
    }

    /// Keeps the entries whose cookies are wanted.
    pub(crate) fn retain(&mut self, wanted: impl Fn(u64) -> bool) {
        self.removals.0 += 1;
        self.by_cookie.retain(|cookie, _| wanted(*cookie));
    }

    /// How many lead to directories.
    pub(crate) fn directories(&self) -> u32 {
        self.by_cookie.values().filter(|entry| entry.kind == FileKind::Directory).count() as u32
    }

    /// Whether the cookie has an entry.
    pub(crate) fn has(&self, cookie: u64) -> bool {
        self.by_cookie.contains_key(&cookie)
    }

    /// Grows whenever entries are removed.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.0
    }

    /// An entry is not shown any more.
    pub(crate) fn note_removal(&mut self) {
        self.removals.0 += 1;
    }

    pub(crate) fn remove(&mut self, cookie: u64) {
        self.note_removal();
        let before = self.by_cookie.remove(&cookie);
        assert!(before.is_some(), "cookie {cookie} had no entry");
    }

    /// The entries with larger cookies, in their order.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        self.by_cookie
            .range((Bound::Excluded(cookie), Bound::Unbounded))
            .map(|(cookie, entry)| (*cookie, entry))
    }
}

fn cookies(hash: u64) -> std::ops::RangeInclusive<u64> {
    let first = hash << COLLISION_BITS;
    first..=first | ((1 << COLLISION_BITS) - 1)
}

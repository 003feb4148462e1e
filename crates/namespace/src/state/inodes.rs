//! The inodes of a slot, and which of them a step has touched.

use std::collections::BTreeMap;
use std::ops::Deref;

use ramlace_base::{InodeId, Slot};
use ramlace_wire::inline::BytesPlace;
use ramlace_wire::{Attributes, FileKind};
use serde::{Deserialize, Serialize};

use crate::state::directory::{Directory, Phase};
use crate::state::inode::{Body, Inode};

/// Inodes by number. They are changed through the methods here alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Inodes {
    all: BTreeMap<InodeId, Box<Inode>>,
    /// The state before the present step of the inodes that it has touched.
    #[serde(skip)]
    touched: BTreeMap<InodeId, Option<Before>>,
}

/// The part of an inode that others may see.
#[derive(Clone, Debug, PartialEq)]
struct Before {
    attributes: Attributes,
    names: Option<Names>,
    /// Whether its bytes are in its lanes: a client that knows its size knows also where they are.
    in_lanes: bool,
}

/// The values that change when a directory's names may lead elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Names {
    removals: u64,
    is_whole: bool,
}

impl Deref for Inodes {
    type Target = BTreeMap<InodeId, Box<Inode>>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Inodes {
    pub(crate) fn get_mut(&mut self, inode: &InodeId) -> Option<&mut Box<Inode>> {
        self.touch(*inode);
        self.all.get_mut(inode)
    }

    pub(crate) fn insert(&mut self, inode: InodeId, new: Box<Inode>) -> Option<Box<Inode>> {
        self.touch(inode);
        self.all.insert(inode, new)
    }

    pub(crate) fn remove(&mut self, inode: &InodeId) -> Option<Box<Inode>> {
        self.touch(*inode);
        self.all.remove(inode)
    }

    /// Changes before the first step do not count.
    pub(crate) fn forget_touched(&mut self) {
        self.touched.clear();
    }

    fn touch(&mut self, inode: InodeId) {
        let all = &self.all;
        self.touched.entry(inode).or_insert_with(|| all.get(&inode).map(|found| Before::of(inode, found)));
    }

    /// The inodes of `slot` that others see differently since this was asked last, and whether names that were
    /// in them are gone or lead elsewhere. New ones are not among them: no client knew them.
    pub(crate) fn take_changed(&mut self, slot: Slot) -> Vec<(InodeId, FileKind, bool)> {
        let changed = |(inode, before): (InodeId, Option<Before>)| {
            let before = before.filter(|_| inode.slot() == slot)?;
            let after = self.all.get(&inode).map(|found| Before::of(inode, found));
            let names =
                before.names.is_some() && after.as_ref().map(|after| after.names) != Some(before.names);
            (after.as_ref() != Some(&before)).then_some((inode, before.attributes.kind, names))
        };
        std::mem::take(&mut self.touched).into_iter().filter_map(changed).collect()
    }

    /// Whether all of a directory's names are here, and no operation under way moves them elsewhere.
    pub(crate) fn has_all_names(&self, directory: InodeId) -> bool {
        self.all.get(&directory).is_some_and(|found| match &found.body {
            Body::Directory(directory) => directory.is_whole(),
            _ => false,
        })
    }
}

impl Before {
    fn of(inode: InodeId, found: &Inode) -> Before {
        let names = match &found.body {
            Body::Directory(directory) => {
                Some(Names { removals: directory.entries.removals(), is_whole: directory.is_whole() })
            }
            _ => None,
        };
        let in_lanes = matches!(&found.body, Body::File(file) if file.place() == BytesPlace::Lanes);
        Before { attributes: found.attributes(inode), names, in_lanes }
    }
}

impl Directory {
    /// Whether all names are here, and stay.
    fn is_whole(&self) -> bool {
        self.spread.is_none() && self.phase == Phase::Live
    }
}

//! Queries: they change nothing. The answer to each is described at its request; where a subject's file lies above this one and has several, they stand there.

use std::collections::BTreeSet;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, SessionId, limits};
use ramlace_layout::COLLISION_BITS;
use ramlace_wire::namespace::{
    DirectoryEntry, DirectoryPage, Found, GetAttributes, InodeInfo, Lookup, ReadDirectory, ReadLink,
};
use ramlace_wire::peer::{InodeAnswer, QueryInode};
use ramlace_wire::{Attributes, Credentials, Request};

use crate::entries::not_found;
use crate::state::SlotState;
use crate::state::directory::{Claim, Directory, Entry};
use crate::state::inode::{Body, right};

/// No entry of a page takes more bytes on the wire: a name of 255, twelve numbers of at most ten.
const ENTRY_BYTES_MAX: u32 = 400;
const _: () = assert!(limits::READDIR_ENTRIES_MAX * ENTRY_BYTES_MAX <= limits::BODY_BYTES_MAX / 2);

/// A request that changes nothing.
pub trait Query: Request {
    /// The slot's answer.
    ///
    /// Panics when the query belongs to another slot: that is a bug of the caller.
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<Self::Reply>;
}

/// As whom something is asked.
#[derive(Clone, Copy, Debug)]
pub struct AskedBy<'a> {
    /// The user.
    pub who: &'a Credentials,
    /// The session, if its open files count: not when it asks for one of its users.
    pub session: SessionId,
}

impl<'a> From<&'a Credentials> for AskedBy<'a> {
    fn from(who: &'a Credentials) -> AskedBy<'a> {
        AskedBy { who, session: SessionId::NONE }
    }
}

impl Query for Lookup {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<Found> {
        slot.lookup(by.who, self)
    }
}

impl Query for GetAttributes {
    fn answer(&self, slot: &SlotState, _by: AskedBy<'_>) -> Result<InodeInfo> {
        let inode = match slot.is_mine(self.inode) {
            true => slot.inode(self.inode)?,
            false => slot.directory_here(self.inode)?.0,
        };
        Ok(slot.info(self.inode, inode))
    }
}

impl Query for ReadLink {
    fn answer(&self, slot: &SlotState, _by: AskedBy<'_>) -> Result<Vec<u8>> {
        match &slot.inode(self.inode)?.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Error::new(ErrorKind::Invalid, format!("inode {} is no symbolic link", self.inode))),
        }
    }
}

impl Query for ReadDirectory {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<DirectoryPage> {
        slot.read_directory(by.who, *self)
    }
}

/// By a lane; any caller may know the answer.
impl Query for QueryInode {
    fn answer(&self, slot: &SlotState, _by: AskedBy<'_>) -> Result<InodeAnswer> {
        let file = slot.inode(self.inode)?.file(self.inode)?;
        Ok(InodeAnswer {
            generation: file.generation,
            // A lane whose bytes were lost must not take finished, unpublished appends for holes.
            size: file.extent(),
            smallest_size: file.smallest_size(self.since),
            layout: file.layout,
            place: file.place(),
            // The slot does not know that.
            kept_by: Vec::new(),
        })
    }
}

impl SlotState {
    /// Answers a query; changes nothing.
    ///
    /// Panics when the query belongs to another slot: that is a bug of the caller.
    pub fn query<'a, Q: Query>(&self, by: impl Into<AskedBy<'a>>, query: &Q) -> Result<Q::Reply> {
        query.answer(self, by.into())
    }

    fn lookup(&self, who: &Credentials, request: &Lookup) -> Result<Found> {
        let (parent, directory) = self.directory_with(request.parent, &request.name)?;
        parent.check_allows(who, right::SEARCH)?;
        directory.check_known(&request.name)?;
        let (_, entry) = directory
            .entries
            .find(self.hash.of(&request.name), &request.name)
            .ok_or_else(|| not_found(&request.name))?;
        Ok(Found { inode: entry.inode, kind: entry.kind, attributes: self.attributes_here(entry) })
    }

    /// The attributes of an entry's inode, when it lives here and all of it is known here.
    fn attributes_here(&self, entry: &Entry) -> Option<Attributes> {
        let inode = self.inodes.get(&entry.inode)?;
        match &inode.body {
            Body::Directory(directory) if directory.spread.is_some() => None,
            _ => Some(inode.attributes(entry.inode)),
        }
    }

    fn directory_entry(&self, cookie: u64, entry: &Entry) -> DirectoryEntry {
        DirectoryEntry {
            cookie,
            name: entry.name.clone(),
            inode: entry.inode,
            kind: entry.kind,
            attributes: self.attributes_here(entry),
        }
    }

    /// Up to `most` entries of a directory whose names are all here: those behind this name in the order of cookies,
    /// and behind the last one those from the first on. And whether these and the name are all.
    ///
    /// Errors: `Denied` for a caller that may not list the directory.
    pub fn neighbours(
        &self,
        who: &Credentials,
        parent: InodeId,
        name: &Name,
        most: usize,
    ) -> Result<(Vec<DirectoryEntry>, bool)> {
        let (inode, directory) = self.directory_here(parent)?;
        inode.check_allows(who, right::READ)?;
        let hash = self.hash.of(name);
        let at = directory.entries.find(hash, name).map_or(hash << COLLISION_BITS, |(cookie, _)| cookie);
        let from_first = directory.entries.after(0).take_while(|(cookie, _)| *cookie <= at);
        let mut others =
            directory.entries.after(at).chain(from_first).filter(|(_, entry)| entry.name != *name);
        let seen: Vec<(u64, &Entry)> = others.by_ref().take(most).collect();
        // What is just getting another name is not shown.
        let known = |entry: &Entry| directory.check_known(&entry.name).is_ok();
        let is_all = others.next().is_none() && directory.busy.is_empty();
        let shown = seen.into_iter().filter(|(_, entry)| known(entry));
        Ok((shown.map(|(cookie, entry)| self.directory_entry(cookie, entry)).collect(), is_all))
    }

    /// Old names that decided renames have yet to take away, and whose new ones are shown: no listing has both.
    fn names_left(&self, inode: InodeId, directory: &Directory) -> BTreeSet<&Name> {
        if directory.busy.values().all(|claim| *claim == Claim::Asked) {
            return BTreeSet::new();
        }
        let left = self.intents.values().filter_map(|intent| intent.name_left(self.slot));
        left.filter(|(parent, _)| *parent == inode).map(|(_, name)| name).collect()
    }

    fn read_directory(&self, who: &Credentials, request: ReadDirectory) -> Result<DirectoryPage> {
        if request.entries_max == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a page of a directory has at least one entry"));
        }
        let (inode, directory) = self.directory_here(request.inode)?;
        inode.check_allows(who, right::READ)?;
        let Some(partition) = self.hash.partition_behind(request.after) else {
            return Ok(DirectoryPage { entries: Vec::new(), end: true, next: request.after });
        };
        self.check_partition(request.inode, directory, partition)?;
        // A spread directory may continue in another slot.
        let last = directory.spread.as_ref().map_or(u64::MAX, |_| self.hash.last_cookie(partition));
        let left = self.names_left(request.inode, directory);
        let mut rest = directory
            .entries
            .after(request.after)
            .take_while(|(cookie, _)| *cookie <= last)
            .filter(|(_, entry)| !left.contains(&entry.name));
        let entries_max = request.entries_max.min(limits::READDIR_ENTRIES_MAX) as usize;
        let entries: Vec<DirectoryEntry> = rest
            .by_ref()
            .take(entries_max)
            .map(|(cookie, entry)| self.directory_entry(cookie, entry))
            .collect();
        let all = rest.next().is_none();
        let end = all && (last == u64::MAX || partition + 1 == limits::DIRECTORY_PARTITIONS);
        let reached = entries.last().map_or(request.after, |entry| entry.cookie);
        Ok(DirectoryPage { entries, end, next: if all && !end { last } else { reached } })
    }
}

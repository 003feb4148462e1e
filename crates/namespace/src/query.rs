//! Queries: they change nothing.

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::namespace::{DirectoryEntry, DirectoryPage, Found, Lookup, ReadDirectory, ReadLink};
use ramlace_wire::peer::{Ascended, InodeAnswer, QueryInode};
use ramlace_wire::{Attributes, Credentials};

use crate::command::{Answer, Query};
use crate::entries::not_found;
use crate::state::SlotState;
use crate::state::directory::Entry;
use crate::state::inode::{Body, right};

/// No entry of a page takes more bytes on the wire: a name of 255, twelve numbers of at most ten.
const ENTRY_BYTES_MAX: u32 = 400;
const _: () = assert!(limits::READDIR_ENTRIES_MAX * ENTRY_BYTES_MAX <= limits::BODY_BYTES_MAX / 2);

impl SlotState {
    /// Answers a query; changes nothing.
    ///
    /// Panics when the query belongs to another slot: that is a bug of the caller.
    pub fn query(&self, who: &Credentials, query: &Query) -> Result<Answer> {
        match query {
            Query::Lookup(request) => self.lookup(who, request).map(Answer::Found),
            Query::GetAttributes(request) => {
                let inode = if self.is_mine(request.inode) {
                    self.inode(request.inode)?
                } else {
                    self.directory_here(request.inode)?.0
                };
                Ok(Answer::Info(Box::new(self.info(request.inode, inode))))
            }
            Query::ReadLink(request) => self.read_link(*request).map(Answer::Bytes),
            Query::GetXattr(request) => self.get_xattr(who, request).map(Answer::Bytes),
            Query::ListXattrs(request) => self.list_xattrs(who, *request).map(Answer::Names),
            Query::ReadDirectory(request) => self.read_directory(who, *request).map(Answer::Page),
            Query::ReadInline { request, session } => {
                self.read_inline(who, *session, *request).map(Answer::Inline)
            }
            Query::Ascend(request) => {
                self.assert_mine(request.inode);
                let inode = self.ascend(request.inode, request.until)?;
                Ok(Answer::Ascended(Ascended { inode }))
            }
            Query::GetLock { request, session } => self.get_lock(*session, *request).map(Answer::Lock),
            Query::QueryInode(request) => self.query_inode(*request).map(Answer::Inode),
            Query::Operations => Ok(Answer::Operations(self.operations_known())),
        }
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

    /// The attributes of what an entry leads to, when it lives here and all of it is known here.
    fn attributes_here(&self, entry: &Entry) -> Option<Attributes> {
        let inode = self.inodes.get(&entry.inode)?;
        match &inode.body {
            Body::Directory(directory) if directory.spread.is_some() => None,
            _ => Some(inode.attributes(entry.inode)),
        }
    }

    fn read_link(&self, request: ReadLink) -> Result<Vec<u8>> {
        match &self.inode(request.inode)?.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Error::new(ErrorKind::Invalid, format!("inode {} is no symbolic link", request.inode))),
        }
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
        let mut rest = directory.entries.after(request.after).take_while(|(cookie, _)| *cookie <= last);
        let entries_max = request.entries_max.min(limits::READDIR_ENTRIES_MAX) as usize;
        let entries: Vec<DirectoryEntry> = rest
            .by_ref()
            .take(entries_max)
            .map(|(cookie, entry)| DirectoryEntry {
                cookie,
                name: entry.name.clone(),
                inode: entry.inode,
                kind: entry.kind,
                attributes: self.attributes_here(entry),
            })
            .collect();
        let all = rest.next().is_none();
        let end = all && (last == u64::MAX || partition + 1 == limits::DIRECTORY_PARTITIONS);
        let reached = entries.last().map_or(request.after, |entry| entry.cookie);
        Ok(DirectoryPage { entries, end, next: if all && !end { last } else { reached } })
    }

    fn query_inode(&self, request: QueryInode) -> Result<InodeAnswer> {
        let file = self.inode(request.inode)?.file(request.inode)?;
        Ok(InodeAnswer {
            generation: file.generation,
            // A lane whose bytes were lost must not take finished, unpublished appends for holes.
            size: file.extent(),
            smallest_size: file.smallest_size(request.since),
            layout: file.layout,
            place: file.place(),
        })
    }
}

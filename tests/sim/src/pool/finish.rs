//! What must hold in the end.

use std::collections::BTreeSet;

use ramlace_base::{ErrorKind, InodeId, Result as Outcome, ServerId, limits};
use ramlace_check::{Check, FindingKind};
use ramlace_namespace::Reply;
use ramlace_wire::check::LaneFacts;
use ramlace_wire::inline::{InlineRead, Promoted, ReadInline};
use ramlace_wire::namespace::{GetAttributes, Lookup, ReadDirectory};

use super::World;
use super::client::{Doing, File, Loss, Place};

impl World {
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.calm_down()?;
        self.resolve_doubts()?;
        self.check_clients()?;
        self.end_sessions()?;
        self.calm_down()?;
        for server in &self.servers {
            for value in server.slots.iter().flatten().map(|(_, value)| value) {
                if let Some(session) = value.sessions().next() {
                    return Err(format!("{} knows session {session}, which has ended", value.slot()));
                }
            }
        }
        self.check_facts()
    }

    /// Everybody's names and bytes are what everybody was told.
    fn check_clients(&self) -> Result<(), String> {
        for client in &self.clients {
            for file in client.files.iter().filter(|file| !file.is_gone()) {
                for place in &file.places {
                    let found = self.lookup(place)?;
                    if found != Some(file.inode) {
                        return Err(format!("{place:?} leads to {found:?} and not to {}", file.inode));
                    }
                }
                let Some(bytes) = self.bytes(file)? else {
                    if file.loss == Loss::Not && !file.bytes.is_empty() {
                        return Err(format!("{} is said to be lost, and no store of it was", file.inode));
                    }
                    continue;
                };
                if file.loss == Loss::Is && !file.bytes.is_empty() {
                    return Err(format!("{} is read as {bytes:?}, and went with a store", file.inode));
                }
                if !file.may_be(&bytes) {
                    return Err(format!(
                        "{} has {bytes:?}, and its writer was told {:?}",
                        file.inode, file.bytes
                    ));
                }
            }
            for place in &client.gone {
                // A directory that is gone has no entries.
                if let Some(inode) = self.lookup(place)? {
                    return Err(format!("{place:?} is gone, and leads to {inode}"));
                }
            }
        }
        let directories: BTreeSet<InodeId> = self
            .clients
            .iter()
            .flat_map(|client| client.directories.iter().filter(|directory| !directory.is_gone))
            .map(|directory| directory.inode)
            .collect();
        for directory in directories {
            let places = self.clients.iter().flat_map(|client| &client.files).flat_map(|file| &file.places);
            let files = places.filter(|(parent, _)| *parent == directory).count();
            let all = self.clients.iter().flat_map(|client| &client.directories);
            let inside = all.filter(|directory| directory.name.is_some()).count();
            let expected = files + if directory == InodeId::ROOT { inside } else { 0 };
            let entries_max = limits::READDIR_ENTRIES_MAX;
            let request = ReadDirectory { inode: directory, after: 0, entries_max };
            match self.query(directory.slot(), &request) {
                Ok(page) if page.entries.len() == expected => {}
                other => return Err(format!("{directory} has not {expected} entries: {other:?}")),
            }
        }
        Ok(())
    }

    fn lookup(&self, (parent, name): &Place) -> Result<Option<InodeId>, String> {
        let request = Lookup { parent: *parent, name: name.clone() };
        match self.query(parent.slot(), &request) {
            Ok(found) => Ok(Some(found.inode)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => Ok(None),
            other => Err(format!("{name:?} in {parent}: {other:?}")),
        }
    }

    /// What an operation of several slots has come to whose session had ended before its answer.
    pub(super) fn seen_of(&self, client: usize, doing: &Doing) -> Result<Option<Reply>, String> {
        let of_client = &self.clients[client];
        let file = doing.file().map(|file| &of_client.files[file]);
        let attributes = |inode: InodeId| self.query(inode.slot(), &GetAttributes { inode });
        let shown = |inode| attributes(inode).ok().map(|info| Reply::Attributes(Box::new(info.attributes)));
        Ok(match (doing, file) {
            (Doing::Rename { to, .. }, Some(file)) => {
                (self.lookup(to)? == Some(file.inode)).then_some(Reply::Done)
            }
            (Doing::Link { to, .. }, Some(_)) => self.lookup(to)?.and_then(shown),
            (Doing::Unlink { which, .. }, Some(file)) => {
                self.lookup(&file.places[*which])?.is_none().then_some(Reply::Done)
            }
            (Doing::MakeDirectory { name }, _) => {
                self.lookup(&(InodeId::ROOT, name.clone()))?.and_then(shown)
            }
            (Doing::RemoveDirectory { which }, _) => {
                let name = of_client.directories[*which].name.clone().ok_or("the root stays")?;
                self.lookup(&(InodeId::ROOT, name))?.is_none().then_some(Reply::Done)
            }
            (Doing::Truncate { .. }, Some(File { inode, lane: Some(lane), .. })) => {
                let info = attributes(*inode).ok();
                let is_cut = info.is_some_and(|info| info.attributes.generation > lane.generation);
                if is_cut { shown(*inode) } else { None }
            }
            (Doing::Promote { .. }, Some(file)) => {
                let read = self.read_inline(file.inode).ok().filter(|read| read.bytes.is_none());
                read.map(|read| Reply::Promoted(Promoted { size: read.size, since: read.since }))
            }
            _ => None,
        })
    }

    fn read_inline(&self, inode: InodeId) -> Outcome<InlineRead> {
        let request = ReadInline { inode, offset: 0, length: u32::MAX, keep: false };
        self.query_by(self.clients[0].session(), inode.slot(), &request)
    }

    /// The bytes of a file; `None`: they are lost.
    fn bytes(&self, file: &File) -> Result<Option<Vec<u8>>, String> {
        if let Some(target) = &file.lane {
            return Ok(self.read_lane(file, target));
        }
        let read = self.read_inline(file.inode).map_err(|error| format!("{}: {error:?}", file.inode))?;
        let mut bytes = read.bytes.map(|bytes| bytes.0).unwrap_or_default();
        bytes.resize(read.size.size as usize, 0);
        Ok(Some(bytes))
    }

    fn end_sessions(&mut self) -> Result<(), String> {
        self.have_left = true;
        for client in 0..self.clients.len() {
            let session = self.clients[client].session();
            for server in 0..self.servers.len() {
                self.end_session(server, session)?;
            }
        }
        Ok(())
    }

    /// What `ramlace check` reads fits together.
    fn check_facts(&self) -> Result<(), String> {
        let mut check = Check::new(&self.map, BTreeSet::new());
        let each = || {
            let numbered = self.servers.iter().enumerate();
            numbered.flat_map(|(number, server)| {
                server.slots.iter().flatten().map(move |(_, value)| (ServerId(number as u16), value))
            })
        };
        for (server, value) in each() {
            let Some(names) = value.names() else { continue };
            let (mut after, mut troubles) = (InodeId(0), Vec::new());
            loop {
                let page = names.inode_facts(after, 100, &mut troubles);
                page.iter().for_each(|facts| check.inode(server, facts));
                let Some(last) = page.last() else { break };
                after = last.inode;
            }
            troubles.iter().for_each(|trouble| check.trouble(server, trouble));
            check.slot(server, &names.slot_facts(|_| false));
        }
        for (server, value) in each() {
            let Some(names) = value.names() else { continue };
            let mut page = Vec::new();
            let next = names.entry_facts(None, usize::MAX, &mut page);
            assert!(next.is_none());
            page.iter().for_each(|facts| check.entry(server, facts));
        }
        for (server, value) in each() {
            let store = &self.servers[usize::from(server.0)].store;
            for (lane, known) in value.lanes().iter() {
                let length = store.get(&lane).map(|bytes| bytes.len() as u64);
                let allocated_bytes = length.unwrap_or(0);
                let generation = Some(known.generation);
                let lost_below = known.loss.as_ref().map_or(0, |loss| loss.below);
                check.lane(
                    server,
                    &LaneFacts { lane, generation, length, allocated_bytes, lost_below, writing: false },
                );
            }
        }
        let checked = check.finish();
        let mut findings = checked.findings.iter();
        match findings.find(|finding| finding.kind != FindingKind::BytesLost) {
            None if checked.counts.operations == 0 && checked.counts.deliveries == 0 => Ok(()),
            None => Err(format!("something is pending still: {:?}", checked.counts)),
            Some(finding) => Err(format!("check finds: {finding:?}")),
        }
    }
}

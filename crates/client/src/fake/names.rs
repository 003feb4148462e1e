//! Names, and open files.

use ramlace_base::{Error, ErrorKind, InodeId, Name, ServerId, SessionId, Slot};
use ramlace_wire::delegation::{Change, ChangeMany, Changed, ManyChanged};
use ramlace_wire::inline::Bytes;
use ramlace_wire::namespace::{
    Close, Closed, Create, DirectoryEntry, DirectoryPage, EntryLeased, Found, GetAttributes, InodeInfo, Link,
    Lookup, Made, MakeDirectory, Open, OpenEntry, Opened, ReadDirectory, ReadLink, RemoveDirectory, Rename,
    SetAttributes, Symlink, Unlink, Unlinked,
};
use ramlace_wire::walk::{Walk, Walked};
use ramlace_wire::{ErrorBody, FileKind, Header, Kind, decode_body};

use super::{Done, Inode, SLOTS, State, body, error, new_inode};

impl State {
    /// Answers requests about names; passes all others on.
    pub(super) fn names(&mut self, id: ServerId, header: &Header, bytes: &[u8], data: &[u8]) -> Done {
        let kind = header.kind;
        match kind {
            Kind::Lookup => {
                let Lookup { parent, name } = decode_body::<Lookup>(kind, bytes)?;
                body(&self.look(id, parent, &name)?)
            }
            // One step at a time, so that the client has to repeat the request.
            Kind::Walk => {
                let Walk { from, names, .. } = decode_body::<Walk>(kind, bytes)?;
                let steps = vec![self.look(id, from, &names[0])?];
                body(&Walked { steps, stopped: None, info: None, bytes: None })
            }
            Kind::GetAttributes => {
                body(&self.inode(id, decode_body::<GetAttributes>(kind, bytes)?.inode)?.info)
            }
            Kind::SetAttributes => {
                let change = decode_body::<SetAttributes>(kind, bytes)?;
                let inode = self.inode(id, change.inode)?;
                if let Some(modified) = change.modified {
                    inode.info.attributes.modified = modified;
                }
                if let Some(mode) = change.mode {
                    inode.info.attributes.mode = mode;
                }
                body(&inode.info.attributes)
            }
            Kind::Create => {
                let request = decode_body::<Create>(kind, bytes)?;
                let key = (request.parent, request.name.as_bytes().to_vec());
                let old = self.entries.get(&key).copied().filter(|_| !request.exclusive);
                let info = match old {
                    Some(inode) if self.inodes[&inode].info.attributes.kind == FileKind::Symlink => {
                        return error(ErrorKind::Loop, "a symbolic link");
                    }
                    Some(inode) if self.inodes[&inode].info.attributes.kind == FileKind::Directory => {
                        return error(ErrorKind::IsDirectory, "a directory");
                    }
                    Some(inode) => self.inode(id, inode)?.info.clone(),
                    None => {
                        let silent = |server| request.wish.silent.contains(&server);
                        let key = ramlace_layout::name_key(request.parent, request.name.as_bytes());
                        let hints = request.wish.hints;
                        let mut layout = match request.layout {
                            Some(layout) => layout,
                            None => ramlace_layout::choose(hints, &self.map, |id| !silent(id), key)?,
                        };
                        layout.stripe_unit = layout.stripe_unit.max(request.wish.stripe_unit_min);
                        let inode = self.add(id, request.parent, &request.name, FileKind::File)?;
                        inode.info.layout = Some(layout);
                        inode.info.named = request.named;
                        inode.info.clone()
                    }
                };
                self.opened(header.session, info, old.is_none())
            }
            Kind::Open => {
                let Open { inode, .. } = decode_body::<Open>(kind, bytes)?;
                let info = self.inode(id, inode)?.info.clone();
                self.opened(header.session, info, false)
            }
            Kind::OpenEntry => {
                let OpenEntry { parent, name, .. } = decode_body::<OpenEntry>(kind, bytes)?;
                let Some(inode) = self.entries.get(&(parent, name.as_bytes().to_vec())).copied() else {
                    return error(ErrorKind::NotFound, "no such name");
                };
                let info = self.inode(id, inode)?.info.clone();
                match info.attributes.kind {
                    FileKind::Symlink => return error(ErrorKind::Loop, "a symbolic link"),
                    FileKind::Directory => return error(ErrorKind::IsDirectory, "a directory"),
                    _ => {}
                }
                self.opened(header.session, info, false)
            }
            Kind::Close => {
                let Close { inode, modified, .. } = decode_body::<Close>(kind, bytes)?;
                if let Some(modified) = modified {
                    self.inode(id, inode)?.info.attributes.modified = modified;
                }
                self.close(header.session, inode)?;
                self.closes.insert((header.session, header.sequence), inode);
                body(&Closed::default())
            }
            Kind::Symlink => {
                let Symlink { parent, name, target } = decode_body::<Symlink>(kind, bytes)?;
                let inode = self.add(id, parent, &name, FileKind::Symlink)?;
                inode.target = target;
                body(&Made { attributes: inode.info.attributes.clone(), parent: None })
            }
            Kind::ReadLink => body(&self.inode(id, decode_body::<ReadLink>(kind, bytes)?.inode)?.target),
            Kind::MakeDirectory => {
                let MakeDirectory { parent, name, .. } = decode_body::<MakeDirectory>(kind, bytes)?;
                let attributes = self.add(id, parent, &name, FileKind::Directory)?.info.attributes.clone();
                body(&Made { attributes, parent: None })
            }
            Kind::RemoveDirectory => {
                let RemoveDirectory { parent, name } = decode_body::<RemoveDirectory>(kind, bytes)?;
                self.remove(id, parent, &name, true)
            }
            Kind::Unlink => {
                let Unlink { parent, name } = decode_body::<Unlink>(kind, bytes)?;
                let inode = self.entries.get(&(parent, name.as_bytes().to_vec())).copied();
                self.remove(id, parent, &name, false)?;
                body(&Unlinked { parent: None, inode })
            }
            Kind::ChangeMany => {
                let many = decode_body::<ChangeMany>(kind, bytes)?;
                let changed =
                    many.changes.iter().map(|change| self.one_of_many(id, header, change)).collect();
                body(&ManyChanged { changed, delegated: None })
            }
            Kind::Rename => {
                let Rename { parent, name, new_parent, new_name, .. } = decode_body::<Rename>(kind, bytes)?;
                self.inode(id, parent)?;
                let Some(inode) = self.entries.remove(&(parent, name.as_bytes().to_vec())) else {
                    return error(ErrorKind::NotFound, "none");
                };
                self.entries.insert((new_parent, new_name.as_bytes().to_vec()), inode);
                body(&())
            }
            Kind::Link => {
                let Link { parent, name, inode } = decode_body::<Link>(kind, bytes)?;
                self.inode(id, parent)?;
                let before = self.entries.insert((parent, name.as_bytes().to_vec()), inode);
                if before.is_some() {
                    return error(ErrorKind::Exists, "taken");
                }
                body(&Made { attributes: self.inodes[&inode].info.attributes.clone(), parent: None })
            }
            Kind::ReadDirectory => {
                let ReadDirectory { inode, after, .. } = decode_body::<ReadDirectory>(kind, bytes)?;
                self.inode(id, inode)?;
                let all = self.entries.iter().filter(|((parent, _), _)| *parent == inode);
                let entry = |((key, inode), cookie): ((&(InodeId, Vec<u8>), &InodeId), u64)| DirectoryEntry {
                    cookie,
                    name: Name::new(key.1.clone()).unwrap(),
                    inode: *inode,
                    kind: self.inodes[inode].info.attributes.kind,
                    attributes: None,
                };
                // The position in the directory is good enough as a cookie while nothing changes.
                let entries: Vec<_> =
                    all.zip(1..).map(entry).filter(|entry| entry.cookie > after).take(3).collect();
                let end = entries.len() < 3;
                let next = entries.last().map_or(after, |entry| entry.cookie);
                body(&DirectoryPage { entries, end, next })
            }
            Kind::SetLock | Kind::CancelLock => self.locks(id, header, bytes),
            _ => self.sizes(id, header, bytes, data),
        }
    }

    /// Notes that a session has a file open from here on; it gets no leases.
    fn opened(&mut self, session: SessionId, info: InodeInfo, created: bool) -> Done {
        let reference = (session, info.attributes.inode);
        self.open.insert(reference);
        self.open_in_doubt.remove(&reference);
        body(&Opened { info, created, permit: self.permit, leased: EntryLeased::default(), parent: None })
    }

    /// Closes a file for a session. A file that is not open is an error, as at a server; it is also a misuse,
    /// unless the session cannot know whether it has closed it already.
    fn close(&mut self, session: SessionId, inode: InodeId) -> Result<(), Error> {
        if self.open.remove(&(session, inode)) {
            return Ok(());
        }
        if !self.open_in_doubt.contains(&(session, inode)) {
            self.misuse(format!("{inode} was closed twice"));
        }
        error(ErrorKind::BadHandle, "the session does not have it open")
    }

    fn one_of_many(&mut self, id: ServerId, header: &Header, change: &Change) -> Changed {
        let key = (header.session, change.sequence);
        if let Some(reply) = self.replies.get(&key) {
            return Changed { body: Bytes(reply.clone()), error: None };
        }
        let kind = Kind::from_number(change.kind).expect("a client sends what there is");
        *self.done.entry(kind).or_default() += 1;
        let header = Header { kind, sequence: change.sequence, ..*header };
        match self.names(id, &header, &change.body.0, &[]) {
            Ok((reply, _)) => {
                self.replies.insert(key, reply.clone());
                Changed { body: Bytes(reply), error: None }
            }
            Err(error) => Changed { body: Bytes::default(), error: Some(ErrorBody::new(&error)) },
        }
    }

    fn look(&mut self, id: ServerId, parent: InodeId, name: &Name) -> Result<Found, Error> {
        self.inode(id, parent)?;
        let found = self.entries.get(&(parent, name.as_bytes().to_vec())).copied();
        let Some(inode) = found else { return error(ErrorKind::NotFound, "none") };
        let attributes = self.inodes[&inode].info.attributes.clone();
        Ok(Found { inode, kind: attributes.kind, attributes: Some(attributes) })
    }

    fn add(
        &mut self,
        id: ServerId,
        parent: InodeId,
        name: &Name,
        kind: FileKind,
    ) -> Result<&mut Inode, Error> {
        self.inode(id, parent)?;
        let key = (parent, name.as_bytes().to_vec());
        if self.entries.contains_key(&key) {
            return error(ErrorKind::Exists, "taken");
        }
        self.counter += 1;
        // Directories go to other slots, as they do in a pool.
        let slot = if kind == FileKind::Directory {
            Slot((self.counter % u64::from(SLOTS)) as u16)
        } else {
            parent.slot()
        };
        let inode = InodeId::new(slot, self.counter);
        self.entries.insert(key, inode);
        Ok(self.inodes.entry(inode).or_insert_with(|| new_inode(inode, kind)))
    }

    fn remove(&mut self, id: ServerId, parent: InodeId, name: &Name, directory: bool) -> Done {
        self.inode(id, parent)?;
        let key = (parent, name.as_bytes().to_vec());
        let Some(inode) = self.entries.get(&key).copied() else { return error(ErrorKind::NotFound, "none") };
        let kind = self.inodes[&inode].info.attributes.kind;
        match (kind == FileKind::Directory, directory) {
            (true, false) => return error(ErrorKind::IsDirectory, "a directory"),
            (false, true) => return error(ErrorKind::NotDirectory, "no directory"),
            _ => {}
        }
        if self.entries.keys().any(|(parent, _)| *parent == inode) {
            return error(ErrorKind::NotEmpty, "not empty");
        }
        self.entries.remove(&key);
        body(&())
    }
}

//! Operations on entries whose inodes live beside them: create, symlink, mknod.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, Timestamp, limits};
use ramlace_wire::namespace::{
    Create, EntryLeased, InodeInfo, MakeNode, NewMode, Open, OpenEntry, Opened, Symlink,
};
use ramlace_wire::{Credentials, FileAttributes, FileKind, Layout, OpenedFor, Owner};

use crate::access_lists::made;
use crate::command::Reply;
use crate::handles::no_bytes;
use crate::state::directory::{Directory, Entry};
use crate::state::file::File;
use crate::state::inode::{Body, Inode, MODE_MAX, SET_GID, Special, right};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn create(&mut self, caller: Caller, request: &Create) -> Step {
        check_new_mode(request.mode)?;
        let directory = self.directory_to_change(request.parent, &request.name, caller.who)?;
        directory.check_not_busy(&request.name)?;
        let rules = request.wish.hints.or(directory.hints).rules;
        let hash = self.hash.of(&request.name);
        if let Some((_, entry)) = directory.entries.find(hash, &request.name) {
            let (inode, kind) = (entry.inode, entry.kind);
            if request.exclusive {
                return Err(taken(&request.name));
            }
            let Create { read, write, .. } = *request;
            return self.open_existing(caller, &request.name, Open { inode, read, write, run: false }, kind);
        }
        self.session_mut(caller).check_may_open(InodeId(0))?;
        let layout = self.checked_layout(request.layout)?;
        check_named(&request.named)?;
        let body = Body::File(File::new(layout, rules, request.named.clone()));
        let inode = self.add_entry(caller, request.parent, &request.name, request.mode, body)?;
        // The creator of a file has it open as requested, whatever its mode will say to others.
        let opened = OpenedFor { read: request.read, write: request.write };
        self.reference(caller, inode, opened)?;
        Ok(Some(self.opened(inode, true)?))
    }

    pub(crate) fn open_entry(&mut self, caller: Caller, request: &OpenEntry) -> Step {
        let OpenEntry { parent, name, read, write } = request;
        let directory = self.directory_to_change(*parent, name, caller.who)?;
        directory.check_not_busy(name)?;
        let Some((_, entry)) = directory.entries.find(self.hash.of(name), name) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no '{name}' in the directory")));
        };
        let (kind, open) = (entry.kind, Open { inode: entry.inode, read: *read, write: *write, run: false });
        self.open_existing(caller, name, open, kind)
    }

    /// Opens the inode that has the name.
    fn open_existing(&mut self, caller: Caller, name: &Name, open: Open, kind: FileKind) -> Step {
        let inode = open.inode;
        match kind {
            FileKind::Directory => {
                Err(Error::new(ErrorKind::IsDirectory, format!("'{name}' is a directory")))
            }
            FileKind::Symlink => Err(Error::new(
                ErrorKind::Loop,
                format!("'{name}' is a symbolic link; ask for the file that it points to"),
            )),
            kind if kind.is_special() => Err(no_bytes(kind, inode)),
            _ if inode.slot() != self.slot => Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists already and lives in {}; open it there", inode.slot()),
            )),
            _ => self.open(caller, open),
        }
    }

    pub(crate) fn symlink(&mut self, caller: Caller, request: &Symlink) -> Step {
        check_target(&request.target)?;
        let directory = self.directory_to_change(request.parent, &request.name, caller.who)?;
        directory.check_not_busy(&request.name)?;
        if directory.entries.find(self.hash.of(&request.name), &request.name).is_some() {
            return Err(taken(&request.name));
        }
        let body = Body::Symlink(request.target.clone().into_boxed_slice());
        let inode = self.add_entry(caller, request.parent, &request.name, 0o777.into(), body)?;
        Ok(Some(Reply::Attributes(Box::new(self.inode(inode)?.attributes(inode)))))
    }

    pub(crate) fn make_node(&mut self, caller: Caller, request: &MakeNode) -> Step {
        check_new_mode(request.mode)?;
        check_special(request)?;
        self.check_new_entry(request.parent, &request.name, caller.who)?;
        if request.kind.is_device() && caller.who.uid != 0 {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "user {} may not make '{}': only the super-user makes devices",
                    caller.who.uid, request.name
                ),
            ));
        }
        let body = Body::Special(Special { kind: request.kind, device: request.device });
        let inode = self.add_entry(caller, request.parent, &request.name, request.mode, body)?;
        Ok(Some(Reply::Attributes(Box::new(self.inode(inode)?.attributes(inode)))))
    }

    /// A directory whose entries the caller may reach, and which may change now.
    pub(crate) fn directory_to_change(
        &self,
        inode: InodeId,
        name: &Name,
        who: &Credentials,
    ) -> Result<&Directory> {
        let (parent, directory) = self.directory_with(inode, name)?;
        parent.check_allows(who, right::SEARCH)?;
        directory.check_live(inode)?;
        Ok(directory)
    }

    /// A directory that is known to be one and to be here, split so that both parts can change.
    pub(crate) fn directory_mut(&mut self, inode: InodeId) -> (Touch<'_>, &mut Directory) {
        let parent = &mut **self.inodes.get_mut(&inode).expect("the directory was looked up before");
        match &mut parent.body {
            Body::Directory(directory) => (
                Touch {
                    links: &mut parent.links,
                    modified: &mut parent.modified,
                    changed: &mut parent.changed,
                },
                directory,
            ),
            _ => panic!("inode {inode} is no directory"),
        }
    }

    fn add_entry(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: &Name,
        mode: NewMode,
        body: Body,
    ) -> Result<InodeId> {
        let above = self.inode(parent)?;
        above.check_allows(caller.who, right::WRITE)?;
        let cookie = above.directory(parent)?.entries.free_cookie(self.hash.of(name), name)?;
        let owner = inherited_owner(above, caller.who);
        let mut new = Inode::new(0, owner, caller.now, body);
        if new.kind() == FileKind::Symlink {
            new.mode = mode.mode;
        } else {
            new.take(made(above, caller.who, mode, new.kind()));
        }
        let inode = self.allocate()?;
        let entry = Entry { name: name.clone(), inode, kind: new.kind() };
        self.inodes.insert(inode, Box::new(new));
        let (mut above, directory) = self.directory_mut(parent);
        directory.entries.insert(cookie, entry);
        above.touch(caller.now);
        self.note_growth(parent);
        Ok(inode)
    }

    pub(crate) fn opened(&self, inode: InodeId, created: bool) -> Result<Reply> {
        let info = self.info(inode, self.inode(inode)?);
        // The permit, which proves the open to lanes, is put in where the key of permits is; leases where they
        // are given.
        let leased = EntryLeased::default();
        Ok(Reply::Opened(Box::new(Opened { info, created, permit: None, leased, parent: None })))
    }

    /// Everything about an inode.
    pub(crate) fn info(&self, id: InodeId, inode: &Inode) -> InodeInfo {
        InodeInfo { may_change_unnoticed: self.may_change_unnoticed(id), ..inode.info(id) }
    }

    pub(crate) fn checked_layout(&self, layout: Option<Layout>) -> Result<Layout> {
        let layout = layout.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a new file needs a layout; the server has chosen none")
        })?;
        ramlace_layout::validate(&layout, self.slots)?;
        check_copies(layout.copies)?;
        Ok(layout)
    }
}

/// The part of a directory's inode that changes with its entries.
pub(crate) struct Touch<'inode> {
    pub links: &'inode mut u32,
    modified: &'inode mut Timestamp,
    changed: &'inode mut Timestamp,
}

impl Touch<'_> {
    /// The entries changed at `when`.
    pub(crate) fn touch(&mut self, when: Timestamp) {
        *self.changed = when.behind(*self.changed);
        *self.modified = *self.changed;
    }
}

/// The owner of a new inode in a directory: a set-group-id directory passes its group on.
pub(crate) fn inherited_owner(above: &Inode, who: &Credentials) -> Owner {
    if above.mode & SET_GID != 0 { Owner { gid: above.gid, ..who.owner() } } else { who.owner() }
}

pub(crate) fn check_mode(mode: u16) -> Result<()> {
    if mode > MODE_MAX {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("a mode of {mode:o} is not possible; it has at most the bits 7777"),
        ));
    }
    Ok(())
}

pub(crate) fn check_new_mode(new: NewMode) -> Result<()> {
    check_mode(new.mode).and_then(|()| check_mode(new.umask))
}

pub(crate) fn check_copies(copies: u8) -> Result<()> {
    if copies != 1 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{copies} copies are not possible yet; ask for 1"),
        ));
    }
    Ok(())
}

fn check_target(target: &[u8]) -> Result<()> {
    match target.len() {
        0 => Err(Error::new(ErrorKind::NotFound, "a symbolic link to nothing is not possible")),
        length if length > limits::SYMLINK_BYTES_MAX => Err(Error::new(
            ErrorKind::NameTooLong,
            format!(
                "the target of a symbolic link has at most {} bytes, this one {length}",
                limits::SYMLINK_BYTES_MAX
            ),
        )),
        _ if target.contains(&0) => {
            Err(Error::new(ErrorKind::Invalid, "the target of a symbolic link contains a NUL"))
        }
        _ => Ok(()),
    }
}

fn check_special(request: &MakeNode) -> Result<()> {
    if !request.kind.is_special() {
        let text =
            format!("'{}' shall be {}, which is made otherwise", request.name, request.kind.described());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if !request.kind.is_device() && request.device != 0 {
        let text =
            format!("'{}' shall be {}, which has no device number", request.name, request.kind.described());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

fn check_named(named: &FileAttributes) -> Result<()> {
    let bytes: usize = named.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::ATTRIBUTES_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the named attributes have {bytes} bytes together; at most {} are possible",
                limits::ATTRIBUTES_BYTES_MAX
            ),
        ));
    }
    if named.iter().any(|(name, _)| name.is_empty()) {
        return Err(Error::new(ErrorKind::Invalid, "a named attribute needs a name"));
    }
    if let Some(pair) = named.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("the named attributes '{}' and '{}' are out of order", pair[0].0, pair[1].0),
        ));
    }
    Ok(())
}

pub(crate) fn taken(name: &Name) -> Error {
    Error::new(ErrorKind::Exists, format!("'{name}' exists already"))
}

pub(crate) fn not_found(name: &Name) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no '{name}'"))
}

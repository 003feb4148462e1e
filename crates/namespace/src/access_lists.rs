//! Access control lists of inodes: which users may see and set them, and how they change with a mode and for
//! a new entry.
//!
//! A list that says no more than a mode is kept as the mode. If it says more, the owner's rights, the mask
//! and the entry for all others are the mode's three classes, here and in `stat`'s answer.

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::namespace::NewMode;
use ramlace_wire::peer::PartitionAttributes;
use ramlace_wire::xattrs::{XattrMode, XattrName};
use ramlace_wire::{AccessList, AccessLists, Credentials, FileKind};

use crate::command::{Effect, Reply};
use crate::set_id::{made_mode, may_keep_group};
use crate::state::inode::{Body, Inode, SET_GID, Which};
use crate::state::{Caller, SlotState, Step};
use crate::xattrs::{check_mode_of_setting, missing};

/// Bits of a mode that lists cover.
const PERMISSIONS: u16 = 0o777;

/// Mode and lists of a new inode.
pub(crate) struct Made {
    pub mode: u16,
    pub lists: AccessLists,
}

/// The mode and lists of a new inode in `above`, by its default list or the caller's umask. Whether it may
/// run as a group is decided first: a umask that clears the group's right to execute must not keep the
/// set-group-id bit.
pub(crate) fn made(above: &Inode, who: &Credentials, wanted: NewMode, kind: FileKind) -> Made {
    let mode = match kind {
        FileKind::Directory => wanted.mode | (above.mode & SET_GID),
        _ => made_mode(above, who, wanted.mode),
    };
    let Some(default) = above.list(Which::Default) else {
        return Made { mode: mode & !wanted.umask, lists: AccessLists::NONE };
    };
    let access = default.inherited(mode);
    Made {
        mode: mode & !PERMISSIONS | access.permissions(),
        lists: AccessLists {
            access: Some(access).filter(|access| !access.is_mode_alone()),
            default: (kind == FileKind::Directory).then(|| default.clone()),
        },
    }
}

impl Which {
    fn named(name: &XattrName) -> Which {
        if name.as_bytes() == XattrName::DEFAULT_LIST { Which::Default } else { Which::Access }
    }

    fn name(self) -> XattrName {
        let name = match self {
            Which::Access => XattrName::ACCESS_LIST,
            Which::Default => XattrName::DEFAULT_LIST,
        };
        XattrName::new(name).expect("Linux's own name")
    }

    fn of(self, lists: &mut AccessLists) -> &mut Option<AccessList> {
        match self {
            Which::Access => &mut lists.access,
            Which::Default => &mut lists.default,
        }
    }
}

impl Inode {
    /// The names of the lists that it has.
    pub(crate) fn list_names(&self) -> impl Iterator<Item = XattrName> + '_ {
        [Which::Access, Which::Default]
            .into_iter()
            .filter(|which| self.list(*which).is_some())
            .map(Which::name)
    }

    /// It was made so.
    pub(crate) fn take(&mut self, made: Made) {
        self.mode = made.mode;
        self.set_lists(made.lists);
    }

    pub(crate) fn set_lists(&mut self, lists: AccessLists) {
        self.lists = (!lists.is_empty()).then(|| Box::new(lists));
    }

    /// Changes the mode, and the entries of the list that correspond to the mode's classes.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        self.mode = mode;
        if let Some(access) = self.lists.as_mut().and_then(|lists| lists.access.as_mut()) {
            access.set_permissions(mode);
        }
    }

    /// The value of the attribute that shows a list.
    pub(crate) fn shown_list(&self, name: &XattrName) -> Result<Vec<u8>> {
        self.check_has_lists()?;
        self.list(Which::named(name)).map(AccessList::to_attribute).ok_or_else(|| missing(name))
    }

    fn check_has_lists(&self) -> Result<()> {
        if self.kind() == FileKind::Symlink {
            return Err(Error::new(ErrorKind::Unsupported, "a symbolic link has no access control list"));
        }
        Ok(())
    }

    /// Mode and lists with one of the lists set or taken away. Without a list, the former mask becomes the
    /// group's rights.
    fn with_list(&self, who: &Credentials, which: Which, list: Option<AccessList>) -> (u16, AccessLists) {
        let mut mode = self.mode;
        if let (Which::Access, Some(list)) = (which, &list) {
            mode = mode & !PERMISSIONS | list.permissions();
            // As a change of the mode does.
            mode &= if may_keep_group(who, self.gid) { !0 } else { !SET_GID };
        }
        let mut lists = self.lists.as_deref().cloned().unwrap_or_default();
        *which.of(&mut lists) = list.filter(|list| which == Which::Default || !list.is_mode_alone());
        (mode, lists)
    }
}

impl SlotState {
    /// Sets one of an inode's lists, or removes it, as the owner. Removing a list that does not exist is no
    /// error.
    pub(crate) fn set_list(
        &mut self,
        caller: Caller,
        id: InodeId,
        name: &XattrName,
        (list, how): (Option<AccessList>, XattrMode),
        effects: &mut Vec<Effect>,
    ) -> Step {
        let which = Which::named(name);
        let inode = self.inode_with_xattrs(id)?;
        inode.check_has_lists()?;
        if which == Which::Default && inode.kind() != FileKind::Directory {
            let text = "only a directory hands an access control list down";
            return if list.is_some() {
                Err(Error::new(ErrorKind::Denied, text))
            } else {
                Ok(Some(Reply::Done))
            };
        }
        inode.check_owner(caller.who)?;
        check_mode_of_setting(how, inode.list(which).is_some(), name)?;
        if list.is_some() {
            inode.check_room_for_names(name)?;
        }
        let (mode, lists) = inode.with_list(caller.who, which, list);
        if matches!(&inode.body, Body::Directory(directory) if directory.spread.is_some()) {
            let attributes = PartitionAttributes { mode, lists, ..inode.partition_attributes(false) };
            return self.set_everywhere(caller, id, attributes, false, effects);
        }
        let inode = self.inode_mut(id)?;
        inode.set_mode(mode);
        inode.set_lists(lists);
        inode.changed = caller.now;
        Ok(Some(Reply::Done))
    }
}

//! Extended attributes: which callers may see and set them, and how much an inode holds.

use ramlace_base::{Error, ErrorKind, InodeId, Result, limits};
use ramlace_wire::xattrs::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrClass, XattrMode, XattrName};
use ramlace_wire::{AccessList, Credentials, FileKind};

use crate::command::{Effect, Reply};
use crate::query::{AskedBy, Query};
use crate::state::inode::{Body, Inode, STICKY, Xattrs, right};
use crate::state::{Caller, SlotState, Step};

impl Xattrs {
    /// Whether the limit is kept with one more name and value, which replaces an existing one of that name.
    fn check_room(&self, name: &XattrName, value: &[u8]) -> Result<()> {
        let bytes = |name: &XattrName, value: &[u8]| name.as_bytes().len() + value.len();
        let others = self.0.iter().filter(|(other, _)| *other != name);
        let all = bytes(name, value) + others.map(|(name, value)| bytes(name, value)).sum::<usize>();
        if all > limits::XATTRS_PER_INODE_BYTES_MAX {
            let text = format!(
                "it would have {all} bytes of extended attributes; at most {} are possible",
                limits::XATTRS_PER_INODE_BYTES_MAX
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }
}

impl Inode {
    fn xattr(&self, name: &XattrName) -> Option<&[u8]> {
        self.xattrs.as_ref()?.0.get(name).map(|value| &**value)
    }

    /// The names of its attributes, access control lists among them, in the order of their bytes.
    fn xattr_names(&self) -> Vec<XattrName> {
        let stored = self.xattrs.iter().flat_map(|xattrs| xattrs.0.keys().cloned());
        let mut names: Vec<XattrName> = stored.chain(self.list_names()).collect();
        names.sort_unstable();
        names
    }

    /// Whether all names can still be listed with this one among them.
    pub(crate) fn check_room_for_names(&self, name: &XattrName) -> Result<()> {
        // A list ends each name with a NUL.
        let listed = |name: &XattrName| name.as_bytes().len() + 1;
        let others = self.xattr_names();
        let all = listed(name) + others.iter().filter(|other| *other != name).map(listed).sum::<usize>();
        if all > limits::XATTR_LIST_BYTES_MAX {
            let text = format!(
                "the names of its extended attributes would have {all} bytes; at most {} are possible",
                limits::XATTR_LIST_BYTES_MAX
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }

    /// Takes an attribute away, if it is there.
    fn remove_xattr(&mut self, name: &XattrName) {
        let Some(xattrs) = &mut self.xattrs else { return };
        xattrs.0.remove(name);
        if xattrs.0.is_empty() {
            self.xattrs = None;
        }
    }

    /// A program that was changed, or got another owner, keeps no capabilities.
    pub(crate) fn remove_capability(&mut self) {
        if self.xattrs.is_some() {
            let name = XattrName::new(XattrName::CAPABILITY).expect("Linux's own name");
            self.remove_xattr(&name);
        }
    }

    /// Linux's rules: `trusted.` is the super-user's alone, `security.` is the super-user's to set, and `user.`
    /// goes by the mode, on files and directories alone; in a sticky directory's own by its owner.
    fn check_xattr(&self, who: &Credentials, name: &XattrName, change: bool) -> Result<()> {
        let refused = |why: &str| {
            let kind = if change { ErrorKind::NotPermitted } else { ErrorKind::NoData };
            Err(Error::new(kind, format!("{why}: '{name}' is not for user {}", who.uid)))
        };
        match name.class() {
            XattrClass::Trusted if who.uid != 0 => refused("only the super-user has trusted attributes"),
            XattrClass::Security if change && who.uid != 0 => {
                refused("only the super-user sets security attributes")
            }
            // Lists have rules of their own.
            XattrClass::Trusted | XattrClass::Security | XattrClass::AccessList => Ok(()),
            XattrClass::User if !matches!(self.kind(), FileKind::File | FileKind::Directory) => {
                refused("only files and directories have user attributes")
            }
            XattrClass::User if change && self.is_others_sticky_directory(who) => {
                refused("the attributes of a sticky directory are its owner's")
            }
            XattrClass::User if !self.allows(who, if change { right::WRITE } else { right::READ }) => {
                Err(Error::new(
                    ErrorKind::Denied,
                    format!(
                        "user {} may not {} its attributes: it belongs to user {} with mode {:04o}",
                        who.uid,
                        if change { "change" } else { "read" },
                        self.uid,
                        self.mode
                    ),
                ))
            }
            XattrClass::User => Ok(()),
        }
    }

    fn is_others_sticky_directory(&self, who: &Credentials) -> bool {
        let sticky = self.kind() == FileKind::Directory && self.mode & STICKY != 0;
        sticky && who.uid != 0 && who.uid != self.uid
    }
}

impl Query for GetXattr {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<Vec<u8>> {
        let inode = slot.inode(self.inode)?;
        if self.name.class() == XattrClass::AccessList {
            return inode.shown_list(&self.name);
        }
        inode.check_xattr(by.who, &self.name, false)?;
        let value = inode.xattr(&self.name).ok_or_else(|| missing(&self.name))?;
        Ok(value.to_vec())
    }
}

impl Query for ListXattrs {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<Vec<XattrName>> {
        let mut names = slot.inode(self.inode)?.xattr_names();
        names.retain(|name| name.class() != XattrClass::Trusted || by.who.uid == 0);
        Ok(names)
    }
}

impl SlotState {
    pub(crate) fn set_xattr(
        &mut self,
        caller: Caller,
        request: &SetXattr,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (id, name) = (request.inode, &request.name);
        if name.class() == XattrClass::AccessList {
            let list = AccessList::from_attribute(&request.value)?;
            return self.set_list(caller, id, name, (list, request.mode), effects);
        }
        let inode = self.inode_with_xattrs(id)?;
        if request.value.len() > limits::XATTR_VALUE_BYTES_MAX {
            let text = format!(
                "'{name}' shall have {} bytes; at most {} are possible",
                request.value.len(),
                limits::XATTR_VALUE_BYTES_MAX
            );
            return Err(Error::new(ErrorKind::ValueTooBig, text));
        }
        inode.check_xattr(caller.who, name, true)?;
        check_mode_of_setting(request.mode, inode.xattr(name).is_some(), name)?;
        inode.check_room_for_names(name)?;
        match &inode.xattrs {
            Some(xattrs) => xattrs.check_room(name, &request.value)?,
            None => Xattrs::default().check_room(name, &request.value)?,
        }
        let inode = self.inode_mut(id)?;
        let xattrs = inode.xattrs.get_or_insert_default();
        xattrs.0.insert(name.clone(), request.value.clone().into_boxed_slice());
        inode.changed = caller.now;
        Ok(Some(Reply::Done))
    }

    pub(crate) fn remove_xattr(
        &mut self,
        caller: Caller,
        request: &RemoveXattr,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (id, name) = (request.inode, &request.name);
        if name.class() == XattrClass::AccessList {
            return self.set_list(caller, id, name, (None, XattrMode::Any), effects);
        }
        let inode = self.inode_with_xattrs(id)?;
        // Before the content or the owner changes, a kernel takes capabilities away in the name of the user who
        // changes it.
        if name.as_bytes() != XattrName::CAPABILITY || !self.may_change(caller, inode, id) {
            inode.check_xattr(caller.who, name, true)?;
        }
        inode.xattr(name).ok_or_else(|| missing(name))?;
        let inode = self.inode_mut(id)?;
        inode.remove_xattr(name);
        inode.changed = caller.now;
        Ok(Some(Reply::Done))
    }

    /// A user who may change the content or the owner of a file thereby takes its capabilities.
    fn may_change(&self, caller: Caller, inode: &Inode, id: InodeId) -> bool {
        inode.check_owner(caller.who).is_ok()
            || inode.allows(caller.who, right::WRITE)
            || self.session_writes(caller, id)
    }

    pub(crate) fn inode_with_xattrs(&self, id: InodeId) -> Result<&Inode> {
        let inode = self.inode(id)?;
        if let Body::Directory(directory) = &inode.body {
            directory.check_undisturbed(id)?;
        }
        Ok(inode)
    }
}

/// Whether the attribute exists, or not, as the caller expects.
pub(crate) fn check_mode_of_setting(mode: XattrMode, is_there: bool, name: &XattrName) -> Result<()> {
    match (mode, is_there) {
        (XattrMode::Create, true) => Err(Error::new(ErrorKind::Exists, format!("it has '{name}' already"))),
        (XattrMode::Replace, false) => Err(missing(name)),
        _ => Ok(()),
    }
}

pub(crate) fn missing(name: &XattrName) -> Error {
    Error::new(ErrorKind::NoData, format!("it has no attribute '{name}'"))
}

//! Hard links: entries that come and go while their inode, here or elsewhere, counts them.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::FileKind;
use ramlace_wire::namespace::{Link, Unlink};
use ramlace_wire::peer::Part;

use crate::command::{Effect, Op, Reply};
use crate::state::inode::Body;
use crate::state::intent::Goal;
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn link(&mut self, caller: Caller, request: &Link, effects: &mut Vec<Effect>) -> Step {
        self.check_new_entry(request.parent, &request.name, caller.who)?;
        self.check_slot(request.inode)?;
        self.check_may_begin(caller.token)?;
        let hold = self.claim_unmade(request.parent, &request.name)?;
        self.begin(caller, Goal::Link, hold);
        let inode = request.inode;
        self.single_part(caller, inode.slot(), &Part::RaiseLinks { inode }, effects)
    }

    pub(crate) fn unlink(&mut self, caller: Caller, request: &Unlink, effects: &mut Vec<Effect>) -> Step {
        let (inode, kind, owner) = self.check_old_entry(request.parent, &request.name, caller.who)?;
        if kind == FileKind::Directory {
            return Err(Error::new(
                ErrorKind::IsDirectory,
                format!("'{}' is a directory; remove it with rmdir", request.name),
            ));
        }
        if inode.slot() == self.slot {
            return self.unlink_here(caller, request, owner, effects);
        }
        self.check_may_begin(caller.token)?;
        let hold = self.claim(request.parent, &request.name, None)?;
        self.begin(caller, Goal::Unlink, hold);
        self.single_part(caller, inode.slot(), &Part::LowerLinks { inode, owner }, effects)
    }

    /// The usual case, for which nothing has to be held.
    fn unlink_here(
        &mut self,
        caller: Caller,
        request: &Unlink,
        owner: Option<u32>,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let directory = self.inode(request.parent)?.directory(request.parent)?;
        let found = directory.entries.find(self.hash.of(&request.name), &request.name);
        let (cookie, target) = found.map(|(cookie, entry)| (cookie, entry.inode)).expect("just seen");
        let inode = self.inode(target)?;
        inode.check_sticky(owner)?;
        inode.check_not_held(target)?;
        if let Body::File(file) = &inode.body {
            self.outbox.check_room(file.layout.width)?;
        }
        let (mut parent, directory) = self.directory_mut(request.parent);
        directory.entries.remove(cookie);
        parent.touch(caller.now);
        let inode = self.inode_mut(target)?;
        inode.links -= 1;
        inode.changed = caller.now;
        self.retire_if_unused(target, effects);
        Ok(Some(Reply::Done))
    }

    /// An inode whose last entry is just going, and which no session has open, may be gone when the caller's
    /// change arrives: it has to wait. Bytes are written by sessions that have it open.
    pub(crate) fn check_not_going(&self, op: &Op) -> Result<()> {
        let inode = match op {
            Op::Open(request) => request.inode,
            Op::SetAttributes(request) => request.inode,
            Op::Truncate(request) => request.inode,
            Op::SetXattr(request) => request.inode,
            Op::RemoveXattr(request) => request.inode,
            _ => return Ok(()),
        };
        match self.inodes.get(&inode) {
            Some(found) if found.held && found.links == 0 && found.opens == 0 => found.check_not_held(inode),
            _ => Ok(()),
        }
    }
}

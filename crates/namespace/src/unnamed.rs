//! Files without a name (`O_TMPFILE`): they live while they are open, and until then may get one.

use ramlace_base::InodeId;
use ramlace_wire::namespace::CreateUnnamed;
use ramlace_wire::{FileKind, OpenedFor};

use crate::access_lists::made;
use crate::entries::{check_new_mode, inherited_owner};
use crate::state::file::File;
use crate::state::inode::{Body, Inode, right};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn create_unnamed(&mut self, caller: Caller, request: &CreateUnnamed) -> Step {
        check_new_mode(request.mode)?;
        let above = self.inode(request.parent)?;
        above.check_allows(caller.who, right::SEARCH)?;
        let directory = above.directory(request.parent)?;
        directory.check_live(request.parent)?;
        let rules = request.wish.hints.or(directory.hints).rules;
        above.check_allows(caller.who, right::WRITE)?;
        let owner = inherited_owner(above, caller.who);
        let made = made(above, caller.who, request.mode, FileKind::File);
        self.session_mut(caller).check_may_open(InodeId(0))?;
        let layout = self.checked_layout(request.layout)?;
        let body = Body::File(File::new(layout, rules, Vec::new()));
        let mut new = Inode::new(0, owner, caller.now, body);
        new.take(made);
        (new.links, new.linkable) = (0, true);
        let inode = self.allocate()?;
        self.inodes.insert(inode, Box::new(new));
        let opened = OpenedFor { read: request.read, write: request.write };
        self.reference(caller, inode, opened)?;
        Ok(Some(self.opened(inode, true)?))
    }
}

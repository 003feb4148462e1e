//! Set-user-id and set-group-id bits, and capabilities: which change clears them, and when, as in Linux.

use ramlace_base::InodeId;
use ramlace_wire::{Credentials, FileKind};

use crate::state::inode::{Inode, SET_GID, SET_UID};
use crate::state::{Caller, SlotState};

/// Execution by the group: without it a set-group-id bit once meant mandatory locks.
const GROUP_RUNS: u16 = 0o010;

impl Inode {
    /// The content has changed. A program that other users change runs no longer as its owner. For a user of a
    /// host, the host's kernel knows whether the user may keep the bits, and says so if not.
    pub(crate) fn content_changed_by(&mut self, who: &Credentials) {
        if self.kind() == FileKind::File {
            self.remove_capability();
            if who.uid != 0 && *who != Credentials::WHOEVER {
                self.drop_set_id(who);
            }
        }
    }

    /// A host's kernel says that the writer may not keep the bits.
    pub(crate) fn drop_set_id_for_kernel(&mut self) {
        if self.kind() == FileKind::File {
            self.mode &= !SET_UID;
            if self.mode & GROUP_RUNS != 0 {
                self.mode &= !SET_GID;
            }
        }
    }

    /// The owner or the group is about to change, perhaps to the same value. Directories keep their bits; a
    /// change by the super-user clears them as any other.
    pub(crate) fn owner_changes_by(&mut self, who: &Credentials) {
        if self.kind() != FileKind::Directory {
            self.remove_capability();
            self.drop_set_id(who);
        }
    }

    fn drop_set_id(&mut self, who: &Credentials) {
        self.mode &= !SET_UID;
        if self.mode & GROUP_RUNS != 0 || !may_keep_group(who, self.gid) {
            self.mode &= !SET_GID;
        }
    }
}

impl SlotState {
    /// The same for a file that is known to be here.
    pub(crate) fn content_changed(&mut self, caller: Caller, inode: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.content_changed_by(caller.who);
        }
    }
}

/// The mode of a new inode in a directory: a user who is not in the group that the directory passes on cannot
/// create a program that runs as that group.
pub(crate) fn made_mode(above: &Inode, who: &Credentials, mode: u16) -> u16 {
    let runs_as_group = mode & SET_GID != 0 && mode & GROUP_RUNS != 0;
    if runs_as_group && above.mode & SET_GID != 0 && !may_keep_group(who, above.gid) {
        mode & !SET_GID
    } else {
        mode
    }
}

/// Whether the user may set a set-group-id bit on an inode of this group.
pub(crate) fn may_keep_group(who: &Credentials, gid: u32) -> bool {
    who.uid == 0 || who.in_group(gid)
}

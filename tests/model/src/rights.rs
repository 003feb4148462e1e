//! Who may do what, as POSIX has it. [`Model`](crate::Model) knows no users: this is the rules alone.

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id; 0 may everything.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// To whom something belongs, and its permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u16,
}

impl User {
    /// Whether the user is in a group.
    #[must_use]
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Whether the mode gives the user these rights (4 read, 2 write, 1 search): those of the
    /// owner's class for the owner, else the group's for its members, else everybody's. A class that
    /// is given less than the next one has less.
    #[must_use]
    pub fn has(&self, rights: u16, of: Owned) -> bool {
        let class = if self.uid == of.uid {
            of.mode / 64
        } else if self.is_in(of.gid) {
            of.mode / 8
        } else {
            of.mode
        };
        self.uid == 0 || (class % 8) & rights == rights
    }

    /// Whether the user may change the mode.
    #[must_use]
    pub fn may_change(&self, of: Owned) -> bool {
        self.uid == 0 || self.uid == of.uid
    }

    /// Whether the user may give it to this owner and group.
    #[must_use]
    pub fn may_give(&self, of: Owned, uid: u32, gid: u32) -> bool {
        self.uid == 0 || (self.uid == of.uid && uid == of.uid && (gid == of.gid || self.is_in(gid)))
    }

    /// Whether the user may take an entry that leads to `of` out of a directory that they may change.
    #[must_use]
    pub fn may_take(&self, of: Owned, directory: Owned) -> bool {
        let sticky = directory.mode & 0o1000 != 0;
        !sticky || self.uid == 0 || self.uid == of.uid || self.uid == directory.uid
    }
}

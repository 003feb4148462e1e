//! The caller of a request: a user, the user's group, and the other groups of the user.

use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Result, limits};
use serde::{Deserialize, Serialize};

/// The owner of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The caller of a request. A clone costs a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id: what the user makes belongs to it.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Credentials {
    /// A user in one group.
    #[must_use]
    pub const fn new(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, groups: Groups::NONE }
    }

    /// The user `nobody`: for requests on behalf of no user, and for the super-user of a machine that is not
    /// trusted so far.
    pub const NOBODY: Credentials = Credentials::new(65_534, 65_534);

    /// The user of a file that is open on a host, which the server does not know: the rights were checked when
    /// the file was opened. No caller may claim to be this user.
    pub const WHOEVER: Credentials = Credentials::new(u32::MAX - 1, u32::MAX - 1);

    /// The super-user and the super-user's group become nobody; other users stay as they are.
    #[must_use]
    pub fn squashed(self) -> Credentials {
        if self.is_super_user() {
            return Credentials::NOBODY;
        }
        let gid = if self.gid == 0 { Credentials::NOBODY.gid } else { self.gid };
        let Credentials { uid, groups, .. } = self;
        Credentials { uid, gid, groups: groups.without(0) }
    }

    /// The super-user, whom no mode restricts.
    #[must_use]
    pub fn is_super_user(&self) -> bool {
        self.uid == 0
    }

    /// Whether the user is in this group.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(gid)
    }

    /// The owner of what the user makes.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }
}

/// A set of groups: at most [`limits::GROUPS_MAX`], on the wire in ascending order, each once.
///
/// Linux lets a process be in 65,536; every request names them and every change is logged with
/// them, so that fewer are taken here. A user in more is refused: a set cut short could give rights
/// that the missing group takes away (mode 0o604), and would take rights away in silence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Groups(Option<Arc<[u32]>>);

impl Groups {
    /// No group.
    pub const NONE: Groups = Groups(None);

    /// These groups, in any order. Errors: `Denied` when they are too many.
    pub fn new(mut groups: Vec<u32>) -> Result<Groups> {
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > limits::GROUPS_MAX {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "a user in {} supplementary groups cannot be served: at most {} are possible",
                    groups.len(),
                    limits::GROUPS_MAX
                ),
            ));
        }
        Ok(Groups((!groups.is_empty()).then(|| groups.into())))
    }

    /// Whether the group is among them.
    #[must_use]
    pub fn contains(&self, gid: u32) -> bool {
        self.as_slice().binary_search(&gid).is_ok()
    }

    fn without(self, gid: u32) -> Groups {
        if !self.contains(gid) {
            return self;
        }
        let others: Arc<[u32]> = self.as_slice().iter().copied().filter(|group| *group != gid).collect();
        Groups(Some(others).filter(|others| !others.is_empty()))
    }

    /// The groups, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl TryFrom<Vec<u32>> for Groups {
    type Error = String;

    /// Takes what lies on the wire: each set has one form.
    fn try_from(groups: Vec<u32>) -> std::result::Result<Groups, String> {
        if groups.len() > limits::GROUPS_MAX {
            return Err(format!("{} groups are more than {}", groups.len(), limits::GROUPS_MAX));
        }
        if !groups.is_sorted_by(|first, second| first < second) {
            return Err("groups are out of order".into());
        }
        Ok(Groups((!groups.is_empty()).then(|| groups.into())))
    }
}

impl From<Groups> for Vec<u32> {
    fn from(groups: Groups) -> Vec<u32> {
        groups.as_slice().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, decode_body, encode_body};

    #[test]
    fn groups_are_a_set_with_a_limit() {
        let groups = Groups::new(vec![7, 3, 7]).unwrap();
        assert_eq!(groups.as_slice(), [3, 7]);
        assert!(groups.contains(3) && groups.contains(7) && !groups.contains(5));
        assert_eq!(Groups::new(Vec::new()).unwrap(), Groups::NONE);
        let most = limits::GROUPS_MAX as u32;
        assert!(Groups::new((0..most).collect()).is_ok());
        assert_eq!(Groups::new((0..=most).collect()).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn the_super_user_and_its_group_are_squashed() {
        let user = |uid, gid, groups: &[u32]| Credentials {
            uid,
            gid,
            groups: Groups::new(groups.to_vec()).unwrap(),
        };
        for (who, squashed) in [
            (user(0, 0, &[]), Credentials::NOBODY),
            (user(0, 5, &[0, 7]), Credentials::NOBODY),
            (user(5, 0, &[0]), user(5, 65_534, &[])),
            (user(5, 6, &[0, 7]), user(5, 6, &[7])),
            (user(5, 6, &[7]), user(5, 6, &[7])),
        ] {
            assert_eq!(who.squashed(), squashed);
        }
    }

    #[test]
    fn each_set_of_groups_has_one_form_on_the_wire() {
        let read = |groups: Vec<u32>| decode_body::<Groups>(Kind::Open, &encode_body(&groups));
        let most = limits::GROUPS_MAX as u32;
        assert_eq!(read(vec![1, 2]).unwrap().as_slice(), [1, 2]);
        assert!(read((0..most).collect()).is_ok());
        for bad in [vec![2, 1], vec![1, 1], (0..=most).collect()] {
            assert!(read(bad).is_err());
        }
    }
}

//! POSIX access control lists: what a mode says of three classes, said of single users and groups as well.
//!
//! In memory a list is decoded; where it travels and where it is kept it has the form that Linux gives the attributes
//! `system.posix_acl_access` and `system.posix_acl_default`: a version and, for each entry, a tag, rights and an id.

use std::iter;

use ramlace_base::{Error, ErrorKind, Result, limits};
use serde::{Deserialize, Serialize};

use crate::{Credentials, Owner};

/// Number of the form, in four bytes in front of the entries.
const VERSION: u32 = 2;
const VERSION_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of an entry that names no user and no group.
const NO_ID: u32 = u32::MAX;
/// Rights of one class: read, write, execute or search.
const CLASS: u16 = 0o7;

/// What an entry is about. In a list they come in this order.
pub(crate) mod tag {
    pub const OWNER: u16 = 0x01;
    pub const USER: u16 = 0x02;
    pub const GROUP_OWNER: u16 = 0x04;
    pub const GROUP: u16 = 0x08;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

/// Rights of one user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    id: u32,
    rights: u16,
}

/// A valid list. Named users and groups are in the order of their ids, each once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct AccessList {
    owner: u16,
    users: Box<[Named]>,
    group: u16,
    groups: Box<[Named]>,
    /// The most that named users and all groups have. There is one where a user or a group is named.
    mask: Option<u16>,
    other: u16,
}

/// What an inode has beyond its mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLists {
    /// The rights of users and groups, where the mode alone does not say them. Its owner, mask and others are
    /// the mode's three classes.
    pub access: Option<AccessList>,
    /// What a directory hands down.
    pub default: Option<AccessList>,
}

impl AccessLists {
    /// Nothing beyond the mode.
    pub const NONE: AccessLists = AccessLists { access: None, default: None };

    /// Whether there is no list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == AccessLists::NONE
    }
}

impl AccessList {
    /// The list in an attribute's value; `None` for one without entries, which takes the list away.
    ///
    /// Errors: `Unsupported` for an unknown form, `Invalid` for what is no list, `ValueTooBig` for more entries
    /// than a kernel shows through a mount.
    pub fn from_attribute(bytes: &[u8]) -> Result<Option<AccessList>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, entries) =
            bytes.split_at_checked(VERSION_BYTES).ok_or_else(|| broken("it is cut off"))?;
        let version = u32::from_le_bytes(version.try_into().expect("four bytes"));
        if version != VERSION {
            let text = format!("an access list of version {version}; version {VERSION} is known");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if entries.len() > limits::ACCESS_LIST_ENTRIES_MAX * ENTRY_BYTES {
            let text = format!(
                "an access list with {} entries; at most {} are possible",
                entries.len() / ENTRY_BYTES,
                limits::ACCESS_LIST_ENTRIES_MAX
            );
            return Err(Error::new(ErrorKind::ValueTooBig, text));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(broken("its last entry is cut off"));
        }
        if entries.is_empty() { Ok(None) } else { Reader::read(entries.iter().map(entry)).map(Some) }
    }

    /// The value of the attribute that holds it.
    #[must_use]
    pub fn to_attribute(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, rights, id) in self.entries() {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Tag, rights and id of each entry, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u16, u16, u32)> + '_ {
        let named = |tag| move |named: &Named| (tag, named.rights, named.id);
        iter::once((tag::OWNER, self.owner, NO_ID))
            .chain(self.users.iter().map(named(tag::USER)))
            .chain(iter::once((tag::GROUP_OWNER, self.group, NO_ID)))
            .chain(self.groups.iter().map(named(tag::GROUP)))
            .chain(self.mask.map(|mask| (tag::MASK, mask, NO_ID)))
            .chain(iter::once((tag::OTHER, self.other, NO_ID)))
    }

    /// The permission bits of a mode that has this list: the group's are the mask.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// Whether a mode with its permissions says all that it says.
    #[must_use]
    pub fn is_mode_alone(&self) -> bool {
        self.mask.is_none()
    }

    /// A change of the mode changes the owner's rights, the mask, and those of all others; named ones and the
    /// group stay.
    pub fn set_permissions(&mut self, mode: u16) {
        self.owner = mode >> 6 & CLASS;
        *self.mask.as_mut().unwrap_or(&mut self.group) = mode >> 3 & CLASS;
        self.other = mode & CLASS;
    }

    /// What a default list gives to something that is made with this mode: not more than either of them.
    #[must_use]
    pub fn inherited(&self, mode: u16) -> AccessList {
        let mut list = self.clone();
        list.set_permissions(mode & self.permissions());
        list
    }

    /// Whether it gives the user all of these rights, by the algorithm of POSIX.1e: the owner by the owner's
    /// entry, a named user by that entry within the mask, a user in groups that it names by one of theirs
    /// within the mask, and all others by the last.
    #[must_use]
    pub fn allows(&self, owner: Owner, who: &Credentials, rights: u16) -> bool {
        let gives = |entry: u16| entry & rights == rights;
        let masked = |entry: u16| gives(entry & self.mask.unwrap_or(CLASS));
        if who.uid == owner.uid {
            return gives(self.owner);
        }
        if let Ok(at) = self.users.binary_search_by_key(&who.uid, |user| user.id) {
            return masked(self.users[at].rights);
        }
        let own = who.in_group(owner.gid).then_some(self.group);
        let named = self.groups.iter().filter(|group| who.in_group(group.id)).map(|group| group.rights);
        let mut theirs = own.into_iter().chain(named).peekable();
        if theirs.peek().is_some() { theirs.any(masked) } else { gives(self.other) }
    }
}

impl TryFrom<Vec<u8>> for AccessList {
    type Error = Error;

    fn try_from(bytes: Vec<u8>) -> Result<AccessList> {
        AccessList::from_attribute(&bytes)?.ok_or_else(|| broken("it has no entries"))
    }
}

impl From<AccessList> for Vec<u8> {
    fn from(list: AccessList) -> Vec<u8> {
        list.to_attribute()
    }
}

/// Tag, rights and id.
fn entry(bytes: &[u8; ENTRY_BYTES]) -> (u16, u16, u32) {
    let [tag_low, tag_high, rights_low, rights_high, id @ ..] = *bytes;
    let number = |low, high| u16::from_le_bytes([low, high]);
    (number(tag_low, tag_high), number(rights_low, rights_high), u32::from_le_bytes(id))
}

/// Entries as they come, each kind at most once and in order.
#[derive(Default)]
pub(crate) struct Reader {
    /// The tag of the entry before.
    last: u16,
    owner: Option<u16>,
    users: Vec<Named>,
    group: Option<u16>,
    groups: Vec<Named>,
    mask: Option<u16>,
    other: Option<u16>,
}

impl Reader {
    pub(crate) fn read(entries: impl IntoIterator<Item = (u16, u16, u32)>) -> Result<AccessList> {
        let mut reader = Reader::default();
        entries.into_iter().try_for_each(|(tag, rights, id)| reader.take(tag, rights, id))?;
        reader.end()
    }

    fn take(&mut self, tag: u16, rights: u16, id: u32) -> Result<()> {
        let is_named = matches!(tag, tag::USER | tag::GROUP);
        if tag < self.last || (tag == self.last && !is_named) {
            return Err(broken("its entries are out of order, or one comes twice"));
        }
        if rights & !CLASS != 0 {
            return Err(broken("it has rights that nobody knows"));
        }
        if is_named && id == NO_ID {
            return Err(broken("it names nobody"));
        }
        self.last = tag;
        match tag {
            tag::OWNER => self.owner = Some(rights),
            tag::USER => self.users.push(Named { id, rights }),
            tag::GROUP_OWNER => self.group = Some(rights),
            tag::GROUP => self.groups.push(Named { id, rights }),
            tag::MASK => self.mask = Some(rights),
            tag::OTHER => self.other = Some(rights),
            _ => return Err(broken("it has an entry of a kind that nobody knows")),
        }
        Ok(())
    }

    fn end(self) -> Result<AccessList> {
        let (Some(owner), Some(group), Some(other)) = (self.owner, self.group, self.other) else {
            return Err(broken("it lacks the entry of the owner, of the group or of all others"));
        };
        if self.mask.is_none() && !(self.users.is_empty() && self.groups.is_empty()) {
            return Err(broken("it names users or groups and has no mask"));
        }
        let (users, groups, mask) = (in_order(self.users)?, in_order(self.groups)?, self.mask);
        Ok(AccessList { owner, users, group, groups, mask, other })
    }
}

fn in_order(mut named: Vec<Named>) -> Result<Box<[Named]>> {
    named.sort_by_key(|named| named.id);
    if named.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err(broken("it names somebody twice"));
    }
    Ok(named.into())
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("this is no access list: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Groups;

    const OWNER: Owner = Owner { uid: 1, gid: 10 };

    /// An attribute's bytes from tags, rights and ids.
    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |&(tag, rights, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [VERSION.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
    }

    fn list(entries: &[(u16, u16, u32)]) -> AccessList {
        AccessList::from_attribute(&bytes(entries)).unwrap().unwrap()
    }

    /// `u::rw-,u:2:rw-,u:3:---,g::r--,g:20:rw-,g:21:-w-,m::rw-,o::r--`.
    fn rich() -> AccessList {
        let n = NO_ID;
        list(&[(1, 6, n), (2, 6, 2), (2, 0, 3), (4, 4, n), (8, 6, 20), (8, 2, 21), (16, 6, n), (32, 4, n)])
    }

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: Groups::new(groups.to_vec()).unwrap() }
    }

    #[test]
    fn a_list_is_kept_byte_for_byte_and_names_in_order() {
        let entries =
            [(1, 7, NO_ID), (2, 5, 9), (2, 4, 11), (4, 0, NO_ID), (8, 1, 8), (16, 5, NO_ID), (32, 0, NO_ID)];
        assert_eq!(list(&entries).to_attribute(), bytes(&entries));
        let mut shuffled = entries;
        shuffled.swap(1, 2);
        assert_eq!(list(&shuffled), list(&entries));
        assert_eq!(list(&entries).permissions(), 0o750);
        assert!(list(&[(1, 7, 0), (4, 5, 0), (32, 0, 0)]).is_mode_alone());
        assert!(!list(&entries).is_mode_alone());
        for empty in [&b""[..], &VERSION.to_le_bytes()] {
            assert_eq!(AccessList::from_attribute(empty).unwrap(), None);
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let n = NO_ID;
        let (owner, user, group, named) = ((1, 7, n), (2, 7, 5), (4, 7, n), (8, 7, 5));
        let (mask, other) = ((16, 7, n), (32, 7, n));
        for entries in [
            &[owner, group][..],
            &[group, other],
            &[owner, other],
            &[owner, user, group, other],
            &[owner, group, named, other],
            &[owner, owner, group, other],
            &[owner, group, mask, mask, other],
            &[group, owner, other],
            &[owner, group, other, mask],
            &[owner, user, user, group, mask, other],
            &[owner, (2, 7, n), group, mask, other],
            &[owner, (2, 8, 5), group, mask, other],
            &[owner, group, (64, 7, n), other],
            &[(0, 7, n), owner, group, other],
        ] {
            let refused = AccessList::from_attribute(&bytes(entries)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{entries:?}");
        }
        let whole = bytes(&[owner, group, other]);
        for cut in (1..whole.len()).filter(|cut| *cut != VERSION_BYTES) {
            assert!(AccessList::from_attribute(&whole[..cut]).is_err(), "{cut}");
        }
        let old = [1_u32.to_le_bytes().to_vec(), whole[VERSION_BYTES..].to_vec()].concat();
        assert_eq!(AccessList::from_attribute(&old).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_list_is_as_long_as_a_kernel_shows_it() {
        let of = |names: usize| {
            let users = (0..names).map(|id| (tag::USER, 7, id as u32));
            let rest = [(4, 7, NO_ID), (16, 7, NO_ID), (32, 7, NO_ID)];
            let entries: Vec<_> = [(1, 7, NO_ID)].into_iter().chain(users).chain(rest).collect();
            AccessList::from_attribute(&bytes(&entries))
        };
        assert!(of(limits::ACCESS_LIST_ENTRIES_MAX - 4).is_ok());
        assert_eq!(of(limits::ACCESS_LIST_ENTRIES_MAX - 3).unwrap_err().kind(), ErrorKind::ValueTooBig);
    }

    #[test]
    fn rights_are_those_of_the_first_class_that_one_is_in() {
        for (who, rights) in [
            (who(1, 20, &[]), 6),
            (who(2, 10, &[]), 6),
            // Named, so that neither group nor others count.
            (who(3, 20, &[]), 0),
            (who(4, 10, &[]), 4),
            (who(4, 20, &[]), 6),
            (who(4, 21, &[]), 2),
            (who(4, 99, &[10, 20]), 6),
            (who(4, 99, &[]), 4),
        ] {
            for right in [4, 2, 1] {
                assert_eq!(rich().allows(OWNER, &who, right), rights & right != 0, "{who:?} {right}");
            }
        }
        // One entry must give all that is asked for.
        assert!(!rich().allows(OWNER, &who(4, 10, &[21]), 6));
    }

    #[test]
    fn the_mask_limits_all_but_the_owner_and_others() {
        let mut list = rich();
        list.set_permissions(0o644);
        assert_eq!(list.permissions(), 0o644);
        for (who, reads, writes) in [
            (who(1, 1, &[]), true, true),
            (who(2, 1, &[]), true, false),
            (who(4, 20, &[]), true, false),
            (who(4, 21, &[]), false, false),
            (who(4, 99, &[]), true, false),
        ] {
            assert_eq!(list.allows(OWNER, &who, 4), reads, "{who:?}");
            assert_eq!(list.allows(OWNER, &who, 2), writes, "{who:?}");
        }
        list.set_permissions(0o666);
        assert_eq!(list, AccessList { other: 6, ..rich() });
    }

    #[test]
    fn what_is_made_has_no_more_than_the_default_list_and_its_mode() {
        assert_eq!(rich().inherited(0o777), rich());
        assert_eq!(rich().inherited(0o640).permissions(), 0o640);
        let plain = list(&[(1, 7, 0), (4, 5, 0), (32, 5, 0)]);
        assert_eq!(plain.inherited(0o666).permissions(), 0o644);
        assert!(plain.inherited(0o666).is_mode_alone());
    }
}

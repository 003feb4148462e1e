//! Family 0x03, extended attributes: small named values that belong to an inode.

use std::fmt;

use ramlace_base::{Error, ErrorKind, InodeId, Result, Slot, limits};
use serde::{Deserialize, Serialize};

use crate::types::numbered;
use crate::{Kind, Request};

/// The class of an extended attribute: the first part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrClass {
    /// `user.`: by the rights of the file or directory.
    User,
    /// `trusted.`: the super-user's; others do not even see them.
    Trusted,
    /// `security.`: set by the super-user, read by all.
    Security,
    /// One of the two access control lists: set by the owner, read by all.
    AccessList,
}

const CLASSES: [(&[u8], XattrClass); 3] =
    [(b"user.", XattrClass::User), (b"trusted.", XattrClass::Trusted), (b"security.", XattrClass::Security)];
/// Linux has these in its `system.` class, in which a pool keeps nothing else.
const LISTS: [&[u8]; 2] = [XattrName::ACCESS_LIST, XattrName::DEFAULT_LIST];
/// Names that mounts keep for themselves.
const RESERVED: &[u8] = b"user.ramlace.";

/// The name of an extended attribute: at most 255 bytes without NUL, `user.`, `trusted.` or
/// `security.` and at least one byte more; or that of an access control list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct XattrName(Box<[u8]>);

impl XattrName {
    /// What Linux keeps a program's capabilities in.
    pub const CAPABILITY: &'static [u8] = b"security.capability";
    /// What Linux keeps the access control list of an inode in, where its mode alone does not say it.
    pub const ACCESS_LIST: &'static [u8] = b"system.posix_acl_access";
    /// What Linux keeps the list in that a directory hands down.
    pub const DEFAULT_LIST: &'static [u8] = b"system.posix_acl_default";

    /// Checks a name. Errors: `OutOfRange` for its length, `Unsupported` for a class that a pool does
    /// not have, `Invalid` for a class alone and for a NUL.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<XattrName> {
        let bytes = bytes.into();
        let shown = || bytes.escape_ascii();
        if bytes.is_empty() || bytes.len() > limits::XATTR_NAME_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "the name of an extended attribute has 1 to {} bytes, this one {}",
                    limits::XATTR_NAME_BYTES_MAX,
                    bytes.len()
                ),
            ));
        }
        if is_list(&bytes) {
            return Ok(XattrName(bytes.into_boxed_slice()));
        }
        let Some(prefix) = CLASSES.iter().map(|(prefix, _)| *prefix).find(|prefix| bytes.starts_with(prefix))
        else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "'{}' is no attribute that a pool keeps: write user., trusted. or security., or name \
                     an access control list",
                    shown()
                ),
            ));
        };
        if bytes.starts_with(RESERVED) {
            let text = format!("'{}' is a mount's own and cannot be kept", shown());
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes.len() == prefix.len() || bytes.contains(&0) {
            let text = format!("'{}' is no name of an extended attribute", shown());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(XattrName(bytes.into_boxed_slice()))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its class.
    #[must_use]
    pub fn class(&self) -> XattrClass {
        if is_list(&self.0) {
            return XattrClass::AccessList;
        }
        let class = CLASSES.iter().find(|(prefix, _)| self.0.starts_with(prefix));
        class.expect("a name was checked").1
    }
}

/// Whether the name is that of an access control list.
fn is_list(name: &[u8]) -> bool {
    LISTS.contains(&name)
}

impl TryFrom<Vec<u8>> for XattrName {
    type Error = Error;

    fn try_from(bytes: Vec<u8>) -> Result<XattrName> {
        XattrName::new(bytes)
    }
}

impl From<XattrName> for Vec<u8> {
    fn from(name: XattrName) -> Vec<u8> {
        name.0.into_vec()
    }
}

impl fmt::Display for XattrName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "XattrName({self})")
    }
}

numbered! {
    /// What becomes of a value that the name has already.
    XattrMode {
        /// It is replaced, or there was none.
        Any = 1,
        /// There must be none: `XATTR_CREATE`.
        Create = 2,
        /// There must be one: `XATTR_REPLACE`.
        Replace = 3,
    }
}

/// Sets an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetXattr {
    /// The inode.
    pub inode: InodeId,
    /// The attribute.
    pub name: XattrName,
    /// Its value, at most 64 KiB.
    pub value: Vec<u8>,
    /// What becomes of an old value.
    pub mode: XattrMode,
}

impl Request for SetXattr {
    const KIND: Kind = Kind::SetXattr;
    type Reply = ();

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

/// The value of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetXattr {
    /// The inode.
    pub inode: InodeId,
    /// The attribute.
    pub name: XattrName,
}

impl Request for GetXattr {
    const KIND: Kind = Kind::GetXattr;
    type Reply = Vec<u8>;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Vec<u8>) -> bool {
        reply.len() <= limits::XATTR_VALUE_BYTES_MAX
    }
}

/// The names of the extended attributes that the caller may see, in the order of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListXattrs {
    /// The inode.
    pub inode: InodeId,
}

impl Request for ListXattrs {
    const KIND: Kind = Kind::ListXattrs;
    type Reply = Vec<XattrName>;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

/// Removes an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveXattr {
    /// The inode.
    pub inode: InodeId,
    /// The attribute.
    pub name: XattrName,
}

impl Request for RemoveXattr {
    const KIND: Kind = Kind::RemoveXattr;
    type Reply = ();

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_a_class_or_are_refused() {
        for (name, class) in [
            ("user.a", XattrClass::User),
            ("trusted.overlay.opaque", XattrClass::Trusted),
            ("security.capability", XattrClass::Security),
            ("system.posix_acl_access", XattrClass::AccessList),
            ("system.posix_acl_default", XattrClass::AccessList),
        ] {
            assert_eq!(XattrName::new(name).unwrap().class(), class);
        }
        let long = format!("user.{}", "n".repeat(250));
        assert!(XattrName::new(long.clone()).is_ok());
        for (name, kind) in [
            (format!("{long}n"), ErrorKind::OutOfRange),
            (String::new(), ErrorKind::OutOfRange),
            ("user.".into(), ErrorKind::Invalid),
            ("user.a\0b".into(), ErrorKind::Invalid),
            ("user".into(), ErrorKind::Unsupported),
            ("system.posix_acl_accessx".into(), ErrorKind::Unsupported),
            ("system.nfs4_acl".into(), ErrorKind::Unsupported),
            ("user.ramlace.refresh".into(), ErrorKind::Unsupported),
        ] {
            assert_eq!(XattrName::new(name.clone()).unwrap_err().kind(), kind, "{name}");
        }
    }
}

//! Names of entries: bytes, kept exactly, shown escaped.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, ErrorKind, Result, limits};

/// The name of a directory entry: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.
///
/// Bytes that are no UTF-8 are kept as they are; `Display` escapes them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks the bytes of a name.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Name> {
        let bytes = bytes.into();
        let shown = || bytes.escape_ascii();
        if bytes.len() > limits::NAME_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("a name has at most {} bytes, this one {}", limits::NAME_BYTES_MAX, bytes.len()),
            ));
        }
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "a name has at least one byte"));
        }
        if bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("the name '{}' contains a slash or a NUL", shown()),
            ));
        }
        if &bytes[..] == b"." || &bytes[..] == b".." {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("'{}' is a place in a path, not the name of an entry", shown()),
            ));
        }
        Ok(Name(bytes.into_boxed_slice()))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

// As bytes in one piece: a sequence of numbers is the same on the wire, and is read one by one.
impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Name, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Name;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the bytes of a name")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<Name, E> {
                Name::new(bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.chars().any(char::is_control) => formatter.write_str(text),
            _ => write!(formatter, "{}", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Name({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_with_their_errno() {
        for (bytes, kind) in [
            (&b""[..], ErrorKind::NotFound),
            (b".", ErrorKind::Invalid),
            (b"..", ErrorKind::Invalid),
            (b"a/b", ErrorKind::Invalid),
            (b"a\0", ErrorKind::Invalid),
            (&[b'x'; 256], ErrorKind::NameTooLong),
        ] {
            assert_eq!(Name::new(bytes).unwrap_err().kind(), kind);
        }
        assert!(Name::new([b'x'; 255]).is_ok());
    }

    #[test]
    fn strange_bytes_are_kept_and_shown_escaped() {
        let name = Name::new(b"caf\xe9\n".to_vec()).unwrap();
        assert_eq!(name.as_bytes(), b"caf\xe9\n");
        assert_eq!(name.to_string(), "caf\\xe9\\n");
        assert_eq!(Name::new("café").unwrap().to_string(), "café");
    }
}

//! What may stand in front of a request's body: the user on whose behalf it is, and the path by which it is.

use ramlace_base::{Error, ErrorKind, Name, Result, limits};
use serde::de::DeserializeOwned;

use crate::{Credentials, Header, Kind, encode_body, flags};

/// What stands in front of a request's body, which nothing does as a rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Front<'a> {
    /// The user for whom a host's session asks.
    pub who: Option<&'a Credentials>,
    /// The names that lead from the root to the directory of a request by path; else none.
    pub path: &'a [Name],
}

impl Front<'_> {
    /// The bytes of the front, which the header's flags then announce.
    pub fn encode(&self, header: &mut Header) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(who) = self.who {
            header.flags |= flags::ON_BEHALF;
            bytes = encode_body(who);
        }
        if !self.path.is_empty() {
            header.flags |= flags::BY_PATH;
            bytes.extend(encode_body(&self.path));
        }
        bytes
    }
}

/// The user of a request with [`flags::ON_BEHALF`]; also returns what follows.
pub fn decode_on_behalf(kind: Kind, bytes: &[u8]) -> Result<(Credentials, &[u8])> {
    decode_part(kind, "for whom it is", bytes)
}

/// The path of a request with [`flags::BY_PATH`]; returns the body.
pub fn decode_path(kind: Kind, bytes: &[u8]) -> Result<(Vec<Name>, &[u8])> {
    let (path, body): (Vec<Name>, _) = decode_part(kind, "by which path it is", bytes)?;
    if path.is_empty() || path.len() > limits::WALK_NAMES_MAX {
        let most = limits::WALK_NAMES_MAX;
        let text = format!("the path of a {kind:?} has from 1 to {most} names, not {}", path.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok((path, body))
}

fn decode_part<'bytes, T: DeserializeOwned>(
    kind: Kind,
    what: &str,
    bytes: &'bytes [u8],
) -> Result<(T, &'bytes [u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| {
        Error::new(
            ErrorKind::Protocol,
            format!("a {kind:?} message carries {what}, and that makes no sense: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_comes_back_in_its_order() {
        let who = Credentials::new(7, 8);
        let path = ["a", "b"].map(|name| Name::new(name).unwrap());
        let mut header = Header::request(Kind::Unlink);
        let front = Front { who: Some(&who), path: &path };
        let mut bytes = front.encode(&mut header);
        bytes.extend(b"body");
        assert_eq!(header.flags, flags::ON_BEHALF | flags::BY_PATH);
        let (read, rest) = decode_on_behalf(Kind::Unlink, &bytes).unwrap();
        assert_eq!(read, who);
        let (read, rest) = decode_path(Kind::Unlink, rest).unwrap();
        assert_eq!((&read[..], rest), (&path[..], &b"body"[..]));
        let mut plain = Header::request(Kind::Unlink);
        assert!(Front::default().encode(&mut plain).is_empty() && plain.flags == 0);
    }

    #[test]
    fn a_path_has_a_name_and_not_too_many() {
        let name = Name::new("x").unwrap();
        for count in [0, limits::WALK_NAMES_MAX + 1] {
            let error = decode_path(Kind::Unlink, &encode_body(&vec![name.clone(); count])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        decode_path(Kind::Unlink, &encode_body(&vec![name; limits::WALK_NAMES_MAX])).unwrap();
        assert_eq!(decode_path(Kind::Unlink, &[200, 1]).unwrap_err().kind(), ErrorKind::Protocol);
    }
}

//! Access control lists as people write them: `user::rw-,user:1001:r--,group::r--,mask::r--,other::---`.

use std::fmt;
use std::str::FromStr;

use ramlace_base::{Error, ErrorKind, Result};

use crate::AccessList;
use crate::access_lists::{Reader, tag};

/// Letters of the rights, from the highest bit on.
const LETTERS: [char; 3] = ['r', 'w', 'x'];

impl fmt::Display for AccessList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.entries().try_for_each(|(tag, rights, id)| {
            let word = match tag {
                tag::OWNER | tag::USER => "user",
                tag::GROUP_OWNER | tag::GROUP => "group",
                tag::MASK => "mask",
                _ => "other",
            };
            let id = if matches!(tag, tag::USER | tag::GROUP) { id.to_string() } else { String::new() };
            let letter = |(at, letter): (usize, char)| if rights & 4 >> at == 0 { '-' } else { letter };
            let rights: String = LETTERS.into_iter().enumerate().map(letter).collect();
            write!(formatter, "{separator}{word}:{id}:{rights}")?;
            separator = ",";
            Ok(())
        })
    }
}

impl FromStr for AccessList {
    type Err = Error;

    /// Entries in any order, between commas or blanks: `user`, `group`, `mask` and `other`, or their first letters; numbers for
    /// names; letters or a digit for rights.
    fn from_str(text: &str) -> Result<AccessList> {
        let parts = text.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty());
        let mut entries = parts.map(entry).collect::<Result<Vec<_>>>()?;
        entries.sort_by_key(|(tag, _, id)| (*tag, *id));
        Reader::read(entries)
    }
}

fn entry(text: &str) -> Result<(u16, u16, u32)> {
    let wrong = || {
        let text =
            format!("'{text}' is no entry of an access list; write such as user:1001:rw- or mask::r--");
        Error::new(ErrorKind::Invalid, text)
    };
    let [word, id, rights] = text.splitn(3, ':').collect::<Vec<&str>>()[..] else { return Err(wrong()) };
    let tag = match (word, id.is_empty()) {
        ("user" | "u", true) => tag::OWNER,
        ("user" | "u", false) => tag::USER,
        ("group" | "g", true) => tag::GROUP_OWNER,
        ("group" | "g", false) => tag::GROUP,
        ("mask" | "m", true) => tag::MASK,
        ("other" | "o", true) => tag::OTHER,
        _ => return Err(wrong()),
    };
    let id = if id.is_empty() { u32::MAX } else { id.parse().map_err(|_| wrong())? };
    Ok((tag, rights_of(rights).ok_or_else(wrong)?, id))
}

fn rights_of(text: &str) -> Option<u16> {
    if let Ok(number @ 0..=7) = text.parse() {
        return Some(number);
    }
    let bit = |letter| match letter {
        '-' => Some(0),
        letter => LETTERS.iter().position(|known| *known == letter).map(|at| 4 >> at),
    };
    text.chars().map(bit).try_fold(0, |all, bit| Some(all | bit?)).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_they_are_read() {
        let text = "user::rwx,user:7:r--,user:1001:---,group::r-x,group:9:-w-,mask::rwx,other::--x";
        let list: AccessList = text.parse().unwrap();
        assert_eq!(list.to_string(), text);
        assert_eq!(list.permissions(), 0o771);
        let short = "o::1 m::7 g::rx g:9:w u::7\nu:1001:- u:7:4";
        assert_eq!(short.parse::<AccessList>().unwrap(), list);
        assert_eq!(AccessList::from_attribute(&list.to_attribute()).unwrap(), Some(list));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            "u::rwx",
            "u::rwx,g::rwx,o::rwx,u:7:rwx",
            "u::8,g::7,o::7",
            "u::,g::7,o::7",
            "user:bob:7,u::7,g::7,m::7,o::7",
            "o:7:7,u::7,g::7",
            "u::rwx,g::rwx,o::rwy",
            "x::7",
            "u:7",
        ] {
            assert_eq!(text.parse::<AccessList>().unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}

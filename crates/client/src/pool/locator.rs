//! How pools, and places in them, are named: the one grammar for all interfaces.
//!
//! A pool is `lab` (of this user on this machine), `host:port` (one of its servers listens there), or any
//! locator, whose path is then ignored. A place is a locator: `ramlace:/path`, `ramlace://lab/path`,
//! `ramlace://host:port/path`.

use std::fmt;
use std::str::FromStr;

use ramlace_base::{Error, ErrorKind, Result};

use crate::pool::directory::{self, POOL_DEFAULT, POOL_VARIABLE};

/// The pool that a locator names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PoolName {
    /// The pool that `--pool` or `RAMLACE_POOL` names, else the user's default pool.
    Default,
    /// A pool of this user on this machine.
    Named(String),
    /// A pool one of whose servers listens at `host:port`.
    At(String),
}

impl PoolName {
    /// Parses what `--pool`, `RAMLACE_POOL` and the libraries' connect accept: `lab`, `host:port`, a locator
    /// of the pool or of any place in it, and `ramlace:lab`, as a mount's source is shown.
    pub fn parse(text: &str) -> Result<PoolName> {
        if let Some(rest) = text.strip_prefix("ramlace:") {
            return match rest {
                "" => Ok(PoolName::Default),
                _ if rest.starts_with('/') => Locator::parse(text).map(|locator| locator.pool),
                name => directory::check_name(name).map(|()| PoolName::Named(name.to_owned())),
            };
        }
        if text.contains([':', '/']) && !is_address(text) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "'{}' is no name of a pool; write its name, host:port of one of its servers, or \
                     ramlace://host:port",
                    text.escape_debug()
                ),
            ));
        }
        if text.contains(':') {
            return Ok(PoolName::At(text.to_owned()));
        }
        directory::check_name(text).map(|()| PoolName::Named(text.to_owned()))
    }

    /// The pool to use, by its name or an address: `named`, else `RAMLACE_POOL`, else this user's default
    /// pool.
    pub fn meant(named: Option<&str>) -> Result<PoolName> {
        let variable = || std::env::var(POOL_VARIABLE).ok().filter(|name| !name.is_empty());
        let named = named.map_or(Ok(PoolName::Default), PoolName::parse)?;
        let meant = match (named, variable()) {
            (PoolName::Default, Some(text)) => PoolName::parse(&text)?,
            (named, _) => named,
        };
        Ok(match meant {
            PoolName::Default => PoolName::Named(POOL_DEFAULT.to_owned()),
            meant => meant,
        })
    }
}

impl fmt::Display for PoolName {
    /// In the form that `--pool` accepts.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            PoolName::Default => "ramlace:/",
            PoolName::Named(text) | PoolName::At(text) => text,
        })
    }
}

/// A place in a pool.
///
/// `ramlace:/path` lies in the default pool, `ramlace://host:port/path` in the pool of that
/// server, `ramlace://name/path` in this user's pool of that name: an authority is an address
/// exactly when it contains a colon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    /// The pool.
    pub pool: PoolName,
    /// The path from the pool's root; begins with a slash.
    pub path: Vec<u8>,
}

const SCHEME: &[u8] = b"ramlace:";

impl Locator {
    /// Whether these bytes are meant as a locator rather than as a local path.
    #[must_use]
    pub fn looks_like(bytes: impl AsRef<[u8]>) -> bool {
        bytes.as_ref().starts_with(SCHEME)
    }

    /// Parses a locator. The path may hold any bytes but NUL; without one, it is the root.
    pub fn parse(bytes: impl AsRef<[u8]>) -> Result<Locator> {
        let bytes = bytes.as_ref();
        let refuse = |why: &str| {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("'{}' {why}; write ramlace:/path or ramlace://host:port/path", bytes.escape_ascii()),
            ))
        };
        let Some(rest) = bytes.strip_prefix(SCHEME) else { return refuse("is no locator") };
        if rest.contains(&0) {
            return refuse("contains a NUL");
        }
        let Some(rest) = rest.strip_prefix(b"//") else {
            return match rest {
                [] => Ok(Locator { pool: PoolName::Default, path: b"/".to_vec() }),
                [b'/', ..] => Ok(Locator { pool: PoolName::Default, path: rest.to_vec() }),
                _ => refuse("lacks the slash before its path"),
            };
        };
        let split = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let Ok(authority) = std::str::from_utf8(authority) else { return refuse("names no host") };
        let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        if authority.contains(':') {
            if !is_address(authority) {
                return refuse("has an address that is no host:port");
            }
            return Ok(Locator { pool: PoolName::At(authority.to_owned()), path });
        }
        match directory::check_name(authority) {
            Ok(()) => Ok(Locator { pool: PoolName::Named(authority.to_owned()), path }),
            Err(_) => refuse("names no pool"),
        }
    }
}

/// Whether the text is `host:port` with a port from 1 to 65535 (`[v6]:port` included).
pub(crate) fn is_address(text: &str) -> bool {
    match text.rsplit_once(':') {
        Some((host, port)) => {
            let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
            let plain = !host.is_empty() && !host.contains([':', '[', ']', '@', '/', ' ']);
            (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port != 0)
        }
        None => false,
    }
}

impl FromStr for Locator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Locator> {
        Locator::parse(text)
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ramlace:")?;
        match &self.pool {
            // A path that begins with two slashes would read as an authority.
            PoolName::Default => {
                return write!(formatter, "{}", ShownPath(collapse_leading_slashes(&self.path)));
            }
            PoolName::Named(authority) | PoolName::At(authority) => write!(formatter, "//{authority}")?,
        }
        write!(formatter, "{}", ShownPath(&self.path))
    }
}

fn collapse_leading_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    &path[slashes.saturating_sub(1)..]
}

/// A path for people: as text where it is text, else with other bytes escaped.
pub(crate) struct ShownPath<'a>(pub &'a [u8]);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) if !text.chars().any(char::is_control) => formatter.write_str(text),
            _ => write!(formatter, "{}", self.0.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back() {
        for (text, pool, path) in [
            ("ramlace:/a/b", PoolName::Default, "/a/b"),
            ("ramlace:", PoolName::Default, "/"),
            ("ramlace://host:7000/x", PoolName::At("host:7000".into()), "/x"),
            ("ramlace://[::1]:7000", PoolName::At("[::1]:7000".into()), "/"),
            ("ramlace://lab/x y", PoolName::Named("lab".into()), "/x y"),
        ] {
            let locator = Locator::parse(text).unwrap();
            assert_eq!((&locator.pool, &locator.path[..]), (&pool, path.as_bytes()), "{text}");
            assert_eq!(Locator::parse(locator.to_string()).unwrap(), locator, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_form() {
        for text in [
            "/a",
            "ramlace",
            "ramlace:a",
            "ramlace:///a",
            "ramlace://host:/a",
            "ramlace://host:0/a",
            "ramlace://host:70000/a",
            "ramlace://a:b:1/a",
            "ramlace://../a",
            "ramlace:/a\0b",
            "",
        ] {
            let error = Locator::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains("ramlace://host:port/path"), "{text}");
        }
    }

    // SEMANTICS 101.1
    #[test]
    fn pools_are_named_by_name_address_or_locator() {
        let (named, at) =
            (|name: &str| PoolName::Named(name.into()), |address: &str| PoolName::At(address.into()));
        for (text, pool) in [
            ("lab", named("lab")),
            ("ramlace:lab", named("lab")),
            ("ramlace://lab/x", named("lab")),
            ("host:7000", at("host:7000")),
            ("[::1]:7000", at("[::1]:7000")),
            ("ramlace://host:7000", at("host:7000")),
            ("ramlace://host:7000/x", at("host:7000")),
            ("ramlace:", PoolName::Default),
            ("ramlace:/x", PoolName::Default),
        ] {
            let read = PoolName::parse(text).unwrap();
            assert_eq!(read, pool, "{text}");
            assert_eq!(PoolName::parse(&read.to_string()).unwrap(), pool, "{text}");
        }
        for text in ["", "..", "a/b", "host:", ":7000", "host:0", "a:b:1", "ramlace:..", "ramlace:///x"] {
            assert_eq!(PoolName::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn a_default_path_never_reads_as_an_authority() {
        let locator = Locator { pool: PoolName::Default, path: b"//lab/x".to_vec() };
        assert_eq!(locator.to_string(), "ramlace:/lab/x");
    }
}

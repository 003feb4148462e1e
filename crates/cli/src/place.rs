//! What people name on the command line: places in pools, and local files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Locator, Pool, PoolName};

/// A source or a destination of `cp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Standard input or output.
    Stream,
    /// A file of this machine.
    Local(PathBuf),
    /// A place in a pool.
    Pool(Locator),
}

impl Place {
    /// `-`, `ramlace:/path`, `ramlace://host:port/path`, or a local path.
    pub fn parse(text: &OsStr) -> Result<Place> {
        if text == "-" {
            return Ok(Place::Stream);
        }
        if Locator::looks_like(text.as_bytes()) {
            return Locator::parse(text.as_bytes()).map(Place::Pool);
        }
        if text.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "an empty path names nothing; '.' is the current directory",
            ));
        }
        Ok(Place::Local(text.into()))
    }
}

/// A place that can only be in a pool: `ramlace:/x` and `/x` mean the same.
pub fn in_pool(text: &OsStr) -> Result<Locator> {
    let bytes = text.as_bytes();
    if Locator::looks_like(bytes) {
        return Locator::parse(bytes);
    }
    match bytes.first() {
        Some(b'/') if !bytes.contains(&0) => Ok(Locator { pool: PoolName::Default, path: bytes.to_vec() }),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "'{}' is no path in a pool, which begins with a slash; write /{} or ramlace:/{}",
                bytes.escape_ascii(),
                bytes.escape_ascii(),
                bytes.escape_ascii()
            ),
        )),
    }
}

/// How to reach the pool that `--pool` names: a name, or `host:port`.
pub fn connect_options(named: Option<&str>) -> ConnectOptions {
    match named {
        // No name of a pool contains a colon.
        Some(address) if address.contains(':') => {
            ConnectOptions { addresses: vec![address.to_owned()], ..ConnectOptions::default() }
        }
        _ => ConnectOptions { pool: named.map(str::to_owned), ..ConnectOptions::default() },
    }
}

/// The pools that a command talks to, each connected once.
pub struct Pools {
    named: Option<String>,
    connected: HashMap<PoolName, Pool>,
}

impl Pools {
    /// `named`: what `--pool` says.
    pub fn new(named: Option<&str>) -> Pools {
        Pools { named: named.map(str::to_owned), connected: HashMap::new() }
    }

    /// The pool in which a place lies.
    pub fn of(&mut self, locator: &Locator) -> Result<Pool> {
        self.connect(&locator.pool)
    }

    /// The pool that `--pool` names, or the default one.
    pub fn usual(&mut self) -> Result<Pool> {
        self.connect(&PoolName::Default)
    }

    fn connect(&mut self, name: &PoolName) -> Result<Pool> {
        if let Some(pool) = self.connected.get(name) {
            return Ok(pool.clone());
        }
        let options = match name {
            PoolName::Default => connect_options(self.named.as_deref()),
            PoolName::Named(name) => connect_options(Some(name)),
            PoolName::At(address) => connect_options(Some(address)),
        };
        let pool = Pool::connect(&options)?;
        self.connected.insert(name.clone(), pool.clone());
        Ok(pool)
    }
}

/// The last component of a path, without slashes behind it; empty for `/`, `.` and `..`.
pub fn base_name(path: &[u8]) -> &[u8] {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &path[start..end] {
        b"." | b".." => b"",
        name => name,
    }
}

/// `directory/name`.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let place = |text: &str| Place::parse(OsStr::new(text)).unwrap();
        assert_eq!(place("-"), Place::Stream);
        assert_eq!(place("./ramlace:/x"), Place::Local("./ramlace:/x".into()));
        assert_eq!(place("/x"), Place::Local("/x".into()));
        let Place::Pool(locator) = place("ramlace://host:1/x") else { panic!() };
        assert_eq!((locator.pool, &locator.path[..]), (PoolName::At("host:1".into()), &b"/x"[..]));
        assert_eq!(Place::parse(OsStr::new("")).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Place::parse(OsStr::new("ramlace:x")).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn pool_paths_need_a_slash_or_the_scheme() {
        assert_eq!(in_pool(OsStr::new("/x")).unwrap(), in_pool(OsStr::new("ramlace:/x")).unwrap());
        for text in ["x", "", "./x", "file:/x"] {
            let error = in_pool(OsStr::new(text)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains("ramlace:/"), "{error}");
        }
    }

    #[test]
    fn names_and_paths_come_apart_and_together() {
        for (path, name) in [
            ("/a/b", "b"),
            ("/a/b//", "b"),
            ("b", "b"),
            ("/", ""),
            ("//", ""),
            ("a/..", ""),
            (".", ""),
            ("", ""),
        ] {
            assert_eq!(base_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"x"), b"/a/x");
    }

    #[test]
    fn a_pool_is_named_or_addressed() {
        assert_eq!(connect_options(Some("lab")).pool.as_deref(), Some("lab"));
        assert_eq!(connect_options(Some("host:7000")).addresses, ["host:7000"]);
        assert!(connect_options(None).pool.is_none());
    }
}

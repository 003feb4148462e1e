//! What people name on the command line, in one grammar for every command.
//!
//! * `ramlace:/path`, `ramlace://POOL/path` and `ramlace://host:port/path` are places in a pool.
//! * A path that lies on a mount of a pool is that place in the pool.
//! * Any other `/path` is a path in the pool for commands that work in pools alone, and a file of this machine for
//!   `cp` and `mv`, which have two sides. `-` is standard input or output where bytes go by.
//!
//! `read` is the grammar and asks the machine nothing; `at_hand` finds out where mounts are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub use ramlace_base::path::join;
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Locator, Pool, PoolName, pool_name};
use ramlace_mount::MountPoint;

use crate::mounting::{mounts_of, source_of};
use crate::show::escaped;

/// What a word on the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Standard input or output.
    Stream,
    /// A path of this machine, on no mount of a pool.
    Local(PathBuf),
    /// A place in a pool.
    Pool(Locator),
}

impl Place {
    /// For commands with two sides, on which paths of this machine may stand.
    pub fn parse(text: &OsStr) -> Result<Place> {
        read(text, &mut at_hand)
    }
}

/// For commands that work in pools alone: what lies on no mount is a path from the pool's root.
pub fn in_pool(text: &OsStr) -> Result<Locator> {
    in_pool_with(text, &mut at_hand)
}

/// For `mv`, which reads its words as `cp` does: the error for a file of this machine says what to do.
pub fn in_pool_as_cp_reads_it(text: &OsStr) -> Result<Locator> {
    match Place::parse(text)? {
        Place::Pool(locator) => Ok(locator),
        Place::Stream => Err(Error::new(ErrorKind::Invalid, "'-' has no name that could be changed")),
        Place::Local(path) => {
            let shown = escaped(path.as_os_str().as_bytes());
            let slash = if shown.starts_with('/') { "" } else { "/" };
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "'{shown}' is a file of this machine, as for cp; in the pool it is written ramlace:{slash}{shown}, \
                     and cp moves bytes between the two"
                ),
            ))
        }
    }
}

/// For commands that work by mounts: the file by each mount of its pool that this user has here. A path on a mount is that
/// file by that mount. `named`: the pool that `--pool` says.
pub fn on_mounts(text: &OsStr, named: Option<&str>) -> Result<Vec<PathBuf>> {
    let locator = in_pool(text)?;
    if !Locator::looks_like(text.as_bytes()) {
        if at_hand(Path::new(text))?.is_some() {
            return Ok(vec![text.into()]);
        }
        // A user that names a file that is there does not mean one from a pool's root.
        if fs::symlink_metadata(text).is_ok() {
            let text = format!(
                "{} lies on no mount of a pool; 'ramlace mount DIR' makes one",
                escaped(text.as_bytes())
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    let pool = match &locator.pool {
        PoolName::Default => pool_name(named),
        PoolName::Named(name) | PoolName::At(name) => name.clone(),
    };
    let inside =
        locator.path.iter().position(|byte| *byte != b'/').map_or(&[][..], |start| &locator.path[start..]);
    let by = |mount: MountPoint| mount.dir.join(OsStr::from_bytes(inside));
    let paths: Vec<PathBuf> = mounts_of(&pool)?.into_iter().map(by).collect();
    if paths.is_empty() {
        let text = format!(
            "{} is on no mount here: {} is not mounted, so no program of this machine maps its files; 'ramlace mount DIR' mounts it",
            escaped(text.as_bytes()),
            source_of(Some(&pool))
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(paths)
}

/// A place that a path of this machine leads to on a mount, if it does.
type Mounted<'a> = &'a mut dyn FnMut(&Path) -> Result<Option<Locator>>;

/// The grammar; `mounted` says what a path of this machine is on a mount.
fn read(text: &OsStr, mounted: Mounted<'_>) -> Result<Place> {
    if text == "-" {
        return Ok(Place::Stream);
    }
    if Locator::looks_like(text.as_bytes()) {
        return Locator::parse(text.as_bytes()).map(Place::Pool);
    }
    if text.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "an empty path names nothing; '.' is the current directory, ramlace:/ the root of a pool",
        ));
    }
    Ok(mounted(Path::new(text))?.map_or_else(|| Place::Local(text.into()), Place::Pool))
}

fn in_pool_with(text: &OsStr, mounted: Mounted<'_>) -> Result<Locator> {
    let refuse =
        |why: &str| Err(Error::new(ErrorKind::Invalid, format!("'{}' {why}", escaped(text.as_bytes()))));
    if text.as_bytes().contains(&0) {
        return refuse("is no path: it contains a NUL");
    }
    match read(text, mounted)? {
        Place::Pool(locator) => Ok(locator),
        Place::Local(path) if path.is_absolute() => {
            Ok(Locator { pool: PoolName::Default, path: path.into_os_string().into_vec() })
        }
        Place::Stream | Place::Local(_) => refuse(&format!(
            "lies on no mount of a pool; a path from the pool's root begins with a slash: ramlace:/{}",
            escaped(text.as_bytes())
        )),
    }
}

/// Where a path of this machine really lies: links above its last name are followed, and that one where a slash
/// follows it.
struct Found {
    path: PathBuf,
    /// The device of what is there, or of the nearest directory above it that is.
    device: (u32, u32),
}

/// The place in a pool that a path means by a mount of this machine, if it lies on one.
fn at_hand(path: &Path) -> Result<Option<Locator>> {
    let mounts = ramlace_mount::mounts()?;
    if mounts.is_empty() {
        return Ok(None);
    }
    let absolute = std::path::absolute(path).map_err(|error| Error::from_io(&error, path.display()))?;
    let follow = path.as_os_str().as_bytes().ends_with(b"/");
    let found = find(&absolute, follow).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => Error::new(
            ErrorKind::HostDown,
            format!("{} lies on a dead mount: 'ramlace mount' on its directory mounts anew", path.display()),
        ),
        _ => Error::from_io(&error, format!("looking at {}", path.display())),
    })?;
    let Some((mount, mut inside)) = found.and_then(|found| on_mount(&found, &mounts)) else {
        return Ok(None);
    };
    if follow && !inside.ends_with(b"/") {
        inside.push(b'/');
    }
    Ok(Some(Locator { pool: pool_of(mount, path)?, path: inside }))
}

/// Follows a path as far as it is there; `None` where this user may not read.
fn find(absolute: &Path, follow: bool) -> io::Result<Option<Found>> {
    let mut rest: Vec<&OsStr> = Vec::new();
    let mut at = absolute;
    loop {
        let is_last = rest.is_empty();
        let looked = if is_last && !follow { fs::symlink_metadata(at) } else { fs::metadata(at) };
        match (looked, at.parent()) {
            (Ok(metadata), above) => {
                let mut path = match (above, at.file_name()) {
                    (Some(above), Some(name)) if is_last && !follow => above.canonicalize()?.join(name),
                    _ => at.canonicalize()?,
                };
                path.extend(rest.iter().rev());
                let device = metadata.dev();
                return Ok(Some(Found {
                    path,
                    device: (rustix::fs::major(device), rustix::fs::minor(device)),
                }));
            }
            (Err(error), Some(above)) if is_absent(&error) => {
                rest.push(at.components().next_back().map_or(OsStr::new(""), |last| last.as_os_str()));
                at = above;
            }
            (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            (Err(error), _) => return Err(error),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The mount whose device something lies on, and its path from the mount's root.
fn on_mount<'a>(found: &Found, mounts: &'a [MountPoint]) -> Option<(&'a MountPoint, Vec<u8>)> {
    let its = mounts.iter().rev().filter(|mount| mount.device == found.device);
    its.filter_map(|mount| {
        let inside = found.path.strip_prefix(&mount.dir).ok()?;
        Some((mount, join(b"/", inside.as_os_str().as_bytes())))
    })
    .next()
}

/// The pool of a mount: one of this user's, or one that has an address.
fn pool_of(mount: &MountPoint, path: &Path) -> Result<PoolName> {
    let pool = PoolName::parse(&mount.source)?;
    let known = match &pool {
        PoolName::Named(name) => mounts_of(name)?.iter().any(|own| own.device == mount.device),
        PoolName::At(_) | PoolName::Default => true,
    };
    if known {
        return Ok(pool);
    }
    Err(Error::new(
        ErrorKind::Denied,
        format!(
            "{} lies on a mount of {}, which is no pool of yours on this machine; use it as a file there, or name it by \
             ramlace://host:port/path",
            path.display(),
            mount.source
        ),
    ))
}

/// How to reach the pool that `--pool` names.
pub fn connect_options(named: Option<&str>) -> ConnectOptions {
    ConnectOptions { pool: named.map(str::to_owned), ..ConnectOptions::default() }
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
            PoolName::Named(text) | PoolName::At(text) => connect_options(Some(text)),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which `/mnt/…` and `here/…` lie on a mount of the pool 'lab'.
    fn mounted(path: &Path) -> Result<Option<Locator>> {
        let inside = path.strip_prefix("/mnt").or_else(|_| path.strip_prefix("here")).ok();
        let path = inside.map(|inside| join(b"/", inside.as_os_str().as_bytes()));
        Ok(path.map(|path| Locator { pool: PoolName::Named("lab".into()), path }))
    }

    fn lab(path: &str) -> Locator {
        Locator { pool: PoolName::Named("lab".into()), path: path.as_bytes().to_vec() }
    }

    // SEMANTICS 101.2, 101.3
    #[test]
    fn places_are_told_apart() {
        let place = |text: &str| read(OsStr::new(text), &mut mounted).unwrap();
        assert_eq!(place("-"), Place::Stream);
        assert_eq!(place("./ramlace:/x"), Place::Local("./ramlace:/x".into()));
        assert_eq!(place("/x"), Place::Local("/x".into()));
        assert_eq!(place("/mnt/x"), Place::Pool(lab("/x")));
        assert_eq!(place("here"), Place::Pool(lab("/")));
        let Place::Pool(locator) = place("ramlace://host:1/x") else { panic!() };
        assert_eq!((locator.pool, &locator.path[..]), (PoolName::At("host:1".into()), &b"/x"[..]));
        for text in ["", "ramlace:x"] {
            assert_eq!(
                read(OsStr::new(text), &mut mounted).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{text}"
            );
        }
    }

    #[test]
    fn in_a_pool_a_path_is_on_a_mount_or_begins_with_a_slash_or_the_scheme() {
        let place = |text: &str| in_pool_with(OsStr::new(text), &mut mounted);
        assert_eq!(place("/x").unwrap(), place("ramlace:/x").unwrap());
        assert_eq!(place("/mnt/x").unwrap(), lab("/x"));
        assert_eq!(place("here/x").unwrap(), lab("/x"));
        assert_eq!(place("ramlace:/mnt/x").unwrap().path, b"/mnt/x");
        for text in ["x", "", "./x", "file:/x", "-", "/x\0"] {
            let error = place(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        }
        assert!(place("x").unwrap_err().message().contains("ramlace:/x"));
    }

    // SEMANTICS 101.2
    #[test]
    fn a_mount_is_known_by_its_device_and_the_newest_counts() {
        let mount = |dir: &str, device| MountPoint {
            dir: dir.into(),
            kind: "fuse.ramlace".into(),
            source: dir.into(),
            device,
            user: 0,
            flags: ramlace_mount::Flags::default(),
        };
        let mounts = [mount("/a", (0, 1)), mount("/a/b", (0, 2)), mount("/c", (0, 1))];
        let on = |path: &str, device| {
            let found = on_mount(&Found { path: path.into(), device }, &mounts);
            found.map(|(mount, inside)| (mount.dir.to_str().unwrap(), String::from_utf8(inside).unwrap()))
        };
        assert_eq!(on("/a/x/y", (0, 1)), Some(("/a", "/x/y".into())));
        assert_eq!(on("/a/b/x", (0, 2)), Some(("/a/b", "/x".into())));
        assert_eq!(on("/c", (0, 1)), Some(("/c", "/".into())));
        // Another file system is mounted on a directory of the pool.
        assert_eq!(on("/a/x", (0, 9)), None);
    }

    #[test]
    fn the_last_name_of_a_path_comes_off() {
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
    }
}

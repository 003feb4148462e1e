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
use ramlace_copy::Mounts;
use ramlace_mount::MountPoint;

use crate::mounted_pools::{self, Known};
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
        read(text, &mut at_hand).map(|place| place.keeping_dots_of(text))
    }

    /// `dir/.` and `dir/..` are what is in a directory, and no name in the one above: also where they lie on a mount,
    /// whose paths are found out without them.
    fn keeping_dots_of(self, text: &OsStr) -> Place {
        match self {
            Place::Pool(Locator { pool, path })
                if ends_in_dots(text) && !Locator::looks_like(text.as_bytes()) =>
            {
                Place::Pool(Locator { pool, path: join(&path, b".") })
            }
            other => other,
        }
    }
}

/// Whether the last name of a path is `.` or `..`.
fn ends_in_dots(path: &OsStr) -> bool {
    matches!(path.as_bytes().rsplit(|byte| *byte == b'/').next(), Some(b"." | b".."))
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
    let by = |mount: MountPoint| shown_by(&mount, inside);
    let paths: Vec<PathBuf> = mounts_of(&pool)?.into_iter().filter_map(by).collect();
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

/// The path by a mount of what lies `inside` its pool, below the root; a bind mount may not show it.
fn shown_by(mount: &MountPoint, inside: &[u8]) -> Option<PathBuf> {
    let below = Path::new("/").join(OsStr::from_bytes(inside));
    below.strip_prefix(&mount.root).ok().map(|below| mount.dir.join(below))
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
    let slash = path.as_os_str().as_bytes().ends_with(b"/");
    let found = find(&absolute, slash || ends_in_dots(path.as_os_str())).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOTCONN) => Error::new(
                ErrorKind::HostDown,
                format!(
                    "{} lies on a dead mount: 'ramlace mount' on its directory mounts anew",
                    path.display()
                ),
            ),
            _ => Error::from_io(&error, format!("looking at {}", path.display())),
        }
    })?;
    let on = found.map(|found| on_mount(&found, &mounts)).transpose()?.flatten();
    let Some((mount, mut inside)) = on else { return Ok(None) };
    if slash && !inside.ends_with(b"/") {
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

/// The mount whose device something lies on, and its path from the pool's root: what is shown of the pool may begin
/// further down, by a bind mount.
fn on_mount<'a>(found: &Found, mounts: &'a [MountPoint]) -> Result<Option<(&'a MountPoint, Vec<u8>)>> {
    let its = mounts.iter().rev().filter(|mount| mount.device == found.device);
    let on = its.filter_map(|mount| Some((mount, found.path.strip_prefix(&mount.dir).ok()?))).next();
    let Some((mount, below)) = on else { return Ok(None) };
    if mount.is_of_removed() {
        let text = format!(
            "{} lies on {}, which shows a directory that was removed from {}; 'umount {1}' takes it away",
            found.path.display(),
            mount.dir.display(),
            mount.source
        );
        return Err(Error::new(ErrorKind::Stale, text));
    }
    let root = mount.root.as_os_str().as_bytes();
    let inside =
        if below == Path::new("") { root.to_vec() } else { join(root, below.as_os_str().as_bytes()) };
    Ok(Some((mount, inside)))
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

    /// Where those of them that it has talked to are mounted on this machine.
    pub fn mounts(&self) -> Result<Mounts> {
        let known = |(name, pool): (&PoolName, &Pool)| {
            let map = pool.map()?;
            let by = if let PoolName::At(address) = name { Some(address.clone()) } else { None };
            let addresses = map.servers.iter().map(|server| server.tcp.clone()).chain(by).collect();
            Ok(Known { id: map.pool, addresses })
        };
        Ok(mounted_pools::mounts(&self.connected.iter().map(known).collect::<Result<Vec<Known>>>()?))
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
    fn a_dot_at_the_end_of_a_path_on_a_mount_stays() {
        let path = |text: &str| {
            let text = OsStr::new(text);
            match read(text, &mut mounted).unwrap().keeping_dots_of(text) {
                Place::Pool(locator) => String::from_utf8(locator.path).unwrap(),
                place => panic!("{place:?}"),
            }
        };
        // The system's form of a path is without them.
        let [one, other] = ["/mnt/sub/.", "/mnt/sub"].map(Path::new);
        assert_eq!(one.components().as_path(), other);
        assert_eq!(
            (path("/mnt/sub"), path("/mnt/sub/."), path("here")),
            ("/sub".into(), "/sub/.".into(), "/".into())
        );
        for text in ["/mnt/sub/.", "here/."] {
            assert_eq!(base_name(path(text).as_bytes()), b"", "{text}");
        }
        assert_eq!((path("/mnt/.x"), path("/mnt/x..")), ("/.x".into(), "/x..".into()));
        assert_eq!(path("ramlace:/x/."), "/x/.");
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

    fn mount(dir: &str, root: &str, device: (u32, u32)) -> MountPoint {
        MountPoint {
            dir: dir.into(),
            root: root.into(),
            kind: "fuse.ramlace".into(),
            source: dir.into(),
            device,
            user: 0,
            flags: ramlace_mount::Flags::default(),
        }
    }

    // SEMANTICS 101.2
    #[test]
    fn a_mount_is_known_by_its_device_and_the_newest_counts() {
        let mounts = [mount("/a", "/", (0, 1)), mount("/a/b", "/", (0, 2)), mount("/c", "/", (0, 1))];
        let on = |path: &str, device| {
            let found = on_mount(&Found { path: path.into(), device }, &mounts).unwrap();
            found.map(|(mount, inside)| (mount.dir.to_str().unwrap(), String::from_utf8(inside).unwrap()))
        };
        assert_eq!(on("/a/x/y", (0, 1)), Some(("/a", "/x/y".into())));
        assert_eq!(on("/a/b/x", (0, 2)), Some(("/a/b", "/x".into())));
        assert_eq!(on("/c", (0, 1)), Some(("/c", "/".into())));
        // Another file system is mounted on a directory of the pool.
        assert_eq!(on("/a/x", (0, 9)), None);
    }

    // SEMANTICS 101.2
    #[test]
    fn a_bind_mount_of_a_directory_begins_at_that_directory() {
        let device = (0, 1);
        let mounts = [mount("/a", "/", device), mount("/b", "/my/proj", device)];
        let on = |path: &str, mounts| {
            let found = on_mount(&Found { path: path.into(), device }, mounts)?;
            Ok(found.map(|(_, inside)| String::from_utf8(inside).unwrap()))
        };
        assert_eq!(on("/a/x", &mounts), Ok(Some("/x".into())));
        assert_eq!(on("/b/x", &mounts), Ok(Some("/my/proj/x".into())));
        assert_eq!(on("/b", &mounts), Ok(Some("/my/proj".into())));
        assert_eq!(shown_by(&mounts[0], b"my/proj/x"), Some("/a/my/proj/x".into()));
        assert_eq!(shown_by(&mounts[1], b"my/proj/x"), Some("/b/x".into()));
        assert_eq!(shown_by(&mounts[1], b"my/x"), None);
        let removed: Result<_> = on("/b/x", &[mount("/b", "/my/proj//deleted", device)]);
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::Stale);
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

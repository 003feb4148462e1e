//! A place on one of the two sides of a copy: a local path or a path in a pool.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use ramlace_base::path::{escaped, join};
use ramlace_base::{Error, ErrorKind, InodeId, Result, Timestamp};
use ramlace_client::{AttributeChanges, NewMode, Pool};
use ramlace_wire::{Attributes, FileKind, PoolId};
use rustix::fs::{FileType, Stat};

use crate::below::Below;
use crate::within::Within;

/// A local path, or a path in a pool: one that the user named, or something below a directory that the user
/// named. What is below is reached through no symbolic link: another user may have put one there, such as by an
/// earlier copy out of a pool that others use.
#[derive(Clone)]
pub enum Side {
    /// On this machine.
    Local(PathBuf),
    /// On this machine, below what was named.
    Below(Below),
    /// In a pool.
    Pool(Pool, Vec<u8>),
    /// In a pool, below what was named.
    Within(Within),
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe or a device: bytes without a size, read and written in order.
    Stream,
    /// A socket or something else that has no bytes to copy.
    Other,
}

/// Decides whether two paths lead to one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Device and inode.
    Local(u64, u64),
    /// Pool and inode.
    Pool(PoolId, InodeId),
}

/// What was found at a path.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Bytes of a file.
    pub size: u64,
    /// Permission bits.
    pub mode: u16,
    /// Last change of content.
    pub modified: Timestamp,
    /// Which thing it is.
    pub identity: Identity,
    /// A local file may have holes: it takes less memory than its size.
    pub sparse: bool,
}

/// The entries of a directory: names, and what they are, as far as that can be found out. An error in place of a name ends
/// the listing.
pub type Entries<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Result<Found>)>> + 'a>;

impl Side {
    /// The path for people.
    pub fn shown(&self) -> String {
        match self {
            Side::Local(_) | Side::Below(_) => escaped(self.path()),
            Side::Pool(..) | Side::Within(_) => format!("ramlace:{}", escaped(self.path())),
        }
    }

    /// The path's bytes.
    pub fn path(&self) -> &[u8] {
        match self {
            Side::Local(path) => path.as_os_str().as_bytes(),
            Side::Below(below) => below.path().as_os_str().as_bytes(),
            Side::Pool(_, path) => path,
            Side::Within(within) => within.path(),
        }
    }

    /// This directory, as where the places below it begin.
    pub fn inside(&self) -> Result<Side> {
        match self {
            Side::Local(path) => Below::of(path).map(Side::Below).map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => Within::of(pool, path).map(Side::Within),
            Side::Below(_) => Ok(self.clone()),
            Side::Within(within) => within.inside().map(Side::Within),
        }
    }

    /// The entry `name` of this directory, which is [`Side::inside`] of one.
    pub fn entry(&self, name: &[u8]) -> Side {
        match self {
            Side::Local(_) | Side::Pool(..) => unreachable!("entries are asked for inside a directory"),
            Side::Below(below) => Side::Below(below.entry(name)),
            Side::Within(within) => Side::Within(within.entry(name)),
        }
    }

    /// Whether a link at its end leads on: not below what was named.
    fn follows_links(&self) -> bool {
        matches!(self, Side::Local(_) | Side::Pool(..))
    }

    /// What is there, if anything; a link at the end is followed or not, and never below what was named.
    pub fn look(&self, follow: bool) -> Result<Option<Found>> {
        let follow = follow && self.follows_links();
        let found = match self {
            Side::Local(path) => {
                let found = if follow { rustix::fs::stat(path) } else { rustix::fs::lstat(path) };
                found.map(|found| local_found(&found)).map_err(|errno| self.tell(&errno.into()))
            }
            Side::Below(below) => {
                below.look().map(|found| local_found(&found)).map_err(|error| self.tell(&error))
            }
            Side::Pool(pool, path) => {
                let info = if follow { pool.stat(path) } else { pool.lstat(path) };
                info.and_then(|info| pool_found(pool, &info.attributes))
            }
            Side::Within(within) => {
                within.look().and_then(|attributes| pool_found(within.pool(), &attributes))
            }
        };
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// The entries of this directory, which was `found` here, with what they are; links are not followed.
    pub fn list(&self, found: &Found) -> Result<Entries<'_>> {
        let entries = match self {
            Side::Local(path) => Below::of(path).and_then(|below| self.list_below(&below)),
            Side::Below(below) => self.list_below(below),
            Side::Pool(pool, _) => return Ok(self.list_pool(pool, found)),
            Side::Within(within) => return Ok(self.list_pool(within.pool(), found)),
        };
        entries.map_err(|error| self.tell(&error))
    }

    fn list_pool<'a>(&'a self, pool: &'a Pool, found: &Found) -> Entries<'a> {
        let Identity::Pool(_, directory) = found.identity else {
            panic!("{} was found in a pool", self.shown())
        };
        Box::new(pool.entries_of(directory).map(move |entry| {
            let entry = entry.map_err(|error| error.context(escaped(self.path())))?;
            let name = entry.name.as_bytes().to_vec();
            let attributes = match entry.attributes {
                Some(attributes) => Ok(attributes),
                None => pool.raw().info(entry.inode).map(|info| info.attributes),
            };
            let found = attributes.and_then(|attributes| pool_found(pool, &attributes));
            let found = found.map_err(|error| error.context(escaped(&join(self.path(), &name))));
            Ok((name, found))
        }))
    }

    fn list_below(&self, below: &Below) -> std::io::Result<Entries<'_>> {
        Ok(Box::new(below.list()?.map(|entry| {
            let (name, found) = entry.map_err(|error| self.tell(&error))?;
            let tell = |error| Error::from_io(&error, escaped(&join(self.path(), &name)));
            let found = found.map(|found| local_found(&found)).map_err(tell);
            Ok((name, found))
        })))
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: NewMode) -> Result<()> {
        match self {
            Side::Local(path) => {
                fs::DirBuilder::new().mode(mode.mode.into()).create(path).map_err(|error| self.tell(&error))
            }
            Side::Below(below) => below.make_directory(mode.mode).map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => pool.mkdir(path, mode).map(drop),
            Side::Within(within) => within.make_directory(mode),
        }
    }

    /// Sets permission bits.
    pub fn set_mode(&self, mode: u16) -> Result<()> {
        match self {
            Side::Local(path) => fs::set_permissions(path, fs::Permissions::from_mode(mode.into()))
                .map_err(|error| self.tell(&error)),
            Side::Below(below) => below.set_mode(mode).map_err(|error| self.tell(&error)),
            Side::Within(within) => within.set_mode(mode),
            Side::Pool(pool, path) => pool
                .set_attributes(path, &AttributeChanges { mode: Some(mode), ..Default::default() })
                .map(drop),
        }
    }

    /// The target of a link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        match self {
            Side::Local(path) => match fs::read_link(path) {
                Ok(target) => Ok(target.into_os_string().as_bytes().to_vec()),
                Err(error) => Err(self.tell(&error)),
            },
            Side::Below(below) => below.read_link().map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => pool.read_link(path),
            Side::Within(within) => within.read_link(),
        }
    }

    /// Makes a link.
    pub fn make_link(&self, target: &[u8]) -> Result<()> {
        match self {
            Side::Local(path) => {
                std::os::unix::fs::symlink(OsStr::from_bytes(target), path).map_err(|error| self.tell(&error))
            }
            Side::Below(below) => below.make_link(target).map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => pool.symlink(target, path).map(drop),
            Side::Within(within) => within.make_link(target),
        }
    }

    /// Removes a file or a link.
    pub fn unlink(&self) -> Result<()> {
        match self {
            Side::Local(path) => fs::remove_file(path).map_err(|error| self.tell(&error)),
            Side::Below(below) => below.unlink().map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => pool.unlink(path),
            Side::Within(within) => within.unlink(),
        }
    }

    /// An error of the system, with the path.
    pub fn tell(&self, error: &std::io::Error) -> Error {
        Error::from_io(error, self.shown())
    }
}

/// What the system says of something on this machine.
pub fn local_found(found: &Stat) -> Found {
    let size = found.st_size as u64;
    Found {
        kind: match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice => Kind::Stream,
            _ => Kind::Other,
        },
        size,
        mode: (found.st_mode & 0o7777) as u16,
        modified: Timestamp {
            nanos: found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec as i64),
        },
        identity: Identity::Local(found.st_dev, found.st_ino),
        sparse: (found.st_blocks as u64) * 512 < size,
    }
}

/// What a pool says of something in it.
pub fn pool_found(pool: &Pool, attributes: &Attributes) -> Result<Found> {
    Ok(Found {
        kind: match attributes.kind {
            FileKind::File => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            _ => Kind::Other,
        },
        size: attributes.size,
        mode: attributes.mode,
        modified: attributes.modified,
        identity: Identity::Pool(pool.map()?.pool, attributes.inode),
        // The pool does not say where holes are: they are found by searching for zeros.
        sparse: true,
    })
}

//! A place on one of the two sides of a copy: a local path or a path in a pool.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, InodeId, Result, Timestamp};
use ramlace_client::{AttributeChanges, Pool};
use ramlace_wire::{Attributes, FileKind, PoolId};

use crate::place::join;
use crate::show::escaped;

/// A local path, or a path in a pool.
#[derive(Clone)]
pub enum Side {
    /// On this machine.
    Local(PathBuf),
    /// In a pool.
    Pool(Pool, Vec<u8>),
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

/// Tells whether two paths lead to one thing.
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

/// The entries of a directory: names, and what they are.
pub type Entries<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Found)>> + 'a>;

impl Side {
    /// The path for people.
    pub fn shown(&self) -> String {
        match self {
            Side::Local(path) => escaped(path.as_os_str().as_bytes()),
            Side::Pool(_, path) => format!("ramlace:{}", escaped(path)),
        }
    }

    /// The path's bytes.
    pub fn path(&self) -> &[u8] {
        match self {
            Side::Local(path) => path.as_os_str().as_bytes(),
            Side::Pool(_, path) => path,
        }
    }

    /// The entry `name` of this directory.
    pub fn entry(&self, name: &[u8]) -> Side {
        match self {
            Side::Local(path) => Side::Local(path.join(OsStr::from_bytes(name))),
            Side::Pool(pool, path) => Side::Pool(pool.clone(), join(path, name)),
        }
    }

    /// What is there, if anything; a link at the end is followed or not.
    pub fn look(&self, follow: bool) -> Result<Option<Found>> {
        let found = match self {
            Side::Local(path) => {
                let found = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
                found.map(|metadata| local_found(&metadata)).map_err(|error| self.tell(&error))
            }
            Side::Pool(pool, path) => {
                let info = if follow { pool.stat(path) } else { pool.lstat(path) };
                info.and_then(|info| pool_found(pool, &info.attributes))
            }
        };
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// The entries of this directory, which was `found` here, with what they are; links are not followed.
    pub fn list(&self, found: &Found) -> Result<Entries<'_>> {
        match self {
            Side::Local(path) => {
                let entries = fs::read_dir(path).map_err(|error| self.tell(&error))?;
                Ok(Box::new(entries.map(|entry| {
                    let entry = entry.map_err(|error| self.tell(&error))?;
                    let metadata = entry.metadata().map_err(|error| self.tell(&error))?;
                    Ok((entry.file_name().as_bytes().to_vec(), local_found(&metadata)))
                })))
            }
            Side::Pool(pool, path) => {
                let Identity::Pool(_, directory) = found.identity else {
                    panic!("{} was found in a pool", self.shown())
                };
                Ok(Box::new(pool.entries_of(directory).map(move |entry| {
                    let entry = entry.map_err(|error| error.context(escaped(path)))?;
                    let attributes = match entry.attributes {
                        Some(attributes) => attributes,
                        None => pool.raw().info(entry.inode)?.attributes,
                    };
                    Ok((entry.name.as_bytes().to_vec(), pool_found(pool, &attributes)?))
                })))
            }
        }
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: u16) -> Result<()> {
        match self {
            Side::Local(path) => {
                fs::DirBuilder::new().mode(mode.into()).create(path).map_err(|error| self.tell(&error))
            }
            Side::Pool(pool, path) => pool.mkdir(path, mode).map(drop),
        }
    }

    /// Sets permission bits.
    pub fn set_mode(&self, mode: u16) -> Result<()> {
        match self {
            Side::Local(path) => fs::set_permissions(path, fs::Permissions::from_mode(mode.into()))
                .map_err(|error| self.tell(&error)),
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
            Side::Pool(pool, path) => pool.read_link(path),
        }
    }

    /// Makes a link.
    pub fn make_link(&self, target: &[u8]) -> Result<()> {
        match self {
            Side::Local(path) => {
                std::os::unix::fs::symlink(OsStr::from_bytes(target), path).map_err(|error| self.tell(&error))
            }
            Side::Pool(pool, path) => pool.symlink(target, path).map(drop),
        }
    }

    /// Removes a file or a link.
    pub fn unlink(&self) -> Result<()> {
        match self {
            Side::Local(path) => fs::remove_file(path).map_err(|error| self.tell(&error)),
            Side::Pool(pool, path) => pool.unlink(path),
        }
    }

    /// An error of the system, told with the path.
    pub fn tell(&self, error: &std::io::Error) -> Error {
        Error::from_io(error, self.shown())
    }
}

fn local_found(metadata: &fs::Metadata) -> Found {
    let kind = metadata.file_type();
    Found {
        kind: if kind.is_file() {
            Kind::File
        } else if kind.is_dir() {
            Kind::Directory
        } else if kind.is_symlink() {
            Kind::Symlink
        } else if kind.is_fifo() || kind.is_char_device() || kind.is_block_device() {
            Kind::Stream
        } else {
            Kind::Other
        },
        size: metadata.len(),
        mode: (metadata.mode() & 0o7777) as u16,
        modified: Timestamp {
            nanos: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        },
        identity: Identity::Local(metadata.dev(), metadata.ino()),
        sparse: metadata.blocks() * 512 < metadata.len(),
    }
}

fn pool_found(pool: &Pool, attributes: &Attributes) -> Result<Found> {
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
        // The pool does not say where holes are: they are found by looking for zeros.
        sparse: true,
    })
}

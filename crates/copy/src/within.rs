//! A place in a pool below a directory that the user named: reached from the directory's inode, one name after the
//! other, and never through a symbolic link, whatever others rename while the copy runs. A directory's path is walked
//! once, not again for each file in it.

use ramlace_base::path::{escaped, join};
use ramlace_base::{Error, ErrorKind, InodeId, Name, Result};
use ramlace_client::{File, NewMode, OpenOptions, Pool};
use ramlace_wire::namespace::{Found, SetAttributes};
use ramlace_wire::{Attributes, FileKind};

/// A place below a directory that the user named.
#[derive(Clone)]
pub struct Within {
    pool: Pool,
    at: At,
    path: Vec<u8>,
}

#[derive(Clone)]
enum At {
    /// A directory, itself.
    Directory(InodeId),
    /// What has a name in a directory, if anything.
    Entry(InodeId, Vec<u8>),
}

impl Within {
    /// The directory that the user named. Links on the way to it are the user's own affair.
    pub fn of(pool: &Pool, path: &[u8]) -> Result<Within> {
        let Attributes { inode, kind, .. } = pool.stat(path)?.attributes;
        check_directory(kind).map_err(|error| error.context(escaped(path)))?;
        Ok(Within { pool: pool.clone(), at: At::Directory(inode), path: path.to_vec() })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The path for people.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// What is here is a directory: it, as where the places below it begin.
    pub fn inside(&self) -> Result<Within> {
        let inode = match self.at {
            At::Directory(inode) => inode,
            At::Entry(..) => {
                let found = self.found()?;
                check_directory(found.kind).map_err(|error| self.name(error))?;
                found.inode
            }
        };
        Ok(Within { at: At::Directory(inode), ..self.clone() })
    }

    /// The entry `name` of this directory, which is [`Within::inside`] of one.
    pub fn entry(&self, name: &[u8]) -> Within {
        let At::Directory(directory) = self.at else { panic!("entries are asked for inside a directory") };
        Within {
            pool: self.pool.clone(),
            at: At::Entry(directory, name.to_vec()),
            path: join(&self.path, name),
        }
    }

    /// What is here; of a link: the link.
    pub fn look(&self) -> Result<Attributes> {
        let found = match self.at {
            At::Directory(inode) => self.pool.raw().info(inode).map(|info| info.attributes),
            At::Entry(..) => match self.found()? {
                Found { attributes: Some(attributes), .. } => Ok(attributes),
                Found { inode, .. } => self.pool.raw().info(inode).map(|info| info.attributes),
            },
        };
        found.map_err(|error| self.name(error))
    }

    fn found(&self) -> Result<Found> {
        self.as_entry(|directory, name| self.pool.raw().lookup(directory, name))
    }

    /// Does something with the directory in which this place has its name.
    fn as_entry<T>(&self, act: impl FnOnce(InodeId, &Name) -> Result<T>) -> Result<T> {
        let (directory, name) = self.place()?;
        act(directory, &name).map_err(|error| self.name(error))
    }

    fn place(&self) -> Result<(InodeId, Name)> {
        match &self.at {
            At::Directory(_) => {
                Err(self.name(Error::new(ErrorKind::IsDirectory, "it is the directory to work in")))
            }
            At::Entry(directory, name) => {
                let name = Name::new(name.clone()).map_err(|error| self.name(error))?;
                Ok((*directory, name))
            }
        }
    }

    fn name(&self, error: Error) -> Error {
        error.context(escaped(&self.path))
    }

    /// Opens what is here, or makes it.
    pub fn open(&self, options: &OpenOptions) -> Result<File> {
        let (directory, name) = self.place()?;
        self.pool.open_at(directory, &name, &self.path, options)
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: NewMode) -> Result<()> {
        self.as_entry(|directory, name| self.pool.raw().make_directory(directory, name, mode).map(drop))
    }

    /// Sets a directory's permission bits.
    pub fn set_mode(&self, mode: u16) -> Result<()> {
        let At::Directory(inode) = self.inside()?.at else { unreachable!("it is a directory") };
        let change = SetAttributes { mode: Some(mode), ..SetAttributes::nothing(inode) };
        self.pool.raw().set_attributes(&change).map(drop).map_err(|error| self.name(error))
    }

    /// The target of a link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        let found = self.found()?;
        if found.kind != FileKind::Symlink {
            return Err(self.name(Error::new(ErrorKind::Invalid, "it is no symbolic link")));
        }
        self.pool.raw().read_link(found.inode).map_err(|error| self.name(error))
    }

    /// Makes a link.
    pub fn make_link(&self, target: &[u8]) -> Result<()> {
        self.as_entry(|directory, name| self.pool.raw().symlink(directory, name, target).map(drop))
    }

    /// Removes a file or a link.
    pub fn unlink(&self) -> Result<()> {
        self.as_entry(|directory, name| self.pool.raw().unlink(directory, name))
    }
}

fn check_directory(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Directory => Ok(()),
        _ => Err(Error::new(ErrorKind::NotDirectory, "it is no directory")),
    }
}

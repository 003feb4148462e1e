//! An open file of either side.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, SystemTime};

use ramlace_base::{Error, ErrorKind, Result, Timestamp};
use ramlace_client::OpenOptions;
use ramlace_wire::namespace::{NewMode, SetAttributes, TimeReason};
use rustix::fs::{OFlags, SeekFrom};

use crate::closing::close;
use crate::options::CopyOptions;
use crate::side::{Found, Identity, Kind, Side, local_found, pool_found};
use crate::transfer::FileTask;

/// An open file of either side.
pub enum OpenFile {
    /// On this machine.
    Local(fs::File),
    /// In a pool.
    Pool(ramlace_client::File),
}

/// A destination that was opened.
pub struct Created {
    /// The file, empty.
    pub file: OpenFile,
    /// It was not there before.
    pub fresh: bool,
}

impl OpenFile {
    /// Opens for reading.
    pub fn reading(side: &Side) -> Result<OpenFile> {
        match side {
            Side::Local(path) => fs::File::open(path).map(OpenFile::Local).map_err(|error| side.tell(&error)),
            Side::Below(below) => local(side, below.open(OFlags::RDONLY, 0)),
            Side::Pool(..) | Side::Within(_) => in_pool(side, &OpenOptions::reading()),
        }
    }

    /// Creates a file like the source, or empties the one that is there.
    pub fn writing(task: &FileTask, options: &CopyOptions) -> Result<Created> {
        let (side, source) = (&task.to, &task.found);
        let mode = source.mode & 0o777;
        match create(side, mode, options) {
            Err(error) if error.kind() == ErrorKind::Exists => {}
            created => return created.map(|file| Created { file, fresh: true }),
        }
        match side.look(true)? {
            Some(found) if options.mounts.are_one(found.identity, source.identity) => Err(Error::new(
                ErrorKind::Invalid,
                format!("{} is the same file as the source", side.shown()),
            )),
            Some(found) if found.kind == Kind::Directory => Err(Error::new(
                ErrorKind::IsDirectory,
                format!("{} is a directory, which no file overwrites", side.shown()),
            )),
            // The user named a directory, not a link that another user has put into it.
            Some(found) if found.kind == Kind::Symlink => Err(Error::new(
                ErrorKind::Loop,
                format!(
                    "will not copy {} through the symbolic link {}; remove the link first",
                    task.from.shown(),
                    side.shown()
                ),
            )),
            Some(_)
                if options.hints != Default::default()
                    && matches!(side, Side::Pool(..) | Side::Within(_)) =>
            {
                Err(layout_is_fixed(side))
            }
            Some(_) => empty(side).map(|file| Created { file, fresh: false }),
            None if matches!(side, Side::Below(_) | Side::Within(_)) => Err(Error::new(
                ErrorKind::Stale,
                format!("{} went away while it was copied; copy it again", side.shown()),
            )),
            // A link that leads nowhere: the file is made where it points.
            None => through_link(side, mode, options).map(|file| Created { file, fresh: false }),
        }
    }

    /// What this source is now that it is open: what its directory's listing said of it may be minutes old.
    pub fn found(&self, listed: &Found, side: &Side) -> Result<Found> {
        let found = match self {
            OpenFile::Local(file) => {
                local_found(&rustix::fs::fstat(file).map_err(|errno| side.tell(&errno.into()))?)
            }
            // The answer to the open brought the size; where it is what was listed, no further request is made.
            OpenFile::Pool(file) if is_as_listed(file, listed) => *listed,
            OpenFile::Pool(file) => pool_found(file.pool(), &file.info()?.attributes)?,
        };
        if found.kind != Kind::File {
            return Err(Error::new(
                ErrorKind::Stale,
                format!("{} was replaced while it was copied; copy it again", side.shown()),
            ));
        }
        Ok(found)
    }

    /// Reads until the buffer is full or the file ends.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            OpenFile::Local(file) => {
                let mut done = 0;
                while done < buffer.len() {
                    match file.read_at(&mut buffer[done..], offset + done as u64) {
                        Ok(0) => break,
                        Ok(count) => done += count,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(Error::from_io(&error, "reading")),
                    }
                }
                Ok(done)
            }
            OpenFile::Pool(file) => file.read_at(buffer, offset),
        }
    }

    /// Writes all bytes; calls `written` with what has arrived, also when it fails.
    pub fn write_at(&self, bytes: &[u8], offset: u64, mut written: impl FnMut(u64)) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let count = match self {
                OpenFile::Local(file) => match file.write_at(&bytes[done..], at) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    result => result.map_err(|error| Error::from_io(&error, "writing"))?,
                },
                OpenFile::Pool(file) => file.write_at(&bytes[done..], at)?,
            };
            if count == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "nothing more can be written"));
            }
            done += count;
            written(count as u64);
        }
        Ok(())
    }

    /// Where data begins at or after `offset`; `None` when only a hole follows. A side that does
    /// not know has data everywhere.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        match self {
            OpenFile::Local(file) => match rustix::fs::seek(file, SeekFrom::Data(offset)) {
                Ok(data) => Some(data),
                Err(rustix::io::Errno::NXIO) => None,
                Err(_) => Some(offset),
            },
            OpenFile::Pool(_) => Some(offset),
        }
    }

    /// The size of a source now.
    pub fn size(&self) -> Result<u64> {
        match self {
            OpenFile::Local(file) => match rustix::fs::fstat(file) {
                Ok(found) => Ok(found.st_size as u64),
                Err(errno) => Err(Error::from_io(&errno.into(), "looking at it")),
            },
            OpenFile::Pool(file) => file.size(),
        }
    }

    /// Sets the size.
    pub fn set_size(&self, size: u64) -> Result<()> {
        match self {
            OpenFile::Local(file) => {
                file.set_len(size).map_err(|error| Error::from_io(&error, "setting the size"))
            }
            OpenFile::Pool(file) => file.truncate(size),
        }
    }

    /// Closes a finished copy and gives it the source's time.
    pub fn finish(self, modified: Timestamp) -> Result<()> {
        match self {
            OpenFile::Local(file) => {
                file.set_modified(system_time(modified))
                    .map_err(|error| Error::from_io(&error, "setting the time of change"))?;
                close(file).map_err(|error| Error::from_io(&error, "closing"))
            }
            OpenFile::Pool(file) => {
                // Before the close, so that the close has no time of writing left to report.
                let request = SetAttributes {
                    inode: file.inode(),
                    mode: None,
                    uid: None,
                    gid: None,
                    accessed: None,
                    modified: Some(modified),
                    times: TimeReason::Chosen,
                };
                file.pool().raw().set_attributes(&request)?;
                file.close()
            }
        }
    }
}

/// A layout was asked for, and a file that is there has another.
pub fn layout_is_fixed(side: &Side) -> Error {
    let shown = side.shown();
    let text = format!("{shown} is there, and its layout is fixed; remove it first, or copy to a new name");
    Error::new(ErrorKind::Exists, text)
}

fn is_as_listed(file: &ramlace_client::File, listed: &Found) -> bool {
    let is_one = matches!(listed.identity, Identity::Pool(_, inode) if inode == file.inode());
    is_one && file.known_size() == listed.size
}

fn local(side: &Side, opened: std::io::Result<OwnedFd>) -> Result<OpenFile> {
    opened.map(|file| OpenFile::Local(file.into())).map_err(|error| side.tell(&error))
}

fn in_pool(side: &Side, wanted: &OpenOptions) -> Result<OpenFile> {
    let opened = match side {
        Side::Pool(pool, path) => pool.open(path, wanted),
        Side::Within(within) => within.open(wanted),
        Side::Local(_) | Side::Below(_) => unreachable!("it is on this machine"),
    };
    opened.map(OpenFile::Pool)
}

/// A new file; `Exists` when the name is taken.
fn create(side: &Side, mode: u16, options: &CopyOptions) -> Result<OpenFile> {
    match side {
        Side::Local(path) => fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode.into())
            .open(path)
            .map(OpenFile::Local)
            .map_err(|error| side.tell(&error)),
        Side::Below(below) => local(side, below.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)),
        Side::Pool(..) | Side::Within(_) => {
            let wanted = OpenOptions {
                write: true,
                create: true,
                exclusive: true,
                mode: NewMode { mode, umask: options.umask },
                hints: options.hints,
                ..OpenOptions::default()
            };
            in_pool(side, &wanted)
        }
    }
}

/// The file that is there, cut to nothing.
fn empty(side: &Side) -> Result<OpenFile> {
    match side {
        Side::Local(path) => fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)
            .map(OpenFile::Local)
            .map_err(|error| side.tell(&error)),
        Side::Below(below) => local(side, below.open(OFlags::WRONLY | OFlags::TRUNC, 0)),
        Side::Pool(..) | Side::Within(_) => {
            in_pool(side, &OpenOptions { write: true, truncate: true, ..OpenOptions::default() })
        }
    }
}

fn through_link(side: &Side, mode: u16, options: &CopyOptions) -> Result<OpenFile> {
    match side {
        Side::Local(path) => fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode.into())
            .open(path)
            .map(OpenFile::Local)
            .map_err(|error| side.tell(&error)),
        Side::Below(_) | Side::Within(_) => unreachable!("no link is followed below what was named"),
        Side::Pool(pool, path) => {
            let wanted = OpenOptions {
                write: true,
                create: true,
                truncate: true,
                mode: NewMode { mode, umask: options.umask },
                hints: options.hints,
                ..OpenOptions::default()
            };
            pool.open(path, &wanted).map(OpenFile::Pool)
        }
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let part = Duration::from_nanos(time.nanos.unsigned_abs());
    if time.nanos >= 0 { SystemTime::UNIX_EPOCH + part } else { SystemTime::UNIX_EPOCH - part }
}

//! A place on this machine below a directory that the user named: reached from that directory's descriptor, one
//! name after the other, and never through a symbolic link, even if one is put there while the copy runs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};

/// A directory on the way is no more than a place to go on from.
const ABOVE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name, and what has it.
type Entry = (Vec<u8>, io::Result<Stat>);

/// A place below a directory that the user named.
#[derive(Clone)]
pub struct Below {
    top: Arc<OwnedFd>,
    /// The names that lead to it; none: the directory itself.
    names: Vec<OsString>,
    path: PathBuf,
}

impl Below {
    /// The directory that the user named. Links on the way to it are the user's own affair.
    pub fn of(path: &Path) -> io::Result<Below> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Below { top: Arc::new(top), names: Vec::new(), path: path.to_owned() })
    }

    /// The path for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entry `name` of this directory.
    pub fn entry(&self, name: &[u8]) -> Below {
        let name = OsStr::from_bytes(name);
        let mut names = self.names.clone();
        names.push(name.to_owned());
        Below { top: self.top.clone(), names, path: self.path.join(name) }
    }

    /// Does something with the directory in which this place has its name.
    fn at<T>(&self, act: impl FnOnce(BorrowedFd<'_>, &OsStr) -> rustix::io::Result<T>) -> io::Result<T> {
        let Some((last, above)) = self.names.split_last() else {
            return Ok(act(self.top.as_fd(), OsStr::new("."))?);
        };
        let mut here: Option<OwnedFd> = None;
        for name in above {
            let from = here.as_ref().map_or(self.top.as_fd(), AsFd::as_fd);
            here = Some(rustix::fs::openat(from, name, ABOVE, Mode::empty())?);
        }
        Ok(act(here.as_ref().map_or(self.top.as_fd(), AsFd::as_fd), last)?)
    }

    /// What is there; of a link: the link.
    pub fn look(&self) -> io::Result<Stat> {
        self.at(|directory, name| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Opens what is there, or makes it; `mode` loses the bits of the umask, as at every creation.
    pub fn open(&self, flags: OFlags, mode: u16) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.at(|directory, name| {
            rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(mode.into()))
        })
    }

    /// The entries of this directory, but for itself and the one above: each with what it is, as far as that can be
    /// seen.
    pub fn list(&self) -> io::Result<impl Iterator<Item = io::Result<Entry>> + use<>> {
        let directory = self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let entries = Dir::read_from(&directory)?;
        let look = move |entry: rustix::io::Result<rustix::fs::DirEntry>| {
            let entry = entry?;
            let found = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            Ok((entry.file_name().to_bytes().to_vec(), found.map_err(io::Error::from)))
        };
        let is_own = |entry: &rustix::io::Result<rustix::fs::DirEntry>| {
            entry.as_ref().is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
        };
        Ok(entries.filter(move |entry| !is_own(entry)).map(look))
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: u16) -> io::Result<()> {
        self.at(|directory, name| rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(mode.into())))
    }

    /// Sets a directory's permission bits.
    pub fn set_mode(&self, mode: u16) -> io::Result<()> {
        let directory = self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        Ok(rustix::fs::fchmod(directory, Mode::from_raw_mode(mode.into()))?)
    }

    /// The target of a link.
    pub fn read_link(&self) -> io::Result<Vec<u8>> {
        self.at(|directory, name| rustix::fs::readlinkat(directory, name, Vec::new()))
            .map(std::ffi::CString::into_bytes)
    }

    /// Makes a link.
    pub fn make_link(&self, target: &[u8]) -> io::Result<()> {
        self.at(|directory, name| rustix::fs::symlinkat(target, directory, name))
    }

    /// Removes a file or a link.
    pub fn unlink(&self) -> io::Result<()> {
        self.at(|directory, name| rustix::fs::unlinkat(directory, name, AtFlags::empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 111.1
    #[test]
    fn a_directory_that_becomes_a_link_leads_nowhere() {
        let scratch = std::env::temp_dir().join(format!("rl-below-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("top/a/b")).unwrap();
        std::fs::create_dir(scratch.join("other")).unwrap();
        let place = Below::of(&scratch.join("top")).unwrap().entry(b"a").entry(b"b").entry(b"file");
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        drop(place.open(create, 0o666).unwrap());
        assert_eq!(place.look().unwrap().st_size, 0);
        // A link is put in its way while the copy runs.
        std::fs::rename(scratch.join("top/a"), scratch.join("top/was")).unwrap();
        std::os::unix::fs::symlink(scratch.join("other"), scratch.join("top/a")).unwrap();
        std::fs::create_dir(scratch.join("other/b")).unwrap();
        for refused in [
            place.open(create, 0o666).err(),
            place.make_directory(0o777).err(),
            place.make_link(b"x").err(),
            place.look().err(),
            place.unlink().err(),
            place.set_mode(0o777).err(),
        ] {
            assert_eq!(refused.unwrap().raw_os_error(), Some(libc::ENOTDIR));
        }
        assert_eq!(std::fs::read_dir(scratch.join("other/b")).unwrap().count(), 0);
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}

//! The server's own files: operation log, snapshots, map. They live in the store and outlive the process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Result, limits};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::Store;
use crate::pool::{Pool, Purpose};
use crate::sys::{self, PAGE_BYTES};

/// A file of the server, written at its end only.
///
/// Nothing needs syncing: the bytes are in the store's memory when `append` returns, and outlive
/// the process as the store does.
#[derive(Debug)]
pub struct MetaFile {
    name: String,
    file: OwnedFd,
    pool: Arc<Pool>,
    length: u64,
}

impl MetaFile {
    /// Adds `bytes` at the end: all of them or, with an error, none.
    ///
    /// Errors: `NoSpace` when only the half of the headroom is left that [`MetaFile::append_urgent`] may use.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_for(Purpose::Meta, bytes)
    }

    /// As `append`, also from the last of the headroom: for what frees memory (deletes, truncations,
    /// snapshots that let a log go).
    pub fn append_urgent(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_for(Purpose::UrgentMeta, bytes)
    }

    /// Cuts the file to `length` bytes, such as to drop a torn last record. Never makes it longer.
    pub fn cut(&mut self, length: u64) -> Result<()> {
        let before = self.size()?;
        sys::tell(rustix::fs::ftruncate(&self.file, length.min(self.length)), self.doing("cutting"))?;
        self.length = self.length.min(length);
        self.pool.account(Purpose::Meta, 0, before, self.size()?);
        Ok(())
    }

    /// All its bytes. The caller bounds the file by how much it appends.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let length = usize::try_from(self.length).map_err(|_| sys::fatal("a log larger than memory"))?;
        let mut bytes = vec![0; length];
        let read = sys::tell(sys::read_all_at(&self.file, &mut bytes, 0), self.doing("reading"))?;
        if read < length {
            return Err(Error::new(ErrorKind::Corrupt, format!("the store's file '{}' was cut", self.name)));
        }
        Ok(bytes)
    }

    /// Bytes in it.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its name in the store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn append_for(&mut self, purpose: Purpose, bytes: &[u8]) -> Result<()> {
        let end = self.length + bytes.len() as u64;
        let needed = end.next_multiple_of(PAGE_BYTES) - self.length.next_multiple_of(PAGE_BYTES);
        if needed == 0 {
            // The last page has room: nothing to promise, nothing to count.
            return self.write(bytes, end);
        }
        let before = self.size()?;
        self.pool.promise(purpose, needed).map_err(|error| error.context(self.doing("appending to")))?;
        let mut written = self.write(bytes, end);
        if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
            && self.pool.shrink_ballast()?
        {
            // A client that maps a lane has taken memory that was not counted: the reserve is there for the
            // log.
            written = self.write(bytes, end);
        }
        let after = self.size().unwrap_or(before);
        self.pool.account(purpose, needed, before, after);
        written
    }

    fn write(&mut self, bytes: &[u8], end: u64) -> Result<()> {
        let written =
            sys::tell(sys::write_all_at(&self.file, bytes, self.length), self.doing("appending to"));
        if written.is_err() {
            // Half a record must not be found by the next process.
            sys::tell(rustix::fs::ftruncate(&self.file, self.length), self.doing("restoring"))?;
        } else {
            self.length = end;
        }
        written
    }

    fn size(&self) -> Result<u64> {
        Ok(sys::file_size(&self.file, self.doing("looking at"))?.allocated)
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} the store's file '{}'", self.name)
    }
}

impl Store {
    /// Opens a file of the server for appending; makes it if it is not there.
    ///
    /// Open each name once at a time: a second handle would not see the first one's end.
    /// Errors: `Invalid` for a name that is no plain word.
    pub fn meta_append_file(&mut self, name: &str) -> Result<MetaFile> {
        check_name(name)?;
        let doing = format!("opening the store's file '{name}'");
        let file = sys::tell(sys::open_file(&*self.meta_directory, name, OFlags::CREATE), &doing)?;
        let length = sys::file_size(&file, &doing)?.length;
        Ok(MetaFile { name: name.to_owned(), file, pool: Arc::clone(&self.pool), length })
    }

    /// Names of the server's files, sorted.
    pub fn meta_names(&self) -> Result<Vec<String>> {
        let mut names = sys::names(&*self.meta_directory, "reading the names of the store's files")?;
        names.sort();
        Ok(names)
    }

    /// Gives the finished file `temporary` the name `name`; a process killed at any moment leaves the old
    /// or the new one. The memory of the old one is freed. Errors: `NotFound`, `Invalid`.
    pub fn meta_rename_over(&mut self, temporary: &str, name: &str) -> Result<()> {
        check_name(temporary)?;
        check_name(name)?;
        let directory = Arc::clone(&self.meta_directory);
        let replaced = self.meta_existing(name)?;
        sys::tell(
            rustix::fs::renameat(&*directory, temporary, &*directory, name),
            format_args!("replacing the store's file '{name}'"),
        )?;
        replaced.filter(|_| temporary != name).map_or(Ok(()), |file| self.meta_empty(&file, name))
    }

    /// Removes a file of the server and frees its memory, also while it is open. Errors: `NotFound`, `Invalid`.
    pub fn meta_remove(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        let file = self.meta_existing(name)?;
        sys::tell(
            rustix::fs::unlinkat(&*self.meta_directory, name, AtFlags::empty()),
            format_args!("removing the store's file '{name}'"),
        )?;
        file.map_or(Ok(()), |file| self.meta_empty(&file, name))
    }

    fn meta_existing(&self, name: &str) -> Result<Option<OwnedFd>> {
        match sys::open_file(&*self.meta_directory, name, OFlags::empty()) {
            Err(Errno::NOENT) => Ok(None),
            opened => sys::tell(opened, format_args!("opening the store's file '{name}'")).map(Some),
        }
    }

    /// A file without a name keeps its memory while a process has it open; without bytes it does not.
    fn meta_empty(&self, file: &OwnedFd, name: &str) -> Result<()> {
        let doing = format!("freeing the store's file '{name}'");
        let before = sys::file_size(file, &doing)?.allocated;
        sys::tell(rustix::fs::ftruncate(file, 0), &doing)?;
        let after = sys::file_size(file, &doing)?.allocated;
        self.pool.account(Purpose::Meta, 0, before, after);
        Ok(())
    }
}

/// Memory of all files in a directory.
pub(crate) fn allocated_bytes(directory: &OwnedFd) -> Result<u64> {
    sys::names(directory, "counting the store's files")?
        .iter()
        .try_fold(0, |sum, name| Ok(sum + file_bytes(directory.as_fd(), name)?))
}

/// Memory of one file, by name.
pub(crate) fn file_bytes(directory: impl AsFd, name: &str) -> Result<u64> {
    let doing = format!("counting '{name}'");
    let stat = sys::tell(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW), doing)?;
    Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
}

fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.starts_with('.')
        || name.len() > limits::NAME_BYTES_MAX
        || !name.chars().all(good)
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("'{}' cannot name a file of the store", name.escape_default()),
        ));
    }
    Ok(())
}

//! Small words over the kernel's: sizes, errors, holes.

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

/// A page of memory: what tmpfs counts in.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Turns an errno into ramlace's error, with a description of what was being done.
pub(crate) fn tell<T>(result: std::result::Result<T, Errno>, doing: impl Display) -> Result<T> {
    result.map_err(|errno| Error::from_io(&errno.into(), doing))
}

/// A bug or a broken machine.
pub(crate) fn fatal(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Fatal, message)
}

/// Length and allocated memory of a file, both in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSize {
    pub(crate) length: u64,
    pub(crate) allocated: u64,
}

/// What the kernel says about a file's size.
pub(crate) fn file_size(file: impl AsFd, doing: impl Display) -> Result<FileSize> {
    let stat = tell(rustix::fs::fstat(file), doing)?;
    Ok(FileSize {
        length: u64::try_from(stat.st_size).unwrap_or(0),
        allocated: u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES,
    })
}

/// Opens a file under `directory` for reading and writing.
pub(crate) fn open_file(directory: impl AsFd, name: &str, create: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Makes `name` under `directory` unless it is there, and opens it.
pub(crate) fn open_directory(directory: impl AsFd, name: &str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(&directory, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return tell(Err(errno), format_args!("making '{name}' in the store")),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    tell(
        rustix::fs::openat(directory, name, flags, Mode::empty()),
        format_args!("opening '{name}' in the store"),
    )
}

/// Takes memory for the bytes of `range`; the file's length stays.
pub(crate) fn allocate(file: impl AsFd, range: ByteRange) -> rustix::io::Result<()> {
    retry(|| rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, range.start, range.length()))
}

/// Frees the whole pages in `range` and zeroes the rest of it; the file's length stays.
pub(crate) fn punch(file: impl AsFd, range: ByteRange) -> rustix::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry(|| rustix::fs::fallocate(&file, flags, range.start, range.length()))
}

/// Repeats a call that a signal broke off.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The next range of data at or after `from`, clipped to `end`; `None` when only a hole is left.
pub(crate) fn next_data(file: impl AsFd, from: u64, end: u64) -> rustix::io::Result<Option<ByteRange>> {
    if from >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(&file, SeekFrom::Data(from)) {
        Ok(start) if start < end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    match rustix::fs::seek(&file, SeekFrom::Hole(start)) {
        Ok(hole) => Ok(Some(ByteRange { start, end: hole.min(end) })),
        // A client cut the file between the two calls.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The next hole at or after `from`; behind the end of the file there is one.
pub(crate) fn next_hole(file: impl AsFd, from: u64) -> rustix::io::Result<u64> {
    match rustix::fs::seek(&file, SeekFrom::Hole(from)) {
        Err(Errno::NXIO) => Ok(from),
        found => found,
    }
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_all_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = retry(|| rustix::io::pwrite(&file, bytes, offset))?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends; says how many bytes there were.
pub(crate) fn read_all_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let read = retry(|| rustix::io::pread(&file, &mut buffer[done..], offset + done as u64))?;
        if read == 0 {
            break;
        }
        done += read;
    }
    Ok(done)
}

/// The names in a directory, without `.` and `..`.
pub(crate) fn names(directory: impl AsFd, doing: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in tell(rustix::fs::Dir::read_from(directory), doing)? {
        let entry = tell(entry, doing)?;
        let name = entry.file_name().to_str().map_err(|_| fatal(format!("{doing}: a name is not text")))?;
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

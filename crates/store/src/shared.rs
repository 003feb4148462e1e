//! The fallback: a directory in the machine's shared memory, held by a lock while it is in use.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::sys;

const SHARED_MEMORY: &str = "/dev/shm";

/// A store in shared memory whose server is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleStore {
    /// Its directory.
    pub path: String,
    /// Memory that it still holds, in bytes.
    pub allocated_bytes: u64,
}

/// Makes `/dev/shm/ramlace-UID-NAME-RANDOM` and locks it; the lock lives as long as the descriptor.
pub(crate) fn create(size_bytes: u64, name: &str) -> Result<(OwnedFd, String)> {
    let doing = format!("making a store in {SHARED_MEMORY}");
    let stat = sys::tell(rustix::fs::statvfs(SHARED_MEMORY), &doing)?;
    let available = stat.f_bavail * stat.f_frsize;
    // A mount of shared memory without a limit reports no blocks at all.
    if stat.f_blocks > 0 && size_bytes > available {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "a store of {} does not fit {SHARED_MEMORY}, which has {} left; ask for less or enlarge it \
                 (mount -o remount,size=... {SHARED_MEMORY})",
                format_bytes(size_bytes),
                format_bytes(available)
            ),
        ));
    }
    let mut random = [0u8; 8];
    sys::tell(rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()), &doing)?;
    let path = format!("{SHARED_MEMORY}/{}{name}-{:016x}", prefix(), u64::from_ne_bytes(random));
    sys::tell(rustix::fs::mkdir(&path, Mode::RWXU), &doing)?;
    let directory =
        open_locked(&path)?.ok_or_else(|| sys::fatal(format!("{path} was taken by another process")))?;
    Ok((directory, path))
}

/// Stores of this user in shared memory that no process holds any more.
///
/// Errors: what the kernel says when `/dev/shm` cannot be read.
pub fn find_stale() -> Result<Vec<StaleStore>> {
    let mut stale = Vec::new();
    for path in own_directories()? {
        if open_locked(&path)?.is_some() {
            let allocated_bytes = tree_bytes(&path);
            stale.push(StaleStore { path, allocated_bytes });
        }
    }
    Ok(stale)
}

/// Removes a stale store. Errors: `Busy` when a process holds it again, `Invalid` when it is no store of this user.
pub fn remove_stale(stale: &StaleStore) -> Result<()> {
    if !own_directories()?.contains(&stale.path) {
        return Err(Error::new(ErrorKind::Invalid, format!("{} is no store of this user", stale.path)));
    }
    let lock = open_locked(&stale.path)?;
    if lock.is_none() {
        return Err(Error::new(ErrorKind::Busy, format!("{} is in use by a running server", stale.path)));
    }
    remove_tree(&stale.path)
}

/// Removes a store's directory with all that is in it.
pub(crate) fn remove_tree(path: &str) -> Result<()> {
    fs::remove_dir_all(path)
        .map_err(|error| Error::from_io(&error, format_args!("removing the store {path}")))
}

fn prefix() -> String {
    format!("ramlace-{}-", rustix::process::getuid().as_raw())
}

/// This user's directories with our prefix. Others may plant names there: owner and kind are checked.
fn own_directories() -> Result<Vec<String>> {
    let entries = fs::read_dir(SHARED_MEMORY)
        .map_err(|error| Error::from_io(&error, format_args!("reading {SHARED_MEMORY}")))?;
    let uid = rustix::process::getuid().as_raw();
    Ok(entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix()))
        .filter(|entry| entry.path().symlink_metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid))
        .filter_map(|entry| entry.path().to_str().map(str::to_owned))
        .collect())
}

/// Opens and locks the directory; `None` when it is gone or another process has locked it.
fn open_locked(path: &str) -> Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => sys::tell(opened, format_args!("opening the store {path}"))?,
    };
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => sys::tell(Err(errno), format_args!("locking the store {path}")),
    }
}

/// Memory of all files below a directory; what vanishes meanwhile counts nothing.
fn tree_bytes(path: &str) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok().map(|meta| (entry, meta)))
        .map(|(entry, meta)| {
            let below = if meta.is_dir() { entry.path().to_str().map_or(0, tree_bytes) } else { 0 };
            below + meta.blocks() * 512
        })
        .sum()
}

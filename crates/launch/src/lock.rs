//! One `up` or `down` of a pool at a time: a lock on the pool's directory.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolDirectory;
use rustix::fs::{FlockOperation, flock};

/// The lock; it ends with this.
#[derive(Debug)]
pub struct DirectoryLock {
    _directory: File,
}

impl DirectoryLock {
    /// Locks a pool's directory, which must be there.
    pub fn take(directory: &PoolDirectory) -> Result<DirectoryLock> {
        let shown = directory.path().display();
        let doing = |error| Error::from_io(&error, format!("locking {shown}"));
        let file = File::open(directory.path()).map_err(doing)?;
        let busy = || {
            Error::new(
                ErrorKind::Busy,
                format!(
                    "another 'ramlace up' or 'ramlace down' of pool '{}' is under way; try again when it has ended",
                    directory.name()
                ),
            )
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy()),
            Err(errno) => return Err(doing(errno.into())),
        }
        // The other may have removed the directory in the moment before this lock was granted.
        let locked = file.metadata().map_err(doing)?;
        match std::fs::symlink_metadata(directory.path()) {
            Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => {
                Ok(DirectoryLock { _directory: file })
            }
            _ => Err(busy()),
        }
    }
}

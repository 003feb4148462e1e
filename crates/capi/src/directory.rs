//! Listing directories.

use std::ffi::c_int;

use ramlace_base::{Error, ErrorKind};
use ramlace_client::ReadDir;
use ramlace_sync::Mutex;

use crate::answers::done;
use crate::failure::guard;
use crate::pass::{Out, Text};
use crate::pool::connected;
use crate::table::{self, Kept};
use crate::types::{ramlace_directory, ramlace_entry, ramlace_pool};

/// A directory being listed.
pub(crate) struct Stream {
    entries: Mutex<ReadDir>,
    /// The process that opened it: a copy in a forked child may have been copied in mid-change.
    process: u32,
}

impl Kept for Stream {
    const NAME: &'static str = "directory";
}

/// Begins to list the directory at path. Entries "." and ".." are not listed. An entry that is
/// there from the beginning to the end of the listing is listed exactly once; one that comes or
/// goes meanwhile may be listed or not. Returns NULL and sets errno: ENOENT, ENOTDIR, EACCES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_opendir(pool: *mut ramlace_pool, path: Text) -> *mut ramlace_directory {
    guard(|| {
        let connected = connected(pool)?;
        let path = connected.path(&path)?;
        let entries = Mutex::new(connected.pool.read_dir(path)?);
        Ok(table::keep(Stream { entries, process: std::process::id() }))
    })
}

/// Puts the next entry into the program's structure. Returns 1, or 0 after the last entry, or -1
/// and sets errno: EBADF when this is no open directory, or was opened before a fork by the
/// parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_readdir(
    directory: *mut ramlace_directory,
    entry: Out<ramlace_entry>,
) -> c_int {
    guard(|| {
        let stream = table::find::<Stream, _>(directory)?;
        let found = entry.put_some("struct ramlace_entry", || {
            if stream.process != std::process::id() {
                let text = "the directory was opened before the fork; open it again in the child";
                return Err(Error::new(ErrorKind::BadHandle, text));
            }
            let next = stream.entries.lock().next().transpose()?;
            Ok(next.map(|next| ramlace_entry::from(&next)))
        })?;
        Ok(c_int::from(found))
    })
}

/// Ends a listing; the handle is invalid afterwards. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_closedir(directory: *mut ramlace_directory) -> c_int {
    done(|| table::take::<Stream, _>(directory).map(drop))
}

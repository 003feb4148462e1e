//! Range locks of an open file.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::LockKind;
use ramlace_wire::Mode;

use crate::answers::done;
use crate::failure::invalid;
use crate::open::open_file;
use crate::pass::range_of;
use crate::types::ramlace_file;
use crate::views::{bytes_of, publish, refresh_copies};

/// For ramlace_lock: others may hold shared locks of the same bytes.
pub const RAMLACE_LOCK_SHARED: c_int = 1;
/// For ramlace_lock: nobody else holds a lock of the same bytes.
pub const RAMLACE_LOCK_EXCLUSIVE: c_int = 2;

/// Locks length bytes from offset on, 0 for all that follow, for this open file: against every other
/// open file of any process and machine, and against programs that lock by fcntl on a mount. kind is
/// RAMLACE_LOCK_SHARED or RAMLACE_LOCK_EXCLUSIVE; what this file held of these bytes before is replaced.
/// Waits for timeout_millis at most, for ever when that is negative; callers that wait get it in the order
/// in which they came. A lock ends by ramlace_unlock, with the file, and with the process; a forked child
/// has none. Returns 0, or -1 and sets errno: EAGAIN with a timeout of 0, ETIMEDOUT with another, when
/// others hold them; EBADF for an exclusive lock of a file that was not opened for writing; ENOLCK for
/// too many locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_lock(
    file: *mut ramlace_file,
    offset: i64,
    length: i64,
    kind: c_int,
    timeout_millis: i64,
) -> c_int {
    done(|| {
        let open = open_file(file)?;
        let (range, kind) = (range_of(offset, length)?, kind_of(kind)?);
        // Before the lock is taken: what is refused leaves nothing locked.
        let bytes = bytes_of(range);
        if timeout_millis != 0 {
            let timeout = u64::try_from(timeout_millis).ok().map(Duration::from_millis);
            open.file.lock(range, kind, timeout)?;
        } else if !open.file.try_lock(range, kind)? {
            return Err(Error::new(ErrorKind::Retry, "others hold these bytes locked"));
        }
        if open.file.sharing() != Mode::Relaxed {
            return Ok(());
        }
        let refreshed = refresh_copies(&open, bytes);
        refreshed.inspect_err(|_| _ = open.file.unlock(range))
    })
}

/// Unlocks length bytes from offset on, 0 for all that follow; bytes that are not locked stay so.
/// Returns 0, or -1 and sets errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_unlock(file: *mut ramlace_file, offset: i64, length: i64) -> c_int {
    done(|| {
        let (open, range) = (open_file(file)?, range_of(offset, length)?);
        if open.file.sharing() == Mode::Relaxed {
            let copies = open.copies.all()?;
            publish(&open, bytes_of(range), open.is_mapped.load(Ordering::Relaxed), &copies)?;
        }
        open.file.unlock(range)
    })
}

fn kind_of(kind: c_int) -> Result<LockKind> {
    match kind {
        RAMLACE_LOCK_SHARED => Ok(LockKind::Shared),
        RAMLACE_LOCK_EXCLUSIVE => Ok(LockKind::Exclusive),
        other => {
            Err(invalid(format!("a lock is RAMLACE_LOCK_SHARED or RAMLACE_LOCK_EXCLUSIVE, not {other}")))
        }
    }
}

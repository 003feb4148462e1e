//! The namespace by path.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

use libc::{gid_t, mode_t, ssize_t, uid_t};
use ramlace_base::{Error, Result, Timestamp};
use ramlace_client::{AttributeChanges, NewMode};

use crate::answers::{count, done};
use crate::failure::{check_reserved, guard, invalid, keep};
use crate::open::{permissions, umask};
use crate::pass::{Count, Items, Length, Out, Places, Target, Text, Times, file_bytes};
use crate::pool::{Connected, connected};
use crate::types::{ramlace_pool, ramlace_stat, ramlace_time};

/// In the nanoseconds of a struct ramlace_time: the present moment. The same as UTIME_NOW.
pub const RAMLACE_TIME_NOW: u32 = 0x3fff_ffff;
/// In the nanoseconds of a struct ramlace_time: leave this time as it is. The same as UTIME_OMIT.
pub const RAMLACE_TIME_OMIT: u32 = 0x3fff_fffe;

/// What path leads to; a symbolic link at its end is followed. Returns 0, or -1 and sets errno:
/// ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG, EFAULT for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_stat(pool: *mut ramlace_pool, path: Text, out: Out<ramlace_stat>) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        let stat = || Ok(ramlace_stat::from(&connected.pool.stat(path)?));
        out.put("struct ramlace_stat", stat)
    })
}

/// What path names; as ramlace_stat, but a symbolic link at its end is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_lstat(pool: *mut ramlace_pool, path: Text, out: Out<ramlace_stat>) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        let stat = || Ok(ramlace_stat::from(&connected.pool.lstat(path)?));
        out.put("struct ramlace_stat", stat)
    })
}

/// Creates a directory. mode: its permission bits, of which the process's umask takes some away.
/// EEXIST when the name is taken, ENOENT when the directory above is missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_mkdir(pool: *mut ramlace_pool, path: Text, mode: mode_t) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        connected.pool.mkdir(path, NewMode { mode: permissions(mode)?, umask: umask() }).map(drop)
    })
}

/// Removes a directory. ENOTEMPTY when it has entries, ENOTDIR when it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_rmdir(pool: *mut ramlace_pool, path: Text) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        connected.pool.rmdir(path)
    })
}

/// Removes a file or a symbolic link. A file that is open lives on, without a name, until its
/// last close. EISDIR for a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_unlink(pool: *mut ramlace_pool, path: Text) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        connected.pool.unlink(path)
    })
}

/// Removes files and symbolic links, in no certain order and many by one message where they lie in
/// one directory; each as ramlace_unlink does, and a path that is given twice once. count: how many
/// paths there are, and places in errors, which gets for each path 0 or its errno; it may be NULL.
/// Returns how many were not removed; errno and ramlace_error() tell of the first of these. -1
/// where none was tried.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_unlink_many(
    pool: *mut ramlace_pool,
    paths: Items<Text>,
    mut errors: Places<c_int>,
    count: Count<c_int>,
) -> c_int {
    guard(|| {
        let connected = connected(pool)?;
        let paths: Vec<Result<Cow<'_, [u8]>>> =
            paths.all(count, "paths")?.iter().map(|path| connected.path(path)).collect();
        let meant: Vec<&Cow<'_, [u8]>> = paths.iter().flatten().collect();
        let mut removed = connected.pool.unlink_many(&meant).into_iter();
        let each = |path: &Result<_>| match path {
            Ok(_) => removed.next().expect("one outcome for each").err(),
            Err(error) => Some(error.clone()),
        };
        let failed: Vec<Option<Error>> = paths.iter().map(each).collect();
        let numbers: Vec<c_int> = failed.iter().map(|error| error.as_ref().map_or(0, Error::errno)).collect();
        errors.put_if_wanted(&numbers, count);
        if let Some(first) = failed.iter().flatten().next() {
            keep(first);
        }
        Ok(failed.iter().flatten().count() as c_int)
    })
}

/// Creates a symbolic link at path that points to target, which is any text of at most 4095
/// bytes: a path from the pool's root when it begins with a slash, else from the link's directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_symlink(pool: *mut ramlace_pool, target: Text, path: Text) -> c_int {
    done(|| {
        let ((connected, path), target) = (at(pool, &path)?, target.bytes("target")?);
        connected.pool.symlink(target, path).map(drop)
    })
}

/// Puts the target of a symbolic link into buffer, at most size bytes, without a NUL. Returns the
/// bytes put; size when there may be more. EINVAL when path names no symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_readlink(
    pool: *mut ramlace_pool,
    path: Text,
    mut buffer: Target<c_char>,
    size: Length,
) -> ssize_t {
    guard(|| {
        let ((connected, path), place) = (at(pool, &path)?, buffer.bytes(size)?);
        let target = connected.pool.read_link(path)?;
        let length = target.len().min(place.len());
        place[..length].copy_from_slice(&target[..length]);
        count(length)
    })
}

/// Sets a file's size in bytes by path; see ramlace_ftruncate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_truncate(pool: *mut ramlace_pool, path: Text, size: i64) -> c_int {
    done(|| {
        let (connected, path) = at(pool, &path)?;
        connected.pool.truncate(path, file_bytes(size, "size")?).map(drop)
    })
}

/// Sets permission bits, 07777 at most; a symbolic link is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_chmod(pool: *mut ramlace_pool, path: Text, mode: mode_t) -> c_int {
    done(|| change(pool, &path, AttributeChanges { mode: Some(permissions(mode)?), ..KEEP }))
}

/// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them as they are. A symbolic link is
/// followed. EPERM where the pool does not allow it to this user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_chown(pool: *mut ramlace_pool, path: Text, uid: uid_t, gid: gid_t) -> c_int {
    let given = |id: u32| Some(id).filter(|id| *id != u32::MAX);
    done(|| change(pool, &path, AttributeChanges { uid: given(uid), gid: given(gid), ..KEEP }))
}

/// Sets the times of the last read (times[0]) and the last change of content (times[1]); NULL
/// sets both to the present moment. RAMLACE_TIME_NOW and RAMLACE_TIME_OMIT may stand in the
/// nanoseconds. A symbolic link is followed. EINVAL for a moment that is none, or beyond the
/// years 1677 to 2262.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_utimens(pool: *mut ramlace_pool, path: Text, times: Times) -> c_int {
    done(|| {
        let now = ramlace_time { seconds: 0, nanoseconds: RAMLACE_TIME_NOW, reserved: 0 };
        let [read, written] = times.both().unwrap_or([now; 2]);
        let is_now = |time: ramlace_time| time.nanoseconds == RAMLACE_TIME_NOW;
        let is_kept = |time: ramlace_time| time.nanoseconds == RAMLACE_TIME_OMIT;
        let now = [read, written].into_iter().all(|time| is_now(time) || is_kept(time));
        let changes = AttributeChanges { accessed: moment(read)?, modified: moment(written)?, now, ..KEEP };
        change(pool, &path, changes)
    })
}

const KEEP: AttributeChanges =
    AttributeChanges { mode: None, uid: None, gid: None, accessed: None, modified: None, now: false };

fn change(pool: *mut ramlace_pool, path: &Text, changes: AttributeChanges) -> Result<()> {
    let (connected, path) = at(pool, path)?;
    connected.pool.set_attributes(path, &changes).map(drop)
}

/// The pool of a call, and the path in it that the call means.
pub(crate) fn at(pool: *mut ramlace_pool, path: &Text) -> Result<(Arc<Connected>, Cow<'_, [u8]>)> {
    let connected = connected(pool)?;
    let path = connected.path(path)?;
    Ok((connected, path))
}

fn moment(time: ramlace_time) -> Result<Option<Timestamp>> {
    check_reserved(time.reserved, "ramlace_time")?;
    let nanos = match time.nanoseconds {
        RAMLACE_TIME_OMIT => return Ok(None),
        RAMLACE_TIME_NOW => now()?,
        nanoseconds if nanoseconds < 1_000_000_000 => {
            let whole = i128::from(time.seconds) * 1_000_000_000 + i128::from(nanoseconds);
            i64::try_from(whole).map_err(|_| invalid(format!("{} seconds are beyond 2262", time.seconds)))?
        }
        other => return Err(invalid(format!("a second does not have {other} nanoseconds"))),
    };
    Ok(Some(Timestamp { nanos }))
}

fn now() -> Result<i64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since
        .ok()
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .ok_or_else(|| invalid("this machine's clock is before 1970 or beyond 2262"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_exact_and_impossible_ones_refused() {
        let read = |seconds, nanoseconds| moment(ramlace_time { seconds, nanoseconds, reserved: 0 });
        assert_eq!(read(1, 5).unwrap(), Some(Timestamp { nanos: 1_000_000_005 }));
        assert_eq!(read(-1, 999_999_999).unwrap(), Some(Timestamp { nanos: -1 }));
        assert_eq!(ramlace_time::from(Timestamp { nanos: -1 }).seconds, -1);
        assert_eq!(read(7, RAMLACE_TIME_OMIT).unwrap(), None);
        assert!(read(7, RAMLACE_TIME_NOW).unwrap().unwrap().nanos > 1_700_000_000_000_000_000);
        assert_eq!(
            (i64::from(RAMLACE_TIME_NOW), i64::from(RAMLACE_TIME_OMIT)),
            (libc::UTIME_NOW, libc::UTIME_OMIT)
        );
        for (seconds, nanoseconds) in [(0, 1_000_000_000), (i64::MAX, 0), (i64::MIN, 0), (0, u32::MAX)] {
            assert!(read(seconds, nanoseconds).is_err());
        }
        assert!(moment(ramlace_time { nanoseconds: RAMLACE_TIME_OMIT, seconds: 0, reserved: 1 }).is_err());
    }
}

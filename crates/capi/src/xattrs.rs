//! Extended attributes by path.

use std::ffi::{c_char, c_int, c_void};

use libc::ssize_t;
use ramlace_wire::xattrs::XattrMode;

use crate::answers::{done, put_bytes};
use crate::failure::{guard, invalid, null};
use crate::names::at;
use crate::pass::{Length, Source, Target, Text};
use crate::types::ramlace_pool;

/// Puts the value of an extended attribute into value, at most size bytes, and returns its bytes; with
/// size 0 only that. A symbolic link at the end of path is followed. ENODATA when there is none that you
/// may see, ERANGE when it is longer than size, EOPNOTSUPP for names that do not begin with "user.",
/// "trusted." or "security.".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_getxattr(
    pool: *mut ramlace_pool,
    path: Text,
    name: Text,
    mut value: Target<c_void>,
    size: Length,
) -> ssize_t {
    guard(|| {
        let ((connected, path), name) = (at(pool, &path)?, name.bytes("name")?);
        let bytes = connected.pool.get_xattr(path, true, name)?;
        put_bytes(&bytes, &mut value, size)
    })
}

/// Sets an extended attribute to size bytes, at most 64 KiB. flags: 0, XATTR_CREATE (EEXIST when there is
/// one) or XATTR_REPLACE (ENODATA when there is none) of <sys/xattr.h>. A symbolic link at the end of path
/// is followed. E2BIG for a value that is too long, ENOSPC when the file has too many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_setxattr(
    pool: *mut ramlace_pool,
    path: Text,
    name: Text,
    value: Source,
    size: Length,
    flags: c_int,
) -> c_int {
    done(|| {
        let ((connected, path), name) = (at(pool, &path)?, name.bytes("name")?);
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(invalid(format!("the flags {flags} of ramlace_setxattr have no meaning"))),
        };
        if value.is_null() && !size.is_zero() {
            return Err(null("value"));
        }
        connected.pool.set_xattr(path, true, name, value.bytes(size)?, mode)
    })
}

/// Puts the names of the extended attributes that you may see into list, each with a NUL behind it, at most
/// size bytes, and returns their bytes; with size 0 only that. A symbolic link at the end of path is
/// followed. ERANGE when they are longer than size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_listxattr(
    pool: *mut ramlace_pool,
    path: Text,
    mut list: Target<c_char>,
    size: Length,
) -> ssize_t {
    guard(|| {
        let (connected, path) = at(pool, &path)?;
        let names = connected.pool.list_xattrs(path, true)?;
        let bytes: Vec<u8> = names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
        put_bytes(&bytes, &mut list, size)
    })
}

/// Removes an extended attribute. A symbolic link at the end of path is followed. ENODATA when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_removexattr(pool: *mut ramlace_pool, path: Text, name: Text) -> c_int {
    done(|| {
        let ((connected, path), name) = (at(pool, &path)?, name.bytes("name")?);
        connected.pool.remove_xattr(path, true, name)
    })
}

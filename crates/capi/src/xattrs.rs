//! Extended attributes by path.

use std::ffi::{c_char, c_int, c_void};

use libc::ssize_t;
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::xattrs::XattrMode;

use crate::failure::{guard, invalid, null};
use crate::file::{count, done};
use crate::names::at;
use crate::pass::text;
use crate::types::ramlace_pool;

/// Puts the value of an extended attribute into value, at most size bytes, and returns its bytes; with
/// size 0 only that. A symbolic link at the end of path is followed. ENODATA when there is none that you
/// may see, ERANGE when it is longer than size, EOPNOTSUPP for names that do not begin with "user.",
/// "trusted." or "security.".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_getxattr(
    pool: *mut ramlace_pool,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> ssize_t {
    guard(|| {
        // SAFETY: texts or NULL, by the header.
        let ((connected, path), name) = unsafe { (at(pool, path)?, text(name, "name")?) };
        let bytes = connected.pool.get_xattr(path, true, name)?;
        // SAFETY: memory of so many bytes, by the header.
        unsafe { put_bytes(&bytes, value, size) }
    })
}

/// Sets an extended attribute to size bytes, at most 64 KiB. flags: 0, XATTR_CREATE (EEXIST when there is
/// one) or XATTR_REPLACE (ENODATA when there is none) of <sys/xattr.h>. A symbolic link at the end of path
/// is followed. E2BIG for a value that is too long, ENOSPC when the file has too many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_setxattr(
    pool: *mut ramlace_pool,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    done(|| {
        // SAFETY: texts or NULL, by the header.
        let ((connected, path), name) = unsafe { (at(pool, path)?, text(name, "name")?) };
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(invalid(format!("the flags {flags} of ramlace_setxattr have no meaning"))),
        };
        if value.is_null() && size > 0 {
            return Err(null("value"));
        }
        // SAFETY: not NULL, and so many bytes can be read, by the header.
        let bytes = if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(value.cast(), size) } };
        connected.pool.set_xattr(path, true, name, bytes, mode)
    })
}

/// Puts the names of the extended attributes that you may see into list, each with a NUL behind it, at most
/// size bytes, and returns their bytes; with size 0 only that. A symbolic link at the end of path is
/// followed. ERANGE when they are longer than size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_listxattr(
    pool: *mut ramlace_pool,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
) -> ssize_t {
    guard(|| {
        // SAFETY: a text or NULL, by the header.
        let (connected, path) = unsafe { at(pool, path) }?;
        let names = connected.pool.list_xattrs(path, true)?;
        let bytes: Vec<u8> = names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
        // SAFETY: memory of so many bytes, by the header.
        unsafe { put_bytes(&bytes, list.cast(), size) }
    })
}

/// Removes an extended attribute. A symbolic link at the end of path is followed. ENODATA when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_removexattr(
    pool: *mut ramlace_pool,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: texts or NULL, by the header.
        let ((connected, path), name) = unsafe { (at(pool, path)?, text(name, "name")?) };
        connected.pool.remove_xattr(path, true, name)
    })
}

/// # Safety
/// The pointer leads to so many bytes that can be written, or is not used: NULL, or a size of 0.
pub(crate) unsafe fn put_bytes(bytes: &[u8], place: *mut c_void, size: usize) -> Result<ssize_t> {
    if size > 0 {
        if place.is_null() {
            return Err(null("memory for the result"));
        }
        if bytes.len() > size {
            let text = format!("the result has {} bytes, and there is room for {size}", bytes.len());
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        // SAFETY: not NULL, and large enough; what was just made lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    }
    count(bytes.len())
}

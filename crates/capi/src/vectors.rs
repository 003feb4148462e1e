//! Reading and writing several buffers at once.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, ssize_t};
use ramlace_base::Result;

use crate::failure::{guard, invalid, null};
use crate::file::count;
use crate::open::open_file;
use crate::pass::{buffer, bytes, check_length, file_bytes};
use crate::types::ramlace_file;

/// Buffers of one call, as Linux has it.
const BUFFERS_MAX: usize = 1024;

/// Reads at offset into buffer_count buffers (struct iovec of <sys/uio.h>), one after the other;
/// otherwise as ramlace_pread. EINVAL for more than 1024 buffers, or more than SSIZE_MAX bytes
/// together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_preadv(
    file: *mut ramlace_file,
    buffers: *const iovec,
    buffer_count: c_int,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        // SAFETY: `buffers` are `buffer_count`, by the header.
        let parts = unsafe { parts(buffers, buffer_count) }?;
        let targets: Result<Vec<IoSliceMut<'_>>> = parts
            .iter()
            // SAFETY: each buffer has its bytes and overlaps no other, by the header.
            .map(|part| unsafe { buffer(part.iov_base.cast(), part.iov_len) }.map(IoSliceMut::new))
            .collect();
        count(open.file.read_vectored_at(&mut targets?, file_bytes(offset, "offset")?)?)
    })
}

/// Writes buffer_count buffers at offset, one after the other; otherwise as ramlace_pwrite, and
/// the buffers as in ramlace_preadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwritev(
    file: *mut ramlace_file,
    buffers: *const iovec,
    buffer_count: c_int,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        // SAFETY: `buffers` are `buffer_count`, by the header.
        let parts = unsafe { parts(buffers, buffer_count) }?;
        let sources: Result<Vec<IoSlice<'_>>> = parts
            .iter()
            // SAFETY: each buffer has its bytes, by the header.
            .map(|part| unsafe { bytes(part.iov_base.cast_const().cast(), part.iov_len) }.map(IoSlice::new))
            .collect();
        count(open.file.write_vectored_at(&sources?, file_bytes(offset, "offset")?)?)
    })
}

/// Checks an array of buffers.
///
/// # Safety
/// The pointer is NULL, or leads to `count` buffers that stay while the result is used.
unsafe fn parts<'a>(buffers: *const iovec, count: c_int) -> Result<&'a [iovec]> {
    let number = usize::try_from(count).ok().filter(|number| *number <= BUFFERS_MAX);
    let number =
        number.ok_or_else(|| invalid(format!("{count} buffers; a call takes 0 to {BUFFERS_MAX}")))?;
    if number == 0 {
        return Ok(&[]);
    }
    if buffers.is_null() {
        return Err(null("array of buffers"));
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(buffers, number) };
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    check_length(std::ptr::dangling(), total.unwrap_or(usize::MAX))?;
    Ok(parts)
}

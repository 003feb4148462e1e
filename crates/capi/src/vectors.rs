//! Reading and writing several buffers at once.

use std::ffi::c_int;

use libc::{iovec, ssize_t};
use ramlace_base::Result;

use crate::failure::{guard, invalid};
use crate::file::count;
use crate::open::open_file;
use crate::pass::{Count, Items, check_length, file_bytes, sources, targets};
use crate::types::ramlace_file;

/// Buffers of one call, as Linux has it.
const BUFFERS_MAX: c_int = 1024;

/// Reads at offset into buffer_count buffers (struct iovec of <sys/uio.h>), one after the other;
/// otherwise as ramlace_pread. EINVAL for more than 1024 buffers, or more than SSIZE_MAX bytes
/// together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_preadv(
    file: *mut ramlace_file,
    buffers: Items<iovec>,
    buffer_count: Count<c_int>,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let mut targets = targets(parts(&buffers, buffer_count)?)?;
        count(open.file.read_vectored_at(&mut targets, file_bytes(offset, "offset")?)?)
    })
}

/// Writes buffer_count buffers at offset, one after the other; otherwise as ramlace_pwrite, and
/// the buffers as in ramlace_preadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwritev(
    file: *mut ramlace_file,
    buffers: Items<iovec>,
    buffer_count: Count<c_int>,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let sources = sources(parts(&buffers, buffer_count)?)?;
        count(open.file.write_vectored_at(&sources, file_bytes(offset, "offset")?)?)
    })
}

/// Checks an array of buffers.
fn parts(buffers: &Items<iovec>, count: Count<c_int>) -> Result<&[iovec]> {
    if !(0..=BUFFERS_MAX).contains(&count.told()) {
        return Err(invalid(format!("{} buffers; a call takes 0 to {BUFFERS_MAX}", count.told())));
    }
    let parts = buffers.all(count, "buffers")?;
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    check_length(std::ptr::dangling(), total.unwrap_or(usize::MAX))?;
    Ok(parts)
}

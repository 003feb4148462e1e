//! Reading and writing several buffers at once.

use std::ffi::c_int;

use libc::ssize_t;
use ramlace_base::Result;

use crate::answers::count;
use crate::failure::{guard, invalid};
use crate::open::open_file;
use crate::pass::{Buffer, Count, Items, check_length, file_bytes};
use crate::types::ramlace_file;

/// Buffers of one call, as Linux has it.
const BUFFERS_MAX: c_int = 1024;

/// Reads at offset into buffer_count buffers (struct iovec of <sys/uio.h>), one after the other;
/// otherwise as ramlace_pread. The buffers do not overlap. EINVAL for more than 1024 buffers, or more than SSIZE_MAX bytes
/// together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_preadv(
    file: *mut ramlace_file,
    mut buffers: Items<Buffer>,
    buffer_count: Count<c_int>,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        check(&buffers, buffer_count)?;
        let mut targets = buffers.targets(buffer_count)?;
        count(open.file.read_vectored_at(&mut targets, file_bytes(offset, "offset")?)?)
    })
}

/// Writes buffer_count buffers at offset, one after the other; otherwise as ramlace_pwrite, and
/// the buffers as in ramlace_preadv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwritev(
    file: *mut ramlace_file,
    buffers: Items<Buffer>,
    buffer_count: Count<c_int>,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        check(&buffers, buffer_count)?;
        let sources = buffers.sources(buffer_count)?;
        count(open.file.write_vectored_at(&sources, file_bytes(offset, "offset")?)?)
    })
}

/// Checks an array of buffers.
fn check(buffers: &Items<Buffer>, count: Count<c_int>) -> Result<()> {
    if !(0..=BUFFERS_MAX).contains(&count.get()) {
        return Err(invalid(format!("{} buffers; a call takes 0 to {BUFFERS_MAX}", count.get())));
    }
    let mut lengths = buffers.all(count, "buffers")?.iter().map(Buffer::length);
    let total = lengths.try_fold(0usize, usize::checked_add);
    check_length(std::ptr::dangling(), total.unwrap_or(usize::MAX))
}

//! What a function of the ABI answers with when all is well.

use std::ffi::c_int;

use libc::ssize_t;
use ramlace_base::Result;

use crate::failure::guard;
use crate::pass::{Length, Target};

/// A function that returns 0.
pub(crate) fn done(work: impl FnOnce() -> Result<()>) -> c_int {
    guard(|| work().map(|()| 0))
}

/// A count of bytes: no buffer is larger than SSIZE_MAX.
pub(crate) fn count(bytes: usize) -> Result<ssize_t> {
    Ok(bytes as ssize_t)
}

/// Puts a whole result where the program wants it, unless it asks with a size of 0 how long it is.
pub(crate) fn put_bytes<T>(bytes: &[u8], place: &mut Target<T>, size: Length) -> Result<ssize_t> {
    if !size.is_zero() {
        place.put(size, bytes)?;
    }
    count(bytes.len())
}

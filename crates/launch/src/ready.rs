//! The descriptor by which a server reports to `up` how it is, and what a daemon does not inherit.
//!
//! With `peer` one of the two rooms of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use ramlace_base::{Error, ErrorKind, Result};

/// Takes over the descriptor that `up` left open for this process.
pub fn adopt(number: i32) -> Result<OwnedFd> {
    let refuse = |why: &str| Error::new(ErrorKind::BadHandle, format!("--ready-fd {number}: {why}"));
    if number <= 2 {
        return Err(refuse("standard input, output and error are taken"));
    }
    if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err() {
        return Err(refuse("no such descriptor is open"));
    }
    // SAFETY: the number is open; it was given to this process for this use alone, at its start,
    // before anything else in it could have opened a descriptor of that number.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::from_io(&errno.into(), "taking over --ready-fd"))?;
    Ok(descriptor)
}

/// Keeps every descriptor of this process, but the standard ones, from the programs that it starts from now on: a daemon must
/// not hold its caller's locks and pipes for as long as it lives. Those that it shall have are opened to it afterwards.
pub fn keep_descriptors_here() {
    // SAFETY: this sets a flag on open descriptors and closes none. A kernel without it (before 5.11) changes nothing.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_open_is_refused() {
        for number in [-1, 0, 2, 1_000_000] {
            assert_eq!(adopt(number).unwrap_err().kind(), ErrorKind::BadHandle, "{number}");
        }
    }
}

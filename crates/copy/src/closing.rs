//! Closes a file and says what came of it: some file systems, such as NFS, tell only then that bytes did not fit.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a file; the standard library drops the error.
pub fn close(file: impl Into<OwnedFd>) -> io::Result<()> {
    let descriptor = file.into().into_raw_fd();
    // SAFETY: the descriptor was owned here, and its number is not used again.
    if unsafe { libc::close(descriptor) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // On Linux the descriptor is gone then, too.
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    // SEMANTICS 111.5
    #[test]
    fn an_error_of_close_is_told() {
        assert!(close(std::fs::File::open("/dev/null").unwrap()).is_ok());
        // SAFETY: no process has so many files open, so the number belongs to none.
        let none = unsafe { OwnedFd::from_raw_fd(i32::MAX) };
        assert_eq!(close(none).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}

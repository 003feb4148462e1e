//! Which process listens at a Unix socket, and whether it leads a session: the kernel tells, whatever `/proc` shows.
//!
//! With `ready` one of the two rooms of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// The process that has called `listen` for the other end of this connection, and its user. The number is 0 for a
/// process of another namespace, and may be another process's by now where the listener was passed on.
pub fn listener_of(connection: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the local, which outlives the call and may have any bits.
    let outcome = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::try_from(found.pid).unwrap_or(0), found.uid))
}

/// A handle of that very process. Kernels before 6.5 have none (`ENOPROTOOPT`).
pub fn handle_of(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut length = size_of_val(&found) as libc::socklen_t;
    // SAFETY: as above.
    let outcome = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

/// Whether a process leads a session, and with it a group of processes, as supervisors do that `up` has started.
///
/// A session whose leader is of another namespace has the number 0, as in a container that was entered from outside:
/// `getsid` of `rustix` takes that for undefined behaviour.
pub fn leads_a_session(pid: Pid) -> bool {
    let number = pid.as_raw_nonzero().get();
    // SAFETY: a number goes in, and one comes out.
    unsafe { libc::getsid(number) == number }
}

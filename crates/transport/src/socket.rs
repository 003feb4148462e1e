//! Options of sockets, and the kernel's information about their other end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ramlace_base::{Error, Result};
use rustix::io::Errno;
use rustix::net::sockopt;

/// An idle TCP connection is probed after this time, so that one to a machine that is gone ends.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Small frames leave at once, and a peer that vanished is noticed.
pub(crate) fn prepare_tcp(socket: impl AsFd) -> Result<()> {
    let prepare = || {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)
    };
    prepare().map_err(|errno: Errno| Error::from_io(&errno.into(), "setting up a TCP connection"))
}

/// The user at the other end of a Unix socket; `None` for TCP.
pub(crate) fn peer_uid(socket: impl AsFd) -> Option<u32> {
    if sockopt::socket_domain(&socket) != Ok(rustix::net::AddressFamily::UNIX) {
        return None;
    }
    sockopt::socket_peercred(&socket).ok().map(|credentials| credentials.uid.as_raw())
}

/// Makes the kernel wake readers when this many bytes are there, or the other side has ended.
pub(crate) fn wake_at(socket: BorrowedFd<'_>, bytes: usize) -> Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the kernel reads the number, which outlives the call.
    let outcome = unsafe {
        let number = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, number, length)
    };
    match outcome {
        0 => Ok(()),
        _ => Err(Error::from_io(&std::io::Error::last_os_error(), "setting when a reader wakes")),
    }
}

/// Ends a connection in both directions; its descriptor stays. Waiting threads and tasks wake.
pub(crate) fn shut_down(socket: impl AsFd) {
    // It may be down already.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// A new Unix socket, closed on exec.
pub(crate) fn unix_socket(flags: rustix::net::SocketFlags) -> Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::from_io(&errno.into(), "making a Unix socket"))
}

/// A listener whose queue is full: what connects to it waits for ever, as for a machine that is not there.
#[cfg(test)]
pub(crate) fn black_hole() -> (std::net::TcpListener, Vec<OwnedFd>) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let socket =
        || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let listener = socket();
    bind(&listener, &any).unwrap();
    listen(&listener, 0).unwrap();
    let listener = std::net::TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    let full = (0..4).map(|_| {
        let one = socket();
        // It is under way.
        let _ = connect(&one, &address);
        one
    });
    let full = full.collect();
    (listener, full)
}

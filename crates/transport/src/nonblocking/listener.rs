//! Where connections come in.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, accept_with, getpeername, getsockname,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::newcomers::Source;
use crate::Address;

/// A listening socket.
pub struct Listener(AsyncFd<OwnedFd>);

/// A newcomer that has not proved the secret yet: [`super::Connection::accept`] takes it.
pub struct Incoming {
    pub(super) socket: OwnedFd,
    pub(super) peer: String,
    pub(super) source: Source,
}

impl Listener {
    /// Takes over a listening socket, such as one inherited from a parent process. Needs the
    /// event loop of this thread.
    pub fn from_owned_fd(descriptor: OwnedFd) -> Result<Listener> {
        let take_over = |descriptor: OwnedFd| -> io::Result<AsyncFd<OwnedFd>> {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
            crate::raw::watch(descriptor, Interest::READABLE)
        };
        take_over(descriptor)
            .map(Listener)
            .map_err(|error| Error::from_io(&error, "taking over a listening socket"))
    }

    /// Listens on an address; port 0 lets the system choose. A socket file without a listener is replaced.
    ///
    /// Errors: `Busy` when another process listens there already; `Exists` when a file that is no socket has
    /// the path.
    pub fn bind(address: &Address) -> Result<Listener> {
        let descriptor = match address {
            Address::Tcp(place) => bind_tcp(place),
            Address::Unix(path) => bind_unix(path),
        };
        Listener::from_owned_fd(
            descriptor.map_err(|error| error.context(format_args!("cannot listen on {address}")))?,
        )
    }

    /// Where it listens, with the port that the system chose.
    pub fn local_address(&self) -> Result<Address> {
        getsockname(self.0.get_ref())
            .map_err(|errno| Error::from_io(&errno.into(), "asking where a socket listens"))
            .and_then(address_of)
    }

    /// The next newcomer.
    ///
    /// Errors: those of the system, such as too many open files; waiting a little helps.
    pub async fn accept(&mut self) -> Result<Incoming> {
        let accepting = self.0.async_io(Interest::READABLE, |listener| {
            loop {
                match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    // That one has gone again.
                    Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                    other => return other.map_err(io::Error::from),
                }
            }
        });
        let socket = accepting.await.map_err(|error| Error::from_io(&error, "accepting a connection"))?;
        let (peer, source) = peer_of(socket.as_fd());
        Ok(Incoming { peer, source, socket })
    }
}

fn address_of(address: SocketAddrAny) -> Result<Address> {
    if address.address_family() == AddressFamily::UNIX {
        let unix = SocketAddrUnix::try_from(address).ok();
        let path = unix.as_ref().and_then(SocketAddrUnix::path_bytes).unwrap_or_default();
        use std::os::unix::ffi::OsStrExt;
        return Ok(Address::Unix(std::ffi::OsStr::from_bytes(path).into()));
    }
    let place = std::net::SocketAddr::try_from(address)
        .map_err(|errno| Error::from_io(&errno.into(), "reading a socket's address"))?;
    Ok(Address::Tcp(place.to_string()))
}

/// The name of the other side in messages, and where it comes from.
fn peer_of(socket: impl AsFd) -> (String, Source) {
    if let Some(uid) = crate::socket::peer_uid(&socket) {
        return (format!("a local client of user {uid}"), Source::User(uid));
    }
    match getpeername(&socket).ok().flatten().map(std::net::SocketAddr::try_from) {
        Some(Ok(address)) => (address.to_string(), Source::of_address(address.ip())),
        _ => ("a client that has gone".into(), Source::Unknown),
    }
}

fn bind_tcp(place: &str) -> Result<OwnedFd> {
    TcpListener::bind(place).map(OwnedFd::from).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::new(
            ErrorKind::Busy,
            "another program has the port; choose another one or stop that program",
        ),
        _ => Error::new(Error::from_io(&error, "").kind(), error.to_string()),
    })
}

fn bind_unix(path: &Path) -> Result<OwnedFd> {
    let tell = |error: io::Error| Error::new(Error::from_io(&error, "").kind(), error.to_string());
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => remove_stale(path)?,
        other => return other.map(OwnedFd::from).map_err(tell),
    }
    UnixListener::bind(path).map(OwnedFd::from).map_err(tell)
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path) -> Result<()> {
    let tell = |error: io::Error| Error::new(Error::from_io(&error, "").kind(), error.to_string());
    let file = std::fs::symlink_metadata(path).map_err(tell)?;
    if !file.file_type().is_socket() {
        return Err(Error::new(ErrorKind::Exists, "a file that is no socket has this path; move it away"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(tell)
        }
        _ => Err(Error::new(
            ErrorKind::Busy,
            "another server listens there; stop it first or choose another path",
        )),
    }
}

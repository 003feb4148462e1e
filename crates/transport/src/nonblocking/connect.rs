//! Servers are clients of each other: they pass through the same handshake.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId, limits};
use ramlace_wire::preamble::{PREAMBLE_BYTES, Preamble};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};
use tokio::net::{TcpStream, lookup_host};

use super::accept::{receive_exactly, send_all};
use super::connection::Connection;
use super::socket::Socket;
use crate::handshake::{Answered, ClientHandshake};
use crate::seal::Seal;
use crate::socket::{prepare_tcp, unix_socket};
use crate::{Address, ClientKey};

/// Pause before a Unix socket with a full backlog is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

impl Connection {
    /// Connects; both sides prove their keys, within [`limits::HANDSHAKE_MILLIS_MAX`]. `wanted`: the server that
    /// is meant, unless any of the pool will do.
    ///
    /// Errors: `HostDown` or `TimedOut` when no server answers, or another one does; `Denied` or `Protocol`
    /// with the server's own line when it refuses. All of them name the address.
    pub async fn connect(address: &Address, key: &ClientKey, wanted: Option<ServerId>) -> Result<Connection> {
        let limit = Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        let connecting = connect(address, key, wanted, Instant::now() + limit);
        let connected = tokio::time::timeout(limit, connecting).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::TimedOut, format!("no connection within {} ms", limit.as_millis())))
        });
        let (socket, answered) = connected.map_err(|error| error.context(address))?;
        let seal = Seal::new(&answered.keys, answered.protection);
        Ok(Connection::new(socket, address.to_string(), answered.server, seal))
    }
}

async fn connect(
    address: &Address,
    key: &ClientKey,
    wanted: Option<ServerId>,
    deadline: Instant,
) -> Result<(Rc<Socket>, Answered)> {
    let socket = match address {
        Address::Tcp(place) => connect_tcp(place, deadline).await?,
        Address::Unix(path) => connect_unix(path).await?,
    };
    let is_unix = matches!(address, Address::Unix(_));
    let socket = Socket::new(socket)?;
    let answered = shake_hands(&socket, key, wanted, is_unix).await?;
    Ok((Rc::new(socket), answered))
}

fn unreachable(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::HostDown, format!("connecting: {error}; is the server running?"))
}

async fn connect_tcp(place: &str, deadline: Instant) -> Result<OwnedFd> {
    let addresses: Vec<SocketAddr> = lookup_host(place).await.map_err(|error| unreachable(&error))?.collect();
    let stream = connect_to_one(&addresses, deadline).await?;
    let stream = stream.into_std().map_err(|error| unreachable(&error))?;
    prepare_tcp(&stream)?;
    Ok(stream.into())
}

/// The first address that answers. Each has its part of the time: one that swallows everything must not use up
/// that of those behind it.
async fn connect_to_one(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream> {
    let mut last = Error::new(ErrorKind::HostDown, "the name has no address");
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let part = deadline.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = unreachable(&error),
            Err(_) => last = Error::new(ErrorKind::TimedOut, "no connection within the deadline"),
        }
    }
    Err(last)
}

async fn connect_unix(path: &Path) -> Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::NONBLOCK)?;
    let place = SocketAddrUnix::new(path).map_err(|errno| unreachable(&errno.into()))?;
    loop {
        match rustix::net::connect(&socket, &place) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) => tokio::time::sleep(BACKLOG_PAUSE).await,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(unreachable(&errno.into())),
        }
    }
}

async fn shake_hands(
    socket: &Socket,
    key: &ClientKey,
    wanted: Option<ServerId>,
    is_unix: bool,
) -> Result<Answered> {
    let (handshake, hello) = ClientHandshake::begin(key, wanted);
    // A server that refuses at once may have closed already; the line that it sent matters more.
    let sent = send_all(socket, &hello).await;
    let mut preamble = [0; PREAMBLE_BYTES];
    if let Err(error) = receive_exactly(socket, &mut preamble).await {
        return Err(sent.err().unwrap_or(error));
    }
    let preamble = Preamble::decode(&preamble)?;
    let mut payload = vec![0; preamble.payload_bytes as usize];
    receive_exactly(socket, &mut payload).await?;
    let answered = handshake.finish(&preamble, &payload)?;
    answered.protection.check_on(is_unix)?;
    send_all(socket, &answered.confirmation).await?;
    Ok(answered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::black_hole;

    #[test]
    fn an_address_behind_one_that_swallows_everything_is_reached_in_time() {
        let (hole, _full) = black_hole();
        let there = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [hole.local_addr().unwrap(), there.local_addr().unwrap()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Instant::now() + Duration::from_secs(4);
        runtime.block_on(async {
            let connected = tokio::time::timeout_at(limit.into(), connect_to_one(&addresses, limit)).await;
            connected.expect("it took all of the time").unwrap();
        });
        assert!(there.accept().is_ok());
    }
}

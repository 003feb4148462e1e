//! Reaching a server within a deadline, and the client's part of the handshake.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId};
use ramlace_wire::preamble::{PREAMBLE_BYTES, Preamble};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::line::Line;
use crate::handshake::{Answered, ClientHandshake};
use crate::socket::{prepare_tcp, unix_socket};
use crate::{Address, ClientKey, ConnectFailure};

type Outcome = std::result::Result<OwnedFd, ConnectFailure>;

/// A blocking socket that is connected to the address.
pub(super) fn connect(address: &Address, deadline: Instant) -> Outcome {
    match address {
        Address::Tcp(place) => connect_tcp(place, deadline),
        Address::Unix(path) => connect_unix(path, deadline),
    }
}

fn time_left(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::new(ErrorKind::TimedOut, "no connection within the deadline"));
    }
    Ok(left)
}

fn connect_tcp(place: &str, deadline: Instant) -> Outcome {
    connect_to_one(&resolve(place, deadline)?, deadline)
}

/// The first address that answers. Each has its part of the time: one that swallows everything must not use up
/// that of those behind it.
fn connect_to_one(addresses: &[SocketAddr], deadline: Instant) -> Outcome {
    let mut last = ConnectFailure::from(Error::new(ErrorKind::HostDown, "the name has no address"));
    let mut refused = true;
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        match TcpStream::connect_timeout(address, time_left(deadline)? / left) {
            Ok(stream) => {
                prepare_tcp(&stream)?;
                return Ok(stream.into());
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                last = Error::new(ErrorKind::TimedOut, "no connection within the deadline").into();
            }
            Err(error) => last = unreachable(&error),
        }
        refused &= last.refused;
    }
    Err(ConnectFailure { refused: refused && last.refused, ..last })
}

fn unreachable(error: &std::io::Error) -> ConnectFailure {
    // A Unix socket that is not there counts as one without a listener.
    let refused =
        matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound);
    let text = format!("connecting: {error}; is the server running?");
    ConnectFailure { error: Error::new(ErrorKind::HostDown, text), refused }
}

/// Turns `host:port` into addresses; `HostDown` when there is no such host. Asking for a name has no time limit of its own, so a thread
/// does it, and is left alone when the deadline passes.
pub fn resolve(place: &str, deadline: Instant) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = place.parse() {
        return Ok(vec![address]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = place.to_owned();
    std::thread::Builder::new()
        .name("ramlace-resolve".into())
        .spawn(move || {
            let found = name.to_socket_addrs().map(Iterator::collect);
            // The caller no longer waits when the deadline has passed.
            let _ = sender.send(found);
        })
        .map_err(|error| Error::from_io(&error, "starting a thread that asks for an address"))?;
    let found: std::io::Result<Vec<SocketAddr>> =
        receiver.recv_timeout(time_left(deadline)?).map_err(|_| {
            Error::new(ErrorKind::TimedOut, "the name was not resolved within the deadline; is it right?")
        })?;
    found.map_err(|error| Error::new(ErrorKind::HostDown, format!("there is no such host ({error})")))
}

fn connect_unix(path: &Path, deadline: Instant) -> Outcome {
    let socket = unix_socket(SocketFlags::empty())?;
    let place = SocketAddrUnix::new(path).map_err(|errno| unreachable(&errno.into()))?;
    loop {
        // A full backlog makes connect wait; the time limit for sending bounds that.
        set_socket_timeout(&socket, Timeout::Send, Some(time_left(deadline)?))
            .map_err(|errno| Error::from_io(&errno.into(), "setting a socket's time limit"))?;
        match rustix::net::connect(&socket, &place) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(unreachable(&errno.into())),
        }
    }
}

/// The client's part of the handshake.
pub(super) fn shake_hands(
    line: &Line,
    key: &ClientKey,
    wanted: Option<ServerId>,
    deadline: Instant,
) -> Result<Answered> {
    let (handshake, hello) = ClientHandshake::begin(key, wanted);
    // A server that refuses at once may have closed already; the line that it sent matters more.
    let sent = line.send_all(&hello, &[], deadline);
    let mut preamble = [0; PREAMBLE_BYTES];
    if let Err(error) = receive_exactly(line, &mut preamble, deadline) {
        return Err(sent.err().unwrap_or(error).context("the handshake got no answer"));
    }
    let preamble = Preamble::decode(&preamble)?;
    let mut payload = vec![0; preamble.payload_bytes as usize];
    receive_exactly(line, &mut payload, deadline)?;
    let answered = handshake.finish(&preamble, &payload)?;
    answered.protection.check_on(line.is_unix())?;
    line.send_all(&answered.confirmation, &[], deadline)?;
    Ok(answered)
}

fn receive_exactly(line: &Line, into: &mut [u8], deadline: Instant) -> Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        // Descriptors that come here were not announced: they are closed with the list.
        filled += line.receive_some(&mut into[filled..], None, deadline)?;
    }
    Ok(())
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
        connect_to_one(&addresses, Instant::now() + Duration::from_secs(4))
            .map_err(|failure| failure.error)
            .unwrap();
        assert!(there.accept().is_ok());
    }
}

//! A newcomer proves the secret, or gets the reason of its refusal.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::preamble::PREAMBLE_BYTES;
use tokio::time::timeout;

use super::connection::Connection;
use super::listener::Incoming;
use super::newcomers::{Newcomers, Place};
use super::socket::{Patience, Socket};
use crate::handshake::{
    CONFIRMATION_BYTES, HELLO_BYTES, ServerHandshake, check_client_preamble, check_greeting, refusal,
};
use crate::keys::{Proved, ServerKeys};
use crate::seal::{FrameKeys, Protection, Seal};

/// Bytes of a refused stranger that are read and dropped, so that closing does not destroy the line that says
/// why.
const DRAIN_BYTES_MAX: usize = 64 << 10;

impl Connection {
    /// Takes a newcomer in, if it proves the key of a role within [`limits::HANDSHAKE_MILLIS_MAX`]; returns
    /// what it has proved. One that does not gets one line that says why.
    ///
    /// Errors: `Denied`, `Moved` or `Protocol` with the line that was sent to the stranger; `TimedOut`;
    /// `HostDown` when it went away, or had to make room because more than [`limits::CONNECTIONS_UNPROVEN_MAX`]
    /// had not proved a key yet.
    pub async fn accept(
        incoming: Incoming,
        keys: &ServerKeys,
        newcomers: &Newcomers,
    ) -> Result<(Connection, Proved)> {
        let Incoming { socket, peer, source } = incoming;
        let name = |error: Error| error.context(&peer);
        let limit = Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        let is_unix = crate::socket::peer_uid(&socket).is_some();
        if !is_unix {
            crate::socket::prepare_tcp(&socket).map_err(name)?;
        }
        let protection = keys.protection(is_unix);
        let socket = Rc::new(Socket::new(socket).map_err(name)?);
        let place = newcomers.enter(&socket, source);
        let proved = timeout(limit, prove(&socket, keys, protection, &place)).await.unwrap_or_else(|_| {
            let text = format!("the handshake was not finished within {} ms", limit.as_millis());
            Err(Error::new(ErrorKind::TimedOut, text))
        });
        let (proved, frame_keys) = match proved {
            Ok(proved) => proved,
            Err(error) => {
                // The line is a courtesy: a peer that does not take it in time goes without.
                let _ = timeout(limit, refuse(&socket, &error)).await;
                return Err(name(error));
            }
        };
        drop(place);
        let seal = Seal::new(&frame_keys, protection);
        Ok((Connection::new(socket, peer, keys.server(), seal), proved))
    }
}

/// The role of the newcomer, and the keys of the frames.
async fn prove(
    socket: &Socket,
    keys: &ServerKeys,
    protection: Protection,
    place: &Place,
) -> Result<(Proved, FrameKeys)> {
    let mut hello = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < PREAMBLE_BYTES {
        filled += receive(socket, &mut hello[filled..PREAMBLE_BYTES]).await?;
        check_greeting(&hello[..filled])?;
    }
    check_client_preamble(hello[..PREAMBLE_BYTES].try_into().expect("the length was just cut"))?;
    receive_exactly(socket, &mut hello[PREAMBLE_BYTES..]).await?;
    let (proved, handshake, answer) = ServerHandshake::answer(keys, protection, &hello)?;
    place.has_greeted();
    send_all(socket, &answer).await?;
    let mut confirmation = [0; CONFIRMATION_BYTES];
    receive_exactly(socket, &mut confirmation).await?;
    Ok((proved, handshake.confirm(&confirmation)?))
}

async fn refuse(socket: &Socket, error: &Error) -> Result<()> {
    if error.kind() == ErrorKind::HostDown {
        return Ok(());
    }
    send_all(socket, &refusal(error)).await?;
    // It may be gone already.
    let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Write);
    let mut nowhere = [0; 4096];
    let mut drained = 0;
    while drained < DRAIN_BYTES_MAX {
        drained += receive(socket, &mut nowhere).await?;
    }
    Ok(())
}

pub(super) async fn receive(socket: &Socket, into: &mut [u8]) -> Result<usize> {
    let wanted = into.len();
    let receive = |socket: BorrowedFd<'_>| Ok(rustix::io::read(socket, &mut *into)?);
    match socket.receive(Patience::Endless, wanted, receive).await? {
        0 => Err(Error::new(ErrorKind::HostDown, "the other side went away during the handshake")),
        count => Ok(count),
    }
}

pub(super) async fn receive_exactly(socket: &Socket, into: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        filled += receive(socket, &mut into[filled..]).await?;
    }
    Ok(())
}

pub(super) async fn send_all(socket: &Socket, bytes: &[u8]) -> Result<()> {
    use rustix::net::{SendFlags, send};
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = &bytes[sent..];
        let send =
            |socket: BorrowedFd<'_>| Ok(send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?);
        sent += socket.send(Patience::Endless, rest.len(), send).await?;
    }
    Ok(())
}

//! A newcomer proves the secret, or is told why not.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::preamble::PREAMBLE_BYTES;
use tokio::time::timeout;

use super::connection::Connection;
use super::listener::Incoming;
use super::socket::{Canceller, Patience, Socket};
use crate::Secret;
use crate::handshake::{
    CONFIRMATION_BYTES, HELLO_BYTES, ServerHandshake, check_client_preamble, check_greeting, refusal,
};

/// Bytes of a refused stranger that are read and dropped, so that closing does not destroy the
/// line that tells it why.
const DRAIN_BYTES_MAX: usize = 64 << 10;

impl Connection {
    /// Takes a newcomer in, if it proves the secret within [`limits::HANDSHAKE_MILLIS_MAX`]. One
    /// that does not is told why in one line.
    ///
    /// Errors: `Denied` or `Protocol` with the line that the stranger was told; `TimedOut`;
    /// `HostDown` when it went away, or when it was the oldest of more than
    /// [`limits::CONNECTIONS_UNPROVEN_MAX`] that have not proved the secret yet.
    pub async fn accept(incoming: Incoming, secret: &Secret) -> Result<Connection> {
        Connection::accept_any(incoming, &[secret]).await.map(|(connection, _)| connection)
    }

    /// The same where several keys are let in; tells which of them it proved.
    pub async fn accept_any(incoming: Incoming, keys: &[&Secret]) -> Result<(Connection, usize)> {
        let Incoming { socket, peer } = incoming;
        let name = |error: Error| error.context(&peer);
        let limit = Duration::from_millis(limits::HANDSHAKE_MILLIS_MAX);
        if crate::socket::peer_uid(&socket).is_none() {
            crate::socket::prepare_tcp(&socket).map_err(name)?;
        }
        let socket = Rc::new(Socket::new(socket).map_err(name)?);
        let unproven = Unproven::enter(&socket);
        let proved = timeout(limit, prove(&socket, keys)).await.unwrap_or_else(|_| {
            let text = format!("the handshake was not finished within {} ms", limit.as_millis());
            Err(Error::new(ErrorKind::TimedOut, text))
        });
        let which = match proved {
            Ok(which) => which,
            Err(error) => {
                // The line is a courtesy: whoever does not take it in time does without.
                let _ = timeout(limit, refuse(&socket, &error)).await;
                return Err(name(error));
            }
        };
        drop(unproven);
        Ok((Connection::new(socket, peer), which))
    }
}

/// Which of the keys the newcomer proves.
async fn prove(socket: &Socket, keys: &[&Secret]) -> Result<usize> {
    let mut hello = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < PREAMBLE_BYTES {
        filled += receive(socket, &mut hello[filled..PREAMBLE_BYTES]).await?;
        check_greeting(&hello[..filled])?;
    }
    check_client_preamble(hello[..PREAMBLE_BYTES].try_into().expect("the length was just cut"))?;
    receive_exactly(socket, &mut hello[PREAMBLE_BYTES..]).await?;
    let (which, handshake, answer) = ServerHandshake::answer(keys, &hello)?;
    send_all(socket, &answer).await?;
    let mut confirmation = [0; CONFIRMATION_BYTES];
    receive_exactly(socket, &mut confirmation).await?;
    handshake.confirm(&confirmation)?;
    Ok(which)
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

thread_local! {
    /// Who has not proved the secret yet, in the order of arrival.
    static UNPROVEN: RefCell<VecDeque<Canceller>> = RefCell::default();
}

/// A place among those that have not proved the secret yet. When there are too many, the oldest
/// goes: honest clients are done within a few milliseconds.
struct Unproven(Canceller);

impl Unproven {
    fn enter(socket: &Rc<Socket>) -> Unproven {
        let canceller = Canceller::new(socket);
        let crowded_out = UNPROVEN.with_borrow_mut(|waiting| {
            waiting.push_back(canceller.clone());
            (waiting.len() > limits::CONNECTIONS_UNPROVEN_MAX).then(|| waiting.pop_front()).flatten()
        });
        if let Some(oldest) = crowded_out {
            oldest.cancel();
        }
        Unproven(canceller)
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        UNPROVEN.with_borrow_mut(|waiting| waiting.retain(|other| !other.0.ptr_eq(&self.0.0)));
    }
}

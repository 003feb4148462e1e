//! Connections to the other servers of the pool.
//!
//! Messages between servers are idempotent, so a call whose connection broke is sent once more on a new one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId, limits};
use ramlace_transport::nonblocking::Connection;
use ramlace_transport::trace::RequestName;
use ramlace_transport::{Address, ClientKey, Failure, TakeBody};
use ramlace_wire::session::{OpenSession, SessionKind};
use ramlace_wire::{ClusterMap, Header, Request, decode_reply, encode_body};
use tokio::sync::Semaphore;

use crate::cause;

/// How long a server waits for another.
pub const PEER_DEADLINE: Duration = Duration::from_millis(2_000);
/// Idle connections kept for each server.
const IDLE_CONNECTIONS_MAX: usize = 4;
/// Connections to one server that are being opened at once: far fewer than it lets wait for their greeting
/// ([`limits::CONNECTIONS_UNPROVEN_MAX`]), since other servers may be on the same machine. More would take each other's
/// places. Those that are open have no limit: a call may wait for one in the other direction.
const OPENED_AT_ONCE_MAX: usize = limits::CONNECTIONS_UNPROVEN_MAX / 8;

/// The client side towards the other servers.
pub struct Peers {
    key: RefCell<ClientKey>,
    session: SessionId,
    /// Requests so far, over all connections: what names one of them in the logs of both servers.
    calls: Cell<u32>,
    label: String,
    idle: RefCell<HashMap<String, Vec<Connection>>>,
    /// By address, turns to open a connection.
    turns: RefCell<HashMap<String, Rc<Semaphore>>>,
}

impl Peers {
    /// `session`: a new id that identifies this process in its calls.
    pub fn new(key: ClientKey, session: SessionId, label: String) -> Peers {
        let (idle, turns) = Default::default();
        Peers { key: RefCell::new(key), session, calls: Cell::new(0), label, idle, turns }
    }

    /// What identifies this process in its calls.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Proves identity by this key from now on.
    pub fn set_key(&self, key: &ClientKey) {
        if *self.key.borrow() != *key {
            self.key.replace(key.clone());
            self.idle.borrow_mut().clear();
        }
    }

    /// Calls a server of the map.
    pub async fn call<R: Request>(
        &self,
        map: &ClusterMap,
        server: ServerId,
        request: &R,
    ) -> std::result::Result<R::Reply, Failure> {
        let entry = map.server(server).filter(|entry| !entry.forgotten).ok_or_else(|| {
            Failure::from(Error::new(ErrorKind::HostDown, format!("{server} is not in the map any more")))
        })?;
        let header = Header { epoch: map.epoch, ..Header::request(R::KIND) };
        self.call_address(server, &entry.tcp, header, request)
            .await
            .map_err(|failure| failure.context(server))
    }

    /// Calls the server at an address that its map entry does not have yet, or no longer has.
    pub async fn call_address<R: Request>(
        &self,
        server: ServerId,
        address: &str,
        header: Header,
        request: &R,
    ) -> std::result::Result<R::Reply, Failure> {
        let (header, body) = (Header { kind: R::KIND, ..header }, encode_body(request));
        let mut reply = None;
        self.exchange(server, address, header, &body, &mut |body| {
            reply = Some(decode_reply(request, body)?);
            Ok(())
        })
        .await?;
        Ok(reply.expect("a reply that came was taken"))
    }

    /// The same for any message: this is compiled once, not once for each of them.
    async fn exchange(
        &self,
        server: ServerId,
        address: &str,
        header: Header,
        body: &[u8],
        take: &mut TakeBody<'_>,
    ) -> std::result::Result<(), Failure> {
        if let Some(mut connection) = self.take_idle(address) {
            match self.ask(&mut connection, server, header, body, take).await {
                Err(failure) if failure.fatal && failure.error.kind() != ErrorKind::TimedOut => {}
                outcome => return self.check_in(address, connection, outcome),
            }
        }
        let mut connection = self.connect(server, address).await?;
        let outcome = self.ask(&mut connection, server, header, body, take).await;
        self.check_in(address, connection, outcome)
    }

    /// Sends a request on a connection. The log has the request's name, under which the other server logs it too,
    /// and the name of the client's request that caused it.
    async fn ask(
        &self,
        connection: &mut Connection,
        server: ServerId,
        header: Header,
        body: &[u8],
        take: &mut TakeBody<'_>,
    ) -> std::result::Result<(), Failure> {
        let call = self.calls.get().wrapping_add(1);
        self.calls.set(call);
        let header = Header { session: self.session, call, ..header };
        let (name, cause) = (RequestName::of(&header), cause::now().map(tracing::field::display));
        let (kind, number) = (header.kind, server.0);
        tracing::debug!(target: "ramlace::peers", request = %name, cause, ?kind, server = number, "asks");
        let outcome = connection.call_body(header, body, PEER_DEADLINE, take).await;
        match &outcome {
            Ok(()) => {
                tracing::debug!(target: "ramlace::peers", request = %name, ?kind, server = number, "is answered");
            }
            Err(Failure { error, fatal, .. }) => {
                tracing::debug!(target: "ramlace::peers", request = %name, ?kind, server = number, %error, fatal, "fails");
            }
        }
        outcome
    }

    fn check_in(
        &self,
        address: &str,
        connection: Connection,
        outcome: std::result::Result<(), Failure>,
    ) -> std::result::Result<(), Failure> {
        if !matches!(&outcome, Err(failure) if failure.fatal) {
            let mut idle = self.idle.borrow_mut();
            let idle = idle.entry(address.to_owned()).or_default();
            if idle.len() < IDLE_CONNECTIONS_MAX {
                idle.push(connection);
            }
        }
        outcome
    }

    fn take_idle(&self, address: &str) -> Option<Connection> {
        self.idle.borrow_mut().get_mut(address)?.pop()
    }

    fn turns_of(&self, address: &str) -> Rc<Semaphore> {
        let mut turns = self.turns.borrow_mut();
        // Servers move seldom; those that nobody asks any more need none.
        if !turns.contains_key(address) {
            turns.retain(|_, turns| turns.available_permits() < OPENED_AT_ONCE_MAX);
        }
        let new = || Rc::new(Semaphore::new(OPENED_AT_ONCE_MAX));
        turns.entry(address.to_owned()).or_insert_with(new).clone()
    }

    async fn connect(&self, server: ServerId, address: &str) -> Result<Connection> {
        let connecting = async {
            let turns = self.turns_of(address);
            let _turn = turns.acquire().await.expect("nobody closes it");
            let place = Address::Tcp(address.to_owned());
            let key = self.key.borrow().clone();
            let mut connection = Connection::connect(&place, &key, Some(server)).await?;
            let hello = OpenSession { kind: SessionKind::Peer, resume: false, label: self.label.clone() };
            let header = Header::request(OpenSession::KIND);
            let opened = &mut |body: &[u8]| decode_reply(&hello, body).map(drop);
            let asked = self.ask(&mut connection, server, header, &encode_body(&hello), opened).await;
            asked.map_err(|failure| failure.error)?;
            Ok(connection)
        };
        tokio::time::timeout(PEER_DEADLINE, connecting)
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::HostDown, format!("{address} does not answer"))))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use ramlace_wire::session::GetServerStatus;
    use tokio::net::TcpListener;

    use super::*;
    use crate::testing::{run, secret};

    /// While a crowd of calls to one server begins, connections to it in their greeting.
    async fn greeting_at_once(calls: usize) -> usize {
        // It answers no greeting, so that none ends.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = Rc::new(Peers::new(secret().peer_key(), SessionId([1; 16]), "test".into()));
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let (peers, address) = (peers.clone(), address.clone());
            asking.spawn_local(async move {
                let header = Header::request(GetServerStatus::KIND);
                peers.call_address(ServerId(1), &address, header, &GetServerStatus {}).await.map(drop)
            });
        }
        let mut greeting = Vec::new();
        let quiet = Duration::from_millis(200);
        while let Ok(come) = tokio::time::timeout(quiet, listener.accept()).await {
            greeting.push(come.unwrap());
        }
        greeting.len()
    }

    #[test]
    fn a_crowd_of_calls_takes_a_few_of_the_places_for_those_who_have_not_greeted() {
        run(async {
            assert_eq!(greeting_at_once(100).await, OPENED_AT_ONCE_MAX);
            assert_eq!(greeting_at_once(3).await, 3);
        });
    }
}

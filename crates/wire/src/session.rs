//! Family 0x00: sessions and single servers.

use ramlace_base::{Epoch, ServerId};
use serde::{Deserialize, Serialize};

use crate::possible::is_counted;
use crate::types::numbered;
use crate::{Credentials, HostId, Kind, PoolId, Request};

numbered! {
    /// What a session may do.
    SessionKind {
        /// Acts for the pool's owner.
        User = 1,
        /// Acts for the users of a machine; needs a host key.
        Host = 2,
        /// Another server of the pool.
        Peer = 3,
    }
}

/// Begins the session named in the header, or joins this connection to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// What the session may do.
    pub kind: SessionKind,
    /// The session must exist already: an ended one answers Stale instead of beginning anew.
    pub resume: bool,
    /// The name of the session, for people: program and process id.
    pub label: String,
}

/// What a connection learns when its session is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOpened {
    /// The pool.
    pub pool: PoolId,
    /// The server that answers.
    pub server: ServerId,
    /// The machine it runs on.
    pub host: HostId,
    /// The epoch of its map.
    pub epoch: Epoch,
    /// The user for whom the session acts.
    pub credentials: Credentials,
    /// The session ends when nothing was received from it for so long.
    pub expiry_millis: u64,
}

impl Request for OpenSession {
    const KIND: Kind = Kind::OpenSession;
    type Reply = SessionOpened;
}

/// The session of the header is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

impl Request for Heartbeat {
    const KIND: Kind = Kind::Heartbeat;
    type Reply = ();
}

/// The session of the header ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseSession {}

impl Request for CloseSession {
    const KIND: Kind = Kind::CloseSession;
    type Reply = ();
}

/// Asks what a server holds and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetServerStatus {}

/// What a server holds and does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server.
    pub server: ServerId,
    /// Its process.
    pub pid: u32,
    /// The small parent that keeps its store.
    pub supervisor_pid: u32,
    /// How often the parent has started it again.
    pub restarts: u32,
    /// Time since it started.
    pub uptime_millis: u64,
    /// The epoch of its map.
    pub epoch: Epoch,
    /// Bulk data cross the network without a key.
    pub trusts_network: bool,
    /// Bytes it lends.
    pub store_bytes: u64,
    /// Bytes taken by files and by the namespace.
    pub used_bytes: u64,
    /// Bytes of `used_bytes` that hold the namespace and its log.
    pub meta_bytes: u64,
    /// Bytes that files may still take: what is free, but for what is kept for the log.
    pub files_free_bytes: u64,
    /// Free bytes that are already taken from the machine.
    pub reserved_bytes: u64,
    /// Inodes it is home to.
    pub inodes: u64,
    /// Inodes it may be home to.
    pub inodes_max: u64,
    /// Lanes it holds.
    pub lanes: u64,
    /// Locks held on files that live with it.
    pub locks: u64,
    /// Requests that wait for such locks.
    pub lock_waits: u64,
    /// Members that wait at barriers.
    pub barrier_waits: u64,
    /// Waits for a change of some bytes.
    pub change_waits: u64,
    /// Sessions open.
    pub sessions: u32,
    /// Connections open.
    pub connections: u32,
    /// Bytes read from its store by requests since it started.
    pub read_bytes: u64,
    /// Bytes written to its store by requests since it started.
    pub written_bytes: u64,
    /// Requests answered since it started.
    pub requests: u64,
    /// How its memory is made, in sentences.
    pub notes: Vec<String>,
}

/// Memory that one server lends, and what it counts in it: those of all servers of a pool can be added up.
const OF_ONE_SERVER_MAX: u64 = 1 << 50;

impl ServerStatus {
    pub(crate) fn is_possible(&self) -> bool {
        let memory = [
            self.store_bytes,
            self.used_bytes,
            self.meta_bytes,
            self.files_free_bytes,
            self.reserved_bytes,
            self.inodes,
            self.lanes,
        ];
        let counted = [
            self.locks,
            self.lock_waits,
            self.barrier_waits,
            self.change_waits,
            self.read_bytes,
            self.written_bytes,
            self.requests,
            self.uptime_millis,
        ];
        memory.into_iter().all(|number| number <= OF_ONE_SERVER_MAX) && counted.into_iter().all(is_counted)
    }
}

impl Request for GetServerStatus {
    const KIND: Kind = Kind::ServerStatus;
    type Reply = ServerStatus;

    fn fits(&self, reply: &ServerStatus) -> bool {
        reply.is_possible()
    }
}

/// Stops a server: it answers, finishes what is under way, and ends; its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopServer {}

impl Request for StopServer {
    const KIND: Kind = Kind::StopServer;
    type Reply = ();
}

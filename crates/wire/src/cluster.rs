//! Family 0x01: the cluster map and the members of the pool.

use ramlace_base::{Epoch, ServerId};
use serde::{Deserialize, Serialize};

use crate::{ClusterMap, Kind, Request, ServerEntry};

/// Asks for the cluster map. A server that has none yet answers Retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetMap {}

impl Request for GetMap {
    const KIND: Kind = Kind::GetMap;
    type Reply = ClusterMap;
}

/// A server asks the coordinator to be taken into the map, or reports its new addresses. Answered with Retry
/// until every server of the pool has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinPool {
    /// The server and where it listens.
    pub entry: ServerEntry,
    /// Whether its store still holds the bytes from before its restart: true once the store has been part of
    /// a map, false for a store that is new or was made anew.
    pub keeps_store: bool,
}

impl Request for JoinPool {
    const KIND: Kind = Kind::JoinPool;
    type Reply = ClusterMap;
}

/// Gives a dead server's slots to the others, empty: reads of what it held fail as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetServer {
    /// The server to forget.
    pub server: ServerId,
}

/// The map without the forgotten server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// The map's new epoch.
    pub epoch: Epoch,
}

impl Request for ForgetServer {
    const KIND: Kind = Kind::ForgetServer;
    type Reply = Forgotten;
}

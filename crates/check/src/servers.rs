//! The one door to the outside: how servers are asked, and how time passes.

use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{InodeId, Result, ServerId};
use ramlace_wire::{ClusterMap, Request};

/// What mounts have reported of stores that they lost: the file, and a sentence about it.
pub type LostStores = (InodeId, String);

/// The servers of a pool, as a caller reaches them.
pub trait Servers {
    /// The newest cluster map, asked for anew.
    fn map(&self) -> Result<Arc<ClusterMap>>;

    /// Asks one server, whatever its slots.
    ///
    /// Errors: `HostDown` when it does not answer by the caller's deadline, and what it answers.
    fn ask<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply>;

    /// Lets so much time pass.
    fn wait(&self, time: Duration);
}

/// Those that hold something.
pub(crate) fn serving(map: &ClusterMap) -> Vec<ServerId> {
    map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server).collect()
}

/// Asks a server for page after page; `take` returns what to ask next.
pub(crate) fn pages<R: Request>(
    servers: &impl Servers,
    server: ServerId,
    first: R,
    mut take: impl FnMut(R::Reply) -> Option<R>,
) -> Result<()> {
    let mut next = Some(first);
    while let Some(request) = next {
        next = take(servers.ask(server, &request)?);
    }
    Ok(())
}

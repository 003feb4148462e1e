//! What runs of a pool on this machine, found in both ways: by command lines, and by sockets.

use ramlace_base::Result;
use ramlace_client::PoolDirectory;

use crate::processes::{self, PoolProcess};
use crate::sockets::{self, Holder, Listening};

/// The servers of a pool that run on this machine.
#[derive(Debug)]
pub struct Running {
    /// Their processes, as far as this user sees them; supervisors first.
    pub processes: Vec<PoolProcess>,
    /// Servers that accept connections, and whose processes are out of this user's sight.
    pub hidden: Vec<Listening>,
}

impl Running {
    /// Looks for them; the pool's directory need not be there any more.
    pub fn find(directory: &PoolDirectory) -> Result<Running> {
        let processes = processes::find(&directory.secret_path())?;
        // Afterwards: a server is in sight until it listens, so none slips through.
        let seen: Vec<u16> = processes.iter().map(|process| process.is.server).collect();
        Ok(Running { hidden: sockets::find(directory, &seen)?, processes })
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.hidden.is_empty()
    }

    /// How many different servers run.
    pub fn count_servers(&self) -> usize {
        let seen = self.processes.iter().map(|process| process.is.server);
        let mut servers: Vec<u16> = seen.chain(self.hidden.iter().map(|one| one.server)).collect();
        servers.sort_unstable();
        servers.dedup();
        servers.len()
    }

    /// How many servers the pool began with, on all its machines, as their command lines say.
    pub fn servers_of_pool(&self) -> Option<u16> {
        self.processes.iter().filter_map(|process| process.is.servers).max()
    }

    /// Whether these are servers of the pool with this id, as their command lines say; `None` where none says it.
    pub fn is_of(&self, pool_id: &str) -> Option<bool> {
        let mut ids = self.processes.iter().filter_map(|process| process.is.pool_id.as_deref()).peekable();
        ids.peek()?;
        Some(ids.all(|id| id == pool_id))
    }

    /// Every process that can be signalled, supervisors first.
    pub fn reachable(&self) -> Vec<&PoolProcess> {
        let hidden = self.hidden.iter().filter_map(|one| match &one.holder {
            Holder::Supervisor(process) => Some(process),
            Holder::Group(_) | Holder::Unknown => None,
        });
        hidden.chain(&self.processes).collect()
    }

    /// Whether any of it can be ended.
    pub fn can_be_ended(&self) -> bool {
        !self.processes.is_empty() || self.hidden.iter().any(|one| !matches!(one.holder, Holder::Unknown))
    }
}

//! The pools of this user that this machine knows, and how they are.

use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Pool, PoolDirectory, PoolFile, PoolFileHosts};

use crate::running::Running;

/// How long a pool on other machines may take to answer.
const PATIENCE_MILLIS: u32 = 2000;

/// A pool that has a directory here.
#[derive(Debug)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// Where its secret and its sockets lie.
    pub directory: PathBuf,
    /// `host:port` of its first server.
    pub address: Option<String>,
    /// How it is.
    pub state: PoolState,
}

/// What is known of a pool.
#[derive(Debug)]
pub enum PoolState {
    /// So many of so many servers run on this machine.
    RunsHere(usize, usize),
    /// Servers on these hosts were asked: so many of so many answer.
    Answers(Vec<String>, usize, usize),
    /// None of the servers on these hosts could be reached.
    Silent(Vec<String>, Error),
    /// Nothing of it runs any more.
    Dead,
    /// It cannot be determined.
    Unknown(Error),
}

impl PoolState {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_good(&self) -> bool {
        match self {
            PoolState::RunsHere(found, servers) | PoolState::Answers(_, found, servers) => found == servers,
            PoolState::Silent(..) | PoolState::Dead | PoolState::Unknown(_) => false,
        }
    }
}

/// What pool.json says of several machines, if it does; a damaged file says nothing.
pub fn hosts_of(directory: &PoolDirectory) -> Result<Option<(PoolFile, PoolFileHosts)>> {
    match directory.read_pool_file() {
        Ok(file) => Ok(file.hosts.clone().map(|hosts| (file, hosts))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All of them, by name.
pub fn known_pools() -> Result<Vec<KnownPool>> {
    Ok(PoolDirectory::list()?.iter().map(look_at).collect())
}

fn look_at(directory: &PoolDirectory) -> KnownPool {
    let servers = directory.read_pool_file().map(|file| file.servers).unwrap_or_default();
    KnownPool {
        name: directory.name().to_owned(),
        directory: directory.path().to_owned(),
        state: state_of(directory, servers.len()),
        address: servers.into_iter().next().map(|server| server.tcp),
    }
}

/// A pool of several machines is asked: its servers need no process here.
fn state_of(directory: &PoolDirectory, servers: usize) -> PoolState {
    if let Ok(Some((_, hosts))) = hosts_of(directory) {
        let options = ConnectOptions {
            pool: Some(directory.name().to_owned()),
            deadline_millis: PATIENCE_MILLIS,
            ..ConnectOptions::default()
        };
        return match Pool::connect(&options).and_then(|pool| pool.status()) {
            Ok(reports) => {
                let answering = reports.iter().filter(|report| report.status.is_ok()).count();
                PoolState::Answers(hosts.hosts, answering, reports.len())
            }
            Err(error) => PoolState::Silent(hosts.hosts, error),
        };
    }
    match Running::find(directory) {
        Ok(running) if running.is_empty() => PoolState::Dead,
        // A pool that is just starting has servers before it has its file.
        Ok(running) => PoolState::RunsHere(running.count_servers(), servers.max(running.count_servers())),
        Err(error) => PoolState::Unknown(error),
    }
}

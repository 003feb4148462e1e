//! The pools of this user that this machine knows, and how they are.

use std::path::PathBuf;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Pool, PoolDirectory, PoolFile, PoolFileHosts};

use crate::pool_processes;
use crate::sentences::{listed, option_for};
use crate::show::answering;
use crate::stop::count_servers;

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
    Answers(String, usize, usize),
    /// None of the servers on these hosts could be reached.
    Silent(String, Error),
    /// Nothing of it runs any more.
    Dead,
    /// It cannot be determined.
    Unknown(Error),
}

impl PoolState {
    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            PoolState::RunsHere(..) | PoolState::Answers(..) => "running",
            PoolState::Silent(..) => "not answering",
            PoolState::Dead => "dead",
            PoolState::Unknown(_) => "unknown",
        }
    }

    /// Whether nothing is to be done.
    pub fn is_good(&self) -> bool {
        match self {
            PoolState::RunsHere(found, servers) | PoolState::Answers(_, found, servers) => found == servers,
            PoolState::Silent(..) | PoolState::Dead | PoolState::Unknown(_) => false,
        }
    }

    /// For people, with the next step for the pool of this name.
    pub fn told(&self, name: &str) -> String {
        let option = option_for(name);
        match self {
            PoolState::RunsHere(found, servers) if found == servers => {
                format!("{} running", count(*servers as u64, "server"))
            }
            PoolState::RunsHere(found, servers) => format!(
                "{found} of {} running; 'ramlace status{option}' names the others",
                count(*servers as u64, "server")
            ),
            PoolState::Answers(hosts, answered, servers) => {
                format!("{}, on {hosts}", answering(*answered, *servers))
            }
            PoolState::Silent(hosts, error) => format!(
                "on {hosts}: {}; it may run all the same, 'ramlace status{option}' asks again",
                error.message()
            ),
            PoolState::Dead => format!("dead; 'ramlace up{option}' or 'down{option}' clears it"),
            PoolState::Unknown(error) => error.message().to_owned(),
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
        let hosts = listed(&hosts.hosts);
        return match Pool::connect(&options).and_then(|pool| pool.status()) {
            Ok(reports) => {
                let answering = reports.iter().filter(|report| report.status.is_ok()).count();
                PoolState::Answers(hosts, answering, reports.len())
            }
            Err(error) => PoolState::Silent(hosts, error),
        };
    }
    match pool_processes::find(&directory.secret_path()) {
        Ok(running) if running.is_empty() => PoolState::Dead,
        // A pool that is just starting has servers before it has its file.
        Ok(running) => PoolState::RunsHere(count_servers(&running), servers.max(count_servers(&running))),
        Err(error) => PoolState::Unknown(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_other_machines_is_not_dead_because_nothing_of_it_runs_here() {
        let hosts = || "hosts n1, n2".to_owned();
        let answers = PoolState::Answers(hosts(), 4, 4);
        assert_eq!(
            (answers.is_good(), &answers.told("lab")[..]),
            (true, "4 of 4 servers answer, on hosts n1, n2")
        );
        let silent = PoolState::Silent(hosts(), Error::new(ErrorKind::HostDown, "no route"));
        let told = silent.told("lab");
        assert!(!silent.is_good() && told.contains("status --pool lab"), "{told}");
        for advice in ["down", "up", "dead"] {
            assert!(!told.contains(advice), "{told}");
        }
        assert!(PoolState::Dead.told("lab").contains("'down --pool lab' clears it"));
        assert_eq!(PoolState::RunsHere(1, 1).told("lab"), "1 server running");
        let less = PoolState::RunsHere(1, 3);
        assert!(
            !less.is_good()
                && less.told("lab").starts_with("1 of 3 servers running; 'ramlace status --pool lab'")
        );
        assert!(!PoolState::Answers(hosts(), 3, 4).is_good());
    }
}

//! Stops the servers of a pool on this machine and clears away what they leave.

use std::path::Path;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolDirectory;

use crate::processes::{PoolProcess, Role, find, wait_all};

/// How long a server may take to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a killed process.
const PATIENCE_KILLED: Duration = Duration::from_secs(5);
/// Searches for processes that were being started while others were stopped.
const ROUNDS_MAX: usize = 3;

/// Stops every server of the pool with this secret. Returns their number, and what went
/// otherwise than it should, in sentences.
pub fn stop_servers(secret_file: &Path) -> Result<(usize, Vec<String>)> {
    let mut notes = Vec::new();
    let mut servers = 0;
    for _ in 0..ROUNDS_MAX {
        let processes = find(secret_file)?;
        if processes.is_empty() {
            return Ok((servers, notes));
        }
        servers = servers.max(count_servers(&processes));
        stop_round(&processes, &mut notes)?;
    }
    match find(secret_file)?.first() {
        None => Ok((servers, notes)),
        Some(process) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "server {} (process {}) does not end; look at what starts it, then run 'ramlace down' again",
                process.server, process.pid
            ),
        )),
    }
}

/// Asks the supervisors, and kills what does not answer: supervisors first, for they start children again.
fn stop_round(processes: &[PoolProcess], notes: &mut Vec<String>) -> Result<()> {
    let supervisors: Vec<u16> = processes
        .iter()
        .filter(|process| process.role == Role::Supervisor)
        .map(|process| process.server)
        .collect();
    for process in processes {
        match process.role {
            Role::Supervisor => process.terminate()?,
            Role::Child if supervisors.contains(&process.server) => {}
            Role::Child => {
                process.kill()?;
                notes.push(format!("server {} had lost its supervisor; it was killed", process.server));
            }
        }
    }
    let all: Vec<&PoolProcess> = processes.iter().collect();
    if wait_all(&all, PATIENCE) {
        return Ok(());
    }
    for process in processes.iter().filter(|process| !process.has_ended()) {
        process.kill()?;
        let role = if process.role == Role::Supervisor { "supervisor" } else { "process" };
        notes.push(format!(
            "the {role} {} of server {} did not stop within {} seconds; it was killed",
            process.pid,
            process.server,
            PATIENCE.as_secs()
        ));
    }
    wait_all(&all, PATIENCE_KILLED);
    Ok(())
}

/// How many different servers the processes belong to.
pub fn count_servers(processes: &[PoolProcess]) -> usize {
    let mut servers: Vec<u16> = processes.iter().map(|process| process.server).collect();
    servers.sort_unstable();
    servers.dedup();
    servers.len()
}

/// Gives back shared memory that killed servers of the pool left behind; returns its bytes.
pub fn remove_stale_stores(directory: &PoolDirectory) -> Result<u64> {
    let mut freed = 0;
    for stale in ramlace_store::find_stale()? {
        if is_store_of(&stale.path, directory.name()) {
            ramlace_store::remove_stale(&stale)?;
            freed += stale.allocated_bytes;
        }
    }
    Ok(freed)
}

/// Whether a store's directory is named for a server of this pool: `ramlace-UID-POOL-SERVER-RANDOM`.
fn is_store_of(path: &str, pool: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let rest = name.strip_prefix("ramlace-").and_then(|rest| rest.split_once('-')).map(|(_uid, rest)| rest);
    let server =
        rest.and_then(|rest| rest.rsplit_once('-')).and_then(|(rest, _random)| rest.rsplit_once('-'));
    // The store's name has no dots.
    server.is_some_and(|(named, number)| named == pool.replace('.', "_") && number.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_knows_its_own_stores() {
        assert!(is_store_of("/dev/shm/ramlace-0-lab-3-0123456789abcdef", "lab"));
        assert!(is_store_of("/dev/shm/ramlace-1000-a-0-1-0123456789abcdef", "a-0"));
        assert!(is_store_of("/dev/shm/ramlace-1000-a_b-1-0123456789abcdef", "a.b"));
        for path in
            ["/dev/shm/ramlace-1000-a-0-1-0123456789abcdef", "/dev/shm/ramlace-1000-a-x-01", "/dev/shm/other"]
        {
            assert!(!is_store_of(path, "a"), "{path}");
        }
    }
}

//! Stops the servers of a pool on this machine and clears away what they leave.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolDirectory;

use crate::processes::{PoolProcess, Role, wait_all};
use crate::running::Running;
use crate::sockets::{self, Holder};

/// How long a server may take to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a killed process.
const PATIENCE_KILLED: Duration = Duration::from_secs(5);
/// Searches for processes that were being started while others were stopped.
const ROUNDS_MAX: usize = 3;

/// Stops every server of the pool on this machine. Returns their number, and what went otherwise than it should, in
/// sentences.
///
/// Errors: `Busy` while one runs on all the same.
pub fn stop_servers(directory: &PoolDirectory) -> Result<(usize, Vec<String>)> {
    let mut notes = Vec::new();
    let mut servers = 0;
    for _ in 0..ROUNDS_MAX {
        let running = Running::find(directory)?;
        if running.is_empty() {
            return Ok((servers, notes));
        }
        servers = servers.max(running.count_servers());
        if !running.can_be_ended() {
            break;
        }
        stop_round(&running, &mut notes)?;
    }
    let left = Running::find(directory)?;
    if let Some(process) = left.reachable().first() {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "server {} (process {}) does not end; look at what starts it, then run 'ramlace down' again",
                process.is.server, process.pid
            ),
        ));
    }
    left.hidden.first().map_or(Ok((servers, notes)), |one| Err(one.stays(directory)))
}

/// Asks the supervisors, and kills what does not answer: supervisors first, for they start children again.
fn stop_round(running: &Running, notes: &mut Vec<String>) -> Result<()> {
    let all = running.reachable();
    let is_supervised = |server: u16| {
        all.iter().any(|process| process.is.role == Role::Supervisor && process.is.server == server)
    };
    for process in &all {
        match process.is.role {
            Role::Supervisor => process.terminate()?,
            Role::Child if is_supervised(process.is.server) => {}
            Role::Child => {
                process.kill()?;
                notes.push(lost_supervisor(process.is.server));
            }
        }
    }
    for one in running.hidden.iter().filter(|one| matches!(one.holder, Holder::Group(_))) {
        one.kill_group();
        notes.push(lost_supervisor(one.server));
    }
    if !wait_all(&all, PATIENCE) {
        kill_all(&all, notes)?;
    }
    // A process that nobody sees is gone when its socket is closed.
    let end = Instant::now() + PATIENCE_KILLED;
    running.hidden.iter().filter(|one| !matches!(one.holder, Holder::Unknown)).for_each(|one| one.wait(end));
    Ok(())
}

/// Kills those that have not ended.
fn kill_all(all: &[&PoolProcess], notes: &mut Vec<String>) -> Result<()> {
    for process in all.iter().filter(|process| !process.has_ended()) {
        process.kill()?;
        let role = if process.is.role == Role::Supervisor { "supervisor" } else { "process" };
        notes.push(format!(
            "the {role} {} of server {} did not stop within {} seconds; it was killed",
            process.pid,
            process.is.server,
            PATIENCE.as_secs()
        ));
    }
    wait_all(all, PATIENCE_KILLED);
    Ok(())
}

fn lost_supervisor(server: u16) -> String {
    format!("server {server} had lost its supervisor; it was killed")
}

/// Removes the pool's directory, which holds its secret.
///
/// Errors: `Busy` while a server accepts connections in it: without the directory nobody could end it.
pub fn remove_directory(directory: &PoolDirectory) -> Result<()> {
    match sockets::find(directory, &[])?.first() {
        Some(one) => Err(one.stays(directory)),
        None => directory.remove(),
    }
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use ramlace_base::ServerId;

    use super::*;
    use crate::fake_server::hidden;

    // SEMANTICS 40.7
    #[test]
    fn a_directory_in_which_somebody_listens_is_not_removed() {
        let base = std::env::temp_dir().join(format!("rlr-{}", std::process::id()));
        let directory = PoolDirectory::within(&base, "lab").unwrap();
        directory.create().unwrap();
        let listener = UnixListener::bind(directory.socket_path(ServerId(0))).unwrap();
        let error = remove_directory(&directory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let told = error.message();
        assert!(told.contains("server 0 runs") && told.contains("'ramlace down --pool lab' again"), "{told}");
        drop(listener);
        remove_directory(&directory).unwrap();
        assert!(!directory.exists().unwrap());
        std::fs::remove_dir(&base).unwrap();
    }

    // SEMANTICS 40.6
    #[test]
    fn a_server_whose_command_line_nobody_sees_is_ended() {
        let (base, directory, mut server) = hidden("s");
        let running = Running::find(&directory).unwrap();
        assert_eq!((running.processes.len(), running.count_servers()), (0, 1));
        let (servers, notes) = stop_servers(&directory).unwrap();
        // Unlike a supervisor it does not end its child, which is found as one that is alone.
        assert_eq!((servers, &notes[..]), (1, &[lost_supervisor(0)][..]));
        server.wait().unwrap();
        remove_directory(&directory).unwrap();
        std::fs::remove_dir(&base).unwrap();
    }

    // SEMANTICS 40.6
    #[test]
    fn a_child_whose_command_line_nobody_sees_is_ended_with_its_group() {
        let (base, directory, mut server) = hidden("c");
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(remove_directory(&directory).unwrap_err().kind(), ErrorKind::Busy);
        let file = std::fs::read(directory.pool_file_path()).unwrap();
        std::fs::remove_file(directory.pool_file_path()).unwrap();
        // The number alone might be another's by now.
        let error = stop_servers(&directory).unwrap_err();
        assert!(error.message().contains("'ss -xlp src "), "{error}");
        std::fs::write(directory.pool_file_path(), file).unwrap();
        std::fs::set_permissions(directory.pool_file_path(), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(stop_servers(&directory).unwrap(), (1, vec![lost_supervisor(0)]));
        remove_directory(&directory).unwrap();
        std::fs::remove_dir(&base).unwrap();
    }

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

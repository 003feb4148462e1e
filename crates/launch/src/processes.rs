//! The processes of a pool on this machine: found, signalled and waited for by handles that
//! never mean another process.
//!
//! A process belongs to a pool when it is this user's, runs `serve` or `serve-child`, and has an argument that
//! names the secret of that pool's directory.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ramlace_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long one process may delay this one while it is examined.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// What a process is for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The small parent that holds the store.
    Supervisor,
    /// The process that serves.
    Child,
}

/// A process of a pool.
#[derive(Debug)]
pub struct PoolProcess {
    /// Its id.
    pub pid: u32,
    /// What it is.
    pub role: Role,
    /// Its server's number.
    pub server: u16,
    handle: OwnedFd,
}

impl PoolProcess {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        wait_all(&[self], Duration::ZERO)
    }

    /// Asks it to stop.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Ends it at once.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// One that has ended already needs no signal.
    fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(Error::from_io(&errno.into(), format!("stopping process {}", self.pid))),
        }
    }
}

/// Waits until all have ended, or for `patience`; says whether all have.
pub fn wait_all(processes: &[&PoolProcess], patience: Duration) -> bool {
    let end = Instant::now() + patience;
    processes.iter().all(|process| wait_one(process, end))
}

fn wait_one(process: &PoolProcess, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("a few seconds fit");
        // A process's handle becomes readable when the process ends.
        match poll(&mut [PollFd::new(&process.handle, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return true,
            // Without an answer the process counts as running, which is the safe side.
            Err(_) => return false,
        }
    }
}

/// The running processes of the pool whose secret is this file; supervisors first, by number.
pub fn find(secret_file: &Path) -> Result<Vec<PoolProcess>> {
    let entries = fs::read_dir("/proc").map_err(|error| Error::from_io(&error, "listing /proc"))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let mut found = look_at_all(pids, secret_file);
    found.sort_by_key(|process| (process.role == Role::Child, process.server));
    Ok(found)
}

/// Those of the processes that belong to the pool. A process that is stuck, such as a program in a mount whose
/// daemon is stopped, blocks a reader of its command line: it is passed over, for servers use no mount.
fn look_at_all(pids: Vec<u32>, secret_file: &Path) -> Vec<PoolProcess> {
    let (pids, secret_file) = (Arc::new(pids), Arc::<Path>::from(secret_file));
    let mut found = Vec::new();
    let mut next = 0;
    while next < pids.len() {
        let (tell, told) = channel();
        let (theirs, secret_file, first) = (pids.clone(), secret_file.clone(), next);
        // Left behind when it is stuck; this command ends soon.
        std::thread::spawn(move || {
            theirs[first..].iter().all(|pid| tell.send(look_at(*pid, &secret_file)).is_ok())
        });
        while next < pids.len() {
            let Ok(looked) = told.recv_timeout(LOOK_PATIENCE) else { break };
            found.extend(looked);
            next += 1;
        }
        // The one that kept the thread, if one did.
        next += 1;
    }
    found
}

/// The process, when it belongs to the pool. The handle is opened first, so that what is read
/// afterwards is about the process that the handle means, or the process has ended.
fn look_at(pid: u32, secret_file: &Path) -> Option<PoolProcess> {
    if owner_of(pid)? != rustix::process::geteuid().as_raw() {
        return None;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    role_of(&line, secret_file)?;
    let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let (role, server) = role_of(&line, secret_file)?;
    let process = PoolProcess { pid, role, server, handle };
    (!process.has_ended()).then_some(process)
}

/// The user a process acts for. Servers forbid other processes to inspect them, and their files in `/proc`
/// count as root's.
fn owner_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

/// What a process with this command line is to the pool, if anything.
fn role_of(command_line: &[u8], secret_file: &Path) -> Option<(Role, u16)> {
    let mut words = command_line.split(|byte| *byte == 0);
    let _program = words.next()?;
    match words.next()? {
        b"serve" => {
            let words: Vec<&[u8]> = words.collect();
            let value =
                |name: &[u8]| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
            (*value(b"--secret-file")? == secret_file.as_os_str().as_bytes()).then_some(())?;
            Some((Role::Supervisor, std::str::from_utf8(value(b"--server")?).ok()?.parse().ok()?))
        }
        b"serve-child" => {
            let config: serde_json::Value = serde_json::from_slice(words.next()?).ok()?;
            let options = &config["options"];
            (options["secret_file"].as_str()? == secret_file.to_str()?).then_some(())?;
            Some((Role::Child, options["server"].as_u64()?.try_into().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pools_own_processes_are_its_own() {
        let secret = Path::new("/run/x/secret");
        let supervisor = b"ramlace\0serve\0--secret-file\0/run/x/secret\0--server\x003\0";
        assert_eq!(role_of(supervisor, secret), Some((Role::Supervisor, 3)));
        let child = b"ramlace\0serve-child\0{\"options\":{\"secret_file\":\"/run/x/secret\",\"server\":2}}\0";
        assert_eq!(role_of(child, secret), Some((Role::Child, 2)));
        for line in [
            &b"ramlace\0serve\0--secret-file\0/run/y/secret\0--server\x003\0"[..],
            b"ramlace\0serve\0--server\x003\0",
            b"grep\0--secret-file\0/run/x/secret\0--server\x003\0",
            b"ramlace\0serve-child\0{}\0",
            b"ramlace\0serve-child\0/run/x/secret\0",
            b"ramlace\0",
            b"",
        ] {
            assert_eq!(role_of(line, secret), None, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn this_process_is_no_server_and_runs() {
        assert!(look_at(std::process::id(), Path::new("/run/x/secret")).is_none());
        let handle = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let process = PoolProcess { pid: std::process::id(), role: Role::Child, server: 0, handle };
        assert!(!process.has_ended());
    }
}

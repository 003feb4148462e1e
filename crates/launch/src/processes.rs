//! The processes of a pool on this machine: found, signalled and waited for by handles that
//! never mean another process.
//!
//! A process belongs to a pool when it is this user's, runs `serve` or `serve-child`, and has an argument that
//! names the secret of that pool's directory; so does the parent of such a `serve-child`. What `/proc` hides from this user
//! (`hidepid`) is not found here, but by `sockets`.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ramlace_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::looking::{all, look_at_each};

/// What a process is for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The small parent that holds the store.
    Supervisor,
    /// The process that serves.
    Child,
}

/// What a process is to its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it does.
    pub role: Role,
    /// Its server's number.
    pub server: u16,
    /// The pool's id, where its command line says so.
    pub pool_id: Option<String>,
    /// How many servers the pool began with, where its command line says so.
    pub servers: Option<u16>,
    /// The supervisor that has started it, as a child's command line has it.
    supervisor: Option<u32>,
}

/// A process of a pool.
#[derive(Debug)]
pub struct PoolProcess {
    /// Its id.
    pub pid: u32,
    /// What it is.
    pub is: Part,
    /// It leads a group of processes in which its child is, which was not found.
    leads: Option<Pid>,
    handle: OwnedFd,
}

impl PoolProcess {
    /// The supervisor that listens for a server; `leads`: it leads a group of processes, in which its child is.
    pub fn listening(pid: Pid, server: u16, leads: bool, handle: OwnedFd) -> PoolProcess {
        let is = Part { role: Role::Supervisor, server, pool_id: None, servers: None, supervisor: None };
        let number = pid.as_raw_nonzero().get().unsigned_abs();
        PoolProcess { pid: number, is, leads: leads.then_some(pid), handle }
    }

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
        // A child that nobody sees would stay. While the process runs, the group's number is its own.
        if let Some(group) = self.leads.filter(|_| !self.has_ended()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
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
    let secret = secret_file.to_owned();
    let mut found = look_at_each(all()?, move |pid| look_at(pid, &secret));
    let supervised = |child: &PoolProcess| {
        found.iter().any(|other| other.is.role == Role::Supervisor && other.is.server == child.is.server)
    };
    let children = found.iter().filter(|process| process.is.role == Role::Child && !supervised(process));
    let supervisors: Vec<PoolProcess> = children.filter_map(supervisor_of).collect();
    found.extend(supervisors);
    found.sort_by_key(|process| (process.is.role == Role::Child, process.is.server));
    Ok(found)
}

/// The supervisor of a child, where its own command line does not tell: a plain `ramlace serve` names no secret.
fn supervisor_of(child: &PoolProcess) -> Option<PoolProcess> {
    let parent = number_of(child.pid, "PPid:", 0)?;
    // In a namespace of its own it has another number than its child was given. Elsewhere another one is a stranger that
    // has taken the child in: it may be the supervisor of another pool.
    if child.is.supervisor != Some(parent) && !(number_of(parent, "NSpid:", 1).is_some() && serves(parent)) {
        return None;
    }
    let handle = pidfd_open(Pid::from_raw(i32::try_from(parent).ok()?)?, PidfdFlags::empty()).ok()?;
    // Asked again now that the handle is there: a process that has ended is nobody's parent, so the number has been
    // the same process's all the time.
    if number_of(child.pid, "PPid:", 0)? != parent || child.has_ended() {
        return None;
    }
    let is = Part { role: Role::Supervisor, supervisor: None, ..child.is.clone() };
    let process = PoolProcess { pid: parent, is, leads: None, handle };
    (!process.has_ended()).then_some(process)
}

/// Whether a process runs `serve`.
fn serves(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).skip(1).collect();
    command_of(&words).is_some_and(|(command, _)| command == b"serve")
}

/// The process, when it belongs to the pool. The handle is opened first, so that what is read
/// afterwards is about the process that the handle means, or the process has ended.
fn look_at(pid: u32, secret_file: &Path) -> Option<PoolProcess> {
    if owner_of(pid)? != rustix::process::geteuid().as_raw() {
        return None;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    part_of(&line, secret_file)?;
    let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let is = part_of(&line, secret_file)?;
    let process = PoolProcess { pid, is, leads: None, handle };
    (!process.has_ended()).then_some(process)
}

/// The user a process acts for. Servers forbid other processes to inspect them, and their files in `/proc`
/// count as root's.
fn owner_of(pid: u32) -> Option<u32> {
    number_of(pid, "Uid:", 1)
}

/// A number of a line of a process's status.
fn number_of(pid: u32, line: &str, place: usize) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|found| found.strip_prefix(line))?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

/// The command among the words behind the program, and the words behind it: only options of all commands may stand before it.
fn command_of<'a, 'b>(words: &'b [&'a [u8]]) -> Option<(&'a [u8], &'b [&'a [u8]])> {
    let (first, rest) = words.split_first()?;
    match *first {
        b"--json" => command_of(rest),
        b"--pool" => command_of(rest.get(1..)?),
        pool if pool.starts_with(b"--pool=") => command_of(rest),
        command => Some((command, rest)),
    }
}

/// The value of an option: the next word, or what stands behind `=`.
fn value_of<'a>(words: &[&'a [u8]], name: &str) -> Option<&'a [u8]> {
    words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(name.as_bytes())? {
        [] => words.get(at + 1).copied(),
        [b'=', value @ ..] => Some(value),
        _ => None,
    })
}

/// What a process with this command line is to the pool, if anything.
fn part_of(command_line: &[u8], secret_file: &Path) -> Option<Part> {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).skip(1).collect();
    let (command, words) = command_of(&words)?;
    match command {
        b"serve" => {
            (value_of(words, "--secret-file")? == secret_file.as_os_str().as_bytes()).then_some(())?;
            let text = |name| value_of(words, name).and_then(|value| std::str::from_utf8(value).ok());
            Some(Part {
                role: Role::Supervisor,
                server: text("--server").unwrap_or("0").parse().ok()?,
                pool_id: text("--pool-id").map(str::to_ascii_lowercase),
                servers: text("--servers").and_then(|servers| servers.parse().ok()),
                supervisor: None,
            })
        }
        b"serve-child" => {
            let config: serde_json::Value = serde_json::from_slice(words.first()?).ok()?;
            let options = &config["options"];
            (options["secret_file"].as_str()? == secret_file.to_str()?).then_some(())?;
            let number = |value: &serde_json::Value| value.as_u64().and_then(|number| number.try_into().ok());
            Some(Part {
                role: Role::Child,
                server: number(&options["server"])?,
                pool_id: options["pool_id"].as_str().map(str::to_owned),
                servers: number(&options["servers"]),
                supervisor: config["supervisor_pid"].as_u64().and_then(|pid| pid.try_into().ok()),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(line: &[u8]) -> Option<(Role, u16)> {
        part_of(line, Path::new("/run/x/secret")).map(|part| (part.role, part.server))
    }

    #[test]
    fn only_the_pools_own_processes_are_its_own() {
        let supervisor = b"ramlace\0serve\0--secret-file\0/run/x/secret\0--server\x003\0";
        assert_eq!(role_of(supervisor), Some((Role::Supervisor, 3)));
        let child = b"ramlace\0serve-child\0{\"options\":{\"secret_file\":\"/run/x/secret\",\"server\":2}}\0";
        assert_eq!(role_of(child), Some((Role::Child, 2)));
        for line in [
            &b"ramlace\0serve\0--secret-file\0/run/y/secret\0--server\x003\0"[..],
            b"ramlace\0serve\0--server\x003\0",
            b"ramlace\0serve\0--secret-files=/run/x/secret\0",
            b"grep\0--secret-file\0/run/x/secret\0--server\x003\0",
            b"ssh\0node\0ramlace\0serve\0--secret-file\0/run/x/secret\0",
            b"ramlace\0serve-child\0{}\0",
            b"ramlace\0serve-child\0/run/x/secret\0",
            b"ramlace\0",
            b"",
        ] {
            assert_eq!(role_of(line), None, "{}", line.escape_ascii());
        }
    }

    // SEMANTICS 40.5
    #[test]
    fn a_server_that_was_started_by_hand_is_the_pools_however_it_was_written() {
        for line in [
            &b"ramlace\0--pool\0lab\0serve\0--memory\x001GiB\0--secret-file\0/run/x/secret\0"[..],
            b"ramlace\0--pool=lab\0--json\0serve\0--secret-file=/run/x/secret\0--server=0\0",
        ] {
            assert_eq!(role_of(line), Some((Role::Supervisor, 0)), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_command_line_says_which_pool_it_is() {
        let part = |line: &[u8]| part_of(line, Path::new("/s")).unwrap();
        let supervisor = part(b"ramlace\0serve\0--pool-id\0AB12\0--servers=3\0--secret-file\0/s\0");
        assert_eq!((supervisor.pool_id.as_deref(), supervisor.servers), (Some("ab12"), Some(3)));
        let child = part(
            br#"ramlace serve-child {"options":{"secret_file":"/s","server":0,"servers":3,"pool_id":"ab12"},"supervisor_pid":9}"#
                .map(|byte| if byte == b' ' { 0 } else { byte })
                .as_slice(),
        );
        assert_eq!((child.pool_id, child.servers, child.supervisor), (supervisor.pool_id, Some(3), Some(9)));
    }

    /// A process that sleeps, by a handle, as a child of a server whose supervisor is said to be this.
    fn sleeper(supervisor: u32) -> (std::process::Child, PoolProcess) {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let is =
            Part { role: Role::Child, server: 3, pool_id: None, servers: None, supervisor: Some(supervisor) };
        let process = PoolProcess { pid: child.id(), is, leads: None, handle };
        (child, process)
    }

    // SEMANTICS 40.5
    #[test]
    fn the_parent_of_a_child_is_its_supervisor() {
        let (mut child, process) = sleeper(std::process::id());
        let supervisor = supervisor_of(&process).unwrap();
        assert_eq!((supervisor.pid, supervisor.is.role), (std::process::id(), Role::Supervisor));
        assert_eq!(supervisor.is.server, 3);
        // A number in its words that is not its parent's is that of one that has ended.
        let other = PoolProcess { is: Part { supervisor: Some(1), ..process.is.clone() }, ..process };
        assert!(supervisor_of(&other).is_none());
        let other =
            PoolProcess { is: Part { supervisor: Some(std::process::id()), ..other.is.clone() }, ..other };
        other.kill().unwrap();
        assert!(wait_all(&[&other], Duration::from_secs(20)));
        assert!(supervisor_of(&other).is_none());
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_no_server_and_runs() {
        assert!(look_at(std::process::id(), Path::new("/run/x/secret")).is_none());
        let handle = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        assert!(!PoolProcess::listening(rustix::process::getpid(), 0, false, handle).has_ended());
    }
}

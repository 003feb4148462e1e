//! Servers that accept connections at the sockets of a pool's directory, whatever `/proc` shows of their processes.
//!
//! Servers let no other process inspect them, so that a `/proc` that hides processes (`hidepid`) hides them from their own
//! user, too: that nothing was found there does not say that nothing runs. What holds a socket open does, and the kernel
//! tells who has called `listen` for it, which is the supervisor.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId};
use ramlace_client::PoolDirectory;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group};

use crate::peer::{handle_of, leads_a_session, listener_of};
use crate::processes::PoolProcess;
use crate::sentences::option_for;

/// Pause between two looks whether a socket is still open.
const PAUSE: Duration = Duration::from_millis(20);

/// A server that accepts connections.
#[derive(Debug)]
pub struct Listening {
    /// Its number.
    pub server: u16,
    /// Where.
    pub socket: PathBuf,
    /// How it can be ended.
    pub holder: Holder,
}

/// What holds a server's socket open.
#[derive(Debug)]
pub enum Holder {
    /// Its supervisor runs.
    Supervisor(PoolProcess),
    /// Its supervisor has ended: what serves is in the group of processes that this one led.
    Group(Pid),
    /// A process of which no more is known.
    Unknown,
}

impl Listening {
    /// Ends a server that has lost its supervisor.
    pub fn kill_group(&self) {
        if let Holder::Group(group) = self.holder {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits until nobody holds the socket open any more.
    pub fn wait(&self, end: Instant) {
        while !matches!(knock(&self.socket), Knock::Nobody) && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
    }

    /// Why the pool cannot be stopped while this one runs, and what to do.
    pub fn stays(&self, directory: &PoolDirectory) -> Error {
        let (server, shown) = (self.server, self.socket.display());
        let what = match &self.holder {
            Holder::Supervisor(process) => format!("end its process {} ('kill {0}')", process.pid),
            _ => format!(
                "this user does not see its process: as root, 'ss -xlp src {shown}' names its processes, which \
                 'kill -9' ends"
            ),
        };
        let named = option_for(directory.name());
        Error::new(
            ErrorKind::Busy,
            format!(
                "server {server} runs and accepts connections at {shown}; {what}, then run 'ramlace down{named}' again"
            ),
        )
    }
}

/// The servers that accept connections in the pool's directory, by number, without those whose numbers are `seen`.
pub fn find(directory: &PoolDirectory, seen: &[u16]) -> Result<Vec<Listening>> {
    let entries = match fs::read_dir(directory.path()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Error::from_io(&error, format!("listing {}", directory.path().display())));
        }
    };
    let file = directory.read_pool_file().ok();
    let supervisor = |server: u16| {
        let servers = file.as_ref().map(|file| &file.servers[..]).unwrap_or_default();
        servers.iter().find(|one| one.server == server).map(|one| one.supervisor_pid)
    };
    let mut servers: Vec<u16> = entries
        .filter_map(|entry| server_of(entry.ok()?.file_name().to_str()?))
        .filter(|server| !seen.contains(server))
        .collect();
    servers.sort_unstable();
    let look = |server| {
        let socket = directory.socket_path(ServerId(server));
        let holder = look_behind(&socket, server, supervisor(server))?;
        Some(Listening { server, socket, holder })
    };
    Ok(servers.into_iter().filter_map(look).collect())
}

/// The server whose socket has this name.
fn server_of(name: &str) -> Option<u16> {
    name.strip_prefix("server-")?.strip_suffix(".sock")?.parse().ok()
}

/// Who holds a socket open, if anybody does. `supervisor`: who has started the server, as pool.json has it.
fn look_behind(socket: &Path, server: u16, supervisor: Option<u32>) -> Option<Holder> {
    match knock(socket) {
        Knock::Nobody => None,
        Knock::Silent => Some(Holder::Unknown),
        Knock::Open(connection) => {
            Some(holder_of(&connection, socket, server, supervisor).unwrap_or(Holder::Unknown))
        }
    }
}

fn holder_of(connection: &OwnedFd, socket: &Path, server: u16, supervisor: Option<u32>) -> Option<Holder> {
    let (number, user) = listener_of(connection.as_fd()).ok()?;
    let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
    if user != rustix::process::geteuid().as_raw() {
        return None;
    }
    let handle = match handle_of(connection.as_fd()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => handle_by_number(pid, socket),
        // It has ended, or this is its handle.
        other => other.ok(),
    };
    if let Some(handle) = handle {
        let process = PoolProcess::listening(pid, server, leads_a_session(pid), handle);
        if !process.has_ended() {
            return Some(Holder::Supervisor(process));
        }
    }
    // `up` makes each supervisor the leader of a session, so that its number stays taken while its child runs.
    (supervisor == Some(number) && test_kill_process_group(pid).is_ok()).then_some(Holder::Group(pid))
}

/// The handle of the process with this number, when that is the one that listens: the number of one that leads a session
/// is no other's while its child runs, and somebody has held the socket open before and after the handle was made.
fn handle_by_number(pid: Pid, socket: &Path) -> Option<OwnedFd> {
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let Knock::Open(again) = knock(socket) else { return None };
    let (number, _) = listener_of(again.as_fd()).ok()?;
    (leads_a_session(pid) && Pid::from_raw(i32::try_from(number).ok()?) == Some(pid)).then_some(handle)
}

/// What comes of connecting to a socket.
enum Knock {
    /// Nobody holds it open, or it is no socket.
    Nobody,
    /// It takes connections.
    Open(OwnedFd),
    /// Somebody may hold it open, who takes no connection now.
    Silent,
}

fn knock(path: &Path) -> Knock {
    // Nobody can listen where the path is too long.
    let Ok(address) = SocketAddrUnix::new(path) else { return Knock::Nobody };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return Knock::Silent;
    };
    match connect(&socket, &address) {
        Ok(()) => Knock::Open(socket),
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR) => Knock::Nobody,
        Err(_) => Knock::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn directory(name: &str) -> (PathBuf, PoolDirectory) {
        let base = std::env::temp_dir().join(format!("rls-{name}-{}", std::process::id()));
        let directory = PoolDirectory::within(&base, "lab").unwrap();
        directory.create().unwrap();
        (base, directory)
    }

    // SEMANTICS 40.6
    #[test]
    fn a_server_is_found_by_its_socket_as_long_as_it_listens() {
        let (base, directory) = directory("found");
        assert!(find(&directory, &[]).unwrap().is_empty());
        for other in ["server-x.sock", "server-1.sock", "server-1.log", "other.sock"] {
            fs::write(directory.path().join(other), "").unwrap();
        }
        assert!(find(&directory, &[]).unwrap().is_empty(), "files are no servers");
        let listener = UnixListener::bind(directory.socket_path(ServerId(7))).unwrap();
        let found = find(&directory, &[]).unwrap();
        let [Listening { server: 7, holder: Holder::Supervisor(process), .. }] = &found[..] else {
            // Before Linux 6.5 only what leads a session is known for sure.
            assert!(
                matches!(&found[..], [Listening { server: 7, holder: Holder::Unknown, .. }]),
                "{found:?}"
            );
            return;
        };
        assert_eq!(process.pid, std::process::id());
        let told = found[0].stays(&directory);
        assert!(told.message().contains(&format!("kill {}", std::process::id())), "{told}");
        assert!(find(&directory, &[7]).unwrap().is_empty(), "one that is known already");
        drop(listener);
        found[0].wait(Instant::now() + Duration::from_secs(20));
        assert!(find(&directory, &[]).unwrap().is_empty(), "its socket is still there, and nobody behind it");
        fs::remove_dir_all(&base).unwrap();
    }

    // In a container that was entered from outside a session has the number 0.
    #[test]
    fn a_server_is_found_also_where_its_session_is_of_another_namespace() {
        // Process numbers there begin anew: names made of them are other tests', too.
        let scratch = std::env::temp_dir().join(format!("rln-{}", std::process::id()));
        fs::create_dir(&scratch).unwrap();
        let inside = |words: &[&str]| {
            let mut unshare = std::process::Command::new("unshare");
            unshare.env("TMPDIR", &scratch);
            unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--"]).args(words).output()
        };
        if !inside(&["true"]).is_ok_and(|output| output.status.success()) {
            println!("skipped: this user may not make namespaces of users and processes with unshare");
            return fs::remove_dir(&scratch).unwrap();
        }
        let this = std::env::current_exe().unwrap();
        let test = "sockets::tests::a_server_is_found_by_its_socket_as_long_as_it_listens";
        let output = inside(&[this.to_str().unwrap(), "--exact", test]).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        fs::remove_dir(&scratch).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_servers() {
        let (base, directory) = directory("gone");
        fs::remove_dir_all(&base).unwrap();
        assert!(find(&directory, &[]).unwrap().is_empty());
    }

    #[test]
    fn before_linux_6_5_a_server_is_known_by_the_number_that_its_session_keeps() {
        let (base, directory, mut server) = crate::fake_server::hidden("n");
        let (socket, pid) = (directory.socket_path(ServerId(0)), Pid::from_child(&server));
        assert!(handle_by_number(pid, &socket).is_some());
        assert!(handle_by_number(rustix::process::getpid(), &socket).is_none(), "another process");
        let found = find(&directory, &[]).unwrap();
        let [Listening { holder: Holder::Supervisor(process), .. }] = &found[..] else { panic!("{found:?}") };
        process.kill().unwrap();
        server.wait().unwrap();
        // Its child went with it, for it leads the group.
        found[0].wait(Instant::now() + Duration::from_secs(20));
        assert!(find(&directory, &[]).unwrap().is_empty());
        assert!(handle_by_number(pid, &socket).is_none(), "it has ended");
        fs::remove_dir_all(&base).unwrap();
    }
}

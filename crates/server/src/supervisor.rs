//! The small parent of a server: it holds the store and the listening sockets, starts the child that does the
//! work, and starts it again when it dies. So the bytes outlive the process.
//!
//! Invariant: the supervisor has one thread, serves no requests and allocates nothing that grows.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_store::{StoreOptions, StoreRoot};
use rustix::io::FdFlags;

use crate::clock;
use crate::config::{ChildConfig, ServeOptions};
use crate::harden::{clean_environment, hide, no_core_dumps};

/// The child's exit code when a restart would not help.
pub const EXIT_HOPELESS: i32 = 78;
/// The child's exit code when the pool has rejected this server and its bytes.
pub const EXIT_REFUSED: i32 = 77;
/// A child that ends sooner than this counts as a failed start.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Longest pause before the child is started again.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Runs a server until it is asked to stop. Returns when the server has ended and its memory is freed.
///
/// `ready`: a descriptor to which the lines `listening ADDRESS` and `ready`, or `error TEXT`, are written.
pub fn keep(options: &ServeOptions, ready: Option<OwnedFd>) -> Result<()> {
    no_core_dumps();
    let mut ready = ready.map(std::fs::File::from);
    let outcome =
        Supervisor::start(options, ready.as_mut()).and_then(|supervisor| supervisor.run(ready.as_ref()));
    if let (Err(error), Some(ready)) = (&outcome, ready.as_mut()) {
        // Perhaps nobody reads it any more; the error is returned in any case.
        let _ = writeln!(ready, "error {error}");
    }
    outcome
}

struct Supervisor {
    config: ChildConfig,
    root: StoreRoot,
    _tcp: TcpListener,
    _unix: UnixListener,
    stop_read: OwnedFd,
    stop_write: OwnedFd,
    stop_asked: bool,
}

impl Supervisor {
    fn start(options: &ServeOptions, ready: Option<&mut std::fs::File>) -> Result<Supervisor> {
        options.check()?;
        options.secret()?;
        let tcp = bind_tcp(&options.listen)?;
        let unix = bind_unix(options)?;
        let root = StoreRoot::create(&StoreOptions {
            size_bytes: options.store_bytes,
            backing: options.parsed_backing()?,
            name: format!("{}-{}", options.pool_name, options.server),
        })?;
        // Not earlier: a process that is not dumpable cannot create a user namespace.
        hide();
        let (stop_read, stop_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| Error::from_io(&errno.into(), "making a pipe"))?;
        let tcp_address =
            tcp.local_addr().map_err(|e| Error::from_io(&e, "asking for the port"))?.to_string();
        if let Some(ready) = ready {
            writeln!(ready, "listening {tcp_address}")
                .map_err(|error| Error::from_io(&error, "telling where the server listens"))?;
        }
        let mut options = options.clone();
        options.advertise = options.advertise.map(|known| with_port(&known, &tcp_address));
        let config = ChildConfig {
            options,
            tcp_fd: tcp.as_raw_fd(),
            tcp_address,
            unix_fd: unix.as_raw_fd(),
            store_fd: root.descriptor().as_raw_fd(),
            store_arguments: root.inherited_args(),
            store_notes: root.notes().to_vec(),
            stop_fd: stop_read.as_raw_fd(),
            ready_fd: None,
            restarts: 0,
            supervisor_pid: std::process::id(),
        };
        Ok(Supervisor { config, root, _tcp: tcp, _unix: unix, stop_read, stop_write, stop_asked: false })
    }

    fn run(mut self, ready: Option<&std::fs::File>) -> Result<()> {
        let signals = Signals::block()?;
        let mut pause = Duration::ZERO;
        self.config.ready_fd = ready.map(AsRawFd::as_raw_fd);
        let outcome = loop {
            let born = clock::instant();
            let child = match self.spawn() {
                Ok(child) => child,
                // The bytes are still here, and a lack of memory or processes may be temporary.
                Err(error) if self.config.restarts > 0 => {
                    eprintln!("ramlace supervisor: {error}; trying again");
                    match signals.next_within(RESTART_PAUSE_MAX)? {
                        Some(signal) if signal != libc::SIGCHLD => break Ok(()),
                        _ => continue,
                    }
                }
                Err(error) => break Err(error),
            };
            let exit = self.wait(child, &signals)?;
            match exit {
                Exit::Done => break Ok(()),
                _ if self.stop_asked => break Ok(()),
                // It has served before: the problem may be temporary, and its bytes are here.
                Exit::Hopeless if self.config.restarts > 0 => {
                    pause = RESTART_PAUSE_MAX;
                    eprintln!("ramlace supervisor: the server cannot start now; trying again");
                }
                Exit::Refused => {
                    break Err(Error::new(ErrorKind::NotPermitted, "the pool goes on without this server"));
                }
                Exit::Hopeless => {
                    break Err(Error::new(ErrorKind::Fatal, "the server could not start; see its log"));
                }
                Exit::Died(how) => {
                    eprintln!("ramlace supervisor: server {} {how}", self.config.options.server)
                }
            }
            pause = if born.elapsed() >= SHORT_LIFE {
                Duration::ZERO
            } else {
                (pause * 2).clamp(Duration::from_millis(10), RESTART_PAUSE_MAX)
            };
            if signals.next_within(pause)?.is_some_and(|signal| signal != libc::SIGCHLD) {
                break Ok(());
            }
            self.config.restarts += 1;
        };
        // Another server can own the path by now only if this one's socket was removed first.
        let _ = std::fs::remove_file(&self.config.options.unix);
        self.root.remove()?;
        outcome
    }

    /// Starts the child: the same program with the hidden command `serve-child`.
    fn spawn(&self) -> Result<Child> {
        let doing = "starting the server's process";
        // For people who list processes; the executable's file may have been replaced by an upgrade since.
        let name = std::env::current_exe().map_err(|error| Error::from_io(&error, doing))?;
        let config = serde_json::to_string(&self.config).expect("a child's configuration can be written");
        let inherited =
            [self.config.tcp_fd, self.config.unix_fd, self.config.store_fd, self.stop_read.as_raw_fd()];
        for fd in inherited.into_iter().chain(self.config.ready_fd) {
            keep_across_exec(fd)?;
        }
        // Starts the program that runs now, whatever has happened to its file.
        let mut command = Command::new("/proc/self/exe");
        clean_environment(&mut command);
        command
            .arg0(name)
            .arg("serve-child")
            .arg(config)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Error::from_io(&error, doing))
    }

    /// Waits for the child's end; passes a signal to stop on to it as a byte in its pipe.
    fn wait(&mut self, mut child: Child, signals: &Signals) -> Result<Exit> {
        loop {
            if let Some(status) = child.try_wait().map_err(|error| Error::from_io(&error, "waiting"))? {
                return Ok(match status.code() {
                    Some(0) => Exit::Done,
                    Some(EXIT_HOPELESS) => Exit::Hopeless,
                    Some(EXIT_REFUSED) => Exit::Refused,
                    _ => Exit::Died(format!("ended with {status}; starting it again")),
                });
            }
            if signals.next()? != libc::SIGCHLD {
                self.stop_asked = true;
                let _ = rustix::io::write(&self.stop_write, b"s");
            }
        }
    }
}

enum Exit {
    Done,
    Hopeless,
    Refused,
    Died(String),
}

/// The advertised address; in `HOST:0` the 0 is replaced by the port on which the server listens.
fn with_port(advertise: &str, tcp_address: &str) -> String {
    match (advertise.strip_suffix(":0"), tcp_address.rsplit_once(':')) {
        (Some(host), Some((_, port))) => format!("{host}:{port}"),
        _ => advertise.to_owned(),
    }
}

fn bind_tcp(listen: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).map_err(|error| {
        let advice = match error.raw_os_error() {
            Some(libc::EADDRINUSE) => "; another program has the port: choose another with --listen",
            _ => "",
        };
        Error::new(Error::from_io(&error, "").kind(), format!("cannot listen on {listen}: {error}{advice}"))
    })
}

/// Binds the Unix socket. A socket file without a listening process is left over from a dead server and is
/// replaced; one with a listening process is an error.
fn bind_unix(options: &ServeOptions) -> Result<UnixListener> {
    let path = &options.unix;
    let shown = path.display();
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{shown} is served by a running server; stop it with `ramlace down` first"),
            ));
        }
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
            // Connections to a file that is no socket are refused as well.
            let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
            if !is_socket {
                let text = format!("{shown} is a file and no socket; move it away");
                return Err(Error::new(ErrorKind::Exists, text));
            }
            std::fs::remove_file(path).map_err(|e| Error::from_io(&e, format!("removing stale {shown}")))?;
        }
        Err(_) => {}
    }
    UnixListener::bind(path).map_err(|error| Error::from_io(&error, format!("cannot listen on {shown}")))
}

fn keep_across_exec(fd: RawFd) -> Result<()> {
    // SAFETY: the descriptor is owned by the supervisor, which outlives this call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(fd, FdFlags::empty())
        .map_err(|errno| Error::from_io(&errno.into(), "keeping a descriptor open for the server"))
}

/// SIGCHLD, SIGTERM and SIGINT, blocked and taken one by one: nothing runs in a handler.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Result<Signals> {
        // SAFETY: a zeroed set is valid memory for sigemptyset, which initialises it; all
        // pointers are to this live local.
        unsafe {
            // The parent of this process may have ignored it; then no child could be waited for.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(Error::from_io(&std::io::Error::last_os_error(), "blocking signals"));
            }
            Ok(Signals(set))
        }
    }

    /// Waits for the next signal, but not longer than `patience`.
    fn next_within(&self, patience: Duration) -> Result<Option<i32>> {
        let timeout = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: patience.subsec_nanos().into(),
        };
        // SAFETY: the set and the timeout are initialised locals, and no information about the
        // signal is asked for.
        let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &timeout) };
        if signal > 0 {
            return Ok(Some(signal));
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(Error::from_io(&error, "waiting for a signal")),
        }
    }

    /// Waits for the next signal.
    fn next(&self) -> Result<i32> {
        loop {
            // SAFETY: the set is initialised, and no information about the signal is asked for.
            let signal = unsafe { libc::sigwaitinfo(&self.0, std::ptr::null_mut()) };
            if signal > 0 {
                return Ok(signal);
            }
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(Error::from_io(&error, "waiting for a signal"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::with_port;

    #[test]
    fn a_server_is_known_by_the_port_that_it_has() {
        assert_eq!(with_port("node1:0", "0.0.0.0:41234"), "node1:41234");
        assert_eq!(with_port("[fe80::1]:0", "[::]:41234"), "[fe80::1]:41234");
        assert_eq!(with_port("node1:7000", "0.0.0.0:41234"), "node1:7000");
        assert_eq!(with_port("node1:7010", "0.0.0.0:41234"), "node1:7010");
    }
}

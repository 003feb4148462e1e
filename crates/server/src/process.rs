//! The child process of a server: loads the store, joins the pool, serves until it is stopped.

use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_store::{Store, StoreRoot};
use ramlace_transport::nonblocking::Listener;

use crate::clock;
use crate::config::ChildConfig;
use crate::connection;
use crate::exposition;
use crate::harden;
use crate::log_file;
use crate::membership;
use crate::sandbox;
use crate::server::Server;
use crate::stop::{BugEndsProcess, stop_requested};
use crate::supervisor::{EXIT_HOPELESS, EXIT_REFUSED};

/// Time for replies under way when the server stops.
const DRAIN: Duration = Duration::from_millis(50);
/// A timer that fires this late was held up together with the whole process.
const LATE: Duration = Duration::from_secs(1);
/// The pause after a failed accept, for example because descriptors are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The pause between two steps of a snapshot while no records come.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(50);
/// Failed accepts are logged at most once in this time.
const ACCEPT_QUIET: Duration = Duration::from_secs(60);

/// Runs the child until the server stops; returns its exit code.
///
/// `config`: the JSON that the supervisor passed.
#[must_use]
pub fn run(config: &str) -> i32 {
    // The supervisor runs `/proc/self/exe`, after which people would see a process named "exe".
    // SAFETY: the name is a static string that ends with NUL and has fewer than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"ramlace".as_ptr()) };
    harden::harden();
    ramlace_transport::trace::begin();
    ignore_broken_pipes();
    raise_descriptor_limit();
    let config: ChildConfig = match serde_json::from_str(config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("ramlace: serve-child is started by the supervisor only: {error}");
            return EXIT_HOPELESS;
        }
    };
    let mut ready = Ready(config.ready_fd);
    match serve(config, &mut ready) {
        Ok(()) => 0,
        Err(Ending { error, code }) => {
            eprintln!("ramlace: {error}");
            ready.tell(&format!("error {error}"));
            code
        }
    }
}

/// Why the child ends, and the exit code that tells the supervisor what to do.
struct Ending {
    error: Error,
    code: i32,
}

impl From<Error> for Ending {
    fn from(error: Error) -> Ending {
        Ending { error, code: EXIT_HOPELESS }
    }
}

impl Ending {
    fn by_coordinator(error: Error) -> Ending {
        let code = if membership::is_final(error.kind()) { EXIT_REFUSED } else { EXIT_HOPELESS };
        Ending { error, code }
    }
}

fn serve(config: ChildConfig, ready: &mut Ready) -> std::result::Result<(), Ending> {
    let root = StoreRoot::from_inherited(config.store_fd, &config.store_arguments)?;
    // Before there is a second thread, which would keep what this one drops.
    for lacking in sandbox::enter(&config.options.secret_file, root.descriptor()) {
        eprintln!("ramlace: the sandbox is not whole: {lacking}");
    }
    let mut store = Store::open(root)?;
    if config.options.reserve {
        store.start_reservation()?;
    }
    let listeners = [inherit_listener(config.tcp_fd)?, inherit_listener(config.unix_fd)?];
    let stop_fd = config.stop_fd;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| Error::from_io(&error, "starting the event loop"))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let server = Rc::new(Server::load(config, store)?);
        // Before new deliveries can be made: another server gets them in the order in which they were made.
        server.resume_deliveries();
        if let Some(address) = server.config.options.metrics.clone() {
            let listener = match exposition::listen(&address).await {
                // The process that starts a pool gets the error; for a server that restarts, to run is more
                // important than its metrics.
                Err(error) if server.config.restarts == 0 => return Err(error.into()),
                listener => listener,
            };
            tokio::task::spawn_local(exposition::serve(server.clone(), address, listener));
        }
        for listener in listeners {
            // Strangers are answered from the beginning; requests that need the map get Retry.
            let listener = listener.into_listener()?;
            tokio::task::spawn_local(accept_all(server.clone(), listener));
        }
        let stopped = stop_requested(stop_fd);
        tokio::pin!(stopped);
        tokio::select! {
            joined = server.join_pool() => joined.map_err(Ending::by_coordinator)?,
            outcome = &mut stopped => return Ok(outcome?),
            () = server.stopping.notified() => return Ok(()),
        }
        tokio::task::spawn_local(log_file::keep_short());
        tokio::task::spawn_local(end_silent_sessions(server.clone()));
        tokio::task::spawn_local(step_snapshots(server.clone()));
        tokio::task::spawn_local(server.clone().forget_old_leases());
        ready.tell("ready");
        tokio::select! {
            outcome = &mut stopped => outcome?,
            () = server.stopping.notified() => {}
        }
        tokio::time::sleep(DRAIN).await;
        Ok(())
    })
}

/// The process that reads a server's output may end; that must not end the server.
fn ignore_broken_pipes() {
    // SAFETY: ignoring a signal installs no handler; the process has one thread at this point.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Connections and lanes need more descriptors than most systems allow by default. Raises the limit as far as
/// this user may; too few descriptors show as errors of single requests.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A listening descriptor from the supervisor, not yet known to the event loop.
struct Inherited(OwnedFd);

impl Inherited {
    fn into_listener(self) -> Result<Listener> {
        Listener::from_owned_fd(self.0)
    }
}

fn inherit_listener(fd: i32) -> Result<Inherited> {
    // SAFETY: the supervisor passed this descriptor to this process alone, for this use alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::from_io(&errno.into(), "taking over a listening socket"))?;
    Ok(Inherited(fd))
}

/// Accepts connections and serves them.
pub async fn accept_all(server: Rc<Server>, mut listener: Listener) {
    let _bug = BugEndsProcess;
    let mut last_logged: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok(incoming) if (server.counters.connections.get() as usize) < server.callers.most() => {
                tokio::task::spawn_local(connection::serve(server.clone(), incoming));
            }
            // One connection too many is closed at once: its client sees the end of the connection.
            Ok(incoming) => drop(incoming),
            Err(error) => {
                let now = clock::instant();
                if last_logged.is_none_or(|told| now.duration_since(told) >= ACCEPT_QUIET) {
                    last_logged = Some(now);
                    eprintln!("ramlace: accepting a connection: {error}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// When silent sessions are looked for.
struct Rounds {
    /// The next round begins no sooner: a session that could not be ended has expired long before it.
    earliest: Instant,
}

impl Rounds {
    /// When the next round begins, with a session that expires at this moment.
    fn due(&self, expiry: Instant) -> Instant {
        expiry.max(self.earliest)
    }

    /// A round ends; there may be room for what it left when a pause is over.
    fn end(&mut self, now: Instant, is_left: bool) {
        self.earliest = if is_left { now + LATE / 2 } else { now };
    }
}

/// Ends sessions that have sent nothing for too long. Sleeps while there are no sessions.
pub async fn end_silent_sessions(server: Rc<Server>) {
    let _bug = BugEndsProcess;
    let mut rounds = Rounds { earliest: clock::instant() };
    loop {
        let next = server.durable.borrow().sessions.next_expiry();
        let Some(moment) = next else {
            server.session_began.notified().await;
            continue;
        };
        let due = rounds.due(moment);
        tokio::time::sleep_until(due.into()).await;
        let now = clock::instant();
        if now.duration_since(due) >= LATE {
            // This process itself was suspended: what sessions sent meanwhile still has to be read.
            server.durable.borrow_mut().sessions.note_all_alive(now);
        }
        let expired = server.durable.borrow().sessions.expired(now);
        let mut is_left = false;
        for session in expired {
            match connection::end_session(&server, session) {
                // There may be room later: the session ends then.
                Err(error) if error.kind() == ErrorKind::NoSpace => is_left = true,
                Err(error) => crate::durable::fatal(&error),
                Ok(()) => {}
            }
        }
        rounds.end(now, is_left);
    }
}

/// Continues a snapshot while no records come; otherwise it would keep its memory and that of the logs.
/// Sleeps while there is no snapshot.
pub async fn step_snapshots(server: Rc<Server>) {
    let _bug = BugEndsProcess;
    loop {
        if server.durable.borrow().snapshot.is_none() {
            server.snapshot_began.notified().await;
        }
        tokio::time::sleep(SNAPSHOT_PAUSE).await;
        server.durable.borrow_mut().go_on_with_snapshot(&mut server.store.borrow_mut());
    }
}

/// The descriptor to which readiness is reported, once.
struct Ready(Option<i32>);

impl Ready {
    fn tell(&mut self, line: &str) {
        if let Some(fd) = self.0.take() {
            // SAFETY: the supervisor passed this descriptor to this process, for this use alone.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // The process that started the server may have ended.
            let _ = rustix::io::write(&fd, format!("{line}\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_cannot_be_ended_for_want_of_room_makes_no_round_late() {
        let expiry = clock::instant();
        let mut rounds = Rounds { earliest: expiry };
        let mut now = expiry;
        for _ in 0..10 {
            let due = rounds.due(expiry);
            assert!(due <= now, "it begins as soon as the pause is over");
            assert!(now - due < LATE, "nobody was suspended");
            rounds.end(now, true);
            now += LATE / 2;
        }
        // A process that is suspended in the pause is late all the same.
        assert!(now + LATE - rounds.due(expiry) >= LATE);
        // Without such a session nothing is put off.
        rounds.end(now, false);
        assert_eq!(rounds.due(now + LATE), now + LATE);
    }
}

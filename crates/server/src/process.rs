//! The child process of a server: loads the store, joins the pool, serves until it is stopped.

use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, Result, limits};
use ramlace_store::{Store, StoreRoot};
use ramlace_transport::nonblocking::Listener;

use crate::clock;
use crate::config::ChildConfig;
use crate::connection;
use crate::keeper::EXIT_HOPELESS;
use crate::server::Server;
use crate::stop::told_by_keeper;

/// Time for answers under way when the server stops.
const DRAIN: Duration = Duration::from_millis(50);
/// Pause after a failed accept, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Runs the child until the server stops; returns its exit code.
///
/// `config`: the JSON that the keeper gave it.
#[must_use]
pub fn run(config: &str) -> i32 {
    ignore_broken_pipes();
    let config: ChildConfig = match serde_json::from_str(config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("ramlace: serve-child is started by the keeper only: {error}");
            return EXIT_HOPELESS;
        }
    };
    let mut ready = Ready(config.ready_fd);
    match serve(config, &mut ready) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("ramlace: {error}");
            ready.tell(&format!("error {error}"));
            EXIT_HOPELESS
        }
    }
}

fn serve(config: ChildConfig, ready: &mut Ready) -> Result<()> {
    let root = StoreRoot::from_inherited(config.store_fd, &config.store_arguments)?;
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
        for listener in listeners {
            // Strangers are answered from the first moment; what needs the map gets Retry.
            let listener = listener.into_listener()?;
            tokio::task::spawn_local(accept_all(server.clone(), listener));
        }
        let stopped = told_by_keeper(stop_fd);
        tokio::pin!(stopped);
        tokio::select! {
            joined = server.join_pool() => joined?,
            told = &mut stopped => return told,
        }
        server.resume_errands();
        tokio::task::spawn_local(end_silent_sessions(server.clone()));
        ready.tell("ready");
        tokio::select! {
            told = &mut stopped => told?,
            () = server.stopping.notified() => {}
        }
        tokio::time::sleep(DRAIN).await;
        Ok(())
    })
}

/// Whoever reads what a server says may have gone; that must not end the server.
fn ignore_broken_pipes() {
    // SAFETY: ignoring a signal installs no handler; the process has one thread at this point.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// A listening descriptor from the keeper, not yet known to the event loop.
struct Inherited(OwnedFd);

impl Inherited {
    fn into_listener(self) -> Result<Listener> {
        Listener::from_owned_fd(self.0)
    }
}

fn inherit_listener(fd: i32) -> Result<Inherited> {
    // SAFETY: the keeper handed this descriptor to this process alone, for this use alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::from_io(&errno.into(), "taking over a listening socket"))?;
    Ok(Inherited(fd))
}

async fn accept_all(server: Rc<Server>, mut listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(incoming) if (server.counters.connections.get() as usize) < limits::CONNECTIONS_MAX => {
                tokio::task::spawn_local(connection::serve(server.clone(), incoming));
            }
            // One too many is closed at once: its client sees the end of the connection.
            Ok(incoming) => drop(incoming),
            Err(error) => {
                eprintln!("ramlace: accepting a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Ends sessions that were not heard for too long. Sleeps while there is none.
async fn end_silent_sessions(server: Rc<Server>) {
    loop {
        let next = server.durable.borrow().sessions.next_expiry();
        match next {
            None => server.session_began.notified().await,
            Some(moment) => tokio::time::sleep_until(moment.into()).await,
        }
        let expired = server.durable.borrow().sessions.expired(clock::instant());
        for session in expired {
            if let Err(error) = connection::end_session(&server, session) {
                crate::durable::fatal(&error);
            }
        }
    }
}

/// Whom to tell that the server is ready; told once.
struct Ready(Option<i32>);

impl Ready {
    fn tell(&mut self, line: &str) {
        if let Some(fd) = self.0.take() {
            // SAFETY: the keeper handed this descriptor to this process, for this use alone.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // Whoever started the server may have gone.
            let _ = rustix::io::write(&fd, format!("{line}\n").as_bytes());
        }
    }
}

//! The end of a server: requested by the supervisor, by a client, or by a signal to the supervisor.

use std::os::fd::{FromRawFd, OwnedFd};

use ramlace_base::{Error, Result};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Held by a task: when the task panics, the process ends. A bug then stops one server, which restarts and
/// replays what was logged; a task that disappeared silently would be missing for ever.
pub struct BugEndsProcess;

impl Drop for BugEndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("ramlace: this is a bug; the server starts again");
            std::process::exit(101);
        }
    }
}

/// Resolves when the supervisor requests the end. A supervisor that has died requests nothing: the server
/// goes on, because the bytes matter more than tidiness.
pub async fn stop_requested(stop_fd: i32) -> Result<()> {
    // SAFETY: the supervisor passed this descriptor to this process alone, for this use alone.
    let descriptor = unsafe { OwnedFd::from_raw_fd(stop_fd) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::from_io(&errno.into(), "taking over the supervisor's pipe"))?;
    let mut pipe = pipe::Receiver::from_owned_fd(descriptor)
        .map_err(|error| Error::from_io(&error, "taking over the supervisor's pipe"))?;
    match pipe.read_u8().await {
        Ok(_) => Ok(()),
        Err(_) => {
            eprintln!("ramlace: the supervisor is gone; this server goes on, but nobody will start it again");
            std::future::pending().await
        }
    }
}

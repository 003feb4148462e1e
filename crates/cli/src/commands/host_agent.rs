//! `host-agent`: the hidden command that `up --hosts` and `down` run on every host.
//!
//! It takes orders from its standard input. What it has started it undoes on an order, when its input ends, and
//! when no order arrives for long: the death of the command leaves no servers behind.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{PoolDirectory, Secret};
use ramlace_launch::{DirectoryLock, remove_stale_stores, stop_servers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::down::unmount_all;
use super::host_site::Site;
use crate::agent_protocol::{AGENT_PROTOCOL, Answer, MESSAGE_BYTES_MAX, Order, Prepare, line_of};
use crate::failure::{Done, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// How long a server of this host may take to greet.
const KNOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which the command that gave the orders counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Follows orders until one ends it, or its input ends.
pub fn run(output: &mut Output) -> Done {
    let interrupt = Interrupt::catch()?;
    let mut desk = Desk { output, interrupt, heard: Vec::new(), silence: SILENCE_MAX };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    desk.say(&Answer::Hello { version, protocol: AGENT_PROTOCOL })?;
    match desk.hear() {
        Ok(Some(Order::Prepare(prepare))) => start(&mut desk, *prepare),
        Ok(Some(Order::Stop { pool, secret, force })) => {
            let stopped = Secret::from_hex(&secret.0).and_then(|secret| stop(&pool, &secret, force));
            match stopped {
                Ok((servers, notes)) => Ok(desk.say(&Answer::Stopped { servers, notes })?),
                Err(error) => desk.refuse(&error),
            }
        }
        Ok(None) => Ok(()),
        Ok(Some(_)) => desk.refuse(&out_of_place()),
        Err(error) => desk.refuse(&error),
    }
}

fn out_of_place() -> Error {
    Error::new(ErrorKind::Protocol, "an order came where it has no meaning")
}

/// Starts servers, and sees to it that they stay only when the whole pool does.
fn start(desk: &mut Desk<'_>, prepare: Prepare) -> Done {
    desk.silence = SILENCE_MAX.max(4 * Duration::from_millis(prepare.patience_millis));
    let mut site = match Site::enter(prepare) {
        Ok(site) => site,
        Err(error) => return desk.refuse(&error),
    };
    let error = match follow(desk, &mut site) {
        Ok(true) => return Ok(()),
        Ok(false) => None,
        Err(error) => Some(error),
    };
    match (error, site.undo()) {
        (None, Ok((servers, notes))) => Ok(desk.say(&Answer::Stopped { servers, notes })?),
        (Some(error), Ok(_)) => desk.refuse(&error),
        (None, Err(worse)) => desk.refuse(&worse),
        (Some(error), Err(worse)) => desk.refuse(&error.context(worse)),
    }
}

/// Follows the orders of one start; whether the servers shall stay.
fn follow(desk: &mut Desk<'_>, site: &mut Site) -> Result<bool> {
    desk.say(&site.prepare()?)?;
    loop {
        let answer = match desk.hear()? {
            Some(Order::StartFirst) => site.start_first(&desk.watch()?)?,
            Some(Order::Start { coordinator }) => site.start(&coordinator, &desk.watch()?)?,
            Some(Order::Commit { file }) => site.commit(*file)?,
            Some(Order::Leave) => return Ok(site.committed),
            Some(Order::Abort) | None => return Ok(false),
            Some(_) => return Err(out_of_place()),
        };
        desk.say(&answer)?;
    }
}

/// While the pool's secret is changed, the command may have the previous one: a server here says whether it is
/// the pool's.
fn lets_in(directory: &PoolDirectory, secret: &Secret) -> bool {
    let Ok(file) = directory.read_pool_file() else { return false };
    let mut sockets = file.servers.iter().filter_map(|server| server.unix.as_deref());
    sockets.any(|socket| ramlace_client::lets_owner_in(socket, secret, KNOCK_PATIENCE))
}

/// Stops the servers of a pool on this host, when it is the one with this secret.
fn stop(pool: &str, secret: &Secret, force: bool) -> Result<(usize, Vec<String>)> {
    let directory = PoolDirectory::locate(pool)?;
    if !directory.exists()? {
        return Ok((0, Vec::new()));
    }
    if directory.read_secret()? != *secret && !lets_in(&directory, secret) {
        return Err(Error::new(
            ErrorKind::Exists,
            format!("its pool '{pool}' is another one by now, and was left alone"),
        ));
    }
    // Locked is what `down` itself works on, when this is the machine on which it runs: it
    // removes the directory itself.
    let lock = DirectoryLock::take(&directory).ok();
    let mut notes = unmount_all(pool, force)?;
    let (servers, stopped) = stop_servers(&directory.secret_path())?;
    notes.extend(stopped);
    remove_stale_stores(&directory)?;
    if lock.is_some() {
        directory.remove()?;
    }
    Ok((servers, notes))
}

/// Where orders come in and answers go out.
struct Desk<'a> {
    output: &'a mut Output,
    interrupt: Interrupt,
    heard: Vec<u8>,
    silence: Duration,
}

impl Desk<'_> {
    fn say(&mut self, answer: &Answer) -> Result<()> {
        let done = self.output.bytes(&line_of(answer)).and_then(|()| self.output.flush());
        done.map_err(|failure| match failure {
            Failure::Error(error) => error,
            _ => Error::new(ErrorKind::HostDown, "nobody reads the answers any more"),
        })
    }

    /// Sends the error; the command that gave the order shows it.
    fn refuse(&mut self, error: &Error) -> Done {
        self.say(&Answer::from(error))?;
        Err(Failure::Told)
    }

    /// What means, while servers are being started, that they are not wanted any more: anything.
    fn watch(&self) -> Result<[std::os::fd::OwnedFd; 2]> {
        if !self.heard.is_empty() {
            return Err(out_of_place());
        }
        let doing = |error: std::io::Error| Error::from_io(&error, "watching the input");
        Ok([
            std::io::stdin().as_fd().try_clone_to_owned().map_err(doing)?,
            self.interrupt.fd().try_clone_to_owned().map_err(doing)?,
        ])
    }

    /// The next order; none when the input has ended, a signal has come, or nothing arrives for long.
    fn hear(&mut self) -> Result<Option<Order>> {
        let end = Instant::now() + self.silence;
        loop {
            if let Some(at) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=at).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| {
                    // The line may hold the secret: it is not shown.
                    Error::new(ErrorKind::Protocol, format!("an order makes no sense: {error}"))
                });
            }
            if self.heard.len() > MESSAGE_BYTES_MAX {
                return Err(Error::new(ErrorKind::TooLarge, "an order is too long"));
            }
            let stdin = std::io::stdin();
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a few minutes fit");
            let mut polled = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::from_borrowed_fd(self.interrupt.fd(), PollFlags::IN),
            ];
            match poll(&mut polled, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) if !polled[1].revents().is_empty() => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Error::from_io(&errno.into(), "waiting for orders")),
            }
            let mut bytes = [0; 8192];
            match rustix::io::read(&stdin, &mut bytes) {
                Ok(0) | Err(rustix::io::Errno::IO) => return Ok(None),
                Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(Error::from_io(&errno.into(), "reading orders")),
            }
        }
    }
}

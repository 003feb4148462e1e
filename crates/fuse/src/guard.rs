//! The daemon's side of the *guard*: a process that sends the kernel those notifications that may block.
//!
//! To drop pages, the kernel waits for the requests that hold them locked, and the thread that asked for the drop cannot
//! be killed meanwhile. If that were a thread of the daemon, a killed daemon would live on in it, with the connection to
//! the kernel open: nobody would answer those requests, and every program on the mount would hang. So the guard
//! ([`crate::guarding`]) writes these notifications to the device. When the daemon dies, the requests that it had read end
//! with its descriptors. The guard refuses all later ones, so its drops return, and its own end closes the connection.
//!
//! Each notification is sent over a *line*, a socket pair that one thread of the guard reads; the answer comes back on it.
//! There are as many lines as there are notifications at once.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Weak};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    sendmsg, shutdown, socketpair,
};

use crate::device::Device;
use crate::given_up::GivenUp;
use crate::porter::Porter;

/// The longest message that is sent through a guard.
pub const MESSAGE_BYTES_MAX: usize = 8192;
/// How long [`Guard::tell_for_a_moment`] waits at most. On a busy machine it may take tens of milliseconds until the guard
/// runs, and a size that is not shown in time is unknown to the kernel.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Guards that are started for one message.
const ATTEMPTS_MAX: usize = 3;

/// Makes the command that runs [`crate::run_guard`] with its standard input.
pub type GuardCommand = Box<dyn Fn() -> Command + Send>;

/// The daemon's side. Lock order: `state`, then the porter's (a guard is started under both). No message to a guard
/// is waited for under either.
pub struct Guard {
    porter: Arc<Porter>,
    device: Weak<Device>,
    request_bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// The control socket of a guard that has failed: it stays open, so that this guard does not take the daemon for dead
    /// before it is killed.
    failed: Option<Running>,
    /// Guards that were started.
    lives: u64,
    idle: Vec<Line>,
    given_up: GivenUp,
    over: bool,
}

/// The control socket of a guard. Its other end is closed when the guard ends.
struct Running {
    control: OwnedFd,
}

/// A socket to one thread of the guard.
pub struct Line {
    pub life: u64,
    pub socket: OwnedFd,
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl Guard {
    /// Starts the process.
    ///
    /// # Errors
    /// When the program cannot be started, or this process may not open the device a second time.
    pub fn start(porter: Arc<Porter>, device: &Arc<Device>, request_bytes_max: usize) -> Result<Guard> {
        let guard =
            Guard { porter, device: Arc::downgrade(device), request_bytes_max, state: Mutex::default() };
        guard.begin_life(&mut guard.lock())?;
        Ok(guard)
    }

    /// Sends a notification and waits for the kernel's result. It may be sent twice, if a guard was killed: that has the same
    /// effect.
    pub fn tell(&self, parts: &[IoSlice<'_>]) -> Result<std::result::Result<(), Errno>> {
        let message: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        if message.len() > MESSAGE_BYTES_MAX {
            let text = format!("{} bytes are too many to be sent through a guard", message.len());
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        for _ in 0..ATTEMPTS_MAX {
            let Some(line) = self.take_line()? else { return Ok(Err(Errno::NODEV)) };
            if let Some(answer) = line.ask(&message) {
                let mut state = self.lock();
                if !state.over && state.lives == line.life {
                    state.idle.push(line);
                }
                return Ok(answer);
            }
            self.bury(line.life);
        }
        Err(Error::new(ErrorKind::Fatal, "the process that has the kernel drop pages ends again and again"))
    }

    /// Sends a notification about this node and waits for its result for a short time only: the kernel may wait for pages that
    /// others hold. `false`: it was not sent, because too many others still wait.
    pub fn tell_for_a_moment(&self, node: u64, message: &[u8]) -> bool {
        {
            let mut state = self.lock();
            let State { given_up, idle, .. } = &mut *state;
            if !given_up.has_room(node, idle) {
                return false;
            }
        }
        let Ok(Some(line)) = self.take_line() else { return true };
        // Where the guard has just ended the next message finds another one.
        if rustix::net::send(&line.socket, message, SendFlags::NOSIGNAL).is_err() {
            return true;
        }
        let mut polled = [PollFd::new(&line.socket, PollFlags::IN)];
        let is_over = matches!(poll(&mut polled, Some(&MOMENT)), Ok(1..));
        let is_done = is_over && line.answer().is_some();
        let mut state = self.lock();
        if !state.over && state.lives == line.life {
            match (is_over, is_done) {
                (false, _) => state.given_up.add(node, line),
                (true, true) => state.idle.push(line),
                (true, false) => {}
            }
        }
        true
    }

    /// Ends the process. Threads that wait for a drop get an error, and later drops are refused.
    pub fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        state.idle.clear();
        state.given_up.clear();
        let running = state.running.take();
        drop(state);
        if let Some(running) = running {
            let _ = shutdown(&running.control, Shutdown::Write);
            // It says nothing; its end is the end of what can be read.
            while matches!(rustix::io::read(&running.control, &mut [0; 8]), Ok(1..) | Err(Errno::INTR)) {}
        }
    }

    /// A line that is not in use; none when the mount is over.
    fn take_line(&self) -> Result<Option<Line>> {
        let mut state = self.lock();
        if state.over {
            return Ok(None);
        }
        if let Some(line) = state.idle.pop() {
            return Ok(Some(line));
        }
        if state.running.is_none() {
            self.begin_life(&mut state)?;
        }
        let (ours, theirs) = pair()?;
        let running = state.running.as_ref().expect("it runs, or was started just now");
        // Whether it is still there shows when it is asked.
        let _ = pass(&running.control, &[0], &theirs);
        Ok(Some(Line { life: state.lives, socket: ours }))
    }

    fn begin_life(&self, state: &mut State) -> Result<()> {
        let device =
            self.device.upgrade().ok_or_else(|| Error::new(ErrorKind::Stale, "the mount is gone"))?;
        let failed = |error: std::io::Error| Error::from_io(&error, "starting the guard of a mount");
        let device = device.try_clone().map_err(|errno| failed(errno.into()))?;
        let (ours, theirs) = pair()?;
        // The one before is killed first.
        self.porter.start_guard(&theirs)?;
        state.failed = None;
        drop(theirs);
        let bytes = (self.request_bytes_max as u64).to_le_bytes();
        pass(&ours, &bytes, &device).map_err(|errno| failed(errno.into()))?;
        state.lives += 1;
        state.running = Some(Running { control: ours });
        Ok(())
    }

    /// A guard has ended, by itself or killed. The next one need not wait for the drops that it has begun: they end soon, because
    /// this daemon answers the requests that they wait for.
    fn bury(&self, life: u64) {
        let mut state = self.lock();
        if state.lives != life {
            return;
        }
        state.idle.clear();
        state.given_up.clear();
        if let Some(running) = state.running.take() {
            eprintln!("ramlace: the guard of this mount has ended, and another one begins");
            state.failed = Some(running);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

impl Line {
    /// Sends a message and returns the kernel's result; none if the guard has ended.
    fn ask(&self, message: &[u8]) -> Option<std::result::Result<(), Errno>> {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).ok()?;
        self.answer()
    }

    fn answer(&self) -> Option<std::result::Result<(), Errno>> {
        let mut answer = [0; 4];
        let bytes = rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut answer)).ok()?;
        if bytes < answer.len() {
            return None;
        }
        Some(match i32::from_le_bytes(answer) {
            0 => Ok(()),
            number => Err(Errno::from_raw_os_error(number)),
        })
    }
}

/// A pair of sockets that keeps message boundaries and shows when the other end is closed.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::from_io(&errno.into(), "making a pair of sockets for the guard of a mount"))
}

/// Sends a descriptor.
pub fn pass(socket: &OwnedFd, bytes: &[u8], descriptor: &impl AsFd) -> std::result::Result<(), Errno> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

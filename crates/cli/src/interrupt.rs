//! Ctrl-C, SIGTERM and SIGHUP as a descriptor that becomes readable, so that what was begun can be undone.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use ramlace_base::{Error, Result};
use rustix::pipe::{PipeFlags, pipe_with};

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The pipe that the handler writes into; -1 while there is no reader.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// The last signal that came since they are caught; 0 before the first.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn tell(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Release);
    let pipe = PIPE.load(Ordering::Acquire);
    if pipe >= 0 {
        // SAFETY: write and the thread's errno may be used in a handler; the byte is static, and the
        // descriptor stays open for as long as its number stands in PIPE.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::write(pipe, b"!".as_ptr().cast(), 1);
            *errno = before;
        }
    }
}

/// While it lives, the signals end nothing: they are reported. Afterwards they mean what they did before.
#[derive(Debug)]
pub struct Interrupt {
    read: OwnedFd,
    _write: OwnedFd,
    before: Vec<(libc::c_int, libc::sighandler_t)>,
}

impl Interrupt {
    /// Begins to catch them. One at a time; a signal that is ignored (`nohup`) stays ignored.
    pub fn catch() -> Result<Interrupt> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| Error::from_io(&errno.into(), "making a pipe"))?;
        SIGNAL.store(0, Ordering::Release);
        let former = PIPE.swap(write.as_raw_fd(), Ordering::AcqRel);
        assert_eq!(former, -1, "signals are caught in one place at a time");
        let mut before = Vec::new();
        for signal in SIGNALS {
            // SAFETY: the handler does nothing but write to a pipe, which is allowed in one.
            let old = unsafe { libc::signal(signal, tell as *const () as libc::sighandler_t) };
            if old == libc::SIG_IGN {
                // SAFETY: ignoring is what was in force a moment ago.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            } else {
                before.push((signal, old));
            }
        }
        Ok(Interrupt { read, _write: write, before })
    }

    /// The signal that has come, if one has.
    pub fn signal(&self) -> Option<i32> {
        Some(SIGNAL.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// Readable once a signal has come; it stays readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: what is put back is what the system gave out as the handler before.
            unsafe { libc::signal(*signal, *old) };
        }
        PIPE.store(-1, Ordering::Release);
    }
}

/// Ends this program by a signal that it had caught and has dealt with: so whatever started it knows, and a shell's loop ends.
pub fn end_by(signal: i32) {
    // SAFETY: the usual treatment of a signal; nothing is to be done behind it.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use ramlace_launch::Cancel;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_signal_is_told_and_ends_nothing() {
        // The process that runs the tests may have left the terminal, and with it they inherit that this signal
        // is ignored. SAFETY: the usual treatment of a signal, in a process of tests alone.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        let interrupt = Interrupt::catch().unwrap();
        let came = || Cancel::new(interrupt.fd()).came();
        assert!(!came() && interrupt.signal().is_none());
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        // Another thread of the tests may be the one that takes the signal, a moment later.
        let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
        poll(&mut [PollFd::new(&interrupt.fd(), PollFlags::IN)], Some(&timeout)).unwrap();
        assert!(came() && came());
        assert_eq!(interrupt.signal(), Some(libc::SIGHUP));
    }
}

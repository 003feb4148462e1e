//! Calls a function, on a thread of its own, when a signal asks the daemon to end.

use std::sync::mpsc::channel;

use ramlace_base::{Error, Result};

/// The signals that `kill`, Ctrl-C and a closed terminal send.
const ENDING: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Calls `action` with 1, 2, … for the first, second, … signal that asks this process to end.
///
/// Must be called before any other thread is started: threads inherit that these signals are blocked.
pub fn on_ending(action: impl Fn(u32) + Send + 'static) -> Result<()> {
    let set = hold_back()?;
    let (started, wait) = channel();
    let run = move || {
        let _ = started.send(());
        for count in 1.. {
            let mut signal = 0;
            // SAFETY: `set` is initialised, and `signal` is this thread's own.
            while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
            action(count);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(run)
        .map_err(|error| Error::from_io(&error, "starting the thread that waits for signals"))?;
    // A signal that came before the thread waits stays pending: none is lost.
    let _ = wait.recv();
    Ok(())
}

fn hold_back() -> Result<libc::sigset_t> {
    // SAFETY: a signal set is plain memory, which `sigemptyset` fills; `pthread_sigmask` reads it.
    let (set, failed) = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        ENDING.iter().for_each(|signal| {
            libc::sigaddset(&raw mut set, *signal);
        });
        (set, libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))
    };
    match failed {
        0 => Ok(set),
        errno => Err(Error::from_io(&std::io::Error::from_raw_os_error(errno), "holding back signals")),
    }
}

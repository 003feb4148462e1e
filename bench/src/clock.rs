//! CPU time of this process and of others, in seconds of user and system time together.

use ramlace_base::{Error, Result};

/// Processes whose CPU time is counted together with this one's.
pub struct Processes {
    clocks: Vec<libc::clockid_t>,
}

impl Processes {
    /// This process and those with the given numbers. The kernel's clock of a process counts
    /// nanoseconds, also of threads that have ended; `/proc/PID/stat` counts in steps of 10 ms.
    pub fn with(pids: &[i32]) -> Result<Processes> {
        let mut clocks = vec![libc::CLOCK_PROCESS_CPUTIME_ID];
        for pid in pids {
            let mut clock = 0;
            // SAFETY: the call writes one clock's number to a local.
            let code = unsafe { libc::clock_getcpuclockid(*pid, &raw mut clock) };
            if code != 0 {
                let error = std::io::Error::from_raw_os_error(code);
                return Err(Error::from_io(&error, format!("reading the CPU time of process {pid}")));
            }
            clocks.push(clock);
        }
        Ok(Processes { clocks })
    }

    /// CPU seconds of all of them until now.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.clocks.iter().map(|clock| read(*clock)).sum()
    }
}

fn read(clock: libc::clockid_t) -> Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one time to a local.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(Error::from_io(&std::io::Error::last_os_error(), "reading a process's CPU time"));
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

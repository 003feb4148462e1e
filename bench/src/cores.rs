//! Which cores the two ends of a connection run on.
//!
//! Left alone, the scheduler puts them on one core or on two as it finds them, and the same loop
//! then costs half or twice as much (raw 1 MiB writes on the machine of the design: 0.14 or 0.29
//! CPU seconds for each GiB), so that the ratio of two loops says nothing.

use ramlace_base::{Error, Result};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where servers run; the client has the first core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    /// On all other cores, as on other machines: for bulk data, which both ends work on at once.
    Apart,
    /// On the client's core: for small calls, at which only one end is busy. Waking another core
    /// costs more than the call, and would hide what the library adds.
    Together,
}

/// Keeps this thread and the given processes on their cores as long as it lives.
pub struct Cores {
    all: CpuSet,
    pids: Vec<i32>,
}

impl Cores {
    /// Does nothing where there is one core alone.
    pub fn keep(servers: Servers, pids: Vec<i32>) -> Result<Cores> {
        let all =
            sched_getaffinity(None).map_err(|errno| Error::from_io(&errno.into(), "asking for the cores"))?;
        let cores = Cores { all, pids };
        if let Some(first) = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core))
            && all.count() > 1
        {
            let (mut own, mut others) = (CpuSet::new(), all);
            own.set(first);
            others.unset(first);
            place(None, &own)?;
            cores.place_servers(if servers == Servers::Apart { &others } else { &own })?;
        }
        Ok(cores)
    }

    fn place_servers(&self, cores: &CpuSet) -> Result<()> {
        for pid in &self.pids {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
                .map_err(|error| Error::from_io(&error, format!("listing the threads of process {pid}")))?;
            for thread in threads.flatten() {
                let number = thread.file_name().to_string_lossy().parse().ok();
                place(Some(number.and_then(Pid::from_raw).expect("threads have numbers")), cores)?;
            }
        }
        Ok(())
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        // What has ended meanwhile needs no core.
        let _ = place(None, &self.all);
        let _ = self.place_servers(&self.all);
    }
}

fn place(thread: Option<Pid>, cores: &CpuSet) -> Result<()> {
    match sched_setaffinity(thread, cores) {
        // A thread of a server that has ended since they were listed needs no core.
        Err(Errno::SRCH) if thread.is_some() => Ok(()),
        placed => placed.map_err(|errno| Error::from_io(&errno.into(), "giving a thread its cores")),
    }
}

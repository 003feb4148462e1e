//! Looks at the processes of this machine, one after the other, and gets stuck with none of them.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ramlace_base::{Error, Result};

/// How long one process may delay this one while it is examined.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for others, when one has: many may be stuck in one mount.
const PATIENCE_OF_OTHERS: Duration = Duration::from_millis(200);

/// The processes that are to be seen here.
pub fn all() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").map_err(|error| Error::from_io(&error, "listing /proc"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// What `look` finds out about each of these processes. One that is stuck, such as a program in a mount whose daemon is stopped, blocks
/// a reader of its command line: it is passed over, for what serves a pool uses no mount.
pub fn look_at_each<T: Send + 'static>(
    pids: Vec<u32>,
    look: impl Fn(u32) -> Option<T> + Send + Sync + 'static,
) -> Vec<T> {
    let (pids, look) = (Arc::new(pids), Arc::new(look));
    let mut found = Vec::new();
    let mut patience = PATIENCE;
    let mut next = 0;
    while next < pids.len() {
        let (tell, told) = channel();
        let (theirs, look, first) = (pids.clone(), look.clone(), next);
        // Left behind when it is stuck; this command ends soon.
        std::thread::spawn(move || theirs[first..].iter().all(|pid| tell.send(look(*pid)).is_ok()));
        while next < pids.len() {
            let Ok(looked) = told.recv_timeout(patience) else {
                patience = PATIENCE_OF_OTHERS;
                break;
            };
            found.extend(looked);
            next += 1;
        }
        // The one that kept the thread, if one did.
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_stuck_is_passed_over() {
        let look = |pid| {
            if pid % 3 == 1 {
                std::thread::sleep(Duration::from_secs(60));
            }
            (pid % 3 == 2).then_some(pid)
        };
        assert_eq!(look_at_each((0..10).collect(), look), [2, 5, 8]);
    }
}

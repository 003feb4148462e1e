//! Stores that could not be written back, and to whom that was reported.
//!
//! The kernel reports a failed write-back to the first program that asks, and forgets it: that may be a
//! program that only reads, or a refresh. Here each failure is kept for every descriptor that was open when
//! it happened: the next `fsync`, `msync` or `close` by it reports the failure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Error, InodeId, Result};
use ramlace_sync::{Mutex, MutexGuard};

/// The last failure of each file; gone when the kernel forgets the file.
#[derive(Default)]
pub(crate) struct WriteErrors {
    failures: Mutex<HashMap<InodeId, Failure>>,
    /// The number of failures so far, of all files.
    count: AtomicU64,
}

struct Failure {
    number: u64,
    error: Error,
    /// It was reported by a refresh.
    refreshed: bool,
}

/// The failures that were reported: those up to a number.
pub(crate) struct Heard(AtomicU64);

impl WriteErrors {
    /// For a file that is opened now: earlier failures are not reported to it.
    pub(crate) fn begin(&self) -> Heard {
        Heard(AtomicU64::new(self.count.load(Ordering::Acquire)))
    }

    /// A write-back of the file failed.
    pub(crate) fn note(&self, inode: InodeId, error: &Error) {
        let mut failures = self.failures();
        let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        failures.insert(inode, Failure { number, error: error.clone(), refreshed: false });
    }

    /// The file's last failure, unless it was reported to `heard`; then it counts as reported.
    pub(crate) fn tell(&self, inode: InodeId, heard: &Heard) -> Result<()> {
        match self.failures().get(&inode) {
            Some(failure) if heard.0.fetch_max(failure.number, Ordering::AcqRel) < failure.number => {
                Err(failure.error.clone())
            }
            _ => Ok(()),
        }
    }

    /// The same for a refresh, which has no descriptor: each failure is reported by one. The kernel may have
    /// tried to write back before the refresh made it.
    pub(crate) fn tell_refresh(&self, inode: InodeId) -> Result<()> {
        match self.failures().get_mut(&inode) {
            Some(failure) if !failure.refreshed => {
                failure.refreshed = true;
                Err(failure.error.clone())
            }
            _ => Ok(()),
        }
    }

    /// The kernel has forgotten the file, so no program has it open.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.failures().remove(&inode);
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<InodeId, Failure>> {
        self.failures.lock()
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::ErrorKind;

    use super::*;

    #[test]
    fn each_who_was_there_hears_of_a_failure_once() {
        let (errors, file, other) = (WriteErrors::default(), InodeId(7), InodeId(8));
        let (first, second) = (errors.begin(), errors.begin());
        let full = Error::new(ErrorKind::NoSpace, "full");
        errors.note(file, &full);
        let late = errors.begin();
        assert_eq!(errors.tell(file, &first), Err(full.clone()));
        assert_eq!(errors.tell(file, &first), Ok(()));
        assert_eq!(errors.tell(other, &second), Ok(()));
        assert_eq!(errors.tell(file, &second), Err(full.clone()));
        assert_eq!(errors.tell(file, &late), Ok(()), "it was opened after the failure");
        assert_eq!(errors.tell_refresh(file), Err(full.clone()), "nobody has refreshed since");
        assert_eq!(errors.tell_refresh(file), Ok(()));
        errors.note(file, &full);
        assert_eq!(errors.tell_refresh(file), Err(full.clone()));
        assert_eq!(errors.tell(file, &first), Err(full));
        errors.note(file, &Error::new(ErrorKind::HostDown, "gone"));
        errors.forget(file);
        assert_eq!(errors.tell(file, &second), Ok(()));
    }
}

//! Stores that could not be written back, and which descriptors have reported it.
//!
//! The kernel reports a failed write-back to the first program that asks, and forgets it: that may be a
//! program that only reads, or a refresh. Here each failure is kept for every descriptor that was open when
//! it happened: the next `fsync`, `msync` or `close` by it reports the failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Error, InodeId, Result};

use crate::nodes::Nodes;
pub(crate) use crate::nodes::failure::Reported;

/// The last failure of each file; gone when the kernel forgets the file.
pub(crate) struct WriteErrors {
    nodes: Arc<Nodes>,
    /// The number of failures so far, of all files.
    count: AtomicU64,
}

impl WriteErrors {
    pub(crate) fn new(nodes: &Arc<Nodes>) -> WriteErrors {
        WriteErrors { nodes: nodes.clone(), count: AtomicU64::new(0) }
    }

    /// For a file that is opened now: earlier failures are not reported to it.
    pub(crate) fn begin(&self) -> Reported {
        Reported::up_to(self.count.load(Ordering::Acquire))
    }

    /// A write-back of the file failed.
    pub(crate) fn note(&self, inode: InodeId, error: &Error) {
        self.nodes.change(inode, |node| {
            let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
            node.failure.note(number, error);
        });
    }

    /// The file's last failure, unless it is among these; from then on it is.
    pub(crate) fn tell(&self, inode: InodeId, reported: &Reported) -> Result<()> {
        self.nodes.read(inode, |node| node.failure.tell(reported)).unwrap_or(Ok(()))
    }

    /// The same for a refresh, which has no descriptor: each failure is reported by one. The kernel may have
    /// tried to write back before the refresh made it.
    pub(crate) fn tell_refresh(&self, inode: InodeId) -> Result<()> {
        self.nodes.find(inode, |node| node.failure.tell_refresh()).unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::ErrorKind;

    use super::*;

    #[test]
    fn each_who_was_there_hears_of_a_failure_once() {
        let (nodes, file, other) = (Arc::<Nodes>::default(), InodeId(7), InodeId(8));
        let errors = WriteErrors::new(&nodes);
        nodes.tell(file);
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
        nodes.forget(file, 1);
        assert_eq!(errors.tell(file, &second), Ok(()));
    }
}

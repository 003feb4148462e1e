//! The access control lists that the kernel caches, so that they can be dropped when the leases of the attributes
//! beside them expire: see [`crate::access_lists`].

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, InodeId, Result, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::xattrs::XattrName;

use crate::leases::Leases;

/// The time between two checks of what the kernel caches: shorter than the margin by which servers wait
/// longer than kernels use their answers.
const PAUSE: Duration = Duration::from_millis(limits::LEASE_MARGIN_MILLIS / 3);

/// Whether an attribute is a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    [XattrName::ACCESS_LIST, XattrName::DEFAULT_LIST].contains(&name)
}

/// The inodes whose lists the kernel caches, including the answer that there is none.
pub(crate) struct KeptLists {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// By inode: until when.
    kept: Mutex<HashMap<InodeId, Instant>>,
    came: Condvar,
}

impl KeptLists {
    /// Starts the thread that makes the kernel drop them in time, until this is dropped.
    pub(crate) fn start(leases: &Arc<Leases>) -> Result<KeptLists> {
        let shared = Arc::new(Shared::default());
        let (weak, leases) = (Arc::downgrade(&shared), leases.clone());
        std::thread::Builder::new()
            .name("lists".into())
            .spawn(move || drop_in_time(&weak, &leases))
            .map_err(|error| Error::from_io(&error, "starting a thread for access lists"))?;
        Ok(KeptLists { shared })
    }

    /// The kernel caches the answer that it gets next. Returns whether there was room to note that.
    pub(crate) fn keep(&self, inode: InodeId, until: Instant) -> bool {
        let mut kept = self.shared.lock();
        if kept.len() >= limits::LEASES_PER_MOUNT_MAX && !kept.contains_key(&inode) {
            return false;
        }
        if kept.is_empty() {
            self.shared.came.notify_all();
        }
        kept.insert(inode, until);
        true
    }
}

impl Drop for KeptLists {
    fn drop(&mut self) {
        self.shared.came.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Instant>> {
        self.kept.lock()
    }

    /// Waits until there are any, or a notification; returns those whose time is over.
    fn wait_for_over(&self) -> Vec<InodeId> {
        let kept = self.lock();
        if kept.is_empty() {
            // Wakes up now and then to notice the end of the mount, whose notification may come before this
            // waits.
            drop(self.came.wait_timeout(kept, Duration::from_secs(1)));
            return Vec::new();
        }
        drop(kept);
        std::thread::sleep(PAUSE);
        let now = Instant::now();
        self.lock().extract_if(|_, until| *until <= now).map(|(inode, _)| inode).collect()
    }
}

fn drop_in_time(shared: &Weak<Shared>, leases: &Leases) {
    while let Some(shared) = shared.upgrade() {
        for inode in shared.wait_for_over() {
            match leases.attributes_believed(leases.ask(), inode) {
                // Its attributes were requested again meanwhile.
                Some(believed) => _ = shared.lock().entry(inode).or_insert(believed.until),
                None => leases.drop_attributes_of(inode.0),
            }
        }
    }
}

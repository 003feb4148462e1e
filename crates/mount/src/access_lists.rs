//! Access control lists, as the kernel asks for them, and what it may keep of them.
//!
//! The kernel checks rights by lists before it asks the mount for anything, so it asks for the list of whatever belongs to
//! somebody else. It keeps the answer, also that there is none, until it hears of the inode's attributes anew or is told
//! to drop them. Its checks ask for attributes when those are over, but who reads a list by a descriptor gets what was
//! kept, however old it is. So the kernel keeps a list only while its inode's attributes are leased: a recall drops
//! both, and what is left when the lease runs out is dropped here, within the time that servers wait longer than kernels
//! believe. Any other answer is kept by nobody: the kernel is told to drop the list before it has it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::xattrs::XattrName;

use crate::filesystem::PoolFileSystem;
use crate::leases::Leases;

/// Between two looks at what the kernel keeps: shorter than the margin by which servers wait longer than kernels believe.
const PAUSE: Duration = Duration::from_millis(limits::LEASE_MARGIN_MILLIS / 3);

/// Whether an attribute is a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    [XattrName::ACCESS_LIST, XattrName::DEFAULT_LIST].contains(&name)
}

/// The inodes whose lists, or want of lists, the kernel keeps.
pub(crate) struct KeptLists {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Until when.
    kept: Mutex<HashMap<InodeId, Instant>>,
    came: Condvar,
}

impl KeptLists {
    /// Starts the thread that has the kernel drop them in time, until this is dropped.
    pub(crate) fn start(leases: &Arc<Leases>) -> Result<KeptLists> {
        let shared = Arc::new(Shared::default());
        let (weak, leases) = (Arc::downgrade(&shared), leases.clone());
        std::thread::Builder::new()
            .name("lists".into())
            .spawn(move || drop_in_time(&weak, &leases))
            .map_err(|error| Error::from_io(&error, "starting a thread for access lists"))?;
        Ok(KeptLists { shared })
    }

    /// The kernel keeps the answer that it gets next. Whether there is room to remember that.
    fn keep(&self, inode: InodeId, until: Instant) -> bool {
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

    /// Those whose time is over, once there are any at all or somebody calls.
    fn wait_for_over(&self) -> Vec<InodeId> {
        let kept = self.lock();
        if kept.is_empty() {
            // Wakes up now and then for the end of the mount: its last notice may come before this waits.
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
                // Its attributes were asked for again meanwhile.
                Some(believed) => _ = shared.lock().entry(inode).or_insert(believed.until),
                None => leases.drop_attributes_of(inode.0),
            }
        }
    }
}

impl PoolFileSystem {
    /// A list of the inode, for which the kernel asks by this node. Who may reach an inode may read its lists.
    pub(crate) fn get_list(&self, node: u64, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let asked = self.leases.ask();
        let believed = self.leases.attributes_believed(asked, inode);
        let list = match &believed {
            Some(believed) if !believed.xattrs => {
                Err(Error::new(ErrorKind::NoData, "it has no extended attributes"))
            }
            _ => self.ask_for_list(inode, name),
        };
        let leased =
            node == inode.0 && list.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NoData);
        let keeps = leased
            && self
                .leases
                .attributes_believed(asked, inode)
                .is_some_and(|believed| self.kept_lists.keep(inode, believed.until));
        if !keeps {
            self.leases.drop_attributes_of(node);
        }
        list
    }

    fn ask_for_list(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        match self.raw().get_xattr(inode, &XattrName::new(name)?) {
            // It was removed while somebody here has it open: its mode says all that is left to say.
            Err(error) if error.kind() == ErrorKind::Stale && self.removed.get(inode).is_some() => {
                Err(Error::new(ErrorKind::NoData, "it was removed"))
            }
            list => list,
        }
    }
}

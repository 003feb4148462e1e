//! The callbacks for what servers recall, for callers that cache things under leases.

use std::sync::{Arc, OnceLock};

use ramlace_base::{Error, InodeId, ServerId, Slot};
use ramlace_wire::leases::{DataRecall, Recall};

/// Called with recalled leases: when it returns, nothing is trusted any more under them. It must not wait for
/// a server's reply.
pub type OnRecall = Box<dyn Fn(&[Recall]) + Send + Sync>;

/// Called when a change was not answered in time and may still be done: its session counts as knowing the
/// change, so the server does not recall from it what the change affects in this slot. Called again when that
/// is over: then whatever was asked before is not valid. It must not wait for a server's reply.
pub type OnDoubt = Box<dyn Fn(Slot, Doubt) + Send + Sync>;

/// Called when a promise was not kept as it was answered ([`crate::ConnectOptions::behind`]): what is cached
/// of the inode, or of its directory, because of that answer is to be dropped. It must not wait for a
/// server's reply.
pub type OnBroken = Box<dyn Fn(InodeId, &Broken) + Send + Sync>;

/// How a promise was not kept.
#[derive(Clone, Debug)]
pub enum Broken {
    /// It was done, but the server's answer is a different one, or less of it is leased.
    Unlike,
    /// It was not done, and never will be.
    Lost {
        /// Why.
        error: Error,
        /// The directory in which it was to make a file.
        directory: Option<InodeId>,
    },
}

/// Whether an earlier answer of a slot may be outdated without a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// There is one more reason to doubt.
    Begins,
    /// There is one reason less.
    Ends,
}

/// A cache of bytes under leases. Its methods are called by the threads that receive recalls, and must not
/// wait.
pub trait DataLeases: Send + Sync {
    /// A server has recalled leases on bytes; recalls may be repeated. Each is to be ended by
    /// [`crate::Pool::end_recalls`].
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]);

    /// A server has restarted: it knows of no lease, and what is cached of its bytes must be dropped. Earlier
    /// recalls need not be ended any more. Others wait until [`crate::Pool::has_dropped_all`] is called with
    /// this incarnation. The same call is made when the pool has forgotten the server: then others have its
    /// slots, and nobody waits.
    fn forgotten(&self, server: ServerId, life: u64);

    /// Nothing was heard of a server for so long that it may have stopped waiting for this process, and let others
    /// change bytes: what is cached of it must be dropped, as far as it is believed without asking. What was recalled is
    /// still to be ended.
    fn unheard(&self, server: ServerId);
}

/// The callbacks for recalls, for all sessions of the process: a kernel's pages may outlive the session under
/// which they were read.
#[derive(Default)]
pub(crate) struct Callbacks {
    /// Called with recalled leases; none are requested before it is set.
    pub(crate) on_recall: OnceLock<OnRecall>,
    /// Called about changes that were not answered in time.
    pub(crate) on_doubt: OnceLock<OnDoubt>,
    /// Called about promises that were not kept.
    pub(crate) on_broken: OnceLock<OnBroken>,
    /// The cache of bytes under leases; none are requested before it is set.
    pub(crate) data_leases: OnceLock<Arc<dyn DataLeases>>,
}

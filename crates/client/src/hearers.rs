//! Who is told of what servers recall: the callers that believe things by leases.

use std::sync::{Arc, OnceLock};

use ramlace_base::{Error, InodeId, ServerId, Slot};
use ramlace_wire::leases::{DataRecall, Recall};

/// What is done with recalled leases: when it is back, nothing is believed by them any more. It must wait for no
/// answer of a server.
pub type OnRecall = Box<dyn Fn(&[Recall]) + Send + Sync>;

/// What is done when a change was not answered in time, and may be done yet: its session counts as knowing it, and is not told of
/// what it changes in this slot. And when that is over: then whatever was asked before says nothing. It must wait for no answer of a server.
pub type OnDoubt = Box<dyn Fn(Slot, Doubt) + Send + Sync>;

/// What is done where a promise was not kept as it was told ([`crate::ConnectOptions::behind`]): whoever believes something of the inode, or of
/// its directory, by that is to drop it. It must wait for no answer of a server.
pub type OnBroken = Box<dyn Fn(InodeId, &Broken) + Send + Sync>;

/// In which way a promise was not kept.
#[derive(Clone, Debug)]
pub enum Broken {
    /// It was done, and the answer is another one, or less of it is leased.
    Unlike,
    /// It was not done, and never will be.
    Lost(Error),
}

/// Whether what a slot has said may be outdated without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// From now on, once more.
    Begins,
    /// For one reason less.
    Ends,
}

/// Whoever keeps bytes by leases. Its calls come from the threads that hear of recalls, and wait for nothing.
pub trait DataLeases: Send + Sync {
    /// A server has recalled leases on bytes; some may have been told before. Each is to be ended by [`crate::Pool::end_recalls`].
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]);

    /// A server has a new life: it knows of no lease, and what is kept of its bytes must go. Nothing is left to be ended
    /// of what was recalled before. Others wait until [`crate::Pool::has_dropped_all`] is called with this life. The same where the pool
    /// has forgotten it: then others have its slots, and nobody waits.
    fn forgotten(&self, server: ServerId, life: u64);
}

/// Who is told what servers recall, in whichever session: a kernel's pages are older than the session that follows.
#[derive(Default)]
pub(crate) struct Hearers {
    /// What is done with recalled leases; none are asked for before it is set.
    pub(crate) on_recall: OnceLock<OnRecall>,
    /// What is done about changes that were not answered in time.
    pub(crate) on_doubt: OnceLock<OnDoubt>,
    /// What is done about promises that were not kept.
    pub(crate) on_broken: OnceLock<OnBroken>,
    /// Who keeps bytes by leases; none are asked for before it is set.
    pub(crate) data_leases: OnceLock<Arc<dyn DataLeases>>,
}

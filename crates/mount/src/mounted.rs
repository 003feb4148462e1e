//! The state of a mounted pool: the tables, and the client. The methods that handle requests are `impl` blocks of it,
//! in the file of their subject; [`crate::filesystem`] calls them. The tables do not know it.

use std::sync::Arc;

use ramlace_client::{Pool, Raw};
use ramlace_fuse::{Porter, RequestCounts};

use crate::droppers::Droppers;
use crate::handles::Handles;
use crate::kept_lists::KeptLists;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::lost_stores::LostStores;
use crate::modes::Modes;
use crate::nodes::Nodes;
use crate::pages::Pages;
use crate::passthrough::PassthroughFiles;
use crate::refresh::Refresher;
use crate::removed::Removed;
use crate::space::Space;
use crate::strict::StrictReads;
use crate::versions::Versions;
use crate::write_errors::WriteErrors;

/// A mounted pool.
pub(crate) struct PoolFileSystem {
    pub(crate) pool: Pool,
    /// Each request is made for the user whose program made it.
    pub(crate) for_users: bool,
    /// Reads the groups of users whose processes this one may not inspect.
    pub(crate) porter: Arc<Porter>,
    /// What makes a file longer allocates its memory at once.
    pub(crate) reserves: bool,
    /// The kernel lets files be mapped that are open for direct I/O, and writes back what programs have stored there before
    /// a direct write.
    pub(crate) maps_direct_files: bool,
    /// Changes are answered before they are sent (`--metadata=behind`).
    pub(crate) promises: bool,
    pub(crate) handles: Arc<Handles>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) space: Space,
    pub(crate) refresher: Arc<Refresher>,
    pub(crate) write_errors: Arc<WriteErrors>,
    pub(crate) lost_stores: LostStores,
    pub(crate) locks: Arc<Locks>,
    pub(crate) removed: Removed,
    pub(crate) leases: Arc<Leases>,
    pub(crate) kept_lists: KeptLists,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) passthrough: Arc<PassthroughFiles>,
    pub(crate) pages: Arc<Pages>,
    pub(crate) strict: Arc<StrictReads>,
    pub(crate) modes: Arc<Modes>,
    pub(crate) droppers: Droppers,
    pub(crate) counts: Arc<RequestCounts>,
}

impl PoolFileSystem {
    pub(crate) fn raw(&self) -> Raw<'_> {
        self.pool.raw()
    }

    /// After the machine was suspended for longer than its session lives, open files are Stale for ever;
    /// names and new opens continue in a new session. While there is none, requests fail as Stale, too.
    pub(crate) fn leave_ended_session(&self) {
        if self.pool.is_ended() {
            self.leases.end();
            self.droppers.drop_all();
            let _ = self.pool.reconnect();
        }
    }
}

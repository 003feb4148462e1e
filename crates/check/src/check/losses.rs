//! What was lost with servers that were forgotten: findings that follow from that are reported as such.

use ramlace_base::{Epoch, InodeId, Slot};

use crate::check::Check;
use crate::findings::Finding;

impl Check<'_> {
    pub(super) fn began(&self, slot: Slot) -> Epoch {
        self.map.chain(slot).map_or(Epoch(0), |chain| chain.complete_since)
    }

    /// Whether the inode was lost with its server: its slot has begun anew since.
    pub(super) fn is_lost(&self, inode: InodeId) -> bool {
        self.has_lost_servers() && inode.counter() < self.began(inode.slot()).first_number()
    }

    pub(super) fn has_lost_servers(&self) -> bool {
        self.map.servers.iter().any(|entry| entry.forgotten)
    }
}

/// Notes of a finding whether it is, or may be, what is left of a server.
pub(super) fn mark_lost(finding: Option<&mut Finding>, lost: bool) {
    if let Some(finding) = finding {
        finding.lost_with_server = lost;
    }
}

//! The result of a scan: findings, and counts of what was examined.

use std::collections::BTreeSet;

use ramlace_base::{InodeId, LaneId, ServerId};

use crate::kinds::FindingKind;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The server that holds it.
    pub server: ServerId,
    /// The inode that it is about.
    pub inode: Option<InodeId>,
    /// The lane that it is about.
    pub lane: Option<LaneId>,
    /// What else distinguishes it: a lane, a name, an operation.
    pub place: String,
    /// A path that leads to it, as far as one is known.
    pub path: Option<Vec<u8>>,
    /// It is, or may be, what is left of a server that was forgotten: nothing else went wrong.
    pub lost_with_server: bool,
    /// A sentence.
    pub text: String,
}

impl Finding {
    /// Whether both are about the same thing.
    #[must_use]
    pub fn is_same(&self, other: &Finding) -> bool {
        let key = |finding: &Finding| (finding.kind, finding.server, finding.inode);
        key(self) == key(other) && self.place == other.place
    }
}

/// The result of a scan.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// How much was examined.
    pub counts: CheckCounts,
    /// What is wrong, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// What is wrong beyond that.
    pub further_findings: u64,
}

/// Findings of one scan that are reported one by one.
pub const FINDINGS_MAX: usize = 10_000;

/// How much was examined, and what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Servers.
    pub servers: u64,
    /// Slots in which something has happened.
    pub slots: u64,
    /// Inodes.
    pub inodes: u64,
    /// Entries.
    pub entries: u64,
    /// Lanes.
    pub lanes: u64,
    /// Memory of lanes.
    pub lane_bytes: u64,
    /// Inodes that live only because a session has them open.
    pub open_without_name: u64,
    /// Operations across slots that are under way.
    pub operations: u64,
    /// Pending messages between slots.
    pub deliveries: u64,
    /// Lanes with bytes beyond their file's end: of writes that were never completed. They go with the
    /// file, or with its next truncation.
    pub lanes_beyond_end: u64,
    /// Those bytes.
    pub bytes_beyond_end: u64,
}

impl Checked {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.is_conclusive()
    }

    /// Whether all that was found is in `findings`. Otherwise each scan has found more than can be compared with what the
    /// next one finds, and what is beyond may have been under way.
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        self.further_findings == 0
    }

    /// Inodes that something is wrong with.
    #[must_use]
    pub fn suspects(&self) -> BTreeSet<InodeId> {
        self.findings.iter().filter_map(|finding| finding.inode).collect()
    }

    /// Lanes of a server that do not fit to their files, and that it can mend, in order.
    #[must_use]
    pub fn lanes_to_mend(&self, server: ServerId) -> Vec<LaneId> {
        let is_mendable = |kind| matches!(kind, FindingKind::LaneLeaked | FindingKind::GenerationsDiffer);
        let found =
            self.findings.iter().filter(|finding| finding.server == server && is_mendable(finding.kind));
        let lanes: BTreeSet<LaneId> = found.filter_map(|finding| finding.lane).collect();
        lanes.into_iter().collect()
    }

    /// Keeps what another scan has found too.
    pub fn keep_found_by(&mut self, other: &Checked) {
        let mut known: Vec<(FindingKind, ServerId, Option<InodeId>, &str)> = other
            .findings
            .iter()
            .map(|finding| (finding.kind, finding.server, finding.inode, &*finding.place))
            .collect();
        known.sort_unstable();
        self.findings.retain(|finding| {
            known.binary_search(&(finding.kind, finding.server, finding.inode, &finding.place)).is_ok()
        });
        self.further_findings = self.further_findings.min(other.further_findings);
    }
}

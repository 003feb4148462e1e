//! How a scan notes what it finds: the first findings up to a limit, with a path to each where one is known.

use ramlace_base::{InodeId, LaneId, Name, ServerId};
use ramlace_wire::check::EntryFacts;

use crate::check::Check;
use crate::findings::{FINDINGS_MAX, Finding};
use crate::kinds::FindingKind;

impl Check<'_> {
    pub(super) fn find(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        inode: Option<InodeId>,
        place: String,
        text: String,
    ) -> Option<&mut Finding> {
        let checked = &mut self.checked;
        if checked.findings.len() >= FINDINGS_MAX {
            checked.further_findings += 1;
            return None;
        }
        checked.findings.push(Finding {
            kind,
            server,
            inode,
            lane: None,
            place,
            path: None,
            lost_with_server: false,
            text,
        });
        checked.findings.last_mut()
    }

    pub(super) fn find_lane(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        lane: LaneId,
        text: String,
    ) -> Option<&mut Finding> {
        let finding = self.find(kind, server, Some(lane.inode), format!("lane {}", lane.lane), text)?;
        finding.lane = Some(lane);
        Some(finding)
    }

    pub(super) fn find_entry(
        &mut self,
        kind: FindingKind,
        server: ServerId,
        entry: &EntryFacts,
        text: String,
    ) -> Option<&mut Finding> {
        self.paths.insert(entry.inode, (entry.directory, entry.name.clone()));
        let place = format!("{} {}", entry.directory, entry.cookie);
        self.find(kind, server, Some(entry.inode), place, text)
    }

    pub(super) fn name_findings(&mut self) {
        let mut findings = std::mem::take(&mut self.checked.findings);
        for finding in &mut findings {
            finding.path = finding.inode.and_then(|inode| self.path(inode));
        }
        self.checked.findings = findings;
    }

    /// A path to an inode, when one is known.
    fn path(&self, inode: InodeId) -> Option<Vec<u8>> {
        let mut parts: Vec<&Name> = Vec::new();
        let mut at = inode;
        while at != InodeId::ROOT {
            let found_in = self.directories.get(&at).and_then(|directory| directory.found_in.as_ref());
            let (above, name) = found_in.or_else(|| self.paths.get(&at))?;
            parts.push(name);
            at = *above;
            if parts.len() > self.directories.len() + 1 {
                return None; // A cycle.
            }
        }
        if parts.is_empty() {
            return Some(b"/".to_vec());
        }
        Some(parts.iter().rev().flat_map(|name| [b"/", name.as_bytes()].concat()).collect())
    }
}

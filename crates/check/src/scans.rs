//! Scans a pool until operations that were only under way have ended: a pool may be checked while it is
//! used.

use std::collections::BTreeSet;
use std::time::Duration;

use ramlace_base::{InodeId, Result};

use crate::findings::{CheckCounts, Checked, Finding};
use crate::kinds::FindingKind;
use crate::reading::scan;
use crate::servers::{LostStores, Servers};

/// Scans a pool that has something wrong: operations that were only under way have ended by then.
const LOOKS_MAX: u32 = 4;
/// Between two scans: a delivery takes milliseconds, and half a second where its server was away.
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(1_500);

/// Reads what all servers hold and reports what does not fit together. While something is found it is scanned again,
/// up to four times, and reports what every scan has found: a pool may be checked while it is used. `progress`
/// is called with how far it has come, after each page. Takes memory of this process for each inode. `lost`:
/// what mounts have reported of stores that they lost, file by file.
///
/// Errors: `HostDown` when a server does not answer: a part of a pool cannot be checked; `Retry` when slots changed hands
/// during a scan.
pub fn check_pool(
    servers: &impl Servers,
    lost: &[LostStores],
    mut progress: impl FnMut(&CheckCounts),
) -> Result<Checked> {
    let losers: BTreeSet<InodeId> = lost.iter().map(|(inode, _)| *inode).collect();
    let mut checked = scan(servers, losers, lost, &mut progress)?;
    for _ in 1..LOOKS_MAX {
        let is_settled = |finding: &Finding| finding.kind == FindingKind::StoresLost;
        if checked.is_conclusive() && checked.findings.iter().all(is_settled) {
            break;
        }
        servers.wait(PAUSE_BETWEEN_LOOKS);
        let mut newer = scan(servers, checked.suspects(), lost, &mut progress)?;
        newer.keep_found_by(&checked);
        checked = newer;
    }
    Ok(checked)
}

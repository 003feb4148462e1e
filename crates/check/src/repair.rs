//! Has servers mend what they can, and checks again.
//!
//! A server decides by what it learns from the slots and from the homes of files, not by what was found here:
//! the findings name only the lanes to ask about.

use ramlace_base::{Result, ServerId, limits};
use ramlace_wire::check::Trouble;
use ramlace_wire::mend::{Mend, MendLanes};

use crate::findings::{CheckCounts, Checked};
use crate::scans::check_pool;
use crate::servers::{LostStores, Servers, pages, serving};

/// What a check with repair has come to.
#[derive(Debug)]
pub struct Repaired {
    /// What is wrong: after the repair, where that has mended all that it could; else before it.
    pub checked: Checked,
    /// What was mended, and by which servers, as it went.
    pub mended: Vec<(ServerId, Trouble)>,
    /// Whether the repair came to its end. What was mended before stays so.
    pub ended: Result<()>,
}

impl Repaired {
    /// What a check without repair has come to.
    #[must_use]
    pub fn nothing(checked: Checked) -> Repaired {
        Repaired { checked, mended: Vec::new(), ended: Ok(()) }
    }
}

/// Checks, has the servers mend what they can, and checks again if they have mended something. Arguments are those of [`check_pool`].
///
/// Errors: those of [`check_pool`]; those of the repair itself are in [`Repaired::ended`]: `Denied` to a caller
/// that is not the pool's owner; `HostDown` when a server does not answer, or one whose slots or files another
/// asks for.
pub fn check_and_repair(
    servers: &impl Servers,
    lost: &[LostStores],
    mut progress: impl FnMut(&CheckCounts),
) -> Result<Repaired> {
    let mut checked = check_pool(servers, lost, &mut progress)?;
    let mut mended = Vec::new();
    let ended = repair(servers, &checked, |server, trouble| mended.push((server, trouble)));
    if !mended.is_empty() && ended.is_ok() {
        checked = check_pool(servers, lost, &mut progress)?;
    }
    Ok(Repaired { checked, mended, ended })
}

/// Has every server compare what came in the name of other slots with what those slots know, and drop what they
/// do not know; `found` names the lanes that do not fit their files. `mended` is called with each repair as it
/// happens.
fn repair(servers: &impl Servers, found: &Checked, mut mended: impl FnMut(ServerId, Trouble)) -> Result<()> {
    let map = servers.map()?;
    for server in serving(&map) {
        pages(servers, server, Mend { repair: true, after: None }, |page| {
            page.found.into_iter().for_each(|trouble| mended(server, trouble));
            page.next.map(|next| Mend { repair: true, after: Some(next) })
        })?;
        let mut lanes = found.lanes_to_mend(server);
        while !lanes.is_empty() {
            let some = lanes[..lanes.len().min(limits::MEND_LANES_MAX)].to_vec();
            let told = servers.ask(server, &MendLanes { lanes: some })?;
            told.mended.into_iter().for_each(|trouble| mended(server, trouble));
            lanes.drain(..told.fit as usize);
        }
    }
    Ok(())
}

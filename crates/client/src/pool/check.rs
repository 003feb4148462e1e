//! Whether everything in a pool fits together: reads what each server holds, page by page, and
//! hands it to [`ramlace_namespace::Check`]. That changes nothing; [`Pool::repair`] does.

use std::collections::BTreeSet;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, limits};
use ramlace_namespace::{Check, CheckCounts, Checked, FindingKind};
use ramlace_wire::check::{
    CheckEntries, CheckInodes, CheckLanes, CheckSlots, CheckStore, Trouble, TroubleKind,
};
use ramlace_wire::mend::{Mend, MendLanes};
use ramlace_wire::{ClusterMap, Request};

use crate::pool::Pool;

/// Looks at a pool that has something wrong: what was only under way is over by then.
const LOOKS_MAX: u32 = 4;
/// Between two looks: a delivery takes milliseconds, and half a second where its server was away.
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(1_500);

impl Pool {
    /// Reads what all servers hold and tells what does not fit together. While something is found it
    /// looks again, up to four times, and tells what every look has found: a pool may be checked
    /// while it is used. `progress` is told how far it has come, after each page. Takes memory
    /// of this process for each inode. `lost`: what mounts have told of stores that they lost, file by file.
    ///
    /// Errors: `HostDown` when a server does not answer: a part of a pool cannot be checked.
    pub fn check(
        &self,
        lost: &[(InodeId, String)],
        mut progress: impl FnMut(&CheckCounts),
    ) -> Result<Checked> {
        let losers: BTreeSet<InodeId> = lost.iter().map(|(inode, _)| *inode).collect();
        let mut checked = self.look(losers, lost, &mut progress)?;
        for _ in 1..LOOKS_MAX {
            if checked.findings.iter().all(|finding| finding.kind == FindingKind::StoresLost) {
                break;
            }
            std::thread::sleep(PAUSE_BETWEEN_LOOKS);
            let mut newer = self.look(checked.suspects(), lost, &mut progress)?;
            newer.keep_found_by(&checked);
            checked = newer;
        }
        Ok(checked)
    }

    /// Has every server hold what came in others' names against what those know, and let go of what they know
    /// nothing of; `found` names the lanes that do not fit to their files. `mended` hears what was mended, as it goes.
    ///
    /// Errors: `Denied` to whoever is not the pool's owner; `HostDown` when a server does not answer, or one whose slots or
    /// files another asks for. What was mended before stays so.
    pub fn repair(&self, found: &Checked, mut mended: impl FnMut(ServerId, Trouble)) -> Result<()> {
        let map = self.refresh_map()?;
        for server in map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server) {
            self.pages(server, Mend { repair: true, after: None }, |page| {
                page.found.into_iter().for_each(|trouble| mended(server, trouble));
                page.next.map(|next| Mend { repair: true, after: Some(next) })
            })?;
            let mut lanes = found.lanes_to_mend(server);
            while !lanes.is_empty() {
                let some = lanes[..lanes.len().min(limits::MEND_LANES_MAX)].to_vec();
                let told = self.page(server, &MendLanes { lanes: some })?;
                told.mended.into_iter().for_each(|trouble| mended(server, trouble));
                lanes.drain(..told.fit as usize);
            }
        }
        Ok(())
    }

    fn look(
        &self,
        suspects: BTreeSet<InodeId>,
        lost: &[(InodeId, String)],
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<Checked> {
        let map = self.refresh_map()?;
        let servers: Vec<ServerId> =
            map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server).collect();
        let mut check = Check::new(&map, suspects);
        for server in &servers {
            self.read_slots(*server, &mut check, progress)?;
            self.read_inodes(*server, &mut check, progress)?;
        }
        lost.iter().for_each(|(inode, text)| check.lost_stores(*inode, text));
        for server in &servers {
            self.read_entries(*server, &mut check, progress)?;
            self.read_lanes(*server, &mut check, progress)?;
            check.store(&self.page(*server, &CheckStore {})?);
            // Of what is held for nobody the slots themselves have told.
            self.pages(*server, Mend { repair: false, after: None }, |page| {
                let ahead = page.found.iter().filter(|trouble| trouble.kind == TroubleKind::NumbersAhead);
                ahead.for_each(|trouble| check.trouble(*server, trouble));
                progress(check.counts());
                page.next.map(|next| Mend { repair: false, after: Some(next) })
            })?;
        }
        if self.refresh_map()?.epoch != map.epoch {
            return Err(changed(&map));
        }
        Ok(check.finish())
    }

    fn read_slots(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        self.pages(server, CheckSlots { after: None }, |page| {
            page.slots.iter().for_each(|facts| check.slot(server, facts));
            progress(check.counts());
            let last = page.slots.last().filter(|_| !page.end)?;
            Some(CheckSlots { after: Some(last.slot) })
        })
    }

    fn read_inodes(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        self.pages(server, CheckInodes { after: InodeId(0) }, |page| {
            page.inodes.iter().for_each(|facts| check.inode(server, facts));
            page.troubles.iter().for_each(|trouble| check.trouble(server, trouble));
            progress(check.counts());
            let last = page.inodes.last().filter(|_| !page.end)?;
            Some(CheckInodes { after: last.inode })
        })
    }

    fn read_entries(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        self.pages(server, CheckEntries { after: None }, |page| {
            page.entries.iter().for_each(|facts| check.entry(server, facts));
            progress(check.counts());
            page.next.map(|next| CheckEntries { after: Some(next) })
        })
    }

    fn read_lanes(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        self.pages(server, CheckLanes { after: None }, |page| {
            page.lanes.iter().for_each(|facts| check.lane(server, facts));
            progress(check.counts());
            let last = page.lanes.last().filter(|_| !page.end)?;
            Some(CheckLanes { after: Some(last.lane) })
        })
    }

    /// Asks a server for page after page; `take` tells what to ask next.
    fn pages<R: Request>(
        &self,
        server: ServerId,
        first: R,
        mut take: impl FnMut(R::Reply) -> Option<R>,
    ) -> Result<()> {
        let mut next = Some(first);
        while let Some(request) = next {
            next = take(self.page(server, &request)?);
        }
        Ok(())
    }

    fn page<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        let session = self.session()?;
        session.ask_server(server, request, session.deadline())
    }
}

fn changed(map: &ClusterMap) -> Error {
    let text =
        format!("the servers' slots changed hands during the check (after {}); check again", map.epoch);
    Error::new(ErrorKind::Retry, text)
}
